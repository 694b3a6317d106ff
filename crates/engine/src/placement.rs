//! Where the engine runs: on the CPU of the thread that misses.
//!
//! A thread that touches a page here and a page there waits for the engine at each, and on another CPU that is two
//! wake-ups across CPUs, dearer than all the engine does for it. On the same CPU they are two switches: the thread
//! sleeps while it is served, so the CPU is free, and no other CPU has to be told which pages have gone.
//!
//! To be bound to that CPU is not enough: the scheduler wakes the thread on any other CPU that is idle, since the
//! engine is running on its own. Only a CPU that runs nothing but SCHED_IDLE counts as idle too, and so engine and
//! workers are that as long as the placement is taken. (Linux 6.18 on two virtual CPUs: 10 us for a miss so, 50 us
//! bound and not SCHED_IDLE, 20 to 30 us polling on another CPU.) Where it all the same wakes the thread elsewhere,
//! which happens while a worker runs, the engine goes after it before it sleeps (`follow`).
//!
//! SCHED_IDLE gets next to nothing where others want the CPU. A program that stops missing and writes fresh memory
//! could so take more of it than there is: a worker looks out for that, and calls the engine (`BoardHead::alarm`). And
//! the placement is given up as soon as misses are no longer frequent, for whatever reason, and not taken again for a
//! while, twice as long each time until it has proved good. Who may not leave SCHED_IDLE again (that takes
//! CAP_SYS_NICE, or an RLIMIT_NICE of 20) never takes it.
//!
//! Where misses are rare, come from several threads at a time, or are for fresh memory, for which the engine makes room
//! meanwhile, it is better on a CPU of its own, and the scheduler says where. How much a miss brings does not matter:
//! windows and streams too are read faster so (read in order, 320 MiB in 160: 640 MB/s instead of 300; python3 in 48 of
//! 97 MiB, where about half of the misses bring a window: 5.4 s instead of 7.3).

use alloc::vec::Vec;
use uffd::sys::{self, CpuSet, consts::*};

/// After so many faults the placement is thought over.
const FAULTS: u64 = 64;

/// They are frequent if they took no longer than this.
const OFTEN_NS: u64 = 20_000_000;

/// And where pages were read from areas for one in so many: each takes as long as a slow disk then, and as both sleep
/// meanwhile a wake-up across CPUs is the dearer (Linux 6.18 on two virtual CPUs: python3 in 48 of 97 MiB with nothing
/// but an area takes 31 s so; 46 where its misses of 0.3 ms and more were not frequent). Elsewhere misses that take so
/// long wait for a CPU that others want.
const READS_ONE_IN: u64 = 4;
const OFTEN_READS_NS: u64 = 100_000_000;

/// How many faults of another thread than the last one there may be among them.
const SWITCHES: u64 = FAULTS / 8;

/// How long no placement is taken after the first one that did not prove good, and at most.
const REST_NS: [u64; 2] = [10_000_000, 2_000_000_000];

/// After so many times that it was thought over and kept a placement is good.
const GOOD: u32 = 16;

/// How often it is looked, at most: that costs as much as a sixth of a miss.
const FOLLOW_NS: u64 = 100_000;

/// What has happened so far.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    /// Faults served.
    pub all: u64,
    /// Those on memory that was out.
    pub out: u64,
    /// Those of another thread than the one before.
    pub switches: u64,
    /// Pages read from swap areas.
    pub read: u64,
    /// The thread of the last one.
    pub thread: u32,
}

/// The engine's placement, and its workers'.
pub struct Placement {
    /// CPUs that engine and workers may use.
    all: CpuSet,
    /// They are the run's, which may change.
    follows: bool,
    workers: Vec<u32>,
    /// None may be taken: SCHED_IDLE would be for ever.
    barred: bool,
    taken: Option<usize>,
    /// When it was last thought over, and what had happened by then.
    since_ns: u64,
    before: Faults,
    /// How often the placement was kept.
    kept: u32,
    /// When it is looked again where the thread has gone.
    follow_ns: u64,
    /// When the next one may be taken, and how long that takes.
    next_ns: u64,
    rest_ns: u64,
}

impl Placement {
    /// Nowhere in particular yet. `may_yield`: this process may be SCHED_IDLE and leave it again. `first` are the CPUs
    /// that the run could use as it began: a program that has all of them was not bound to fewer.
    pub fn new(workers: &[u32], may_yield: bool, first: CpuSet) -> Placement {
        let all = CpuSet::of_this_thread();
        Placement {
            all,
            follows: all == first,
            workers: workers.to_vec(),
            barred: !may_yield,
            taken: None,
            since_ns: 0,
            before: Faults::default(),
            kept: 0,
            follow_ns: 0,
            next_ns: 0,
            rest_ns: REST_NS[0],
        }
    }

