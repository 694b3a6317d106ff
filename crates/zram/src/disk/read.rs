//! Blocks out of objects.
//!
//! A reader shares the group's lock with other readers while it decompresses. So no object that it reads is freed, and
//! a writer of the same 64 KiB waits for one decompression, or for the backing device.

use super::Disk;
use crate::BLOCK;
use crate::backing::Form;
use crate::error::Error;
use crate::group::{Entry, Group};
use crate::request::{Part, expect_within, parts};
use crate::scratch::{Codecs, Scratch};
use crate::table::shared;
use base::Damaged;
use std::sync::atomic::Ordering::Relaxed;
use zsmalloc::Backing;
use zswap::Codec;
use zswap::layout::View;
use zswap::page;

impl<B: Backing> Disk<B> {
    /// Reads `to.len()` bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Outside`]; [`Error::Damaged`] names the first block that cannot be read, and all others are read.
    pub fn read(&self, scratch: &mut Scratch, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        self.admit(offset, to.len() as u64)?;
        let mut result = Ok(());
        for part in parts(offset, to.len() as u64) {
            let to = &mut to[part.at..][..part.bytes.len()];
            let read = match self.table.get(part.group) {
                None => {
                    to.fill(0);
                    Ok(())
                }
                Some(group) => self.read_part(&shared(group), scratch, &part, to),
            };
            result = result.and(read);
        }
        if result.is_err() {
            self.counters.failed_reads.fetch_add(1, Relaxed);
        }
        result
    }

    /// Refuses a request that is not within the device, and counts one that has parts of blocks.
    pub(super) fn admit(&self, offset: u64, len_bytes: u64) -> Result<(), Error> {
        expect_within(offset, len_bytes, self.disksize_bytes)?;
        if !offset.is_multiple_of(BLOCK as u64) || !len_bytes.is_multiple_of(BLOCK as u64) {
            self.counters.invalid_io.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    fn read_part(
        &self,
        group: &Group,
        scratch: &mut Scratch,
        part: &Part,
        to: &mut [u8],
    ) -> Result<(), Error> {
        group.touch(part.blocks(), self.tunables.now_s());
        let Scratch { codecs, block: page, .. } = scratch;
        let (mut at, mut result) = (part.bytes.start, Ok(()));
        while at < part.bytes.end {
            let (block, skip) = (at / BLOCK, at % BLOCK);
            let rest = &mut to[at - part.bytes.start..];
            let (read, len) = if skip > 0 || rest.len() < BLOCK {
                let len = rest.len().min(BLOCK - skip);
                let read = self.load(codecs, (group, part.group), block, page);
                rest[..len].copy_from_slice(&page[skip..][..len]);
                (read, len)
            } else {
                let len = rest.len() / BLOCK * BLOCK;
                (self.load(codecs, (group, part.group), block, &mut rest[..len]), len)
            };
            result = result.and(read);
            at += len;
        }
        result
    }

    /// Loads blocks from `first` on, as many as `to` holds. A block that cannot be read is left as zeros.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] names the first block that cannot be read.
    pub(super) fn load(
        &self,
        codecs: &mut Codecs,
        (group, number): (&Group, u64),
        first: usize,
        to: &mut [u8],
    ) -> Result<(), Error> {
        let (mut block, mut rest, mut result) = (first, to, Ok(()));
        while !rest.is_empty() {
            let count = run(group, block, rest.len() / BLOCK);
            let (to, behind) = rest.split_at_mut(count * BLOCK);
            if self.fetch(codecs, &group.entries()[block], to).is_err() {
                for (block, to) in (block..).zip(to.chunks_exact_mut(BLOCK)) {
                    if let Err(cause) = self.fetch(codecs, &group.entries()[block], to) {
                        to.fill(0);
                        result = result.and(Err(self.damaged((group, number), block, cause)));
                    }
                }
            }
            (block, rest) = (block + count, behind);
        }
        result
    }

    /// Restores pages of one object, from the entry's on, as many as `to` holds.
    fn fetch(&self, codecs: &mut Codecs, entry: &Entry, to: &mut [u8]) -> Result<(), Damaged> {
        match *entry {
            Entry::Hole => to.fill(0),
            Entry::Same(word) => page::fill(to, word),
            Entry::Stored { handle, page, made } => {
                let codec = codecs.codec(made.priority, &self.settings).map_err(|_| Damaged::Stream)?;
                unpack(codec, &self.pool.read(handle), page as usize, to)?;
            }
            Entry::Written { id, page, made } => {
                let backing = self.backing.as_ref().ok_or(Damaged::Object)?;
                let found = codecs.with_sealed(made.priority, &self.settings);
                let (codec, sealed) = found.map_err(|_| Damaged::Stream)?;
                let parked = backing.read(id, sealed.bytes())?;
                let object = &sealed.bytes()[..parked.bytes()];
                match parked.form() {
                    Form::Object => unpack(codec, object, page as usize, to)?,
                    Form::Page if object.len() == to.len() => to.copy_from_slice(object),
                    Form::Page => return Err(Damaged::Object),
                }
            }
        }
        Ok(())
    }

    /// Counts and tells once that a block cannot be read.
    fn damaged(&self, (group, number): (&Group, u64), block: usize, cause: Damaged) -> Error {
        let error = Error::Damaged { block: Self::block_number(number, block), cause };
        if group.is_news(block) {
            self.counters.damaged_blocks.fetch_add(1, Relaxed);
            (self.log)(&error.to_string());
        }
        error
    }
}

/// How many blocks from `block` on are pages of one object that follow each other; at most so many.
fn run(group: &Group, block: usize, most: usize) -> usize {
    let entries = &group.entries()[block..][..most];
    let first = entries[0];
    let follows = |(distance, entry): &(usize, &Entry)| {
        first.page().is_some_and(|page| first.shares(entry) && entry.page() == Some(page + distance))
    };
    1 + entries.iter().enumerate().skip(1).take_while(follows).count()
}

/// Restores pages of an object from page `first` on.
fn unpack(codec: &mut Codec, object: &[u8], first: usize, to: &mut [u8]) -> Result<(), Damaged> {
    let view = View::read(object).ok_or(Damaged::Stream)?;
    codec.unpack(object, view.fingerprint(), first, to)
}
