//! What processes hold now: each in its slot, and all together.
//!
//! Engines publish every few milliseconds, and must not look at the slots of all others for that. So each adds to the
//! sums what has changed since it published last:
//!
//! ```text
//!   turn odd; slot = new (the old value is what the sum has of it); sum += new - old; turn even
//! ```
//!
//! An engine that is killed leaves its part in the sums, and [`Memcg::reap`] takes it out. One that is killed between
//! two of these steps leaves a sum that is not that of the slots. Its `turn` is odd then, and [`Memcg::audit`] puts it
//! right.

use crate::{Memcg, Slot, State, Unit};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering::*};

/// What processes hold, in bytes or pages of 4 KiB.
#[derive(Clone, Copy, Debug)]
pub struct Gauge {
    /// Its name in structure and JSON, which ends with its unit: the kernel's where the kernel says the same.
    pub name: &'static str,
    /// What it is in.
    pub unit: Unit,
    /// What it says, in one sentence without its end.
    pub text: &'static str,
}

/// The gauges, in the order of [`Gauges`].
pub const GAUGES: [Gauge; 8] = [
    bytes_of("footprint_bytes", "held now, pool, inactive list and engine included"),
    bytes_of("wanted_bytes", "that would be held without zfolio"),
    bytes_of("stored_bytes", "of pages that are out now, in the pool or in swap areas"),
    bytes_of("pool_bytes", "of the pool's memory"),
    pages_of("stored_pages", "that are in the pool now, those that one word fills included"),
    pages_of("same_filled_pages", "that are out now, and that one word fills"),
    pages_of(
        "stored_incompressible_pages",
        "that are in the pool now as they were, since they did not shrink",
    ),
    pages_of("swapped_pages", "that are in swap areas now, and not in the pool"),
];

/// Where in [`GAUGES`] those in pages begin.
const PAGES: usize = 4;

const fn bytes_of(name: &'static str, text: &'static str) -> Gauge {
    Gauge { name, unit: Unit::Bytes, text }
}

const fn pages_of(name: &'static str, text: &'static str) -> Gauge {
    Gauge { name, unit: Unit::Pages, text }
}

/// What of a process is out now, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagesOut {
    /// In the pool, those that one word fills included.
    pub stored: usize,
    /// Filled by one word, wherever they are.
    pub same_filled: usize,
    /// In the pool as they were, since they did not shrink.
    pub incompressible: usize,
    /// In swap areas, and not in the pool.
    pub swapped: usize,
}

impl PagesOut {
    /// In the order of [`GAUGES`].
    pub fn values(&self) -> [usize; GAUGES.len() - PAGES] {
        [self.stored, self.same_filled, self.incompressible, self.swapped]
    }
}

/// Sums over all processes, in bytes and pages; the names are those of a [`Slot`].
#[repr(C, align(64))]
#[derive(Default)]
pub struct Gauges {
    footprint_bytes: AtomicU64,
    wanted_bytes: AtomicU64,
    stored_bytes: AtomicU64,
    pool_bytes: AtomicU64,
    pages: [AtomicU64; GAUGES.len() - PAGES],
}

impl Gauges {
    fn all(&self) -> [&AtomicU64; GAUGES.len()] {
        let bytes = [&self.footprint_bytes, &self.wanted_bytes, &self.stored_bytes, &self.pool_bytes];
        all(bytes, &self.pages)
    }

    /// Makes a sum wrong, as an engine's death can.
    #[cfg(test)]
    pub(crate) fn add_for_test(&self, at: usize, change: u64) {
        self.all()[at].fetch_add(change, SeqCst);
    }

    /// What all managed processes hold, in the order of [`GAUGES`].
    pub fn values(&self) -> [u64; GAUGES.len()] {
        self.all().map(|sum| bytes(sum.load(Acquire)))
    }

    /// Private memory of all managed processes, in bytes.
    pub fn footprint(&self) -> u64 {
        bytes(self.footprint_bytes.load(Acquire))
    }

    /// What they would hold without zfolio, in bytes.
    pub fn wanted(&self) -> u64 {
        bytes(self.wanted_bytes.load(Acquire))
    }

    /// Memory of all their pools, in bytes.
    pub fn pool(&self) -> u64 {
        bytes(self.pool_bytes.load(Acquire))
    }
}

/// Until an audit a sum may be too low, and so below zero.
fn bytes(sum: u64) -> u64 {
    if sum > i64::MAX as u64 { 0 } else { sum }
}

/// The same of one process.
fn of(slot: &Slot) -> [&AtomicU64; GAUGES.len()] {
    let bytes = [&slot.footprint_bytes, &slot.wanted_bytes, &slot.stored_bytes, &slot.pool_bytes];
    all(bytes, &slot.pages)
}

