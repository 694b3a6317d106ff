//! Where the engine runs: on the CPU of the thread that misses.
//!
//! A thread that touches a page here and a page there waits for the engine at each, and on another CPU that is two wake-ups across CPUs, dearer than
//! all the engine does for it. On the same CPU they are two switches: the thread sleeps while it is served, so the CPU is free, and no other
//! CPU has to be told which pages have gone. The compressors stay off it. Zipf access was twice as fast so on two CPUs.
//!
//! Where misses are rare, come from several threads at a time, or come as a stream, which the engine works ahead of, it is better on a CPU of its
//! own, and the scheduler says where.

use alloc::vec::Vec;
use uffd::sys::{self, CpuSet};

/// After so many faults the seat is thought over.
const FAULTS: u64 = 64;

/// They are frequent if they took no longer than this.
const OFTEN_NS: u64 = 20_000_000;

/// How many faults of another thread than the last one there may be among them.
const SWITCHES: u64 = FAULTS / 8;

/// What has happened so far.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    /// Faults served.
    pub all: u64,
    /// Those that brought a single page.
    pub single: u64,
    /// Those of another thread than the one before.
    pub switches: u64,
    /// The thread of the last one.
    pub thread: u32,
}

/// The engine's seat, and its workers'.
pub struct Seat {
    /// CPUs that engine and workers may use.
    all: CpuSet,
    workers: Vec<u32>,
    taken: Option<usize>,
    /// When it was last thought over, and what had happened by then.
    since_ns: u64,
    before: Faults,
}

impl Seat {
    /// Nowhere in particular yet.
    pub fn new(workers: &[u32]) -> Seat {
        let all = CpuSet::of_this_thread();
        Seat { all, workers: workers.to_vec(), taken: None, since_ns: 0, before: Faults::default() }
    }

    /// True when the engine may use a CPU while the program does: it may poll for the next fault without sleeping.
    pub fn is_apart(&self) -> bool {
        self.taken.is_none() && self.all.count() > 1
    }

    /// Takes a seat, or gives it up, by the faults up to `now_ns`; `cpu_of` says where a thread last ran.
    pub fn choose(&mut self, now_ns: u64, faults: Faults, cpu_of: impl FnOnce(u32) -> Option<usize>) {
        let took = now_ns - self.since_ns;
        let count = faults.all - self.before.all;
        if count < FAULTS && (took < OFTEN_NS || self.taken.is_none() && count > 0) {
            return;
        }
        let dense = count >= FAULTS
            && took < OFTEN_NS
            && (faults.single - self.before.single) * 2 > count
            && faults.switches - self.before.switches <= SWITCHES;
        (self.since_ns, self.before) = (now_ns, faults);
        let seat = if dense && self.all.count() > 1 {
            cpu_of(faults.thread).filter(|&cpu| self.all.contains(cpu))
        } else {
            None
        };
        if seat != self.taken {
            self.take(seat);
        }
    }

    fn take(&mut self, seat: Option<usize>) {
        self.taken = seat;
        let (mine, theirs) = match seat {
            Some(cpu) => (CpuSet::only(cpu), self.all.without(cpu)),
            None => (self.all, self.all),
        };
        // Refused where a cpuset has changed meanwhile: then the scheduler's choice stays.
        let _ = sys::sched_setaffinity(0, &mine);
        for &worker in &self.workers {
            let _ = sys::sched_setaffinity(worker, &theirs);
        }
    }
}
