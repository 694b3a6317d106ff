//! The clusters of one process, and which of their slots are free. There is no lock: a process has slots of its own.
//!
//! ```text
//!   take(order):  the order's current cluster, from where the last run ended
//!                 a partly used cluster of the order, the fullest first
//!                 an empty cluster, else a free one of the run's            (areas by priority, equals in turn)
//!                 order 0: a slot of a cluster of a larger order, where no run of that order is lost first
//!                 all of that again, if relatives have let go of clusters
//!
//!   slot:     free ── take ──> reserved ── fill ──> used ── release ──> free, or dead if a relative may refer to it
//!   cluster:  free ── claim ──> partly used, full ── release ──> empty ── give_back_empty ──> free
//! ```
//!
//! A cluster is of one order while it is in use. A fork leaves the used slots of both processes shared: what is freed
//! of them is dead, until no relative has the cluster any more. The child takes nothing of what it inherits before
//! that.
//!
//! Invariants, which [`Slots::check`] recomputes:
//! - slots of a cluster = free + reserved + used + dead; shared slots are used
//! - a cluster is in the list of its order and room, under its count of free slots, and in no other
//! - the row has the bit of each cluster here, and of no other
//! - `free_slots` = free slots of the clusters + 512 for each free cluster of an open area: as many as `take(0)` gives

mod bits;
mod check;
#[cfg(test)]
mod churn;
mod cluster;
#[cfg(test)]
mod model;

use crate::seal::Serials;
use crate::table::{Row, Table};
use crate::{CLUSTER, Place, SLOT};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use cluster::{Cluster, Room};
use core::cmp::Reverse;
use core::ops::Range;

/// Orders of runs: one slot to a whole cluster.
pub const ORDERS: usize = 10;

/// Slots that have been taken together: 2^order of them, naturally aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first slot.
    pub slot: u32,
    /// How many, as a power of two.
    pub order: u8,
}

impl Run {
    /// Its slots.
    pub fn slots(&self) -> Range<u32> {
        self.slot..self.slot + (1 << self.order)
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        SLOT << self.order
    }
}

/// The clusters of an area.
#[derive(Clone, Debug)]
struct Area {
    clusters: Range<u32>,
    priority: i32,
    /// Where to look for a free cluster first.
    next: u32,
    /// True for one that takes nothing more.
    is_closed: bool,
}

/// Clusters of one order: by free slots, then by number.
#[derive(Clone, Debug, Default)]
struct Lists {
    /// With a free run.
    partial: BTreeSet<(u32, u32)>,
    /// With free slots only.
    holes: BTreeSet<(u32, u32)>,
    /// Where runs are taken now, and the slot in it after the last one.
    current: Option<(u32, u32)>,
}

/// The clusters of a process.
#[derive(Debug)]
pub struct Slots {
    table: Table,
    row: Row,
    /// Higher priorities first.
    areas: Vec<Area>,
    /// Which of areas with the same priority is next.
    turn: usize,
    clusters: BTreeMap<u32, Cluster>,
    orders: [Lists; ORDERS],
    /// Clusters of which all is free.
    empty: BTreeSet<u32>,
    /// Free slots of the clusters here, but for those of closed areas.
    free: u64,
    used: u64,
    /// How often clusters of the run had been released when nothing was found.
    seen: Option<u64>,
}

impl Slots {
    /// No clusters yet, in areas that are given as their clusters and a priority, of which the higher one is used
    /// first.
    pub fn new(table: Table, row: Row, areas: impl IntoIterator<Item = (Range<u32>, i32)>) -> Slots {
        let area = |(clusters, priority): (Range<u32>, i32)| Area {
            next: clusters.start,
            clusters,
            priority,
            is_closed: false,
        };
        let mut areas: Vec<Area> = areas.into_iter().map(area).collect();
        areas.sort_by_key(|area| Reverse(area.priority));
        Slots {
            table,
            row,
            areas,
            turn: 0,
            clusters: BTreeMap::new(),
            orders: Default::default(),
            empty: BTreeSet::new(),
            free: 0,
            used: 0,
            seen: None,
        }
    }

