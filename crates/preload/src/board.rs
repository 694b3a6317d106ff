//! The board: where the pager puts up jobs and workers take them; the pager's [`Store`].
//!
//! Each slot of the stage has a cell, and a cell's state says whose it is:
//!
//! ```text
//!   IDLE ──submit──> QUEUED ──a worker──> BUSY ──> DONE ──complete──> IDLE
//!                      └──── withdraw ────────────────────────────────^
//! ```
//!
//! This is safe because
//! 1. a cell's job is written by the pager before QUEUED is stored, and read by the one worker that exchanges QUEUED for BUSY;
//! 2. its result is written by that worker before DONE is stored, and read by the pager after it;
//! 3. a ring entry is only a hint where to look: one that is stale finds no QUEUED, or finds a newer job of the same slot, which is as good.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use memcg::Stat;
use mm::kernel::{Body, Damaged, Done, Fetch, Job, Store, WINDOW_PAGES};
use uffd::{Fd, sys};
use vmscan::{PAGE, WINDOW};
use zswap::cache::Object;
use zswap::{Cache, LoadError, Worker};

const IDLE: u32 = 0;
const QUEUED: u32 = 1;
const BUSY: u32 = 2;
const DONE: u32 = 3;

#[expect(
    clippy::large_enum_variant,
    reason = "it lies in its cell from the start: a box would be an allocation for each job"
)]
#[derive(Clone, Copy)]
enum Work {
    Store(Job),
    Fetch(Fetch),
}

struct Cell {
    state: AtomicU32,
    work: UnsafeCell<Option<Work>>,
    done: UnsafeCell<Option<Done>>,
}

/// A ring of slot numbers: one writer, many readers.
struct Ring {
    slots: Box<[AtomicU32]>,
    head: AtomicUsize,
    tail: AtomicUsize,
}

impl Ring {
    fn new(len: usize) -> Ring {
        let slots = (0..len.next_power_of_two()).map(|_| AtomicU32::new(0)).collect();
        Ring { slots, head: AtomicUsize::new(0), tail: AtomicUsize::new(0) }
    }

    /// False when the ring is full.
    fn push(&self, slot: u32) -> bool {
        let tail = self.tail.load(Relaxed);
        if tail - self.head.load(Acquire) >= self.slots.len() {
            return false;
        }
        self.slots[tail & (self.slots.len() - 1)].store(slot, Relaxed);
        self.tail.store(tail + 1, Release);
        true
    }

    fn pop(&self) -> Option<u32> {
        loop {
            let head = self.head.load(Acquire);
            if head == self.tail.load(Acquire) {
                return None;
            }
            let slot = self.slots[head & (self.slots.len() - 1)].load(Relaxed);
            if self.head.compare_exchange(head, head + 1, AcqRel, Relaxed).is_ok() {
                return Some(slot);
            }
        }
    }
}

/// What pager and workers share.
pub struct Board {
    cells: Box<[Cell]>,
    /// Loads come before stores: a thread may already wait for one.
    fetches: Ring,
    stores: Ring,
    /// Counts submissions; workers sleep on it.
    work: AtomicU32,
    sleepers: AtomicU32,
    /// Set while the pager sleeps in poll, and wants `bell` rung.
    pub pager_sleeps: AtomicU32,
    /// Set to end the workers.
    pub stop: AtomicU32,
    /// Above 0 while the engine runs only when nobody else wants to (seat.rs): a footprint in bytes at which a worker calls it.
    pub alarm: AtomicUsize,
    /// Set when a worker has called the engine.
    pub called: AtomicU32,
    bell: Fd,
    cache: Cache<crate::arena::PoolMemory>,
    stat: &'static Stat,
    /// Test mode: the last of so many objects is damaged; 0 is never.
    damage_every: u32,
    stored: AtomicU32,
}

// SAFETY: see the list at the head of the file for the cells; the rest is atomics and shared by design.
unsafe impl Sync for Board {}

impl Board {
    /// A board for a stage of `slots` slots.
    pub fn new(
        slots: usize,
        cache: Cache<crate::arena::PoolMemory>,
        bell: Fd,
        stat: &'static Stat,
        damage_every: u32,
    ) -> Board {
        let cell =
            || Cell { state: AtomicU32::new(IDLE), work: UnsafeCell::new(None), done: UnsafeCell::new(None) };
        Board {
            cells: (0..slots).map(|_| cell()).collect(),
            fetches: Ring::new(slots * 2),
            stores: Ring::new(slots * 2),
            work: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            pager_sleeps: AtomicU32::new(0),
            stop: AtomicU32::new(0),
            alarm: AtomicUsize::new(0),
            called: AtomicU32::new(0),
            bell,
            cache,
            stat,
            damage_every,
            stored: AtomicU32::new(0),
        }
    }

