//! The run's swap areas, as one engine has them: its row in the table of clusters, the key, the files, and what is
//! written and read there.
//!
//! ```text
//!   objects of a batch ──copied──> buffer ──sealed in place──> area        one write of whole slots
//!   area ──> buffer ──opened in place──> the pool                          whole slots around an object
//!
//!   what is under way, and in which buffer: io.rs
//! ```
//!
//! A row is this process's for as long as the byte of its number is locked in the table's file. The lock belongs to a
//! file description that engine and workers share, and the ring that writes to the areas: the kernel takes it away with
//! the last of them, however that ends, and no write is under way by then.
//!
//! The row of a child is taken and locked by its parent, before the clone. This is safe because
//! 1. the child's engine locks the byte itself before it takes the row over (`hand_row`), and the parent unlocks it
//!    only when it sees that. The parent may die before: the child has its mapping of the table, which keeps the
//!    description open, and puts its own in the place of that when it has the lock. At no time is a row held that
//!    nobody has locked;
//! 2. a child that has not taken it over after a minute never will: its parent takes the row back first, so that the
//!    child's own attempt fails, and the child ends before it runs an instruction of the program's.

mod fates;
mod io;
mod together;

use alloc::vec::Vec;
use control::arena;
use control::handover::Areas as Handed;
use core::ops::Range;
use core::slice;
use core::sync::atomic::{AtomicU32, AtomicU64};
use fates::Fates;
use io::{AreaIo, Ended, OneArea};
pub use io::{REFUSALS, Refusing};
use memcg::Settings;
use mm::kernel::{Damaged, Done};
use swap::area::FileArea;
use swap::fate::{Dice, Faults};
use swap::seal::KEY;
use swap::{Row, SLOT, Slots, Table, seal, table};
use together::Reading;
use uffd::sys::{self, DataFile, Errno, Fd, consts::*};
use zswap::objects::{Batch, Came, Piece, READ_TRIES, Read};

/// How long a child may take until its engine has its row, in nanoseconds.
const CHILD_NS: u64 = 60_000_000_000;

/// Who holds a row that a parent has taken back.
const NOBODY: u64 = u64::MAX - 1;

/// A row for a child that has not taken it over yet.
struct Child {
    row: Row,
    since_ns: u64,
}

/// What was written and read, in slots, and what the areas have refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AreaCounts {
    /// Slots written.
    pub out: u64,
    /// Slots read.
    pub back: u64,
    /// Writes that were refused.
    pub refused: u64,
    /// Objects that could not be read, or whose seal was broken.
    pub lost: u64,
}

/// The areas of one process.
pub struct SwapAreas {
    table: Table,
    /// Where that is mapped.
    at: usize,
    /// By whose description its row is locked.
    file: Fd,
    row: Row,
    holder: u64,
    /// The run's key, in a page that `zfolio run` keeps in memory.
    key: &'static [u8; KEY],
    io: AreaIo,
    children: Vec<Child>,
    counts: AreaCounts,
}

/// What a child finds of its parent's areas, in its copy of the parent's memory.
#[derive(Clone, Copy)]
pub struct Parents {
    at: usize,
    table: Table,
    holder: u64,
}

impl SwapAreas {
    /// The areas of a process that has nothing there yet, with a row of its own. An error says what could not be had.
    pub fn open(handed: Handed, settings: &Settings, bell: &Fd) -> Result<SwapAreas, (&'static str, Errno)> {
        SwapAreas::map(handed, settings, bell, |table, file, holder| {
            let row = take_row(table, file, holder, |_| false);
            row.ok_or(("a row of the swap areas' table", Errno::ENOMEM))
        })
    }

    /// The areas of a child whose parent has taken this row for it, in the parent's name. The table comes to where the
    /// parent had it, whose mapping goes, and with that the parent's locks, if it has died.
    ///
    /// # Safety
    /// `parents` must be of the copy of what the parent's engine had, and nothing of that be used any more but slots.
    pub unsafe fn inherit(
        handed: Handed,
        settings: &Settings,
        bell: &Fd,
        row: Row,
        parents: Parents,
    ) -> Result<SwapAreas, (&'static str, Errno)> {
        let mut areas = SwapAreas::map(handed, settings, bell, |table, file, holder| {
            let is_locked = sys::lock_byte(file, Row::lock_at(row.number()), true);
            let is_handed = is_locked.is_ok_and(|is| is) && table.hand_row(row, parents.holder, holder);
            is_handed.then_some(row).ok_or(("the child's row of the swap areas' table", Errno::ESRCH))
        })?;
        let bytes = Table::file_len(areas.table.clusters() as usize);
        // SAFETY: the caller's contract; nobody but `areas` knows where its table is.
        if !unsafe { arena::remap(areas.at..areas.at + bytes, parents.at, bytes) } {
            return Err(("mremap", Errno::ENOMEM));
        }
        (areas.at, areas.table) = (parents.at, parents.table);
        Ok(areas)
    }

