//! The board: where the pager puts up jobs and workers take them. It is a mapping of its own, shared with the workers, which have none of the
//! program's memory.
//!
//! Each slot of the stage has a cell, and a cell's state says whose it is:
//!
//! ```text
//!   IDLE ──post──> QUEUED ──a worker──> BUSY ──> DONE ──the pager──> IDLE
//!                    └──── withdraw ──────────────────────────────────^
//! ```
//!
//! The objects that a worker makes lie in a parcel, of which there are a few. A worker has one before it takes a job, and gives it away with the
//! result; the pager gives it back when it has taken the objects into the pool.
//!
//! This is safe because
//! 1. a cell's work is written by the pager before QUEUED is stored, and read by the one worker that exchanges QUEUED for BUSY;
//! 2. its result, and the parcel that this names, are written by that worker before DONE is stored, and read by the pager after it;
//! 3. a parcel has one owner: whoever takes its bit out of `free`, then who reads the result that names it, until it puts the bit back;
//! 4. a ring entry is only a hint where to look: one that is stale finds no QUEUED, or finds a newer job of the same slot, which is as good;
//! 5. no slot is in a ring twice, so that there is always room, and the pager, on whom workers wait for parcels, never waits for them to make
//!    some: who has posted finds either that the slot is not listed, or that a worker will look at its cell after this.

use crate::arena;
use crate::shelf::Shelf;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::slice;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use uffd::{Fd, PAGE, sys};
use zswap::{PARCEL_MAX_BYTES, Packed, Priors, With};

const IDLE: u32 = 0;
const QUEUED: u32 = 1;
const BUSY: u32 = 2;
const DONE: u32 = 3;

/// The most workers that a board has room for.
pub const WORKERS_MAX: usize = 4;

/// Two for each worker, so that it goes on while the pager takes the last one's objects in.
const PARCELS: usize = 2 * WORKERS_MAX;
/// How long the pager waits for workers that are to give up rights, and how often it looks.
const FOLLOW_NS: u64 = 50_000_000;
const FOLLOW_LOOK_NS: u64 = 50_000;

const PARCEL_BYTES: usize = PARCEL_MAX_BYTES.next_multiple_of(PAGE);

/// What a worker is asked for. Addresses are the program's.
#[derive(Clone, Copy)]
#[expect(
    clippy::large_enum_variant,
    reason = "it lies in its cell from the start: a box would be an allocation for each job"
)]
pub enum Work {
    /// To make objects of a slot's pages.
    Pack {
        /// Where the slot is.
        at: usize,
        /// Which of its pages, by bit.
        pages: u16,
        /// How many an object holds at most.
        unit: usize,
        /// What they were when they were loaded.
        priors: Priors,
        /// The dictionary that the objects are made with.
        with: With,
    },
    /// To load pages of an object.
    Unpack {
        /// Where it is; it stays there until the job is done.
        object: usize,
        /// Its length.
        bytes: usize,
        /// Of its contents.
        fingerprint: u32,
        /// First page within it.
        first: u16,
        /// How many.
        pages: u16,
        /// Where they go.
        to: usize,
    },
}

/// What a worker says.
#[derive(Clone, Copy)]
#[expect(clippy::large_enum_variant, reason = "as for `Work`")]
pub enum Answer {
    /// The objects lie in a parcel.
    Packed {
        /// What they are.
        packed: Packed,
        /// Where they lie.
        parcel: u32,
    },
    /// The pages are there, if this is true; else the object is damaged.
    Unpacked(bool),
}

struct Cell {
    state: AtomicU32,
    /// 1 while the slot is in a ring.
    listed: AtomicU32,
    work: UnsafeCell<MaybeUninit<Work>>,
    answer: UnsafeCell<MaybeUninit<Answer>>,
}

/// A ring of slot numbers: one writer, many readers.
#[derive(Default)]
struct Ends {
    head: AtomicUsize,
    tail: AtomicUsize,
}

