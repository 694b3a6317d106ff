//! The table under processes that are threads, and die at any access.

use super::*;
use crate::step::gate;
use base::Random;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

/// A table in memory that is never given back.
pub fn table(clusters: usize) -> Table {
    let words = (0..clusters).map(|_| AtomicU32::new(0)).collect::<Vec<_>>().leak();
    let shared = (0..Table::shared_len(clusters)).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
    Table::new(words, shared)
}

#[test]
fn one_process_takes_all_and_gives_all_back() {
    let table = table(130);
    let row = table.take_row(7).unwrap();
    assert_eq!((table.holder(row), table.free_clusters(0..130)), (7, 130));
    assert_eq!(table.claim(row, 10..130, 128), Some(128));
    assert_eq!(table.claim(row, 10..130, 128), Some(129));
    assert_eq!(table.claim(row, 10..130, 128), Some(10), "round the end");
    assert!(!table.claim_this(row, 10) && table.has(row, 10));
    while table.claim(row, 0..130, 0).is_some() {}
    assert_eq!(table.free_clusters(0..130), 0);
    table.check().unwrap();
    let before = table.releases();
    assert!(table.release(row, 64) && table.releases() > before);
    assert_eq!(table.free_clusters(0..130), 1);
    assert_eq!(table.bury(row, 7, 7, |_| true, |_| ()), Burial::Done(129));
    assert_eq!((table.holder(row), table.free_clusters(0..130)), (0, 130));
    assert_eq!(table.bury(row, 7, 7, |_| true, |_| ()), Burial::Other);
    table.check().unwrap();
}

#[test]
fn there_are_as_many_rows_as_processes_may_live() {
    let table = table(1);
    let rows: Vec<Row> = (1..=ROWS as u64).map(|holder| table.take_row(holder).unwrap()).collect();
    assert!(rows.iter().enumerate().all(|(n, row)| row.number() as usize == n));
    assert_eq!(table.take_row(9999), None);
    assert_eq!(table.bury_dead(1, |holder| holder != 400, |_| ()), 1);
    assert_eq!(table.take_row(9999), Some(rows[399]));
}

#[test]
fn a_row_of_this_number_is_taken_if_nobody_has_it() {
    let table = table(70);
    let row = table.take_this_row(3, 7).unwrap();
    assert_eq!((row.number(), table.holder(row)), (3, 7));
    for holder in [7, 8] {
        assert_eq!(table.take_this_row(3, holder), None);
    }
    assert_eq!(table.holder(row), 7);
    assert_eq!(table.claim(row, 0..70, 0), Some(0));
    let first = table.take_row(8).unwrap();
    assert_eq!(table.held_rows().collect::<Vec<_>>(), [(first, 8), (row, 7)]);
    assert!(table.adopt(row, 0), "a scan sees the row by its number, and no other has the cluster");
    assert!(!table.adopt(first, 0));
    assert_eq!(table.bury(row, 7, 8, |_| true, |_| ()), Burial::Done(1));
    assert_eq!(table.held_rows().collect::<Vec<_>>(), [(first, 8)]);
    assert_eq!(table.take_this_row(3, 9), Some(row));
    let last = table.take_this_row(ROWS as u16 - 1, 9).unwrap();
    assert_eq!(table.held_rows().last(), Some((last, 9)));
}

#[test]
fn a_file_of_a_table_holds_both_and_neither_is_misaligned() {
    for clusters in [1, 2, 63, 64, 65, 1000, CLUSTERS_MAX as usize] {
        let at = Table::shared_at(clusters);
        assert!(at >= clusters * 4 && at.is_multiple_of(8) && at < clusters * 4 + 8, "{clusters}");
        assert_eq!(Table::file_len(clusters), at + Table::shared_len(clusters) * 8);
    }
}

#[test]
fn a_cluster_of_the_dead_is_told_of_when_nobody_has_it() {
    let table = table(70);
    let [a, b] = [1, 2].map(|holder| table.take_row(holder).unwrap());
    assert_eq!(table.claim(a, 0..70, 0), Some(0));
    assert_eq!(table.claim(a, 66..70, 0), Some(66));
    table.copy_row(a, b);
    table.release(b, 0);
    let mut freed = Vec::new();
    assert_eq!(table.bury_dead(2, |holder| holder == 2, |cluster| freed.push(cluster)), 1);
    assert_eq!(freed, [0]);
    assert!(table.adopt(b, 66) && table.has(b, 66));
    assert!(table.release(b, 66));
    table.check().unwrap();
}

