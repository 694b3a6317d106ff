//! Objects and their clean copies, beside a store that only notes what is freed.

use super::*;
use crate::layout::plain_bytes;
use swap::{Slots, Table};

/// Handles in the order in which they were freed.
#[derive(Default)]
struct Freed(Vec<u32>);

impl Contents for Freed {
    fn hash(&self, _: Body, _: usize) -> Option<u128> {
        None
    }

    fn free(&mut self, body: Body) {
        if let Body::Blob { handle, .. } = body {
            self.0.push(handle);
        }
    }

    fn freeze(&mut self) {}

    fn thaw(&mut self) {}

    fn pool_bytes(&self) -> usize {
        0
    }
}

#[test]
fn of_clean_copies_those_past_due_go_first_and_then_the_newest() {
    let mut objects = Objects::new(Freed::default());
    let ids: Vec<u32> = (0..4)
        .map(|n| {
            objects.set_clock(n as usize * 10);
            let id = objects.insert(Body::Blob { handle: n, fingerprint: 0, bytes: 1000 }, 16, 0);
            objects.retain(id, true);
            objects.clean(id);
            id
        })
        .collect();
    assert_eq!(objects.clean_bytes(), 4000);
    // Clean since 0, 10, 20 and 30 evictions, after 30 of them.
    assert!(objects.drop_clean(25));
    assert!(objects.drop_clean(25));
    assert_eq!(objects.store().0, [0, 3]);
    // Wanted in between, it is as young as the last time that it was given back.
    objects.depend(ids[1]);
    objects.set_clock(60);
    objects.clean(ids[1]);
    assert!(objects.drop_clean(35));
    assert_eq!(objects.store().0, [0, 3, 2]);
    assert!(objects.drop_clean(35));
    assert_eq!((&objects.store().0, objects.clean_bytes()), (&Vec::from([0, 3, 2, 1]), 0));
    assert!(!objects.drop_clean(35));
}

#[test]
fn what_is_frozen_is_no_copy_to_give_up_until_it_is_thawed() {
    let mut objects = Objects::new(Freed::default());
    let make = |objects: &mut Objects<Freed>, handle| {
        let id = objects.insert(Body::Blob { handle, fingerprint: 0, bytes: 1000 }, 16, 0);
        objects.retain(id, true);
        id
    };
    let (clean, stored) = (make(&mut objects, 1), make(&mut objects, 2));
    objects.clean(clean);
    objects.freeze();
    let new = make(&mut objects, 3);
    objects.clean(stored);
    objects.clean(new);
    assert_eq!(objects.clean_bytes(), 1000, "the new one alone");
    assert!(objects.drop_clean(100) && !objects.drop_clean(100));
    assert_eq!(objects.store().0, [3]);
    objects.depend(clean);
    objects.thaw();
    assert_eq!(objects.clean_bytes(), 1000, "that on which nobody depends");
    assert!(objects.drop_clean(100));
    assert_eq!((&objects.store().0, objects.clean_bytes()), (&Vec::from([3, 2]), 0));
}

/// Notes what is written and freed.
#[derive(Default)]
struct Written {
    batches: Vec<Batch>,
    freed: usize,
    /// Finds all damaged.
    is_damaged: bool,
}

impl Contents for Written {
    fn hash(&self, _: Body, _: usize) -> Option<u128> {
        None
    }

    fn free(&mut self, _: Body) {
        self.freed += 1;
    }

    fn freeze(&mut self) {}

    fn thaw(&mut self) {}

    fn pool_bytes(&self) -> usize {
        0
    }

    fn areas(&mut self) -> Option<&mut dyn Areas> {
        Some(self)
    }
}

impl Areas for Written {
    fn write(&mut self, _: usize, batch: &mut Batch) {
        batch.pieces.iter_mut().for_each(|piece| piece.is_damaged = self.is_damaged);
        self.batches.push(batch.clone());
    }

    fn read(&mut self, _: Read) {}

    fn submit(&mut self) {}

    fn discard(&mut self, _: Range<u32>) {}

    fn find(&self, _: u32) -> Option<(usize, u64)> {
        None
    }
}

