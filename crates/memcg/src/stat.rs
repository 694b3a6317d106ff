//! What is counted: one table, of which the counters in the shared page, their copy, their help and what shows them
//! are made.

use crate::ORDERS;
use crate::hist::Histogram;
use base::PageMask;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Pages of 4 KiB.
    Pages,
    /// Bytes.
    Bytes,
    /// Objects in a pool.
    Objects,
    /// Folios: naturally aligned runs of pages.
    Folios,
    /// Faults of the program's threads.
    Faults,
    /// Nanoseconds.
    Nanoseconds,
    /// Events of any other kind.
    Times,
}

impl Unit {
    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Pages => "pages",
            Unit::Bytes => "bytes",
            Unit::Objects => "objects",
            Unit::Folios => "folios",
            Unit::Faults => "faults",
            Unit::Nanoseconds => "ns",
            Unit::Times => "times",
        }
    }
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    /// Its name in structure and JSON: the kernel's where the kernel counts the same.
    pub name: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// What that says, in one sentence without its end.
    pub text: &'static str,
}

macro_rules! counters {
    (
        $($name:ident: $unit:ident, $text:literal;)*
        => $($by_size:ident: $by_size_name:literal, $by_size_text:literal;)*
        => $($hist:ident: $hist_unit:ident, $hist_text:literal;)*
    ) => {
        /// Counters of one process, or of all that have ended (`Memcg::ended`). All only grow.
        #[repr(C)]
        #[derive(Default)]
        pub struct Stat {
            $(#[doc = $text] pub $name: AtomicU64,)*
            $(#[doc = $by_size_text] pub $by_size: [AtomicU64; ORDERS],)*
            $(#[doc = $hist_text] pub $hist: Histogram,)*
        }

        /// A copy of [`Stat`], without the histograms.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $(#[doc = $text] pub $name: u64,)*
            $(#[doc = $by_size_text] pub $by_size: [u64; ORDERS],)*
        }

        /// The table, in the order of the structure.
        pub const COUNTERS: &[Counter] =
            &[$(Counter { name: stringify!($name), unit: Unit::$unit, text: $text },)*];

        /// What is counted by folio order, in the order of the structure.
        pub const FOLIOS: &[Counter] =
            &[$(Counter { name: $by_size_name, unit: Unit::Folios, text: $by_size_text },)*];

        impl Stat {
            /// The highest values, which are no sums: their places among all.
            const MAXES: &[usize] = &[$((offset_of!(Stat, $hist) + Histogram::MAX_OFFSET) / 8,)*];

            /// Each histogram of the table.
            pub fn histograms(&self) -> impl Iterator<Item = (&'static Counter, &Histogram)> {
                const TABLE: &[Counter] =
                    &[$(Counter { name: stringify!($hist), unit: Unit::$hist_unit, text: $hist_text },)*];
                TABLE.iter().zip([$(&self.$hist,)*])
            }
        }

        impl Counts {
            /// Each counter of the table with its value.
            pub fn values(&self) -> impl Iterator<Item = (&'static Counter, u64)> {
                COUNTERS.iter().zip([$(self.$name,)*])
            }

            /// Each line of [`FOLIOS`] with its values, by order.
            pub fn folios(&self) -> impl Iterator<Item = (&'static Counter, &[u64; ORDERS])> {
                FOLIOS.iter().zip([$(&self.$by_size,)*])
            }
        }

        impl From<&Stat> for Counts {
            fn from(stat: &Stat) -> Counts {
                Counts {
                    $($name: stat.$name.load(Relaxed),)*
                    $($by_size: stat.$by_size.each_ref().map(|counter| counter.load(Relaxed)),)*
                }
            }
        }
    };
}

counters! {
    zswpout: Pages, "stored in the pool as new objects";
    zswpin: Pages, "loaded from the pool";
    faults: Faults, "on memory that was out";
    fresh_faults: Faults, "on memory that was never touched before";
    stall_ns: Nanoseconds, "that threads waited for faults, from the engine's first look at each to the wake-up";
    parked_ns: Nanoseconds, "that threads waited for the turn of their process; not in stall_ns";
    same_filled: Pages, "stored without data, since one word fills them";
    swpout_zero: Pages, "of same_filled: zeros, which no object has";
    swpin_zero: Pages, "of zeros, come back";
    clean_reused: Pages, "gone out again unchanged, so that the object that they came from was kept";
    common_out: Pages, "of clean_reused: kept in a log that related processes have in common";
    common_read: Pages, "come back from there to be read, of which each process has a copy of its own then";
    zswpwb: Pages, "of objects that were written to swap areas";
    pswpout: Pages, "of 4 KiB written to swap areas";
    pswpin: Pages, "of 4 KiB read from swap areas";
    pool_limit_hit: Times, "the pool was found beyond its limit, and objects were to go";
    reject_alloc_fail: Pages, "not stored, since the pool had no memory";
    reject_compress_poor: Objects, "of incompressible: tried, and kept as they were since they did not shrink enough";
    reject_compress_fail: Objects, "of incompressible: kept as they were since the compressor failed";
    reject_reclaim_fail: Pages, "of objects that stay in the pool since they could not be written to an area";
    decompress_fail: Pages, "that were lost, since their object in the pool is damaged";
    area_refused: Times, "a swap area did not take what was written";
    area_full: Times, "no swap area had room for what was to be written";
    area_lost: Objects, "that a swap area did not give back as they were";
    pgdeactivate: Pages, "moved to the inactive list";
    pgactivate: Pages, "touched on the inactive list, and moved back";
    referenced: Pages, "left in, since they were touched after they were looked at last (where the kernel tells that)";
    readahead: Pages, "brought back before they were asked for";
    prefetched: Pages, "brought back, or about to be, since much around them was asked for, and there was room";
    advised_out: Pages, "moved to the inactive list since the program has advised it (MADV_PAGEOUT)";
    advised_cold: Pages, "moved to the inactive list before others since the program has advised it (MADV_COLD)";
    advised_in: Pages, "brought back, or about to be, since the program has advised it (MADV_WILLNEED)";
    advice_dropped: Times, "the program's advice was dropped, since too much of it waited";
    thp_fault_alloc: Folios, "huge pages of fresh memory, made as the kernel itself would";
    thp_swpout: Folios, "huge pages, moved to the inactive list whole";
    thp_swpin: Folios, "huge pages, come back whole from the pool";
    thp_collapse_alloc: Folios, "huge pages, made again of what had come back in parts";
    thp_swpout_fallback: Folios, "huge pages, taken apart on their way there";
    busy: Pages, "not moved, since they were pinned or shared";
    packed: Pages, "that were out already, and became part of a larger object";
    parted: Pages, "that were out in an object with others, and go out again each alone";
    dropped: Pages, "that were out, and that the program needs no more";
    inherited: Pages, "that were out as the process came to be by a fork";
    compressed_in_bytes: Bytes, "of pages with data in new objects";
    compressed_out_bytes: Bytes, "of new objects";
    incompressible: Objects, "kept as they were, since they did not shrink";
    believed_noise: Objects, "of incompressible: not tried, since they looked like noise";
    tried_noise: Objects, "that looked like noise, and were tried all the same";
    wrong_noise: Objects, "of tried_noise: shrunk";
    compacted: Objects, "moved to compact the pool";
    fast_objects: Objects, "of a page by itself, made by the fast compressor";
    fast_pages: Pages, "with data in fast_objects";
    dense_objects: Objects, "of pages of a window, made by the dense compressor";
    dense_pages: Pages, "with data in dense_objects";
    engine_cpu_ns: Nanoseconds, "of processor time of engines and workers";
    events: Times, "memory was unmapped, moved or discarded by the program";
    checks: Times, "the test mode has recomputed all that an engine keeps count of";
    near_refaults: Times, "a page came back before as many others had gone out as were in memory: with more of it the page would have stayed";
    near_distance: Pages, "that had gone out since each of near_refaults, summed";
    =>
    folios_zswpout: "zswpout", "stored: runs of pages that went into one object";
    folios_zswpin: "zswpin", "loaded: runs of pages that came in together";
    folios_swpout: "swpout", "written to swap areas: the pages of an object";
    folios_swpin: "swpin", "read from swap areas: the pages of an object";
    folios_swpout_fallback: "swpout_fallback", "not written, since no swap area had room: the pages of an object";
    folios_swpin_fallback: "swpin_fallback", "not loaded together, but for the one page that was asked for";
    =>
    fault_ns: Nanoseconds, "that a thread waited for memory that was out";
    writeback_ns: Nanoseconds, "from the start of a write of objects to a swap area until it was known to be done";
}

impl Stat {
    fn counters(&self) -> &[AtomicU64] {
        // SAFETY: `Stat` is `repr(C)` and consists of `AtomicU64` alone (asserted below), borrowed for `self`'s life.
        unsafe { core::slice::from_raw_parts(self as *const Stat as *const AtomicU64, size_of::<Stat>() / 8) }
    }

    /// Counts `value` for the counter at this place.
    fn count(&self, at: usize, value: u64) {
        if value == 0 {
            return;
        }
        let counter = &self.counters()[at];
        if Self::MAXES.contains(&at) {
            counter.fetch_max(value, Relaxed)
        } else {
            counter.fetch_add(value, Relaxed)
        };
    }

    /// Adds every counter of `other` to this one.
    pub fn add(&self, other: &Stat) {
        for (at, counter) in other.counters().iter().enumerate() {
            self.count(at, counter.load(Relaxed));
        }
    }

    /// Raises every counter to that of `other` where that is higher.
    pub fn raise(&self, other: &Stat) {
        for (counter, other) in self.counters().iter().zip(other.counters()) {
            counter.fetch_max(other.load(Relaxed), Relaxed);
        }
    }

    /// Adds every counter of `other` to this one and sets it to 0, one by one, so that none counts twice whenever it
    /// ends.
    pub(crate) fn take(&self, other: &Stat) {
        for (at, counter) in other.counters().iter().enumerate() {
            self.count(at, counter.swap(0, Relaxed));
        }
    }

    /// Counts pages of a folio that went into one object.
    pub fn count_out(&self, pages: impl Into<PageMask>) {
        let pages = pages.into();
        self.zswpout.fetch_add(pages.count() as u64, Relaxed);
        count_folios(&self.folios_zswpout, pages);
    }

    /// Counts pages of a folio that came in together.
    pub fn count_in(&self, pages: impl Into<PageMask>) {
        let pages = pages.into();
        self.zswpin.fetch_add(pages.count() as u64, Relaxed);
        count_folios(&self.folios_zswpin, pages);
    }

    /// Counts an object of so many pages that was written to an area.
    pub fn count_written(&self, pages: usize) {
        self.zswpwb.fetch_add(pages as u64, Relaxed);
        count_folios(&self.folios_swpout, PageMask::first(pages));
    }

    /// Counts an object of so many pages that was read from an area.
    pub fn count_read(&self, pages: usize) {
        count_folios(&self.folios_swpin, PageMask::first(pages));
    }

    /// Counts an object of so many pages for which no area had room.
    pub fn count_no_room(&self, pages: usize) {
        count_folios(&self.folios_swpout_fallback, PageMask::first(pages));
    }

    /// Counts pages that were to come in together, and of which one alone does.
    pub fn count_one_of(&self, pages: PageMask) {
        count_folios(&self.folios_swpin_fallback, pages);
    }

    /// Pages that went out of the process for the first time since they were written: the pool has them, or one word
    /// fills them.
    pub fn pages_out(&self) -> u64 {
        self.zswpout.load(Relaxed) + self.same_filled.load(Relaxed)
    }
}

impl Counts {
    /// How many pages have come to be out, less those that are out no more: what is out of a process that lives. What
    /// it was before the first event is 0.
    ///
    /// ```text
    ///   inherited + zswpout + same_filled + clean_reused - zswpin - swpin_zero - packed - parted - dropped
    /// ```
    pub fn balance(&self) -> i64 {
        let come = self.inherited + self.zswpout + self.same_filled + self.clean_reused;
        let gone = self.zswpin + self.swpin_zero + self.packed + self.parted + self.dropped;
        come as i64 - gone as i64
    }

    /// What does not add up of counters that say in part the same, in words. Holds of a process whose engine does
    /// nothing this moment, and of any sum of such.
    pub fn check(&self) -> Result<(), (&'static str, [u64; 2])> {
        let pages =
            |folios: &[u64; ORDERS]| folios.iter().enumerate().map(|(n, count)| count << n).sum::<u64>();
        let same = |name, values: [u64; 2]| if values[0] == values[1] { Ok(()) } else { Err((name, values)) };
        let most = |name, values: [u64; 2]| if values[0] <= values[1] { Ok(()) } else { Err((name, values)) };
        same("zswpout by size", [pages(&self.folios_zswpout), self.zswpout])?;
        same("zswpin by size", [pages(&self.folios_zswpin), self.zswpin])?;
        same("swpout by size, and zswpwb", [pages(&self.folios_swpout), self.zswpwb])?;
        most(
            "looks without room, and swpout_fallback",
            [self.area_full, pages(&self.folios_swpout_fallback)],
        )?;
        most("swpout_zero and same_filled", [self.swpout_zero, self.same_filled])?;
        most("swpin_zero, of what went out", [self.swpin_zero, self.swpout_zero + self.inherited])?;
        most("common_out and clean_reused", [self.common_out, self.clean_reused])?;
        most("readahead and zswpin", [self.readahead, self.zswpin])?;
        most("wrong_noise and tried_noise", [self.wrong_noise, self.tried_noise])?;
        let plain = self.believed_noise + self.reject_compress_poor + self.reject_compress_fail;
        most("incompressible, by reason", [self.incompressible, plain])?;
        same("fast_objects, and their pages", [self.fast_objects, self.fast_pages])?;
        most("dense_objects, and their pages", [self.dense_objects, self.dense_pages])?;
        most("nothing below zero is out", [u64::from(self.balance() < 0), 0])
    }
}

/// Counts the naturally aligned runs of which `pages` consists, each as large as can be.
fn count_folios(folios: &[AtomicU64; ORDERS], pages: PageMask) {
    for (_, order) in pages.folios() {
        folios[order as usize].fetch_add(1, Relaxed);
    }
}

const _: () = assert!(size_of::<Stat>().is_multiple_of(8) && align_of::<Stat>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folios_add_up_to_pages() {
        for (pages, expected) in [
            (0, [0, 0, 0, 0, 0]),
            (u16::MAX, [0, 0, 0, 0, 1]),
            // Nine pages from the first on, and from the second on.
            (0x1ff, [1, 0, 0, 1, 0]),
            (0x3fe, [1, 2, 1, 0, 0]),
            (0x5555, [8, 0, 0, 0, 0]),
            (0x7ffe, [2, 2, 2, 0, 0]),
        ] {
            let stat = Stat::default();
            stat.count_out(pages);
            let Counts { zswpout, folios_zswpout, .. } = Counts::from(&stat);
            assert_eq!(
                (zswpout, &folios_zswpout[..5]),
                (pages.count_ones().into(), &expected[..]),
                "{pages:#x}"
            );
        }
        let stat = Stat::default();
        stat.count_out(PageMask::range(3..512));
        assert_eq!(Counts::from(&stat).folios_zswpout, [1, 0, 1, 1, 1, 1, 1, 1, 1, 0], "3, then 4 to 511");
        let stat = Stat::default();
        (0..=u16::MAX).for_each(|pages| stat.count_in(pages));
        let Counts { zswpin, folios_zswpin, .. } = Counts::from(&stat);
        let sum: u64 = folios_zswpin.iter().enumerate().map(|(order, folios)| folios << order).sum();
        assert_eq!((zswpin, sum), (1 << 19, 1 << 19));
    }

    #[test]
    fn what_is_raised_never_falls() {
        let (told, now) = (Stat::default(), Stat::default());
        now.fault_ns.record(7);
        for (faults, expected) in [(5, 5), (3, 5), (6, 6)] {
            now.faults.store(faults, Relaxed);
            told.raise(&now);
            assert_eq!(
                (told.faults.load(Relaxed), told.fault_ns.count(), told.fault_ns.sum()),
                (expected, 1, 7)
            );
        }
    }

    #[test]
    fn the_table_names_each_counter_once_and_copies_it() {
        let stat = Stat::default();
        for (at, counter) in stat.counters()[..COUNTERS.len()].iter().enumerate() {
            counter.store(at as u64 + 1, Relaxed);
        }
        let counts = Counts::from(&stat);
        assert!(counts.values().map(|(_, value)| value).eq(1..=COUNTERS.len() as u64));
        let by_size: Vec<&str> = counts.folios().map(|(counter, _)| counter.name).collect();
        assert_eq!(by_size, FOLIOS.iter().map(|counter| counter.name).collect::<Vec<_>>());
        let all: Vec<&Counter> =
            COUNTERS.iter().chain(stat.histograms().map(|(counter, _)| counter)).collect();
        for (at, Counter { name, unit, text }) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other.name != *name), "{name} twice");
            assert!(!text.ends_with('.'), "{name}");
            let is = |suffix, of| name.ends_with(suffix) == (*unit == of);
            assert!(
                is("_bytes", Unit::Bytes) && is("_ns", Unit::Nanoseconds),
                "{name} is in {}",
                unit.name()
            );
        }
    }
}
