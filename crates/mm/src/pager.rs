//! The pager: the one place that changes which page is where.
//!
//! All of it runs on one thread, and that is the design: an event is read and handled in one critical section because
//! there is nobody else who could read, evict or restore. The compressors work beside it on pages that have left the program already,
//! and tell their results through [`Store`].
//!
//! A turn: read messages and apply events (`attend`), apply results (`collect`), serve faults, reclaim.

mod check;
mod enroll;
mod event;
mod evict;
pub mod family;
mod fault;
mod fetch;
pub mod fork;
pub mod look;
mod pack;
mod shared;

#[cfg(test)]
mod sim;

use crate::areas::Areas;
use crate::bell::Bells;
use crate::fault_queue::FaultQueue;
use crate::index::{Entry, Index, Kind};
use crate::kernel::{Kernel, Store, WINDOW_PAGES};
use crate::limit::Limit;
use crate::object::Objects;
use crate::pager::enroll::{Growth, Walk};
use crate::regions::Regions;
use crate::stage::{Stage, Use};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use memcg::Stat;
use vmscan::heat::Heat;
use vmscan::readahead::Readahead;
use vmscan::rest::Rest;
use vmscan::split::Splitting;
use vmscan::watermark::{Usage, Watermarks};
use vmscan::{PAGE, WINDOW};

/// What a pager is made with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The stage's range: engine memory registered for faults, no page present. Bytes are a multiple of the window.
    pub stage: (usize, usize),
    /// A window of engine memory that is not registered: loads go through it when there is no stock.
    pub nursery: usize,
    /// Engine memory that is not registered, for fresh memory on its way to the program: an address and bytes, zeros or no page.
    pub fresh: (usize, usize),
    /// A registered window of the engine's own, whose pages are bells: a touch of one by a thread of the program is a request (see `Pager::has_rung`).
    pub doorbell: usize,
    /// Test mode: everything goes out all the time.
    pub evict_all: bool,
}

/// The pager of one process.
pub struct Pager<'a, K, S> {
    /// The world.
    pub kernel: K,
    /// Where folios go.
    pub store: S,
    /// Counters.
    pub stat: &'a Stat,
    config: Config,
    limit: Limit,
    pub(crate) index: Index,
    pub(crate) objects: Objects,
    pub(crate) stage: Stage,
    pub(crate) readahead: Readahead,
    pub(crate) splitting: Splitting,
    faults: FaultQueue,
    /// What is registered.
    regions: Regions,
    /// What the hand knows of the mappings.
    pub(crate) areas: Areas,
    /// Windows that a worker loads ahead of the fault.
    pub(crate) fetches: Vec<crate::pager::fetch::Ahead>,
    /// Where the clock hand stands, whether it takes what the kernel has swapped, and whether it rests.
    pub(crate) hand: usize,
    pub(crate) takes_swapped: bool,
    pub(crate) rest: Rest,
    /// Where the hand stands that packs windows, and when it goes on; and whether it rests where nothing else is left.
    pub(crate) packer: usize,
    pub(crate) packer_rest: Rest,
    pub(crate) pack_next_ns: u64,
    /// When all mappings were registered last; the look at them that is under way; and what has come since the last.
    pub(crate) enrolled_ns: u64,
    pub(crate) walk: Walk,
    pub(crate) growth: Growth,
    pub(crate) pins: Vec<usize>,
    /// Other processes have pages of this one's since a fork, and the writes to them are told.
    pub(crate) shares: bool,
    /// What has come into the program since then, the oldest first: nobody else has that.
    pub(crate) recent: VecDeque<Range<usize>>,
    /// What a log has since then, and is to go out; and where the search for more of it stands.
    pub(crate) told: VecDeque<Range<usize>>,
    pub(crate) teller: usize,
    /// The pages that were unprotected last.
    pub(crate) unprotected: Range<usize>,
    pub(crate) pool_full: bool,
    /// One thread alone misses: a single page is moved in from stock instead of being copied. A move interrupts every CPU on which another thread of
    /// the program runs, and so costs less only where the others sleep. And its fault is served before more messages are read.
    pub alone: bool,
    /// Eviction stands still: a fork is under way, or the test mode lets the program run.
    pub paused: bool,
}

/// How many pauses a fault waits at most for the compressors, and for how long.
const THROTTLE: usize = 1000;
const THROTTLE_NS: u64 = 20_000_000;

/// How many results are waited for at a time, at most.
const RESULTS: usize = 4;

/// How much a thread that waits has evicted before it is served.
const STEP_BYTES: usize = 32 * PAGE;

