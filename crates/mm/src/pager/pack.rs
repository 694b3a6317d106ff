//! Packing: windows whose pages have come to lie in many objects, or in objects of which a part is dead, are made one object again.
//!
//! Pages that go out one by one are kept one by one, and shrink less than a window does; a window from which pages were taken one by one keeps
//! their copies, which nobody needs. Both are paid for with time that a miss takes. Where the pool is most of the memory a second hand goes
//! round behind the clock hand, looks for such windows among those that nobody has asked for in a long time, and puts them on the stage, from
//! where they go out as one. zram's recompression of idle pages is the same idea.
//!
//! This is safe because
//! 1. no message is read between the look at the entries and their change, so that they still say where the pages are;
//! 2. the bytes are checked against their hashes before the objects are given up; of a damaged object nothing is touched.

use crate::index::Kind;
use crate::kernel::{Kernel, Store, WINDOW_PAGES};
use crate::pager::{Pager, runs};
use core::sync::atomic::Ordering::Relaxed;
use vmscan::{PAGE, WINDOW};

/// How many windows are looked at for one that is packed; and where that is all that is left to do.
const LOOKS: usize = 64;
const LOOKS_AT_LAST: usize = 4096;

/// One part of the engine's time in so many goes into packing, and into looking for what to pack where there is nothing.
const SHARE: u64 = 8;
const SHARE_IN_VAIN: u64 = 64;

/// With fewer pages than this a window shrinks no better than its pages do.
const FEWEST: u32 = 4;

/// It is packed all the same where objects of so many times as many pages are kept for it.
const MOSTLY_DEAD: u32 = 4;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// Packs a window, if the pool is large enough for that to matter and it is time for it. True when there was one.
    pub(crate) fn pack(&mut self) -> bool {
        let now = self.kernel.now_ns();
        if now < self.pack_next_ns || self.store.pool_bytes() <= self.limit.marks().dense {
            return false;
        }
        let packed = self.pack_next(LOOKS, true);
        let share = if packed { SHARE } else { SHARE_IN_VAIN };
        self.pack_next_ns = now + (self.kernel.now_ns() - now) * share;
        packed
    }

    /// Packs a window that need not be cold: nothing else is left that would make room. True when there was one; where there is none it is a while until the next search.
    pub(crate) fn pack_at_last(&mut self) -> bool {
        if self.packer_rest.is_on(self.kernel.now_ns()) {
            return false;
        }
        let packed = self.pack_next(LOOKS_AT_LAST, false);
        if packed {
            self.packer_rest.found();
        } else {
            self.packer_rest.round(self.kernel.now_ns());
        }
        packed
    }

    /// Looks at the next windows for one that is worth packing, and packs it.
    fn pack_next(&mut self, looks: usize, cold: bool) -> bool {
        if self.stage.is_crowded() || self.regions.has_displaced() {
            return false;
        }
        for _ in 0..looks {
            // Once round: from the beginning with the next call.
            let Some((page, _)) = self.index.next_used(self.packer, 1 << 47) else {
                self.packer = 0;
                break;
            };
            let window = page & !(WINDOW - 1);
            self.packer = window + WINDOW;
            let mask = self.worth_packing(window, cold);
            if mask != 0 && self.fetch_of(window).is_none() {
                return self.gather(window, mask);
            }
        }
        false
    }

    /// The pages of a window that are to be one object, by bit; 0 when it is well as it is, or, where only `cold` ones are meant, has pages that
    /// went out a short time ago.
    fn worth_packing(&self, window: usize, cold: bool) -> u16 {
        let (mut mask, mut objects, mut held, mut last) = (0u16, 0, 0, None);
        for index in 0..WINDOW_PAGES {
            let entry = self.index.get(window + index * PAGE);
            match entry.kind() {
                Kind::Stored if !cold || self.index.distance(entry) > self.index.stored() => {}
                // So lately out that it may soon be asked for again.
                Kind::Stored | Kind::Staged => return 0,
                Kind::None | Kind::Clean | Kind::Zero => continue,
            }
            // It is another process's too: a second one would take more memory, not less.
            if self.objects.get(entry.id()).is_shared() {
                return 0;
            }
            mask |= 1 << index;
            if last != Some(entry.id()) {
                last = Some(entry.id());
                objects += 1;
                held += self.objects.get(entry.id()).pages as u32;
            }
        }
        let pages = mask.count_ones();
        let is_scattered = 4 * objects >= pages;
        let is_sparse = 4 * held >= 5 * pages;
        let is_worth_it = pages >= FEWEST || held >= MOSTLY_DEAD * pages;
        if is_worth_it && objects + held > pages + 1 && (is_scattered || is_sparse) { mask } else { 0 }
    }

    /// Loads the pages of `mask` and puts them on a slot of the stage, each in its place.
    pub(crate) fn gather(&mut self, window: usize, mask: u16) -> bool {
        let Some(slot) = self.slot_to_load() else { return false };
        let to = self.stage.at(slot);
        for (start, count) in runs(mask) {
            let offset = start * PAGE;
            if self.load_run(window + offset, count as u16, to + offset).is_err() {
                // Reported at the fault that needs it.
                self.put_back(slot);
                return false;
            }
        }
        self.stage.hold(slot, false);
        for index in (0..WINDOW_PAGES).filter(|i| mask & 1 << i != 0) {
            self.restage(window + index * PAGE, slot, index);
        }
        self.stat.packed.fetch_add(mask.count_ones() as u64, Relaxed);
        true
    }
}
