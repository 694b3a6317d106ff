//! The swap areas of a run: opened, handed to its processes, and rid of what the dead had there.
//!
//! ```text
//!   table   a memfd: swap's table of clusters       each process has a description of its own, and a lock of its row's byte
//!   key     a memfd: the run's key, 32 bytes        in locked memory here, and handed to be read
//!   area    a file or a device, one or more         what users give by `--backing`
//! ```
//!
//! A row is a dead process's if it is held and its byte is not locked. A process locks the byte before it takes the
//! row, and the kernel takes the lock away with the last process that has the description. Only `zfolio run` buries
//! others, so that one burial is never under way twice.
//!
//! What the dead alone had is given back to the storage. Another process may claim a cluster as soon as it is free, and
//! a discard would lose what it writes. So `zfolio run` claims the cluster itself before it discards it.

use crate::backing::{Backing, Opened};
use crate::handover::AreaFiles;
use crate::sys;
use anyhow::{Context, Result, bail};
use base::{Errno, Fd};
use memcg::{AREAS_MAX, AreaSetting};
use std::time::{Duration, Instant};
use swap::{Area, CLUSTER_BYTES, CLUSTERS_MAX, Row, Table, seal};

/// How often the dead are looked for, beside when somebody has ended.
const LOOK: Duration = Duration::from_secs(1);

/// This process among holders of rows: no number of a process, with its start time.
const OWN: u64 = u64::MAX;

/// So many clusters are discarded in one go, while the run waits: 128 MiB.
const GIVEN_BACK: usize = 64;

const _: () = assert!(CLUSTER_BYTES == memcg::CLUSTER_BYTES);

/// The areas, and what is shared of them.
pub struct SwapAreas {
    opened: Vec<Opened>,
    table: Table,
    table_file: Fd,
    files: Option<AreaFiles>,
    next: Instant,
    /// Clusters that only dead processes had, and that are still to be discarded.
    freed: Vec<u32>,
}

/// Opens what the user gives. The error is one line.
pub fn open(asked: &[String]) -> Result<Vec<Opened>> {
    if asked.len() > AREAS_MAX {
        bail!("--backing: {} areas, expected at most {AREAS_MAX}", asked.len());
    }
    let parsed = asked
        .iter()
        .map(|text| Backing::parse(text).map_err(|why| anyhow::anyhow!("--backing {text}: {why}")));
    // Nothing is opened, and no file made, before all can be read.
    let parsed = parsed.collect::<Result<Vec<Backing>>>()?;
    let opened = parsed.iter().map(|backing| backing.open().context("--backing"));
    let opened = opened.collect::<Result<Vec<Opened>>>()?;
    let clusters = opened.iter().map(clusters).sum::<u64>();
    if clusters > CLUSTERS_MAX as u64 {
        bail!("--backing: {} TiB, expected less than 16 TiB in all", (clusters * CLUSTER_BYTES) >> 40);
    }
    Ok(opened)
}

/// How many clusters an area has.
fn clusters(of: &Opened) -> u64 {
    of.area.bytes() / CLUSTER_BYTES
}

impl SwapAreas {
    /// Makes what processes share of the areas, of which there is one at least. With it comes why the machine may swap
    /// the key out, if it may.
    pub fn new(opened: Vec<Opened>) -> Result<(SwapAreas, Option<Errno>)> {
        let count = opened.iter().map(clusters).sum::<u64>() as usize;
        let said = |errno: Errno| {
            anyhow::anyhow!("no memory for the table of swap areas, or for their key: {errno}")
        };
        // By these names the run knows what is its own of the tree's shared memory (shared.rs).
        let (table_file, table) = sys::make_table(c"zfolio-table", count).map_err(said)?;
        let key = base::sys::memfd(c"zfolio-key").map_err(said)?;
        let is_locked = sys::make_secret(&key, seal::KEY).map_err(said)?;
        let areas: Vec<&Fd> = opened.iter().map(|of| of.area.file().fd()).collect();
        let files = AreaFiles::new(&table_file, &key, &areas).context("no descriptor of a swap area")?;
        let (files, next) = (Some(files), Instant::now());
        Ok((SwapAreas { opened, table, table_file, files, next, freed: Vec::new() }, is_locked.err()))
    }

    /// What engines are told of the areas.
    pub fn settings(&self) -> [AreaSetting; AREAS_MAX] {
        let mut settings = [AreaSetting::default(); AREAS_MAX];
        for (setting, of) in settings.iter_mut().zip(&self.opened) {
            *setting =
                AreaSetting { bytes: of.area.bytes(), priority: of.priority, ..AreaSetting::default() };
        }
        settings
    }

    /// An area's path as the user gives it, by its number from 0.
    pub fn path(&self, number: usize) -> String {
        self.opened.get(number).map(|of| of.path.display().to_string()).unwrap_or_default()
    }

    /// What is handed to processes, once.
    pub fn take_files(&mut self) -> Option<AreaFiles> {
        self.files.take()
    }

    /// For the end of the run: empties files of the user's, but for what processes that live on have there.
    pub fn end(&mut self) {
        self.bury();
        let mut first = 0;
        for of in &mut self.opened {
            let end = first + clusters(of) as u32;
            if of.leave() {
                self.freed.extend(first..end);
            }
            first = end;
        }
        while !self.freed.is_empty() {
            self.give_back();
        }
    }

    /// Buries processes that have a row and live no more: at once where one `has_ended`, else once a second.
    pub fn tick(&mut self, has_ended: bool) {
        let now = Instant::now();
        if has_ended || now >= self.next {
            self.next = now + LOOK;
            self.bury();
        }
        self.give_back();
    }

    fn bury(&mut self) {
        let (table, mut freed) = (self.table, std::mem::take(&mut self.freed));
        for (row, holder) in table.held_rows().filter(|(row, _)| !self.is_locked(*row)) {
            // A process that clears its own row as it ends has it locked until that is done.
            let is_alive =
                |burier: u64| table.held_rows().any(|(row, holder)| holder == burier && self.is_locked(row));
            // A row that somebody else has by now is left alone.
            table.bury(row, holder, OWN, is_alive, |cluster| freed.push(cluster));
        }
        self.freed = freed;
    }

    /// True where a living process has the lock of the row; or where nobody can say.
    fn is_locked(&self, row: Row) -> bool {
        base::sys::is_byte_locked(&self.table_file, Row::lock_at(row.number())).unwrap_or(true)
    }

    /// Has the storage forget some of what the dead had.
    fn give_back(&mut self) {
        if self.freed.is_empty() {
            return;
        }
        // Where all rows are taken it is not given back: nothing is wrong, and the next who claims it overwrites it.
        let Some(row) = self.table.take_row(OWN) else { return self.freed.clear() };
        let some: Vec<u32> = self.freed.drain(..self.freed.len().min(GIVEN_BACK)).collect();
        let mut first = 0;
        for of in &self.opened {
            let end = first + clusters(of) as u32;
            let here = some.iter().copied().filter(|cluster| (first..end).contains(cluster));
            let own: Vec<u32> = here.filter(|cluster| self.table.claim_this(row, *cluster)).collect();
            for run in own.chunk_by(|a, b| a + 1 == *b) {
                let at = (run[0] - first) as u64 * CLUSTER_BYTES;
                // A storage that cannot forget keeps it, until it is written again.
                let _ = of.area.discard(at, run.len() as u64 * CLUSTER_BYTES);
                for cluster in run {
                    self.table.release(row, *cluster);
                }
            }
            first = end;
        }
        self.table.bury(row, OWN, OWN, |_| false, |_| ());
    }
}

#[cfg(test)]
mod tests;
