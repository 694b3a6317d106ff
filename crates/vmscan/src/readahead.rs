//! Read-ahead: how much comes in with the page that was asked for.
//!
//! Evidence decides. The first two faults in a window bring their pages alone, since random access is the common reason
//! for a fault. A third one brings the window if each came soon after the one before, or was of the next page: a
//! program that goes through many ranges at a time, each slowly, comes to the next page of each after hundreds of other
//! faults. A fault where a run of windows was about to go on brings the window, and starts on those after it: twice as
//! far each time, up to 2 MiB, and no further than to where a huge page may begin, so that from there all of it is
//! brought at once. The same goes for fresh memory, where "bringing in" means filling with zeros.
//!
//! And what a stream has gone through is not likely to be wanted before all the rest has been: it is told as *passed*,
//! and goes out first (drop-behind). A program that goes round and round in more memory than it may have so finds a
//! part of it in place each time, where by order of age it would find nothing.

use crate::{HUGE, PAGE, WINDOW};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use core::ops::Range;

const STREAMS: usize = 8;

/// How many ranges that streams have passed are remembered.
const PASSED: usize = 1024;

/// How many windows' last faults are remembered.
const RECENT: usize = 1024;

/// So many faults later another one in the same window is soon.
const SOON: u64 = 32;

/// So many faults later the next page may still be the next step of a slow reader.
const SLOW: u64 = 512;

/// So many faults in a window bring all of it. Two are not enough: what lies across two pages, as most of what an
/// allocator hands out does, is two faults in one window wherever it is.
const TIMES: u8 = 3;

/// How much to bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The page alone.
    Page,
    /// The page's window.
    Window,
    /// The page's window, and those after it.
    Stream {
        /// Bytes after the window, a multiple of it; 0 within what the stream was to bring before.
        ahead: usize,
    },
}

#[derive(Clone, Copy, Default)]
struct Stream {
    /// Where what was brought begins, as far as the program has not gone through it.
    begin: usize,
    /// Where the next fault is expected: the end of what was brought.
    next: usize,
    /// How far the last read-ahead went.
    ahead: usize,
    used: u64,
}

/// A window's last fault.
#[derive(Clone, Copy, Default)]
struct Recent {
    /// The page; 0 for none, since nobody maps page 0.
    page: usize,
    clock: u64,
    /// How many faults there were in the window, each soon after the one before.
    times: u8,
}

/// Memory of the last faults.
pub struct Readahead {
    streams: [Stream; STREAMS],
    /// By a hash of the window; a later window takes an earlier one's place.
    recent: Box<[Recent]>,
    clock: u64,
    /// What streams have gone through, oldest first, in whole windows.
    passed: VecDeque<Range<usize>>,
}

impl Default for Readahead {
    fn default() -> Self {
        Readahead {
            streams: Default::default(),
            recent: vec![Recent::default(); RECENT].into(),
            clock: 0,
            passed: VecDeque::new(),
        }
    }
}

impl Readahead {
    /// Decides for a fault at `at`.
    pub fn fault(&mut self, at: usize) -> Extent {
        self.clock += 1;
        let window = at & !(WINDOW - 1);
        let clock = self.clock;
        if let Some(s) =
            self.streams.iter_mut().find(|s| s.used > 0 && window >= s.next && window - s.next <= WINDOW)
        {
            let passed = s.begin..s.next;
            let ahead = (s.ahead * 2).clamp(WINDOW, HUGE - WINDOW);
            let (end, upto) = (window + WINDOW, window + WINDOW + ahead);
            let whole = upto & !(HUGE - 1);
            let next = if whole >= end { whole } else { upto };
            *s = Stream { begin: window, next, ahead, used: clock };
            self.pass(passed);
            return Extent::Stream { ahead: next - end };
        }
        // A fault inside what a stream was to bring: it was evicted again, or nobody has fetched it. The window, no
        // more; that the program goes through all of it is known.
        if let Some(s) = self
            .streams
            .iter_mut()
            .find(|s| s.used + SLOW > clock && window < s.next && window + s.ahead + WINDOW >= s.next)
        {
            s.used = clock;
            let passed = s.begin..window;
            s.begin = s.begin.max(window);
            self.pass(passed);
            return Extent::Stream { ahead: 0 };
        }
        let place = (window / WINDOW).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let recent = &mut self.recent[place % RECENT];
        let again = recent.page & !(WINDOW - 1) == window && recent.page != 0;
        let age = clock - recent.clock;
        let near = again && (age <= SOON || age <= SLOW && at == recent.page + PAGE);
        *recent = Recent { page: at, clock, times: if near { recent.times + 1 } else { 1 } };
        if recent.times >= TIMES {
            recent.times = 0;
            let oldest = self.streams.iter_mut().min_by_key(|s| s.used).expect("there are streams");
            *oldest = Stream { begin: window, next: window + WINDOW, ahead: 0, used: clock };
            return Extent::Window;
        }
        Extent::Page
    }

    /// What follows that which a stream was to bring is brought too.
    pub fn bring(&mut self, range: Range<usize>) {
        if let Some(s) = self.streams.iter_mut().find(|s| s.used > 0 && s.next == range.start) {
            s.next = range.end;
            s.ahead += range.len();
        }
    }

    fn pass(&mut self, windows: Range<usize>) {
        if windows.is_empty() {
            return;
        }
        if self.passed.len() == PASSED {
            self.passed.pop_front();
        }
        self.passed.push_back(windows);
    }

