//! A disk as a file. All numbers are little endian.
//!
//! ```text
//!   header   "zramsave" | version, 4 | disksize, 8 | seed, 8 | 4 algorithms | checksum, 8
//!   algorithm   is there, 1 | kind, 1 | level, 4 | length of its dictionary, 4 | dictionary
//!   group    number, 8 | length of the body, 4 | checksum of both and the body, 8 | body
//!   body     16 entries: 0, or 1 | word, 8, or 2 | which object, 1 | page, 1 | how made, 1;  then objects: length, 4 | bytes
//!   end      a group of number 2^64 - 1, whose body is the number of groups, 8
//! ```
//!
//! Only groups that hold something are there, in order. What is in the backing device is brought along. For an object
//! that cannot be read there is one that is as damaged: its blocks are refused with EIO, and all others are saved.

use super::Disk;
use crate::BLOCK;
use crate::backing::Form;
use crate::error::Error;
use crate::group::{BLOCKS, Entry, Group, Made};
use crate::scratch::Scratch;
use crate::settings::ALGORITHMS;
use crate::table::shared;
use base::PageMask;
use std::io::{self, Write};
use xxhash_rust::xxh3::xxh3_64;
use zsmalloc::Backing;
use zswap::layout::{self, Format, View};
use zswap::{Priors, page};

/// What it begins with.
pub(super) const MAGIC: &[u8; 8] = b"zramsave";
/// The version of this layout.
pub(super) const VERSION: u32 = 1;
/// The number of the group that is the end.
pub(super) const END: u64 = u64::MAX;

/// Entries of a body.
pub(super) const HOLE: u8 = 0;
pub(super) const SAME: u8 = 1;
pub(super) const OBJECT: u8 = 2;

fn write_header<B: Backing>(disk: &Disk<B>, to: &mut impl Write) -> io::Result<()> {
    let mut header = Vec::from(MAGIC);
    header.extend(VERSION.to_le_bytes());
    header.extend(disk.disksize_bytes.to_le_bytes());
    header.extend(disk.seed.to_le_bytes());
    for priority in 0..ALGORITHMS {
        let algorithm = disk.settings.algorithm(priority);
        let (kind, level) = algorithm.map_or((0, 0), |algorithm| algorithm.numbers());
        let dictionary = algorithm.map_or(&[][..], |algorithm| algorithm.dictionary);
        header.extend([u8::from(algorithm.is_some()), kind]);
        header.extend(level.to_le_bytes());
        header.extend((dictionary.len() as u32).to_le_bytes());
        header.extend(dictionary);
    }
    to.write_all(&header)?;
    to.write_all(&xxh3_64(&header).to_le_bytes())
}

/// The checksum of a group.
pub(super) fn checksum(number: u64, body: &[u8]) -> u64 {
    xxh3_64(body) ^ number.rotate_left(32) ^ body.len() as u64
}

fn write_group(to: &mut impl Write, number: u64, body: &[u8]) -> io::Result<()> {
    to.write_all(&number.to_le_bytes())?;
    to.write_all(&(body.len() as u32).to_le_bytes())?;
    to.write_all(&checksum(number, body).to_le_bytes())?;
    to.write_all(body)
}

fn append(to: &mut Vec<u8>, object: &[u8]) {
    to.extend((object.len() as u32).to_le_bytes());
    to.extend(object);
}

fn made_byte(made: Made) -> u8 {
    made.priority | u8::from(made.is_huge) << 2 | u8::from(made.is_incompressible) << 3
}

impl<B: Backing> Disk<B> {
    /// Writes all of it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::NoMemory`]; [`Error::NotInitialised`] if the device is reset meanwhile.
    pub fn save(&self, scratch: &mut Scratch, to: &mut impl Write) -> Result<(), Error> {
        write_header(self, to).map_err(Error::Io)?;
        let (mut groups, mut body) = (0u64, Vec::new());
        for (number, group) in self.table.iter_from(0) {
            body.clear();
            {
                let group = shared(group);
                if group.having(|entry| *entry != Entry::Hole).is_empty() {
                    continue;
                }
                self.save_group(scratch, (&group, number), &mut body)?;
            }
            write_group(to, number, &body).map_err(Error::Io)?;
            groups += 1;
        }
        if self.is_stopped() {
            return Err(Error::NotInitialised);
        }
        write_group(to, END, &groups.to_le_bytes()).map_err(Error::Io)?;
        to.flush().map_err(Error::Io)
    }