/// What all threads of the churn see.
struct World {
    table: Table,
    /// What lies in each cluster: a value that its claimer has written.
    contents: Vec<AtomicU64>,
    living: Mutex<HashSet<u64>>,
    names: AtomicU64,
    deaths: AtomicU64,
    forks: AtomicU64,
}

/// A process: its name, its row, and what it has where.
struct Actor {
    world: Arc<World>,
    name: u64,
    row: Row,
    has: Vec<(u32, u64)>,
    random: Random,
    generation: u32,
}

impl Actor {
    fn is_intact(&self, of: &(u32, u64)) -> bool {
        self.world.contents[of.0 as usize].load(SeqCst) == of.1
    }

    fn turn(&mut self) {
        let (table, clusters) = (self.world.table, self.world.table.clusters());
        match self.random.below(100) {
            0..45 => {
                let from = self.random.below(clusters as usize) as u32;
                if let Some(cluster) = table.claim(self.row, 0..clusters, from) {
                    let content = self.random.word();
                    self.world.contents[cluster as usize].store(content, SeqCst);
                    self.has.push((cluster, content));
                }
            }
            45..90 if !self.has.is_empty() => {
                let of = self.has.swap_remove(self.random.below(self.has.len()));
                assert!(self.is_intact(&of), "cluster {} was another's too", of.0);
                table.release(self.row, of.0);
            }
            90..95 if !self.has.is_empty() => {
                let of = *self.random.pick(&self.has);
                if table.adopt(self.row, of.0) {
                    assert!(self.is_intact(&of), "cluster {} was another's too", of.0);
                }
            }
            95..97 if self.generation < 4 => self.fork(),
            97 => {
                let living = |holder: u64| self.world.living.lock().unwrap().contains(&holder);
                table.bury_dead(self.name, living, |_| ());
            }
            _ => {}
        }
    }

    fn fork(&mut self) {
        let table = self.world.table;
        let Some(row) = table.take_row(self.name) else { return };
        table.copy_row(self.row, row);
        let name = self.world.names.fetch_add(1, SeqCst);
        let actor = Actor {
            world: self.world.clone(),
            name,
            row,
            has: self.has.clone(),
            random: Random(self.random.word()),
            generation: self.generation + 1,
        };
        self.world.living.lock().unwrap().insert(name);
        let child = Waits(Some(actor));
        assert!(table.hand_row(row, self.name, name));
        child.runs();
    }

    /// Lives, and dies at an access that chance chooses.
    fn live(mut self) {
        let (world, name, seed) = (self.world.clone(), self.name, self.random.word());
        let mut left = 2000 + Random(seed).below(20_000);
        gate::at_each(move || {
            left -= 1;
            if left == 0 {
                gate::die();
            }
            if left.is_multiple_of(7) {
                std::thread::yield_now();
            }
        });
        let life = std::panic::AssertUnwindSafe(move || {
            loop {
                self.turn();
            }
        });
        let thrown = std::panic::catch_unwind(life).unwrap_err();
        gate::at_none();
        if thrown.is::<gate::Killed>() {
            world.deaths.fetch_add(1, SeqCst);
        }
        world.living.lock().unwrap().remove(&name);
    }
}

/// A child that waits until its parent has handed it the row, and dies if the parent does.
struct Waits(Option<Actor>);

impl Waits {
    fn runs(mut self) {
        let actor = self.0.take().unwrap();
        actor.world.forks.fetch_add(1, SeqCst);
        std::thread::spawn(|| actor.live());
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        if let Some(actor) = &self.0 {
            actor.world.living.lock().unwrap().remove(&actor.name);
        }
    }
}

#[test]
fn processes_that_die_at_any_access_leave_nothing_and_share_nothing() {
    for seed in 0..8 {
        let world = Arc::new(World {
            table: table(100),
            contents: (0..100).map(|_| AtomicU64::new(0)).collect(),
            living: Mutex::new((1..=4).collect()),
            names: AtomicU64::new(5),
            deaths: AtomicU64::new(0),
            forks: AtomicU64::new(0),
        });
        for name in 1..=4 {
            let row = world.table.take_row(name).unwrap();
            let random = Random(seed << 8 | name);
            let actor = Actor { world: world.clone(), name, row, has: Vec::new(), random, generation: 0 };
            std::thread::spawn(|| actor.live());
        }
        while !world.living.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        world.table.bury_dead(1, |_| false, |_| ());
        world.table.check().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(world.table.free_clusters(0..100), 100, "seed {seed}");
        let [deaths, forks] = [&world.deaths, &world.forks].map(|count| count.load(SeqCst));
        // A thread that found a cluster to be another's too has panicked, and was not killed.
        assert!(deaths == forks + 4 && forks > 0, "seed {seed}: {deaths} deaths, {forks} forks");
    }
}