#[derive(Clone, Copy)]
struct Ring {
    ends: &'static Ends,
    slots: &'static [AtomicU32],
}

impl Ring {
    fn push(&self, slot: u32) {
        let tail = self.ends.tail.load(Relaxed);
        assert!(tail - self.ends.head.load(Acquire) < self.slots.len(), "no slot is in a ring twice");
        self.slots[tail & (self.slots.len() - 1)].store(slot, Relaxed);
        self.ends.tail.store(tail + 1, Release);
    }

    fn pop(&self) -> Option<u32> {
        loop {
            let head = self.ends.head.load(Acquire);
            if head == self.ends.tail.load(Acquire) {
                return None;
            }
            let slot = self.slots[head & (self.slots.len() - 1)].load(Relaxed);
            if self.ends.head.compare_exchange(head, head + 1, AcqRel, Relaxed).is_ok() {
                return Some(slot);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.ends.head.load(Acquire) == self.ends.tail.load(Acquire)
    }
}

/// The head of the mapping.
pub struct Head {
    /// Workers that sleep, or are about to, and that nobody has called yet, by bit; and those of them that want a parcel.
    asleep: AtomicU32,
    starving: AtomicU32,
    /// How often each was called. It sleeps on this.
    calls: [AtomicU32; WORKERS_MAX],
    /// Which parcels are nobody's, by bit.
    free: AtomicU32,
    /// How many workers are ready.
    ready: AtomicU32,
    /// Above 0 while the pager sleeps in poll: after so many more results it wants `bell` rung.
    pub pager_wants: AtomicU32,
    /// Set to end the workers.
    pub stop: AtomicU32,
    /// Above 0 while the engine runs only when nobody else wants to (seat.rs): a footprint in bytes at which a worker calls it.
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
    head: &'static Head,
    cells: &'static [Cell],
    /// Loads come before stores: a thread may already wait for one.
    fetches: Ring,
    stores: Ring,
    parcels: usize,
    shelf: &'static Shelf,
    bytes: usize,
}

// SAFETY: see the list at the head of the file for cells and parcels; the rest is atomics and shared by design.
unsafe impl Sync for Board {}
// SAFETY: as above.
unsafe impl Send for Board {}

/// Where the parts of a board lie.
struct Layout {
    cells: usize,
    fetches: usize,
    stores: usize,
    parcels: usize,
    shelf: usize,
    bytes: usize,
    ring: usize,
}

impl Layout {
    fn new(slots: usize) -> Layout {
        let ring = slots.next_power_of_two();
        let cells = size_of::<Head>().next_multiple_of(64);
        let fetches = cells + slots * size_of::<Cell>();
        let stores = fetches + ring * size_of::<AtomicU32>();
        let parcels = (stores + ring * size_of::<AtomicU32>()).next_multiple_of(PAGE);
        let shelf = parcels + PARCELS * PARCEL_BYTES;
        Layout { cells, fetches, stores, parcels, shelf, bytes: shelf + size_of::<Shelf>(), ring }
    }
}

impl Board {
    /// A board for a stage of `slots` slots; `None` where there is no memory. It stays for ever.
    pub fn map(slots: usize, bell: Fd) -> Option<Board> {
        let layout = Layout::new(slots);
        let at = arena::map_shared(layout.bytes)?;
        let zero = AtomicU32::new;
        let head = Head {
            asleep: zero(0),
            starving: zero(0),
            calls: Default::default(),
            free: zero((1 << PARCELS) - 1),
            ready: zero(0),
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
        // SAFETY: the mapping is new, zeroed, as long as the layout says, and stays; the parts lie apart in it, each aligned, and zeros are
        // a value of atomics and of what is not read before it is written.
        unsafe {
            (at as *mut Head).write(head);
            let head = &*(at as *const Head);
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
                shelf: &*((at + layout.shelf) as *const Shelf),
                bytes: layout.bytes,
            })
        }
    }

    /// The words that engine and workers tell each other.
    pub fn head(&self) -> &'static Head {
        self.head
    }

