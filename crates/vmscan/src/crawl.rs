//! A crawl: a program whose threads wait for memory for most of the time, each time for a moment only.
//!
//! No single wait tells. What does is the processor time that the program's threads have gained, against the time that
//! they have waited for pages: the first is what the program would have taken without any squeeze, and both together
//! are what it takes. From the pace of the last ten seconds three things follow:
//!
//! - it is told, once, that the program crawls;
//! - a program is stopped that is slower than its user allows;
//! - a program is stopped where next to all of the limit is taken by what cannot go out. It would crawl for ever. One
//!   that is as slow for another reason does get on.

/// The pace is that of so long, in nanoseconds.
pub const WINDOW_NS: u64 = 10_000_000_000;

/// So often it is looked at.
const SAMPLE_NS: u64 = 500_000_000;
const SAMPLES: usize = (WINDOW_NS / SAMPLE_NS) as usize + 1;

/// Who was not looked at for so long was stopped meanwhile, or the machine was asleep: what was seen before tells
/// nothing.
const BREAK_NS: u64 = 4 * SAMPLE_NS;

/// It crawls where so many parts in a hundred of its time are waits.
const CRAWL_PERCENT: u64 = 75;

/// And these are one part in so many of the whole, or more.
const PRESSED_PART: u64 = 8;

/// The limit is taken where so many quarters of it cannot go out.
const TAKEN_QUARTERS: usize = 3;

/// The limit is passed by one part in so many of it, which the footprint takes while it comes and goes, and for so
/// long.
const PASSED_PART: usize = 32;
const PASSED_NS: u64 = 1_000_000_000;

/// What a process has done so far. Both times only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The time.
    pub now_ns: u64,
    /// How long its threads have waited for pages, summed, those that still wait included.
    pub waited_ns: u64,
    /// Processor time of its threads, summed.
    pub ran_ns: u64,
}

/// How a process got on lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// In how long, in nanoseconds.
    pub over_ns: u64,
    /// How long its threads waited for pages, summed.
    pub waited_ns: u64,
    /// Processor time that they gained, summed.
    pub ran_ns: u64,
}

impl Pace {
    /// Of what the threads did, so many hundredths were waits.
    pub fn waited_percent(&self) -> u64 {
        self.waited_ns * 100 / (self.waited_ns + self.ran_ns).max(1)
    }

    /// How many times as long as without waits it takes.
    pub fn factor(&self) -> u64 {
        (self.waited_ns + self.ran_ns) / self.ran_ns.max(1)
    }

    /// Somebody waited for a part of the time at least: one that sleeps, and misses a page as it wakes, is not slow. It
    /// is a small part, since a thread on a busy machine spends most of its time waiting for a processor.
    fn is_pressed(&self) -> bool {
        self.waited_ns >= self.over_ns / PRESSED_PART
    }

    /// Its threads wait for most of the time.
    pub fn is_crawl(&self) -> bool {
        self.is_pressed() && self.waited_percent() >= CRAWL_PERCENT
    }

    /// It takes so many times as long as without waits, or more.
    pub fn is_slower_than(&self, factor: u64) -> bool {
        self.is_pressed() && self.waited_ns + self.ran_ns >= factor.saturating_mul(self.ran_ns)
    }
}

/// The paces of one process.
#[derive(Debug, Default)]
pub struct Crawl {
    /// The last of them, the oldest at `next` once all are there.
    samples: [Sample; SAMPLES],
    count: usize,
    next: usize,
}

impl Crawl {
    /// True when it is time for a sample.
    pub fn is_due(&self, now_ns: u64) -> bool {
        self.count == 0 || now_ns >= self.last().now_ns + SAMPLE_NS
    }

    /// Takes a sample. The pace, where there are samples for all of the window.
    pub fn look(&mut self, sample: Sample) -> Option<Pace> {
        if self.count > 0 && sample.now_ns > self.last().now_ns + BREAK_NS {
            self.count = 0;
        }
        self.samples[self.next] = sample;
        self.next = (self.next + 1) % SAMPLES;
        self.count = (self.count + 1).min(SAMPLES);
        let first = self.samples[self.next];
        (self.count == SAMPLES).then(|| Pace {
            over_ns: sample.now_ns - first.now_ns,
            waited_ns: sample.waited_ns.saturating_sub(first.waited_ns),
            ran_ns: sample.ran_ns.saturating_sub(first.ran_ns),
        })
    }

    fn last(&self) -> Sample {
        self.samples[(self.next + SAMPLES - 1) % SAMPLES]
    }
}

/// What a process holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// All that the run may hold.
    pub limit: usize,
    /// The process alone.
    pub footprint: usize,
}

impl Held {
    /// True when so many bytes of it that cannot go out take next to all of the limit.
    pub fn is_taken_by(&self, stuck: usize) -> bool {
        stuck >= self.limit / 4 * TAKEN_QUARTERS
    }
}

/// Whether a process alone holds more than the limit, for longer than it takes to get something out.
#[derive(Debug, Default)]
pub struct Passed {
    since_ns: Option<u64>,
}

