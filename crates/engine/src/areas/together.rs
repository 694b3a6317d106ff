//! Which reads go to an area with one request: those of objects that lie beside each other.
//!
//! ```text
//!   area     |...AAAA|BB.CCCCC|.......DDD|....|        a letter is an object, | the border of a slot
//!   one request for   A, B, C and D, which lie in slots one after the other; the slot behind them is nobody's
//! ```

use alloc::collections::VecDeque;
use core::ops::Range;
use swap::{CLUSTER, SLOT};
use zswap::PARCEL_MAX_BYTES;
use zswap::objects::Read;

/// The most slots of a request: room for those around the largest object.
const TOGETHER: usize = PARCEL_MAX_BYTES.div_ceil(SLOT) + 1;

/// The most bytes of a request.
pub const TOGETHER_BYTES: usize = TOGETHER * SLOT;

/// So many slots in a row that nobody asked for are read rather than that another request is made.
const GAP: u32 = 2;

/// An object that is to be read.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Which, and where it lies.
    pub read: Read,
    /// How often it was tried before.
    pub tries: u32,
}

/// The reads of one request, the one that has waited longest first.
#[derive(Debug)]
pub struct Together {
    slots: Range<u32>,
    readings: VecDeque<Reading>,
}

impl Together {
    fn new(reading: Reading) -> Together {
        Together { slots: reading.read.place.slots(), readings: [reading].into() }
    }

    /// The slots that it reads, of one cluster.
    pub fn slots(&self) -> Range<u32> {
        self.slots.clone()
    }

    /// True when all of its reads were taken.
    pub fn is_empty(&self) -> bool {
        self.readings.is_empty()
    }

    /// Takes the first of them, and where in the request's bytes its object begins.
    pub fn pop(&mut self) -> Option<(Reading, usize)> {
        let reading = self.readings.pop_front()?;
        let place = reading.read.place;
        Some((reading, (place.slot - self.slots.start) as usize * SLOT + place.offset as usize))
    }

    /// Takes a read in if its object lies beside the others; false, and nothing has happened, where it does not.
    fn join(&mut self, reading: Reading) -> bool {
        let slots = reading.read.place.slots();
        let all = self.slots.start.min(slots.start)..self.slots.end.max(slots.end);
        let is_near = slots.start <= self.slots.end + GAP && self.slots.start <= slots.end + GAP;
        // One that has failed is tried alone: what is beside it may be why.
        let joins = is_near
            && all.len() <= TOGETHER
            && all.start / CLUSTER == (all.end - 1) / CLUSTER
            && reading.tries == 0
            && self.readings.iter().all(|other| other.tries == 0);
        if joins {
            self.slots = all;
            self.readings.push_back(reading);
        }
        joins
    }
}

/// Reads that are with nobody yet.
#[derive(Debug, Default)]
pub struct Waiting {
    readings: VecDeque<Reading>,
}

impl Waiting {
    /// One that was not tried before.
    pub fn add(&mut self, read: Read) {
        self.readings.push_back(Reading { read, tries: 0 });
    }

    /// One that was tried in vain.
    pub fn add_again(&mut self, reading: Reading) {
        self.readings.push_back(Reading { tries: reading.tries + 1, ..reading });
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.readings.len()
    }

    /// Takes the one that has waited longest, and all that goes with it.
    pub fn take(&mut self) -> Option<Together> {
        let mut together = Together::new(self.readings.pop_front()?);
        // What joins brings others near.
        while {
            let before = self.readings.len();
            self.readings.retain(|reading| !together.join(*reading));
            self.readings.len() < before
        } {}
        Some(together)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use base::Random;
    use swap::Place;

    fn read(id: u32, slot: u32, offset: u16, bytes: u32) -> Read {
        let place = Place { slot, offset, key: 0, bytes, serial: 1 };
        Read { id, place, fingerprint: 0, tag: [0; swap::seal::TAG], is_raw: false }
    }

    /// What a request reads: its slots, and the objects with where they begin.
    type Request = (Range<u32>, Vec<(u32, usize)>);

    fn requests(waiting: &mut Waiting) -> Vec<Request> {
        let mut requests = Vec::new();
        while let Some(mut together) = waiting.take() {
            let slots = together.slots();
            let objects = core::iter::from_fn(|| together.pop()).map(|(reading, at)| (reading.read.id, at));
            requests.push((slots, objects.collect()));
            assert!(together.is_empty());
        }
        requests
    }

    #[test]
    fn neighbours_come_with_one_request_and_the_first_that_was_asked_for_first() {
        let mut waiting = Waiting::default();
        let page = SLOT as u32;
        for (id, slot) in [(1, 10), (2, 14), (3, 12), (4, 400), (5, 9)] {
            waiting.add(read(id, slot, 0, page));
        }
        waiting.add(read(6, 15, 100, page));
        let objects = [(1, SLOT), (3, 3 * SLOT), (5, 0), (6, 6 * SLOT + 100), (2, 5 * SLOT)];
        assert_eq!(requests(&mut waiting), [(9..17, objects.into()), (400..401, [(4, 0)].into())]);
    }

    #[test]
    fn what_is_far_or_too_long_or_in_another_cluster_or_was_tried_goes_alone() {
        let (page, largest) = (SLOT as u32, PARCEL_MAX_BYTES as u32);
        let alone = |one: Reading, other: Reading| {
            let mut waiting = Waiting { readings: [one, other].into() };
            requests(&mut waiting).len() == 2
        };
        let at = |slot, bytes| Reading { read: read(slot, slot, 1, bytes), tries: 0 };
        assert!(!alone(at(5, page - 1), at(6 + GAP, page)) && alone(at(5, page - 1), at(7 + GAP, page)));
        assert!(alone(at(5, largest), at(5 + TOGETHER as u32, page)), "more than a buffer has room for");
        assert!(alone(at(CLUSTER - 1, page - 1), at(CLUSTER, page - 1)), "another area may begin there");
        let again = Reading { tries: 1, ..at(6, page - 1) };
        assert!(alone(at(5, page - 1), again) && alone(again, at(5, page - 1)));
        assert!(!alone(at(5, page - 1), at(6, page - 1)));
    }

    #[test]
    fn each_read_is_in_one_request_that_has_all_of_its_bytes() {
        for seed in 0..200 {
            let (mut random, mut waiting) = (Random(seed), Waiting::default());
            let reads: Vec<Read> = (0..50)
                .map(|id| {
                    let most = if random.below(4) == 0 { PARCEL_MAX_BYTES } else { SLOT };
                    let bytes = 1 + random.below(most);
                    read(id, random.below(600) as u32, random.below(SLOT) as u16, bytes as u32)
                })
                .filter(|read| read.place.slots().end.div_ceil(CLUSTER) == read.place.slot / CLUSTER + 1)
                .collect();
            reads.iter().for_each(|read| waiting.add(*read));
            let mut seen = Vec::new();
            for (slots, objects) in requests(&mut waiting) {
                assert!(slots.len() <= TOGETHER, "seed {seed}: {slots:?}");
                for (id, at) in objects {
                    let place = reads.iter().find(|read| read.id == id).expect("one of them").place;
                    let end = at + place.bytes as usize;
                    assert!(end <= slots.len() * SLOT, "seed {seed}: {id} ends at {end} of {slots:?}");
                    assert_eq!(slots.start as usize * SLOT + at, place.at() as usize, "seed {seed}: {id}");
                    seen.push(id);
                }
            }
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(reads.iter().map(|read| read.id)), "seed {seed}");
        }
    }
}
