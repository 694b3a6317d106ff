//! A disk from a file that `save` wrote. All that is read is checked before it is used: lengths against bounds, bytes
//! against a checksum, references against what there is.

use super::save::{END, HOLE, MAGIC, OBJECT, SAME, VERSION, checksum};
use super::{Disk, Which};
use crate::error::Error;
use crate::group::{BLOCKS, Entry, GROUP, Made, Tally};
use crate::scratch::Scratch;
use crate::settings::{ALGORITHMS, Algorithm, Settings};
use crate::table::alone;
use crate::{BLOCK, DISKSIZE_MAX_BYTES};
use base::PageMask;
use std::io::{self, Read};
use xxhash_rust::xxh3::xxh3_64;
use zsmalloc::Backing;
use zswap::PARCEL_MAX_BYTES;
use zswap::layout::View;

/// The longest body of a group: an object for each block.
const BODY_MAX_BYTES: usize = BLOCKS * (16 + PARCEL_MAX_BYTES);

/// What a saved disk says of itself.
#[derive(Debug)]
pub struct Header {
    /// Its size in bytes.
    pub disksize_bytes: u64,
    /// What the hashes of its pages are keyed with.
    pub seed: u64,
    /// Its algorithms.
    pub settings: Settings,
}

/// Bytes that are taken from the front of a slice.
struct Taker<'a>(&'a [u8]);

impl<'a> Taker<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Error::NotSaved("a group is cut short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        Ok(self.take(N)?.try_into().expect("it has this length"))
    }

    fn byte(&mut self) -> Result<u8, Error> {
        Ok(self.array::<1>()?[0])
    }
}

/// Fills a buffer; an end before that is [`Error::NotSaved`].
fn fill(from: &mut impl Read, to: &mut [u8]) -> Result<(), Error> {
    from.read_exact(to).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::NotSaved("it is cut short"),
        _ => Error::Io(error),
    })
}

fn array<const N: usize>(from: &mut impl Read) -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    fill(from, &mut bytes)?;
    Ok(bytes)
}

/// Reads the header of a saved disk.
///
/// # Errors
///
/// [`Error::NotSaved`], [`Error::Io`].
pub fn read_header(from: &mut impl Read) -> Result<Header, Error> {
    let mut seen = Vec::from(array::<28>(from)?);
    if &seen[..8] != MAGIC {
        return Err(Error::NotSaved("it does not begin as one"));
    }
    if seen[8..12] != VERSION.to_le_bytes() {
        return Err(Error::NotSaved("it has another version"));
    }
    let mut parts = Vec::new();
    for _ in 0..ALGORITHMS {
        let head = array::<10>(from)?;
        let len = u32::from_le_bytes(head[6..].try_into().expect("4 bytes")) as usize;
        if len > acomp::FILE_MAX_BYTES {
            return Err(Error::NotSaved("a dictionary is too long"));
        }
        let mut dictionary = vec![0; len];
        fill(from, &mut dictionary)?;
        seen.extend(head);
        seen.extend(&dictionary);
        parts.push((head, dictionary));
    }
    if array(from)? != xxh3_64(&seen).to_le_bytes() {
        return Err(Error::NotSaved("its header is damaged"));
    }
    let number = |at: usize| u64::from_le_bytes(seen[at..at + 8].try_into().expect("8 bytes"));
    let mut settings = Settings::default();
    for (priority, (head, dictionary)) in parts.iter().enumerate() {
        let level = i32::from_le_bytes(head[2..6].try_into().expect("4 bytes"));
        match (head[0], Algorithm::of((head[1], level), dictionary)) {
            (0, _) if priority > 0 => {}
            (1, Some(algorithm)) => settings.set(priority, algorithm),
            _ => return Err(Error::NotSaved("an algorithm is unknown")),
        }
    }
    let disksize_bytes = number(12);
    if disksize_bytes == 0 || !disksize_bytes.is_multiple_of(BLOCK as u64) {
        return Err(Error::NotSaved("its disksize is no number of blocks"));
    }
    if disksize_bytes > DISKSIZE_MAX_BYTES {
        return Err(Error::NotSaved("its disksize is too large"));
    }
    Ok(Header { disksize_bytes, seed: number(20), settings })
}

fn made_of(byte: u8) -> Option<Made> {
    let made = Made { priority: byte & 3, is_huge: byte & 4 != 0, is_incompressible: byte & 8 != 0 };
    (byte < 16).then_some(made)
}

