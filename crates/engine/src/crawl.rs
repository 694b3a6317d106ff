//! Whether the program crawls, and why: what of its memory cannot go out. The rules are vmscan's (crawl.rs there).
//!
//! What cannot go out is read from /proc/self/smaps, only while the program crawls or holds more than the limit, and a
//! few mappings at a time: a fault waits for a millisecond. Engines open the file before their program gives its
//! rights up.

use crate::pager::Engine;
use crate::watch::Watch;
use control::arena;
use control::footprint::Status;
use control::line::Line;
use core::fmt::{self, Write};
use core::sync::atomic::Ordering::Relaxed;
use memcg::Memcg;
use uffd::kinds::{Entry, Kind, Parser};
use uffd::sys;
use uffd::{Errno, Fd};
use vmscan::crawl::{Crawl, Held, Pace, Passed, Sample};
use zswap::objects::Contents;

/// How long smaps is read at a time, in nanoseconds, for which a fault may wait; and how much of it in one call, which
/// is all that the kernel gives.
const READ_NS: u64 = 1_000_000;
const STEP_BYTES: usize = 4096;

/// What was found is right for so long.
const FRESH_NS: u64 = 10_000_000_000;

/// What goes out does not shrink if it takes three quarters of what it was; of less than this nothing is said.
const SHRINKS: [usize; 2] = [3, 4];
const MUCH_BYTES: usize = 4 << 20;

/// How the program fares, and what of its memory cannot go out.
#[derive(Default)]
pub struct Crawling {
    crawl: Crawl,
    /// The pace at the last sample.
    pace: Option<Pace>,
    passed: Passed,
    /// A reading of smaps that is under way.
    reading: Option<Reading>,
    /// What the last one found, and when.
    found: Option<(Stuck, u64)>,
    is_stopped: bool,
}

/// What cannot go out, by kind, in bytes.
#[derive(Clone, Debug, Default)]
struct Stuck {
    bytes: [usize; Kind::ALL.len()],
    /// The file of which most pages are copied.
    file: Line,
    file_bytes: usize,
}

impl Stuck {
    /// All that a process is charged with.
    fn private(&self) -> usize {
        let is_private = |kind: &&Kind| !matches!(kind, Kind::Managed | Kind::Shared);
        Kind::ALL.iter().filter(is_private).map(|&kind| self.bytes[kind as usize]).sum()
    }

    /// Pages of files on disks are shared mappings', but no memory that a process is charged with.
    fn bound_shared(&mut self, shmem_bytes: Option<usize>) {
        let shared = &mut self.bytes[Kind::Shared as usize];
        *shared = shmem_bytes.map_or(*shared, |bytes| bytes.min(*shared));
    }

    /// What there is most of, managed memory aside.
    fn largest(&self) -> (Kind, usize) {
        let stuck = Kind::ALL.into_iter().filter(|&kind| kind != Kind::Managed);
        let (bytes, kind) = stuck
            .map(|kind| (self.bytes[kind as usize], kind))
            .max_by_key(|it| it.0)
            .unwrap_or((0, Kind::Special));
        (kind, bytes)
    }
}

/// What there is most of, in words: `262 MiB are private copies of f.bin`.
impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, bytes) = self.largest();
        if kind == Kind::Copies && self.file_bytes > bytes / 2 {
            return write!(
                f,
                "{} MiB are private copies of pages of {}",
                self.file_bytes >> 20,
                self.file.as_str()
            );
        }
        write!(f, "{} MiB are {}", bytes >> 20, kind.what())
    }
}

/// One reading of smaps.
struct Reading {
    parser: Parser,
    offset: usize,
    stuck: Stuck,
    /// The file of the last mapping, and how much is copied of it; it may have more mappings behind that.
    file: Line,
    file_bytes: usize,
}

impl Reading {
    fn new() -> Reading {
        Reading {
            parser: Parser::default(),
            offset: 0,
            stuck: Stuck::default(),
            file: Line::default(),
            file_bytes: 0,
        }
    }

    /// Reads a little; true when all was read.
    fn step(&mut self, smaps: &Fd) -> Result<bool, Errno> {
        let mut buffer = [0; STEP_BYTES];
        let len = sys::pread(smaps, &mut buffer, self.offset)?;
        self.offset += len;
        let Reading { parser, stuck, file, file_bytes, .. } = self;
        parser.feed(&buffer[..len], |entry| count(entry, stuck, (file, file_bytes)));
        Ok(len == 0)
    }
}

