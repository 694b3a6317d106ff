//! What may be set at any time: limits, how writeback works, what is done by itself.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Blocks that one tick recompresses and writes back at most, where nobody has set another number: 16 MiB.
const AUTO_MAX_PAGES: u64 = 4096;

/// Blocks that go to the backing device with one call at most, as in the kernel.
const WRITEBACK_BATCH: u32 = 32;

/// The tunables of a device. Any thread reads and writes them.
#[derive(Debug)]
pub struct Tunables {
    /// The most memory for the pool, in bytes; 0: no limit.
    pub mem_limit_bytes: AtomicU64,
    /// True while `writeback_limit` holds.
    pub is_writeback_limited: AtomicBool,
    /// How many blocks may still be written back.
    pub writeback_limit: AtomicU64,
    /// Blocks that are written with one call at most.
    pub writeback_batch: AtomicU32,
    /// True if objects are written back as they are, and not as pages.
    pub is_writeback_compressed: AtomicBool,
    /// Blocks of this age are recompressed by themselves, in seconds; 0: none.
    pub auto_recompress_s: AtomicU32,
    /// Blocks of this age are written back by themselves, in seconds; 0: none.
    pub auto_writeback_s: AtomicU32,
    /// Blocks that one tick works on at most.
    pub auto_max_pages: AtomicU64,
    /// The device's time, in seconds.
    pub now_s: AtomicU32,
}

impl Default for Tunables {
    fn default() -> Tunables {
        Tunables {
            mem_limit_bytes: AtomicU64::new(0),
            is_writeback_limited: AtomicBool::new(false),
            writeback_limit: AtomicU64::new(0),
            writeback_batch: AtomicU32::new(WRITEBACK_BATCH),
            is_writeback_compressed: AtomicBool::new(false),
            auto_recompress_s: AtomicU32::new(0),
            auto_writeback_s: AtomicU32::new(0),
            auto_max_pages: AtomicU64::new(AUTO_MAX_PAGES),
            now_s: AtomicU32::new(0),
        }
    }
}

impl Tunables {
    /// Sets all but the time back to what a new device has.
    pub fn reset(&self) {
        let new = Tunables::default();
        self.mem_limit_bytes.store(new.mem_limit_bytes.into_inner(), Relaxed);
        self.is_writeback_limited.store(new.is_writeback_limited.into_inner(), Relaxed);
        self.writeback_limit.store(new.writeback_limit.into_inner(), Relaxed);
        self.writeback_batch.store(new.writeback_batch.into_inner(), Relaxed);
        self.is_writeback_compressed.store(new.is_writeback_compressed.into_inner(), Relaxed);
        self.auto_recompress_s.store(new.auto_recompress_s.into_inner(), Relaxed);
        self.auto_writeback_s.store(new.auto_writeback_s.into_inner(), Relaxed);
        self.auto_max_pages.store(new.auto_max_pages.into_inner(), Relaxed);
    }

    /// The device's time, in seconds.
    pub fn now_s(&self) -> u32 {
        self.now_s.load(Relaxed)
    }

    /// True if a pool of so many bytes is more than it may be.
    pub fn is_over(&self, pool_bytes: usize) -> bool {
        let limit = self.mem_limit_bytes.load(Relaxed);
        limit > 0 && pool_bytes as u64 > limit
    }

    /// How many blocks may be written back now.
    pub fn writeback_budget(&self) -> u64 {
        if self.is_writeback_limited.load(Relaxed) { self.writeback_limit.load(Relaxed) } else { u64::MAX }
    }

    /// Notes that so many blocks were written back.
    pub fn spend_writeback(&self, blocks: u64) {
        if self.is_writeback_limited.load(Relaxed) {
            let less = |limit: u64| Some(limit.saturating_sub(blocks));
            let _ = self.writeback_limit.fetch_update(Relaxed, Relaxed, less);
        }
    }
}
