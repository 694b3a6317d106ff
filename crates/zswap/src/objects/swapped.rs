//! What lies in areas, and what is on its way there and back.
//!
//! Objects go out in batches: each batch has a run of slots of its own, in which its objects lie one after the other,
//! and which is written at once. A batch that could not be written leaves nothing behind.
//!
//! ```text
//!   in the pool ── write_back ──> Out ── written ──> Swapped ── read_back ──> In ── came_back ──> Back ── served ──┐
//!        ^                         │                    ^                     └── in vain ──> Lost                  │
//!        └──────── in vain ────────┘                    └──── write_back, nothing is written ─── in the pool too <──┘
//! ```
//!
//! Invariants: what is `Out` is in one batch, what is `In` in one read, and each names its object; places that are no
//! object's are free.

use crate::objects::entries::Entries;
use crate::objects::object::{Body, Io, Object};
use crate::objects::swap_cache::Left;
use crate::{Damaged, PAGE};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::num::NonZeroU32;
use swap::seal::TAG;
use swap::slots::{Run, Slots};
use swap::{Place, Row, SLOT};

/// How many pages the run of a batch has: room for the largest object, and for many small ones.
const BATCH_ORDER: u8 = 5;

/// The most bytes of a batch.
pub const BATCH_BYTES: usize = SLOT << BATCH_ORDER;

/// How many copies are freed at a time for which nothing is written.
const FREED_MOST: usize = 64;

/// How many objects are passed for these, at most, for which no area has room.
const PASSED_MOST: usize = 256;

/// How many batches may be under way at a time.
pub const BATCHES: usize = 4;

/// How often an object is read before it is lost.
pub const READ_TRIES: u32 = 3;

/// Which place, by number; one more than where it is listed.
pub type PlaceId = NonZeroU32;

/// A copy in an area.
#[derive(Clone, Debug)]
pub(super) struct Copied {
    pub(super) place: Place,
    /// Of the contents.
    fingerprint: u32,
    tag: [u8; TAG],
    is_raw: bool,
    /// Of the only page of an object, where that is in the program and the object is not in the pool; else 0.
    pub(super) hash: [u8; 16],
}

// There is one for each page of a plain swap: what it takes, the program lacks.
const _: () = assert!(size_of::<Option<Copied>>() == 60);

/// An object of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The object.
    pub id: u32,
    /// What it holds.
    pub body: Body,
    /// Where it goes.
    pub place: Place,
    /// Only its pages are written, which did not shrink: then they fill slots exactly.
    pub is_raw: bool,
    /// What it was sealed with, once it is.
    pub tag: [u8; TAG],
    /// It is not what was stored: it stays in the pool, where whoever loads it hears of that.
    pub is_damaged: bool,
}

/// Objects that are written at once.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Where to.
    pub run: Run,
    /// One after the other.
    pub pieces: Vec<Piece>,
}

impl Batch {
    /// Where its run begins, in bytes from the first slot of all.
    pub fn at(&self) -> u64 {
        self.run.slot as u64 * SLOT as u64
    }

    /// How many bytes of its run it takes.
    pub fn bytes(&self) -> usize {
        let last = self.pieces.last();
        last.map_or(0, |last| (last.place.at() - self.at()) as usize + last.place.bytes as usize)
    }
}

/// An object that is to be read.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// The object.
    pub id: u32,
    /// Where it is.
    pub place: Place,
    /// Of the contents.
    pub fingerprint: u32,
    /// What it was sealed with.
    pub tag: [u8; TAG],
    /// Only its pages are there.
    pub is_raw: bool,
}

/// What has come of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// The object is in the pool, as this.
    Here(Body),
    /// There was no memory for it: it may be tried again.
    Not,
    /// It cannot be read, or is not what was written.
    Lost(Damaged),
}

/// What lies in areas, of one process.
#[derive(Default)]
pub struct Swapped {
    /// The process's part of the areas, if there are any.
    slots: Option<Slots>,
    /// The same as a child has it that is about to come to be.
    childs: Option<Slots>,
    copies: Vec<Option<Copied>>,
    free: Vec<PlaceId>,
    /// As [`Copied`] has the hash of an only page, those of objects of several pages.
    pub(super) hashes: BTreeMap<PlaceId, Box<[u128]>>,
    /// Under way, by number.
    batches: [Option<Batch>; BATCHES],
    reads: Vec<u32>,
    /// What has come back since those were served that wait.
    back: Vec<u32>,
    /// There was no room for one of the last objects that were to go.
    is_full: bool,
    /// Less was free than this process has there.
    pub(super) is_scarce: bool,
}

