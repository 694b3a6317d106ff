//! What others have too: pages that a fork has left to several processes.
//!
//! What has come since the fork goes out first, what others have too at last, by copy and drop: that frees it only
//! when all have done so.

use crate::fault_queue::Fault;
use crate::kernel::{Errno, Kernel, Store};
use crate::pager::Pager;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use vmscan::{PAGE, WINDOW};

/// How many ranges that are this process's alone are looked at for one decision, at least.
const RECENT_LOOKS: usize = 64;

/// So long a thread waits for room before pages go out that another process has too.
const PATIENT_NS: u64 = 50_000_000;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// No other process has what this one's pool held when it was forked, nor its pages.
    pub fn thaw(&mut self) {
        self.objects.thaw();
        self.cow.share(false);
        // None is a fork's there.
        if self.kernel.tells_touches() {
            return;
        }
        for region in self.regions().to_vec() {
            self.unprotect(region);
        }
    }

    /// What is in the program is another process's too, since a fork: whoever writes to it takes memory for a copy,
    /// and that is told from now on, unless touches are. What cannot be registered is left out: that includes what
    /// another thread changes this moment.
    pub fn share(&mut self) {
        // A child has registered no more than what it knows something of.
        self.register_each();
        self.cow.share(true);
        // Page tables have one bit for both.
        if self.kernel.tells_touches() {
            return;
        }
        // The kernel writes to these where it cannot wait: as a thread ends.
        self.list_pins();
        let mut parts = self.regions.registered().clone();
        for &pin in self.reclaim.pins() {
            parts.remove(&(pin..pin + PAGE));
        }
        for part in parts.as_slice() {
            let mut pauses = 0;
            while self.kernel.protect(part.clone()) == Err(Errno::EAGAIN) {
                self.wait_for_events(&mut pauses);
            }
        }
        // And to robust locks that were taken since; who takes one from here on writes to it first.
        self.list_pins();
        for pin in self.reclaim.pins().to_vec() {
            self.unprotect(pin..pin + PAGE);
        }
    }

    /// True while other processes may have pages of this one's.
    pub fn shares(&self) -> bool {
        self.cow.is_shared()
    }

    pub(super) fn unprotect(&mut self, range: Range<usize>) {
        let mut pauses = 0;
        while self.kernel.unprotect(range.clone()) == Err(Errno::EAGAIN) {
            self.wait_for_events(&mut pauses);
        }
    }

    /// Lets a thread write to a page that another process may have too, if there is room for a copy.
    pub(super) fn try_unprotect(&mut self, fault: Fault, gate: bool) -> bool {
        if gate && self.marks().gated(&self.usage()) {
            return false;
        }
        let region_end =
            self.regions.registered().find(fault.at).map_or(fault.at + PAGE, |region| region.end);
        let range = self.cow.unprotect(fault.at, region_end);
        let mut pauses = 0;
        loop {
            match self.kernel.unprotect(range.clone()) {
                Ok(copies) => {
                    self.limit.charge(copies * PAGE);
                    self.cow.note_own(range);
                    self.forget_record(fault.at);
                    break;
                }
                Err(Errno::EAGAIN) => self.wait_for_events(&mut pauses),
                // It is something else by now: the kernel knows what.
                Err(_) => {
                    self.kernel.wake(range);
                    break;
                }
            }
        }
        let waited = self.kernel.now_ns().saturating_sub(fault.since_ns);
        self.stat.stall_ns.fetch_add(waited, Relaxed);
        self.stat.fresh_faults.fetch_add(1, Relaxed);
        true
    }

    /// Makes pages this process's alone, which is a copy where others have them; false when not even the first is.
    pub(super) fn unshare(&mut self, pages: Range<usize>) -> bool {
        let Ok(copies) = self.kernel.unprotect(pages.clone()) else { return false };
        self.limit.charge(copies * PAGE);
        let kernel = &mut self.kernel;
        pages.step_by(PAGE).take_while(|&at| kernel.unshare(at)).count() > 0
    }

    /// While most of what is in the program is others' too: moves to the inactive list what is not, as far as it is
    /// known, and cold; how many bytes it was. The hand would pass thousands of pages for each of those.
    pub(super) fn evict_recent(&mut self, want: usize) -> usize {
        let (mut got, mut moved) = (0, 0..0);
        for _ in 0..self.cow.recent().min(RECENT_LOOKS + want / WINDOW) {
            if got >= want || self.inactive.is_full() {
                break;
            }
            let Some(range) = self.cow.take_recent() else { break };
            let (more, is_left) = self.evict_range(range.clone(), &mut moved);
            got += more;
            if is_left {
                self.cow.put_back(range);
            }
        }
        self.return_pins(moved);
        got
    }

    /// A thread has been waiting for room for long, and not found it.
    pub(super) fn is_at_last(&mut self) -> bool {
        let now = self.kernel.now_ns();
        self.waiting_since_ns().is_some_and(|since| now > since + PATIENT_NS)
    }
}
