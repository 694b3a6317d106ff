//! What others have too: pages that a fork has left to several processes.
//!
//! Each of them is write-protected (`share`): who writes to it takes memory for a copy, and waits for room like one who touches fresh memory. What has come since the
//! fork goes out first, what others have too at last, by copy and drop: that frees it only when all have done so.

use crate::fault_queue::Fault;
use crate::kernel::{Errno, Kernel, Moved, Run, Store, WINDOW_PAGES};
use crate::pager::Pager;
use crate::pager::evict::PATIENCE;
use crate::pager::family::hull;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use vmscan::{PAGE, WINDOW};

/// How many ranges that are this process's alone are looked at for one decision, at least; and how many are known.
const RECENT_LOOKS: usize = 64;
const MOST_RECENT: usize = 1 << 16;

/// So long a thread waits for room before pages go out that another process has too.
const PATIENT_NS: u64 = 50_000_000;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// No other process has what this one's pool held when it was forked, nor its pages.
    pub fn thaw(&mut self) {
        self.objects.thaw();
        self.store.thaw();
        self.shares = false;
        self.recent.clear();
        for region in self.regions().to_vec() {
            self.unprotect(region);
        }
    }

    /// What is in the program is another process's too, since a fork: whoever writes to it takes memory for a copy, and that is told from now on. What
    /// cannot be registered is left out: that includes what another thread changes this moment.
    pub fn share(&mut self) {
        // A child has registered no more than what it knows something of.
        self.enroll_each();
        self.shares = true;
        self.recent.clear();
        // The kernel writes to these where it cannot wait: as a thread ends.
        self.list_pins();
        let mut parts = self.regions.registered().clone();
        for &pin in &self.pins {
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
        for pin in core::mem::take(&mut self.pins) {
            self.unprotect(pin..pin + PAGE);
        }
    }

    fn unprotect(&mut self, range: Range<usize>) {
        let mut pauses = 0;
        while self.kernel.unprotect(range.clone()) == Err(Errno::EAGAIN) {
            self.wait_for_events(&mut pauses);
        }
    }

    /// Moves pages of the program's to the stage, without their protection.
    ///
    /// A swap entry would take it along, and so would a page on kernels since April 2026. Then the engine's own write to
    /// the stage would wait for the engine. It is safe to take protection away first: a write to a page that nobody else
    /// has copies nothing, and one that others have too stays, and what is copied there is counted late.
    pub(crate) fn move_unprotected(&mut self, dst: usize, src: usize, bytes: usize) -> Moved {
        match self.kernel.lift_protection(src..src + bytes) {
            Err(Errno::EAGAIN) => Moved::NOTHING_YET,
            _ => self.kernel.move_pages(dst, src, bytes),
        }
    }

    /// True while other processes may have pages of this one's, and writes to them are told.
    pub fn shares(&self) -> bool {
        self.shares
    }

    /// Lets a thread write to a page that another process may have too, if there is room for a copy.
    pub(crate) fn try_unprotect(&mut self, fault: Fault, gate: bool) -> bool {
        if gate && self.limit.marks().gated(&self.usage()) {
            return false;
        }
        // Who writes one page after the other is let through to ever more of them.
        let follows = fault.at == self.unprotected.end;
        let most = if follows { (2 * self.unprotected.len()).min(WINDOW) } else { PAGE };
        let region = self.regions.registered().find(fault.at);
        let end = region.map_or(fault.at + PAGE, |r| r.end.min(fault.at + most));
        self.unprotected = fault.at..end;
        let mut pauses = 0;
        loop {
            match self.kernel.unprotect(fault.at..end) {
                Ok(copies) => {
                    self.limit.charge(copies * PAGE);
                    self.note_own(fault.at..end);
                    self.unheed(fault.at);
                    break;
                }
                Err(Errno::EAGAIN) => self.wait_for_events(&mut pauses),
                // It is something else by now: the kernel knows what.
                Err(_) => {
                    self.kernel.wake(fault.at..end);
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
    pub(crate) fn unshare(&mut self, pages: Range<usize>) -> bool {
        let Ok(copies) = self.kernel.unprotect(pages.clone()) else { return false };
        self.limit.charge(copies * PAGE);
        let kernel = &mut self.kernel;
        pages.step_by(PAGE).take_while(|&at| kernel.unshare(at)).count() > 0
    }

    /// While most of what is in the program is others' too: moves to the stage what is not, as far as it is known, and cold; how many bytes it was. The hand
    /// would pass thousands of pages for each of those.
    pub(crate) fn evict_recent(&mut self, want: usize) -> usize {
        let (mut got, mut moved) = (0, 0..0);
        for _ in 0..self.recent.len().min(RECENT_LOOKS + want / WINDOW) {
            if got >= want || self.stage.is_full() {
                break;
            }
            let Some(range) = self.recent.pop_front() else { break };
            let (more, is_left) = self.evict_range(range.clone(), &mut moved);
            got += more;
            if is_left {
                self.recent.push_back(range);
            }
        }
        self.return_pins(moved);
        got
    }

    /// Moves what is there of a range to the stage, but for what stays for a reason: how many bytes it was, and whether anything is left. Adds the range to `moved`.
    pub(crate) fn evict_range(&mut self, range: Range<usize>, moved: &mut Range<usize>) -> (usize, bool) {
        let (mut runs, mut patience) = ([Run::default(); 2 * WINDOW_PAGES], PATIENCE);
        let (found, upto) = self.kernel.present(range.clone(), usize::MAX, &mut runs);
        let (mut got, mut is_left) = (0, upto < range.end);
        for run in &runs[..found] {
            let (more, stop) = self.evict_occupied(run.start..run.end, &mut patience);
            got += more;
            is_left |= more < run.end - run.start || stop.is_some();
        }
        *moved = hull(moved, &range);
        (got, is_left)
    }

    /// A range has come into the program, or been copied there.
    pub(crate) fn note_own(&mut self, range: Range<usize>) {
        if self.shares && !range.is_empty() {
            self.recent.push_back(range);
            // What is dropped is left to the hand.
            if self.recent.len() > MOST_RECENT {
                self.recent.pop_front();
            }
        }
    }

    /// A thread has been waiting for room for long, and not found it.
    pub(crate) fn is_at_last(&mut self) -> bool {
        let now = self.kernel.now_ns();
        self.waiting_since_ns().is_some_and(|since| now > since + PATIENT_NS)
    }
}
