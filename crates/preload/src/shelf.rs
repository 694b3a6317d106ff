//! The dictionaries of a process, where its engine and its workers both have them: on the board.
//!
//! ```text
//!   free ── claim, fill (who trains) ──> filled ── news: kept ──> named (engine) ── no object needs it ──> free
//!    ^                                     └── news: not kept ─────────────────────────────^
//! ```
//!
//! This is safe because
//! 1. a place is claimed by its bit, and written to by who has claimed it alone, before that says so by news;
//! 2. there is one piece of news at a time: written while `has_news` is 0 by who trains, which is one worker, read while it is 1 by the engine;
//! 3. a named place is not written to until the engine has freed it, which it does where no object and no job names it, so that nobody reads it.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering::*};
use zswap::{Name, PLACES, Verdict};

/// The longest dictionary.
const BYTES: usize = acomp::TRAINED_BYTES;

struct Place {
    /// The dictionary's, 0 while it has none.
    name: AtomicU32,
    len: AtomicU32,
    bytes: UnsafeCell<[u8; BYTES]>,
}

/// See the head of the file. All zeros is one on which nothing is.
pub struct Shelf {
    /// Which places are somebody's, by bit.
    taken: AtomicU32,
    has_news: AtomicU32,
    news: UnsafeCell<Option<Verdict>>,
    places: [Place; PLACES],
}

// SAFETY: see the list at the head of the file.
unsafe impl Sync for Shelf {}

impl Shelf {
    /// Bytes of it that are in use.
    pub fn bytes(&self) -> usize {
        self.taken.load(Relaxed).count_ones() as usize * BYTES
    }

    /// Takes a free place, if there is one.
    pub fn claim(&self) -> Option<usize> {
        let place = (!self.taken.load(Acquire)).trailing_zeros() as usize;
        let is_free = place < PLACES && self.taken.fetch_or(1 << place, AcqRel) & 1 << place == 0;
        is_free.then_some(place)
    }

    /// Gives a place back, on which nobody needs anything any more.
    pub fn free(&self, place: usize) {
        self.places[place].name.store(0, Release);
        self.taken.fetch_and(!(1 << place), AcqRel);
    }

    /// Writes a dictionary to a place that the caller has claimed.
    pub fn fill(&self, place: usize, dictionary: &[u8]) {
        let Place { len, bytes, .. } = &self.places[place];
        // SAFETY: it is the caller's alone.
        unsafe { (&mut *bytes.get())[..dictionary.len()].copy_from_slice(dictionary) };
        len.store(dictionary.len() as u32, Release);
    }

    /// From now on the dictionary at a place is found by its name.
    pub fn name(&self, place: usize, name: Name) {
        self.places[place].name.store(name, Release);
    }

    /// What lies at a place that was filled.
    pub fn at(&self, place: usize) -> &[u8] {
        let Place { len, bytes, .. } = &self.places[place];
        // SAFETY: written before `len`, and not again while the caller may read it.
        unsafe { &(&*bytes.get())[..(len.load(Acquire) as usize).min(BYTES)] }
    }

    /// Where the dictionary of this name is.
    pub fn place(&self, name: Name) -> Option<usize> {
        self.places.iter().position(|place| name != 0 && place.name.load(Acquire) == name)
    }

    /// True when the engine has heard all.
    pub fn is_heard(&self) -> bool {
        self.has_news.load(Acquire) == 0
    }

    /// Tells the engine, which must have heard all.
    pub fn tell(&self, verdict: Verdict) {
        // SAFETY: there is one who tells, and nobody reads while there is no news.
        unsafe { *self.news.get() = Some(verdict) };
        self.has_news.store(1, Release);
    }

    /// For the engine: what there is to be heard.
    pub fn hear(&self) -> Option<Verdict> {
        if self.is_heard() {
            return None;
        }
        // SAFETY: nobody writes while there is news.
        let news = unsafe { *self.news.get() };
        self.has_news.store(0, Release);
        news
    }
}