/// What a look for objects to be written has come to.
#[derive(Debug, Default)]
pub struct Chosen {
    /// A batch to be written.
    pub batch: Option<usize>,
    /// What lies in an area already, and is to be freed.
    pub freed: Vec<Left>,
    /// There is no room in any area.
    pub is_full: bool,
}

impl Swapped {
    /// From now on there are areas.
    pub fn open(&mut self, slots: Slots) {
        self.slots = Some(slots);
    }

    /// Before a clone, while nothing is under way: what a child of this row takes over. False where there are areas,
    /// and no row.
    pub fn prepare_child(&mut self, row: Option<Row>) -> bool {
        debug_assert_eq!(self.under_way(), (0, 0));
        let Some(slots) = &mut self.slots else { return true };
        self.childs = row.map(|row| slots.fork(row));
        self.childs.is_some()
    }

    /// What the child takes over as a copy, where memory is not copied by a clone.
    pub(super) fn copy_for_child(&mut self) -> Swapped {
        let (childs, copies, free) = (self.childs.take(), self.copies.clone(), self.free.clone());
        let (hashes, back) = (self.hashes.clone(), self.back.clone());
        Swapped { childs, copies, free, hashes, back, ..Swapped::default() }
    }

    /// What the next child has.
    pub fn childs(&self) -> Option<&Slots> {
        self.childs.as_ref()
    }

    /// In that child.
    pub fn be_child(&mut self) {
        self.slots = self.childs.take();
    }

    /// In its parent, or where it has not come to be.
    pub fn forget_child(&mut self) {
        self.childs = None;
    }

    /// True where there are areas.
    pub fn is_open(&self) -> bool {
        self.slots.is_some()
    }

    /// True where there are areas, and as far as is known room in them.
    pub fn has_room(&self) -> bool {
        self.is_open() && !self.is_full
    }

    /// The process's part of the areas.
    pub fn slots(&self) -> Option<&Slots> {
        self.slots.as_ref()
    }

    /// The same, to be tidied.
    pub fn slots_mut(&mut self) -> Option<&mut Slots> {
        self.slots.as_mut()
    }

    /// A batch that is under way.
    pub fn batch(&self, number: usize) -> Option<&Batch> {
        self.batches[number].as_ref()
    }

    /// The same, to be sealed.
    pub(super) fn batch_mut(&mut self, number: usize) -> Option<&mut Batch> {
        self.batches[number].as_mut()
    }

    /// How many batches and reads are under way.
    pub fn under_way(&self) -> (usize, usize) {
        (self.batches.iter().flatten().count(), self.reads.len())
    }

    /// The objects that these name.
    pub fn named(&self) -> impl Iterator<Item = u32> {
        let written = self.batches.iter().flatten().flat_map(|batch| &batch.pieces).map(|piece| piece.id);
        written.chain(self.reads.iter().copied())
    }

    /// A copy is nobody's any more.
    pub(super) fn release(&mut self, id: PlaceId) {
        let copied = self.copies[id.get() as usize - 1].take().expect("a copy is given up once");
        self.hashes.remove(&id);
        self.free.push(id);
        if let Some(slots) = &mut self.slots {
            let _ = slots.release(copied.place);
        }
    }