/// So many windows of noise, and an area of one cluster.
fn noise(windows: u32) -> Objects<Written> {
    let words = (0..1).map(|_| Default::default()).collect();
    let shared = (0..Table::shared_len(1)).map(|_| Default::default()).collect();
    let table = Table::new(Vec::leak(words), Vec::leak(shared));
    let mut objects = Objects::new(Written::default());
    let row = table.take_row(1).expect("nobody has one");
    objects.swapped_mut().open(Slots::new(table, row, [(0..1, 0)]));
    for handle in 1..=windows {
        let body = Body::Blob { handle, fingerprint: 0, bytes: plain_bytes(16) as u32 };
        let id = objects.insert(body, 16, 0);
        (0..16).for_each(|_| objects.retain(id, true));
    }
    objects
}

#[test]
fn what_is_damaged_stays_in_the_pool_and_is_not_tried_again() {
    let mut objects = noise(2);
    objects.store_mut().is_damaged = true;
    assert!(matches!(objects.write_back(), WriteBack::Begun { .. }));
    objects.written(0, true);
    assert_eq!((objects.write_back(), objects.store().freed), (WriteBack::None, 0));
    assert_eq!((objects.check(), objects.swapped_pages()), (Ok(()), 0));
    let slots = objects.swapped().slots().unwrap();
    assert_eq!(slots.used_slots(), 0);
    (0..2).for_each(|id| (0..16).for_each(|_| objects.release(id, true)));
    assert_eq!((objects.check(), objects.store().freed), (Ok(()), 2));
}

/// With hashes and header beside their pages a window took 17 slots, of which one fits into a batch of 32.
#[test]
fn windows_that_did_not_shrink_fill_an_area_to_the_last_slot() {
    let mut objects = noise(40);
    while let WriteBack::Begun { bytes } = objects.write_back() {
        assert_eq!(bytes, BATCH_BYTES);
        objects.written(0, true);
    }
    let places: Vec<_> = objects.store().batches.iter().flat_map(|batch| &batch.pieces).collect();
    assert_eq!(places.len(), swap::CLUSTER as usize / 16);
    assert!(places.iter().all(|piece| piece.is_raw && piece.place.slots().len() == 16));
    assert_eq!(objects.check(), Ok(()));
}

#[test]
fn how_much_has_left_the_pool_since_an_object_did_is_known() {
    let mut objects = noise(4);
    while let WriteBack::Begun { .. } = objects.write_back() {
        objects.written(0, true);
    }
    assert_eq!([0, 1, 2, 3].map(|id| objects.left_since(id)), [16, 32, 48, 64], "the newest first");
    assert!(objects.read_back(0));
    objects.came_back(0, Came::Here(Body::Blob { handle: 9, fingerprint: 0, bytes: plain_bytes(16) as u32 }));
    objects.served();
    (0..6).for_each(|_| objects.release(0, true));
    while let WriteBack::Freed { .. } = objects.write_back() {}
    assert_eq!(
        [0, 1, 2, 3].map(|id| objects.left_since(id)),
        [10, 42, 58, 74],
        "it leaves once more, with less"
    );
}

#[test]
fn what_was_read_ahead_and_leaves_the_pool_unasked_for_is_counted() {
    let mut objects = noise(4);
    while let WriteBack::Begun { .. } = objects.write_back() {
        objects.written(0, true);
    }
    let body = |id: u32| Body::Blob { handle: id + 1, fingerprint: 0, bytes: plain_bytes(16) as u32 };
    for id in 0..4 {
        assert!(objects.read_back(id) && !objects.read_back(id));
        objects.note_ahead(id);
        objects.came_back(id, Came::Here(body(id)));
    }
    objects.served();
    assert_eq!([0, 0].map(|id| objects.take_ahead(id)), [true, false], "once");
    // With what lies beside it, which nobody asked for.
    (0..16).for_each(|_| objects.clean(1));
    assert!(!objects.take_ahead(1));
    // Each has a second chance.
    while let WriteBack::Freed { .. } = objects.write_back() {}
    assert_eq!([objects.take_vain(), objects.take_vain()], [32, 0]);
    assert_eq!((objects.swapped_pages(), objects.check()), (48, Ok(())));
}
