//! Blocks of a group as other objects: denser, or in fewer bytes because others have left.

use super::Disk;
use crate::BLOCK;
use crate::error::Error;
use crate::group::{BLOCKS, Entry, GROUP, Group};
use crate::scratch::Scratch;
use crate::table::{alone, shared};
use base::PageMask;
use std::sync::atomic::Ordering::Relaxed;
use zsmalloc::Backing;
use zswap::{New, PARCEL_MAX_BYTES, Packed, Priors};

/// Blocks of a group that are to become one object.
#[derive(Clone, Copy, Debug)]
pub struct Set {
    /// The group.
    pub group: u64,
    /// The blocks, all of which are in the pool.
    pub blocks: PageMask,
    /// The entries of the group when the blocks were chosen.
    pub entries: [Entry; BLOCKS],
}

impl Set {
    /// True while the blocks are where they were.
    pub fn holds(&self, group: &Group) -> bool {
        self.blocks.iter().all(|block| {
            let (now, then) = (&group.entries()[block], &self.entries[block]);
            now.is_stored() && now.shares(then) && now.page() == then.page()
        })
    }
}

/// What became of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repacked {
    /// It is one object.
    Done,
    /// It would not have become smaller than was asked for.
    NotSmaller,
    /// The group has changed meanwhile, or the pool has no memory, or a block cannot be read: all is as it was.
    Left,
}

impl<B: Backing> Disk<B> {
    /// Packs each object of which little is left anew, for the blocks that are left. Where it cannot, all stays as it
    /// is: the request that has left little of it is done.
    pub(super) fn repack_sparse(&self, scratch: &mut Scratch, number: u64, blocks: PageMask) {
        let mut left = blocks;
        while let Some(block) = left.lowest() {
            let Some(lock) = self.table.get(number) else { return };
            let (entries, blocks) = {
                let group = shared(lock);
                let entry = group.entries()[block];
                (*group.entries(), group.sharers(&entry) | PageMask::page(block))
            };
            left -= blocks;
            let Entry::Stored { handle: _, made, .. } = entries[block] else { continue };
            let set = Set { group: number, blocks, entries };
            if let Ok(Repacked::Done) = self.repack(scratch, &set, made.priority, usize::MAX) {
                self.counters.repacked.fetch_add(1, Relaxed);
            }
        }
    }

    /// Makes one object of a set, by the algorithm of a priority, if it has fewer bytes than `below_bytes`.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`] for a compressor.
    pub(super) fn repack(
        &self,
        scratch: &mut Scratch,
        set: &Set,
        priority: u8,
        below_bytes: usize,
    ) -> Result<Repacked, Error> {
        let Some(lock) = self.table.get(set.group) else { return Ok(Repacked::Left) };
        let Scratch { codecs, windows, parcels, .. } = scratch;
        let (window, parcel) = (&mut windows[..GROUP], &mut parcels[..PARCEL_MAX_BYTES]);
        let version = {
            let group = shared(lock);
            let is_loaded = set.holds(&group)
                && set.blocks.runs().all(|run| {
                    let to = &mut window[run.start * BLOCK..run.end * BLOCK];
                    self.load(codecs, (&group, set.group), run.start, to).is_ok()
                });
            if !is_loaded {
                return Ok(Repacked::Left);
            }
            group.version()
        };
        let codec = codecs.codec(priority, &self.settings)?;
        let packed = codec.pack_one(window, set.blocks, BLOCKS, &Priors::default(), false, parcel);
        if bytes_of(&packed) >= below_bytes {
            return Ok(Repacked::NotSmaller);
        }
        let Ok(entries) = self.store(&packed, parcel, BLOCKS, priority) else { return Ok(Repacked::Left) };
        self.note_used();
        let mut group = alone(lock);
        if group.version() != version {
            drop(group);
            self.drop_stored(&entries);
            return Ok(Repacked::Left);
        }
        let replaced = self.replace(&mut group, set.blocks, &entries);
        drop(group);
        self.free_unreferred(&replaced);
        Ok(Repacked::Done)
    }

    /// Bytes of objects in the pool, given all blocks of each.
    pub(super) fn set_bytes(&self, group: &Group, blocks: PageMask) -> usize {
        let object_at = |block: usize| match group.entries()[block] {
            entry @ Entry::Stored { handle, .. } if group.sharers(&entry).lowest() == Some(block) => {
                self.pool.len(handle)
            }
            _ => 0,
        };
        blocks.iter().map(object_at).sum()
    }
}

/// Bytes of new objects.
fn bytes_of(packed: &Packed) -> usize {
    let bytes = |new: &New| if let New::Blob { bytes, .. } = new { *bytes as usize } else { 0 };
    packed.objects.iter().flatten().map(bytes).sum()
}