/// Counts a mapping. `last` is the file of the mapping before, with what is copied of it.
fn count(entry: &Entry, stuck: &mut Stuck, (file, file_bytes): (&mut Line, &mut usize)) {
    let (kind, bytes) = (entry.kind(), entry.bytes());
    let is_ours = arena::first_foreign(entry.range.clone()).is_empty();
    if bytes == 0 || is_ours {
        return;
    }
    stuck.bytes[kind as usize] += bytes;
    if kind != Kind::Copies {
        return;
    }
    let name = core::str::from_utf8(entry.short_name()).unwrap_or("a file");
    if file.as_str() != name {
        (*file, *file_bytes) = (Line::default(), 0);
        let _ = file.write_str(name);
    }
    *file_bytes += bytes;
    if *file_bytes > stuck.file_bytes {
        (stuck.file, stuck.file_bytes) = (file.clone(), *file_bytes);
    }
}

/// Why the program is not to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopReason {
    /// What cannot go out is more than the limit, or leaves nothing of it.
    Stuck,
    /// It is slower than its user allows.
    Slow,
}

impl Crawling {
    /// Looks whether the program crawls, or is `hungry` (vmscan/hunger.rs) and what takes the room will be asked; why
    /// it is to be stopped, when it is.
    pub fn look(
        &mut self,
        now: u64,
        watch: &Watch,
        pager: &Engine,
        own: usize,
        hungry: bool,
    ) -> Option<Line> {
        let memcg = watch.order.memcg;
        if self.crawl.is_due(now) {
            let waited_ns = watch.order.slot.stat.stall_ns.load(Relaxed) + pager.waited_ns(now);
            let ran = watch.ran_ns();
            self.pace = ran.and_then(|ran_ns| self.crawl.look(Sample { now_ns: now, waited_ns, ran_ns }));
        }
        let held = Held { limit: memcg.max_bytes.load(Relaxed) as usize, footprint: own };
        let is_passed = self.passed.look(now, held);
        let pace = self.pace.filter(Pace::is_crawl);
        let is_slow = self.is_too_slow(memcg);
        if self.is_stopped || !(is_passed || pace.is_some() || is_slow || hungry) {
            (self.reading, self.found) = (None, None);
            return None;
        }
        let stuck = self.stuck(now, pager.kernel().smaps(), &watch.status)?;
        let is_taken = held.is_taken_by(stuck.private());
        if let Some(pace) = pace.filter(|_| memcg.crawls.is_open()) {
            memcg.crawls.say(told(watch, pager, pace, &stuck).as_str());
        }
        let why = match () {
            _ if is_taken && (is_passed || pace.is_some_and(|_| own > pager.marks().low)) => {
                StopReason::Stuck
            }
            _ if is_slow => StopReason::Slow,
            _ => return None,
        };
        self.is_stopped = true;
        Some(stopped(watch, pager, why, self.pace, &stuck))
    }

    /// True when what cannot go out was found out lately.
    pub fn knows(&self) -> bool {
        self.found.is_some()
    }

    /// Adds what there is most of that cannot go out, where that is known and much.
    pub fn explain(&self, line: &mut Line) {
        if let Some((stuck, _)) = self.found.as_ref().filter(|(stuck, _)| stuck.largest().1 > MUCH_BYTES) {
            let _ = write!(line, "; {stuck}, which cannot go out; what helps: {}", stuck.largest().0.help());
        }
    }

    fn is_too_slow(&self, memcg: &Memcg) -> bool {
        let factor = memcg.settings.stop_when_slow as u64;
        factor > 0 && self.pace.is_some_and(|pace| pace.is_slower_than(factor))
    }

    /// What cannot go out, as soon as that is known.
    fn stuck(&mut self, now: u64, smaps: Option<&Fd>, status: &Status) -> Option<Stuck> {
        if let Some((stuck, at)) = &self.found
            && now < at + FRESH_NS
        {
            return Some(stuck.clone());
        }
        let reading = self.reading.get_or_insert_with(Reading::new);
        // What cannot be read is not known to be stuck.
        while !smaps.is_none_or(|smaps| reading.step(smaps).unwrap_or(true)) {
            if sys::now_ns() > now + READ_NS {
                return None;
            }
        }
        let mut stuck = self.reading.take()?.stuck;
        stuck.bound_shared(status.shmem_bytes());
        self.found = Some((stuck.clone(), now));
        Some(stuck)
    }
}

/// What takes the room, and what helps, as a part of a sentence.
struct Cause<'a>(&'a Engine, &'a Stuck);

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cause(pager, stuck) = *self;
        let (stored, pool) = (pager.pooled_bytes(), pager.store().pool_bytes());
        let (kind, bytes) = stuck.largest();
        // A pool of little more than clean copies says nothing of how memory shrinks.
        let hardly_shrinks = stored > MUCH_BYTES && pool > stored / SHRINKS[1] * SHRINKS[0];
        if hardly_shrinks && pool > bytes.max(MUCH_BYTES) {
            write!(f, "{} MiB of it hardly shrink; what helps: more memory{}", stored >> 20, Backing(pager))
        } else if bytes > MUCH_BYTES {
            write!(f, "{stuck}, which cannot go out; what helps: {}", kind.help())
        } else {
            write!(f, "what helps: more memory{}", Backing(pager))
        }
    }
}