impl<'a, K: Kernel, S: Store> Pager<'a, K, S> {
    /// A pager that knows nothing yet.
    pub fn new(kernel: K, store: S, stat: &'a Stat, config: Config, limit: usize) -> Self {
        let (base, bytes) = config.stage;
        Pager {
            kernel,
            store,
            stat,
            config,
            limit: Limit::new(limit, config.evict_all),
            index: Index::default(),
            objects: Objects::default(),
            stage: Stage::new(base, bytes),
            readahead: Readahead::default(),
            splitting: Splitting::default(),
            faults: FaultQueue::new(Bells::new(config.doorbell)),
            regions: Regions::default(),
            areas: Areas::default(),
            fetches: Vec::new(),
            hand: 0,
            takes_swapped: false,
            rest: Rest::default(),
            packer: 0,
            packer_rest: Rest::default(),
            pack_next_ns: 0,
            enrolled_ns: 0,
            walk: Walk::default(),
            growth: Growth::new(),
            pins: Vec::new(),
            shares: false,
            recent: VecDeque::new(),
            told: VecDeque::new(),
            teller: 0,
            unprotected: 0..0,
            pool_full: false,
            alone: false,
            paused: false,
        }
    }

    /// A new limit in bytes, as other processes of the run come and go; how many of them there are for each CPU; and how many bytes came unheard between two looks of late.
    pub fn set_limit(&mut self, limit: usize, processes_per_cpu: usize, unheard: usize) {
        self.limit.set(limit, processes_per_cpu, unheard);
    }

    /// What is registered, sorted and apart.
    pub fn regions(&self) -> &[Range<usize>] {
        self.regions.registered().as_slice()
    }

    /// The page that threads of the program touch to be heard.
    pub fn doorbell(&self) -> usize {
        self.faults.bells().base()
    }

    /// The watermarks of the limit that is set.
    pub fn marks(&self) -> &Watermarks {
        self.limit.marks()
    }

    /// One turn. `footprint` is what the process holds now, in bytes. True when there may be more to do at once.
    pub fn turn(&mut self, footprint: usize) -> bool {
        self.limit.measured(footprint);
        self.attend();
        self.learn_growth();
        let mut busy = self.collect();
        self.faults.hold_back();
        if self.faults.has_waiting() {
            let has_room = self.limit.marks().relieved(&self.usage());
            self.faults.retry(self.kernel.now_ns(), has_room);
        } else {
            self.faults.nobody_waits();
        }
        if self.faults.is_empty() {
            let now = self.kernel.now_ns();
            if !self.paused
                && (!self.faults.is_soon(now) || self.limit.footprint() >= self.limit.marks().high)
            {
                busy |= self.reclaim(usize::MAX);
            }
            return busy;
        }
        // Whoever waits pays with a step: while a thread sleeps in its fault its CPU need not be interrupted for what goes out.
        if !self.paused {
            self.reclaim(STEP_BYTES);
        }
        for _ in 0..self.faults.len() {
            let Some(fault) = self.faults.pop() else { break };
            self.serve(fault);
            if self.limit.footprint() >= self.limit.marks().max && !self.paused {
                self.reclaim(usize::MAX);
                self.throttle();
            }
        }
        self.faults.served(self.kernel.now_ns());
        true
    }

    /// From now on the process waits for its turn, or goes on. While it waits no fault is served; all else is done as ever, and what it has may go out.
    pub fn park(&mut self, is_parked: bool) {
        if is_parked != self.faults.is_parked() {
            let waited = self.faults.park(is_parked, self.kernel.now_ns());
            self.stat.parked_ns.fetch_add(waited, Relaxed);
        }
    }

    /// Above the last mark whoever faults pays: the next fault waits until the compressors have made room, for a while.
    fn throttle(&mut self) {
        let end = self.kernel.now_ns() + THROTTLE_NS;
        for _ in 0..THROTTLE {
            if self.limit.footprint() < self.limit.marks().max || self.kernel.now_ns() > end {
                return;
            }
            if self.collect() {
                self.reclaim(usize::MAX);
            } else if self.stage.in_flight() == 0 && !self.reclaim(usize::MAX) {
                return;
            } else {
                self.kernel.pause();
            }
        }
    }

    /// Where the process stands.
    pub fn usage(&self) -> Usage {
        Usage {
            footprint: self.limit.footprint(),
            inactive: self.stage.inactive_bytes(),
            in_flight: self.stage.in_flight_bytes(),
            stock: self.stage.stock_bytes(),
            pool: self.store.pool_bytes(),
            waiting: self.faults.has_waiting(),
        }
    }

    /// How hot a page is that comes back from the pool. It and those that come with it, `pages` in all, are counted where more memory would have kept
    /// them in.
    pub(crate) fn refault(&self, entry: Entry, pages: usize) -> Heat {
        let distance = self.index.distance(entry);
        let heat = Heat::refault(distance, self.resident_pages());
        if heat == Heat::HOT {
            self.stat.near_refaults.fetch_add(pages as u64, Relaxed);
            self.stat.near_distance.fetch_add((pages * distance) as u64, Relaxed);
        }
        heat
    }

