//! What the program advises of its memory is done between faults, a step at a time.
//!
//! This is safe because pages move as ever: out by the way of the clock hand (move_out.rs), and in as for a fault or
//! ahead of one (activate.rs, load.rs, fetch.rs). Advice says which pages it is worth looking at, and no more.

use crate::kernel::{Kernel, Run, Store};
use crate::pager::evict::PATIENCE;
use crate::pager::{Pager, STEP_BYTES};
use crate::swap_map::Kind;
use base::Advice;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use vmscan::heat::Heat;
use vmscan::readahead::Extent;
use vmscan::{HUGE, PAGE, WINDOW};

/// How often a step looks which pages are there, and for how many wanted bytes once more.
const LOOKS: usize = 4;

/// How far one look goes, in bytes: a range may be a file's, of any size, of which each page is looked at.
const SPAN: usize = 16 << 20;

/// How often a step looks which pages are out.
const LOOKS_IN: usize = 64;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// The program has advised something of a range: it is done when there is time, or dropped.
    pub fn advise(&mut self, advice: Advice, range: Range<usize>) {
        if !self.advised.add(advice, range) {
            self.stat.advice_dropped.fetch_add(1, Relaxed);
        } else if advice == Advice::Cold {
            self.reclaim.end_rest();
        }
    }

    /// Does a step of what the program has advised. True when there may be more to do at once.
    pub(super) fn follow_advice(&mut self) -> bool {
        let mut has_done = false;
        if let Some(first) = self.advised.first(Advice::PageOut)
            && !self.inactive.is_full()
        {
            self.reclaim.begin_search();
            self.release_quarantine();
            self.list_pins();
            let out = self.evict_advised(Advice::PageOut, STEP_BYTES);
            self.stat.advised_out.fetch_add((out / PAGE) as u64, Relaxed);
            self.advised.went(out);
            has_done = self.advised.first(Advice::PageOut) != Some(first);
        }
        has_done |= self.deflate_advised() > 0;
        has_done | self.bring_advised()
    }

    /// Moves to the inactive list what the program has advised is cold; how many bytes it was.
    pub(super) fn evict_cold(&mut self, want: usize) -> usize {
        let got = self.evict_advised(Advice::Cold, want);
        self.stat.advised_cold.fetch_add((got / PAGE) as u64, Relaxed);
        got
    }

    /// Moves what is there of ranges with this advice to the inactive list, whatever its heat, until about `want` bytes
    /// have gone; how many it was. What relatives have too stays, as with the kernel's.
    fn evict_advised(&mut self, advice: Advice, want: usize) -> usize {
        let (mut got, mut looks) = (0, LOOKS + want / STEP_BYTES);
        while got < want
            && looks > 0
            && !self.inactive.is_full()
            && let Some(range) = self.advised.first(advice)
        {
            looks -= 1;
            let (mut runs, mut patience) = ([Run::default(); 64], PATIENCE);
            let part = range.start..range.end.min(range.start + SPAN);
            let (found, upto) = self.kernel.present(part, STEP_BYTES / PAGE, &mut runs);
            let (mut upto, mut is_due) = (upto.max(range.start + PAGE), false);
            for run in &runs[..found] {
                for page in (run.start..run.end).step_by(PAGE) {
                    self.map.cool(page, |heat| (heat > Heat::COLD).then_some(Heat::COLD));
                }
                let taken = self.evict_occupied(&self.whole_within(run, &range), &mut patience);
                got += taken.bytes;
                if taken.is_due || taken.upto > run.end {
                    (upto, is_due) = (taken.upto, taken.is_due);
                    break;
                }
            }
            self.return_pins(range.start..upto);
            self.advised.done(advice, &(range.start..upto));
            if is_due {
                break;
            }
        }
        got
    }

    /// Sends as much of the inactive list on as has come there by advice; how many bytes it was.
    fn deflate_advised(&mut self) -> usize {
        let room = self.marks().in_flight.saturating_sub(self.inactive.in_flight_bytes());
        let want = self.advised.due_bytes().min(room);
        let got = if want > 0 { self.deflate(want) } else { 0 };
        // Where the list is empty what was to go on has gone, or was touched.
        let is_empty = want > 0 && got == 0 && self.inactive.in_flight() == 0;
        self.advised.went_on(if is_empty { usize::MAX } else { got });
        got
    }

    /// Brings a step of what is needed in. What was advised is forgotten where there is no room below the low mark, and
    /// what only seems to be wanted where there is not much room. True when there may be more to do at once.
    fn bring_advised(&mut self) -> bool {
        let (mut came, mut looks) = (0, LOOKS_IN);
        while came < STEP_BYTES
            && looks > 0
            && !self.ahead.is_full()
            && let Some((range, is_advised)) = self.advised.first_in()
        {
            looks -= 1;
            if is_advised && self.limit.footprint() + WINDOW > self.marks().low {
                self.advised.forget_needed();
                continue;
            }
            if !is_advised && !self.limit.is_roomy() {
                self.advised.forget_prefetch();
                continue;
            }
            let first = self.map.next_used(range.start, range.end).map_or(range.end, |(page, _)| page);
            let end = range.end.min(first + HUGE);
            let window = self.first_away(&(first..end)).map(|page| page & !(WINDOW - 1));
            let upto = window.map_or(end, |window| window + WINDOW);
            self.advised.done_in(&(range.start..upto));
            self.huge.may_be_there(&(self.huge_at(range.start).start..upto));
            let bytes = window.map_or(0, |window| self.bring_window(window, is_advised));
            came += bytes;
            match is_advised {
                true => self.stat.advised_in.fetch_add((bytes / PAGE) as u64, Relaxed),
                false => self.stat.prefetched.fetch_add((bytes / PAGE) as u64, Relaxed),
            };
        }
        if came > 0 {
            self.reclaim.end_rest();
        }
        looks < LOOKS_IN
    }

    /// Brings a window in, or has it loaded ahead where it is whole; how many bytes it is. What is in an area is read
    /// into the pool, or left there.
    fn bring_window(&mut self, window: usize, reads_areas: bool) -> usize {
        let under_way = self.ahead.under_way().len();
        let is_swapped = |pager: &Self, at: usize| {
            let entry = pager.map.get(at);
            entry.kind() == Kind::Stored && pager.objects.get(entry.id()).is_swapped()
        };
        if reads_areas || !is_swapped(self, window) {
            self.fetch_ahead(window, WINDOW);
        }
        if self.ahead.under_way().len() > under_way {
            return WINDOW;
        }
        let pages = || (window..window + WINDOW).step_by(PAGE);
        let away = |pager: &Self| {
            let kinds = pages().map(|at| pager.map.get(at).kind());
            kinds.filter(|kind| matches!(kind, Kind::Inactive | Kind::Stored)).count()
        };
        let before = away(self);
        for at in pages() {
            let entry = self.map.get(at);
            match entry.kind() {
                Kind::Inactive => drop(self.activate(at, entry, Extent::Window)),
                Kind::Stored if self.ahead.slot_of(at).is_some() => {}
                Kind::Stored if is_swapped(self, at) && reads_areas => self.read_ahead(at..at + PAGE),
                Kind::Stored if is_swapped(self, at) => {}
                Kind::Stored => self.load_unasked(at),
                // Zeros take no memory before they are touched.
                Kind::Zero | Kind::None | Kind::Clean => {}
            }
        }
        self.objects.submit_reads();
        before.saturating_sub(away(self)) * PAGE
    }
}
