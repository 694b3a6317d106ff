//! Events: what the program does to its mappings, and what that does to what we hold of them.
//!
//! This is safe because
//! 1. whoever causes an event waits until it is read, and every move and copy is refused with EAGAIN from before
//!    the mapping changes until that thread runs again: so a move that succeeds was made with all events read;
//! 2. an event's effect on the tables is complete before the next message is read (`apply` runs to its end), so a
//!    move that succeeds was made with all events applied;
//! 3. what a REMOVE covers is quarantined: between the reading of the event and the zapping of the pages by its
//!    causer the old contents are still mapped, and saving them would bring them back after the zap. Nothing there
//!    is evicted until every thread that uses the memory has been seen outside of such a call since, or has run for
//!    longer than one takes (`Kernel::census_done`). Throwing the pages away at once instead would be wrong: after
//!    MADV_FREE the program may write to them as soon as the call returns, and we cannot tell the two apart.
//!
//! Events of different threads come in any order: what that means for what is known is regions.rs's.

use crate::fault_queue::Fault;
use crate::kernel::{Kernel, Message, Store};
use crate::pager::Pager;
use crate::swap_map::{ASIDE, Entry, Kind};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// Reads all messages and applies all events. Faults are left in the queue.
    pub fn settle(&mut self) {
        while let Some(message) = self.kernel.next() {
            self.apply(message);
        }
    }

    /// The same at the beginning of a turn: the fault of a thread that misses alone is served before more is read.
    /// A turn does well without: the kernel lets nothing be moved or copied while an event is under way, and what
    /// must be known before is waited for (`is_quiet`).
    pub(super) fn attend(&mut self) {
        while let Some(message) = self.kernel.next() {
            self.apply(message);
            if self.swapin.is_alone() && !self.faults.is_empty() {
                break;
            }
        }
    }

    pub(super) fn apply(&mut self, message: Message) {
        match message {
            Message::Fault { at, write, protected, .. } => {
                if !self.faults.bells_mut().ring(at) {
                    let since_ns = self.kernel.now_ns();
                    self.faults.push(Fault { at, write, protected, since_ns, extent: None, has_read: false });
                }
            }
            Message::Remove(range) => {
                self.stat.events.fetch_add(1, Relaxed);
                self.forget(range.clone());
                self.ahead.forget(&range);
                self.advised.forget(&range);
                self.huge.forget(&range);
                self.regions.quarantine_mut().insert(range);
            }
            Message::Unmap(range) => {
                self.stat.events.fetch_add(1, Relaxed);
                self.reclaim.forget_areas_in(&range);
                self.advised.forget(&range);
                self.huge.forget(&range);
                self.kernel.has_unmapped(&range);
                self.unmap(range);
            }
            Message::Remap { from, to } => {
                self.stat.events.fetch_add(1, Relaxed);
                self.reclaim.forget_areas_in(&from);
                self.reclaim.forget_areas_in(&(to..to + from.len()));
                self.advised.forget(&from);
                self.huge.forget(&from);
                self.huge.forget(&(to..to + from.len()));
                self.kernel.has_remapped(&from, to);
                self.remap(from, to);
            }
            Message::Other(_) => {}
        }
    }

    /// Contents of a range are nobody's any more.
    pub(super) fn forget(&mut self, range: Range<usize>) {
        let mut gone = Vec::new();
        self.map.take(range, |_, entry| gone.push(entry));
        for entry in gone {
            self.drop_entry(entry);
        }
    }

    /// The same as a thread asks for it that has thrown the contents away by a call that sends no event. One under
    /// way may be of who had the place before, and has taken its contents elsewhere: that comes first.
    pub fn disown(&mut self, range: Range<usize>) {
        self.await_quiet();
        self.forget(range);
    }

    /// A range has a new address.
    fn remap(&mut self, from: Range<usize>, to: usize) {
        let found = self.regions.remap(&from, to, &mut self.kernel);
        let (mut moving, mut old) = (Vec::new(), Vec::new());
        for range in found.aside {
            self.map.take(aside(&range), |at, entry| moving.push((at - ASIDE - from.start + to, entry)));
        }
        for range in found.here {
            self.map.take(range, |at, entry| moving.push((at - from.start + to, entry)));
        }
        for range in found.taken {
            self.map.take(range, |at, entry| old.push((at + ASIDE, entry)));
        }
        self.place(old);
        found.gone.into_iter().for_each(|range| self.forget(range));
        self.forget(to..to + from.len());
        self.place(moving);
        self.ahead.forget(&from);
    }

    /// A range is gone.
    fn unmap(&mut self, range: Range<usize>) {
        self.unfault(&range);
        let found = self.regions.unmap(&range, &mut self.kernel);
        for range in found.aside {
            self.forget(aside(&range));
        }
        for range in found.here {
            self.ahead.forget(&range);
            self.forget(range);
        }
    }

    /// No event is under way: none is due of which that was in doubt.
    pub(super) fn nothing_is_due(&mut self) {
        while let Some(range) = self.regions.next_not_due() {
            self.forget(aside(&range));
        }
    }

    /// Faults on a range that is gone are nobody's: a thread that a signal interrupted in its fault has told it
    /// twice, and has gone on since. What is mapped there next may not be ours to fill.
    pub(super) fn unfault(&mut self, range: &Range<usize>) {
        if self.faults.forget(range) {
            self.kernel.wake(range.clone());
        }
    }

    /// Enters pages at other addresses than before.
    fn place(&mut self, pages: Vec<(usize, Entry)>) {
        for (at, entry) in pages {
            if entry.kind() == Kind::Inactive {
                let (slot, page) = entry.inactive_page();
                self.inactive.rename(slot, page, at);
            }
            self.map.set(at, entry);
        }
    }

    /// Ends the quarantine of ranges whose causers have all been seen elsewhere since.
    pub(super) fn release_quarantine(&mut self) {
        let kernel = &mut self.kernel;
        if let Some(bytes) = self.regions.quarantine_mut().release(|| kernel.census_done()) {
            // No more than that can be there.
            kernel.census_begin(bytes.min(self.limit.marks().limit));
        }
    }
}

fn aside(range: &Range<usize>) -> Range<usize> {
    range.start + ASIDE..range.end + ASIDE
}
