//! Objects that go to an area and come back, against a map of what each must hold.

use super::*;
use crate::layout::plain_bytes;
use base::Random;
use std::collections::BTreeMap;
use swap::{Row, Slots, Table};

const CLUSTERS: u32 = 2;

/// The pool and the area, which say what lies where, and notice what is freed twice or read too late.
#[derive(Default)]
struct Shelves {
    pool: BTreeMap<u32, u64>,
    handles: u32,
    /// By where it begins: its end, its serial and what it holds.
    disk: BTreeMap<u64, (u64, u64, u64)>,
    writes: Vec<(usize, Vec<(Piece, u64)>)>,
    reads: Vec<Read>,
}

impl Shelves {
    fn put(&mut self, contents: u64) -> Body {
        self.handles += 1;
        self.pool.insert(self.handles, contents);
        // From much smaller than a page to larger than any.
        let bytes = [300, 1400, 4140, 20_000, 65_900][contents as usize % 5];
        Body::Blob { handle: self.handles, fingerprint: contents as u32, bytes }
    }
}

impl Contents for Shelves {
    fn hash(&self, body: Body, page: usize) -> Option<u128> {
        let Body::Blob { handle, .. } = body else { panic!("{body:?} has no hashes that leave the pool") };
        let contents = self.pool[&handle];
        // Some are damaged.
        (!contents.is_multiple_of(11)).then(|| hash_of(contents, page))
    }

