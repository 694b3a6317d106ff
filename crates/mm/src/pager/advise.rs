//! What the program advises of its memory is done between faults, a step at a time.
//!
//! This is safe because pages move as ever: out by the way of the clock hand (move_out.rs). Advice says which pages it
//! is worth looking at, and no more.

use crate::kernel::{Kernel, Run, Store};
use crate::pager::evict::PATIENCE;
use crate::pager::{Pager, STEP_BYTES};
use base::Advice;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use vmscan::PAGE;
use vmscan::heat::Heat;

/// How often a step looks which pages are there.
const LOOKS: usize = 4;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// The program has advised something of a range: it is done when there is time, or dropped.
    pub fn advise(&mut self, advice: Advice, range: Range<usize>) {
        if !self.advised.add(advice, range) {
            self.stat.advice_dropped.fetch_add(1, Relaxed);
        }
    }

    /// Does a step of what the program has advised. True when there may be more to do at once.
    pub(super) fn follow_advice(&mut self) -> bool {
        let mut out = 0;
        if self.advised.first(Advice::PageOut).is_some() {
            self.reclaim.begin_search();
            self.release_quarantine();
            self.list_pins();
            out = self.evict_advised(Advice::PageOut, STEP_BYTES);
            self.stat.advised_out.fetch_add((out / PAGE) as u64, Relaxed);
            self.advised.went(out);
        }
        out + self.deflate_advised() > 0
    }

    /// Moves what is there of ranges with this advice to the inactive list, whatever its heat, until about `want` bytes
    /// have gone; how many it was. What relatives have too stays, as with the kernel's.
    pub(super) fn evict_advised(&mut self, advice: Advice, want: usize) -> usize {
        let (mut got, mut looks) = (0, LOOKS);
        while got < want
            && looks > 0
            && !self.inactive.is_full()
            && let Some(range) = self.advised.first(advice)
        {
            looks -= 1;
            let (mut runs, mut patience) = ([Run::default(); 64], PATIENCE);
            let (found, upto) = self.kernel.present(range.clone(), STEP_BYTES / PAGE, &mut runs);
            let (mut upto, mut is_due) = (upto.max(range.start + PAGE), false);
            for run in &runs[..found] {
                for page in (run.start..run.end).step_by(PAGE) {
                    self.map.cool(page, |heat| (heat > Heat::COLD).then_some(Heat::COLD));
                }
                let (more, stop) = self.evict_occupied(run.start..run.end, &mut patience);
                got += more;
                if let Some(at) = stop {
                    (upto, is_due) = (at, true);
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
}
