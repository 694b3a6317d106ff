//! The worker that looks for dictionaries, beside its work (zswap/tutor.rs).

use crate::shelf::Shelf;
use uffd::sys;
use zswap::{Codec, Packed, Tutor, Verdict, With};

/// It takes one part in so many of the worker's time.
const PART: u64 = 8;

/// One worker's lessons.
pub struct Lessons {
    shelf: &'static Shelf,
    tutor: Tutor,
    next_ns: u64,
}

impl Lessons {
    /// Nothing is known yet. In the test mode dictionaries come and go all the time.
    pub fn new(shelf: &'static Shelf, evict_all: bool) -> Lessons {
        let tutor = if evict_all { Tutor::hasty() } else { Tutor::default() };
        Lessons { shelf, tutor, next_ns: 0 }
    }

    /// Is told of what was packed ([`Tutor::see`]).
    pub fn see(&mut self, window: &[u8], unit: usize, packed: &Packed, with: With) {
        self.tutor.see(window, unit, packed, with);
    }

    /// How long until there is something to be done, at most `most_ns`.
    pub fn rest_ns(&self, most_ns: u64) -> u64 {
        let rest = || self.next_ns.saturating_sub(sys::now_ns()).max(1).min(most_ns);
        if self.tutor.is_busy() { rest() } else { most_ns }
    }

    /// Does a little, if it is time.
    pub fn turn(&mut self, codec: &mut Codec) {
        if !self.tutor.is_busy() || !self.shelf.is_heard() {
            return;
        }
        let began = sys::now_ns();
        if began < self.next_ns {
            return;
        }
        if let Some(verdict) = self.tutor.turn(codec, || self.shelf.claim()) {
            if let Verdict::Trained { place, .. } = verdict
                && let Some(dictionary) = codec.dictionary(place)
            {
                self.shelf.fill(place, dictionary);
            }
            self.shelf.tell(verdict);
        }
        let now = sys::now_ns();
        self.next_ns = now + (now - began) * (PART - 1);
    }
}
