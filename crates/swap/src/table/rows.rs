//! Rows: taken, copied by forks, and buried.

use super::{BITS, BURIERS, COPIES, HOLDERS, RELEASES, ROWS, Row, SERIALS, Table, USED_ROWS, is_free};
use crate::seal::Serials;
use crate::step::step;
use alloc::format;
use alloc::string::String;
use core::sync::atomic::Ordering::SeqCst;

/// What became of a burial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Burial {
    /// The row is free, and so is each cluster that only the dead process had: so many.
    Done(u32),
    /// The row is not, or no longer, that of the dead process.
    Other,
    /// A living process buries the row now.
    UnderWay,
}

/// Whose a row is while it is cleared.
const BURIED: u64 = u64::MAX - 2;

impl Table {
    /// Takes a row for a process. `holder` names the process: not 0, and no other process of the run's life has the
    /// same, such as its id with its start time. `None` where all rows are taken.
    pub fn take_row(&self, holder: u64) -> Option<Row> {
        (0..ROWS as u16).find_map(|number| self.take_this_row(number, holder))
    }

    /// Takes the row of this number, below [`ROWS`], if nobody has it. A process that has locked something by that
    /// number takes its row so.
    pub fn take_this_row(&self, number: u16, holder: u64) -> Option<Row> {
        debug_assert!((number as usize) < ROWS && holder != 0);
        let row = Row(number);
        if self.holder(row) != 0 {
            return None;
        }
        // A process that scans looks at the row before it has a holder.
        step();
        self.shared[USED_ROWS].fetch_max(number as u64 + 1, SeqCst);
        self.swap(HOLDERS, row, 0, holder).then_some(row)
    }

    /// The rows that somebody has, with their holders.
    pub fn held_rows(&self) -> impl Iterator<Item = (Row, u64)> {
        self.used_rows().map(|row| (row, self.holder(row))).filter(|(_, holder)| *holder != 0)
    }

    /// For a fork: gives a row that the parent has taken in its own name to the child, before the child may run.
    pub fn hand_row(&self, row: Row, parent: u64, child: u64) -> bool {
        self.swap(HOLDERS, row, parent, child)
    }

    /// Whose the row is, or 0.
    pub fn holder(&self, row: Row) -> u64 {
        self.load(HOLDERS + row.0 as usize)
    }

    /// For a fork: what the process of `from` may refer to, the child of row `to` may too. The parent does this before
    /// the child may run, with a new row, and neither claims nor releases meanwhile.
    pub fn copy_row(&self, from: Row, to: Row) {
        for n in 0..self.stride() {
            let bits = self.load(self.bits_at(from, n));
            if bits != 0 {
                step();
                self.shared[self.bits_at(to, n)].store(bits, SeqCst);
            }
        }
        self.count(COPIES);
    }

    /// The numbers of the objects that are sealed with the row's subkey. They go on from one holder to the next.
    pub fn serials(&self, row: Row) -> Serials {
        Serials::new(&self.shared[SERIALS + row.0 as usize])
    }

    /// Buries all processes that have a row and do not live: the number of rows. `me` names the caller as in
    /// [`Table::take_row`], whether it has a row or not. `freed` is called with each cluster that has become free.
    pub fn bury_dead(&self, me: u64, is_alive: impl Fn(u64) -> bool, mut freed: impl FnMut(u32)) -> u32 {
        let is_dead = |row: &Row| Some(self.holder(*row)).filter(|holder| *holder != 0 && !is_alive(*holder));
        let dead = self.used_rows().filter_map(|row| Some((row, is_dead(&row)?)));
        let done = dead.filter(|(row, holder)| {
            matches!(self.bury(*row, *holder, me, &is_alive, &mut freed), Burial::Done(_))
        });
        done.count() as u32
    }

    /// Clears the row of `dead`, a process that runs no more, or the caller itself, that is done with the table.
    /// Releases each cluster that no row has.
    pub fn bury(
        &self,
        row: Row,
        dead: u64,
        me: u64,
        is_alive: impl Fn(u64) -> bool,
        freed: impl FnMut(u32),
    ) -> Burial {
        let burier = self.load(BURIERS + row.0 as usize);
        if burier != 0 && is_alive(burier) || !self.swap(BURIERS, row, burier, me) {
            return Burial::UnderWay;
        }
        let mut burial = Burial::Other;
        // From here on it cannot be handed on any more. A burier that died may have come as far.
        if self.swap(HOLDERS, row, dead, BURIED) || self.holder(row) == BURIED {
            burial = Burial::Done(self.clear(row, freed));
            self.swap(HOLDERS, row, BURIED, 0);
        }
        self.swap(BURIERS, row, me, 0);
        burial
    }

    /// Clears all bits of a row, and releases the clusters that no row has; how many.
    fn clear(&self, row: Row, mut freed: impl FnMut(u32)) -> u32 {
        // The dead one may have copied its row, and not have counted it.
        self.count(COPIES);
        let mut count = 0;
        for n in 0..self.stride() {
            let first = n as u32 * 64;
            let clusters = first..self.clusters().min(first + 64);
            let mut words = [0; 64];
            clusters.clone().for_each(|cluster| words[cluster as usize % 64] = self.word(cluster));
            step();
            self.shared[self.bits_at(row, n)].swap(0, SeqCst);
            let referred = match words.iter().all(|word| is_free(*word)) {
                true => continue,
                false => self.referred(n),
            };
            for cluster in clusters {
                let (word, bit) = (words[cluster as usize % 64], 1 << (cluster % 64));
                if !is_free(word) && referred & bit == 0 && self.change(cluster, word, 0) {
                    (count, _) = (count + 1, freed(cluster));
                }
            }
        }
        // Counted even where this released nothing: the dead one may have.
        self.count(RELEASES);
        count
    }

    /// Of 64 clusters, those that a row has: one moment's.
    fn referred(&self, n: usize) -> u64 {
        loop {
            let copies = self.load(COPIES);
            let held = self.used_rows().filter(|row| self.holder(*row) != 0);
            let bits = held.fold(0, |bits, row| bits | self.load(self.bits_at(row, n)));
            if self.load(COPIES) == copies {
                return bits;
            }
        }
    }

    /// Recomputes what holds while nobody is at work: each cluster in use is had by a row, and each bit is one of a
    /// cluster in use and of a living row. A burier may have died when it had only its own name left to take away: who
    /// buries the row's next holder does that.
    pub fn check(&self) -> Result<(), String> {
        for row in self.used_rows() {
            let is_held = self.holder(row) != 0;
            for cluster in (0..self.clusters()).filter(|cluster| self.has(row, *cluster)) {
                if !is_held || is_free(self.word(cluster)) {
                    return Err(format!("{row:?} (held: {is_held}) has cluster {cluster}"));
                }
            }
        }
        let is_lost = |cluster: &u32| !is_free(self.word(*cluster)) && !self.is_referred(*cluster, None);
        match (0..self.clusters()).find(is_lost) {
            Some(cluster) => Err(format!("cluster {cluster} is in use, and no row has it")),
            None => Ok(()),
        }
    }

    fn bits_at(&self, row: Row, n: usize) -> usize {
        BITS + row.0 as usize * self.stride() + n
    }

    fn swap(&self, of: usize, row: Row, from: u64, to: u64) -> bool {
        debug_assert!((row.0 as usize) < ROWS);
        step();
        self.shared[of + row.0 as usize].compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }
}
