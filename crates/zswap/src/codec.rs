//! Pages to objects, and back: what can be done without the pool, by whoever has the bytes.

use crate::choice::Choice;
use crate::chooser::{Made, Tried, Way};
use crate::noise::{self, Guesses, Trust};
use crate::object::{self, Format, View, prefix};
use crate::page::{self, Hash};
use crate::{PAGE, WINDOW_PAGES};
use acomp::{CompressRequest, Context, DecompressRequest, Outcome};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

mod together;

pub use together::{BATCH_MAX, Load, Window};

/// The most bytes that the objects of one window can have: each page kept as it is, in an object of its own.
pub const PARCEL_MAX_BYTES: usize = WINDOW_PAGES * (PAGE + prefix(1));

/// A compressor's context and a buffer, made before the first page goes out; for one thread.
pub struct Codec {
    context: Context,
    /// The fast one's of two compressors: the other is the dense one's then.
    fast: Option<Context>,
    /// By which it is told what each of them takes.
    clock: fn() -> u64,
    seed: u64,
    plain: Vec<u8>,
    /// For compressors that do not give up on noise by themselves.
    trust: Option<Trust>,
    /// Windows that are best packed together.
    batch: usize,
}

/// The hashes that pages of a window had when they were loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Priors {
    known: u16,
    fewest: u32,
    hashes: [Hash; WINDOW_PAGES],
}

impl Priors {
    /// Page `page` of the window was loaded with this hash.
    pub fn set(&mut self, page: usize, hash: Hash) {
        self.known |= 1 << page;
        self.hashes[page] = hash;
    }

    /// Fewer unchanged pages than these are made new objects of all the same: what they came from would be kept for them alone.
    pub fn want(&mut self, fewest: u32) {
        self.fewest = fewest;
    }

    fn is(&self, page: usize, hash: Hash) -> bool {
        self.known & 1 << page != 0 && self.hashes[page] == hash
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
        /// False when the pages did not shrink and are kept as they are.
        compressed: bool,
    },
    /// One word fills all pages.
    Same(u64),
}

/// What has become of a window's pages; masks by bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// Equal to their priors.
    pub reused: u16,
    /// All zeros.
    pub zero: u16,
    /// In new objects, in order.
    pub in_objects: u16,
    /// The new objects: as many pages in each as was asked for, in the last what is left.
    pub objects: [Option<New>; WINDOW_PAGES],
    /// How many of them looked like noise, and what came of it.
    pub guesses: Guesses,
    /// What each of two compressors took, as far as that was asked for.
    pub tried: Tried,
}

impl Packed {
    /// Bytes of the new objects.
    fn bytes(&self) -> u32 {
        let bytes = |new: &New| if let New::Blob { bytes, .. } = new { *bytes } else { 0 };
        self.objects.iter().flatten().map(bytes).sum()
    }
}

/// A page that goes into a new object.
#[derive(Clone, Copy, Default)]
struct Fresh {
    /// Page of the window.
    index: usize,
    /// The word that fills it, if one does.
    word: Option<u64>,
    hash: Hash,
}

/// Why an object could not be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The object's header or compressed bytes are damaged.
    Stream,
    /// The pages are not those that were stored.
    Checksum,
    /// It is another object.
    Object,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LoadError::Stream => "the stored bytes are damaged",
            LoadError::Checksum => "the checksum does not match",
            LoadError::Object => "another object is in its place",
        })
    }
}

impl Codec {
    /// A codec for one compressor or two; allocates all that it will ever need. `seed` keys the hashes: objects are read by codecs of the same seed. `file` is the
    /// dictionary of a compressor that has one from a file.
    pub fn new(choice: impl Into<Choice>, seed: u64, file: &[u8]) -> Result<Codec, acomp::Error> {
        let window = WINDOW_PAGES * PAGE;
        let Choice { compressor, auto } = choice.into();
        let fast = auto.map(|auto| Context::new(auto.fast, window)).transpose()?;
        let trust = (!compressor.gives_up_early()).then(Trust::default);
        let context = Context::with_dictionary(compressor, window, file)?;
        Ok(Codec { context, fast, clock: || 0, seed, plain: vec![0; window], trust, batch: 1 })
    }

    /// Has it tell by this clock, in nanoseconds, what each of two compressors takes.
    pub fn timed_by(self, clock: fn() -> u64) -> Codec {
        Codec { clock, ..self }
    }

