//! What a device counts.

use crate::group::Tally;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A device's figures at one moment: mm_stat, io_stat and bd_stat in one. Blocks are 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Size of the device, in bytes.
    pub disksize_bytes: u64,
    /// Blocks that hold something, in bytes as they were written.
    pub orig_data_bytes: u64,
    /// The objects in RAM, in bytes.
    pub compr_data_bytes: u64,
    /// Memory of the pool, what it holds without an object included, in bytes.
    pub mem_used_bytes: u64,
    /// The most that `mem_used_bytes` may come to, in bytes; 0: no limit.
    pub mem_limit_bytes: u64,
    /// The most that `mem_used_bytes` has come to, in bytes.
    pub mem_used_max_bytes: u64,
    /// Blocks that one word fills.
    pub same_pages: u64,
    /// Pages that compaction has given back.
    pub pages_compacted: u64,
    /// Blocks that are kept as they are, because they do not shrink.
    pub huge_pages: u64,
    /// Such blocks that were written since the device has its size; what was loaded does not count.
    pub huge_pages_since: u64,
    /// Reads that have failed.
    pub failed_reads: u64,
    /// Writes that have failed.
    pub failed_writes: u64,
    /// Requests that did not consist of whole blocks.
    pub invalid_io: u64,
    /// Blocks that were discarded.
    pub notify_free: u64,
    /// Blocks' worth of slots in use in the backing device.
    pub bd_count: u64,
    /// Blocks' worth that was read from it.
    pub bd_reads: u64,
    /// Blocks' worth that was written to it.
    pub bd_writes: u64,
    /// Blocks that cannot be read because their objects are damaged.
    pub damaged_blocks: u64,
    /// Writes that were refused with ENOSPC.
    pub refused_writes: u64,
}

/// The counters behind [`Stats`]; any thread counts.
#[derive(Debug, Default)]
pub struct Counters {
    /// Blocks that are no holes.
    pub stored_pages: AtomicU64,
    /// As [`Stats::same_pages`].
    pub same_pages: AtomicU64,
    /// As [`Stats::huge_pages`].
    pub huge_pages: AtomicU64,
    /// As [`Stats::huge_pages_since`].
    pub huge_pages_since: AtomicU64,
    /// As [`Stats::pages_compacted`].
    pub pages_compacted: AtomicU64,
    /// As [`Stats::mem_used_max_bytes`].
    pub mem_used_max_bytes: AtomicU64,
    /// As [`Stats::failed_reads`].
    pub failed_reads: AtomicU64,
    /// As [`Stats::failed_writes`].
    pub failed_writes: AtomicU64,
    /// As [`Stats::invalid_io`].
    pub invalid_io: AtomicU64,
    /// As [`Stats::notify_free`].
    pub notify_free: AtomicU64,
    /// As [`Stats::damaged_blocks`].
    pub damaged_blocks: AtomicU64,
    /// As [`Stats::refused_writes`].
    pub refused_writes: AtomicU64,
    /// Partial writes that began anew, because the group had changed meanwhile.
    pub write_retries: AtomicU64,
    /// Objects that were packed anew for the few blocks that were left of them.
    pub repacked: AtomicU64,
    /// Objects that were recompressed.
    pub recompressed: AtomicU64,
}

impl Counters {
    /// Counts entries that have changed.
    pub fn apply(&self, tally: Tally) {
        let pairs = [
            (&self.stored_pages, tally.stored),
            (&self.same_pages, tally.same),
            (&self.huge_pages, tally.huge),
        ];
        for (counter, change) in pairs.into_iter().filter(|(_, change)| *change != 0) {
            // A sum that wraps around twice is right again.
            counter.fetch_add(change as u64, Relaxed);
        }
    }
}
