//! Store, load and invalidate.

use crate::object::{self, Format, View, prefix};
use crate::page::{self, Hash};
use crate::{PAGE, WINDOW_PAGES};
use acomp::{CompressRequest, Compressor, Context, DecompressRequest, Outcome};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use zsmalloc::{Backing, Handle, Pool};

/// The cache of one process. Workers share it.
pub struct Cache<B: Backing> {
    pool: Pool<B>,
    compressor: Compressor,
    seed: u64,
}

/// What one worker needs: a compressor's context and buffers, made before the first page goes out.
pub struct Worker {
    context: Context,
    plain: Vec<u8>,
    packed: Vec<u8>,
}

/// The object and page within it that a page was loaded from.
#[derive(Clone, Copy, Debug)]
pub struct Prior {
    /// The object.
    pub handle: Handle,
    /// Page within it.
    pub page: usize,
}

/// What has become of a window's pages; masks by bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Equal to their priors.
    pub reused: u16,
    /// All zeros.
    pub zero: u16,
    /// In new objects, in order.
    pub in_objects: u16,
}

/// A new object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// In the pool.
    Blob {
        /// Its handle.
        handle: Handle,
        /// Of its pages, in order.
        fingerprint: u32,
        /// Bytes in the pool.
        bytes: u32,
        /// False when the pages did not shrink and are kept as they are.
        compressed: bool,
    },
    /// One word fills all pages.
    Same(u64),
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

impl Worker {
    /// A worker for `compressor`; allocates all that it will ever need.
    pub fn new(compressor: Compressor) -> Result<Worker, acomp::Error> {
        let window = WINDOW_PAGES * PAGE;
        Ok(Worker {
            context: Context::new(compressor, window)?,
            plain: vec![0; window],
            packed: vec![0; window],
        })
    }
}

impl<B: Backing> Cache<B> {
    /// An empty cache. `seed` keys the hashes.
    pub fn new(backing: B, compressor: Compressor, seed: u64) -> Self {
        Cache { pool: Pool::new(backing), compressor, seed }
    }

    /// The compressor that all workers must have.
    pub fn compressor(&self) -> Compressor {
        self.compressor
    }

    /// The pool, for statistics and compaction.
    pub fn pool(&self) -> &Pool<B> {
        &self.pool
    }

    /// Stores those pages of `window` that `pages` names by bit, in objects of up to `unit` pages, which are written to `objects`. Where one
    /// is missing the pool had no memory for it.
    pub fn store(
        &self,
        worker: &mut Worker,
        window: &[u8],
        pages: u16,
        unit: usize,
        priors: &[Option<Prior>; WINDOW_PAGES],
        objects: &mut [Option<Object>],
    ) -> Stored {
        let mut stored = Stored::default();
        let mut fresh = [Fresh::default(); WINDOW_PAGES];
        let mut count = 0;
        for index in (0..WINDOW_PAGES).filter(|i| pages & 1 << i != 0) {
            let bytes = &window[index * PAGE..][..PAGE];
            let word = page::same_filled(bytes);
            if word == Some(0) {
                stored.zero |= 1 << index;
                continue;
            }
            let hash = page::hash(bytes, self.seed);
            if priors[index].is_some_and(|prior| self.recorded_hash(prior) == Some(hash)) {
                stored.reused |= 1 << index;
                continue;
            }
            stored.in_objects |= 1 << index;
            fresh[count] = Fresh { index, word, hash };
            count += 1;
        }
        for (object, pages) in objects.iter_mut().zip(fresh[..count].chunks(unit)) {
            *object = match pages[0].word {
                Some(word) if pages.iter().all(|p| p.word == Some(word)) => Some(Object::Same(word)),
                _ => self.compress(worker, window, pages),
            };
        }
        stored
    }

    /// The hash of a page when it was stored; `None` where the object says something else than its prior.
    fn recorded_hash(&self, prior: Prior) -> Option<Hash> {
        let object = self.pool.read(prior.handle);
        View::read(&object).filter(|v| prior.page < v.pages).map(|v| v.hash(prior.page))
    }

    fn compress(&self, worker: &mut Worker, window: &[u8], pages: &[Fresh]) -> Option<Object> {
        let Worker { context, plain, packed } = worker;
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
        // What saves less than a thirty-second is not worth a decompression.
        let mut batch = [CompressRequest::new(plain, &mut packed[..len - len / 32])];
        context.compress(&mut batch);
        let [request] = batch;
        let (payload, format): (&[u8], _) = match request.result {
            Ok(Outcome::Shrunk(bytes)) => (&packed[..bytes], Format::Compressed),
            Ok(Outcome::Incompressible) | Err(_) => (plain, Format::Plain),
        };
        let (bytes, compressed) = (prefix(pages.len()) + payload.len(), format == Format::Compressed);
        let fingerprint = object::fingerprint(pages.iter().map(|p| p.hash));
        let handle = self.pool.alloc(bytes)?;
        self.pool.write(handle, |object| {
            object::write(object, format, pages.iter().map(|p| p.hash));
            object[prefix(pages.len())..].copy_from_slice(payload);
        });
        Some(Object::Blob { handle, fingerprint, bytes: bytes as u32, compressed })
    }

    /// Loads pages `first..` of an object, as many as `to` holds, and checks each, and that it is the object of this fingerprint.
    pub fn load(
        &self,
        worker: &mut Worker,
        handle: Handle,
        fingerprint: u32,
        first: usize,
        to: &mut [u8],
    ) -> Result<(), LoadError> {
        let object = self.pool.read(handle);
        let view = View::read(&object).ok_or(LoadError::Stream)?;
        let count = to.len() / PAGE;
        if view.fingerprint() != fingerprint {
            return Err(LoadError::Object);
        }
        if first + count > view.pages {
            return Err(LoadError::Stream);
        }
        let (start, end) = (first * PAGE, first * PAGE + to.len());
        match view.format {
            Format::Plain => to.copy_from_slice(&view.payload[start..end]),
            Format::Compressed if count == view.pages => {
                let mut batch = [DecompressRequest::new(view.payload, to)];
                worker.context.decompress(&mut batch);
                batch[0].result.map_err(|_| LoadError::Stream)?;
            }
            Format::Compressed => {
                // Only as far as the last page that is wanted.
                let plain = &mut worker.plain[..end];
                let full = view.pages * PAGE;
                worker.context.decompress_prefix(view.payload, plain, full).map_err(|_| LoadError::Stream)?;
                to.copy_from_slice(&plain[start..]);
            }
        }
        let sound =
            to.chunks_exact(PAGE).enumerate().all(|(i, p)| page::hash(p, self.seed) == view.hash(first + i));
        if sound { Ok(()) } else { Err(LoadError::Checksum) }
    }

    /// Gives an object's memory back.
    pub fn invalidate(&self, handle: Handle) {
        self.pool.free(handle);
    }
}
