//! What is done by itself: blocks that nobody wants get denser with age, and colder ones leave RAM.

use super::{Disk, Recompress, Which};
use crate::error::Error;
use crate::group::Group;
use crate::scratch::Scratch;
use std::sync::atomic::Ordering::Relaxed;
use zsmalloc::Backing;

/// Groups that are looked at for each block that may be worked on: a look costs little.
const LOOKS: u64 = 16;

/// Compaction goes on while this part of the pool, and a MiB, has no object: what zsmalloc recommends.
const IDLE_PART: usize = 20;

/// Bytes that one tick moves at most.
const COMPACT_BYTES: usize = 1 << 20;

/// Where the next tick goes on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    group: u64,
}

impl<B: Backing> Disk<B> {
    /// Goes on through the groups for so many blocks as a tick may work on, and compacts the pool where that gains
    /// something.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`] for a compressor.
    pub fn tick(&self, scratch: &mut Scratch, cursor: &mut Cursor) -> Result<(), Error> {
        let (stored, held) = (self.pool.stored_bytes(), self.pool.pool_bytes());
        if held > stored + stored / IDLE_PART + COMPACT_BYTES {
            self.compact(COMPACT_BYTES);
        }
        let most = self.tunables.auto_max_pages.load(Relaxed);
        let denser_s = self.tunables.auto_recompress_s.load(Relaxed);
        let away_s = self.tunables.auto_writeback_s.load(Relaxed);
        if (denser_s == 0 && away_s == 0) || most == 0 {
            return Ok(());
        }
        let (mut left, mut looks) = (most, most.saturating_mul(LOOKS));
        let mut is_refused = false;
        for (number, lock) in self.table.iter_from(cursor.group) {
            cursor.group = number;
            if left == 0 || looks == 0 || self.is_stopped() {
                return Ok(());
            }
            looks -= 1;
            if away_s > 0 && !is_refused && self.tunables.writeback_budget() > 0 {
                let choose = |group: &Group| self.older(group, Some(away_s));
                match self.write_back_group(scratch, (number, lock), &choose, left) {
                    Ok(slots) => left = left.saturating_sub(slots),
                    // The backing device is full, or refuses: the rest of the tick is for the pool.
                    Err(Error::BackingFull(_) | Error::Path { .. } | Error::Busy(_)) => {
                        (is_refused, left) = (true, left.min(most / 2));
                    }
                    Err(error) => return Err(error),
                }
            }
            if denser_s > 0 && left > 0 {
                let how =
                    Recompress { which: Which::Idle, threshold_bytes: 0, max_pages: left, priority: None };
                let choose = |group: &Group| self.older(group, Some(denser_s));
                left -= self.recompress_group(scratch, (number, lock), &choose, &how, left)?.min(left);
            }
        }
        cursor.group = 0;
        Ok(())
    }
}