    /// Pages in the program.
    fn resident_pages(&self) -> usize {
        let usage = self.usage();
        let apart = usage.pool + usage.inactive + usage.in_flight + usage.stock;
        usage.footprint.saturating_sub(apart) / PAGE
    }

    /// Gives up a clean copy: one whose page should have gone out by now, or the newest. False when there is none.
    pub(crate) fn drop_clean(&mut self) -> bool {
        let due = 2 * self.resident_pages();
        self.objects.drop_clean(due, &mut self.store)
    }

    /// Bytes of the program that are out in the pool, uncompressed.
    pub fn stored_bytes(&self) -> usize {
        self.index.stored() * PAGE
    }

    /// How many results of the compressors are worth a wake-up: a few where somebody waits for room, of which one window would not make much; one where
    /// a stream is loaded ahead, or the footprint is high; else none.
    pub fn wants_results(&self) -> usize {
        if self.fetches.is_empty() && self.faults.has_waiting() {
            (self.stage.in_flight() / 2).clamp(1, RESULTS)
        } else {
            (!self.fetches.is_empty() || self.limit.footprint() > self.limit.marks().high) as usize
        }
    }

    /// Since when the longest waiting thread waits for room, in nanoseconds of the kernel's clock.
    pub fn waiting_since_ns(&self) -> Option<u64> {
        self.faults.waiting_since_ns()
    }

    /// How long those threads have waited so far, summed, that still wait; in nanoseconds, at a time of the kernel's
    /// clock. Who waits for its turn does not count.
    pub fn waited_ns(&self, now_ns: u64) -> u64 {
        self.faults.waited_ns(now_ns)
    }

    /// How long the process has got nowhere for want of room, at a time of the kernel's clock; in nanoseconds.
    pub fn hungry_ns(&self, now_ns: u64) -> u64 {
        self.faults.hungry_ns(now_ns)
    }

    /// Nothing is out, staged or registered: the pager may sleep.
    pub fn is_idle(&self) -> bool {
        self.index.stored() == 0 && self.regions.registered().is_empty() && self.stage.in_flight() == 0
    }

    /// Brings everything home and unregisters it: before a fork. Faults are served all the while; afterwards none can come.
    pub fn retire(&mut self) {
        self.paused = true;
        self.park(false);
        loop {
            self.settle();
            self.collect();
            let (mut at, mut home) = (0, true);
            while let Some((page, entry)) = self.index.next_used(at, 1 << 47) {
                (at, home) = (page + PAGE, false);
                self.bring_home(page, entry);
            }
            while let Some(fault) = self.faults.pop_any() {
                self.serve_now(fault);
            }
            // A result that came meanwhile may have put pages away again; look once more.
            if self.stage.in_flight() == 0 && home && !self.regions.has_displaced() {
                break;
            }
        }
        loop {
            // Not `regions` alone: what mremap added to a mapping is registered too, and no event tells of it.
            self.regions.unregister(&(0..1 << 47));
            self.kernel.unregister(0..1 << 47);
            // A range may have moved away meanwhile, and have taken its registration along.
            self.settle();
            if self.regions.registered().is_empty() && self.is_quiet() {
                break;
            }
            self.kernel.pause();
        }
        // Whoever faulted before the ranges were unregistered finds zeros, the page, or nothing, when it looks again.
        while let Some(fault) = self.faults.pop() {
            self.kernel.wake(fault.at..fault.at + PAGE);
        }
    }

    /// Brings a range home and unregisters it: another userfaultfd is to have it.
    pub fn let_go(&mut self, range: Range<usize>) {
        let mut pauses = 0;
        loop {
            self.settle();
            let mut at = range.start;
            while let Some((page, entry)) = self.index.next_used(at, range.end) {
                at = page + PAGE;
                self.bring_contents(page, entry);
                let entry = self.index.set(page, Entry::NONE);
                self.drop_entry(entry);
                // To whoever has the range next a hole is not a page of zeros.
                while entry.kind() == Kind::Zero
                    && self.kernel.zero(page, PAGE).stop == Some(uffd::Errno::EAGAIN)
                {
                    self.wait_for_events(&mut pauses);
                }
            }
            self.kernel.release(range.clone());
            self.regions.unregister(&range);
            self.unfault(&range);
            // An event under way may be of something that has moved there meanwhile, with what is known of it.
            let is_quiet = self.is_quiet();
            self.settle();
            let is_known = self.regions.registered().overlaps(&range);
            if is_quiet && !is_known {
                return;
            }
            self.wait_for_events(&mut pauses);
        }
    }

