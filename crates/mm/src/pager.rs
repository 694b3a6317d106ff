//! The pager: the one place that changes which page is where.
//!
//! All of it runs on one thread, and that is the design: an event is read and handled in one critical section
//! because there is nobody else who could read, evict or restore. The compressors work beside it on pages that have
//! left the program already, and tell their results through [`Store`].
//!
//! The state is in parts, each of which keeps its own invariants (`check`) and knows no pager. What takes several
//! of them is in the files below, by what is done.
//!
//! A turn: read messages and apply events (`attend`), apply results (`collect`), serve faults, reclaim.

mod activate;
mod advise;
mod check;
mod deflate;
mod event;
mod evict;
mod fetch;
mod fill;
pub mod fork;
mod home;
mod huge;
mod huge_in;
mod ledger;
mod load;
mod log;
pub mod look;
mod move_out;
mod quiet;
mod recompress;
mod register;
mod serve;
mod share;
mod stock;
pub mod tell;
mod write_back;

#[cfg(test)]
mod sim;

use crate::advised::Advised;
use crate::bell::Bells;
use crate::cow::CopyOnWrite;
use crate::fault_queue::FaultQueue;
use crate::fetch_ahead::FetchAhead;
use crate::fresh::Fresh;
use crate::huge::Huge;
use crate::inactive::InactiveList;
use crate::kernel::{Kernel, Store};
use crate::limit::Limit;
use crate::pool_limit::PoolLimit;
use crate::reclaim::Reclaim;
use crate::recompression::Recompression;
use crate::regions::Regions;
use crate::shared_store::SharedStore;
use crate::shortage::Shortage;
use crate::swap_map::SwapMap;
use crate::swapin::SwapIn;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use memcg::{Counts, Stat};
use vmscan::PAGE;
use vmscan::balance::Balance;
use vmscan::prefetch::Prefetch;
use vmscan::returns::Returns;
use vmscan::watermark::{Usage, Watermarks};
use vmscan::worth::Worth;
use zswap::objects::{BATCHES, Objects};

/// What a pager is made with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The inactive list's range: engine memory registered for faults, no page present. Bytes are a multiple of the
    /// window, and the address one of a huge page.
    pub inactive: (usize, usize),
    /// Bytes of a huge page.
    pub huge_bytes: usize,
    /// A window of engine memory that is not registered: loads go through it when there is no stock.
    pub bounce: usize,
    /// Engine memory that is not registered, for fresh memory on its way to the program: an address and bytes,
    /// zeros or no page.
    pub fresh: (usize, usize),
    /// A registered window of the engine's own, whose pages are bells: a touch of one by a thread of the program is
    /// a request (see `Pager::has_rung`).
    pub doorbell: usize,
    /// Test mode: everything goes out all the time.
    pub evict_all: bool,
}

