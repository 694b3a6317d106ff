//! Pages to objects, and back: what can be done without the pool, by whoever has the bytes.

use crate::choice::{Choice, Tier};
use crate::layout::prefix;
use crate::noise::{Guesses, Trust};
use crate::page::Hash;
use crate::{PAGE, PageMask, WINDOW_PAGES};
use acomp::{Context, Kind};
use alloc::vec;
use alloc::vec::Vec;
use contexts::Contexts;

mod contexts;
mod pack;
mod unpack;

pub use pack::Window;
pub use unpack::Load;

/// The most windows that are packed together, or objects that are unpacked.
pub const BATCH_MAX: usize = 8;

/// The most bytes that the objects of one window can have: each page kept as it is, in an object of its own.
pub const PARCEL_MAX_BYTES: usize = WINDOW_PAGES * (PAGE + prefix(1, 0));

/// Compressors' contexts and a buffer, made before the first page goes out; for one thread.
pub struct Codec {
    contexts: Contexts,
    seed: u64,
    plain: Vec<u8>,
    /// For compressors that do not give up on noise by themselves.
    trust: Trust,
    /// Windows that are best packed together.
    batch: usize,
    /// Data that comes to more of what it was, in percent, is kept as it is.
    most_percent: usize,
}

/// The hashes that pages of a window had when they were loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Priors {
    known: PageMask,
    fewest: usize,
    hashes: [Hash; WINDOW_PAGES],
}

impl Priors {
    /// Page `page` of the window was loaded with this hash.
    pub fn set(&mut self, page: usize, hash: Hash) {
        self.known.insert(page);
        self.hashes[page] = hash;
    }

    /// Fewer unchanged pages than these are made new objects of all the same: what they came from would be kept for
    /// them alone.
    pub fn want(&mut self, fewest: usize) {
        self.fewest = fewest;
    }

    fn is(&self, page: usize, hash: Hash) -> bool {
        self.known.contains(page) && self.hashes[page] == hash
    }
}

/// A new object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum New {
    /// The next `bytes` of the parcel.
    Blob {
        /// Of its pages, in order.
        fingerprint: u32,
        /// How many bytes.
        bytes: u32,
        /// How many of its pages have data; one word fills each of the others.
        data_pages: usize,
        /// False when the data did not shrink and is kept as it is.
        compressed: bool,
    },
    /// One word fills all pages.
    Same(u64),
}

/// What has become of a window's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// Equal to their priors.
    pub reused: PageMask,
    /// All zeros.
    pub zero: PageMask,
    /// In new objects, in order.
    pub in_objects: PageMask,
    /// Those of them that have no data, since one word fills each.
    pub filled: PageMask,
    /// The new objects: as many pages in each as was asked for, in the last what is left.
    pub objects: [Option<New>; WINDOW_PAGES],
    /// How many of them looked like noise, and what came of it.
    pub guesses: Guesses,
    /// How many of them are as they were since the compressor failed.
    pub failed: u8,
    /// Of which tier its new objects are.
    pub tier: Tier,
}

impl Codec {
    /// A codec of these compressors; allocates all that it will ever need, but for what [`Codec::make_by`] does.
    /// `seed` keys the hashes: objects are read by codecs of the same seed. `file` is the dictionary of a compressor
    /// that has one from a file.
    ///
    /// # Errors
    ///
    /// There is no memory for it, or `file` is no dictionary.
    pub fn new(choice: impl Into<Choice>, seed: u64, file: &'static [u8]) -> Result<Codec, acomp::Error> {
        let choice = choice.into();
        Ok(Codec {
            contexts: Contexts::new(choice, file)?,
            seed,
            plain: vec![0; WINDOW_PAGES * PAGE],
            trust: Trust::default(),
            batch: 1,
            most_percent: 100,
        })
    }

    /// From now on objects are made by this. Those that there are already are read as before, whoever made them. Where
    /// a device is attached to what made them, it reads on.
    ///
    /// # Errors
    ///
    /// As for [`Codec::new`]; then nothing changes.
    pub fn make_by(&mut self, choice: impl Into<Choice>) -> Result<(), acomp::Error> {
        let choice = choice.into();
        self.contexts.make_by(choice)?;
        self.trust = Trust::default();
        self.count_batch();
        Ok(())
    }

    /// Makes what it takes to read objects of this kind, unless it is there: reading allocates nothing then.
    ///
    /// # Errors
    ///
    /// As for [`Codec::new`].
    pub fn prepare(&mut self, kind: Kind) -> Result<(), acomp::Error> {
        self.contexts.reader(kind).map(|_| ())
    }

    /// Has a device do the work that `attach` comes by ([`Context::attach`]), of the tier whose compressor is for one;
    /// false if it does not. Only where the calling process has an address space of its own, which no child takes over:
    /// the device works in it.
    pub fn attach(&mut self, attach: impl FnOnce(&mut Context) -> bool) -> bool {
        let attached = attach(self.contexts.attachable());
        if attached {
            self.contexts.note_attached();
            self.count_batch();
        }
        attached
    }

    fn count_batch(&mut self) {
        let tier = [Tier::Fast, Tier::Dense].into_iter().find(|tier| self.contexts.is_attached(*tier));
        self.batch = tier.map_or(1, |tier| self.contexts.maker(tier).batch_size().min(BATCH_MAX));
    }

    /// From now on data that comes to more than so many percent of what it was is kept as it is. What saves less than a
    /// thirty-second always is.
    pub fn keep_above(&mut self, most_percent: u32) {
        self.most_percent = most_percent.clamp(1, 100) as usize;
    }

    /// For who has nothing urgent to do ([`Context::rest`]).
    pub fn rest(&mut self) {
        self.contexts.each(Context::rest);
    }

    /// For who goes on at once ([`Context::look`]).
    pub fn look(&mut self) {
        self.contexts.each(Context::look);
    }

    /// How many windows are best packed together. One at a time where the CPU does the work: to have begun more than
    /// one gains nothing then, and who wants a page of the last one waits for all.
    pub fn batch_size(&self) -> usize {
        self.batch
    }
}