    /// Readable when the pager is to wake: a job was done while it slept.
    pub fn bell(&self) -> &Fd {
        &self.bell
    }

    /// The cache.
    pub fn cache(&self) -> &Cache<crate::arena::PoolMemory> {
        &self.cache
    }

    fn post(&self, ring: &Ring, slot: u32, work: Work) {
        let cell = &self.cells[slot as usize];
        debug_assert_eq!(cell.state.load(Relaxed), IDLE);
        // SAFETY: the cell is IDLE, so the pager's.
        unsafe { *cell.work.get() = Some(work) };
        cell.state.store(QUEUED, Release);
        // Full of stale entries: the workers will have passed them in a moment.
        while !ring.push(slot) {
            core::hint::spin_loop();
        }
        self.work.fetch_add(1, SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            sys::futex_wake(self.work.as_ptr(), 1, false);
        }
    }

    /// A worker's turn: takes one job and does it. False when there was none.
    pub fn serve(&self, worker: &mut Worker) -> bool {
        let Some(slot) = self.fetches.pop().or_else(|| self.stores.pop()) else { return false };
        let cell = &self.cells[slot as usize];
        if cell.state.compare_exchange(QUEUED, BUSY, AcqRel, Relaxed).is_err() {
            return true;
        }
        // SAFETY: the cell is BUSY, so this worker's.
        let work = unsafe { (*cell.work.get()).take() };
        let done = match work.expect("a queued cell has work") {
            Work::Store(job) => self.store(worker, &job),
            Work::Fetch(fetch) => self.fetch(worker, &fetch),
        };
        // SAFETY: as above.
        unsafe { *cell.done.get() = Some(done) };
        cell.state.store(DONE, SeqCst);
        if self.pager_sleeps.swap(0, SeqCst) != 0 {
            self.wake_pager();
        }
        true
    }

