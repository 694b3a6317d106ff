//! Which ranges of a disk hold data.

use super::Disk;
use crate::BLOCK;
use crate::error::Error;
use crate::extent::{Content, Extent};
use crate::group::{BLOCKS, Entry, GROUP};
use crate::request::expect_within;
use crate::table::shared;
use zsmalloc::Backing;

/// Extents of a range so far.
struct Extents {
    all: Vec<Extent>,
    most: usize,
    at: u64,
    end: u64,
}

impl Extents {
    /// Goes on to `end` with this content; false when there is room for no more.
    fn push(&mut self, end: u64, content: Content) -> bool {
        let len_bytes = end.min(self.end).saturating_sub(self.at);
        if len_bytes == 0 {
            return true;
        }
        let count = self.all.len();
        match self.all.last_mut() {
            Some(last) if last.content == content => last.len_bytes += len_bytes,
            _ if count == self.most => return false,
            _ => self.all.push(Extent { offset: self.at, len_bytes, content }),
        }
        self.at += len_bytes;
        true
    }
}

impl<B: Backing> Disk<B> {
    /// What a range holds, at most so many extents from its beginning on.
    ///
    /// # Errors
    ///
    /// [`Error::Outside`].
    pub fn extents(&self, offset: u64, len_bytes: u64, most: usize) -> Result<Vec<Extent>, Error> {
        expect_within(offset, len_bytes, self.disksize_bytes)?;
        let mut extents = Extents { all: Vec::new(), most, at: offset, end: offset + len_bytes };
        for (number, group) in self.table.iter_from(offset / GROUP as u64) {
            let base = number * GROUP as u64;
            if base >= extents.end || !extents.push(base, Content::Hole) {
                break;
            }
            let group = shared(group);
            let is_all = (0..BLOCKS).all(|block| {
                let content = match group.entries()[block] {
                    Entry::Hole => Content::Hole,
                    Entry::Same(0) => Content::Zero,
                    Entry::Same(_) | Entry::Stored { .. } | Entry::Written { .. } => Content::Data,
                };
                extents.push(base + ((block + 1) * BLOCK) as u64, content)
            });
            if !is_all {
                return Ok(extents.all);
            }
        }
        extents.push(extents.end, Content::Hole);
        Ok(extents.all)
    }
}
