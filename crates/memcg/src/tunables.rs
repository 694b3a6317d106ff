//! What the user may change while the run goes on: the names are those of zswap's parameters and of the kernel's memory
//! controller. `zfolio run` alone can write what is the run's ([`Tunables`] is in the part of the page that processes
//! only read); what is one process's is in its slot.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// The percentage of the limit that the pool may take, unless the user says otherwise: no bound but what it weighs
/// itself.
pub const MAX_POOL_PERCENT: u32 = 100;

/// The percentage of its most that the pool falls to before it takes more, unless the user says otherwise.
pub const ACCEPT_THRESHOLD_PERCENT: u32 = 90;

/// No limit to the pool of a process (`max`).
pub const NO_MAX: u64 = u64::MAX;

/// What is the run's.
#[repr(C)]
pub struct Tunables {
    /// 0: nothing new goes into the pool.
    pub enabled: AtomicU32,
    /// Where there are areas: how much of the limit the pool may take, in percent. Past it objects are written back.
    pub max_pool_percent: AtomicU32,
    /// A pool that has been full takes more when it has fallen to so many percent of its most.
    pub accept_threshold_percent: AtomicU32,
    /// What comes to more percent of what it was is kept as it is.
    pub max_compression_ratio: AtomicU32,
    /// 0: processes that have no word of their own write nothing to swap areas.
    pub writeback: AtomicU32,
    /// 1: where memory must go some of it comes from the pool, whose oldest objects are written before it is full.
    pub shrinker_enabled: AtomicU32,
    /// What makes new objects, in one word as zswap writes it; 0: what the settings say.
    pub compressor: AtomicU64,
    /// Bits of all that has made objects in the run or will have soon, by the compressors' own numbers: set before
    /// `compressor` is, and 0 until that is set for the first time.
    pub compressors: AtomicU64,
    /// How large the pool of a process may be that has no word of its own, in bytes; [`NO_MAX`]: no limit.
    pub zswap_max_bytes: AtomicU64,
    /// The highest limit that the run has had, in bytes.
    pub max_peak_bytes: AtomicU64,
}

impl Tunables {
    /// As a run begins: what zswap has, but for the pool, which has no bound.
    pub(crate) fn begin(&self, max_bytes: u64) {
        for (cell, value) in [
            (&self.enabled, 1),
            (&self.max_pool_percent, MAX_POOL_PERCENT),
            (&self.accept_threshold_percent, ACCEPT_THRESHOLD_PERCENT),
            (&self.max_compression_ratio, 100),
            (&self.writeback, 1),
            (&self.shrinker_enabled, 0),
        ] {
            cell.store(value, Relaxed);
        }
        self.compressor.store(0, Relaxed);
        self.compressors.store(0, Relaxed);
        self.zswap_max_bytes.store(NO_MAX, Relaxed);
        self.max_peak_bytes.store(max_bytes, Relaxed);
    }
}

/// What is one process's. All 0: as the run has it.
#[repr(C)]
#[derive(Default)]
pub struct OwnTunables {
    /// 1: writes to swap areas; 2: does not.
    writeback: AtomicU32,
    _reserved: AtomicU32,
    /// How large its pool may be, in bytes, and 1; [`NO_MAX`]: no limit.
    zswap_max: AtomicU64,
}

impl OwnTunables {
    /// The process writes to swap areas, or does not; `None`: as the run has it.
    pub fn set_writeback(&self, writes: Option<bool>) {
        self.writeback.store(writes.map_or(0, |writes| if writes { 1 } else { 2 }), Relaxed);
    }

    /// Its pool may be so large, in bytes, or [`NO_MAX`]; `None`: as the run has it.
    pub fn set_zswap_max(&self, bytes: Option<u64>) {
        self.zswap_max.store(bytes.map_or(0, |bytes| bytes.saturating_add(1)), Relaxed);
    }

    /// True where it writes to swap areas; `None`: as the run has it.
    pub(crate) fn writeback(&self) -> Option<bool> {
        Some(self.writeback.load(Relaxed)).filter(|own| *own != 0).map(|own| own == 1)
    }

    /// How large its pool may be, in bytes, or [`NO_MAX`]; `None`: as the run has it.
    pub(crate) fn zswap_max(&self) -> Option<u64> {
        let own = self.zswap_max.load(Relaxed);
        Some(own).filter(|own| *own != 0).map(|own| if own == NO_MAX { NO_MAX } else { own - 1 })
    }

    /// As the run has it.
    pub(crate) fn clear(&self) {
        self.set_writeback(None);
        self.set_zswap_max(None);
    }

    /// A forked child has what its parent has.
    pub(crate) fn copy_from(&self, parent: &OwnTunables) {
        self.writeback.store(parent.writeback.load(Relaxed), Relaxed);
        self.zswap_max.store(parent.zswap_max.load(Relaxed), Relaxed);
    }
}
