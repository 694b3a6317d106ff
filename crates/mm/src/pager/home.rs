//! Home: what is out comes back, because another is to have the memory, or all of it at once.

use crate::kernel::{Errno, Kernel, Store};
use crate::pager::Pager;
use crate::pager::serve::Outcome;
use crate::swap_map::{Entry, Kind};
use core::ops::Range;
use vmscan::PAGE;
use vmscan::readahead::Extent;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// Brings everything home and unregisters it: before a fork. Faults are served all the while; afterwards none
    /// can come.
    pub fn retire(&mut self) {
        self.pause(true);
        self.park(false);
        self.bring_all_home();
        loop {
            // Not `regions` alone: what mremap added to a mapping is registered too, and no event tells of it.
            self.regions.unregister(&(0..1 << 47));
            self.kernel.unregister(0..1 << 47);
            // A range may have moved away meanwhile, and have taken its registration along.
            self.settle();
            if self.regions().is_empty() && self.is_quiet() {
                break;
            }
            self.kernel.pause();
        }
        // Whoever faulted before the ranges were unregistered finds zeros, the page, or nothing, when it looks again.
        while let Some(fault) = self.faults.pop() {
            self.kernel.wake(fault.at..fault.at + PAGE);
        }
    }

    fn bring_all_home(&mut self) {
        loop {
            self.settle();
            self.collect();
            self.faults.may_have_memory();
            let (mut at, mut home) = (0, true);
            while let Some((page, entry)) = self.map.next_used(at, 1 << 47) {
                (at, home) = (page + PAGE, false);
                self.bring_home(page, entry);
            }
            while let Some(fault) = self.faults.pop_any() {
                self.serve_now(fault);
            }
            // A result that came meanwhile may have put pages away again; look once more.
            let is_done = self.inactive.in_flight() == 0 && !self.has_io() && !self.faults.is_starving();
            if is_done && home && !self.has_displaced() {
                return;
            }
        }
    }

    /// Brings a range home and unregisters it: another userfaultfd is to have it.
    pub fn let_go(&mut self, range: Range<usize>) {
        let mut pauses = 0;
        loop {
            self.settle();
            let mut at = range.start;
            while let Some((page, entry)) = self.map.next_used(at, range.end) {
                at = page + PAGE;
                self.bring_contents(page, entry);
                let entry = self.map.set(page, Entry::NONE);
                self.came_home(entry);
                // To whoever has the range next a hole is not a page of zeros.
                while entry.kind() == Kind::Zero && self.kernel.zero(page, PAGE).stop == Some(Errno::EAGAIN) {
                    self.wait_for_events(&mut pauses);
                }
            }
            self.kernel.release(range.clone());
            self.regions.unregister(&range);
            self.unfault(&range);
            // An event under way may be of something that has moved there meanwhile, with what is known of it.
            let is_quiet = self.is_quiet();
            self.settle();
            if is_quiet && !self.regions.registered().overlaps(&range) {
                return;
            }
            self.wait_for_events(&mut pauses);
        }
    }

    /// Brings one page home whatever it takes: before a fork, or because the kernel needs it there.
    pub(super) fn bring_home(&mut self, at: usize, entry: Entry) {
        self.bring_contents(at, entry);
        // It is in place, or will be a hole of an unregistered range, which is zeros by itself.
        let entry = self.map.set(at, Entry::NONE);
        self.came_home(entry);
    }

    /// Brings what a page holds home whatever it takes. A page of zeros, which the compressors may have found it to be
    /// meanwhile, stays out.
    pub(super) fn bring_contents(&mut self, at: usize, entry: Entry) {
        let (mut entry, mut pauses) = (entry, 0);
        loop {
            let outcome = match entry.kind() {
                Kind::Inactive => self.activate(at, entry, Extent::Window),
                Kind::Stored => self.load(at, entry, Extent::Window, pauses == 0),
                Kind::None | Kind::Clean | Kind::Zero => return,
            };
            match outcome {
                Outcome::Again => self.wait_for_events(&mut pauses),
                Outcome::Reading => self.await_workers(),
                Outcome::Starving => {
                    self.await_workers();
                    self.end_rest_of_reads();
                }
                Outcome::Served | Outcome::Wait | Outcome::AwaitHuge => {}
            }
            entry = self.map.get(at);
        }
    }
}
