//! What of the memory of managed processes cannot go out, by cause, from /proc/PID/smaps.
//!
//! The engine registers with userfaultfd all that it manages, and the kernel says so of each mapping (VmFlags: `um`).
//! Anonymous pages elsewhere stay. Which files it has mapped tells besides whether it goes by the memory that it sees
//! (askers.rs).
//!
//! While an engine sleeps nothing is registered, and nothing has to go out. Its own memory lies in addresses of its own
//! (reservation.rs of the crate control) or, where these are taken, is kept out of children (`dc`).

use crate::askers;
use crate::smaps::{self, Mapping};
use crate::sys;
use memcg::ENGINE_ADDRESSES;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};
use uffd::kinds::{Kind, SMALLEST};

/// smaps is read for at most one part in so many of the time.
const PART: u32 = 50;
/// A process that grows is looked at again after this; what was found twice is believed, since a mapping may be
/// registered a moment late.
const SOON: Duration = Duration::from_secs(1);
/// And one that does not, where little of the limit is left: its memory may have been locked or protected.
const LATER: Duration = Duration::from_secs(4);

/// A process with less than this part of the limit is not looked at, and nor is one that has changed by less than half
/// of that.
const PART_OF_LIMIT: u64 = 16;

/// What was found, in bytes.
type Sizes = HashMap<Kind, u64>;

/// A managed process whose engine is awake.
#[derive(Clone, Copy, Debug)]
pub struct Awake {
    /// Its process id, here.
    pub pid: u32,
    /// When it started.
    pub start: u64,
    /// What it holds, in bytes.
    pub footprint_bytes: u64,
}

struct Look {
    at: Instant,
    footprint_bytes: u64,
    found: Sizes,
    before: Option<Sizes>,
}

/// What is known of all of them.
#[derive(Default)]
pub struct Unevictable {
    looks: HashMap<(u32, u64), Look>,
    next: Option<Instant>,
    askers: BTreeSet<&'static str>,
}

impl Unevictable {
    /// Looks at one process, if one is due and there is time. `is_short`: little of the limit is left.
    pub fn look(&mut self, processes: &[Awake], max_bytes: u64, is_short: bool, now: Instant) {
        self.looks.retain(|&key, _| processes.iter().any(|process| (process.pid, process.start) == key));
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        let is_due = |process: &&Awake| {
            if process.footprint_bytes < max_bytes / PART_OF_LIMIT {
                return false;
            }
            let Some(look) = self.looks.get(&(process.pid, process.start)) else { return true };
            let has_changed =
                look.footprint_bytes.abs_diff(process.footprint_bytes) > max_bytes / PART_OF_LIMIT / 2;
            let is_large = |bytes: &u64| *bytes > max_bytes / PART_OF_LIMIT;
            let is_new = look.found.values().any(is_large) && look.before.is_none();
            // The engine may have got hold of it since.
            let is_open = is_new || look.found.get(&Kind::Unregistered).is_some_and(is_large);
            now >= look.at + if has_changed || is_open { SOON } else { LATER }
                && (has_changed || is_open || is_short)
        };
        let due = processes.iter().filter(is_due);
        let Some(process) = due.min_by_key(|p| self.looks.get(&(p.pid, p.start)).map(|look| look.at)) else {
            return;
        };
        let began = sys::cpu_time();
        let mut found = Sizes::new();
        // Of a process that has ended nothing is found.
        let _ = smaps::smaps(process.pid, |mapping| {
            self.askers.extend(askers::of_file(&String::from_utf8_lossy(mapping.name())));
            if let Some(kind) = kind(mapping) {
                *found.entry(kind).or_default() += mapping.anonymous_bytes as u64;
            }
        });
        let key = (process.pid, process.start);
        let before = self.looks.remove(&key).map(|look| look.found);
        self.looks.insert(key, Look { at: now, footprint_bytes: process.footprint_bytes, found, before });
        self.next = Some(now + (sys::cpu_time() - began) * PART);
    }

    /// Programs that size themselves by the memory that they see, among those that were looked at.
    pub fn askers(&self) -> Vec<&'static str> {
        self.askers.iter().copied().collect()
    }

    /// What was found twice: process id, why it stays, bytes.
    pub fn found(&self) -> impl Iterator<Item = (u32, Kind, u64)> {
        self.looks.iter().flat_map(|(&(pid, _), look)| {
            let before =
                |kind| look.before.as_ref().and_then(|before| before.get(kind)).copied().unwrap_or(0);
            look.found.iter().map(move |(kind, bytes)| (pid, *kind, before(kind).min(*bytes)))
        })
    }
}

fn is_engines(mapping: &Mapping) -> bool {
    let flags = mapping.flags;
    ENGINE_ADDRESSES.contains(&mapping.range.start) || flags.has(b"dc") && !flags.has(b"um")
}

/// Why the anonymous pages of a mapping stay; none where they do not, or are the engine's.
fn kind(mapping: &Mapping) -> Option<Kind> {
    match mapping {
        m if m.anonymous_bytes == 0 || is_engines(m) => None,
        // Also where it was registered before it was locked.
        m if m.flags.has(b"lo") => Some(Kind::Locked),
        m if m.flags.has(b"um") => None,
        m if m.inode != 0 => Some(Kind::Copies),
        m if m.may(b'x') => Some(Kind::Executable),
        m if !m.may(b'w') => Some(Kind::ReadOnly),
        m if m.range.len() < SMALLEST => Some(Kind::Small),
        _ => Some(Kind::Unregistered),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_mapping_stays() {
        let of = |permissions: &str, inode: u64, size: usize, flags: &str| {
            let text =
                format!("0-{size:x} {permissions} 0 00:01 {inode}\nAnonymous: 4 kB\nVmFlags: {flags}\n");
            let mut found = None;
            uffd::smaps::Parser::default().feed(text.as_bytes(), |mapping| found = Some(kind(mapping)));
            found.expect("a mapping")
        };
        let large = 1 << 20;
        assert_eq!(of("rw-p", 0, large, "rd wr um"), None);
        assert_eq!(of("rw-p", 0, large, "rd wr dc"), None, "the engine's");
        for flags in ["rd wr lo", "rd wr lo dc um"] {
            assert_eq!(of("rw-p", 0, large, flags), Some(Kind::Locked), "{flags}");
        }
        assert_eq!(of("rw-p", 7, large, "rd wr"), Some(Kind::Copies));
        assert_eq!(of("rwxp", 0, large, "rd wr ex"), Some(Kind::Executable));
        assert_eq!(of("r--p", 0, large, "rd"), Some(Kind::ReadOnly));
        assert_eq!(of("rw-p", 0, 8192, "rd wr"), Some(Kind::Small));
        assert_eq!(of("rw-p", 0, large, "rd wr"), Some(Kind::Unregistered));
    }

    /// This process has no engine: all that it holds is nobody's to take out.
    #[test]
    fn what_is_found_once_is_not_believed() {
        let pid = std::process::id();
        let process = [Awake { pid, start: 1, footprint_bytes: 32 << 20 }];
        let held = vec![1u8; 32 << 20];
        let (mut known, now) = (Unevictable::default(), Instant::now());
        let sum = |known: &Unevictable| known.found().map(|(.., bytes)| bytes).sum::<u64>();
        known.look(&process, 256 << 20, true, now);
        assert_eq!(sum(&known), 0);
        known.next = None;
        known.look(&process, 256 << 20, true, now + SOON);
        assert!(sum(&known) >= 32 << 20, "{}", sum(&known));
        known.look(&[], 256 << 20, true, now + SOON);
        assert_eq!((sum(&known), held[5]), (0, 1));
    }
}