    /// True when no event is under way: even one that is not to be read yet stops every fill with EAGAIN, before the kernel sees that
    /// the nursery is not registered.
    pub(crate) fn is_quiet(&mut self) -> bool {
        let is_quiet = self.kernel.zero(self.config.nursery, PAGE).stop != Some(uffd::Errno::EAGAIN);
        if is_quiet {
            self.nothing_is_due();
        }
        is_quiet
    }

    /// True when a thread of the program has touched a bell, and waits for the answer.
    pub fn has_rung(&self) -> bool {
        self.faults.bells().has_rung()
    }

    /// Answers: whoever has rung goes on. A bell stays full until others have been answered: emptied at once it would be touched again by a thread that had to wait for a CPU.
    pub fn answer(&mut self) {
        let mut pauses = 0;
        for (at, far) in self.faults.bells_mut().answer() {
            while self.kernel.zero(at, PAGE).stop == Some(uffd::Errno::EAGAIN) {
                self.wait_for_events(&mut pauses);
            }
            self.kernel.wake(at..at + PAGE);
            self.kernel.discard(far, PAGE);
        }
    }

    /// Forgets one entry: nobody will ask for what it names.
    pub(crate) fn drop_entry(&mut self, entry: Entry) {
        use crate::index::Kind::*;
        match entry.kind() {
            None | Zero => {}
            Stored => self.objects.release(entry.id(), true, &mut self.store),
            Clean => self.objects.release(entry.id(), false, &mut self.store),
            Staged => {
                let (slot, page) = stage_page(entry);
                let prior = self.stage.take(slot, page, false);
                self.drop_entry(prior);
                let s = self.stage.slot(slot);
                if s.staged == 0 && s.used == Use::Inactive {
                    self.discard_slot(slot);
                }
            }
        }
    }

    /// Takes a slot to load pages into: of stock, or of new pages where there is none.
    pub(crate) fn slot_to_load(&mut self) -> Option<u32> {
        if let Some(slot) = self.stage.take_stock() {
            return Some(slot);
        }
        let (first, _) = self.stage.find_windows(1, 0)?;
        let slot = first / WINDOW_PAGES as u32;
        let at = self.stage.at(slot);
        if !self.kernel.populate(at, WINDOW) {
            self.kernel.discard(at, WINDOW);
            return None;
        }
        self.stage.made(slot);
        self.limit.charge(WINDOW);
        Some(slot)
    }

    /// A slot that was taken, and is still taken, is not needed any more, or not all of it.
    pub(crate) fn put_back(&mut self, slot: u32) {
        if self.stage.slot(slot).used == Use::Fetching && !self.stage.put_back(slot) {
            self.discard_slot(slot);
        }
    }

    /// Gives a slot's pages, which nobody needs, back to the kernel; those that it does not take now are waste, and tried again.
    pub(crate) fn discard_slot(&mut self, slot: u32) {
        let base = self.stage.at(slot);
        for (first, count) in runs(self.stage.slot(slot).present) {
            if self.kernel.discard(base + first * PAGE, count * PAGE) {
                self.stage.left(slot, bits(first, count));
                self.limit.uncharge(count * PAGE);
            } else {
                self.stat.busy.fetch_add(count as u64, Relaxed);
            }
        }
        if self.stage.slot(slot).present != 0 {
            self.stage.waste(slot);
        }
    }
}

/// The slot and its page that a `Staged` entry names.
pub(crate) fn stage_page(entry: Entry) -> (u32, usize) {
    (entry.id() / WINDOW_PAGES as u32, entry.id() as usize % WINDOW_PAGES)
}

/// A mask of `count` bits from `first` on.
pub(crate) fn bits(first: usize, count: usize) -> u16 {
    (((1u32 << count) - 1) << first) as u16
}

/// The runs of set bits: first and count.
pub(crate) fn runs(mask: u16) -> impl Iterator<Item = (usize, usize)> {
    let mut rest = mask as u32;
    core::iter::from_fn(move || {
        (rest != 0).then(|| {
            let first = rest.trailing_zeros() as usize;
            let count = (rest >> first).trailing_ones() as usize;
            rest &= !(((1 << count) - 1) << first);
            (first, count)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_mask() {
        assert_eq!(runs(0b1011_0000_0000_1110).collect::<Vec<_>>(), [(1, 3), (12, 2), (15, 1)]);
        assert_eq!(runs(u16::MAX).collect::<Vec<_>>(), [(0, 16)]);
        assert_eq!(runs(0).count(), 0);
        assert_eq!((bits(0, 16), bits(15, 1), bits(3, 2)), (u16::MAX, 1 << 15, 0b11000));
    }
}
