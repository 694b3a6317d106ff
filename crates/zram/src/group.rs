//! What is known of 16 blocks: where the contents of each are.
//!
//! Invariants, which [`Disk::check`](crate::disk::Disk::check) recomputes:
//! - an object, in the pool or in the backing device, is referred to by blocks of one group alone
//! - no two blocks refer to the same page of an object
//! - an object that no block refers to is freed
//!
//! So nobody counts references: who drops one looks at the other 15 entries.

use base::PageMask;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed};
use zsmalloc::Handle;

/// Blocks of a group.
pub const BLOCKS: usize = zswap::WINDOW_PAGES;

/// Bytes of a group.
pub const GROUP: usize = BLOCKS * crate::BLOCK;

/// How an object was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Which of the device's algorithms has made the object, and reads it: 0 is the primary one.
    pub priority: u8,
    /// The object holds its pages as they are, because they did not shrink.
    pub is_huge: bool,
    /// No algorithm has made it smaller.
    pub is_incompressible: bool,
}

/// Where the contents of a block are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Entry {
    /// Nowhere: the block reads as zeros.
    #[default]
    Hole,
    /// This word fills the block.
    Same(u64),
    /// In the pool.
    Stored {
        /// The object.
        handle: Handle,
        /// Which of its pages.
        page: u8,
        /// How it was made.
        made: Made,
    },
    /// In the backing device.
    Written {
        /// The object's number there.
        id: u32,
        /// Which of its pages.
        page: u8,
        /// How it was made.
        made: Made,
    },
}

const _: () = assert!(size_of::<Entry>() == 16);

impl Entry {
    /// How its object was made, if it has one.
    pub fn made(&self) -> Option<Made> {
        match self {
            Entry::Stored { made, .. } | Entry::Written { made, .. } => Some(*made),
            Entry::Hole | Entry::Same(_) => None,
        }
    }

    /// Which page of its object, if it has one.
    pub fn page(&self) -> Option<usize> {
        match self {
            Entry::Stored { page, .. } | Entry::Written { page, .. } => Some(*page as usize),
            Entry::Hole | Entry::Same(_) => None,
        }
    }

    /// True for a block whose contents are in the pool.
    pub fn is_stored(&self) -> bool {
        matches!(self, Entry::Stored { .. })
    }

    /// True if both refer to the same object.
    pub fn shares(&self, other: &Entry) -> bool {
        match (self, other) {
            (Entry::Stored { handle, .. }, Entry::Stored { handle: of, .. }) => handle == of,
            (Entry::Written { id, .. }, Entry::Written { id: of, .. }) => id == of,
            _ => false,
        }
    }
}

/// How the numbers of blocks change with entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Blocks that are no holes.
    pub stored: i64,
    /// Blocks that one word fills.
    pub same: i64,
    /// Blocks of objects that did not shrink.
    pub huge: i64,
}

impl Tally {
    /// Counts an entry so many times.
    pub fn count(&mut self, entry: &Entry, times: i64) {
        match entry {
            Entry::Hole => return,
            Entry::Same(_) => self.same += times,
            Entry::Stored { made, .. } | Entry::Written { made, .. } => {
                self.huge += if made.is_huge { times } else { 0 };
            }
        }
        self.stored += times;
    }
}

/// 16 blocks. It lies behind a lock, which readers share.
#[derive(Debug, Default)]
pub struct Group {
    entries: [Entry; BLOCKS],
    /// Another one after each change of an entry.
    version: u32,
    /// When a request came last, in seconds of the device's time.
    accessed_s: [AtomicU32; BLOCKS],
    /// Blocks that are marked idle.
    idle: AtomicU16,
    /// Blocks of which the log has been told that they cannot be read.
    told: AtomicU16,
}

impl Group {
    /// All entries.
    pub fn entries(&self) -> &[Entry; BLOCKS] {
        &self.entries
    }

    /// Another number after each change of an entry.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The blocks that refer to the same object as this one does; none where it has none.
    pub fn sharers(&self, of: &Entry) -> PageMask {
        self.having(|entry| entry.shares(of))
    }

