//! What of the memory of managed processes cannot go out, by cause, from /proc/PID/smaps.
//!
//! The engine registers with userfaultfd all that it manages, and the kernel says so of each mapping (VmFlags: `um`). Anonymous pages elsewhere stay.
//! Which files it has mapped tells besides whether it goes by the memory that it sees (askers.rs).
//!
//! While an engine sleeps nothing is registered, and nothing has to go out. Its own memory lies in addresses of its own (reservation.rs of the crate control) or,
//! where these are taken, is kept out of children (`dc`).

use crate::askers;
use crate::causes::Cause;
use crate::smaps::{self, Mapping};
use crate::sys;
use memcg::ENGINE_ADDRESSES;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};
use uffd::kinds::SMALLEST;

/// smaps is read for at most one part in so many of the time.
const PART: u32 = 50;
/// A process that grows is looked at again after this; what was found twice is believed, since a mapping may be registered a moment late.
const SOON: Duration = Duration::from_secs(1);
/// And one that does not, where little of the limit is left: its memory may have been locked or protected.
const LATER: Duration = Duration::from_secs(4);

/// A process with less than this part of the limit is not looked at, and nor is one that has changed by less than half of that.
const PART_OF_LIMIT: u64 = 16;

/// What was found, in bytes.
type Sizes = HashMap<Cause, u64>;

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
            let is_open = is_new || look.found.get(&Cause::Unregistered).is_some_and(is_large);
            now >= look.at + if has_changed || is_open { SOON } else { LATER }
                && (has_changed || is_open || is_short)
        };
        let due = processes.iter().filter(is_due);
        let Some(process) = due.min_by_key(|p| self.looks.get(&(p.pid, p.start)).map(|look| look.at)) else {
            return;
        };
        let began = sys::cpu_time();
        let mut found = Sizes::new();
        smaps::smaps(process.pid, |mapping| {
            self.askers.extend(askers::of_file(&mapping.name));
            if let Some(cause) = cause(mapping) {
                *found.entry(cause).or_default() += mapping.anonymous_bytes;
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

    /// What was found twice: process id, cause, bytes.
    pub fn found(&self) -> impl Iterator<Item = (u32, Cause, u64)> {
        self.looks.iter().flat_map(|(&(pid, _), look)| {
            let before =
                |cause| look.before.as_ref().and_then(|before| before.get(cause)).copied().unwrap_or(0);
            look.found.iter().map(move |(cause, bytes)| (pid, *cause, before(cause).min(*bytes)))
        })
    }
}

fn is_engines(mapping: &Mapping) -> bool {
    ENGINE_ADDRESSES.contains(&(mapping.range.0 as usize)) || mapping.has("dc") && !mapping.has("um")
}

/// Why the anonymous pages of a mapping stay; none where they do not, or are the engine's.
fn cause(mapping: &Mapping) -> Option<Cause> {
    let size = mapping.range.1 - mapping.range.0;
    match mapping {
        m if m.anonymous_bytes == 0 || is_engines(m) => None,
        // Also where it was registered before it was locked.
        m if m.has("lo") => Some(Cause::Locked),
        m if m.has("um") => None,
        m if m.object.1 != 0 => Some(Cause::FileCopies),
        m if m.may('x') => Some(Cause::Executable),
        m if !m.may('w') => Some(Cause::ReadOnly),
        _ if size < SMALLEST as u64 => Some(Cause::Small),
        _ => Some(Cause::Unregistered),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_of_a_mapping() {
        let of = |permissions: &str, inode, size, flags: &str| {
            let mapping = Mapping {
                range: (0, size),
                permissions: permissions.into(),
                object: ((0, 1), inode),
                anonymous_bytes: 4096,
                flags: flags.into(),
                ..Mapping::default()
            };
            cause(&mapping)
        };
        let large = 1 << 20;
        assert_eq!(of("rw-p", 0, large, "rd wr um"), None);
        assert_eq!(of("rw-p", 0, large, "rd wr dc"), None, "the engine's");
        for flags in ["rd wr lo", "rd wr lo dc um"] {
            assert_eq!(of("rw-p", 0, large, flags), Some(Cause::Locked), "{flags}");
        }
        assert_eq!(of("rw-p", 7, large, "rd wr"), Some(Cause::FileCopies));
        assert_eq!(of("rwxp", 0, large, "rd wr ex"), Some(Cause::Executable));
        assert_eq!(of("r--p", 0, large, "rd"), Some(Cause::ReadOnly));
        assert_eq!(of("rw-p", 0, 8192, "rd wr"), Some(Cause::Small));
        assert_eq!(of("rw-p", 0, large, "rd wr"), Some(Cause::Unregistered));
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
