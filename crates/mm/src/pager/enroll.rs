//! Registering: only of what is registered a fault comes to the pager, so that fresh memory can be made to wait, and only that can go out.
//!
//! No event tells of a new mapping. It is looked for as the address space grows; of most the program tells before it may fill them.

use crate::kernel::{Errno, Kernel, Store};
use crate::pager::Pager;
use core::ops::Range;

/// How long it is from one look for mappings that are not registered yet to the next: while the address space grows fast, slowly, and not at all.
/// Fast is more than this part of the limit since the last look. And a program can have ten thousand mappings: how many times as long as the last
/// look took it is besides.
const ENROLL_NS: [u64; 3] = [1_000_000, 4_000_000, 200_000_000];
const ENROLL_REST: [u64; 3] = [1, 4, 16];
const FAST: usize = 64;

/// How many mappings are asked about in one step of such a look: half a millisecond, for which faults wait.
const STEP: usize = 512;

/// How many of them in a row.
const FEW: usize = 16;

/// How often it is tried at once while events come.
const TRIES: usize = 200;

/// How the address space has grown since all of it was registered last, as far as nobody has told.
pub(crate) struct Growth {
    /// Its size at the last look, in bytes, and how much was told of by then, ever.
    size: usize,
    told: usize,
    /// It has grown, and by how many bytes; or some of it had to wait for an event.
    pub(crate) is_unheard: bool,
    pub(crate) bytes: usize,
}

impl Growth {
    /// Nothing was looked at yet.
    pub(crate) fn new() -> Growth {
        Growth { size: 0, told: 0, is_unheard: true, bytes: 0 }
    }

    /// The address space has this size now, and of so much was told, ever.
    pub(crate) fn look(&mut self, size: usize, told: usize) {
        let heard = told.wrapping_sub(self.told);
        let unheard = size.saturating_sub(self.size).saturating_sub(heard);
        (self.size, self.told) = (size, told);
        self.is_unheard |= unheard > 0;
        self.bytes += unheard;
    }
}

/// A look at all mappings, step by step.
#[derive(Default)]
pub(crate) struct Walk {
    /// Where the next step begins; 0 before the first.
    at: usize,
    /// So far each could be registered, or refused for good.
    is_all: bool,
    /// The pace at which it began.
    pace: usize,
    /// How much was told of when it began, ever; and the same of the last one that came to the end.
    told: usize,
    told_at_last: usize,
    /// When the last step ended, and how long it took.
    stepped_ns: u64,
    took_ns: u64,
}

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// The size of the address space in bytes; and how much was mapped, ever, of which the pager is told before it may be filled (`enroll_now`).
    pub fn mapped(&mut self, bytes: usize, told: usize) {
        self.growth.look(bytes, told);
    }

    /// When all there was has been registered last, in nanoseconds.
    pub fn enrolled_ns(&self) -> u64 {
        self.enrolled_ns
    }

    /// How much was mapped, ever, when the look began by which that was done: what has come since may have been missed.
    pub fn enrolled_bytes(&self) -> usize {
        self.walk.told_at_last
    }

    /// Registers an area, unless all of it from `from` on is registered already.
    pub(crate) fn enroll(&mut self, area: &Range<usize>, from: usize) -> Result<(), Errno> {
        if self.regions.registered().covers(&(from..area.end)) {
            return Ok(());
        }
        // An event under way may be about this mapping, or about what was there before: what the regions say must be what is registered,
        // or an event whose part has come twice is taken for one that is yet to come, or the other way about (event.rs). So it is asked
        // before as well.
        if !self.is_quiet() {
            return Err(Errno::EAGAIN);
        }
        let whole = self.kernel.register(area.clone())?;
        if !self.is_quiet() {
            return Err(Errno::EAGAIN);
        }
        self.areas.forget_at(&whole);
        self.regions.register(whole);
        self.rest.end();
        Ok(())
    }

    /// Registers all there is, ahead of the hand: only then does fresh memory fault to us and can be made to wait. No event tells of new
    /// mappings, and so this is done again and again while the footprint is high. Of thousands of mappings it looks at
    /// some each time.
    pub fn enroll_all(&mut self) {
        let now = self.kernel.now_ns();
        let is_new = self.walk.at == 0;
        if is_new {
            let is_slow = self.growth.bytes <= self.limit.marks().limit / FAST;
            self.walk.pace = if self.growth.is_unheard { is_slow as usize } else { 2 };
        }
        let pace = self.walk.pace;
        let pause = if is_new { ENROLL_NS[pace] } else { 0 };
        if now < self.walk.stepped_ns + pause + self.walk.took_ns * ENROLL_REST[pace] {
            return;
        }
        if is_new {
            (self.growth.bytes, self.growth.is_unheard) = (0, false);
            (self.walk.told, self.walk.is_all) = (self.growth.told, true);
        }
        let (next, is_all) = self.enroll_within(self.walk.at..usize::MAX, STEP);
        let end = self.kernel.now_ns();
        let walk = &mut self.walk;
        walk.is_all &= is_all;
        (walk.stepped_ns, walk.took_ns) = (end, end - now);
        walk.at = next.unwrap_or(0);
        if next.is_none() {
            // What must wait for an event now comes round again soon, what is refused with the next look.
            self.growth.is_unheard |= !walk.is_all;
            (self.enrolled_ns, walk.told_at_last) = (end, walk.told);
        }
    }

    /// Registers what there is in these ranges, or touches them, because the program is about to fill what it has
    /// mapped there; also below the mark from which on that is done anyway. False where some must still wait for an
    /// event.
    pub fn enroll_now(&mut self, ranges: &[Range<usize>]) -> bool {
        let mut pauses = 0;
        for range in ranges {
            while !self.enroll_within(range.clone(), usize::MAX).1 {
                if pauses == TRIES {
                    self.growth.is_unheard = true;
                    return false;
                }
                self.wait_for_events(&mut pauses);
            }
        }
        self.enrolled_ns = self.kernel.now_ns();
        true
    }

    /// Tries once to register each mapping; false where some must wait for an event.
    pub(crate) fn enroll_each(&mut self) -> bool {
        self.enroll_within(0..usize::MAX, usize::MAX).1
    }

    /// The same for mappings that touch a range, of which so many are asked about at most: where to go on, and false
    /// where some must wait for an event.
    fn enroll_within(&mut self, range: Range<usize>, most: usize) -> (Option<usize>, bool) {
        let (mut at, mut left, mut is_all) = (range.start, most, true);
        loop {
            // A few at a time: what lies behind the range is not asked about.
            let mut asks = left.min(FEW);
            left -= asks;
            let found = self.kernel.area(at, &mut asks);
            left += asks;
            at = match found {
                Ok(Some(area)) if area.start < range.end => {
                    is_all &= self.enroll(&area, area.start) != Err(Errno::EAGAIN);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_of_is_no_reason_to_look() {
        let mut growth = Growth::new();
        let mut look = |size, told| {
            (growth.is_unheard, growth.bytes) = (false, 0);
            growth.look(size, told);
            (growth.is_unheard, growth.bytes)
        };
        assert_eq!(look(100, 7), (true, 93));
        assert_eq!(look(120, 27), (false, 0), "all of it");
        assert_eq!(look(150, 32), (true, 25), "more than that");
        assert_eq!(look(90, 32), (false, 0), "smaller");
        assert_eq!(look(90, 42), (false, 0), "as much went");
        assert_eq!(look(91, 42), (true, 1));
    }
}