    /// True when the engine may use a CPU while the program does: it may poll for the next fault without sleeping.
    pub fn is_apart(&self) -> bool {
        self.taken.is_none() && self.is_choice()
    }

    /// There are several CPUs.
    fn is_choice(&self) -> bool {
        self.cpus() > 1
    }

    /// How many CPUs engine and workers may use.
    pub fn cpus(&self) -> usize {
        self.all.count()
    }

    /// The run may use these CPUs now; none where nobody says.
    pub fn follow_run(&mut self, run: CpuSet) {
        if !self.follows || run == self.all || run.count() == 0 {
            return;
        }
        self.all = run;
        match self.taken {
            Some(cpu) => self.take(Some(cpu).filter(|&cpu| run.contains(cpu) && self.is_choice())),
            None => self.bind(),
        }
    }

    /// Engine and workers may run on all of the CPUs.
    fn bind(&self) {
        for &task in [0].iter().chain(&self.workers) {
            let _ = sys::sched_setaffinity(task, &self.all);
        }
    }

    /// Takes a placement, or gives it up, by the faults up to `now_ns`; `cpu_of` says where a thread last ran.
    pub fn choose(&mut self, now_ns: u64, faults: Faults, cpu_of: impl FnOnce(u32) -> Option<usize>) {
        let took = now_ns - self.since_ns;
        let count = faults.all - self.before.all;
        let is_read = count > 0 && (faults.read - self.before.read) * READS_ONE_IN >= count;
        let often_ns = if is_read { OFTEN_READS_NS } else { OFTEN_NS };
        if self.barred
            || !self.is_choice()
            || count < FAULTS && (took < often_ns || self.taken.is_none() && count > 0)
        {
            return;
        }
        let dense = count >= FAULTS
            && took < often_ns
            && (faults.out - self.before.out) * 2 > count
            && faults.switches - self.before.switches <= SWITCHES;
        (self.since_ns, self.before) = (now_ns, faults);
        match (self.taken, dense) {
            (Some(_), true) => {
                self.kept += 1;
                if self.kept == GOOD {
                    self.rest_ns = REST_NS[0];
                }
            }
            (Some(_), false) => self.leave(now_ns),
            (None, true) if now_ns >= self.next_ns => {
                self.kept = 0;
                self.take(cpu_of(faults.thread).filter(|&cpu| self.all.contains(cpu)));
            }
            (None, _) => {}
        }
    }

    /// Gives the placement up, and takes none for a while.
    pub fn leave(&mut self, now_ns: u64) {
        self.take(None);
        self.next_ns = now_ns + self.rest_ns;
        self.rest_ns = (2 * self.rest_ns).min(REST_NS[1]);
    }

    /// Whoever took one could not leave it again.
    pub fn bar(&mut self) {
        self.barred = true;
    }

    /// True while the engine runs only when nobody else wants to.
    pub fn is_taken(&self) -> bool {
        self.taken.is_some()
    }

    /// The engine is about to sleep: goes where the thread that missed last has gone.
    pub fn follow(&mut self, now_ns: u64, cpu_of: impl FnOnce() -> Option<usize>) {
        if self.taken.is_none() || now_ns < self.follow_ns {
            return;
        }
        self.follow_ns = now_ns + FOLLOW_NS;
        if let Some(cpu) = cpu_of().filter(|&cpu| self.all.contains(cpu))
            && self.taken != Some(cpu)
        {
            self.take(Some(cpu));
        }
    }