    /// The dictionaries that they have.
    pub fn shelf(&self) -> &'static Shelf {
        self.shelf
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
        let written = self.bytes - size_of::<Shelf>() + self.shelf.bytes();
        written + self.head.private.iter().map(|p| p.load(Relaxed)).sum::<usize>()
    }

    /// The pager puts work up for a slot that has none.
    pub fn post(&self, slot: u32, work: Work) {
        let cell = &self.cells[slot as usize];
        debug_assert_eq!(cell.state.load(Relaxed), IDLE);
        // SAFETY: the cell is IDLE, so the pager's.
        unsafe { (*cell.work.get()).write(work) };
        cell.state.store(QUEUED, SeqCst);
        if cell.listed.swap(1, SeqCst) == 0 {
            let ring = if matches!(work, Work::Pack { .. }) { &self.stores } else { &self.fetches };
            ring.push(slot);
        }
        // One that has no parcel would only look.
        let _ = self.call(!self.head.starving.load(SeqCst)) || self.call(u32::MAX);
    }

    /// The pager takes work back; false when a worker has begun it.
    pub fn withdraw(&self, slot: u32) -> bool {
        self.cells[slot as usize].state.compare_exchange(QUEUED, IDLE, AcqRel, Relaxed).is_ok()
    }

    /// True when a worker has done the slot's work.
    pub fn is_done(&self, slot: u32) -> bool {
        self.cells[slot as usize].state.load(Acquire) == DONE
    }

    /// The pager takes the answer of a slot whose work is done; `take` gets the bytes of its parcel.
    pub fn answer<R>(&self, slot: u32, take: impl FnOnce(&Answer, &mut [u8]) -> R) -> R {
        let cell = &self.cells[slot as usize];
        assert_eq!(cell.state.load(Acquire), DONE, "an answer is there before it is taken");
        // SAFETY: the cell is DONE, so the pager's, and the worker has written the answer.
        let answer = unsafe { (*cell.answer.get()).assume_init_ref() };
        let result = match answer {
            Answer::Packed { parcel, .. } => {
                // SAFETY: the answer has made it the pager's.
                let result = take(answer, unsafe { self.parcel(*parcel) });
                self.head.free.fetch_or(1 << parcel, SeqCst);
                self.call(self.head.starving.load(SeqCst));
                result
            }
            Answer::Unpacked(_) => take(answer, &mut []),
        };
        cell.state.store(IDLE, Release);
        result
    }

    /// The bytes of a parcel.
    ///
    /// # Safety
    /// It must be the caller's.
    #[expect(clippy::mut_from_ref, reason = "each parcel has one owner at a time")]
    unsafe fn parcel(&self, parcel: u32) -> &mut [u8] {
        assert!((parcel as usize) < PARCELS);
        let at = self.parcels + parcel as usize * PARCEL_BYTES;
        // SAFETY: inside the mapping; nobody else has it.
        unsafe { slice::from_raw_parts_mut(at as *mut u8, PARCEL_BYTES) }
    }

    fn take_parcel(&self) -> Option<u32> {
        loop {
            let free = self.head.free.load(Relaxed);
            if free == 0 {
                return None;
            }
            if self.head.free.compare_exchange(free, free & (free - 1), Acquire, Relaxed).is_ok() {
                return Some(free.trailing_zeros());
            }
        }
    }

    /// A worker's turn: takes one job and does it. `parcel` is the one that it has. False when there was no job, or no parcel.
    pub fn serve(&self, parcel: &mut Option<u32>, act: impl FnOnce(&Work, &mut [u8]) -> Reply) -> bool {
        *parcel = parcel.or_else(|| self.take_parcel());
        let Some(own) = *parcel else { return false };
        let Some(slot) = self.fetches.pop().or_else(|| self.stores.pop()) else { return false };
        let cell = &self.cells[slot as usize];
        cell.listed.swap(0, SeqCst);
        if cell.state.compare_exchange(QUEUED, BUSY, SeqCst, Relaxed).is_err() {
            return true;
        }
        // SAFETY: the cell is BUSY, so this worker's, and the pager has written the work.
        let work = unsafe { (*cell.work.get()).assume_init_ref() };
        // SAFETY: this worker has taken it.
        let answer = match act(work, unsafe { self.parcel(own) }) {
            Reply::Packed(packed) => {
                *parcel = None;
                Answer::Packed { packed, parcel: own }
            }
            Reply::Unpacked(sound) => Answer::Unpacked(sound),
        };
        // SAFETY: as above.
        unsafe { (*cell.answer.get()).write(answer) };
        cell.state.store(DONE, SeqCst);
        if self.head.pager_wants.fetch_update(SeqCst, SeqCst, |wants| wants.checked_sub(1)) == Ok(1) {
            self.wake_pager();
        }
        true
    }

    /// Ends the pager's sleep.
    pub fn wake_pager(&self) {
        let _ = sys::write(&self.head.bell, &1u64.to_ne_bytes());
    }

    /// A worker is ready.
    pub fn report_ready(&self) {
        self.head.ready.fetch_add(1, SeqCst);
        sys::futex_wake(self.head.ready.as_ptr(), 1, true);
    }

    /// Waits until so many workers are ready, at most `timeout_ns`; true when they are.
    pub fn await_ready(&self, workers: u32, timeout_ns: u64) -> bool {
        let ready = self.head.ready.load(SeqCst);
        if ready < workers {
            let _ = sys::futex_wait(self.head.ready.as_ptr(), ready, Some(timeout_ns), true);
        }
        self.head.ready.load(SeqCst) >= workers
    }

    /// Worker `number` sleeps until there is work, or a parcel has come back for it if it has none, at most `timeout_ns`.
    pub fn wait(&self, number: usize, has_parcel: bool, timeout_ns: u64) {
        let (own, calls) = (1 << number, &self.head.calls[number]);
        let seen = calls.load(SeqCst);
        self.head.asleep.fetch_or(own, SeqCst);
        // Whoever posts from now on finds it asleep, and what was posted before is seen here.
        let idle = self.fetches.is_empty() && self.stores.is_empty();
        let starves = !idle && !has_parcel;
        if starves {
            self.head.starving.fetch_or(own, SeqCst);
        }
        let nothing_to_do =
            (idle || starves && self.head.free.load(SeqCst) == 0) && !self.is_to_follow(number);
        if nothing_to_do && self.head.stop.load(SeqCst) == 0 {
            let _ = sys::futex_wait(calls.as_ptr(), seen, Some(timeout_ns), true);
        }
        self.head.starving.fetch_and(!own, SeqCst);
        self.head.asleep.fetch_and(!own, SeqCst);
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

    /// Has the workers give up what the program has given up, and waits until they have, but not for long: what they wait for may be the pager.
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

    /// True when worker `number` is to do so.
    pub fn is_to_follow(&self, number: usize) -> bool {
        self.head.followed[number].load(SeqCst) != self.head.rights.load(SeqCst)
    }

    /// Worker `number` does so by `act`.
    pub fn follow(&self, number: usize, act: impl FnOnce()) {
        let wanted = self.head.rights.load(SeqCst);
        act();
        self.head.followed[number].store(wanted, SeqCst);
    }

    /// Ends the workers.
    pub fn end(&self) {
        self.head.stop.store(1, SeqCst);
        while self.call(u32::MAX) {}
    }
}

