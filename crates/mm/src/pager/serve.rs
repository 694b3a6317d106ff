//! In: what a thread waits for is brought, from the inactive list (activate.rs), from an object (load.rs), or out
//! of nothing (fill.rs).
//!
//! Restoring is safe because
//! 1. a page is put only where the kernel says there is a hole (EEXIST otherwise), and in a mapping registered with us;
//! 2. the swap map is asked again after every EAGAIN, since the events that caused it may have changed the answer;
//! 3. the bytes are checked against the hash that was taken when they went out, before they are mapped.

use crate::fault_queue::Fault;
use crate::kernel::{Errno, Kernel, Moved, Store};
use crate::pager::Pager;
use crate::pager::quiet::STUCK;
use crate::swap_map::{Entry, Kind};
use core::sync::atomic::Ordering::Relaxed;
use vmscan::PAGE;
use vmscan::heat::Heat;

/// What has become of an attempt to bring a page.
pub(super) enum Outcome {
    /// The thread goes on.
    Served,
    /// Events are to be read first; then look again.
    Again,
    /// There is no room for fresh memory.
    Wait,
    /// A huge page is about to be free.
    AwaitHuge,
    /// What is wanted is being read from an area.
    Reading,
    /// It is in an area, and the pool has no memory for it.
    Starving,
}

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// Serves a fault, or puts it among those that wait for room.
    pub(super) fn serve(&mut self, fault: Fault) {
        self.try_serve(fault, !self.reclaim.is_paused());
    }

    /// Serves a fault, room or not; or puts it among those for which something is read.
    pub(super) fn serve_now(&mut self, fault: Fault) {
        self.try_serve(fault, false);
    }

    fn try_serve(&mut self, mut fault: Fault, gate: bool) {
        if fault.protected {
            if !self.try_unprotect(fault, gate) {
                self.faults.wait(fault);
            }
            return;
        }
        let (began, mut pauses) = (self.map.get(fault.at).kind(), 0);
        let is_weighed = began == Kind::Stored && self.has_areas();
        // The first look at it: a fault that is looked at again is no second one.
        if is_weighed && fault.extent.is_none() {
            self.weigh(fault.at);
        }
        let extent = fault.extent.unwrap_or_else(|| self.extent_of(fault.at, began));
        fault.extent = Some(extent);
        if self.cow.is_shared() && began == Kind::Stored && !fault.write && self.is_common(fault.at) {
            self.stat.common_read.fetch_add(1, Relaxed);
        }
        loop {
            let entry = self.map.get(fault.at);
            let outcome = match entry.kind() {
                Kind::Inactive => self.activate(fault.at, entry, extent),
                Kind::Stored => self.load_asked(&fault, entry, extent, pauses == 0, gate),
                Kind::Zero | Kind::None | Kind::Clean => self.fill(fault, entry, extent, gate),
            };
            match outcome {
                Outcome::Served => break,
                Outcome::Wait => return self.faults.wait(fault),
                Outcome::AwaitHuge => return self.faults.await_huge(fault),
                Outcome::Reading => return self.faults.await_read(Fault { has_read: true, ..fault }),
                Outcome::Starving => return self.faults.starve(fault),
                Outcome::Again => {
                    self.wait_for_events(&mut pauses);
                    if pauses % STUCK == 0 && self.fill_grown(fault.at) {
                        break;
                    }
                }
            }
        }
        self.reclaim.end_rest();
        let waited = self.kernel.now_ns().saturating_sub(fault.since_ns);
        self.stat.stall_ns.fetch_add(waited, Relaxed);
        if is_weighed {
            self.balance.waited(fault.has_read, waited);
        }
        if began.is_out() {
            self.stat.faults.fetch_add(1, Relaxed);
            self.stat.fault_ns.record(waited);
        } else {
            self.stat.fresh_faults.fetch_add(1, Relaxed);
        }
    }

    /// What a move or copy into the program means for the thread that waits at `at`.
    pub(super) fn landed(
        &mut self,
        at: usize,
        to: usize,
        pages: usize,
        moved: Moved,
        covered: bool,
    ) -> Outcome {
        self.cow.note_own(to..to + moved.bytes);
        self.huge.came_to(&(to..to + moved.bytes));
        match moved.stop {
            None => Outcome::Served,
            _ if covered => Outcome::Served,
            Some(Errno::EAGAIN) => Outcome::Again,
            // It is there: somebody was faster. What the page tables say counts.
            Some(Errno::EEXIST) if moved.bytes == 0 && to == at => {
                let entry = self.map.set(at, Entry::NONE);
                self.drop_entry(entry);
                self.kernel.wake(at..at + PAGE);
                Outcome::Served
            }
            // Somewhere before `at` a page was in the way: the thread faults again if it must.
            Some(Errno::EEXIST) => {
                let entry = self.map.set(to + moved.bytes, Entry::NONE);
                self.drop_entry(entry);
                Outcome::Again
            }
            // No mapping of ours any more: the kernel knows what to tell the thread.
            Some(_) => {
                self.kernel.wake(to..to + pages * PAGE);
                self.kernel.wake(at..at + PAGE);
                Outcome::Served
            }
        }
    }

    /// How hot a page is that comes back from the pool. It and those that come with it, `pages` in all, are counted
    /// where more memory would have kept them in, and there is none to be had.
    pub(super) fn refault(&self, entry: Entry, pages: usize) -> Heat {
        let distance = self.map.distance(entry);
        let heat = Heat::refault(distance, self.resident_pages());
        if heat > Heat::COLD && !self.limit.is_roomy() {
            self.stat.near_refaults.fetch_add(pages as u64, Relaxed);
            self.stat.near_distance.fetch_add((pages * distance) as u64, Relaxed);
        }
        heat
    }

    /// The page that threads of the program touch to be heard.
    pub fn doorbell(&self) -> usize {
        self.faults.bells().base()
    }

    /// True when a thread of the program has touched a bell, and waits for the answer.
    pub fn has_rung(&self) -> bool {
        self.faults.bells().has_rung()
    }

    /// Answers: whoever has rung goes on. A bell stays full until others have been answered: emptied at once it
    /// would be touched again by a thread that had to wait for a CPU.
    pub fn answer(&mut self) {
        let mut pauses = 0;
        for (at, far) in self.faults.bells_mut().answer() {
            while self.kernel.zero(at, PAGE).stop == Some(Errno::EAGAIN) {
                self.wait_for_events(&mut pauses);
            }
            self.kernel.wake(at..at + PAGE);
            self.kernel.discard(far, PAGE);
        }
    }
}
