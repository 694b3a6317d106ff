//! In, out of nothing: fresh memory, and pages of zeros.

use crate::fault_queue::Fault;
use crate::kernel::{Errno, Kernel, Moved, Store};
use crate::pager::Pager;
use crate::pager::huge::HugeIn;
use crate::pager::serve::Outcome;
use crate::swap_map::{Entry, Kind};
use base::PageMask;
use vmscan::readahead::Extent;
use vmscan::{PAGE, WINDOW};

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// Fresh memory, or a page of zeros: with room for it, and with the pages after it where a stream goes on.
    pub(super) fn fill(&mut self, fault: Fault, entry: Entry, extent: Extent, gate: bool) -> Outcome {
        if gate {
            let usage = self.usage();
            // For a window at a time a stream would be woken more often than it is worth.
            let streams = matches!(extent, Extent::Stream { ahead: 1.. });
            if self.marks().gated(&usage) || streams && !self.marks().relieved(&usage) {
                return Outcome::Wait;
            }
        }
        // Outside of what is known to be registered: a mapping that mremap has grown, or one that has taken
        // another's place.
        if !self.regions.registered().contains(fault.at) && !self.kernel.is_ours(fault.at) {
            self.kernel.wake(fault.at..fault.at + PAGE);
            return Outcome::Served;
        }
        if entry.kind() == Kind::Clean {
            // Gone without an event (a guard was there): what it held is gone with it.
            self.map.set(fault.at, Entry::NONE);
            self.drop_entry(entry);
        }
        let end = self.end_of_fill(fault.at, extent);
        if fault.write {
            match self.fill_huge(&fault, end, gate) {
                HugeIn::Filled => return Outcome::Served,
                HugeIn::Wait => return Outcome::AwaitHuge,
                HugeIn::Not => {}
            }
        }
        if fault.write { self.fill_to_write(fault.at, end) } else { self.fill_to_read(fault.at, end) }
    }

    /// Up to where it is filled for a fault at `at`: as far as is wanted, in the same region, and no further than
    /// nothing but zeros is known of.
    fn end_of_fill(&self, at: usize, extent: Extent) -> usize {
        let window_end = (at & !(WINDOW - 1)) + WINDOW;
        let end = match extent {
            Extent::Page => at + PAGE,
            Extent::Window => window_end,
            Extent::Stream { ahead } => window_end + ahead,
        };
        let region_end = self.regions.registered().find(at).map_or(at + PAGE, |region| region.end);
        let end = end.min(region_end).max(at + PAGE);
        // Memory that was filled at once and never written to (MAP_POPULATE) has gone out as pages of zeros.
        let mut known = at + PAGE;
        while let Some((used, entry)) = self.map.next_used(known, end) {
            if entry.kind() != Kind::Zero {
                return used;
            }
            known = used + PAGE;
        }
        end
    }

    /// A thread reads: the shared zero page is enough.
    fn fill_to_read(&mut self, at: usize, end: usize) -> Outcome {
        let mut moved = self.kernel.zero(at, (end - at).min(WINDOW));
        if moved.stop == Some(Errno::ENOENT) {
            // Part of it is another mapping by now.
            moved = self.kernel.zero(at, PAGE);
        }
        self.filled(at, moved, 0)
    }

    /// A thread writes at `from`: pages of its own, as far as there is room. What became of the first is the outcome.
    fn fill_to_write(&mut self, from: usize, end: usize) -> Outcome {
        let (mut at, mut outcome) = (from, Outcome::Served);
        while at < end {
            let is_first = at == from;
            let Some((bytes, stock)) = self.room_to_fill(at, end, is_first) else { break };
            let moved = self.bring_zeros(at, bytes, stock, is_first);
            let new_bytes = if stock.is_some() { 0 } else { moved.bytes };
            let filled = self.filled(at, moved, new_bytes);
            if is_first {
                outcome = filled;
            }
            if moved.bytes < bytes {
                break;
            }
            at += bytes;
        }
        outcome
    }

    /// How much is filled at a time, with a slot of stock if there is one for it. The page that somebody waits for
    /// comes in any case.
    fn room_to_fill(&mut self, at: usize, end: usize, is_first: bool) -> Option<(usize, Option<u32>)> {
        let mut bytes = (WINDOW - at % WINDOW).min(end - at);
        let stock = if bytes == WINDOW { self.inactive.take_stock() } else { None };
        if stock.is_none() {
            // Each move costs something by itself, and interrupts whatever threads of the program run.
            if self.inactive.has_no_stock_slot() {
                if self.limit.footprint() >= self.marks().high {
                    self.drop_huge_stock();
                }
                bytes = (end - at).min(self.fresh.zeros().1);
            }
            let room = self.marks().high.saturating_sub(self.limit.footprint()) & !(PAGE - 1);
            if room == 0 && !is_first {
                return None;
            }
            bytes = bytes.min(room).max(PAGE);
        }
        Some((bytes, stock))
    }

    /// Moved, or filled with the zero page (the write makes it a page of its own): both stop at guards and at lost
    /// pages, where a copy would take their place.
    pub(super) fn bring_zeros(
        &mut self,
        at: usize,
        bytes: usize,
        stock: Option<u32>,
        is_first: bool,
    ) -> Moved {
        let zeros = self.fresh.zeros().0;
        let moved = match stock {
            Some(slot) => {
                let from = self.inactive.at(slot);
                self.kernel.clear(from, WINDOW);
                let moved = self.kernel.move_pages(at, from, WINDOW);
                self.inactive.left(slot, PageMask::first(moved.bytes / PAGE));
                self.put_back(slot);
                moved
            }
            // Nothing is ever written there: what an earlier move left is zeros.
            None if (bytes > PAGE || !is_first) && self.kernel.populate(zeros, bytes) => {
                self.kernel.move_pages(at, zeros, bytes)
            }
            None => self.kernel.zero(at, PAGE),
        };
        if self.kernel.tells_touches() && moved.bytes > PAGE {
            // What was moved is watched, and about to be written to: each page would be a fault once more.
            let _ = self.kernel.lift_protection(at..at + moved.bytes);
        }
        if is_first && moved.stop == Some(Errno::EINVAL) {
            // Part of it is another mapping by now, or one that nothing can be moved to: the page alone.
            return self.kernel.zero(at, PAGE);
        }
        moved
    }

    /// So much was filled at `at`, for which so many bytes are new.
    pub(super) fn filled(&mut self, at: usize, moved: Moved, new_bytes: usize) -> Outcome {
        self.limit.charge(new_bytes);
        for page in (at..at + moved.bytes).step_by(PAGE) {
            let entry = self.map.get(page);
            if entry != Entry::NONE {
                self.came_home(entry);
                self.map.set(page, Entry::NONE);
            }
        }
        match moved.stop {
            Some(Errno::EEXIST) if moved.bytes == 0 => {
                self.kernel.wake(at..at + PAGE);
                Outcome::Served
            }
            _ => self.landed(at, at, moved.bytes / PAGE, moved, moved.bytes > 0),
        }
    }
}