impl Passed {
    /// True when it does.
    pub fn look(&mut self, now_ns: u64, held: Held) -> bool {
        if held.footprint <= held.limit.saturating_add(held.limit / PASSED_PART) {
            self.since_ns = None;
            return false;
        }
        now_ns.saturating_sub(*self.since_ns.get_or_insert(now_ns)) >= PASSED_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const SECOND: u64 = 1000 * MS;

    /// A process on a virtual clock.
    #[derive(Default)]
    struct Clock {
        crawl: Crawl,
        sample: Sample,
    }

    impl Clock {
        /// It does for so many milliseconds what takes so much of each: the last pace there is.
        fn go_on(&mut self, ms: u64, waited_ns: u64, ran_ns: u64) -> Option<Pace> {
            let mut pace = None;
            for _ in 0..ms {
                self.sample.now_ns += MS;
                self.sample.waited_ns += waited_ns;
                self.sample.ran_ns += ran_ns;
                if self.crawl.is_due(self.sample.now_ns) {
                    pace = self.crawl.look(self.sample);
                }
            }
            pace
        }
    }

    /// The interpreter's last pages go out and come in all the time, 10 to 40 ms each.
    #[test]
    fn short_waits_without_end_are_a_crawl_after_ten_seconds() {
        let mut clock = Clock::default();
        assert_eq!(clock.go_on(9_900, 970_000, 30_000), None, "too soon to say");
        let pace = clock.go_on(1000, 970_000, 30_000).unwrap();
        assert_eq!((pace.waited_percent(), pace.factor(), pace.is_crawl()), (97, 33, true));
        assert!((WINDOW_NS..=WINDOW_NS + SAMPLE_NS).contains(&pace.over_ns), "{pace:?}");
        assert!(pace.is_slower_than(33) && !pace.is_slower_than(34));
    }

    /// Threads and engine have a tenth of a processor each.
    #[test]
    fn on_a_busy_machine_a_crawl_is_one_too() {
        let pace = Clock::default().go_on(12_000, 150_000, 10_000).unwrap();
        assert!(pace.is_crawl() && pace.is_slower_than(16), "{pace:?}");
    }

    #[test]
    fn who_is_three_times_as_slow_gets_on() {
        let pace = Clock::default().go_on(12_000, 660_000, 340_000).unwrap();
        assert!(!pace.is_crawl() && pace.is_slower_than(2) && !pace.is_slower_than(3), "{pace:?}");
    }

    #[test]
    fn one_thread_of_many_that_waits_does_not_make_a_crawl() {
        let pace = Clock::default().go_on(12_000, MS, 7 * MS).unwrap();
        assert!(!pace.is_crawl() && !pace.is_slower_than(2), "{pace:?}");
        let pace = Clock::default().go_on(12_000, 7 * MS, MS).unwrap();
        assert!(pace.is_crawl() && pace.is_slower_than(8), "most of them wait: {pace:?}");
    }

    #[test]
    fn who_sleeps_and_misses_a_page_as_it_wakes_is_not_slow() {
        let pace = Clock::default().go_on(12_000, 50_000, 100).unwrap();
        assert!(!pace.is_crawl() && !pace.is_slower_than(2), "{pace:?}");
    }

    #[test]
    fn who_recovers_does_not_crawl_any_more() {
        let mut clock = Clock::default();
        assert!(clock.go_on(11_000, 990_000, 10_000).unwrap().is_crawl());
        assert!(clock.go_on(1000, 0, MS).unwrap().is_crawl(), "the last ten seconds count");
        assert!(!clock.go_on(4000, 0, MS).unwrap().is_crawl());
        assert_eq!(clock.go_on(10_000, 0, MS).unwrap().factor(), 1);
    }

    #[test]
    fn what_was_seen_before_a_stop_tells_nothing() {
        let mut clock = Clock::default();
        assert!(clock.go_on(11_000, 990_000, 10_000).is_some());
        clock.sample.now_ns += 60 * SECOND;
        assert_eq!(clock.go_on(9_900, 990_000, 10_000), None);
        assert!(clock.go_on(1000, 990_000, 10_000).is_some());
    }

    #[test]
    fn the_limit_is_taken_by_what_cannot_go_out_or_it_is_not() {
        const MIB: usize = 1 << 20;
        let held = Held { limit: 250 * MIB, footprint: 249 * MIB };
        // Private copies of a file; a sort's pool, beside which its libraries are what cannot go out.
        assert!(held.is_taken_by(236 * MIB) && !held.is_taken_by(6 * MIB));
    }

    #[test]
    fn the_limit_is_passed_when_it_is_for_a_second() {
        let (mut passed, limit) = (Passed::default(), 320);
        let mut look = |ms, footprint| passed.look(ms * MS, Held { limit, footprint });
        assert!(!look(0, 330) && !look(2000, 330), "what comes and goes");
        assert!(!look(2000, 331) && !look(2999, 400) && look(3000, 331));
        assert!(!look(3001, 320) && !look(3002, 400) && !look(4001, 400), "it was below meanwhile");
        assert!(look(4002, 400));
    }
}