    /// Has a device do the work that `attach` comes by ([`Context::attach`]); false if it does not. Only where the calling process has an address space of its own, which
    /// no child takes over: the device works in it.
    pub fn attach(&mut self, attach: impl FnOnce(&mut Context) -> bool) -> bool {
        let attached = attach(&mut self.context);
        if attached {
            self.batch = self.context.batch_size().min(BATCH_MAX);
        }
        attached
    }

    /// For who has nothing urgent to do ([`Context::rest`]).
    pub fn rest(&mut self) {
        self.context.rest();
    }

    /// For who goes on at once ([`Context::look`]).
    pub fn look(&mut self) {
        self.context.look();
    }

    /// How many windows are best packed together. One at a time where the CPU does the work: to have begun more than one gains nothing then, and
    /// who wants a page of the last one waits for all.
    pub fn batch_size(&self) -> usize {
        self.batch
    }

    /// Makes objects of up to `unit` pages out of those pages of `window` that `pages` names by bit, one after the other in `parcel`, which has
    /// [`PARCEL_MAX_BYTES`]. They are compressed by the compressor that `way` says.
    pub fn pack(
        &mut self,
        window: &[u8],
        pages: u16,
        unit: usize,
        priors: &Priors,
        way: Way,
        parcel: &mut [u8],
    ) -> Packed {
        if matches!(way, Way::Only | Way::Fast) {
            return self.pack_by(window, pages, unit, priors, way, parcel);
        }
        let mut made_by = |way| {
            let began = (self.clock)();
            let packed = self.pack_by(window, pages, unit, priors, way, parcel);
            let ns = (self.clock)().saturating_sub(began).clamp(1, u32::MAX.into()) as u32;
            (packed, Made { ns, bytes: packed.bytes() })
        };
        let mut tried = Tried::default();
        if way == Way::Both {
            tried.fast = made_by(Way::Fast).1;
        }
        let (packed, dense) = made_by(Way::Dense);
        tried.dense = dense;
        Packed { tried, ..packed }
    }

    fn pack_by(
        &mut self,
        window: &[u8],
        pages: u16,
        unit: usize,
        priors: &Priors,
        way: Way,
        parcel: &mut [u8],
    ) -> Packed {
        let mut fresh = [Fresh::default(); WINDOW_PAGES];
        let (mut packed, count) = self.sort(window, pages, priors, &mut fresh);
        let mut at = 0;
        for (object, pages) in packed.objects.iter_mut().zip(fresh[..count].chunks(unit)) {
            let new = match pages[0].word {
                Some(word) if pages.iter().all(|p| p.word == Some(word)) => New::Same(word),
                _ => self.compress(window, pages, way, &mut parcel[at..], &mut packed.guesses),
            };
            if let New::Blob { bytes, .. } = new {
                at += bytes as usize;
            }
            *object = Some(new);
        }
        packed
    }

    /// Tells what has to be made of a window's pages, and which of them go into new objects: the first so many of `fresh`.
    fn sort(
        &self,
        window: &[u8],
        pages: u16,
        priors: &Priors,
        fresh: &mut [Fresh; WINDOW_PAGES],
    ) -> (Packed, usize) {
        let mut packed = Packed::default();
        for index in (0..WINDOW_PAGES).filter(|i| pages & 1 << i != 0) {
            let bytes = &window[index * PAGE..][..PAGE];
            let word = page::same_filled(bytes);
            if word == Some(0) {
                packed.zero |= 1 << index;
                continue;
            }
            let hash = page::hash(bytes, self.seed);
            packed.reused |= (priors.is(index, hash) as u16) << index;
            fresh[index] = Fresh { index, word, hash };
        }
        if packed.reused.count_ones() < priors.fewest {
            packed.reused = 0;
        }
        packed.in_objects = pages & !packed.zero & !packed.reused;
        let mut count = 0;
        for index in (0..WINDOW_PAGES).filter(|i| packed.in_objects & 1 << i != 0) {
            fresh[count] = fresh[index];
            count += 1;
        }
        (packed, count)
    }

