//! Slots against a naive model: for each slot of the run, which objects of which processes have a byte there.

use super::{ORDERS, Run, Slots};
use crate::table::Table;
use crate::table::tests::table;
use crate::{CLUSTER, Place, SLOT};
use base::Random;
use std::collections::{BTreeMap, BTreeSet};

/// An object of the model: where it lies, and which processes have it.
struct Object {
    place: Place,
    of: BTreeSet<u64>,
}

/// All processes of a run.
struct World {
    table: Table,
    processes: BTreeMap<u64, Slots>,
    objects: Vec<Object>,
    reserved: Vec<(u64, Run)>,
    random: Random,
    names: u64,
}

impl World {
    fn new(clusters: u32, areas: &[(std::ops::Range<u32>, i32)], seed: u64) -> World {
        let table = table(clusters as usize);
        let row = table.take_row(1).unwrap();
        let processes = BTreeMap::from([(1, Slots::new(table, row, areas.iter().cloned()))]);
        World { table, processes, objects: vec![], reserved: vec![], random: Random(seed), names: 1 }
    }

    /// True if no process has anything in the slots.
    fn is_nobodys(&self, slots: &std::ops::Range<u32>) -> bool {
        let meets = |other: std::ops::Range<u32>| other.start.max(slots.start) < other.end.min(slots.end);
        !self.objects.iter().any(|object| meets(object.place.slots()))
            && !self.reserved.iter().any(|(_, run)| meets(run.slots()))
    }

    fn take(&mut self, of: u64, order: u8) -> bool {
        let free = self.processes[&of].free_slots();
        let Some(run) = self.processes.get_mut(&of).unwrap().take(order) else {
            assert!(order > 0 || free == 0, "{free} slots are free, and none could be had");
            return false;
        };
        assert_eq!((run.order, run.slot % (1 << order)), (order, 0));
        assert!(self.is_nobodys(&run.slots()), "{run:?} is taken from somebody");
        self.reserved.push((of, run));
        true
    }

    /// Fills a reserved run with objects one behind the other, with gaps, or gives it back.
    fn fill(&mut self) {
        if self.reserved.is_empty() {
            return;
        }
        let (of, run) = self.reserved.swap_remove(self.random.below(self.reserved.len()));
        let slots = self.processes.get_mut(&of).unwrap();
        if self.random.one_in(10) {
            return slots.give_back(run);
        }
        let (mut objects, mut offset) = (Vec::new(), self.random.below(3000) as u32);
        loop {
            let bytes = 40 + {
                let most = *self.random.pick(&[200, 3000, 9000]);
                self.random.below(most) as u32
            };
            if offset as usize + bytes as usize > run.bytes() {
                break;
            }
            objects.push((offset, bytes));
            offset += bytes + if self.random.one_in(5) { self.random.below(6000) as u32 } else { 0 };
        }
        slots.fill(run, objects.iter().copied());
        for (offset, bytes) in objects {
            let (slot, offset) = (run.slot + offset / SLOT as u32, (offset % SLOT as u32) as u16);
            let place = Place { slot, offset, bytes, key: 0, serial: 0 };
            self.objects.push(Object { place, of: BTreeSet::from([of]) });
        }
    }

    fn release(&mut self, of: u64) {
        let own: Vec<usize> = (0..self.objects.len()).filter(|n| self.objects[*n].of.contains(&of)).collect();
        if own.is_empty() {
            return;
        }
        let at = *self.random.pick(&own);
        let object = &mut self.objects[at];
        object.of.remove(&of);
        let (place, is_gone) = (object.place, object.of.is_empty());
        if is_gone {
            self.objects.swap_remove(at);
        }
        let freed = self.processes.get_mut(&of).unwrap().release(place);
        assert!(freed.clone().all(|slot| place.slots().contains(&slot)));
        assert!(self.is_nobodys(&freed), "{freed:?} of {place:?} is in use");
    }

    fn fork(&mut self, of: u64) {
        self.names += 1;
        let child = self.names;
        let row = self.table.take_row(child).unwrap();
        let slots = self.processes.get_mut(&of).unwrap().fork(row);
        for object in self.objects.iter_mut().filter(|object| object.of.contains(&of)) {
            object.of.insert(child);
        }
        self.processes.insert(child, slots);
    }

    fn die(&mut self, of: u64) {
        self.processes.remove(&of);
        self.reserved.retain(|(owner, _)| *owner != of);
        self.objects.iter_mut().for_each(|object| {
            object.of.remove(&of);
        });
        self.objects.retain(|object| !object.of.is_empty());
        let is_alive = |holder: u64| holder != of;
        assert_eq!(self.table.bury_dead(0xdead, is_alive, |_| ()), 1);
    }

    fn turn(&mut self, most_processes: usize) {
        let names: Vec<u64> = self.processes.keys().copied().collect();
        let of = *self.random.pick(&names);
        match self.random.below(1000) {
            0..350 => {
                let order = [0, 0, 0, 1, 2, 4, 4, 9][self.random.below(8)];
                self.take(of, order);
            }
            350..600 => self.fill(),
            600..950 => (0..1 + self.random.below(20)).for_each(|_| self.release(of)),
            950..955 => {
                let slots = self.processes.get_mut(&of).unwrap();
                let mut discarded = Vec::new();
                slots.give_back_empty(|slots| discarded.push(slots));
                assert!(discarded.iter().all(|slots| self.is_nobodys(slots)));
            }
            955..965 => drop(self.processes.get_mut(&of).unwrap().thaw_look()),
            965..975 if names.len() < most_processes => self.fork(of),
            975..982 if names.len() > 1 => self.die(of),
            _ => {}
        }
    }