    /// The process's row.
    pub fn row(&self) -> Row {
        self.row
    }

    /// The numbers of the objects that the process seals.
    pub fn serials(&self) -> Serials {
        self.table.serials(self.row)
    }

    /// Takes nothing more from the area that begins with this cluster. What lies there can be read and released.
    pub fn close_area(&mut self, first_cluster: u32) {
        let Some(area) = self.areas.iter_mut().find(|area| area.clusters.start == first_cluster) else {
            return;
        };
        let range = area.clusters.clone();
        let there: Vec<u32> = self.clusters.range(range.clone()).map(|(number, _)| *number).collect();
        there.iter().for_each(|number| self.unlist(*number));
        if let Some(area) = self.areas.iter_mut().find(|area| area.clusters == range) {
            area.is_closed = true;
        }
        there.iter().for_each(|number| self.list(*number));
    }

    /// Takes 2^order slots. `None` where there are none: a run of a lower order may still be had.
    ///
    /// # Panics
    /// If the order is not below [`ORDERS`].
    pub fn take(&mut self, order: u8) -> Option<Run> {
        self.take_of_own(order, 1).or_else(|| {
            let releases = self.table.releases();
            if self.seen == Some(releases) {
                return self.take_of_own(order, 2);
            }
            if let Some(run) = self.claim(order).or_else(|| self.take_of_own(order, 2)) {
                return Some(run);
            }
            let run = if self.thaw_look() > 0 { self.take_of_own(order, 2) } else { None };
            self.seen = run.is_none().then_some(releases);
            run
        })
    }

    /// Takes from a cluster that is here. The first of `steps` are those that cost nobody a run.
    fn take_of_own(&mut self, order: u8, steps: u8) -> Option<Run> {
        let lists = &self.orders[order as usize];
        if let Some((number, from)) = lists.current {
            let is_of_order = |cluster: &&Cluster| cluster.order == order && self.is_open(number);
            let cluster = self.clusters.get(&number).filter(is_of_order);
            if let Some(slot) = cluster.and_then(|cluster| cluster.busy().gap(order, from)) {
                return Some(self.reserve(number, slot, order));
            }
        }
        let holes = || self.orders[1..].iter().find_map(|lists| lists.holes.first());
        let runs = || self.orders[1..].iter().find_map(|lists| lists.partial.first());
        let is_single = order == 0;
        let number = (lists.partial.first().map(|of| of.1))
            .or_else(|| holes().filter(|_| is_single).map(|of| of.1))
            .or_else(|| self.empty.first().copied())
            .or_else(|| runs().filter(|_| is_single && steps > 1).map(|of| of.1))?;
        if self.empty.contains(&number) {
            self.change(number, |cluster| cluster.order = order);
        }
        let slot = self.clusters[&number].busy().gap(order, 0).expect("the list says that there is a run");
        Some(self.reserve(number, slot, order))
    }

    /// Takes from a free cluster of the run's.
    fn claim(&mut self, order: u8) -> Option<Run> {
        let mut first = 0;
        while first < self.areas.len() {
            let priority = self.areas[first].priority;
            let equals = self.areas[first..].iter().take_while(|area| area.priority == priority).count();
            for n in 0..equals {
                let area = &mut self.areas[first + (self.turn + n) % equals];
                if area.is_closed {
                    continue;
                }
                if let Some(number) = self.table.claim(self.row, area.clusters.clone(), area.next) {
                    area.next = number + 1;
                    if equals > 1 {
                        self.turn = (self.turn + n) % equals + 1;
                    }
                    self.clusters.insert(number, Cluster::new(order));
                    self.list(number);
                    return Some(self.reserve(number, 0, order));
                }
            }
            first += equals;
        }
        None
    }