    /// The blocks whose entries are so.
    pub fn having(&self, is_so: impl Fn(&Entry) -> bool) -> PageMask {
        (0..BLOCKS).filter(|block| is_so(&self.entries[*block])).collect()
    }

    /// Puts an entry in the place of another, which is returned if its object is left without blocks.
    #[must_use = "an object without blocks is freed"]
    pub fn replace(&mut self, block: usize, entry: Entry, tally: &mut Tally) -> Option<Entry> {
        let old = std::mem::replace(&mut self.entries[block], entry);
        tally.count(&old, -1);
        tally.count(&entry, 1);
        self.version = self.version.wrapping_add(1);
        *self.told.get_mut() &= !(1 << block);
        (old.page().is_some() && self.sharers(&old).is_empty()).then_some(old)
    }

    /// Notes that no algorithm has made these blocks smaller. Nothing else of them changes, so the version stays.
    /// That is safe because whoever compares versions reads the entries anew under the lock, as writeback does.
    pub fn mark_incompressible(&mut self, blocks: PageMask) {
        for block in blocks.iter() {
            if let Entry::Stored { made, .. } | Entry::Written { made, .. } = &mut self.entries[block] {
                made.is_incompressible = true;
            }
        }
    }

    /// Notes that a request came for these blocks: they are not idle. Nothing is written where nothing changes, so that
    /// readers keep the memory in common.
    pub fn touch(&self, blocks: PageMask, now_s: u32) {
        for block in blocks.iter() {
            if self.accessed_s[block].load(Relaxed) != now_s {
                self.accessed_s[block].store(now_s, Relaxed);
            }
        }
        if !(self.idle() & blocks).is_empty() {
            self.idle.fetch_and(!blocks.to_u16(), Relaxed);
        }
    }

    /// When a request came last for a block, in seconds of the device's time.
    pub fn accessed_s(&self, block: usize) -> u32 {
        self.accessed_s[block].load(Relaxed)
    }

    /// The blocks that are marked idle.
    pub fn idle(&self) -> PageMask {
        PageMask::from(self.idle.load(Relaxed))
    }

    /// Marks these blocks idle, and all others not.
    pub fn set_idle(&self, blocks: PageMask) {
        self.idle.store(blocks.to_u16(), Relaxed);
    }

    /// Takes the mark from these blocks.
    pub fn clear_idle(&self, blocks: PageMask) {
        self.idle.fetch_and(!blocks.to_u16(), Relaxed);
    }

    /// Notes that a block cannot be read: true the first time, until its entry changes.
    pub fn is_news(&self, block: usize) -> bool {
        self.told.fetch_or(1 << block, Relaxed) & 1 << block == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_block_of_an_object_returns_it() {
        let (mut group, mut tally) = (Group::default(), Tally::default());
        let handle = Handle::from_raw(7).unwrap();
        let of = |page| Entry::Stored { handle, page, made: Made { is_huge: true, ..Made::default() } };
        for block in 0..3 {
            assert_eq!(group.replace(block, of(block as u8), &mut tally), None);
        }
        assert_eq!(tally, Tally { stored: 3, same: 0, huge: 3 });
        assert_eq!(group.replace(1, Entry::Same(5), &mut tally), None);
        assert_eq!(group.replace(0, Entry::Hole, &mut tally), None);
        assert_eq!(group.sharers(&of(0)), PageMask::page(2));
        assert_eq!(group.replace(2, Entry::Same(0), &mut tally), Some(of(2)));
        assert_eq!(tally, Tally { stored: 2, same: 2, huge: 0 });
        assert_eq!(group.version(), 6);
    }

    #[test]
    fn a_request_ends_idleness_and_a_change_ends_what_was_told() {
        let mut group = Group::default();
        group.set_idle(PageMask::first(4));
        group.touch(PageMask::range(1..3), 9);
        assert_eq!(group.idle().iter().collect::<Vec<_>>(), [0, 3]);
        assert_eq!((group.accessed_s(0), group.accessed_s(1)), (0, 9));
        assert_eq!([group.is_news(3), group.is_news(3), group.is_news(4)], [true, false, true]);
        let _ = group.replace(3, Entry::Same(1), &mut Tally::default());
        assert_eq!([group.is_news(3), group.is_news(4)], [true, false]);
    }
}
