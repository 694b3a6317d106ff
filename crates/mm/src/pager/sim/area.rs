//! The simulated swap area: what was written where, by which process and as which of its objects. It is one for a
//! family, and fails now and then.
//!
//! Nothing says who is still to read what is overwritten: it is found by whoever reads it. At its end a run reads all
//! that there is.

use super::run::Simulated;
use super::store::{COMPRESSED, Object};
use super::{Shared, World};
use crate::kernel::{Damaged, Done, Errno};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use swap::slots::Slots;
use swap::{Place, Row, SLOT, Table};
use zswap::objects::{Body, Came, Read};

/// Clusters of the area.
const CLUSTERS: usize = 40;

/// Who holds each row: what a burial does is looked at elsewhere.
const HOLDER: u64 = 1;

/// An object as it lies in the area.
#[derive(Clone)]
pub struct Sealed {
    pub object: Object,
    pub fingerprint: u32,
}

/// What is to be done.
pub enum AreaWork {
    Write { number: usize, sealed: Vec<(Place, Sealed)> },
    Read(Read),
}

/// The disk: by where it begins, in bytes.
type Disk = BTreeMap<u64, (Place, Sealed)>;

/// One process's view of the area.
pub struct SimArea {
    table: Table,
    pub row: Row,
    childs: Option<Row>,
    /// Everybody else descends from it.
    is_eldest: bool,
    disk: Rc<RefCell<Disk>>,
    /// One write in so many fails, and as many reads do for a moment; 0: none.
    faulty: usize,
    pub queue: Vec<AreaWork>,
    /// How many batches were written, and how many objects read.
    pub written: usize,
    pub read: usize,
    /// Batches that were written as a whole, and the pages of their objects; the pages of objects that came back.
    pub whole_batches: u64,
    pub pages_out: u64,
    pub pages_in: u64,
}

impl SimArea {
    pub fn new(faulty: usize) -> SimArea {
        let words = Vec::leak((0..CLUSTERS).map(|_| Default::default()).collect());
        let shared = Vec::leak((0..Table::shared_len(CLUSTERS)).map(|_| Default::default()).collect());
        let table = Table::new(words, shared);
        let row = table.take_row(HOLDER).expect("nobody has one");
        SimArea {
            table,
            row,
            childs: None,
            is_eldest: true,
            disk: Rc::default(),
            faulty,
            queue: Vec::new(),
            written: 0,
            read: 0,
            whole_batches: 0,
            pages_out: 0,
            pages_in: 0,
        }
    }

    /// The slots of a process that has none yet.
    pub fn slots(&self) -> Slots {
        Slots::new(self.table, self.row, [(0..CLUSTERS as u32, 0)])
    }

    /// A row for the next child.
    pub fn take_row(&mut self) -> Row {
        self.childs = self.table.take_row(HOLDER);
        self.childs.expect("there are hundreds")
    }

    /// The child's view, which has that row.
    pub fn fork(&self) -> SimArea {
        let &SimArea { table, faulty, .. } = self;
        let (row, disk) = (self.childs.expect("taken before"), self.disk.clone());
        SimArea {
            table,
            row,
            childs: None,
            is_eldest: false,
            disk,
            faulty,
            queue: Vec::new(),
            written: 0,
            read: 0,
            whole_batches: 0,
            pages_out: 0,
            pages_in: 0,
        }
    }

    /// What lies in these slots is gone.
    pub fn discard(&self, slots: Range<u32>) {
        let (start, end) = (slots.start as u64 * SLOT as u64, slots.end as u64 * SLOT as u64);
        self.disk.borrow_mut().retain(|at, (place, _)| *at >= end || at + place.bytes as u64 <= start);
    }

    /// Nobody knows any more what the child may read.
    pub fn forget_child(&self) {
        if let Some(row) = self.childs {
            let _ = self.table.bury(row, HOLDER, HOLDER, |_| false, |_| ());
        }
    }

