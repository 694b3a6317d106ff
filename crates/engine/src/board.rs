//! The board: where the pager puts up jobs and workers take them. It is a mapping of its own, shared with the workers,
//! which have none of the program's memory.
//!
//! Each slot of the inactive list has a cell, and a cell's state says whose it is:
//!
//! ```text
//!   IDLE ──post──> QUEUED ──a worker──> BUSY ──> DONE ──the pager──> IDLE
//!                    └──── withdraw ──────────────────────────────────^
//! ```
//!
//! The objects that a worker makes lie in a parcel with what is to be known of them. There are a few parcels. A worker
//! has one before it takes a job, and gives it away with the result; the pager gives it back when it has taken the
//! objects into the pool. Where a device works on several at a time a worker takes as many jobs of a kind at once, but
//! no more than are its part of what is put up: all of them are BUSY then, and each has its parcel. While it waits for
//! the device it takes the loads that are put up meanwhile, one after the other.
//!
//! This is safe because
//! 1. a cell's work is written by the pager before QUEUED is stored, and read by the one worker that exchanges QUEUED
//!    for BUSY;
//! 2. its result, and the parcel that this names, are written by that worker before DONE is stored, and read by the
//!    pager after it;
//! 3. a parcel has one owner: whoever takes its bit out of `free`, then who reads the result that names it, until it
//!    puts the bit back;
//! 4. a ring entry is only a hint where to look: one that is stale finds no QUEUED, or finds a newer job of the same
//!    slot, which is as good;
//! 5. no slot is in a ring twice, so that there is always room, and the pager, on whom workers wait for parcels, never
//!    waits for them to make some: who has posted finds either that the slot is not listed, or that a worker will look
//!    at its cell after this.

mod job;
mod ring;
mod turn;

use control::arena;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::slice;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*, fence};
use job::Answer;
pub use job::{Hand, Reply, Task, Work};
use ring::{Ends, Ring};
use uffd::{Fd, PAGE, sys};
use zswap::{PARCEL_MAX_BYTES, Packed};

const IDLE: u32 = 0;
const QUEUED: u32 = 1;
const BUSY: u32 = 2;
const DONE: u32 = 3;

/// The most workers that a board has room for. Of a window that goes out the engine's part takes 13 µs, and a worker's
/// 117 with zstd:1 (`zfolio bench path`): an engine keeps nine of them busy.
pub const WORKERS_MAX: usize = 8;

/// As many as a word has bits.
const PARCELS: usize = u64::BITS as usize;

const _: () = assert!(2 * WORKERS_MAX <= PARCELS && WORKERS_MAX <= u32::BITS as usize);

/// How many of them, from the first on, there are for so many workers that take so many jobs at a time: as many as they
/// work on, and as many that the pager takes in meanwhile, as far as there are.
const fn parcels(workers: usize, most: usize) -> usize {
    let wanted = 2 * workers * most;
    if wanted < PARCELS { wanted } else { PARCELS }
}

/// How long the pager waits for workers that are to give up rights, and how often it looks.
const FOLLOW_NS: u64 = 50_000_000;
const FOLLOW_LOOK_NS: u64 = 50_000;

/// What is to be known of a parcel's objects lies before them.
const PARCEL_HEAD: usize = size_of::<Packed>().next_multiple_of(64);
const PARCEL_BYTES: usize = (PARCEL_HEAD + PARCEL_MAX_BYTES).next_multiple_of(PAGE);

struct Cell {
    state: AtomicU32,
    /// 1 while the slot is in a ring.
    listed: AtomicU32,
    work: UnsafeCell<MaybeUninit<Work>>,
    answer: UnsafeCell<MaybeUninit<Answer>>,
}

