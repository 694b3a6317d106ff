//! What is counted of pages: what is out now, and that counters and entries say the same.

use crate::kernel::{Kernel, Store};
use crate::pager::Pager;
use crate::swap_map::{ASIDE, Entry, Kind};
use alloc::format;
use alloc::string::String;
use core::sync::atomic::Ordering::Relaxed;
use memcg::{Counts, PagesOut};
use vmscan::PAGE;
use zswap::objects::Object;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// What is out now; what has no other copy than a relative's record counts with the relative.
    pub fn pages_out(&self) -> PagesOut {
        let swapped = self.objects.swapped_pages();
        PagesOut {
            // Jobs under way depend on objects, too.
            stored: self.map.stored().saturating_sub(self.objects.borrowed_pages() + swapped),
            same_filled: self.map.same_filled(),
            incompressible: self.objects.incompressible_pages(),
            swapped,
        }
    }

    /// A page has come home, or is about to, of which this was known.
    pub(super) fn came_home(&mut self, entry: Entry) {
        if entry.kind() == Kind::Zero {
            self.stat.swpin_zero.fetch_add(1, Relaxed);
        } else {
            self.drop_entry(entry);
        }
    }

    /// A batch has ended: counts its objects, and how long it took.
    pub(super) fn count_batch(&mut self, number: usize, is_written: bool) {
        let (stat, objects) = (self.stat, &self.objects);
        for piece in objects.swapped().batch(number).iter().flat_map(|batch| &batch.pieces) {
            let pages = objects.get(piece.id).pages.into();
            if is_written && !piece.is_damaged {
                stat.count_written(pages);
            } else {
                stat.reject_reclaim_fail.fetch_add(pages as u64, Relaxed);
            }
        }
        if let (Some(began_ns), true) = (self.batches_ns[number].take(), is_written) {
            stat.writeback_ns.record(self.kernel.now_ns().saturating_sub(began_ns));
        }
    }

    /// What does not hold, in words: counters among themselves, and what they say is out against what is.
    pub(super) fn check_counts(&self) -> Result<(), String> {
        let counts = Counts::from(self.stat);
        counts.check().map_err(|(name, values)| format!("counters do not add up: {name}, {values:?}"))?;
        let (out, counted) = (self.map.stored() as i64, counts.balance() - self.balance_before);
        if out != counted {
            return Err(format!("{out} pages are out, and by the counters {counted}: {counts:?}"));
        }
        self.check_pages_out()
    }

    /// The same for what is said to be out now. What jobs under way depend on counts beside the entries.
    fn check_pages_out(&self) -> Result<(), String> {
        let (mut at, mut found, mut borrowed) = (0, PagesOut::default(), 0);
        while let Some((page, entry)) = self.map.next_used(at, 2 * ASIDE) {
            at = page + PAGE;
            if !entry.kind().is_stored() {
                continue;
            }
            found.same_filled += entry.is_same_filled() as usize;
            let object = (entry.kind() == Kind::Stored).then(|| self.objects.get(entry.id()));
            let is = |what: fn(&Object) -> bool| object.is_some_and(what) as usize;
            found.incompressible += is(Object::is_raw);
            found.swapped += is(Object::is_swapped);
            borrowed += is(Object::is_borrowed);
            found.stored += 1 - is(|object| object.is_borrowed() || object.is_swapped());
        }
        let said = self.pages_out();
        let in_jobs = self.objects.borrowed_pages() - borrowed + said.swapped - found.swapped;
        // Fetches, too, and they are of objects that may be raw.
        let has_jobs = in_jobs > 0 || self.inactive.in_flight() > 0 || !self.ahead.under_way().is_empty();
        let is_right = said.stored == found.stored.saturating_sub(in_jobs)
            && said.same_filled == found.same_filled
            && said.incompressible >= found.incompressible
            && (has_jobs || said == found);
        if is_right { Ok(()) } else { Err(format!("out are {found:?}, and said to be {said:?}")) }
    }
}