    fn keep(&mut self, copied: Copied) -> PlaceId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.copies.push(None);
            NonZeroU32::new(self.copies.len() as u32).expect("one more than none")
        });
        self.copies[id.get() as usize - 1] = Some(copied);
        id
    }

    pub(super) fn copied(&self, id: PlaceId) -> &Copied {
        self.copies[id.get() as usize - 1].as_ref().expect("an object's copy is kept")
    }

    pub(super) fn copied_mut(&mut self, id: PlaceId) -> &mut Copied {
        self.copies[id.get() as usize - 1].as_mut().expect("an object's copy is kept")
    }

    /// What does not hold, in words; `objects` are all that somebody names.
    pub(super) fn check<'a>(&self, objects: impl Iterator<Item = (u32, &'a Object)>) -> Result<(), String> {
        if let Some(slots) = &self.slots {
            slots.check()?;
        }
        let mut seen = alloc::vec![false; self.copies.len()];
        let (mut out, mut reading) = (0, 0);
        for (id, object) in objects {
            if let Some(place) = object.place {
                let index = place.get() as usize - 1;
                if self.copies[index].is_none() || core::mem::replace(&mut seen[index], true) {
                    return Err(format!("object {id} has a copy that is not its own: {object:?}"));
                }
            }
            out += (object.io == Io::Out) as usize;
            reading += (object.io == Io::In) as usize;
        }
        let kept = self.copies.iter().flatten().count();
        let found =
            [seen.iter().filter(|seen| **seen).count(), self.copies.len() - self.free.len(), out, reading];
        let pieces = self.batches.iter().flatten().map(|batch| batch.pieces.len()).sum();
        if found != [kept, kept, pieces, self.reads.len()] {
            return Err(format!(
                "copies twice, pieces and reads: {found:?}; kept {kept}, {pieces}, {:?}",
                self.reads
            ));
        }
        Ok(())
    }
}

impl Entries {
    /// Chooses the oldest objects for a batch. Who lies in an area already is freed without one.
    pub(super) fn choose(&mut self) -> Chosen {
        let number = self.swapped.batches.iter().position(Option::is_none);
        let (Some(number), false) = (number, self.lru.is_empty()) else { return Chosen::default() };
        let Some(mut slots) = self.swapped.slots.take() else { return Chosen::default() };
        let mut chosen = self.choose_into(number, &mut slots);
        self.swapped.slots = Some(slots);
        // Where something was in the way that nobody needs it is tried once more.
        chosen.is_full = chosen.is_full && !self.drop_hashed();
        self.swapped.is_full = chosen.is_full;
        chosen
    }

    fn choose_into(&mut self, number: usize, slots: &mut Slots) -> Chosen {
        let (mut chosen, mut batch, mut passed) = (Chosen::default(), None, Vec::new());
        // One that is hot gets a second chance, once.
        let mut looks = 2 * self.lru.len();
        while looks > 0
            && let Some(id) = self.lru.pop()
        {
            looks -= 1;
            let o = &mut self.table[id as usize];
            if !matches!(o.body, Body::Blob { .. }) {
                continue;
            }
            if core::mem::take(&mut o.is_hot) {
                self.lru.push(id);
                continue;
            }
            if o.place.is_some() {
                chosen.freed.push(Left { id, body: self.leave_pool(id) });
                if chosen.freed.len() >= FREED_MOST {
                    break;
                }
                continue;
            }
            if batch.is_none() {
                let run = (0..=BATCH_ORDER).rev().find_map(|order| slots.take(order));
                batch = run.map(|run| Batch { run, pieces: Vec::new() });
            }
            match &mut batch {
                // Behind it there may be what is in an area already.
                None => {
                    chosen.is_full = true;
                    passed.push(id);
                    if passed.len() >= PASSED_MOST {
                        break;
                    }
                }
                Some(batch) => {
                    if !self.add(id, batch, slots) {
                        self.lru.push_first(id);
                        break;
                    }
                }
            }
        }
        passed.into_iter().rev().for_each(|id| self.lru.push_first(id));
        match batch {
            // Not even one fits.
            Some(Batch { run, pieces }) if pieces.is_empty() => {
                chosen.is_full = true;
                slots.give_back(run);
            }
            Some(batch) => {
                self.swapped.batches[number] = Some(batch);
                chosen.batch = Some(number);
            }
            None => {}
        }
        chosen
    }

    /// Puts an object of the pool behind the others of a batch; false where it does not fit.
    fn add(&mut self, id: u32, batch: &mut Batch, slots: &Slots) -> bool {
        let o = &mut self.table[id as usize];
        let (body, is_raw, end) = (o.body, o.is_raw(), batch.bytes());
        let (at, bytes) = match is_raw {
            true => (end.next_multiple_of(SLOT), o.pages as usize * PAGE),
            false => (end, body.bytes()),
        };
        if at + bytes > batch.run.bytes() {
            return false;
        }
        let Some(serial) = slots.serials().next() else { return false };
        o.io = Io::Out;
        self.retain(id, false);
        let place = Place {
            slot: batch.run.slot + (at / SLOT) as u32,
            offset: (at % SLOT) as u16,
            key: slots.row().number(),
            bytes: bytes as u32,
            serial,
        };
        batch.pieces.push(Piece { id, body, place, is_raw, tag: [0; TAG], is_damaged: false });
        true
    }