    /// Ends the pager's sleep.
    pub fn wake_pager(&self) {
        let _ = sys::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// With nothing better to do, compacts the pool a little where holes take a sixteenth of it. False when that was not needed.
    pub fn tidy(&self) -> bool {
        let pool = self.cache.pool();
        let (held, stored) = (pool.pool_bytes(), pool.stored_bytes());
        if held < stored + held / 32 + (1 << 20) {
            return false;
        }
        let compacted = pool.compact(256 << 10);
        self.stat.compacted.fetch_add(compacted.objects_moved as u64, Relaxed);
        compacted.objects_moved > 0
    }

    /// Sleeps until there is work, at most `timeout_ns`.
    pub fn wait(&self, timeout_ns: u64) {
        let seen = self.work.load(SeqCst);
        self.sleepers.fetch_add(1, SeqCst);
        if self.fetches.head.load(Acquire) == self.fetches.tail.load(Acquire)
            && self.stores.head.load(Acquire) == self.stores.tail.load(Acquire)
            && self.stop.load(SeqCst) == 0
        {
            let _ = sys::futex_wait(self.work.as_ptr(), seen, Some(timeout_ns), false);
        }
        self.sleepers.fetch_sub(1, SeqCst);
    }

    /// Ends the workers.
    pub fn end(&self) {
        self.stop.store(1, SeqCst);
        self.work.fetch_add(1, SeqCst);
        sys::futex_wake(self.work.as_ptr(), u32::MAX, false);
    }

    fn store(&self, worker: &mut Worker, job: &Job) -> Done {
        for page in (0..WINDOW_PAGES).filter(|p| job.pages & 1 << p != 0) {
            let word = (job.at + page * PAGE) as *mut u64;
            // A page that the program gave up with MADV_FREE may vanish under us until it is written to: written to, it stays. The
            // pager later uses these pages without being able to serve a fault of its own.
            // SAFETY: the page is on the stage and staged for this job; nobody else touches it until the job is done.
            unsafe { word.write_volatile(word.read_volatile()) };
        }
        // SAFETY: as above, for the pages that the job names; the others are not read, and hold nothing but bytes.
        let window = unsafe { core::slice::from_raw_parts(job.at as *const u8, WINDOW) };
        let priors = job.priors.map(|p| {
            let p = p?;
            match p.body {
                Body::Blob { handle, .. } => {
                    Some(zswap::Prior { handle: zsmalloc::Handle::from_raw(handle)?, page: p.page as usize })
                }
                _ => None,
            }
        });
        let (mut bodies, mut objects) = ([None; WINDOW_PAGES], [None; WINDOW_PAGES]);
        let stored = self.cache.store(worker, window, job.pages, job.unit, &priors, &mut objects);
        let mut left = stored.in_objects.count_ones() as usize;
        for (body, object) in bodies.iter_mut().zip(objects) {
            let pages = left.min(job.unit);
            left -= pages;
            *body = object.map(|object| self.count(object, pages as u64));
        }
        Done::Stored {
            slot: job.slot,
            reused: stored.reused,
            zero: stored.zero,
            in_bodies: stored.in_objects,
            bodies,
        }
    }

    /// Counts a new object of so many pages, and names it as the pager does.
    fn count(&self, object: Object, pages: u64) -> Body {
        match object {
            Object::Same(word) => {
                self.stat.same_filled.fetch_add(pages, Relaxed);
                Body::Same(word)
            }
            Object::Blob { handle, fingerprint, bytes, compressed } => {
                self.stat.compressed_in_bytes.fetch_add(pages * PAGE as u64, Relaxed);
                self.stat.compressed_out_bytes.fetch_add(bytes as u64, Relaxed);
                self.stat.incompressible.fetch_add(!compressed as u64, Relaxed);
                self.damage(handle);
                Body::Blob { handle: handle.into_raw(), fingerprint, bytes }
            }
        }
    }

    /// Test mode: turns a bit of every so many objects, in the middle of its data.
    fn damage(&self, handle: zsmalloc::Handle) {
        if self.damage_every != 0 && (self.stored.fetch_add(1, Relaxed) + 1).is_multiple_of(self.damage_every)
        {
            self.cache
                .pool()
                .write(handle, |bytes| bytes[(bytes.len() / 2).max(bytes.len().min(300) - 1)] ^= 1);
        }
    }

    fn fetch(&self, worker: &mut Worker, fetch: &Fetch) -> Done {
        let loaded = self.load(worker, fetch.body, fetch.first, fetch.pages, fetch.at);
        Done::Fetched { slot: fetch.slot, sound: loaded.is_ok() }
    }

    fn load(
        &self,
        worker: &mut Worker,
        body: Body,
        first: u16,
        pages: u16,
        to: usize,
    ) -> Result<(), Damaged> {
        // SAFETY: the caller owns the engine memory at `to`, all pages present or to be had by touching them.
        let to = unsafe { core::slice::from_raw_parts_mut(to as *mut u8, pages as usize * PAGE) };
        match body {
            Body::Same(word) => zswap::page::fill(to, word),
            Body::Blob { handle, fingerprint, .. } => {
                let handle = zsmalloc::Handle::from_raw(handle).ok_or(Damaged::Stream)?;
                self.cache.load(worker, handle, fingerprint, first as usize, to).map_err(|e| match e {
                    LoadError::Stream => Damaged::Stream,
                    LoadError::Checksum => Damaged::Checksum,
                    LoadError::Object => Damaged::Object,
                })?;
            }
            Body::Dropped => return Err(Damaged::Stream),
        }
        Ok(())
    }
}

/// The pager's side of a board.
pub struct Counter {
    board: &'static Board,
    /// Slots with a job, in the order in which they were given.
    given: VecDeque<u32>,
    worker: Worker,
}

impl Counter {
    /// `worker` is for what the pager loads itself.
    pub fn new(board: &'static Board, worker: Worker) -> Counter {
        Counter { board, given: VecDeque::new(), worker }
    }
}

impl Store for Counter {
    fn submit(&mut self, job: Job) {
        self.given.push_back(job.slot);
        self.board.post(&self.board.stores, job.slot, Work::Store(job));
    }

    fn fetch(&mut self, fetch: Fetch) {
        self.given.push_back(fetch.slot);
        self.board.post(&self.board.fetches, fetch.slot, Work::Fetch(fetch));
    }

    fn withdraw(&mut self, slot: u32) -> bool {
        let cell = &self.board.cells[slot as usize];
        let withdrawn = cell.state.compare_exchange(QUEUED, IDLE, AcqRel, Relaxed).is_ok();
        if withdrawn {
            self.given.retain(|&s| s != slot);
        }
        withdrawn
    }

    fn complete(&mut self) -> Option<Done> {
        // Workers finish out of order, but not by much; loads overtake stores.
        let board = self.board;
        let at = self.given.iter().position(|&s| board.cells[s as usize].state.load(Acquire) == DONE)?;
        let slot = self.given.remove(at)?;
        let cell = &self.board.cells[slot as usize];
        // SAFETY: the cell is DONE, so the pager's.
        let done = unsafe { (*cell.done.get()).take() };
        cell.state.store(IDLE, Release);
        done
    }

    fn load(&mut self, body: Body, first: u16, pages: u16, to: usize) -> Result<(), Damaged> {
        self.board.load(&mut self.worker, body, first, pages, to)
    }

    fn free(&mut self, body: Body) {
        if let Body::Blob { handle, .. } = body
            && let Some(handle) = zsmalloc::Handle::from_raw(handle)
        {
            self.board.cache.invalidate(handle);
        }
    }

    fn pool_bytes(&self) -> usize {
        self.board.cache.pool().pool_bytes()
    }
}