fn all<'a>(bytes: [&'a AtomicU64; PAGES], pages: &'a [AtomicU64]) -> [&'a AtomicU64; GAUGES.len()] {
    core::array::from_fn(|n| if n < PAGES { bytes[n] } else { &pages[n - PAGES] })
}

/// Raises a peak; true when it was lower. Most of the time it is not, and then nothing is written.
fn raise(peak: &AtomicU64, value: u64) -> bool {
    peak.load(Relaxed) < value && peak.fetch_max(value, Relaxed) < value
}

/// How often a sum is compared with its parts before it is left for another time.
const AUDITS: usize = 16;

impl Slot {
    /// What the process holds, in the order of [`GAUGES`].
    pub fn gauges(&self) -> [u64; GAUGES.len()] {
        of(self).map(|part| part.load(Acquire))
    }

    /// How often its gauges have been published: a number that changes when they are.
    pub fn published(&self) -> u64 {
        self.turn.load(SeqCst) / 2
    }
}

impl Memcg {
    /// What the processes of the run hold, in bytes: those that nobody manages count, and shared memory.
    pub fn used_bytes(&self) -> u64 {
        self.current.footprint().saturating_add(self.division.unmanaged_bytes.load(Relaxed))
    }

    /// The same for who has not mapped the page: `word` reads one at an offset of the file. 0 where it cannot.
    pub fn used_of(word: impl Fn(usize) -> Option<u64>) -> u64 {
        let managed = word(offset_of!(Memcg, current.footprint_bytes)).map_or(0, bytes);
        managed.saturating_add(word(offset_of!(Memcg, division.unmanaged_bytes)).unwrap_or(0))
    }

    /// Publishes a process's gauges and raises its peaks and the run's. Returns what the run holds now, in bytes.
    pub fn publish(&self, slot: &Slot, footprint: u64, wanted: u64, stored: u64, pool: u64) -> u64 {
        raise(&slot.footprint_peak_bytes, footprint);
        raise(&slot.wanted_peak_bytes, wanted);
        if raise(&slot.stored_peak_bytes, stored) {
            slot.pool_at_peak_bytes.store(pool, Relaxed);
        }
        let [current, wanted, stored, pool] = self.hold(slot, 0, [footprint, wanted, stored, pool]);
        raise(&self.peak_bytes, current);
        raise(&self.wanted_peak_bytes, wanted);
        if raise(&self.stored_peak_bytes, stored) {
            self.pool_at_peak_bytes.store(pool, Relaxed);
        }
        current
    }

    /// Publishes what of a process is out, in pages, in the order of [`PagesOut::values`].
    pub fn publish_pages(&self, slot: &Slot, pages: [u64; GAUGES.len() - PAGES]) {
        self.hold(slot, PAGES, pages);
    }

    /// Sets a slot's gauges from the `first` on, in the order of [`GAUGES`], and adds to the sums what that changes.
    /// Returns the sums.
    pub(crate) fn hold<const N: usize>(&self, slot: &Slot, first: usize, values: [u64; N]) -> [u64; N] {
        slot.turn.fetch_add(1, SeqCst);
        let (parts, sums) = (&of(slot)[first..], &self.current.all()[first..]);
        let now = core::array::from_fn(|n| {
            let change = values[n].wrapping_sub(parts[n].swap(values[n], SeqCst));
            let sum = if change == 0 { sums[n].load(SeqCst) } else { sums[n].fetch_add(change, SeqCst) };
            bytes(sum.wrapping_add(change))
        });
        slot.turn.fetch_add(1, SeqCst);
        now
    }

    /// Makes the sums those of the slots, which they are unless somebody was killed while he published. False when
    /// others published all the time: to be tried again. For `zfolio run`.
    pub fn audit(&self) -> bool {
        (0..AUDITS).any(|_| self.audit_once().is_some())
    }

    fn audit_once(&self) -> Option<()> {
        let before = self.turns()?;
        let sums = self.current.all();
        let changes: [u64; GAUGES.len()] = core::array::from_fn(|n| {
            let parts = self.used().iter().map(|slot| of(slot)[n].load(SeqCst));
            parts.fold(0, u64::wrapping_add).wrapping_sub(sums[n].load(SeqCst))
        });
        if self.turns()? != before {
            return None;
        }
        // From here on others may publish again: what they add does not change by how much the sums were wrong.
        for (sum, change) in sums.into_iter().zip(changes) {
            sum.fetch_add(change, SeqCst);
        }
        Some(())
    }

    /// Tells whether anybody has published in between; `None` while somebody does.
    fn turns(&self) -> Option<u64> {
        self.used().iter().try_fold(0u64, |sum, slot| {
            let turn = slot.turn.load(SeqCst);
            turn.is_multiple_of(2).then(|| sum.wrapping_add(turn))
        })
    }

    /// How many processes have a slot and have not ended.
    pub fn living(&self) -> usize {
        self.used().iter().filter(|slot| !matches!(slot.state(), State::Free | State::Ended)).count()
    }
}