    fn free(&mut self, body: Body) {
        if let Body::Blob { handle, .. } = body {
            assert!(self.pool.remove(&handle).is_some(), "{handle} is freed twice");
        }
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

impl Areas for Shelves {
    fn write(&mut self, number: usize, batch: &mut Batch) {
        assert!(batch.bytes() <= batch.run.bytes(), "a batch is larger than its run");
        let raw = batch.pieces.iter().filter(|piece| piece.is_raw);
        assert!(raw.map(|piece| piece.place).all(|place| place.offset == 0 && place.bytes % 4096 == 0));
        let pieces = batch.pieces.iter().map(|piece| {
            let Body::Blob { handle, .. } = piece.body else { panic!("{piece:?} is not in the pool") };
            (*piece, self.pool[&handle])
        });
        let pieces = pieces.collect();
        self.writes.push((number, pieces));
    }

    fn read(&mut self, read: Read) {
        self.reads.push(read);
    }

    fn submit(&mut self) {}

    fn discard(&mut self, slots: core::ops::Range<u32>) {
        let (start, end) = (slots.start as u64 * 4096, slots.end as u64 * 4096);
        self.disk.retain(|at, (old_end, ..)| *at >= end || *old_end <= start);
    }

    fn find(&self, slot: u32) -> Option<(usize, u64)> {
        Some((0, slot as u64 * 4096))
    }
}

/// Of a page of an object that holds this.
fn hash_of(contents: u64, page: usize) -> u128 {
    (contents as u128) << 8 | page as u128
}

/// A world with an area, and what each object must hold.
struct Model {
    objects: Objects<Shelves>,
    /// By object: what it holds, and how many depend on it and only name it.
    expected: BTreeMap<u32, (u64, u16, u16)>,
    random: Random,
    made: u64,
    /// How often a page was as it is in the area.
    reused_in_area: u64,
    table: Table,
}

impl Model {
    fn new(seed: u64) -> Model {
        let words = (0..CLUSTERS).map(|_| Default::default()).collect();
        let shared = (0..Table::shared_len(CLUSTERS as usize)).map(|_| Default::default()).collect();
        let table = Table::new(Vec::leak(words), Vec::leak(shared));
        let row: Row = table.take_row(1).expect("nobody has one");
        let mut objects = Objects::new(Shelves::default());
        objects.swapped_mut().open(Slots::new(table, row, [(0..CLUSTERS, 0)]));
        Model { objects, expected: BTreeMap::new(), random: Random(seed), made: 0, reused_in_area: 0, table }
    }

    fn any(&mut self) -> Option<u32> {
        let count = self.expected.len();
        let at = (count > 0).then(|| self.random.below(count))?;
        self.expected.keys().nth(at).copied()
    }

    fn step(&mut self) {
        match self.random.below(12) {
            0..3 => {
                let pages = 1 + self.random.below(16);
                self.made += 1;
                let mut body = self.objects.store_mut().put(self.made);
                // Some are noise.
                if let (Body::Blob { bytes, .. }, 0) = (&mut body, self.made % 3) {
                    *bytes = plain_bytes(pages) as u32;
                }
                let id = self.objects.insert(body, pages, 0);
                (0..pages).for_each(|_| self.objects.retain(id, true));
                self.expected.insert(id, (self.made, pages as u16, 0));
            }
            3..5 => self.load(),
            5..7 => self.lose_one(),
            7 => drop(self.objects.drop_clean(0)),
            8..10 => drop(self.objects.write_back()),
            10 => self.finish_write(),
            _ => self.finish_read(),
        }
    }

    /// A page of an object is loaded: it must be in the pool, or is read first. A page of a clean copy may go out
    /// again unchanged.
    fn load(&mut self) {
        let Some(id) = self.any() else { return };
        let (contents, stored, named) = self.expected[&id];
        if named > 0 && self.objects.get(id).is_sound() && self.random.one_in(3) {
            let page = self.random.below(self.objects.get(id).pages as usize);
            if self.objects.get(id).is_swapped() {
                self.reused_in_area += 1;
                assert_eq!(self.objects.hash_in_area(id, page), Some(hash_of(contents, page)));
            }
            self.objects.depend(id);
            self.expected.insert(id, (contents, stored + 1, named - 1));
            return;
        }
        match self.objects.get(id).body {
            Body::Blob { handle, .. } => {
                assert_eq!(self.objects.store().pool[&handle], contents);
                if stored > 0 {
                    let is_left = self.random.one_in(2) && self.objects.leave_to_area(id);
                    assert!(!is_left || self.objects.get(id).pages == 1);
                    if !is_left {
                        self.objects.clean(id);
                    }
                    self.expected.insert(id, (contents, stored - 1, named + 1));
                }
            }
            Body::Swapped if stored > 0 => drop(self.objects.read_back(id)),
            Body::Swapped => assert!(named > 0, "nobody names {id}"),
            body => assert_eq!((body, stored), (Body::Dropped, 0), "nobody has what {id} held"),
        }
    }

    fn lose_one(&mut self) {
        let Some(id) = self.any() else { return };
        let (contents, stored, named) = self.expected[&id];
        let is_stored = stored > 0 && (named == 0 || self.random.one_in(2));
        self.objects.release(id, is_stored);
        let left = (contents, stored - is_stored as u16, named - !is_stored as u16);
        if left.1 + left.2 == 0 {
            self.expected.remove(&id);
        } else {
            self.expected.insert(id, left);
        }
    }

    fn finish_write(&mut self) {
        let count = self.objects.store().writes.len();
        if count == 0 {
            return;
        }
        let (number, pieces) = self.objects.store_mut().writes.swap_remove(self.random.below(count));
        let is_written = !self.random.one_in(4);
        for (Piece { place, .. }, contents) in pieces {
            let (at, end) = (place.at(), place.at() + place.bytes as u64);
            let disk = &mut self.objects.store_mut().disk;
            disk.retain(|old_at, (old_end, ..)| *old_at >= end || *old_end <= at);
            if is_written || self.random.one_in(2) {
                disk.insert(at, (end, place.serial, contents));
            }
        }
        self.objects.written(number, is_written);
    }

    fn finish_read(&mut self) {
        let count = self.objects.store().reads.len();
        if count == 0 {
            self.objects.served();
            return;
        }
        let read = self.objects.store_mut().reads.swap_remove(self.random.below(count));
        let came = if self.random.one_in(4) {
            Came::Not
        } else {
            let (end, serial, contents) = self.objects.store().disk[&read.place.at()];
            let place = read.place;
            assert_eq!(
                (end, serial),
                (place.at() + place.bytes as u64, { place.serial }),
                "it was overwritten"
            );
            Came::Here(self.objects.store_mut().put(contents))
        };
        self.objects.came_back(read.id, came);
    }

    fn check(&self) {
        assert_eq!(self.objects.check(), Ok(()));
        let under_way: Vec<u32> = self.objects.swapped().named().collect();
        for (id, object) in self.objects.iter() {
            let (_, stored, named) = self.expected.get(&id).copied().unwrap_or_default();
            let io = under_way.iter().filter(|other| **other == id).count() as u16;
            assert_eq!((object.stored, object.refs), (stored, stored + named + io), "{id}: {object:?}");
        }
    }
}

#[test]
fn what_an_object_holds_is_in_the_pool_or_in_the_area_until_nobody_needs_it() {
    let (mut written, mut reused, mut most) = (0, 0, 0);
    for seed in 1..=30 {
        let mut model = Model::new(seed);
        for step in 0..4000 {
            model.step();
            if step % 16 == 0 {
                model.check();
            }
            most = most.max(model.expected.len());
        }
        written += model.objects.swapped().slots().map_or(0, Slots::used_slots);
        reused += model.reused_in_area;
        // In the end nobody needs anything, and nothing is left, in pool or area.
        while !model.expected.is_empty() {
            model.lose_one();
        }
        while model.objects.swapped().under_way() != (0, 0) {
            model.finish_write();
            model.finish_read();
        }
        model.check();
        assert_eq!(
            (model.objects.iter().count(), &model.objects.store().pool),
            (0, &BTreeMap::new()),
            "seed {seed}"
        );
        let slots = model.objects.swapped_mut().slots_mut().expect("opened above");
        assert_eq!(slots.used_slots(), 0, "seed {seed}");
        slots.give_back_empty(|_| ());
        assert_eq!(model.table.free_clusters(0..CLUSTERS), CLUSTERS, "seed {seed}");
    }
    assert!(
        written > 1000 && most > 50 && reused > 100,
        "{written} slots in use, {most} objects, {reused} pages as in the area"
    );
}

#[test]
fn what_is_being_read_keeps_its_slots_though_nobody_needs_it_any_more() {
    let mut model = Model::new(1);
    let used = |model: &Model| model.objects.swapped().slots().map_or(0, Slots::used_slots);
    let body = model.objects.store_mut().put(1);
    let id = model.objects.insert(body, 1, 0);
    model.objects.retain(id, true);
    assert!(matches!(model.objects.write_back(), WriteBack::Begun { .. }));
    model.objects.written(0, true);
    assert!(model.objects.get(id).is_swapped() && model.objects.read_back(id));
    model.objects.retain(id, false);
    model.objects.release(id, true);
    assert!((used(&model), model.objects.check()) == (1, Ok(())), "another would be written there");
    let came = model.objects.store_mut().put(1);
    model.objects.came_back(id, Came::Here(came));
    assert_eq!((used(&model), model.objects.check()), (0, Ok(())));
    assert!(model.objects.store().pool.is_empty());
    model.objects.release(id, false);
    assert_eq!(model.objects.check(), Ok(()));
}

/// So many objects of a page whose place is kept while their page is in the program.
fn kept_in_area(count: u64) -> (Model, Vec<u32>) {
    let mut model = Model::new(1);
    let make = |model: &mut Model, contents| {
        let body = match model.objects.store_mut().put(contents) {
            Body::Blob { handle, fingerprint, .. } => {
                Body::Blob { handle, fingerprint, bytes: plain_bytes(1) as u32 }
            }
            body => body,
        };
        let id = model.objects.insert(body, 1, 0);
        model.objects.retain(id, true);
        id
    };
    let contents = (1..).filter(|contents: &u64| !contents.is_multiple_of(11)).take(count as usize);
    let ids: Vec<u32> = contents.map(|contents| make(&mut model, contents)).collect();
    while ids.iter().any(|id| !model.objects.get(*id).is_swapped()) {
        model.objects.write_back();
        model.finish_write();
    }
    for &id in &ids {
        while model.objects.get(id).is_swapped() {
            model.objects.read_back(id);
            model.finish_read();
        }
        assert!(model.objects.leave_to_area(id));
    }
    (model, ids)
}

#[test]
fn places_are_given_up_where_there_is_little_room() {
    for (count, is_kept) in [(300, true), (700, false)] {
        let (mut model, ids) = kept_in_area(count);
        model.objects.give_back_slots();
        assert_eq!(model.objects.check(), Ok(()));
        assert!(ids.iter().all(|id| model.objects.get(*id).is_sound() == is_kept), "{count}");
        let used = model.objects.swapped().slots().map(Slots::used_slots);
        assert_eq!(used, Some(if is_kept { count } else { 0 }));
    }
}

#[test]
fn places_in_an_area_that_takes_no_more_are_kept() {
    let (mut model, ids) = kept_in_area(700);
    model.objects.swapped_mut().slots_mut().expect("opened above").close_area(0);
    let body = model.objects.store_mut().put(1);
    let id = model.objects.insert(body, 1, 0);
    model.objects.retain(id, true);
    assert_eq!(model.objects.write_back(), WriteBack::Full);
    model.objects.give_back_slots();
    assert!(ids.iter().all(|id| model.objects.get(*id).is_sound()), "there would be no more room");
}

/// Its other pages are in the program, and would be lost with it.
#[test]
fn what_an_area_has_lost_is_nothing_that_a_page_is_as() {
    let mut model = Model::new(1);
    let body = model.objects.store_mut().put(1);
    let id = model.objects.insert(body, 16, 0);
    (0..16).for_each(|_| model.objects.retain(id, true));
    (0..15).for_each(|_| model.objects.clean(id));
    assert!(matches!(model.objects.write_back(), WriteBack::Begun { .. }));
    model.objects.written(0, true);
    assert_eq!(model.objects.hash_in_area(id, 15), Some(hash_of(1, 15)));
    assert!(model.objects.get(id).is_swapped() && model.objects.get(id).is_sound());
    assert!(model.objects.read_back(id));
    model.objects.came_back(id, Came::Lost(crate::Damaged::Seal));
    assert!(model.objects.get(id).is_lost() && !model.objects.get(id).is_sound());
    assert_eq!((model.objects.hash_in_area(id, 15), model.objects.check()), (None, Ok(())));
    model.objects.release(id, true);
    let used = model.objects.swapped().slots().map(Slots::used_slots);
    assert_eq!((used, model.objects.get(id).body), (Some(0), Body::Dropped));
}
