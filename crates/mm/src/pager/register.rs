//! Registering: only of what is registered a fault comes to the pager, and only that can go out.

use crate::kernel::{Errno, Kernel, Store};
use crate::pager::Pager;
use core::ops::Range;

/// How many mappings are asked about in one step of a look at all: half a millisecond, for which faults wait.
const STEP: usize = 512;

/// How many of them in a row.
const FEW: usize = 16;

/// How often it is tried at once while events come.
const TRIES: usize = 200;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// The size of the address space in bytes; and how much was mapped, ever, of which the pager is told before it
    /// may be filled (`register_now`).
    pub fn mapped(&mut self, bytes: usize, told: usize) {
        self.fresh.mapped(bytes, told);
    }

    /// When all there was has been registered last, in nanoseconds.
    pub fn registered_ns(&self) -> u64 {
        self.fresh.registered_ns()
    }

    /// How much was mapped, ever, when the look began by which that was done: what has come since may have been missed.
    pub fn registered_bytes(&self) -> usize {
        self.fresh.registered_bytes()
    }

    /// Registers an area, unless all of it from `from` on is registered already.
    pub(super) fn register(&mut self, area: &Range<usize>, from: usize) -> Result<(), Errno> {
        if self.regions.registered().covers(&(from..area.end)) {
            return Ok(());
        }
        // An event under way may be about this mapping, or about what was there before: what the regions say must
        // be what is registered, or an event whose part has come twice is taken for one that is yet to come, or the
        // other way about (regions.rs). So it is asked before as well.
        if !self.is_quiet() {
            return Err(Errno::EAGAIN);
        }
        let whole = self.kernel.register(area.clone())?;
        if !self.is_quiet() {
            self.regions.register_in_doubt(whole);
            return Err(Errno::EAGAIN);
        }
        self.reclaim.forget_areas_in(&whole);
        // What is not watched counts as touched, once.
        for part in self.regions.registered().without(&whole) {
            if self.reclaim.may_watch(part.len()) {
                let _ = self.kernel.watch(part);
            }
        }
        self.regions.register(whole);
        self.reclaim.end_rest();
        Ok(())
    }

    /// Registers all there is, ahead of the hand: only then does fresh memory fault to us and can be made to wait.
    /// No event tells of new mappings, and so this is done again and again while the footprint is high. Of
    /// thousands of mappings it looks at some each time.
    pub fn register_all(&mut self) {
        let now = self.kernel.now_ns();
        let Some(at) = self.fresh.next_step(now, self.limit.marks().limit) else { return };
        let (next, is_all) = self.register_within(at..usize::MAX, STEP);
        self.fresh.stepped(next, is_all, now, self.kernel.now_ns());
    }

    /// Registers what there is in these ranges, or touches them, because the program is about to fill what it has
    /// mapped there; also below the mark from which on that is done anyway. False where some must still wait for an
    /// event.
    pub fn register_now(&mut self, ranges: &[Range<usize>]) -> bool {
        let mut pauses = 0;
        for range in ranges {
            while !self.register_within(range.clone(), usize::MAX).1 {
                if pauses == TRIES {
                    self.fresh.missed();
                    return false;
                }
                self.wait_for_events(&mut pauses);
            }
        }
        self.fresh.registered(self.kernel.now_ns());
        true
    }

    /// Tries once to register each mapping; false where some must wait for an event.
    pub(super) fn register_each(&mut self) -> bool {
        self.register_within(0..usize::MAX, usize::MAX).1
    }

    /// The same for mappings that touch a range, of which so many are asked about at most: where to go on, and false
    /// where some must wait for an event.
    fn register_within(&mut self, range: Range<usize>, most: usize) -> (Option<usize>, bool) {
        let (mut at, mut left, mut is_all) = (range.start, most, true);
        loop {
            // A few at a time: what lies behind the range is not asked about.
            let mut asks = left.min(FEW);
            left -= asks;
            let found = self.kernel.area(at, &mut asks);
            left += asks;
            at = match found {
                Ok(Some(area)) if area.start < range.end => {
                    is_all &= self.register(&area, area.start) != Err(Errno::EAGAIN);
                    area.end
                }
                Ok(_) => return (None, is_all),
                Err(upto) => upto,
            };
            if at >= range.end {
                return (None, is_all);
            } else if left == 0 {
                return (Some(at), is_all);
            }
        }
    }
}