    fn reserve(&mut self, number: u32, slot: u32, order: u8) -> Run {
        self.change(number, |cluster| {
            (slot..slot + (1 << order)).for_each(|slot| cluster.reserved.set(slot))
        });
        if self.clusters[&number].order == order {
            self.orders[order as usize].current = Some((number, slot + (1 << order)));
        }
        Run { slot: number * CLUSTER + slot, order }
    }

    /// Gives back a run that has not been filled: the write has failed.
    pub fn give_back(&mut self, run: Run) {
        self.fill(run, []);
    }

    /// Says what lies in a run: of each object where it begins in the run, and how long it is, in bytes. Slots without
    /// a byte of any are free again.
    ///
    /// # Panics
    /// If an object is not within the run, or a slot has more than 255 of them.
    pub fn fill(&mut self, run: Run, objects: impl IntoIterator<Item = (u32, u32)>) {
        let (number, first) = (run.slot / CLUSTER, run.slot % CLUSTER);
        self.change(number, |cluster| {
            for slot in first..first + (1 << run.order) {
                assert!(cluster.reserved.has(slot), "{run:?} is not waiting to be filled");
                cluster.reserved.clear(slot);
            }
            for (offset, bytes) in objects {
                assert!(
                    bytes > 0 && offset as usize + bytes as usize <= run.bytes(),
                    "{offset} {bytes} in {run:?}"
                );
                for slot in offset / SLOT as u32..(offset + bytes).div_ceil(SLOT as u32) {
                    let slot = first + slot;
                    let count = &mut cluster.objects[slot as usize];
                    *count = count.checked_add(1).expect("at most 255 objects have a byte in a slot");
                    cluster.used.set(slot);
                }
            }
        });
        self.settle(number);
    }

    /// Forgets an object. Returns the slots that are free by that: they hold nothing of anybody's. They may be
    /// discarded before the next `take`; else a discard waits until the cluster is empty.
    ///
    /// # Panics
    /// If there is no such object.
    pub fn release(&mut self, place: Place) -> Range<u32> {
        let slots = place.slots();
        let (number, first) = (slots.start / CLUSTER, slots.start / CLUSTER * CLUSTER);
        // Of the slots between the first and the last one, all of each is the object's: what is free is one range.
        let mut freed = slots.start..slots.start;
        self.change(number, |cluster| {
            for slot in slots {
                if cluster.release(slot - first) {
                    let start = if freed.is_empty() { slot } else { freed.start };
                    freed = start..slot + 1;
                }
            }
        });
        self.settle(number);
        freed
    }

    /// Lets go of a cluster in which this process has nothing, if relatives have it still; if none has, it is empty.
    fn settle(&mut self, number: u32) {
        let cluster = &self.clusters[&number];
        let is_idle = cluster.used.is_empty() && cluster.reserved.is_empty();
        if is_idle && !cluster.dead.is_empty() && !self.thaw(number) {
            self.unlist(number);
            self.clusters.remove(&number);
            self.table.release(self.row, number);
        }
    }

    /// Gives the clusters of which all is free back to the run. `discard` is called with the slots of each, before
    /// anybody can write there. Returns how many they were.
    pub fn give_back_empty(&mut self, mut discard: impl FnMut(Range<u32>)) -> u32 {
        let is_empty = |of: &(&u32, &Cluster)| of.1.busy().is_empty();
        let empty: Vec<u32> = self.clusters.iter().filter(is_empty).map(|of| *of.0).collect();
        for number in &empty {
            self.unlist(*number);
            self.clusters.remove(number);
            discard(number * CLUSTER..(number + 1) * CLUSTER);
            self.table.release(self.row, *number);
        }
        empty.len() as u32
    }