/// The head of the mapping.
pub struct BoardHead {
    /// Workers that sleep, or are about to, and that nobody has called yet, by bit; and those of them that want a
    /// parcel.
    asleep: AtomicU32,
    starving: AtomicU32,
    /// How often each was called. It sleeps on this.
    calls: [AtomicU32; WORKERS_MAX],
    /// Which parcels are nobody's, by bit; and how many have ever been somebody's, of which the first are taken first.
    free: AtomicU64,
    touched: AtomicU32,
    /// How many cells, from the first on and from the last on, may have been used: of the inactive list both ends are
    /// (inactive/blocks.rs of mm).
    posted: [AtomicU32; 2],
    /// How many workers are ready.
    ready: AtomicU32,
    /// How many of them are to work, the first ones: as many as there are CPUs for.
    wanted: AtomicU32,
    /// Above 0 while the pager sleeps in poll: after so many more results it wants `bell` rung.
    pub pager_wants: AtomicU32,
    /// Set to end the workers.
    pub stop: AtomicU32,
    /// Above 0 while the engine runs only when nobody else wants to (placement.rs): a footprint in bytes at which a
    /// worker calls it.
    pub alarm: AtomicUsize,
    /// Set when a worker has called the engine.
    pub called: AtomicU32,
    /// Bytes of private memory of each worker, in its own address space.
    pub private: [AtomicUsize; WORKERS_MAX],
    /// How often the program's rights have become others, and of which time each worker has seen to its own.
    rights: AtomicU32,
    followed: [AtomicU32; WORKERS_MAX],
    bell: Fd,
    fetches: Ends,
    stores: Ends,
}

/// What pager and workers share.
#[derive(Clone, Copy)]
pub struct Board {
    head: &'static BoardHead,
    cells: &'static [Cell],
    /// Loads come before stores: a thread may already wait for one.
    fetches: Ring,
    stores: Ring,
    parcels: usize,
    bytes: usize,
}

// SAFETY: see the list at the head of the file for cells and parcels; the rest is atomics and shared by design.
unsafe impl Sync for Board {}
// SAFETY: as above.
unsafe impl Send for Board {}

/// Where the parts of a board lie.
struct BoardLayout {
    cells: usize,
    fetches: usize,
    stores: usize,
    parcels: usize,
    bytes: usize,
    ring: usize,
}

impl BoardLayout {
    fn new(slots: usize) -> BoardLayout {
        let ring = slots.next_power_of_two();
        let cells = size_of::<BoardHead>().next_multiple_of(64);
        let fetches = cells + slots * size_of::<Cell>();
        let stores = fetches + ring * size_of::<AtomicU32>();
        let parcels = (stores + ring * size_of::<AtomicU32>()).next_multiple_of(PAGE);
        BoardLayout { cells, fetches, stores, parcels, bytes: parcels + PARCELS * PARCEL_BYTES, ring }
    }
}

impl Board {
    /// A board for an inactive list of `slots` slots; `None` where there is no memory. It stays for ever.
    pub fn map(slots: usize, bell: Fd) -> Option<Board> {
        let layout = BoardLayout::new(slots);
        let at = arena::map_shared(layout.bytes)?;
        let zero = AtomicU32::new;
        let head = BoardHead {
            asleep: zero(0),
            starving: zero(0),
            calls: Default::default(),
            free: AtomicU64::new(u64::MAX),
            touched: zero(0),
            posted: Default::default(),
            ready: zero(0),
            wanted: zero(WORKERS_MAX as u32),
            pager_wants: zero(0),
            stop: zero(0),
            alarm: AtomicUsize::new(0),
            called: zero(0),
            private: Default::default(),
            rights: zero(0),
            followed: Default::default(),
            bell,
            fetches: Ends::default(),
            stores: Ends::default(),
        };
        // SAFETY: the mapping is new, zeroed, as long as the layout says, and stays; the parts lie apart in it, each
        // aligned, and zeros are a value of atomics and of what is not read before it is written.
        unsafe {
            (at as *mut BoardHead).write(head);
            let head = &*(at as *const BoardHead);
            let ring = |offset: usize, ends| Ring {
                ends,
                slots: slice::from_raw_parts((at + offset) as *const AtomicU32, layout.ring),
            };
            Some(Board {
                head,
                cells: slice::from_raw_parts((at + layout.cells) as *const Cell, slots),
                fetches: ring(layout.fetches, &head.fetches),
                stores: ring(layout.stores, &head.stores),
                parcels: at + layout.parcels,
                bytes: layout.bytes,
            })
        }
    }

