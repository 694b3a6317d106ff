//! Out once more, and smaller: windows that are worth it are put on the inactive list, from where they go out as
//! one object.
//!
//! This is safe because
//! 1. no message is read between the look at the entries and their change, so that they still say where the pages are;
//! 2. the bytes are checked against their hashes before the objects are given up; of a damaged object nothing is
//!    touched.

use crate::kernel::{Kernel, Store};
use crate::pager::Pager;
use crate::recompression::worth;
use base::PageMask;
use core::sync::atomic::Ordering::Relaxed;
use vmscan::PAGE;

/// How many windows are looked at for one that is worth it; and where that is all that is left to do.
const LOOKS: usize = 64;
const LOOKS_AT_LAST: usize = 4096;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// Recompresses a window, if the pool is large enough for that to matter and it is time for it. True when there
    /// was one.
    pub(super) fn recompress(&mut self) -> bool {
        let now = self.kernel.now_ns();
        if !self.recompression.is_due(now) || self.objects.pool_bytes() <= self.marks().dense {
            return false;
        }
        let found = self.recompress_next(LOOKS, true);
        self.recompression.searched(now, self.kernel.now_ns(), found);
        found
    }

    /// Recompresses a window that need not be cold: nothing else is left that would make room. True when there was
    /// one; where there is none it is a while until the next search.
    pub(super) fn recompress_at_last(&mut self) -> bool {
        if self.recompression.rests(self.kernel.now_ns()) {
            return false;
        }
        let found = self.recompress_next(LOOKS_AT_LAST, false);
        self.recompression.searched_at_last(found, || self.kernel.now_ns());
        found
    }

    /// Looks at the next windows for one that is worth it, and puts it on the inactive list.
    fn recompress_next(&mut self, looks: usize, cold: bool) -> bool {
        if self.inactive.is_crowded() || self.regions.has_displaced() {
            return false;
        }
        for _ in 0..looks {
            let Some(window) = self.recompression.next(&self.map) else { break };
            let mask = worth(&self.map, &self.objects, window, cold);
            if !mask.is_empty() && self.ahead.slot_of(window).is_none() {
                return self.gather(window, mask);
            }
        }
        false
    }

    /// Loads the pages of `mask` and puts them on a slot of the inactive list, each in its place.
    pub(super) fn gather(&mut self, window: usize, mask: PageMask) -> bool {
        let Some(slot) = self.slot_to_load() else { return false };
        let to = self.inactive.at(slot);
        for run in mask.runs() {
            let offset = run.start * PAGE;
            if self.load_run(window + offset, run.len(), to + offset).is_err() {
                // Reported at the fault that needs it.
                self.put_back(slot);
                return false;
            }
        }
        self.inactive.hold(slot, false);
        for index in mask.iter() {
            self.deactivate(window + index * PAGE, slot, index);
        }
        self.stat.packed.fetch_add(mask.count() as u64, Relaxed);
        true
    }
}
