//! A device that has a disksize: its blocks, and all that is done to them.
//!
//! Lock order: a group, then a class of the pool or the slots of the backing device. Nobody holds two groups.
//!
//! - `read`: blocks out of objects
//! - `write`: bytes to objects; discard
//! - `store`: objects into the pool, entries into a group
//! - `repack`: blocks of a group as other objects
//! - `idle`, `recompress`, `writeback`, `auto`: what users ask for, and what is done by itself
//! - `extents`: which ranges hold data; `block_state`: the same in the kernel's words
//! - `save`, `load`: all of it as a file, and from one; `check`: the walker

use crate::accelerator::Accelerator;
use crate::backing::BackingDevice;
use crate::error::Error;
use crate::group::{BLOCKS, Entry, GROUP};
use crate::log::Log;
use crate::scratch::Scratch;
use crate::settings::Settings;
use crate::stats::{Counters, Stats};
use crate::table::{Table, alone};
use crate::tunables::Tunables;
use base::PageMask;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use zsmalloc::{Backing, Pool};

mod auto;
mod block_state;
mod check;
mod extents;
mod idle;
mod load;
mod read;
mod recompress;
mod repack;
mod save;
mod store;
mod write;
mod writeback;

pub use auto::Cursor;
pub use load::read_header;
pub use recompress::Recompress;
pub use writeback::Writeback;

/// Which blocks a command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All of them.
    All,
    /// Those that are marked idle.
    Idle,
    /// Those that did not shrink.
    Huge,
    /// Those that are both.
    HugeIdle,
    /// Those that no algorithm has made smaller.
    Incompressible,
}

/// A device that has a disksize.
pub struct Disk<B: Backing> {
    disksize_bytes: u64,
    /// The hashes of pages are keyed with it.
    seed: u64,
    settings: Settings,
    tunables: Arc<Tunables>,
    counters: Counters,
    table: Table,
    pool: Pool<B>,
    backing: Option<BackingDevice>,
    log: Log,
    accelerator: Arc<Accelerator>,
    /// True when the device is reset: long work ends at the next group.
    is_stopped: AtomicBool,
}

impl<B: Backing> Disk<B> {
    /// A disk of holes. `memory` is where its pool takes memory from.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`] for its table.
    pub fn new(
        (disksize_bytes, seed): (u64, u64),
        settings: Settings,
        tunables: Arc<Tunables>,
        memory: B,
        log: Log,
        accelerator: Arc<Accelerator>,
    ) -> Result<Disk<B>, Error> {
        Ok(Disk {
            disksize_bytes,
            seed,
            settings,
            tunables,
            counters: Counters::default(),
            table: Table::new(disksize_bytes.div_ceil(GROUP as u64))?,
            pool: Pool::new(memory),
            backing: None,
            log,
            accelerator,
            is_stopped: AtomicBool::new(false),
        })
    }

    /// The same with a backing device.
    pub fn with_backing(self, backing: Option<BackingDevice>) -> Disk<B> {
        Disk { backing, ..self }
    }

    /// Gives the disk up, but for its backing device.
    pub fn into_backing(self) -> Option<BackingDevice> {
        self.backing
    }

    /// Its size in bytes.
    pub fn disksize_bytes(&self) -> u64 {
        self.disksize_bytes
    }

    /// What a thread needs to serve it.
    pub fn scratch(&self) -> Scratch {
        Scratch::new(self.seed, self.accelerator.clone())
    }

    /// The backing device, if it has one.
    pub fn backing(&self) -> Option<&BackingDevice> {
        self.backing.as_ref()
    }

    /// Its counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Bytes of the table of its blocks.
    pub fn table_bytes(&self) -> usize {
        self.table.bytes()
    }

    /// Its figures.
    pub fn stats(&self) -> Stats {
        let Counters { stored_pages, same_pages, huge_pages, huge_pages_since, .. } = &self.counters;
        let of = &self.counters;
        let of_backing = |read: fn(&BackingDevice) -> u64| self.backing.as_ref().map_or(0, read);
        Stats {
            disksize_bytes: self.disksize_bytes,
            orig_data_bytes: stored_pages.load(Relaxed) * crate::BLOCK as u64,
            compr_data_bytes: self.pool.stored_bytes() as u64,
            mem_used_bytes: self.pool.pool_bytes() as u64,
            mem_limit_bytes: self.tunables.mem_limit_bytes.load(Relaxed),
            mem_used_max_bytes: of.mem_used_max_bytes.load(Relaxed).max(self.pool.pool_bytes() as u64),
            same_pages: same_pages.load(Relaxed),
            pages_compacted: of.pages_compacted.load(Relaxed),
            huge_pages: huge_pages.load(Relaxed),
            huge_pages_since: huge_pages_since.load(Relaxed),
            failed_reads: of.failed_reads.load(Relaxed),
            failed_writes: of.failed_writes.load(Relaxed),
            invalid_io: of.invalid_io.load(Relaxed),
            notify_free: of.notify_free.load(Relaxed),
            bd_count: of_backing(|backing| backing.used_slots() as u64),
            bd_reads: of_backing(|backing| backing.reads.load(Relaxed)),
            bd_writes: of_backing(|backing| backing.writes.load(Relaxed)),
            damaged_blocks: of.damaged_blocks.load(Relaxed),
            refused_writes: of.refused_writes.load(Relaxed),
        }
    }

    /// Forgets the most that the pool has come to.
    pub fn reset_mem_used_max(&self) {
        self.counters.mem_used_max_bytes.store(self.pool.pool_bytes() as u64, Relaxed);
    }

    /// Moves objects together, up to so many bytes of them, and gives memory back.
    pub fn compact(&self, budget_bytes: usize) {
        let freed = self.pool.compact(budget_bytes).bytes_freed / crate::BLOCK;
        self.counters.pages_compacted.fetch_add(freed as u64, Relaxed);
    }

    /// Has recompression and writeback end soon.
    pub fn stop(&self) {
        self.is_stopped.store(true, Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Relaxed)
    }

    /// Makes all blocks holes, gives the memory of the pool back, and closes the backing device. No command may be
    /// under way.
    pub fn clear(&self) {
        for (_, group) in self.table.iter_from(0) {
            let replaced = self.replace(&mut alone(group), PageMask::first(BLOCKS), &[Entry::Hole; BLOCKS]);
            self.free_unreferred(&replaced);
        }
        self.pool.compact(usize::MAX);
        self.close_backing();
    }

    /// Closes the backing device, if there is one.
    pub fn close_backing(&self) {
        self.backing.iter().for_each(BackingDevice::close);
    }

    /// The number of a block of a group.
    fn block_number(group: u64, block: usize) -> u64 {
        group * BLOCKS as u64 + block as u64
    }

    /// How many blocks of a group are within the disk.
    fn blocks_of(&self, group: u64) -> usize {
        let blocks = self.disksize_bytes.div_ceil(crate::BLOCK as u64);
        (blocks - group * BLOCKS as u64).min(BLOCKS as u64) as usize
    }

    /// Flips a bit of the object of a block, if it has one in the pool; `at` says which.
    #[cfg(test)]
    pub fn damage(&self, block: u64, at: usize) -> bool {
        let Some(lock) = self.table.get(block / BLOCKS as u64) else { return false };
        let entry = alone(lock).entries()[(block % BLOCKS as u64) as usize];
        let Entry::Stored { handle, .. } = entry else { return false };
        self.pool.write(handle, |object| {
            // Behind what the walker looks at.
            let bits = (object.len() - 8) * 8;
            object[8 + at % bits / 8] ^= 1 << (at % 8);
        });
        true
    }
}