    /// Refused where a cpuset has changed meanwhile, or a privilege was given up: then what is stays.
    fn take(&mut self, placement: Option<usize>) {
        self.taken = placement;
        let (mine, theirs, policy) = match placement {
            Some(cpu) => (CpuSet::only(cpu), self.all.without(cpu), SCHED_IDLE),
            None => (self.all, self.all, SCHED_OTHER),
        };
        // Policies first, so that a worker that was waiting behind others does not go on waiting.
        for (&task, cpus) in [0].iter().map(|t| (t, &mine)).chain(self.workers.iter().map(|w| (w, &theirs))) {
            let _ = sys::sched_setscheduler(task, policy);
            let _ = sys::sched_setaffinity(task, cpus);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread of its own, which is bound.
    #[test]
    fn who_could_use_all_of_the_run_s_cpus_goes_with_it() {
        let test = std::thread::spawn(|| {
            let all = CpuSet::of_this_thread();
            let Some(first) = (0..).find(|&cpu| all.contains(cpu)).filter(|_| all.count() > 1) else {
                return crate::skip::lacks("there is one CPU only");
            };
            let one = CpuSet::only(first);
            let mut placement = Placement::new(&[], false, all);
            for (run, expected) in [(one, one), (CpuSet::of_words([]), one), (all, all)] {
                placement.follow_run(run);
                assert!(CpuSet::of_this_thread() == expected);
                assert_eq!(placement.cpus(), expected.count());
            }
            let mut bound = Placement::new(&[], false, one);
            bound.follow_run(one);
            assert!(CpuSet::of_this_thread() == all && bound.cpus() == all.count());
        });
        test.join().unwrap();
    }

    /// In a thread of its own, which is bound and SCHED_IDLE for as long as the placement is taken.
    #[test]
    fn its_cpu_is_taken_while_misses_are_frequent_and_not_again_at_once() {
        let test = std::thread::spawn(|| {
            let mut placement = Placement::new(&[], true, CpuSet::of_this_thread());
            if !placement.is_choice() {
                crate::skip::lacks("there is one CPU only");
                return;
            }
            let cpu = (0..).find(|&cpu| placement.all.contains(cpu));
            let (mut now, mut all) = (0, 0);
            let mut choose = |placement: &mut Placement, ms: u64, faults: u64| {
                (now, all) = (now + ms * 1_000_000, all + faults);
                placement.choose(now, Faults { all, out: all, thread: 1, ..Faults::default() }, |_| cpu);
                placement.is_taken()
            };
            assert!(choose(&mut placement, 1, FAULTS));
            assert!(choose(&mut placement, 1, 3), "too few to tell");
            assert!(!choose(&mut placement, 30, 3), "misses have become rare");
            assert!(!choose(&mut placement, 1, FAULTS), "it was no good a moment ago");
            assert!(choose(&mut placement, 10, FAULTS));
            assert!(!choose(&mut placement, 30, 3));
            assert!(!choose(&mut placement, 11, FAULTS), "the second time it takes longer");
            assert!(choose(&mut placement, 10, FAULTS));
            for _ in 0..GOOD {
                assert!(choose(&mut placement, 1, FAULTS));
            }
            assert!(!choose(&mut placement, 30, 3));
            assert!(choose(&mut placement, 11, FAULTS), "it had been good");
            assert!(!placement.is_apart());
        });
        test.join().expect("the thread ends");
    }

    #[test]
    fn misses_that_read_areas_are_frequent_although_each_takes_long() {
        let test = std::thread::spawn(|| {
            let takes = |read, ms: u64| {
                let mut placement = Placement::new(&[], true, CpuSet::of_this_thread());
                if !placement.is_choice() {
                    crate::skip::lacks("there is one CPU only");
                    return None;
                }
                let cpu = (0..).find(|&cpu| placement.all.contains(cpu));
                let faults = Faults { all: FAULTS, out: FAULTS, read, thread: 1, ..Faults::default() };
                placement.choose(ms * 1_000_000, faults, |_| cpu);
                let taken = placement.is_taken();
                placement.leave(ms * 1_000_000);
                Some(taken)
            };
            let few = FAULTS / READS_ONE_IN - 1;
            let all = [(FAULTS, 99), (FAULTS, 100), (few + 1, 99), (few, 99), (few, 19)];
            let taken: Vec<bool> = all.iter().filter_map(|&(read, ms)| takes(read, ms)).collect();
            assert!(taken.is_empty() || taken == [true, false, true, false, true], "{taken:?}");
        });
        test.join().unwrap();
    }

    /// Who fills fresh memory, or misses from several threads, is not to wait for an engine that waits for the CPU.
    #[test]
    fn its_cpu_is_left_to_who_fills_fresh_memory_and_to_threads_that_miss_by_turns() {
        let test = std::thread::spawn(|| {
            let takes = |out, switches| {
                let mut placement = Placement::new(&[], true, CpuSet::of_this_thread());
                if !placement.is_choice() {
                    crate::skip::lacks("there is one CPU only");
                    return None;
                }
                let cpu = (0..).find(|&cpu| placement.all.contains(cpu));
                placement.choose(
                    1_000_000,
                    Faults { all: FAULTS, out, switches, thread: 1, read: 0 },
                    |_| cpu,
                );
                let taken = placement.is_taken();
                placement.leave(1_000_000);
                Some(taken)
            };
            let all = [(FAULTS, 0), (FAULTS / 2 + 1, 0), (FAULTS / 2, 0), (0, 0), (FAULTS, SWITCHES + 1)];
            let taken: Vec<bool> = all.iter().filter_map(|&(out, switches)| takes(out, switches)).collect();
            assert!(taken.is_empty() || taken == [true, true, false, false, false], "{taken:?}");
        });
        test.join().unwrap();
    }

    #[test]
    fn who_may_not_leave_sched_idle_stays_where_it_is() {
        let mut placement = Placement::new(&[], false, CpuSet::of_this_thread());
        placement.choose(
            1_000_000,
            Faults { all: FAULTS, out: FAULTS, thread: 1, ..Faults::default() },
            |_| Some(0),
        );
        assert!(!placement.is_taken());
    }
}
