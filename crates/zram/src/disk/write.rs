//! Bytes to objects, and discard.
//!
//! ```text
//!   part of a request in one group ── gather ──> window, with the rest of blocks at its ends, and the group's version
//!     ── same-filled? ──> a word                      whole group: one object;  else each block an object
//!     ── pack ──> objects ── store ──> pool ── lock the group ── still that version? ── replace entries ── unlock
//! ```
//!
//! A part that consists of whole blocks looks at no version: nothing of the old blocks is in the new ones. Of two such
//! writes at once either may be the last. A part that has lost [`TRIES`] races is written with the group locked.

use super::Disk;
use crate::BLOCK;
use crate::error::Error;
use crate::group::{BLOCKS, Entry, GROUP, Group};
use crate::request::{Part, parts};
use crate::scratch::{Codecs, Scratch};
use crate::table::{alone, shared};
use base::PageMask;
use std::array::from_fn;
use std::sync::RwLockWriteGuard;
use std::sync::atomic::Ordering::Relaxed;
use zsmalloc::Backing;
use zswap::{BATCH_MAX, PARCEL_MAX_BYTES, Packed, Priors, Window, page};

/// Tries without the lock.
const TRIES: usize = 3;

/// A part that is gathered in a window.
struct Gathered {
    part: Part,
    /// Blocks that one word fills, and the words.
    same: PageMask,
    words: [u64; BLOCKS],
    /// That of the group whose blocks at the ends were read, if any were.
    version: Option<u32>,
}

impl Gathered {
    /// The blocks that objects are made of.
    fn with_data(&self) -> PageMask {
        self.part.blocks() - self.same
    }

    /// Pages of an object.
    fn unit(&self) -> usize {
        if self.part.is_whole() { BLOCKS } else { 1 }
    }
}

impl<B: Backing> Disk<B> {
    /// Writes all of `from`.
    ///
    /// # Errors
    ///
    /// [`Error::Outside`], [`Error::NoSpace`], [`Error::NoMemory`]; [`Error::Damaged`] of a block of which the rest is
    /// wanted.
    pub fn write(&self, scratch: &mut Scratch, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.admit(offset, from.len() as u64)?;
        let batch_size = scratch.codecs.codec(0, &self.settings).map(|codec| {
            codec.look();
            codec.batch_size()
        });
        let written = batch_size.and_then(|batch_size| match batch_size {
            1 => self.write_batches::<1>(scratch, offset, from),
            _ => self.write_batches::<BATCH_MAX>(scratch, offset, from),
        });
        if let Err(error) = &written {
            self.counters.failed_writes.fetch_add(1, Relaxed);
            if matches!(error, Error::NoSpace) {
                self.counters.refused_writes.fetch_add(1, Relaxed);
            }
        }
        written
    }

    /// Writes so many groups at a time, as one batch for the compressor.
    fn write_batches<const N: usize>(
        &self,
        scratch: &mut Scratch,
        offset: u64,
        from: &[u8],
    ) -> Result<(), Error> {
        let mut parts = parts(offset, from.len() as u64);
        loop {
            let batch: [Option<Part>; N] = from_fn(|_| parts.next());
            if batch.iter().all(Option::is_none) {
                return Ok(());
            }
            self.write_batch(scratch, batch, from)?;
        }
    }

    fn write_batch<const N: usize>(
        &self,
        scratch: &mut Scratch,
        batch: [Option<Part>; N],
        from: &[u8],
    ) -> Result<(), Error> {
        let mut gathered: [Option<Gathered>; N] = [const { None }; N];
        for (at, part) in batch.into_iter().flatten().enumerate() {
            let window = &mut scratch.windows[at * GROUP..][..GROUP];
            gathered[at] = Some(self.gather(&mut scratch.codecs, window, part, from, None)?);
        }
        let packed = self.pack(scratch, &gathered)?;
        // What needs the buffers comes when nothing of the batch is in them any more.
        let (mut lost, mut left): ([Option<Part>; N], [_; N]) = ([const { None }; N], [None; N]);
        for (at, gathered) in gathered.into_iter().flatten().enumerate() {
            let parcel = &scratch.parcels[at * PARCEL_MAX_BYTES..][..PARCEL_MAX_BYTES];
            let entries = self.entries(&gathered, &packed[at], parcel)?;
            let group = self.table.get_or_make(gathered.part.group);
            let group = group.inspect_err(|_| self.drop_stored(&entries))?;
            match self.settle(alone(group), &gathered, &entries) {
                Some(sparse) => left[at] = Some((gathered.part.group, sparse)),
                None => lost[at] = Some(gathered.part),
            }
        }
        for (group, sparse) in left.into_iter().flatten() {
            self.repack_sparse(scratch, group, sparse);
        }
        lost.into_iter().flatten().try_for_each(|part| self.write_again(scratch, &part, from))
    }

    /// Writes a part whose group has changed meanwhile.
    #[cold]
    fn write_again(&self, scratch: &mut Scratch, part: &Part, from: &[u8]) -> Result<(), Error> {
        for attempt in 1..=TRIES {
            self.counters.write_retries.fetch_add(1, Relaxed);
            if self.write_alone(scratch, part, from, attempt == TRIES)? {
                break;
            }
        }
        Ok(())
    }