    /// A batch was written, or could not be: what is to be freed.
    pub(super) fn written(&mut self, number: usize, is_written: bool) -> Vec<Left> {
        let batch = self.swapped.batches[number].take().expect("a batch ends once");
        let mut freed = Vec::new();
        // What nobody depends on any more is not kept; what has been given up meanwhile even less.
        let is_kept = |entries: &Entries, piece: &Piece| {
            let o = entries.get(piece.id);
            is_written && !piece.is_damaged && o.stored > 0 && o.body == piece.body
        };
        if let Some(mut slots) = self.swapped.slots.take() {
            let kept = batch.pieces.iter().filter(|piece| is_kept(self, piece));
            let part = |piece: &Piece| ((piece.place.at() - batch.at()) as u32, piece.place.bytes);
            slots.fill(batch.run, kept.map(part));
            self.swapped.slots = Some(slots);
        }
        for piece in &batch.pieces {
            let is_kept = is_kept(self, piece);
            let o = &mut self.table[piece.id as usize];
            o.io = if piece.is_damaged { Io::Stays } else { Io::None };
            if is_kept && let Body::Blob { fingerprint, .. } = piece.body {
                let &Piece { place, tag, is_raw, .. } = piece;
                o.place = Some(self.swapped.keep(Copied { place, fingerprint, tag, is_raw, hash: [0; 16] }));
                // A worker may be reading it: then it goes another time.
                if o.pins == 0 {
                    freed.push(Left { id: piece.id, body: self.leave_pool(piece.id) });
                }
            }
            self.age(piece.id);
            freed.extend(self.release(piece.id, false).map(|body| Left { id: piece.id, body }));
        }
        freed
    }

    /// An object in an area is wanted: what is to be read, if it is not being read already.
    pub(super) fn read_back(&mut self, id: u32) -> Option<Read> {
        let o = &mut self.table[id as usize];
        let (true, Io::None, Some(place)) = (o.is_swapped(), o.io, o.place) else { return None };
        o.io = Io::In;
        self.retain(id, false);
        self.swapped.reads.push(id);
        let &Copied { place, fingerprint, tag, is_raw, .. } = self.swapped.copied(place);
        Some(Read { id, place, fingerprint, tag, is_raw })
    }

    /// Where an object lies that is in an area.
    pub(super) fn place_of(&self, id: u32) -> Option<Place> {
        let object = self.get(id);
        object.place.filter(|_| object.is_swapped()).map(|place| self.swapped.copied(place).place)
    }

    /// Who has waited for what has come back was served: it may go again.
    pub fn served(&mut self) {
        while let Some(id) = self.swapped.back.pop() {
            let o = &mut self.table[id as usize];
            if o.io == Io::Back {
                o.io = Io::None;
                self.age(id);
            }
        }
    }

    /// It was read: it is in the pool as `body`, or cannot be had. What is to be freed.
    pub(super) fn came_back(&mut self, id: u32, came: Came) -> Vec<Body> {
        let index = self.swapped.reads.iter().position(|read| *read == id).expect("a read ends once");
        self.swapped.reads.swap_remove(index);
        let o = &mut self.table[id as usize];
        o.io = Io::None;
        let mut freed = Vec::new();
        match came {
            Came::Here(body) if o.stored > 0 => {
                debug_assert!(o.is_swapped());
                o.io = Io::Back;
                self.enter_pool(id, body);
                self.swapped.back.push(id);
            }
            Came::Here(body) => freed.push(body),
            Came::Lost(damaged) => {
                o.io = if o.stored > 0 { Io::Lost(damaged) } else { Io::None };
                self.forget_hashes(id);
            }
            Came::Not => {}
        }
        self.drop_swapped(id);
        self.age(id);
        freed.extend(self.release(id, false));
        freed
    }
}
