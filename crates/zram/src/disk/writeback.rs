//! Writeback: what is seldom wanted goes to the backing device.
//!
//! ```text
//!   lock shared ── choose, copy out, version ── unlock ── seal, write ── lock ── still that version? ── replace entries
//! ```
//!
//! Until it is written an object stays in the pool, and if that fails it stays there. Pages go as they are, one a slot;
//! with `compressed_writeback` an object goes whole, in as many slots as its bytes need, if all of its blocks go.

use super::{Disk, Which};
use crate::BLOCK;
use crate::backing::{BackingDevice, Form, Outgoing};
use crate::error::Error;
use crate::group::{BLOCKS, Entry, Group};
use crate::scratch::Scratch;
use crate::table::{alone, shared};
use base::PageMask;
use std::ops::RangeInclusive;
use std::sync::RwLock;
use std::sync::atomic::Ordering::Relaxed;
use zsmalloc::Backing;

/// What is to be written back.
#[derive(Clone, Debug)]
pub enum Writeback {
    /// Blocks of a kind.
    Kind(Which),
    /// These blocks.
    Pages(Vec<RangeInclusive<u64>>),
}

/// An object on its way out.
#[derive(Clone, Copy)]
struct Item {
    blocks: PageMask,
    bytes: usize,
    form: Form,
}