/// What a worker has made of a job.
#[expect(clippy::large_enum_variant, reason = "it is copied to its cell at once")]
pub enum Reply {
    /// Objects, in its parcel.
    Packed(Packed),
    /// Pages, or the object is damaged.
    Unpacked(bool),
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn board(slots: usize) -> Board {
        Board::map(slots, sys::eventfd().unwrap()).unwrap()
    }

    /// A job by its number: even ones are packed, odd ones unpacked.
    fn work(number: usize) -> Work {
        match number % 2 {
            0 => {
                let (priors, with) = (Priors::default(), With::default());
                Work::Pack { at: number, pages: 1, unit: 1, priors, with }
            }
            _ => Work::Unpack { object: number, bytes: 0, fingerprint: 0, first: 0, pages: 0, to: 0 },
        }
    }

    /// What a worker makes of it: the number, in its parcel.
    fn act(work: &Work, parcel: &mut [u8]) -> Reply {
        match *work {
            Work::Pack { at, .. } => {
                parcel[..8].copy_from_slice(&at.to_le_bytes());
                Reply::Packed(Packed::default())
            }
            Work::Unpack { object, .. } => Reply::Unpacked(object.is_multiple_of(3)),
        }
    }

    fn is_answer(number: usize, answer: &Answer, parcel: &[u8]) -> bool {
        match answer {
            Answer::Packed { .. } => number.is_multiple_of(2) && parcel[..8] == number.to_le_bytes(),
            Answer::Unpacked(sound) => number % 2 == 1 && *sound == number.is_multiple_of(3),
        }
    }