    /// The window that a stream has gone through the longest ago, by its address. Each is told once; whether what is
    /// there came in with the stream, and is still the same, the caller must know.
    pub fn passed(&mut self) -> Option<usize> {
        let range = self.passed.front_mut()?;
        let window = range.start;
        range.start += WINDOW;
        if range.start >= range.end {
            self.passed.pop_front();
        }
        Some(window)
    }

    /// The pages of a range were thrown away or are gone: streams end there. (What they have passed is told all the
    /// same; whether anything is there the caller must know in any case.)
    pub fn forget(&mut self, start: usize, end: usize) {
        for s in &mut self.streams {
            if s.next >= start && s.next <= end + PAGE {
                *s = Stream::default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Random;

    /// Reads `windows` windows in order; returns the number of faults.
    fn sequential(windows: usize, r: &mut Readahead) -> usize {
        let (mut present, mut faults) = (0, 0);
        let base = 1 << 30;
        while present < windows * WINDOW {
            faults += 1;
            present = match r.fault(base + present) {
                Extent::Page => present + PAGE,
                Extent::Window => (present & !(WINDOW - 1)) + WINDOW,
                Extent::Stream { ahead } => (present & !(WINDOW - 1)) + WINDOW + ahead,
            };
        }
        faults
    }

    #[test]
    fn a_sequential_reader_faults_a_few_times_and_then_once_in_2_mib() {
        let mut r = Readahead::default();
        let faults = sequential(1024, &mut r);
        assert!(faults <= 8 + 1024 * WINDOW / HUGE, "{faults}");
    }

    #[test]
    fn what_a_stream_has_gone_through_is_told_once_and_in_order() {
        let mut r = Readahead::default();
        let (base, end) = (1 << 30, (1 << 30) + 64 * HUGE);
        let (mut at, mut passed) = (base, vec![]);
        while at < end {
            at = match r.fault(at) {
                Extent::Page => at + PAGE,
                Extent::Window => (at & !(WINDOW - 1)) + WINDOW,
                Extent::Stream { ahead } => (at & !(WINDOW - 1)) + WINDOW + ahead,
            };
            while let Some(window) = r.passed() {
                assert!(window + WINDOW <= at, "{window:#x} is ahead of {at:#x}");
                passed.push(window);
            }
        }
        let expected: vec::Vec<usize> = (base..).step_by(WINDOW).take(passed.len()).collect();
        assert_eq!(passed, expected);
        // All but what was brought last, which nobody knows to have been read.
        assert!(passed.len() * WINDOW >= end - base - 2 * HUGE, "{}", passed.len());
    }

    #[test]
    fn random_faults_bring_single_pages() {
        let mut r = Readahead::default();
        let mut random = Random(7);
        let mut pages = 0;
        for _ in 0..10_000 {
            let at = random.below(1 << 18) * PAGE;
            pages += (r.fault(at) == Extent::Page) as usize;
        }
        assert!(pages > 9_900, "{pages}");
    }

    /// The rows of a database, each across two pages.
    #[test]
    fn what_lies_across_two_pages_is_no_stream() {
        let (mut r, mut random, mut windows) = (Readahead::default(), Random(7), 0);
        for _ in 0..10_000 {
            let at = (1 << 32) + random.below(1 << 18) * PAGE;
            windows += (r.fault(at + PAGE) != Extent::Page) as usize + (r.fault(at) != Extent::Page) as usize;
        }
        assert!(windows < 200, "{windows}");
    }

    #[test]
    fn many_slow_readers_are_seen_for_what_they_are() {
        let (mut r, mut random) = (Readahead::default(), Random(7));
        let mut at: [usize; 100] = core::array::from_fn(|i| (i + 1) << 32);
        let mut faults = 0;
        for _ in 0..64 {
            for a in &mut at {
                // One more, anywhere, between any two.
                r.fault((1 << 45) + random.below(1 << 18) * PAGE);
                faults += 1;
                *a = match r.fault(*a) {
                    Extent::Page => *a + PAGE,
                    Extent::Window | Extent::Stream { .. } => (*a & !(WINDOW - 1)) + WINDOW,
                };
            }
        }
        let pages: usize = at.iter().enumerate().map(|(i, a)| (a - ((i + 1) << 32)) / PAGE).sum();
        assert!(pages > 3 * faults, "{faults} faults for {pages} pages");
    }

    /// Whether it was evicted again, or nobody has fetched it: there is nothing to be tried about such a window.
    #[test]
    fn what_a_stream_was_to_bring_is_still_its_own() {
        let mut r = Readahead::default();
        sequential(64, &mut r);
        // A fault further on than the last one, and within what that was to bring.
        let ahead = loop {
            let at = r.streams.iter().map(|stream| stream.next).max().expect("there are streams");
            if let Extent::Stream { ahead: ahead @ 1.. } = r.fault(at) {
                break at + WINDOW..at + WINDOW + ahead;
            }
        };
        for window in ahead.step_by(3 * WINDOW) {
            assert_eq!(r.fault(window + 5 * PAGE), Extent::Stream { ahead: 0 }, "{window:#x}");
        }
    }

    #[test]
    fn eight_streams_at_a_time_are_followed() {
        let mut r = Readahead::default();
        let mut at: [usize; 8] = core::array::from_fn(|i| (i + 1) << 32);
        let mut faults = 0;
        while at[7] < (8 << 32) + 64 * HUGE {
            for a in &mut at {
                faults += 1;
                *a = match r.fault(*a) {
                    Extent::Page => *a + PAGE,
                    Extent::Window => (*a & !(WINDOW - 1)) + WINDOW,
                    Extent::Stream { ahead } => (*a & !(WINDOW - 1)) + WINDOW + ahead,
                };
            }
        }
        assert!(faults < 8 * (64 + 8), "{faults}");
    }
}
