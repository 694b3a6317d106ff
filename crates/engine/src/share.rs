//! The process's share of the limit, as its engine uses it; and what is left of that when the coordinator has died.
//!
//! The engine takes from the run's pot ahead of what the process grows by, so that the share is always above the
//! footprint while there is anything in the pot. What it goes by, its limit, is the share and its part of the pot: with
//! the pot full a process is far from its limit however small its share is, and with the pot empty the share is all.

use control::Order;
use control::line::Line;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;
use uffd::PAGE;
use uffd::sys::{self, Errno, Fd, consts::*};

/// How much is taken ahead, at least and at most; else a part in so many of what is in the pot. The least is no more
/// than an engine keeps free: who does not grow takes nothing.
const AHEAD: [u64; 2] = [512 << 10, 32 << 20];
const AHEAD_PART: u64 = 32;

/// Who grows has at least half of this ahead, as much as a fault in a stream brings at once: what was given and not yet
/// taken all the others would take for theirs, until this engine has a CPU again. Of a small limit it is a part.
const GROWING: u64 = 4 << 20;
const GROWING_PART: u64 = 64;

/// With less no engine can work, whatever its share is.
const LEAST: u64 = 2 << 20;

/// The limit of a process of which nothing may go out: none that it could come to.
const UNLIMITED: usize = 1 << 47;

/// What the process may hold, in bytes, besides what is counted with its relatives; it holds `own` now, and more is
/// taken from the pot if that is near the share. Of the pot counts an equal part for each that may take from it at a
/// time.
pub fn limit(order: &Order, own: usize) -> usize {
    within(order, own, order.memcg.division.takers.load(Relaxed))
}

/// The same while the engine sleeps: it may not be looking when all processes grow at once.
pub fn limit_asleep(order: &Order, own: usize) -> usize {
    let memcg = order.memcg;
    if memcg.may_run_short(0) { within(order, own, memcg.living() as u64) } else { limit(order, own) }
}

/// The limit of a process with one of so many parts of the pot.
fn within(order: &Order, own: usize, parts: u64) -> usize {
    let (division, share) = (&order.memcg.division, &order.slot.share);
    let own = own as u64;
    let grows = own > order.slot.footprint_bytes.load(Relaxed);
    let most = order.memcg.max_bytes.load(Relaxed) / GROWING_PART;
    let least = if grows { GROWING.min(most).max(AHEAD[0]) } else { AHEAD[0] };
    let ahead = (division.pot_bytes() / AHEAD_PART).clamp(least, AHEAD[1]);
    let has = share.bytes.load(SeqCst);
    if own + ahead / 2 > has {
        division.take(order.slot, own + ahead - has);
    }
    // Whoever waited for room would do so until it is stopped.
    if !order.memcg.lets_out() {
        return UNLIMITED;
    }
    let (has, pot) = (share.bytes.load(SeqCst), division.pot_bytes());
    let limit = if has + pot > 0 { has + pot / parts.max(1) } else { order.memcg.unshared_bytes() };
    limit.max(LEAST) as usize
}

/// How much of `footprint` bytes is counted with the process's relatives.
pub fn excess(order: &Order, footprint: usize) -> usize {
    (order.slot.share.excess_bytes.load(Relaxed) as usize).min(footprint)
}

/// The part of its figures, in bytes, that a process of `footprint` bytes has to itself: what it shares with its
/// relatives counts there. Of what is out it shares as much as of what is in, as far as anybody can tell.
pub fn own_part(order: &Order, footprint: usize) -> impl Fn(usize) -> u64 + use<> {
    let own = footprint - excess(order, footprint);
    move |bytes| (bytes as u128 * own as u128 / footprint.max(1) as u128) as u64
}

/// For how long the coordinator may say nothing, where its process cannot be seen; in nanoseconds.
const SILENCE_NS: u64 = 5_000_000_000;

/// How often it is looked whether it lives.
const LOOK_NS: u64 = 100_000_000;

/// The coordinator, as an engine sees it.
pub struct Coordinator {
    /// Its process, unless that is in another namespace.
    process: Option<Fd>,
    /// What it said last, and when that was new.
    said: u64,
    new_ns: u64,
    looked_ns: u64,
}

impl Coordinator {
    /// That of the run.
    pub fn open(order: &Order) -> Coordinator {
        let division = &order.memcg.division;
        let pid = division.pid.load(Acquire) as u32;
        let process =
            sys::pidfd_open(pid).ok().filter(|_| started(pid) == Some(division.start.load(Relaxed)));
        Coordinator { process, said: 0, new_ns: sys::now_ns(), looked_ns: 0 }
    }