impl<B: Backing> Disk<B> {
    /// Writes blocks back, as far as `writeback_limit` allows.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] if the limit is used up; [`Error::BackingFull`]; [`Error::Path`] if it
    /// refuses. What was not written stays in the pool. [`Error::Invalid`]: there is no backing device;
    /// [`Error::NotInitialised`]: the device is reset meanwhile.
    pub fn write_back(&self, scratch: &mut Scratch, what: &Writeback) -> Result<(), Error> {
        if self.backing.is_none() {
            let why = "the device has no backing_dev, which is set before its disksize".to_string();
            return Err(Error::Invalid { attribute: "writeback".to_string(), why });
        }
        match what {
            Writeback::Kind(which) => self.table.iter_from(0).try_for_each(|of| {
                self.write_back_group(scratch, of, &|group| self.chosen(group, *which), u64::MAX).map(drop)
            }),
            Writeback::Pages(ranges) => {
                for range in ranges {
                    let (first, last) = (*range.start(), *range.end());
                    let groups = self.table.iter_from(first / BLOCKS as u64);
                    for (number, group) in groups.take_while(|of| of.0 <= last / BLOCKS as u64) {
                        let base = number * BLOCKS as u64;
                        let within = first.saturating_sub(base) as usize
                            ..(last - base).min(BLOCKS as u64 - 1) as usize + 1;
                        let choose =
                            |group: &Group| self.chosen(group, Which::All) & PageMask::range(within.clone());
                        self.write_back_group(scratch, (number, group), &choose, u64::MAX)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Writes chosen blocks of a group back, at most so many slots: how many it was.
    ///
    /// # Errors
    ///
    /// As for [`Disk::write_back`].
    pub(super) fn write_back_group(
        &self,
        scratch: &mut Scratch,
        (number, lock): (u64, &RwLock<Group>),
        choose: &dyn Fn(&Group) -> PageMask,
        most: u64,
    ) -> Result<u64, Error> {
        let mut sparse = PageMask::NONE;
        let written = self.write_back_chosen(scratch, (number, lock), choose, most, &mut sparse);
        self.repack_sparse(scratch, number, sparse);
        written
    }

    /// The same, without packing anew: `sparse` gets the blocks of objects of which little is left.
    fn write_back_chosen(
        &self,
        scratch: &mut Scratch,
        (number, lock): (u64, &RwLock<Group>),
        choose: &dyn Fn(&Group) -> PageMask,
        most: u64,
        sparse: &mut PageMask,
    ) -> Result<u64, Error> {
        let Some(backing) = &self.backing else { return Ok(0) };
        let (mut written, mut seen) = (0, PageMask::NONE);
        let mut batch = u64::from(self.tunables.writeback_batch.load(Relaxed).max(1));
        loop {
            let limit = self.tunables.writeback_budget();
            let budget = (most - written).min(limit).min(BLOCKS as u64) as usize;
            let room = (budget, batch.min(budget as u64) as usize);
            let (items, version) = {
                let group = shared(lock);
                let chosen = choose(&group) - seen;
                if self.is_stopped() {
                    return Err(Error::NotInitialised);
                }
                if chosen.is_empty() || most == written {
                    return Ok(written);
                }
                if limit == 0 {
                    return Err(Error::Busy("writeback_limit is used up"));
                }
                (self.copy_out(scratch, (&group, number), chosen, room, &mut seen), group.version())
            };
            match self.send(scratch, backing, lock, (&items, version)) {
                // There may be as many slots as one object needs, though not in a row for all.
                Err(Error::BackingFull(_)) if items.len() > 1 => batch = 1,
                sent => {
                    let (slots, left) = sent?;
                    written += slots;
                    *sparse |= left;
                    items.iter().for_each(|item| seen |= item.blocks);
                }
            }
        }
    }

    /// Copies blocks into the buffer for the backing device, each object from a slot on: what they are. They have
    /// `budget` slots at most, and `batch` unless one object has more. `seen` gets the blocks that cannot be
    /// read.
    fn copy_out(
        &self,
        scratch: &mut Scratch,
        (group, number): (&Group, u64),
        chosen: PageMask,
        (budget, batch): (usize, usize),
        seen: &mut PageMask,
    ) -> Vec<Item> {
        let (mut items, mut slots, mut left) = (Vec::new(), 0, chosen);
        let Scratch { codecs, block: page, .. } = scratch;
        while let Some(block) = left.lowest() {
            let entry = group.entries()[block];
            let (blocks, form) = self.form(group, block, chosen, budget);
            left -= blocks;
            if form == Form::Page && self.load(codecs, (group, number), block, page).is_err() {
                *seen |= blocks;
                continue;
            }
            let object = match entry {
                Entry::Stored { handle, .. } if form == Form::Object => Some(self.pool.read(handle)),
                _ => None,
            };
            let bytes = object.as_deref().unwrap_or(page);
            let needed = bytes.len().div_ceil(BLOCK);
            if slots + needed > budget || (slots + needed > batch && !items.is_empty()) {
                break;
            }
            codecs.sealed.bytes()[slots * BLOCK..][..bytes.len()].copy_from_slice(bytes);
            items.push(Item { blocks, bytes: bytes.len(), form });
            slots += needed;
        }
        items
    }

    /// How a block goes out, and which others with it, in so many slots at most.
    fn form(&self, group: &Group, block: usize, chosen: PageMask, budget: usize) -> (PageMask, Form) {
        let entry = group.entries()[block];
        let sharers = group.sharers(&entry);
        let is_whole = self.tunables.is_writeback_compressed.load(Relaxed)
            && chosen.covers(sharers)
            && entry.made().is_some_and(|made| !made.is_huge)
            && self.set_bytes(group, sharers).div_ceil(BLOCK) <= budget;
        if is_whole { (sharers, Form::Object) } else { (PageMask::page(block), Form::Page) }
    }

    /// Writes what was copied out, and has the group refer to it: how many slots it was, and the blocks of objects of
    /// which little is left. Where the group has changed meanwhile the slots are free again, and still count for
    /// `writeback_limit`: it limits what is written.
    fn send(
        &self,
        scratch: &mut Scratch,
        backing: &BackingDevice,
        lock: &RwLock<Group>,
        (items, version): (&[Item], u32),
    ) -> Result<(u64, PageMask), Error> {
        if items.is_empty() {
            return Ok((0, PageMask::NONE));
        }
        let outgoing: Vec<Outgoing> = items.iter().map(|item| (item.bytes, item.form)).collect();
        let mut ids = Vec::with_capacity(items.len());
        let sealed = scratch.codecs.sealed.bytes();
        match backing.write(sealed, &outgoing, |id| ids.push(id)) {
            Err(error @ Error::Path { .. }) => {
                (self.log)(&format!("writeback: {error}"));
                return Err(error);
            }
            written => written?,
        }
        let slots = items.iter().map(|item| item.bytes.div_ceil(BLOCK)).sum::<usize>() as u64;
        self.tunables.spend_writeback(slots);
        let mut group = alone(lock);
        if group.version() != version {
            drop(group);
            ids.into_iter().for_each(|id| backing.release(id));
            return Ok((slots, PageMask::NONE));
        }
        // These are read anew under the lock: what `mark_incompressible` has noted meanwhile makes no new version.
        let (mut entries, mut blocks) = (*group.entries(), PageMask::NONE);
        for (item, id) in items.iter().zip(ids) {
            blocks |= item.blocks;
            for block in item.blocks.iter() {
                let (made, page) = (entries[block].made(), entries[block].page());
                let page = if item.form == Form::Object { page.unwrap_or(0) as u8 } else { 0 };
                entries[block] = Entry::Written { id, page, made: made.unwrap_or_default() };
            }
        }
        let replaced = self.replace(&mut group, blocks, &entries);
        group.clear_idle(blocks);
        drop(group);
        self.free_unreferred(&replaced);
        Ok((slots, replaced.sparse))
    }
}
