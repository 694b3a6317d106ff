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
    ($($name:ident: $unit:ident, $text:literal;)* => $($hist:ident: $hist_unit:ident, $hist_text:literal;)*) => {
        /// Counters of one process, or of all that have ended (`Memcg::ended`). All only grow.
        #[repr(C)]
        #[derive(Default)]
        pub struct Stat {
            $(#[doc = $text] pub $name: AtomicU64,)*
            /// The pages of `zswpout` by folio order: naturally aligned runs that went into one object.
            pub folios_out: [AtomicU64; ORDERS],
            /// The pages of `zswpin` by folio order: naturally aligned runs that came in together.
            pub folios_in: [AtomicU64; ORDERS],
            $(#[doc = $hist_text] pub $hist: Histogram,)*
        }

        /// A copy of [`Stat`], without the histograms.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $(#[doc = $text] pub $name: u64,)*
            /// See [`Stat::folios_out`].
            pub folios_out: [u64; ORDERS],
            /// See [`Stat::folios_in`].
            pub folios_in: [u64; ORDERS],
        }

        /// The table, in the order of the structure.
        pub const COUNTERS: &[Counter] =
            &[$(Counter { name: stringify!($name), unit: Unit::$unit, text: $text },)*];

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
        }

        impl From<&Stat> for Counts {
            fn from(stat: &Stat) -> Counts {
                Counts {
                    $($name: stat.$name.load(Relaxed),)*
                    folios_out: stat.folios_out.each_ref().map(|counter| counter.load(Relaxed)),
                    folios_in: stat.folios_in.each_ref().map(|counter| counter.load(Relaxed)),
                }
            }
        }
    };
}

counters! {
    zswpout: Pages, "stored in the pool as new objects";
    zswpin: Pages, "loaded from the pool";
    same_filled: Pages, "stored without data, since one word fills them";
    clean_reused: Pages, "gone out again unchanged, so that the object that they came from was kept";
    common_out: Pages, "of clean_reused: kept in a log that related processes have in common";
    common_read: Pages, "come back from there to be read, of which each process has a copy of its own then";
    pswpout: Pages, "of 4 KiB written to swap areas";
    pswpin: Pages, "of 4 KiB read from swap areas";
    area_refused: Times, "a swap area did not take what was written";
    area_full: Times, "no swap area had room for what was to be written";
    area_lost: Objects, "that a swap area did not give back as they were";
    pgdeactivate: Pages, "moved to the inactive list";
    pgactivate: Pages, "touched on the inactive list, and moved back";
    readahead: Pages, "brought back before they were asked for";
    busy: Pages, "not moved, since they were pinned or shared";
    packed: Pages, "that were out already, and became part of a larger object";
    compressed_in_bytes: Bytes, "of pages with data in new objects";
    compressed_out_bytes: Bytes, "of new objects";
    incompressible: Objects, "kept as they were, since they did not shrink";
    believed_noise: Objects, "of incompressible: not tried, since they looked like noise";
    tried_noise: Objects, "that looked like noise, and were tried all the same";
    wrong_noise: Objects, "of tried_noise: shrunk";
    compacted: Objects, "moved to compact the pool";
    auto_fast_objects: Objects, "made by the fast one of two compressors";
    auto_dense_objects: Objects, "made by the dense one";
    auto_fast_pages: Pages, "in objects of the fast one";
    auto_dense_pages: Pages, "in objects of the dense one";
    auto_samples: Times, "both compressors were tried, to compare them";
    auto_extra_ns: Nanoseconds, "of processor time that the dense one took beyond the fast one, samples included";
    faults: Faults, "on memory that was out";
    fresh_faults: Faults, "on memory that was never touched before";
    stall_ns: Nanoseconds, "that threads waited for faults, from the engine's first look at each to the wake-up";
    parked_ns: Nanoseconds, "that threads waited for the turn of their process; not in stall_ns";
    engine_cpu_ns: Nanoseconds, "of processor time of engines and workers";
    events: Times, "memory was unmapped, moved or discarded by the program";
    checks: Times, "the test mode has recomputed all that an engine keeps count of";
    near_refaults: Times, "a page came back before as many others had gone out as were in memory: with more of it the page would have stayed";
    near_distance: Pages, "that had gone out since each of near_refaults, summed";
    =>
    fault_ns: Nanoseconds, "that a thread waited for memory that was out";
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
        count_folios(&self.folios_out, pages);
    }

    /// Counts pages of a folio that came in together.
    pub fn count_in(&self, pages: impl Into<PageMask>) {
        let pages = pages.into();
        self.zswpin.fetch_add(pages.count() as u64, Relaxed);
        count_folios(&self.folios_in, pages);
    }

    /// Pages that went out of the process for the first time since they were written: the pool has them, or one word
    /// fills them.
    pub fn pages_out(&self) -> u64 {
        self.zswpout.load(Relaxed) + self.same_filled.load(Relaxed)
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
            let Counts { zswpout, folios_out, .. } = Counts::from(&stat);
            assert_eq!((zswpout, &folios_out[..5]), (pages.count_ones().into(), &expected[..]), "{pages:#x}");
        }
        let stat = Stat::default();
        stat.count_out(PageMask::range(3..512));
        assert_eq!(Counts::from(&stat).folios_out, [1, 0, 1, 1, 1, 1, 1, 1, 1, 0], "3, then 4 to 511");
        let stat = Stat::default();
        (0..=u16::MAX).for_each(|pages| stat.count_in(pages));
        let Counts { zswpin, folios_in, .. } = Counts::from(&stat);
        let sum: u64 = folios_in.iter().enumerate().map(|(order, folios)| folios << order).sum();
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