    /// The process is gone.
    pub fn bury(&self) {
        self.table.bury(self.row, HOLDER, HOLDER, |_| false, |_| ());
    }
}

/// The program has unmapped everything: it has no slot any more, and with it goes what nobody else has.
pub fn ended(world: &Shared, pager: &mut Simulated) {
    let Some(slots) = pager.objects.swapped().slots() else { return };
    assert_eq!(slots.used_slots(), 0, "an object has left its slots behind");
    pager.give_back_slots();
    let world = world.borrow();
    let area = world.shelves.area.as_ref().expect("it has slots");
    area.bury();
    area.table.check().expect("nobody is at work");
    if area.is_eldest {
        let free = area.table.free_clusters(0..CLUSTERS as u32);
        assert_eq!(free, CLUSTERS as u32, "clusters are left that nobody has");
    }
}

impl World {
    /// The disk does one of the things that are to be done.
    pub fn step_area(&mut self) {
        let Some(area) = &mut self.shelves.area else { return };
        if area.queue.is_empty() {
            return;
        }
        let work = area.queue.swap_remove(self.random.below(area.queue.len()));
        let faulty = area.faulty;
        let is_faulty = faulty > 0 && self.random.one_in(faulty);
        let done = match work {
            AreaWork::Write { number, sealed } => {
                if !is_faulty {
                    let pages = sealed.iter().map(|(_, sealed)| sealed.object.pages.len() as u64);
                    (area.whole_batches, area.pages_out) =
                        (area.whole_batches + 1, area.pages_out + pages.sum::<u64>());
                }
                self.write_sealed(sealed, is_faulty);
                if self.bugs.hasty_write {
                    return;
                }
                Done::Written { number, is_written: !is_faulty }
            }
            AreaWork::Read(read) if is_faulty => Done::Read { id: read.id, came: self.read_in_vain(&read) },
            AreaWork::Read(read) => Done::Read { id: read.id, came: self.read_sealed(&read) },
        };
        self.shelves.done(done);
    }

    /// Where it fails some of it is there all the same.
    fn write_sealed(&mut self, sealed: Vec<(Place, Sealed)>, is_faulty: bool) {
        for (place, object) in sealed {
            if is_faulty && self.random.one_in(2) {
                continue;
            }
            let (at, end) = (place.at(), place.at() + place.bytes as u64);
            let area = self.shelves.area.as_mut().expect("there is an area");
            area.written += 1;
            let mut disk = area.disk.borrow_mut();
            // What lies there is overwritten.
            disk.retain(|_, (old, _)| old.at() >= end || old.at() + old.bytes as u64 <= at);
            disk.insert(at, (place, object));
        }
    }

    fn read_sealed(&mut self, read: &Read) -> Came {
        let (place, Sealed { object, fingerprint }) = {
            let area = self.shelves.area.as_mut().expect("there is an area");
            area.read += 1;
            let disk = area.disk.borrow();
            disk.get(&read.place.at()).cloned().unwrap_or_else(|| panic!("{read:?} was overwritten"))
        };
        assert_eq!(place, read.place, "another object lies where it was");
        assert_eq!(fingerprint, read.fingerprint, "another object is read");
        let pages = object.pages.len();
        let bytes = (pages * COMPRESSED) as u32;
        let Some(handle) = self.shelves.take_in(object, self.clock) else { return Came::Not };
        self.shelves.area.as_mut().expect("there is an area").pages_in += pages as u64;
        Came::Here(Body::Blob { handle, fingerprint, bytes })
    }

    /// For a moment, or for ever.
    fn read_in_vain(&mut self, read: &Read) -> Came {
        if self.random.one_in(4) {
            let area = self.shelves.area.as_ref().expect("there is an area");
            let pages =
                area.disk.borrow().get(&read.place.at()).map(|(_, sealed)| sealed.object.pages.clone());
            self.shelves.damaged.extend(pages.expect("it was overwritten"));
            return Came::Lost(Damaged::Unread(Errno::EIO));
        }
        Came::Not
    }
}