    /// For a fork: the child's slots, which go to it by memory that the fork copies. The parent calls this before the
    /// child may run. Runs that are taken and not filled stay the parent's alone. If there is no child in the end, the
    /// caller buries its row.
    pub fn fork(&mut self, child: Row) -> Slots {
        self.table.copy_row(self.row, child);
        let areas = self.areas.iter().map(|area| (area.clusters.clone(), area.priority));
        let mut slots = Slots::new(self.table, child, areas);
        slots.areas.clone_from(&self.areas);
        for (number, cluster) in &mut self.clusters {
            if cluster.used.is_empty() {
                self.table.release(child, *number);
                continue;
            }
            cluster.shared = cluster.used;
            slots.clusters.insert(*number, cluster.of_child());
        }
        slots.used = self.used;
        slots
    }

    /// Looks whether relatives have let go of clusters. What is dead there is free, and what this process has inherited
    /// it may take from. Returns in how many clusters slots have become free.
    pub fn thaw_look(&mut self) -> u32 {
        let is_shared = |of: &(&u32, &Cluster)| !of.1.shared.is_empty() || !of.1.dead.is_empty();
        let shared: Vec<u32> = self.clusters.iter().filter(is_shared).map(|of| *of.0).collect();
        shared.into_iter().filter(|number| self.thaw(*number)).count() as u32
    }

    /// True if slots of the cluster have become free.
    fn thaw(&mut self, number: u32) -> bool {
        if !self.table.adopt(self.row, number) {
            return false;
        }
        let has_dead = !self.clusters[&number].dead.is_empty();
        self.change(number, Cluster::thaw);
        has_dead
    }

    /// Slots that can be had, if no other process takes free clusters first.
    pub fn free_slots(&self) -> u64 {
        let open = self.areas.iter().filter(|area| !area.is_closed);
        let clusters: u64 = open.map(|area| self.table.free_clusters(area.clusters.clone()) as u64).sum();
        self.free + clusters * CLUSTER as u64
    }

    /// Slots that hold objects of this process; those shared with relatives count in each.
    pub fn used_slots(&self) -> u64 {
        self.used
    }

    /// True where the area that a slot is in takes what is written.
    pub fn is_open_at(&self, slot: u32) -> bool {
        self.is_open(slot / CLUSTER)
    }

    /// The same in areas to which something is written.
    pub fn used_open_slots(&self) -> u64 {
        let open = self.clusters.iter().filter(|(number, _)| self.is_open(**number));
        open.map(|(_, cluster)| cluster.used.count() as u64).sum()
    }

    fn is_open(&self, number: u32) -> bool {
        self.areas.iter().any(|area| !area.is_closed && area.clusters.contains(&number))
    }

    /// Changes a cluster and keeps lists and counts.
    fn change(&mut self, number: u32, change: impl FnOnce(&mut Cluster)) {
        self.unlist(number);
        change(self.clusters.get_mut(&number).expect("a cluster of this process's"));
        self.list(number);
    }

    fn unlist(&mut self, number: u32) {
        let cluster = &self.clusters[&number];
        let (order, free) = (cluster.order as usize, cluster.free());
        self.used -= cluster.used.count() as u64;
        if self.is_open(number) {
            self.free -= free as u64;
            self.empty.remove(&number);
            self.orders[order].partial.remove(&(free, number));
            self.orders[order].holes.remove(&(free, number));
        }
    }

    fn list(&mut self, number: u32) {
        let cluster = &self.clusters[&number];
        let (lists, entry) = (&mut self.orders[cluster.order as usize], (cluster.free(), number));
        let room = cluster.room();
        self.used += cluster.used.count() as u64;
        if self.areas.iter().any(|area| !area.is_closed && area.clusters.contains(&number)) {
            self.free += entry.0 as u64;
            let _ = match room {
                Room::None => false,
                Room::All => self.empty.insert(number),
                Room::Run => lists.partial.insert(entry),
                Room::Holes => lists.holes.insert(entry),
            };
        }
    }
}