    /// Looks now and then whether it has died, in which case one engine of the run says so on the standard error of
    /// `program`.
    pub fn watch(&mut self, order: &Order, program: &Fd) {
        let now = sys::now_ns();
        if now < self.looked_ns + LOOK_NS {
            return;
        }
        self.looked_ns = now;
        let (memcg, division) = (order.memcg, &order.memcg.division);
        if self.has_died(order, now)
            && memcg.closed.load(Acquire) == 0
            && division.pid.load(Relaxed) != 0
            && division.orphan()
        {
            say(
                order.pid,
                program,
                "the coordinator has died; the programs go on, each within its last share",
            );
        }
    }

    fn has_died(&mut self, order: &Order, now: u64) -> bool {
        if let Some(process) = &self.process {
            return sys::poll([process], 0) == Ok([true]);
        }
        let division = &order.memcg.division;
        let said = division.divided_ns.load(Relaxed);
        if said != self.said || division.stopped.load(Relaxed) != 0 {
            (self.said, self.new_ns) = (said, now);
        }
        now - self.new_ns > SILENCE_NS
    }
}

/// What a process copies of what it has in common with its relatives, while nobody is told of its writes: each copy is
/// a fault that the kernel serves alone, and those are counted. Those that brought fresh memory are taken off.
pub struct Copies {
    stat: Option<Fd>,
    /// How many faults there were at the last look, and what the process held; none where nothing was shared then.
    last: Option<(u64, usize)>,
}

impl Copies {
    /// Of a process; of what it `inherits` it has copied nothing yet.
    pub fn of(pid: u32, inherits: Option<usize>) -> Copies {
        Copies { stat: open_stat(pid).ok(), last: inherits.map(|footprint| (0, footprint)) }
    }

    /// Counts what has been copied since the last look; the process holds `footprint` bytes.
    pub fn follow(&mut self, order: &Order, footprint: usize) {
        if order.slot.share.excess_bytes.load(Relaxed) == 0 && !order.memcg.has_family(order.slot) {
            self.last = None;
            return;
        }
        let Some(faults) = self.stat.as_ref().and_then(|stat| stat_word(stat, MINOR_FAULTS)) else { return };
        if let Some((faults_then, footprint_then)) = self.last.replace((faults, footprint)) {
            let bytes = faults.saturating_sub(faults_then) as usize * PAGE;
            let fresh = footprint.saturating_sub(footprint_then);
            order.memcg.count_copies(order.slot, bytes.saturating_sub(fresh) as u64);
        }
    }
}

/// Which words of /proc/PID/stat, counted after the name.
const MINOR_FAULTS: usize = 7;
const START: usize = 19;

fn open_stat(pid: u32) -> Result<Fd, Errno> {
    let mut path = Line::default();
    let _ = write!(path, "/proc/{pid}/stat\0");
    sys::open(path.as_str().as_bytes(), O_RDONLY)
}

fn stat_word(stat: &Fd, number: usize) -> Option<u64> {
    let mut text = [0u8; 512];
    let len = sys::pread(stat, &mut text, 0).ok()?;
    // The name comes second, and may hold anything.
    let after = text[..len].iter().rposition(|&b| b == b')')? + 2;
    let word = text[after..len].split(|&b| b == b' ').nth(number)?;
    Some(word.iter().fold(0, |n, digit| n * 10 + (digit - b'0') as u64))
}

/// When a process started, as /proc/PID/stat has it.
pub fn started(pid: u32) -> Option<u64> {
    stat_word(&open_stat(pid).ok()?, START)
}

/// A line on the program's standard error, if it has one that takes it at once.
fn say(pid: u32, program: &Fd, text: &str) {
    let (mut path, mut line) = (Line::default(), Line::default());
    let _ = write!(path, "/proc/{pid}/fd/2\0");
    let _ = writeln!(line, "zfolio: {text}");
    // The program's own descriptor, with its place in the file; who may not have that opens the file anew.
    let stderr = sys::pidfd_getfd(program, 2)
        .or_else(|_| sys::open(path.as_str().as_bytes(), O_WRONLY | O_APPEND | O_NOCTTY | O_NONBLOCK));
    if let Ok(stderr) = stderr
        && sys::is_writable(&stderr)
    {
        let _ = sys::write(&stderr, line.as_str().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_a_process_is_the_kernels() {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let expected = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().parse().ok();
        assert_eq!(started(std::process::id()), expected);
        assert_eq!(started(u32::MAX / 2), None);
    }
}