impl<B: Backing> Disk<B> {
    /// Fills an empty disk with the groups that follow a header. What memory has no room for goes to the backing
    /// device, if there is one.
    ///
    /// # Errors
    ///
    /// [`Error::NotSaved`], [`Error::Io`], [`Error::NoSpace`], [`Error::NoMemory`], and those of [`Disk::write_back`];
    /// the disk may hold some of it then.
    pub fn load_groups(&self, scratch: &mut Scratch, from: &mut impl Read) -> Result<(), Error> {
        let groups = self.disksize_bytes.div_ceil(GROUP as u64);
        let (mut count, mut next, mut parked, mut body) = (0u64, 0, 0, Vec::new());
        loop {
            let number = u64::from_le_bytes(array(from)?);
            let len = u32::from_le_bytes(array(from)?) as usize;
            let expected = u64::from_le_bytes(array(from)?);
            if len > BODY_MAX_BYTES {
                return Err(Error::NotSaved("a group is too long"));
            }
            body.resize(len, 0);
            fill(from, &mut body)?;
            if checksum(number, &body) != expected {
                return Err(Error::NotSaved("a group is damaged"));
            }
            if number == END {
                let is_behind = from.read(&mut [0]).map_err(Error::Io)? > 0;
                return if body == count.to_le_bytes() && !is_behind {
                    Ok(())
                } else {
                    Err(Error::NotSaved("its end is not where it was"))
                };
            }
            if number < next || number >= groups {
                return Err(Error::NotSaved("groups are not in order"));
            }
            self.load_group(number, &body)?;
            if self.tunables.is_over(self.pool.pool_bytes()) {
                parked = self.make_room(scratch, parked)?;
            }
            (next, count) = (number + 1, count + 1);
        }
    }

    fn load_group(&self, number: u64, body: &[u8]) -> Result<(), Error> {
        let wrong = || Error::NotSaved("a block is none");
        let mut from = Taker(body);
        let (mut entries, mut pages) = ([Entry::Hole; BLOCKS], [(0u8, 0u8, Made::default()); BLOCKS]);
        let (mut with_object, mut count) = (PageMask::NONE, 0);
        for block in 0..BLOCKS {
            match from.byte()? {
                HOLE => continue,
                SAME => entries[block] = Entry::Same(u64::from_le_bytes(from.array()?)),
                OBJECT => {
                    let [object, page, made] = from.array()?;
                    let made = made_of(made).ok_or_else(wrong)?;
                    let is_known = self.settings.algorithm(made.priority.into()).is_some();
                    let is_twice =
                        with_object.iter().any(|other| (pages[other].0, pages[other].1) == (object, page));
                    if object > count || !is_known || is_twice || page as usize >= BLOCKS {
                        return Err(wrong());
                    }
                    count = count.max(object + 1);
                    pages[block] = (object, page, made);
                    with_object.insert(block);
                }
                _ => return Err(wrong()),
            }
            if block >= self.blocks_of(number) {
                return Err(wrong());
            }
        }
        for object in 0..count {
            let len = u32::from_le_bytes(from.array()?) as usize;
            let bytes = from.take(len)?;
            let view = View::read(bytes).filter(|_| len <= PARCEL_MAX_BYTES);
            let blocks = || with_object.iter().filter(|block| pages[*block].0 == object);
            let fits = view.is_some_and(|view| blocks().all(|block| (pages[block].1 as usize) < view.pages));
            let handle = if fits { self.put(bytes).ok_or(Error::NoSpace) } else { Err(wrong()) };
            let handle = handle?;
            for block in blocks() {
                let (_, page, made) = pages[block];
                entries[block] = Entry::Stored { handle, page, made };
            }
        }
        if !from.0.is_empty() {
            return Err(wrong());
        }
        let group = self.table.get_or_make(number)?;
        let (mut group, mut tally) = (alone(group), Tally::default());
        group.touch(PageMask::first(BLOCKS), self.tunables.now_s());
        for (block, entry) in entries.into_iter().enumerate() {
            let nothing = group.replace(block, entry, &mut tally);
            debug_assert_eq!(nothing, None, "groups come in order, each once");
        }
        drop(group);
        self.counters.apply(tally);
        Ok(())
    }

    /// Has groups written back from `first` on, as many as it takes until the pool is within its limit: which one is
    /// next.
    fn make_room(&self, scratch: &mut Scratch, first: u64) -> Result<u64, Error> {
        let groups = self.table.iter_from(first);
        for of in groups.take_while(|_| self.backing.is_some()) {
            // A block that cannot be read stays in the pool.
            self.write_back_group(scratch, of, &|group| self.chosen(group, Which::All), u64::MAX)?;
            self.compact(GROUP);
            if !self.tunables.is_over(self.pool.pool_bytes()) {
                return Ok(of.0 + 1);
            }
        }
        Err(Error::NoSpace)
    }
}