    fn check(&self, when: impl std::fmt::Display) {
        self.table.check().unwrap_or_else(|error| panic!("{when}: {error}"));
        for (name, slots) in &self.processes {
            slots.check().unwrap_or_else(|error| panic!("{when}, process {name}: {error}"));
            let own = self.objects.iter().filter(|object| object.of.contains(name));
            let used: BTreeSet<u32> = own.flat_map(|object| object.place.slots()).collect();
            assert_eq!(slots.used_slots(), used.len() as u64, "{when}, process {name}");
        }
        if self.processes.len() == 1 && self.names == 1 {
            let reserved: u64 = self.reserved.iter().map(|(_, run)| 1 << run.order).sum();
            let slots = self.processes.values().next().unwrap();
            let all = self.table.clusters() as u64 * CLUSTER as u64;
            assert_eq!(slots.free_slots(), all - reserved - slots.used_slots(), "{when}");
        }
    }
}

#[test]
fn one_process_has_the_slots_of_the_model() {
    for seed in 0..4 {
        let mut world = World::new(4, &[(0..4, 0)], seed);
        for turn in 0..1200 {
            world.turn(1);
            world.check(format!("seed {seed}, turn {turn}"));
        }
    }
}

#[test]
fn relatives_never_write_to_what_one_of_them_has() {
    for seed in 0..6 {
        let mut world = World::new(12, &[(0..5, 0), (5..9, 0), (9..12, 3)], seed);
        for turn in 0..1200 {
            world.turn(5);
            world.check(format!("seed {seed}, turn {turn}"));
        }
        assert!(world.names > 2, "seed {seed}: {} processes", world.names);
        // The last one is alone: what others have left is free when it has looked.
        while world.processes.len() > 1 {
            let of = *world.processes.keys().next().unwrap();
            world.die(of);
        }
        let of = *world.processes.keys().next().unwrap();
        world.processes.get_mut(&of).unwrap().thaw_look();
        let reserved: u64 = world.reserved.iter().map(|(_, run)| 1 << run.order).sum();
        let slots = &world.processes[&of];
        assert_eq!(slots.free_slots() + slots.used_slots() + reserved, 12 * 512, "seed {seed}");
        world.die(of);
        assert_eq!(world.table.free_clusters(0..12), 12, "seed {seed}");
    }
}

#[test]
fn what_is_free_can_be_had_to_the_last_slot() {
    for seed in 0..4 {
        let mut world = World::new(6, &[(0..6, 0)], seed);
        (0..2000).for_each(|_| world.turn(1));
        let free = world.processes[&1].free_slots();
        assert_eq!((0..).take_while(|_| world.take(1, 0)).count() as u64, free, "seed {seed}");
        assert_eq!(world.processes[&1].free_slots(), 0);
        world.check(format!("seed {seed}"));
    }
}

#[test]
fn areas_of_higher_priority_come_first_and_equals_take_turns() {
    let table = table(7);
    let row = table.take_row(1).unwrap();
    let mut slots = Slots::new(table, row, [(0..2, 1), (2..4, 1), (4..5, 9), (5..7, -1)]);
    let mut clusters: Vec<u32> = (0..7).map(|_| slots.take(9).unwrap().slot / CLUSTER).collect();
    assert_eq!(clusters, [4, 0, 2, 1, 3, 5, 6]);
    assert_eq!(slots.take(0), None);
    let at = |cluster: u32| Run { slot: cluster * CLUSTER, order: 9 };
    clusters.drain(..).for_each(|cluster| slots.give_back(at(cluster)));
    slots.close_area(4);
    slots.close_area(0);
    slots.check().unwrap();
    assert_eq!(slots.free_slots(), 4 * 512);
    assert_eq!(slots.give_back_empty(|_| ()), 7);
    assert_eq!(slots.free_slots(), 4 * 512);
    assert!((0..4).all(|_| slots.take(9).is_some_and(|run| (2..7).contains(&(run.slot / CLUSTER)))));
    assert_eq!(slots.take(0), None);
    slots.check().unwrap();
}

#[test]
fn single_slots_come_out_of_larger_clusters_before_nothing_is_left() {
    let table = table(1);
    let mut slots = Slots::new(table, table.take_row(1).unwrap(), [(0..1, 0)]);
    let runs: Vec<Run> = (0..31).map(|_| slots.take(4).unwrap()).collect();
    assert!((0..16).all(|_| slots.take(0).is_some()));
    assert_eq!((slots.take(0), slots.take(4)), (None, None));
    slots.give_back(runs[3]);
    assert_eq!(slots.take(4), Some(runs[3]));
    assert!((0..ORDERS as u8).all(|order| slots.take(order).is_none()));
    slots.check().unwrap();
}