    /// Makes one object of some pages at the beginning of `to`.
    fn compress(
        &mut self,
        window: &[u8],
        pages: &[Fresh],
        way: Way,
        to: &mut [u8],
        guesses: &mut Guesses,
    ) -> New {
        let Codec { context, fast, plain, trust, .. } = self;
        // A fast one gives up on noise by itself.
        let (context, trust, shrunk) = match fast {
            Some(fast) if way == Way::Fast => (fast, &mut None, Format::Fast),
            _ => (context, trust, Format::Compressed),
        };
        let len = pages.len() * PAGE;
        let first = pages[0].index;
        // Pages in a row are compressed where they lie.
        let plain: &[u8] = if pages[pages.len() - 1].index - first + 1 == pages.len() {
            &window[first * PAGE..][..len]
        } else {
            for (to, page) in plain.chunks_exact_mut(PAGE).zip(pages) {
                to.copy_from_slice(&window[page.index * PAGE..][..PAGE]);
            }
            &plain[..len]
        };
        let (head, payload) = to.split_at_mut(prefix(pages.len()));
        let mut guess = trust.as_mut().filter(|_| {
            noise::looks_like_noise(plain) && !noise::any_twice(pages.iter().map(|page| page.hash))
        });
        let is_believed = guess.as_mut().is_some_and(|trust| trust.believes());
        let (bytes, format) =
            if is_believed { (len, Format::Plain) } else { shrink(context, plain, payload, shrunk) };
        let is_shrunk = format != Format::Plain;
        if let Some(trust) = guess {
            let is_wrong = is_shrunk;
            if !is_believed {
                trust.tried(!is_wrong);
            }
            guesses.believed += is_believed as u8;
            guesses.tried += !is_believed as u8;
            guesses.wrong += is_wrong as u8;
        }
        if !is_shrunk {
            payload[..len].copy_from_slice(plain);
        }
        object::write(head, format, pages.iter().map(|p| p.hash));
        New::Blob {
            fingerprint: object::fingerprint(pages.iter().map(|p| p.hash)),
            bytes: (head.len() + bytes) as u32,
            compressed: is_shrunk,
        }
    }

    /// Restores pages `first..` of an object, as many as `to` holds, and checks each, and that it is the object of this fingerprint.
    pub fn unpack(
        &mut self,
        object: &[u8],
        fingerprint: u32,
        first: usize,
        to: &mut [u8],
    ) -> Result<(), LoadError> {
        let count = to.len() / PAGE;
        let view = look(object, fingerprint, first + count)?;
        let (start, end) = (first * PAGE, first * PAGE + to.len());
        let context = match view.format {
            Format::Plain => None,
            Format::Compressed => Some(&mut self.context),
            // Of one compressor alone nothing is the fast one's.
            Format::Fast => Some(self.fast.as_mut().ok_or(LoadError::Stream)?),
        };
        match context {
            None => to.copy_from_slice(&view.payload[start..end]),
            Some(context) if count == view.pages => {
                let mut batch = [DecompressRequest::new(view.payload, to)];
                context.decompress(&mut batch);
                batch[0].result.map_err(|_| LoadError::Stream)?;
            }
            Some(context) => {
                // Only as far as the last page that is wanted.
                let plain = &mut self.plain[..end];
                let full = view.pages * PAGE;
                let read = context.decompress_prefix(view.payload, plain, full);
                read.map_err(|_| LoadError::Stream)?;
                to.copy_from_slice(&plain[start..]);
            }
        }
        self.check(&view, first, to)
    }

    /// Pages `first..` of an object are those that were stored.
    fn check(&self, view: &View<'_>, first: usize, pages: &[u8]) -> Result<(), LoadError> {
        let mut pages = pages.chunks_exact(PAGE).enumerate();
        let is_sound = pages.all(|(i, page)| page::hash(page, self.seed) == view.hash(first + i));
        if is_sound { Ok(()) } else { Err(LoadError::Checksum) }
    }
}

/// An object as far as its header tells of it: that it is the one of this fingerprint, with so many pages at least.
fn look(object: &[u8], fingerprint: u32, pages: usize) -> Result<View<'_>, LoadError> {
    let view = View::read(object).ok_or(LoadError::Stream)?;
    if view.fingerprint() != fingerprint {
        return Err(LoadError::Object);
    }
    if pages > view.pages { Err(LoadError::Stream) } else { Ok(view) }
}

/// Compresses into a payload, as long as that saves a thirty-second: less is not worth a decompression. It is of the format
/// `shrunk` then.
fn shrink(context: &mut Context, plain: &[u8], payload: &mut [u8], shrunk: Format) -> (usize, Format) {
    let len = plain.len();
    let mut batch = [CompressRequest::new(plain, &mut payload[..len - len / 32])];
    context.compress(&mut batch);
    match batch[0].result {
        Ok(Outcome::Shrunk(bytes)) => (bytes, shrunk),
        Ok(Outcome::Incompressible) | Err(_) => (len, Format::Plain),
    }
}