    fn save_group(
        &self,
        scratch: &mut Scratch,
        (group, number): (&Group, u64),
        body: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let (mut objects, mut firsts) = (Vec::new(), Vec::<Entry>::new());
        for (block, entry) in group.entries().iter().enumerate() {
            let made = match entry {
                Entry::Hole => {
                    body.push(HOLE);
                    continue;
                }
                Entry::Same(word) => {
                    body.push(SAME);
                    body.extend(word.to_le_bytes());
                    continue;
                }
                Entry::Stored { made, .. } | Entry::Written { made, .. } => *made,
            };
            let known = firsts.iter().position(|first| first.shares(entry));
            let at = match known {
                Some(at) => (at, made),
                None => {
                    let made = match self.save_object(scratch, (group, number), block, &mut objects) {
                        Err(error @ Error::Damaged { .. }) => {
                            (self.log)(&format!("{error}: it is saved as damaged"));
                            append(&mut objects, &self.damaged_object());
                            made
                        }
                        saved => saved?,
                    };
                    firsts.push(*entry);
                    (firsts.len() - 1, made)
                }
            };
            body.extend([OBJECT, at.0 as u8, entry.page().unwrap_or(0) as u8, made_byte(at.1)]);
        }
        body.extend(objects);
        Ok(())
    }

    /// An object of as many pages as there can be, none of which is what was stored.
    fn damaged_object(&self) -> Vec<u8> {
        let mut object = vec![0; layout::prefix(BLOCKS, BLOCKS)];
        let other = !page::hash(&[0; BLOCK], self.seed);
        layout::write(&mut object, Format::Plain, [(other, Some(0)); BLOCKS].into_iter());
        object
    }

    /// Appends the object of a block: how it was made.
    fn save_object(
        &self,
        scratch: &mut Scratch,
        (group, number): (&Group, u64),
        block: usize,
        to: &mut Vec<u8>,
    ) -> Result<Made, Error> {
        let entry = group.entries()[block];
        let made = entry.made().unwrap_or_default();
        let damaged = |cause| Error::Damaged { block: Self::block_number(number, block), cause };
        match entry {
            Entry::Stored { handle, .. } => {
                let object = self.pool.read(handle);
                View::read(&object).ok_or_else(|| damaged(base::Damaged::Stream))?;
                append(to, &object);
                Ok(made)
            }
            Entry::Written { id, .. } => {
                let form = self.backing.as_ref().and_then(|backing| backing.parked(id)).map(|of| of.form());
                if form == Some(Form::Object) {
                    let backing = self.backing.as_ref().expect("it has the object");
                    let sealed = scratch.codecs.sealed.bytes();
                    let parked = backing.read(id, sealed).map_err(damaged)?;
                    append(to, &sealed[..parked.bytes()]);
                    return Ok(made);
                }
                let Scratch { codecs, windows, parcels, .. } = scratch;
                let page = &mut windows[..BLOCK];
                self.load(codecs, (group, number), block, page)?;
                let codec = codecs.codec(0, &self.settings)?;
                let packed = codec.pack_one(page, PageMask::page(0), 1, &Priors::default(), false, parcels);
                match packed.objects[0] {
                    Some(zswap::New::Blob { bytes, compressed, .. }) => {
                        append(to, &parcels[..bytes as usize]);
                        Ok(Made { is_huge: !compressed, ..Made::default() })
                    }
                    _ => Err(damaged(base::Damaged::Object)),
                }
            }
            Entry::Hole | Entry::Same(_) => Ok(made),
        }
    }
}