    /// Writes a part; false if its group has changed meanwhile, which it cannot while it is held.
    fn write_alone(
        &self,
        scratch: &mut Scratch,
        part: &Part,
        from: &[u8],
        hold: bool,
    ) -> Result<bool, Error> {
        let group = self.table.get_or_make(part.group)?;
        let mut held = hold.then(|| alone(group));
        let window = &mut scratch.windows[..GROUP];
        let gathered = self.gather(&mut scratch.codecs, window, part.clone(), from, held.as_deref())?;
        let gathered = [Some(gathered)];
        let packed = self.pack(scratch, &gathered)?;
        let [Some(gathered)] = gathered else { unreachable!("it was put there") };
        let entries = self.entries(&gathered, &packed[0], &scratch.parcels)?;
        let group = held.take().unwrap_or_else(|| alone(group));
        match self.settle(group, &gathered, &entries) {
            Some(sparse) => self.repack_sparse(scratch, part.group, sparse),
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Copies a part into a window, and brings what is around it in blocks at its ends.
    fn gather(
        &self,
        codecs: &mut Codecs,
        window: &mut [u8],
        part: Part,
        from: &[u8],
        held: Option<&Group>,
    ) -> Result<Gathered, Error> {
        let ends = part.blocks() - part.whole_blocks();
        let mut version = None;
        if !ends.is_empty() {
            let lock = self.table.get_or_make(part.group)?;
            let guard = held.is_none().then(|| shared(lock));
            let group = held.or(guard.as_deref()).expect("one of the two holds the group");
            for block in ends.iter() {
                let to = &mut window[block * BLOCK..][..BLOCK];
                self.load(codecs, (group, part.group), block, to)?;
            }
            version = Some(group.version());
        }
        window[part.bytes.clone()].copy_from_slice(&from[part.at..][..part.bytes.len()]);
        let (mut same, mut words) = (PageMask::NONE, [0; BLOCKS]);
        for block in part.blocks().iter() {
            if let Some(word) = page::same_filled(&window[block * BLOCK..][..BLOCK]) {
                same.insert(block);
                words[block] = word;
            }
        }
        Ok(Gathered { part, same, words, version })
    }

    /// Compresses what is gathered, as one batch.
    fn pack<const N: usize>(
        &self,
        scratch: &mut Scratch,
        gathered: &[Option<Gathered>; N],
    ) -> Result<[Packed; N], Error> {
        let Scratch { codecs, windows, parcels, .. } = scratch;
        let priors = Priors::default();
        let mut bytes = windows.chunks_exact_mut(GROUP);
        let mut parcels = parcels.chunks_exact_mut(PARCEL_MAX_BYTES);
        let mut windows: [Window<'_>; N] = from_fn(|at| {
            let gathered = gathered[at].as_ref();
            Window {
                bytes: bytes.next().expect("there are as many as a batch has"),
                pages: gathered.map_or(PageMask::NONE, Gathered::with_data),
                unit: gathered.map_or(1, Gathered::unit),
                priors: &priors,
                is_plain: false,
                parcel: parcels.next().expect("there are as many as a batch has"),
                packed: Packed::default(),
            }
        });
        codecs.codec(0, &self.settings)?.pack(&mut windows, &mut || {});
        Ok(windows.map(|window| window.packed))
    }

    /// The entries of a part's blocks, with their objects in the pool.
    fn entries(&self, of: &Gathered, packed: &Packed, parcel: &[u8]) -> Result<[Entry; BLOCKS], Error> {
        let mut entries = self.store(packed, parcel, of.unit(), 0)?;
        self.expect_within_limit(&entries)?;
        of.same.iter().for_each(|block| entries[block] = Entry::Same(of.words[block]));
        Ok(entries)
    }

    /// Replaces the entries of a part's blocks, and unlocks the group: the blocks of objects of which little is left.
    /// `None` if the group is not what was gathered from; then the objects are gone.
    fn settle(
        &self,
        mut group: RwLockWriteGuard<'_, Group>,
        of: &Gathered,
        entries: &[Entry; BLOCKS],
    ) -> Option<PageMask> {
        if of.version.is_some_and(|version| version != group.version()) {
            drop(group);
            self.drop_stored(entries);
            return None;
        }
        group.touch(of.part.blocks(), self.tunables.now_s());
        let replaced = self.replace(&mut group, of.part.blocks(), entries);
        drop(group);
        let is_huge = |entry: &&Entry| entry.made().is_some_and(|made| made.is_huge);
        let huge = entries.iter().filter(is_huge).count() as u64;
        if huge > 0 {
            self.counters.huge_pages_since.fetch_add(huge, Relaxed);
        }
        self.free_unreferred(&replaced);
        Some(replaced.sparse)
    }

    /// Forgets the blocks that are within the range as a whole.
    ///
    /// # Errors
    ///
    /// [`Error::Outside`].
    pub fn discard(&self, scratch: &mut Scratch, offset: u64, len_bytes: u64) -> Result<(), Error> {
        self.admit(offset, len_bytes)?;
        let (first, end) = (offset.div_ceil(BLOCK as u64), (offset + len_bytes) / BLOCK as u64);
        if first >= end {
            return Ok(());
        }
        self.counters.notify_free.fetch_add(end - first, Relaxed);
        for (number, group) in self.table.iter_from(first / BLOCKS as u64) {
            let base = number * BLOCKS as u64;
            if base >= end {
                break;
            }
            let within = first.saturating_sub(base) as usize..(end - base).min(BLOCKS as u64) as usize;
            let holes = |group: &Group| group.having(|entry| *entry == Entry::Hole);
            let blocks = PageMask::range(within) - holes(&shared(group));
            if blocks.is_empty() {
                continue;
            }
            let replaced = self.replace(&mut alone(group), blocks, &[Entry::Hole; BLOCKS]);
            self.free_unreferred(&replaced);
            self.repack_sparse(scratch, number, replaced.sparse);
        }
        Ok(())
    }
}