/// What swap areas could take, as the end of a sentence that says what helps.
pub struct Backing<'a>(pub &'a Engine);

impl fmt::Display for Backing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Backing(pager) = self;
        match (pager.has_areas(), pager.has_room()) {
            (false, _) => f.write_str(", or a swap area (--backing)"),
            (true, false) => f.write_str(", or more room in swap areas (--backing)"),
            (true, true) => Ok(()),
        }
    }
}

/// What a user reads whose program crawls.
fn told(watch: &Watch, pager: &Engine, pace: Pace, stuck: &Stuck) -> Line {
    let memcg = watch.order.memcg;
    let (wanted, limit) = (memcg.current.wanted() >> 20, memcg.max_bytes.load(Relaxed) >> 20);
    let mut line = Line::default();
    let _ = write!(
        line,
        "process {} has waited for memory for {} % of its time in the last {} s: the run wants some {wanted} MiB, and may hold {limit}; {}",
        watch.order.pid,
        pace.waited_percent(),
        pace.over_ns / 1_000_000_000,
        Cause(pager, stuck)
    );
    line
}

/// What a user reads whose program was stopped.
fn stopped(watch: &Watch, pager: &Engine, why: StopReason, pace: Option<Pace>, stuck: &Stuck) -> Line {
    let (pid, memcg, mut line) = (watch.order.pid, watch.order.memcg, Line::default());
    let _ = match (why, pace) {
        (StopReason::Slow, Some(pace)) => write!(
            line,
            "process {pid} was stopped (--stop-when-slow {}): it has waited for memory for {} % of its time in the last {} s, and takes {} times as long as without; {}",
            memcg.settings.stop_when_slow,
            pace.waited_percent(),
            pace.over_ns / 1_000_000_000,
            pace.factor(),
            Cause(pager, stuck)
        ),
        _ => write!(
            line,
            "the limit of {} MiB is full: {} MiB of process {pid} cannot go out, and it was stopped; {stuck}; what helps: {}",
            memcg.max_bytes.load(Relaxed) >> 20,
            stuck.private() >> 20,
            stuck.largest().0.help(),
        ),
    };
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Stuck {
        let mut reading = Reading::new();
        let Reading { parser, stuck, file, file_bytes, .. } = &mut reading;
        parser.feed(text.as_bytes(), |entry| count(entry, stuck, (file, file_bytes)));
        reading.stuck
    }

    fn mapping(range: &str, rights: &str, file: &str, mib: usize) -> String {
        let inode = if file.is_empty() { 0 } else { 7 };
        format!("{range} {rights} 00000000 08:01 {inode} {file}\nAnonymous: {} kB\nVmFlags: rd\n", mib << 10)
    }

    #[test]
    fn what_takes_the_room_is_named_with_its_file() {
        let mut text = [
            mapping("10000000-20000000", "rw-p", "", 90),
            mapping("20000000-20100000", "rw-p", "/lib/libc.so.6", 1),
            mapping("30000000-31000000", "rw-p", "/tmp/f.bin", 12),
            mapping("31000000-32000000", "r--p", "/tmp/f.bin", 8),
            mapping("33000000-34000000", "rw-p", "/lib/libz.so", 2),
            mapping("34000000-34001000", "rw-p", "", 3),
        ]
        .concat();
        let stuck = read(&text);
        assert_eq!(stuck.private() >> 20, 26);
        assert_eq!(stuck.to_string(), "20 MiB are private copies of pages of f.bin");
        for page in 0..40 {
            text += &mapping(
                &format!("{:x}-{:x}", (0x40000 + 2 * page) << 12, (0x40001 + 2 * page) << 12),
                "rw-p",
                "",
                1,
            );
        }
        assert_eq!(read(&text).to_string(), "43 MiB are mappings below 64 KiB");
    }

    #[test]
    fn a_file_that_is_mapped_is_no_shared_memory() {
        let header = "10000000-20000000 rw-s 00000000 08:01 7 /data/index";
        let mut stuck = read(&format!("{header}\nRss: 97280 kB\nAnonymous: 0 kB\nVmFlags: rd\n"));
        stuck.bound_shared(None);
        assert_eq!(stuck.to_string(), "95 MiB are shared memory");
        stuck.bound_shared(Some(3 << 20));
        assert_eq!(stuck.largest(), (Kind::Shared, 3 << 20));
        stuck.bound_shared(Some(90 << 20));
        assert_eq!(stuck.largest().1, 3 << 20);
    }

    #[test]
    fn this_process_is_read_step_by_step_to_its_end() {
        let smaps = sys::open(b"/proc/self/smaps\0", uffd::sys::consts::O_RDONLY).unwrap();
        let (mut reading, mut steps) = (Reading::new(), 0);
        while !reading.step(&smaps).unwrap() {
            steps += 1;
        }
        assert!(steps > 1 && reading.stuck.bytes[Kind::Copies as usize] > 0, "{:?}", reading.stuck.bytes);
    }
}
