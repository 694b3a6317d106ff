//! Objects into the pool, and entries into a group.

use super::Disk;
use crate::error::Error;
use crate::group::{BLOCKS, Entry, Group, Made, Tally};
use base::PageMask;
use std::sync::atomic::Ordering::Relaxed;
use zsmalloc::{Backing, Handle};
use zswap::{New, Packed};

/// An object is packed anew when so many times the blocks that are left of it are its pages or fewer.
const SPARSE: usize = 4;

/// What is to be done after entries were replaced, and their group is unlocked.
#[must_use = "objects without blocks are freed"]
pub struct Replaced {
    /// Objects that no block refers to any more.
    unreferred: [Option<Entry>; BLOCKS],
    /// Blocks of objects of which little is left.
    pub sparse: PageMask,
}

impl<B: Backing> Disk<B> {
    /// Puts the objects of a window into the pool, each of `unit` pages at most: the entries of their blocks. The other
    /// entries are holes.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`]; then the pool has none of them.
    pub(super) fn store(
        &self,
        packed: &Packed,
        parcel: &[u8],
        unit: usize,
        priority: u8,
    ) -> Result<[Entry; BLOCKS], Error> {
        let mut entries = [Entry::Hole; BLOCKS];
        let mut blocks = packed.in_objects.iter();
        let mut rest = parcel;
        for new in packed.objects.iter().flatten() {
            match *new {
                New::Same(word) => {
                    blocks.by_ref().take(unit).for_each(|block| entries[block] = Entry::Same(word))
                }
                New::Blob { bytes, compressed, .. } => {
                    let (object, behind) = rest.split_at(bytes as usize);
                    rest = behind;
                    let Some(handle) = self.put(object) else {
                        self.drop_stored(&entries);
                        return Err(Error::NoSpace);
                    };
                    let made = Made { priority, is_huge: !compressed, is_incompressible: false };
                    for (page, block) in blocks.by_ref().take(unit).enumerate() {
                        entries[block] = Entry::Stored { handle, page: page as u8, made };
                    }
                }
            }
        }
        packed.zero.iter().for_each(|block| entries[block] = Entry::Same(0));
        Ok(entries)
    }

    /// Refuses objects that were just put into the pool where `mem_limit` is passed; then the pool has none of them.
    /// This is for writes alone: objects can be made denser at the limit, too.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`].
    pub(super) fn expect_within_limit(&self, entries: &[Entry; BLOCKS]) -> Result<(), Error> {
        if entries.iter().any(Entry::is_stored) && self.tunables.is_over(self.pool.pool_bytes()) {
            self.drop_stored(entries);
            return Err(Error::NoSpace);
        }
        self.note_used();
        Ok(())
    }

    /// Notes the most that the pool has come to.
    pub(super) fn note_used(&self) {
        let used = self.pool.pool_bytes();
        if self.counters.mem_used_max_bytes.load(Relaxed) < used as u64 {
            self.counters.mem_used_max_bytes.fetch_max(used as u64, Relaxed);
        }
    }

    /// Puts an object into the pool.
    pub(super) fn put(&self, object: &[u8]) -> Option<Handle> {
        let handle = self.pool.alloc(object.len())?;
        self.pool.write(handle, |place| place.copy_from_slice(object));
        Some(handle)
    }

    /// Frees objects that no group has been told of.
    pub(super) fn drop_stored(&self, entries: &[Entry; BLOCKS]) {
        let mut last = Entry::Hole;
        for entry in entries.iter().filter(|entry| entry.is_stored()) {
            if !entry.shares(&last) {
                self.free(entry);
            }
            last = *entry;
        }
    }

    /// Replaces entries of a group.
    pub(super) fn replace(&self, group: &mut Group, blocks: PageMask, entries: &[Entry; BLOCKS]) -> Replaced {
        let mut replaced = Replaced { unreferred: [None; BLOCKS], sparse: PageMask::NONE };
        let mut tally = Tally::default();
        let before = *group.entries();
        for block in blocks.iter() {
            replaced.unreferred[block] = group.replace(block, entries[block], &mut tally);
        }
        self.counters.apply(tally);
        for block in blocks.iter().filter(|block| before[*block].is_stored()) {
            let left = group.sharers(&before[block]);
            if !left.is_empty()
                && (replaced.sparse & left).is_empty()
                && self.is_sparse(&before[block], left.count())
            {
                replaced.sparse |= left;
            }
        }
        replaced
    }

    /// True if `left` blocks are too few for an object.
    fn is_sparse(&self, entry: &Entry, left: usize) -> bool {
        let Entry::Stored { handle, .. } = *entry else { return false };
        let pages = self.pool.read(handle).first().copied().unwrap_or(0);
        left * SPARSE <= pages as usize
    }

    /// Frees what is left without blocks. The group need not be locked: nobody else knows the objects. Whoever reads
    /// one holds the lock shared all the while, and so has gone before the entries were replaced.
    pub(super) fn free_unreferred(&self, replaced: &Replaced) {
        replaced.unreferred.iter().flatten().for_each(|entry| self.free(entry));
    }

    fn free(&self, entry: &Entry) {
        match *entry {
            Entry::Stored { handle, .. } => self.pool.free(handle),
            Entry::Written { id, .. } => {
                if let Some(backing) = &self.backing {
                    backing.release(id);
                }
            }
            Entry::Hole | Entry::Same(_) => {}
        }
    }
}