    /// The words that engine and workers tell each other.
    pub fn head(&self) -> &'static BoardHead {
        self.head
    }

    /// Its addresses.
    pub fn range(&self) -> Range<usize> {
        let at = core::ptr::from_ref(self.head) as usize;
        at..at + self.bytes
    }

    /// Readable when the pager is to wake: a job was done while it slept.
    pub fn bell(&self) -> &'static Fd {
        &self.head.bell
    }

    /// Bytes that are in no private memory of the engine's: the board itself, and what the workers have.
    pub fn apart_bytes(&self) -> usize {
        self.shared_bytes() + self.head.private.iter().map(|p| p.load(Relaxed)).sum::<usize>()
    }

    /// Bytes of the board itself, which are shared memory of the program's address space.
    pub fn shared_bytes(&self) -> usize {
        let posted: u32 = self.head.posted.iter().map(|cells| cells.load(Relaxed)).sum();
        let cells = self.cells.len() - posted as usize;
        let parcels = PARCELS - self.head.touched.load(Relaxed) as usize;
        let untouched = cells * size_of::<Cell>() + parcels * PARCEL_BYTES;
        self.bytes - untouched
    }

    /// The pager puts work up for a slot that has none.
    pub fn post(&self, slot: u32, work: Work) {
        let cell = &self.cells[slot as usize];
        debug_assert_eq!(cell.state.load(Relaxed), IDLE);
        let ends = [slot + 1, self.cells.len() as u32 - slot];
        let nearer = (ends[1] < ends[0]) as usize;
        self.head.posted[nearer].fetch_max(ends[nearer], Relaxed);
        // SAFETY: the cell is IDLE, so the pager's.
        unsafe { (*cell.work.get()).write(work) };
        cell.state.store(QUEUED, SeqCst);
        if cell.listed.swap(1, SeqCst) == 0 {
            let ring = if matches!(work, Work::Pack { .. }) { &self.stores } else { &self.fetches };
            ring.push(slot);
        }
        // The ring is written before it is looked who sleeps: a worker does both the other way round.
        fence(SeqCst);
        // One that has no parcel would only look.
        let wanted = !(u32::MAX << self.head.wanted.load(SeqCst));
        let _ = self.call(wanted & !self.head.starving.load(SeqCst)) || self.call(wanted);
    }

    /// From now on so many of the workers take work, the first ones. All look at once: there may be work that one was
    /// called for who is to take none any more, or that one more can take.
    pub fn want(&self, workers: usize) {
        let wanted = workers.clamp(1, WORKERS_MAX) as u32;
        if self.head.wanted.swap(wanted, SeqCst) != wanted {
            (0..WORKERS_MAX).for_each(|number| _ = self.call(1 << number));
        }
    }

    /// How many workers take work.
    fn working(&self) -> usize {
        let working = self.head.ready.load(Relaxed).min(self.head.wanted.load(Relaxed));
        working.max(1) as usize
    }

    /// The pager takes work back; false when a worker has begun it.
    pub fn withdraw(&self, slot: u32) -> bool {
        self.cells[slot as usize].state.compare_exchange(QUEUED, IDLE, AcqRel, Relaxed).is_ok()
    }

    /// True when a worker has done the slot's work.
    pub fn is_done(&self, slot: u32) -> bool {
        self.cells[slot as usize].state.load(Acquire) == DONE
    }

    /// The pager takes the answer of a slot whose work is done; `take` gets the objects of its parcel.
    pub fn answer<R>(&self, slot: u32, take: impl FnOnce(&Reply, &mut [u8]) -> R) -> R {
        let cell = &self.cells[slot as usize];
        assert_eq!(cell.state.load(Acquire), DONE, "an answer is there before it is taken");
        // SAFETY: the cell is DONE, so the pager's, and the worker has written the answer.
        let answer = unsafe { (*cell.answer.get()).assume_init() };
        let result = match answer {
            Answer::Packed { parcel } => {
                // SAFETY: the answer has made it the pager's, and the worker has written its head.
                let (packed, objects) = unsafe { (self.head_of(parcel).read(), self.objects_of(parcel)) };
                let result = take(&Reply::Packed(packed), objects);
                self.free_parcel(parcel);
                result
            }
            Answer::Unpacked(sound) => take(&Reply::Unpacked(sound), &mut []),
        };
        cell.state.store(IDLE, Release);
        result
    }

    /// Where it stands what the objects of a parcel are.
    fn head_of(&self, parcel: u32) -> *mut Packed {
        assert!((parcel as usize) < PARCELS);
        (self.parcels + parcel as usize * PARCEL_BYTES) as *mut Packed
    }

    /// Where the objects of a parcel lie.
    ///
    /// # Safety
    /// It must be the caller's.
    #[expect(clippy::mut_from_ref, reason = "each parcel has one owner at a time")]
    unsafe fn objects_of(&self, parcel: u32) -> &mut [u8] {
        // SAFETY: inside the mapping, behind the head; nobody else has it.
        unsafe {
            let at = self.head_of(parcel).byte_add(PARCEL_HEAD);
            slice::from_raw_parts_mut(at.cast(), PARCEL_BYTES - PARCEL_HEAD)
        }
    }

    /// Which parcels there are for the workers that take work, by bit, where one takes so many jobs at a time.
    fn parcels_mask(&self, most: usize) -> u64 {
        u64::MAX >> (PARCELS - parcels(self.working().min(WORKERS_MAX), most))
    }

    fn take_parcel(&self, most: usize) -> Option<u32> {
        loop {
            let free = self.head.free.load(Relaxed);
            let mine = free & self.parcels_mask(most);
            if mine == 0 {
                return None;
            }
            let first = mine.trailing_zeros();
            if self.head.free.compare_exchange(free, free & !(1 << first), Acquire, Relaxed).is_ok() {
                self.head.touched.fetch_max(first + 1, Relaxed);
                return Some(first);
            }
        }
    }

    fn free_parcel(&self, parcel: u32) {
        self.head.free.fetch_or(1 << parcel, SeqCst);
        self.call(self.head.starving.load(SeqCst));
    }

    /// Ends the pager's sleep.
    pub fn wake_pager(&self) {
        let _ = sys::write(&self.head.bell, &1u64.to_ne_bytes());
    }

    /// True when a worker has something to do, and no parcel: the pager has them all.
    pub fn is_starving(&self) -> bool {
        self.head.starving.load(SeqCst) != 0
    }

    /// Waits until so many workers are ready, at most `timeout_ns`; true when they are.
    pub fn await_ready(&self, workers: u32, timeout_ns: u64) -> bool {
        let ready = self.head.ready.load(SeqCst);
        if ready < workers {
            let _ = sys::futex_wait(self.head.ready.as_ptr(), ready, Some(timeout_ns), true);
        }
        self.head.ready.load(SeqCst) >= workers
    }

    /// Wakes one of these workers, by bit; false when none of them sleeps that has not been called.
    fn call(&self, workers: u32) -> bool {
        loop {
            let asleep = self.head.asleep.load(SeqCst) & workers;
            if asleep == 0 {
                return false;
            }
            let number = asleep.trailing_zeros();
            if self.head.asleep.fetch_and(!(1 << number), SeqCst) & 1 << number != 0 {
                let calls = &self.head.calls[number as usize];
                calls.fetch_add(1, SeqCst);
                sys::futex_wake(calls.as_ptr(), 1, true);
                return true;
            }
        }
    }

    /// Has the workers give up what the program has given up, and waits until they have, but not for long: what they
    /// wait for may be the pager.
    pub fn have_followed(&self) {
        let wanted = self.head.rights.fetch_add(1, SeqCst) + 1;
        let until = sys::now_ns() + FOLLOW_NS;
        let workers = self.head.ready.load(SeqCst) as usize;
        let has_followed = |followed: &AtomicU32| followed.load(SeqCst) == wanted;
        while !self.head.followed[..workers].iter().all(has_followed) && sys::now_ns() < until {
            while self.call(u32::MAX) {}
            sys::sleep_ns(FOLLOW_LOOK_NS);
        }
    }

    /// Ends the workers.
    pub fn end(&self) {
        self.head.stop.store(1, SeqCst);
        while self.call(u32::MAX) {}
    }
}

#[cfg(test)]
mod tests;