    /// Maps and opens all that there is; `row` has the process's row.
    fn map(
        handed: Handed,
        settings: &Settings,
        bell: &Fd,
        row: impl FnOnce(&Table, &Fd, u64) -> Result<Row, (&'static str, Errno)>,
    ) -> Result<SwapAreas, (&'static str, Errno)> {
        let Handed { table: file, key, files } = handed;
        let clusters = settings.area_clusters().last().map_or(0, |(clusters, _)| clusters.end as usize);
        let bytes = Table::file_len(clusters);
        let mapped = arena::map_file_let_in(bytes, PROT_READ | PROT_WRITE, &file);
        let at = mapped.map_err(|errno| ("the table of the swap areas", errno))?;
        // SAFETY: the mapping is that long, and stays as long as the process.
        let table = unsafe { table_at(at, clusters) };
        let key = arena::map_file(KEY, PROT_READ, &key).map_err(|errno| ("the swap areas' key", errno))?;
        let mut areas = Vec::new();
        for ((clusters, _), fd) in settings.area_clusters().zip(files) {
            let file = fd.ok_or(Errno::ENOENT).and_then(DataFile::new);
            let file = file.map_err(|errno| ("a swap area's file", errno))?;
            let bytes = clusters.len() as u64 * swap::CLUSTER_BYTES;
            areas.push(OneArea::new(clusters, FileArea::new(file, bytes)));
        }
        let mut io = AreaIo::open(areas, bell, &file).ok_or(("mmap", Errno::ENOMEM))?;
        // No two processes have the same number at the same moment.
        let holder = (sys::getpid().unwrap_or(0) as u64) << 32 | sys::now_ns() >> 10 & 0xffff_ffff;
        let row = row(&table, &file, holder)?;
        if let Ok(faults) = settings.area_faults.as_str().parse::<Faults>()
            && faults != Faults::default()
        {
            io.misbehave(Fates::new(Dice::of_process(settings.seed, &table, row, faults)));
        }
        Ok(SwapAreas {
            table,
            at,
            file,
            row,
            holder,
            // SAFETY: the file is a page of the run's, which stays; `zfolio run` has written it before anybody had it.
            key: unsafe { &*(key as *const [u8; KEY]) },
            io,
            children: Vec::new(),
            counts: AreaCounts::default(),
        })
    }

    /// What a child has of it.
    pub fn parents(&self) -> Parents {
        Parents { at: self.at, table: self.table, holder: self.holder }
    }

    /// The process's part of the areas, which has nothing there yet.
    pub fn slots(&self, settings: &Settings) -> Slots {
        Slots::new(self.table, self.row, settings.area_clusters())
    }

    /// Its row's number and 1, by which `zfolio run` buries it.
    pub fn row(&self) -> u32 {
        self.row.number() as u32 + 1
    }

    /// A row for a child that is about to be cloned.
    pub fn row_for_child(&mut self) -> Option<Row> {
        let is_own =
            |number| number == self.row.number() || self.children.iter().any(|c| c.row.number() == number);
        let row = take_row(&self.table, &self.file, self.holder, is_own)?;
        self.children.push(Child { row, since_ns: sys::now_ns() });
        Some(row)
    }

    /// Looks whether children have their rows; without `is_child` the last one has not come to be.
    pub fn look_at_children(&mut self, now_ns: u64, is_child: bool) {
        if !is_child && let Some(child) = self.children.last_mut() {
            child.since_ns = 0;
        }
        let (table, holder, file) = (self.table, self.holder, &self.file);
        self.children.retain(|child| {
            let is_late = now_ns.saturating_sub(child.since_ns) > CHILD_NS;
            if is_late && table.hand_row(child.row, holder, NOBODY) {
                let _ = table.bury(child.row, NOBODY, holder, |_| true, |_| ());
            }
            let is_waiting = table.holder(child.row) == holder;
            if !is_waiting {
                let _ = sys::unlock_byte(file, Row::lock_at(child.row.number()));
            }
            is_waiting
        });
    }

    /// The process has ended: all that it had is given up when nothing of it is under way any more.
    pub fn leave(&mut self) {
        self.io.finish();
        let _ = self.table.bury(self.row, self.holder, self.holder, |_| true, |_| ());
        let _ = sys::unlock_byte(&self.file, Row::lock_at(self.row.number()));
    }

    /// How many writes and reads have not been heard of; and how many of them are still under way.
    pub fn under_way(&self) -> (usize, usize) {
        self.io.under_way()
    }

    /// What was written and read since the last time that it was asked.
    pub fn take_counts(&mut self) -> AreaCounts {
        core::mem::take(&mut self.counts)
    }

    /// When something is due that nobody rings for, in nanoseconds; `None` but in the test mode.
    pub fn due_ns(&self) -> Option<u64> {
        self.io.due_ns()
    }

    /// Which area a slot is in, as the run numbers them from 0, and where in it, in bytes.
    pub fn find(&self, slot: u32) -> Option<(usize, u64)> {
        self.io.find(slot)
    }

    /// An area that has refused so many writes in a row that it is to take no more; once.
    pub fn refusing(&mut self) -> Option<Refusing> {
        self.io.refusing()
    }

    /// Gives slots that nobody needs back to their storage.
    pub fn discard(&self, slots: Range<u32>) {
        self.io.discard(slots);
    }

    /// Seals a batch, and has it written; `copy` puts what is written of a piece into the room that it is given, and
    /// says whether it could.
    pub fn write(&mut self, number: usize, batch: &mut Batch, copy: impl Fn(&Piece, &mut [u8]) -> bool) {
        let bytes = batch.bytes().next_multiple_of(SLOT);
        let buffer = self.io.outgoing(number, bytes);
        let (begin, mut end) = (batch.at(), 0);
        for piece in &mut batch.pieces {
            let at = (piece.place.at() - begin) as usize;
            buffer[end..at].fill(0);
            end = at + piece.place.bytes as usize;
            let object = &mut buffer[at..end];
            piece.is_damaged = !copy(piece, object);
            piece.tag = seal::seal(self.key, &piece.place, object);
        }
        buffer[end..].fill(0);
        self.counts.out += (bytes / SLOT) as u64;
        self.io.write(number, batch.run.slot, bytes);
    }

    /// Puts up that an object is to be read.
    pub fn read(&mut self, read: Read) {
        self.io.read(read);
    }

    /// Has begin what was put up.
    pub fn submit(&mut self) {
        self.io.submit();
    }

    /// What has come to its end. `take_in` takes what was written of an object into the pool.
    pub fn next_done(&mut self, mut take_in: impl FnMut(&Read, &[u8]) -> Came) -> Option<Done> {
        let key = self.key;
        loop {
            let (reading, result) = match self.io.next()? {
                Ended::Written(number, result) => {
                    self.counts.refused += result.is_err() as u64;
                    return Some(Done::Written { number, is_written: result.is_ok() });
                }
                Ended::Read(reading, result) => (reading, result),
            };
            let Reading { read, tries } = reading;
            self.counts.back += read.place.slots().len() as u64;
            let opened = match result {
                Ok(bytes) => {
                    let object = self.io.incoming(&bytes);
                    seal::open(key, &read.place, &read.tag, object)
                        .map(|()| object)
                        .map_err(|_| Damaged::Seal)
                }
                Err(errno) => Err(Damaged::Unread(errno)),
            };
            let came = match opened {
                Ok(object) => take_in(&read, object),
                Err(_) if tries + 1 < READ_TRIES => {
                    self.io.again(reading);
                    continue;
                }
                Err(damaged) => {
                    self.counts.lost += 1;
                    Came::Lost(damaged)
                }
            };
            return Some(Done::Read { id: read.id, came });
        }
    }
}

/// The table of so many clusters that is mapped at `at`.
///
/// # Safety
/// It must be, as long as the table is used, and all processes use it as atomics alone.
unsafe fn table_at(at: usize, clusters: usize) -> Table {
    // SAFETY: the caller's contract; a mapping begins with a page, and the two parts do not overlap.
    unsafe {
        let words = slice::from_raw_parts(at as *const AtomicU32, clusters);
        let shared = (at + Table::shared_at(clusters)) as *const AtomicU64;
        Table::new(words, slice::from_raw_parts(shared, Table::shared_len(clusters)))
    }
}

/// Takes a row that nobody has, and locks its byte before that. The locks of `is_own` are this process's.
fn take_row(table: &Table, file: &Fd, holder: u64, is_own: impl Fn(u16) -> bool) -> Option<Row> {
    (0..table::ROWS as u16).filter(|number| !is_own(*number)).find_map(|number| {
        let at = Row::lock_at(number);
        let is_free =
            sys::is_byte_locked(file, at) == Ok(false) && sys::lock_byte(file, at, true) == Ok(true);
        let row = is_free.then(|| table.take_this_row(number, holder))?;
        if row.is_none() {
            // A dead process's, which `zfolio run` buries; or another's, who was as fast.
            let _ = sys::unlock_byte(file, at);
        }
        row
    })
}

#[cfg(test)]
mod tests;