    #[test]
    fn a_job_that_is_given_and_withdrawn_many_times_needs_no_worker() {
        let board = board(4);
        for number in 0..100 {
            board.post(3, work(number));
            assert!(board.withdraw(3));
        }
        board.post(3, work(100));
        let mut parcel = None;
        assert!(board.serve(&mut parcel, act));
        assert!(!board.serve(&mut parcel, act), "it was listed once");
        assert!(board.is_done(3) && !board.withdraw(3));
        assert!(board.answer(3, |answer, parcel| is_answer(100, answer, parcel)));
    }

    #[test]
    fn without_a_parcel_no_job_is_begun() {
        let board = board(2 * PARCELS);
        for slot in 0..=PARCELS {
            board.post(slot as u32, work(2 * slot));
        }
        for _ in 0..PARCELS {
            assert!(board.serve(&mut None, act));
        }
        assert!(!board.serve(&mut None, act));
        assert!(board.withdraw(PARCELS as u32));
        board.post(PARCELS as u32, work(2 * PARCELS));
        assert!(board.answer(0, |answer, parcel| is_answer(0, answer, parcel)));
        assert!(board.serve(&mut None, act));
    }

    #[test]
    fn every_job_is_done_once_by_whoever_takes_it() {
        const SLOTS: usize = 12;
        // One that is not called would hold the test up.
        const NEVER_NS: u64 = 3_600_000_000_000;
        let board = board(SLOTS);
        std::thread::scope(|scope| {
            for number in 0..2 {
                scope.spawn(move || {
                    let mut parcel = None;
                    while board.head().stop.load(SeqCst) == 0 {
                        if !board.serve(&mut parcel, act) {
                            board.wait(number, parcel.is_some(), NEVER_NS);
                        }
                    }
                });
            }
            let (mut given, mut random, mut answered) = (BTreeMap::new(), 1u64, 0);
            let mut next = 0;
            while next < 100_000 || !given.is_empty() {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let slot = (random >> 33) as usize % SLOTS;
                match given.get(&slot) {
                    None if next < 100_000 => {
                        next += 1;
                        given.insert(slot, next);
                        board.post(slot as u32, work(next));
                    }
                    Some(&number) if board.is_done(slot as u32) => {
                        assert!(
                            board.answer(slot as u32, |answer, parcel| is_answer(number, answer, parcel))
                        );
                        given.remove(&slot);
                        answered += 1;
                    }
                    Some(_) if random >> 60 == 0 && board.withdraw(slot as u32) => {
                        given.remove(&slot);
                    }
                    _ => std::thread::yield_now(),
                }
            }
            board.end();
            assert!(answered > 10_000, "{answered} of {next} were done");
        });
    }
}
