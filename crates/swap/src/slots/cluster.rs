//! A cluster that a process has.

use super::bits::Bits;
use crate::CLUSTER;

/// What a process knows of a cluster. A slot is in one of these states:
///
/// - free: in none of the sets
/// - `reserved`: taken, and not filled yet; no objects
/// - `used`: a part of one object or more
/// - `dead`: of no object of this process, but perhaps of a relative's; not to be written
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Runs of 2^order slots are taken from it.
    pub order: u8,
    pub reserved: Bits,
    pub used: Bits,
    pub dead: Bits,
    /// Of the used ones: those that a relative may refer to as well.
    pub shared: Bits,
    /// Objects that have a byte in the slot; not 0 exactly where `used`.
    pub objects: [u8; CLUSTER as usize],
}

/// What a cluster can be had for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Nothing is free.
    None,
    /// Everything is.
    All,
    /// A run of its order is free.
    Run,
    /// Slots are free, but no run of its order.
    Holes,
}

impl Cluster {
    /// A cluster that has just been claimed.
    pub fn new(order: u8) -> Cluster {
        let none = Bits::default();
        let objects = [0; CLUSTER as usize];
        Cluster { order, reserved: none, used: none, dead: none, shared: none, objects }
    }

    /// The cluster as a forked child has it: what is used can be read, and nothing is free.
    pub fn of_child(&self) -> Cluster {
        let none = Bits::default();
        Cluster { reserved: none, dead: self.used.not(), shared: self.used, ..self.clone() }
    }

    /// What cannot be taken.
    pub fn busy(&self) -> Bits {
        self.reserved.or(&self.used).or(&self.dead)
    }

    /// How many slots can be taken.
    pub fn free(&self) -> u32 {
        CLUSTER - self.busy().count()
    }

    pub fn room(&self) -> Room {
        let busy = self.busy();
        match busy.count() {
            0 => Room::All,
            CLUSTER => Room::None,
            _ if busy.gap(self.order, 0).is_some() => Room::Run,
            _ => Room::Holes,
        }
    }

    /// An object less in a slot. True if the slot is free by that.
    pub fn release(&mut self, slot: u32) -> bool {
        let objects = &mut self.objects[slot as usize];
        *objects = objects.checked_sub(1).expect("an object that is released is in its slots");
        if *objects != 0 {
            return false;
        }
        self.used.clear(slot);
        if self.shared.has(slot) {
            self.shared.clear(slot);
            self.dead.set(slot);
            return false;
        }
        true
    }

    /// For a cluster that no relative refers to any more.
    pub fn thaw(&mut self) {
        self.dead = Bits::default();
        self.shared = Bits::default();
    }
}
