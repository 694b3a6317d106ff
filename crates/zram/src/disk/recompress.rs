//! Recompression: objects that somebody names, by denser algorithms.
//!
//! Beyond the kernel's: blocks of a group that are idle together, and did shrink, become one object.

use super::repack::{Repacked, Set};
use super::{Disk, Which};
use crate::error::Error;
use crate::group::{Entry, Group};
use crate::scratch::Scratch;
use crate::table::{alone, shared};
use base::PageMask;
use std::sync::RwLock;
use std::sync::atomic::Ordering::Relaxed;
use zsmalloc::Backing;

/// What is to be recompressed, and by what.
#[derive(Clone, Copy, Debug)]
pub struct Recompress {
    /// Which blocks.
    pub which: Which,
    /// Only objects of so many bytes a block at least.
    pub threshold_bytes: usize,
    /// So many blocks. An object that has been begun with is finished, and so up to 15 more.
    pub max_pages: u64,
    /// By the algorithm of this priority alone.
    pub priority: Option<usize>,
}

impl<B: Backing> Disk<B> {
    /// Recompresses. What does not become smaller by any algorithm is marked incompressible, and left alone from then
    /// on.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`] for a compressor; [`Error::NotInitialised`] if the device is reset meanwhile.
    pub fn recompress(&self, scratch: &mut Scratch, how: &Recompress) -> Result<(), Error> {
        let mut left = how.max_pages;
        for (number, group) in self.table.iter_from(0) {
            if left == 0 {
                break;
            }
            if self.is_stopped() {
                return Err(Error::NotInitialised);
            }
            let choose = |group: &Group| self.chosen(group, how.which);
            let tried = self.recompress_group(scratch, (number, group), &choose, how, left)?;
            left = left.saturating_sub(tried);
        }
        Ok(())
    }

    /// Recompresses what is chosen of a group, until it was so many blocks: how many it has tried.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`] for a compressor.
    pub(super) fn recompress_group(
        &self,
        scratch: &mut Scratch,
        (number, lock): (u64, &RwLock<Group>),
        choose: &dyn Fn(&Group) -> PageMask,
        how: &Recompress,
        most: u64,
    ) -> Result<u64, Error> {
        let (mut tried, mut seen) = (0, PageMask::NONE);
        while tried < most {
            let found = {
                let group = shared(lock);
                self.next_set(&group, number, choose(&group) - seen, how)
            };
            let Some((set, bytes)) = found else { break };
            tried += set.blocks.count() as u64;
            seen |= set.blocks;
            self.recompress_set(scratch, lock, &set, bytes, how)?;
            shared(lock).clear_idle(set.blocks);
        }
        Ok(tried)
    }

    /// The next blocks of those chosen that are to become one object, and the bytes that they have.
    fn next_set(
        &self,
        group: &Group,
        number: u64,
        chosen: PageMask,
        how: &Recompress,
    ) -> Option<(Set, usize)> {
        let mut together = PageMask::NONE;
        let mut left = chosen;
        while let Some(block) = left.lowest() {
            let entry = group.entries()[block];
            let sharers = group.sharers(&entry);
            left -= sharers | PageMask::page(block);
            let bytes = self.set_bytes(group, sharers);
            let is_wanted = chosen.covers(sharers)
                && bytes >= how.threshold_bytes * sharers.count()
                && self.priorities(&entry, how).next().is_some();
            if !is_wanted {
                continue;
            }
            if how.which != Which::Idle || entry.made().is_some_and(|made| made.is_huge) {
                let set = Set { group: number, blocks: sharers, entries: *group.entries() };
                return Some((set, bytes));
            }
            together |= sharers;
        }
        let set = Set { group: number, blocks: together, entries: *group.entries() };
        (!together.is_empty()).then(|| (set, self.set_bytes(group, together)))
    }

    /// The algorithms that may make an object smaller: those behind its own.
    fn priorities(&self, entry: &Entry, how: &Recompress) -> impl Iterator<Item = u8> {
        let made = entry.made().unwrap_or_default();
        let only = how.priority;
        let all = self.settings.secondary().map(|(priority, _)| priority);
        all.filter(move |priority| {
            !made.is_incompressible
                && *priority > made.priority as usize
                && only.is_none_or(|only| only == *priority)
        })
        .map(|priority| priority as u8)
    }

    fn recompress_set(
        &self,
        scratch: &mut Scratch,
        lock: &RwLock<Group>,
        set: &Set,
        bytes: usize,
        how: &Recompress,
    ) -> Result<(), Error> {
        let densest = self.settings.secondary().map(|(priority, _)| priority).max();
        let own = set.blocks.iter().filter_map(|block| set.entries[block].made());
        let highest = own.map(|made| made.priority).max().unwrap_or(0);
        let mut last = None;
        for (priority, _) in self.settings.secondary() {
            let is_wanted = how.priority.is_none_or(|only| only == priority);
            if !is_wanted || priority <= highest as usize {
                continue;
            }
            match self.repack(scratch, set, priority as u8, bytes)? {
                Repacked::Done => {
                    self.counters.recompressed.fetch_add(1, Relaxed);
                    return Ok(());
                }
                Repacked::Left => return Ok(()),
                Repacked::NotSmaller => last = Some(priority),
            }
        }
        if last.is_some() && last == densest {
            let mut group = alone(lock);
            if set.holds(&group) {
                group.mark_incompressible(set.blocks);
            }
        }
        Ok(())
    }
}