/// The pager of one process.
pub struct Pager<'a, K, S> {
    /// The world.
    kernel: K,
    /// Counters.
    stat: &'a Stat,
    limit: Limit,
    map: SwapMap,
    objects: Objects<S>,
    inactive: InactiveList,
    regions: Regions,
    faults: FaultQueue,
    reclaim: Reclaim,
    swapin: SwapIn,
    fresh: Fresh,
    ahead: FetchAhead,
    /// What was asked for where there was room.
    prefetch: Prefetch,
    recompression: Recompression,
    pool_limit: PoolLimit,
    /// How large it is to be where there are areas.
    balance: Balance,
    shortage: Shortage,
    /// What has become of windows that came for one of their pages.
    returns: Returns,
    /// Of what is read ahead from areas.
    worth: Worth,
    cow: CopyOnWrite,
    huge: Huge,
    advised: Advised,
    shared: SharedStore,
    /// Since when each batch is written.
    batches_ns: [Option<u64>; BATCHES],
    /// What the counters said was out before there was a pager.
    balance_before: i64,
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
        let (base, bytes) = config.inactive;
        Pager {
            kernel,
            stat,
            limit: Limit::new(limit, config.evict_all),
            map: SwapMap::default(),
            objects: Objects::new(store),
            inactive: InactiveList::new(base, bytes, config.huge_bytes),
            regions: Regions::default(),
            faults: FaultQueue::new(Bells::new(config.doorbell)),
            reclaim: Reclaim::default(),
            swapin: SwapIn::new(config.bounce),
            fresh: Fresh::new(config.fresh),
            ahead: FetchAhead::default(),
            prefetch: Prefetch::default(),
            recompression: Recompression::default(),
            pool_limit: PoolLimit::default(),
            balance: Balance::default(),
            shortage: Shortage::default(),
            returns: Returns::default(),
            worth: Worth::default(),
            cow: CopyOnWrite::default(),
            huge: Huge::new(config.huge_bytes),
            advised: Advised::default(),
            shared: SharedStore::default(),
            batches_ns: [None; BATCHES],
            balance_before: Counts::from(stat).balance(),
        }
    }

    /// One turn. `footprint` is what the process holds now, in bytes. True when there may be more to do at once.
    pub fn turn(&mut self, footprint: usize) -> bool {
        self.limit.measured(footprint);
        self.objects.served();
        self.attend();
        self.learn_growth();
        let mut busy = self.collect();
        self.faults.hold_back();
        // Who waited for memory of the pool has not had it yet when it is looked for once more.
        let looks_again = self.shortage.is_on() && (self.faults.has_reading() || !self.faults.is_empty());
        if self.faults.has_waiting() || looks_again {
            let has_room = self.marks().relieved(&self.usage());
            self.faults.retry(self.kernel.now_ns(), has_room);
        } else {
            self.faults.nobody_waits();
        }
        self.give_huge();
        self.end_rest_of_reads();
        let is_paused = self.reclaim.is_paused();
        if self.faults.is_empty() {
            let is_soon = self.faults.is_soon(self.kernel.now_ns());
            if !is_paused && (!is_soon || self.limit.footprint() >= self.marks().high) {
                busy |= self.reclaim(usize::MAX);
            }
            let is_advised = !is_paused && self.follow_advice();
            if !is_paused && !is_advised && self.faults.is_long_ago(self.kernel.now_ns()) {
                self.collapse_due();
            }
            return busy | is_advised;
        }
        // Whoever waits pays with a step: while a thread sleeps in its fault its CPU need not be interrupted for
        // what goes out.
        if !is_paused {
            self.reclaim(STEP_BYTES);
        }
        for _ in 0..self.faults.len() {
            let Some(fault) = self.faults.pop() else { break };
            self.serve(fault);
            if self.limit.footprint() >= self.marks().max && !is_paused {
                self.reclaim(usize::MAX);
                self.throttle();
            }
        }
        self.faults.served(self.kernel.now_ns());
        if !is_paused {
            self.follow_advice();
        }
        true
    }

    /// Above the last mark whoever faults pays: the next fault waits until the compressors have made room, for a while.
    fn throttle(&mut self) {
        let end = self.kernel.now_ns() + THROTTLE_NS;
        for _ in 0..THROTTLE {
            if self.limit.footprint() < self.marks().max || self.kernel.now_ns() > end {
                return;
            }
            if self.collect() {
                self.reclaim(usize::MAX);
            } else if self.inactive.in_flight() == 0 && !self.reclaim(usize::MAX) {
                return;
            } else {
                self.kernel.pause();
            }
        }
    }

    /// From now on the process waits for its turn, or goes on. While it waits no fault is served; all else is done
    /// as ever, and what it has may go out.
    pub fn park(&mut self, is_parked: bool) {
        if is_parked != self.faults.is_parked() {
            let waited = self.faults.park(is_parked, self.kernel.now_ns());
            self.stat.parked_ns.fetch_add(waited, Relaxed);
            // What it has is for others meanwhile.
            self.advised.forget_prefetch();
        }
    }

    /// From now on nothing goes out, or as ever: a fork is under way, or the test mode lets the program run.
    pub fn pause(&mut self, is_paused: bool) {
        self.reclaim.pause(is_paused);
    }

    /// True while nothing goes out.
    pub fn is_paused(&self) -> bool {
        self.reclaim.is_paused()
    }

    /// From now on one thread alone misses, or several.
    pub fn set_alone(&mut self, is_alone: bool) {
        self.swapin.set_alone(is_alone);
    }

    /// A new limit in bytes, as other processes of the run come and go; how many of them there are for each CPU;
    /// and how many bytes came unheard between two looks of late.
    pub fn set_limit(&mut self, limit: usize, processes_per_cpu: usize, unheard: usize) {
        self.limit.set(limit, processes_per_cpu, unheard);
    }

    /// From now on the footprint is also to come down to so many bytes, below all marks; or to none.
    pub fn ask(&mut self, target: Option<usize>) {
        if target.is_some() {
            self.reclaim.end_rest();
            self.prefetch = Prefetch::default();
            self.advised.forget_prefetch();
        }
        self.limit.ask(target);
    }

    /// The watermarks of the limit that is set.
    pub fn marks(&self) -> &Watermarks {
        self.limit.marks()
    }

    /// The world.
    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    /// The same, to be asked for something.
    pub fn kernel_mut(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Where folios go.
    pub fn store(&self) -> &S {
        self.objects.store()
    }

    /// The same, to be asked for something.
    pub fn store_mut(&mut self) -> &mut S {
        self.objects.store_mut()
    }

    /// What is registered, sorted and apart.
    pub fn regions(&self) -> &[Range<usize>] {
        self.regions.registered().as_slice()
    }

    /// Where the process stands.
    pub fn usage(&self) -> Usage {
        Usage {
            footprint: self.limit.footprint(),
            inactive: self.inactive.inactive_bytes(),
            in_flight: self.inactive.in_flight_bytes(),
            stock: self.inactive.stock_bytes(),
            pool: self.objects.pool_bytes(),
            waiting: self.faults.has_waiting() || self.faults.is_awaiting_huge(),
        }
    }

    /// Pages in the program.
    fn resident_pages(&self) -> usize {
        let usage = self.usage();
        let apart = usage.pool + usage.inactive + usage.in_flight + usage.stock + self.inactive.spent_bytes();
        usage.footprint.saturating_sub(apart) / PAGE
    }

    /// Bytes of the program that are out in the pool, uncompressed.
    pub fn stored_bytes(&self) -> usize {
        self.map.stored() * PAGE
    }

    /// Pages that have no other copy than a relative's record, in bytes: they count with the relative.
    pub fn borrowed_bytes(&self) -> usize {
        self.objects.borrowed_pages() * PAGE
    }

    /// How many results of the compressors are worth a wake-up: a few where somebody waits for room, of which one
    /// window would not make much; one where a stream is loaded ahead, the footprint is high, or it is to come down;
    /// else none.
    pub fn wants_results(&self) -> usize {
        let (_, reads) = self.objects.swapped().under_way();
        let fetches = !self.ahead.under_way().is_empty() || reads > 0;
        if !fetches && (self.faults.has_waiting() || self.faults.is_awaiting_huge()) {
            (self.inactive.in_flight() / 2).clamp(1, RESULTS)
        } else {
            let is_asked = self.limit.is_above_asked() || self.advised.due_bytes() > 0;
            (fetches || is_asked || self.limit.footprint() > self.marks().high) as usize
        }
    }

    /// Since when the longest waiting thread waits for room, in nanoseconds of the kernel's clock.
    pub fn waiting_since_ns(&self) -> Option<u64> {
        self.faults.waiting_since_ns()
    }

    /// True where a thread waits for room, or for a huge page.
    pub fn is_awaited(&self) -> bool {
        self.waiting_since_ns().is_some() || self.faults.is_awaiting_huge()
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

    /// Nothing is out, inactive or registered: the pager may sleep.
    pub fn is_idle(&self) -> bool {
        let is_empty = self.map.stored() == 0 && self.regions().is_empty();
        is_empty && self.inactive.in_flight() == 0 && !self.has_io()
    }
}
