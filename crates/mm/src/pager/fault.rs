//! In: what a thread waits for is brought, from the stage, from an object, or out of nothing.
//!
//! Restoring is safe because
//! 1. a page is put only where the kernel says there is a hole (EEXIST otherwise), and in a mapping registered with us;
//! 2. the index is asked again after every EAGAIN, since the events that caused it may have changed the answer;
//! 3. the bytes are checked against the hash that was taken when they went out, before they are mapped.

use crate::fault_queue::Fault;
use crate::index::{Entry, Kind};
use crate::kernel::{Body, Damaged, Errno, Filled, Kernel, Moved, Store, WINDOW_PAGES};
use crate::pager::{Pager, bits, stage_page};
use crate::stage::Use;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use vmscan::heat::Heat;
use vmscan::readahead::Extent;
use vmscan::{PAGE, WINDOW};

/// After this many fruitless pauses for one fault, some ms, the pager looks whether it can be served at all: what is done then is harmless where
/// somebody was only slow.
const STUCK: usize = 50;

/// What has become of an attempt to bring a page.
enum Outcome {
    /// The thread goes on.
    Served,
    /// Events are to be read first; then look again.
    Again,
    /// There is no room for fresh memory.
    Wait,
}

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// Serves a fault, or puts it among those that wait for room.
    pub(crate) fn serve(&mut self, fault: Fault) {
        if !self.try_serve(fault, !self.paused) {
            self.faults.wait(fault);
        }
    }

    /// Serves a fault, room or not.
    pub(crate) fn serve_now(&mut self, fault: Fault) {
        self.try_serve(fault, false);
    }

    fn try_serve(&mut self, fault: Fault, gate: bool) -> bool {
        if fault.protected {
            return self.try_unprotect(fault, gate);
        }
        let (began, mut pauses) = (self.index.get(fault.at).kind(), 0);
        let extent = self.readahead.fault(fault.at);
        if self.shares && began == Kind::Stored && !fault.write && self.is_common(fault.at) {
            self.stat.common_read.fetch_add(1, Relaxed);
        }
        loop {
            let entry = self.index.get(fault.at);
            let outcome = match entry.kind() {
                Kind::Staged => self.activate(fault.at, entry, extent),
                Kind::Stored => self.load(fault.at, entry, extent, pauses == 0),
                Kind::Zero | Kind::None | Kind::Clean => self.fill(fault, entry, extent, gate),
            };
            match outcome {
                Outcome::Served => break,
                Outcome::Wait => return false,
                Outcome::Again => {
                    self.wait_for_events(&mut pauses);
                    if pauses % STUCK == 0 && self.fill_grown(fault.at) {
                        break;
                    }
                }
            }
        }
        self.rest.end();
        let waited = self.kernel.now_ns().saturating_sub(fault.since_ns);
        self.stat.stall_ns.fetch_add(waited, Relaxed);
        if matches!(began, Kind::Staged | Kind::Stored | Kind::Zero) {
            self.stat.faults.fetch_add(1, Relaxed);
            self.stat.fault_ns.record(waited);
        } else {
            self.stat.fresh_faults.fetch_add(1, Relaxed);
        }
        true
    }

    /// Reads events, and lets those who cause them run. After a while somebody may be stuck, and in the queue.
    pub(crate) fn wait_for_events(&mut self, pauses: &mut usize) {
        self.settle();
        self.let_run(pauses);
    }

    /// Lets those run who cause events, without reading any.
    pub(crate) fn let_run(&mut self, pauses: &mut usize) {
        self.kernel.pause();
        *pauses += 1;
        if pauses.is_multiple_of(STUCK) {
            let queued: Vec<usize> = self.faults.pages().collect();
            for at in queued {
                self.fill_grown(at);
            }
        }
    }

    /// mremap that grows a locked mapping fills the new part before it sends its event, and nothing can be installed before the event is
    /// read: who waits there would wait for ever. So mremap is let fill it as memory that is not registered. This is safe because
    /// 1. nothing is known of that part, so that it is zeros: what may come there by an event that is not read yet is in the old part, and that is there, since
    ///    the mapping is locked;
    /// 2. while it is not registered mremap has not returned, so that nobody can ask for the mapping as a whole, of which it is a part again
    ///    before its event is read (`Filled::Whole`). Left unregistered it would stay a mapping of its own, and the next mremap would say EFAULT.
    fn fill_grown(&mut self, at: usize) -> bool {
        if self.index.get(at).kind() != Kind::None {
            return false;
        }
        let end = at + (1 << 30);
        let end = self.index.next_used(at, end).map_or(end, |(used, _)| used).max(at + PAGE);
        match self.kernel.fill_locked(at..end) {
            Filled::No => return false,
            Filled::Whole => {}
            Filled::Left(range) => self.regions.unregister(&range),
        }
        self.kernel.wake(at..end);
        true
    }

    /// Brings one page home whatever it takes: before a fork, or because the kernel needs it there.
    pub(crate) fn bring_home(&mut self, at: usize, entry: Entry) {
        self.bring_contents(at, entry);
        // It is in place, or will be a hole of an unregistered range, which is zeros by itself.
        let entry = self.index.set(at, Entry::NONE);
        self.drop_entry(entry);
    }

    /// Brings what a page holds home whatever it takes. A page of zeros, which the compressors may have found it to be
    /// meanwhile, stays out.
    pub(crate) fn bring_contents(&mut self, at: usize, entry: Entry) {
        let (mut entry, mut pauses) = (entry, 0);
        loop {
            let outcome = match entry.kind() {
                Kind::Staged => self.activate(at, entry, Extent::Window),
                Kind::Stored => self.load(at, entry, Extent::Window, pauses == 0),
                Kind::None | Kind::Clean | Kind::Zero => return,
            };
            if let Outcome::Again = outcome {
                self.wait_for_events(&mut pauses);
            }
            entry = self.index.get(at);
        }
    }

    /// A second-chance hit: the page, or all of its slot that belongs with it, goes back as it is.
    fn activate(&mut self, at: usize, entry: Entry, extent: Extent) -> Outcome {
        let (slot, page) = stage_page(entry);
        if self.stage.slot(slot).used == Use::InFlight {
            self.recall(slot);
            // Either it is inactive again, or it is stored: look again.
            if self.index.get(at) != entry || self.stage.slot(slot).used == Use::InFlight {
                return Outcome::Again;
            }
        }
        let s = self.stage.slot(slot);
        let follows = |p: usize| s.staged & 1 << p != 0 && s.owner[p] == at + p * PAGE - page * PAGE;
        let (mut first, mut last) = (page, page);
        if extent != Extent::Page {
            while first > 0 && at >= (page - first + 1) * PAGE && follows(first - 1) {
                first -= 1;
            }
            while last + 1 < WINDOW_PAGES && follows(last + 1) {
                last += 1;
            }
        }
        let (to, from) = (at - (page - first) * PAGE, self.stage.at(slot) + first * PAGE);
        let mut pages = last - first + 1;
        // A move interrupts every CPU where the program runs; a copy of one page costs less, and what stays behind goes with its slot.
        let mut gone = pages > 1;
        let mut moved = if gone {
            self.kernel.move_pages(to, from, pages * PAGE)
        } else {
            self.kernel.copy(at, from, PAGE)
        };
        if !gone && moved.stop == Some(Errno::EAGAIN) {
            // Copies stand still while somebody makes guards, who may be the one that waits here; a move stops at guards by itself.
            gone = true;
            moved = self.kernel.move_pages(to, from, PAGE);
        }
        if gone && moved.bytes == 0 && moved.stop == Some(Errno::ENOENT) && self.kernel.is_hole(from) {
            return self.vanished(to, slot, first);
        }
        if gone && refused(&moved) {
            // Read-only by now, or a page cannot be moved: copies are let in everywhere.
            (gone, pages, first) = (false, 1, page);
            moved = self.kernel.copy(at, self.stage.at(slot) + page * PAGE, PAGE);
        }
        if !gone {
            self.limit.charge(moved.bytes);
        }
        let done = moved.bytes / PAGE;
        for p in first..first + done {
            let owner = self.stage.slot(slot).owner[p];
            let heat = self.index.get(owner).heat().touched();
            let prior = self.stage.take(slot, p, gone);
            // A page that nobody may write yet may be written later all the same: a prior is only a guess, checked by hash.
            self.index.set(owner, prior.with_heat(heat));
        }
        self.stat.pgactivate.fetch_add(done as u64, Relaxed);
        let s = self.stage.slot(slot);
        if s.staged == 0 && s.used == Use::Inactive {
            self.discard_slot(slot);
        }
        let covered = at < to + moved.bytes && at >= to;
        self.landed(at, if gone { to } else { at }, pages, moved, covered)
    }

    /// Tries to bring a page home that is on the stage, and with it what belongs with it in its slot.
    pub(crate) fn activate_window(&mut self, at: usize, entry: Entry) {
        self.activate(at, entry, Extent::Window);
    }

    /// A page was given up by MADV_FREE before it came to the stage, and the kernel has taken it back: zeros from now on.
    fn vanished(&mut self, owner: usize, slot: u32, page: usize) -> Outcome {
        let prior = self.stage.take(slot, page, true);
        self.drop_entry(prior);
        self.index.set(owner, Entry::NONE);
        let s = self.stage.slot(slot);
        if s.staged == 0 && s.used == Use::Inactive {
            self.discard_slot(slot);
        }
        Outcome::Again
    }

    /// Takes a slot back from the compressors, or waits for their result.
    fn recall(&mut self, slot: u32) {
        if self.store.withdraw(slot) {
            self.job_over(slot);
            self.stage.recall(slot);
            return;
        }
        while self.stage.slot(slot).used == Use::InFlight {
            self.await_workers();
        }
    }

    /// Applies a result, or lets those run who come to one: a worker may wait for a call of the program's to end.
    pub(crate) fn await_workers(&mut self) {
        if let Some(done) = self.next_done() {
            self.apply_done(done);
            return;
        }
        self.settle();
        self.kernel.pause();
    }

    /// What a move or copy into the program means for the thread that waits at `at`.
    fn landed(&mut self, at: usize, to: usize, pages: usize, moved: Moved, covered: bool) -> Outcome {
        self.note_own(to..to + moved.bytes);
        match moved.stop {
            None => Outcome::Served,
            _ if covered => Outcome::Served,
            Some(Errno::EAGAIN) => Outcome::Again,
            // It is there: somebody was faster. What the page tables say counts.
            Some(Errno::EEXIST) if moved.bytes == 0 && to == at => {
                let entry = self.index.set(at, Entry::NONE);
                self.drop_entry(entry);
                self.kernel.wake(at..at + PAGE);
                Outcome::Served
            }
            // Somewhere before `at` a page was in the way: the thread faults again if it must.
            Some(Errno::EEXIST) => {
                let entry = self.index.set(to + moved.bytes, Entry::NONE);
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

    /// Loads the page, or its window, from its object. What is tried again counts once.
    fn load(&mut self, at: usize, entry: Entry, extent: Extent, is_first: bool) -> Outcome {
        if let Some(slot) = self.fetch_of(at) {
            self.join_fetch(slot);
            if self.index.get(at).kind() == Kind::Clean {
                // It is there, and whoever waited has been woken.
                return Outcome::Served;
            }
            return Outcome::Again;
        }
        let (is_alone, is_single) = (extent == Extent::Page, self.objects.get(entry.id()).pages == 1);
        if is_first {
            self.splitting.load(is_alone && is_single);
            if is_alone {
                self.objects.pick(entry.id());
            }
        }
        if is_alone
            && !is_single
            && !self.objects.get(entry.id()).is_shared()
            && self.objects.get(entry.id()).picked > self.splitting.picks()
            && let Some(slot) = self.slot_to_load()
            && let Some(outcome) = self.split(at, entry, slot)
        {
            return outcome;
        }
        let (mut to, mut pages) = match extent {
            Extent::Page => (at, 1),
            Extent::Window | Extent::Stream { .. } => self.stored_around(at),
        };
        let mut stock = (pages as usize == WINDOW_PAGES).then(|| self.stage.take_stock()).flatten();
        let mut single =
            (pages == 1 && self.alone).then(|| self.stage.stock_pages()).flatten().map(|(page, _)| page);
        let mut buffer = match (stock, single) {
            (Some(slot), _) => self.stage.at(slot),
            (None, Some(page)) => self.stage.page_at(page),
            (None, None) => self.config.nursery,
        };
        if self.load_run(to, pages, buffer).is_err() {
            // Damaged is what somebody asks for; the pages around it may be so as long as nobody does.
            if let Some(slot) = stock.take() {
                self.put_back(slot);
            }
            (to, pages, buffer, single) = (at, 1, self.config.nursery, None);
            if let Err(damaged) = self.load_run(at, 1, buffer) {
                return self.lose(at, entry, damaged);
            }
        }
        let mut moved = if pages == 1 && single.is_none() {
            self.kernel.copy(to, buffer, PAGE)
        } else {
            self.kernel.move_pages(to, buffer, pages as usize * PAGE)
        };
        if moved.bytes == 0
            && !matches!(moved.stop, None | Some(Errno::EAGAIN | Errno::EEXIST | Errno::ENOENT))
        {
            // One page, since a copy does not stop at guards, nor at the end of a mapping.
            moved = self.kernel.copy(at, buffer + at - to, PAGE);
            (to, pages) = (at, 1);
        } else if let Some(slot) = stock {
            self.stage.left(slot, bits(0, moved.bytes / PAGE));
        } else if let Some(page) = single.filter(|_| moved.bytes > 0) {
            self.stage.left(page / WINDOW_PAGES as u32, bits(page as usize % WINDOW_PAGES, 1));
        }
        if let Some(slot) = stock {
            self.put_back(slot);
        }
        self.loaded(to, moved.bytes, None);
        let covered = (to..to + moved.bytes).contains(&at);
        if let (Extent::Stream { ahead }, true) = (extent, covered) {
            self.fetch_ahead(to + pages as usize * PAGE, ahead);
        }
        self.landed(at, to, pages as usize, moved, covered)
    }

    /// Loads all of an object whose pages are asked for one by one: this page goes to the program, the others to the stage, from where
    /// they go out again, each on its own.
    /// `None` where a page of it is damaged, which need not be this one.
    fn split(&mut self, at: usize, entry: Entry, slot: u32) -> Option<Outcome> {
        let (id, to) = (entry.id(), self.stage.at(slot));
        let object = *self.objects.get(id);
        if self.store.load(object.body, 0, object.pages as u16, to).is_err() {
            self.put_back(slot);
            return None;
        }
        let landed = self.kernel.copy(at, to + entry.offset() as usize * PAGE, PAGE);
        self.loaded(at, landed.bytes, None);
        self.stage.hold(slot, true);
        self.scatter(at & !(WINDOW - 1), id, slot);
        Some(self.landed(at, at, 1, landed, landed.bytes > 0))
    }

    /// Those pages of a window that an object holds, and that are not elsewhere by now, are on a slot of the stage.
    fn scatter(&mut self, window: usize, id: u32, slot: u32) {
        // Named while it is asked for, so that it is not freed meanwhile.
        self.objects.retain(id, false);
        for page in (window..window + WINDOW).step_by(PAGE) {
            let entry = self.index.get(page);
            if entry.kind() == Kind::Stored && entry.id() == id {
                self.restage(page, slot, entry.offset() as usize);
            }
        }
        self.objects.give_up(id, &mut self.store);
        self.objects.release(id, false, &mut self.store);
        if self.stage.slot(slot).staged == 0 {
            self.discard_slot(slot);
        }
    }

    /// A page that was `Stored` is on a slot of the stage now, and does not depend on its object any more.
    pub(crate) fn restage(&mut self, page: usize, slot: u32, place: usize) {
        let entry = self.index.get(page);
        self.stage.put(slot, place, page, Entry::NONE);
        let staged = slot * WINDOW_PAGES as u32 + place as u32;
        self.index.set(page, Entry::new(Kind::Staged, staged, 0, Heat::COLD).evicted_with(entry));
        self.objects.release(entry.id(), true, &mut self.store);
    }

    /// Pages that were `Stored` are in the program now, and their object is a clean copy. Without a heat each has that of its own refault.
    pub(crate) fn loaded(&mut self, to: usize, bytes: usize, heat: Option<Heat>) {
        for page in (to..to + bytes).step_by(PAGE) {
            let entry = self.index.get(page);
            debug_assert_eq!(entry.kind(), Kind::Stored);
            let heat = heat.unwrap_or_else(|| self.refault(entry, 1));
            let object = self.objects.get(entry.id());
            if object.pages == 1 && !object.is_shared() {
                self.objects.release(entry.id(), true, &mut self.store);
                self.index.set(page, Entry::NONE.with_heat(heat));
                continue;
            }
            self.objects.clean(entry.id());
            self.index.set(page, entry.with_kind(Kind::Clean).with_heat(heat));
        }
        if bytes > 0 {
            self.stat.count_in(bits(to / PAGE % WINDOW_PAGES, bytes / PAGE));
            self.limit.charge(bytes);
        }
    }

    /// The run of stored pages around `at`, within its window, whatever objects they are in: address and count.
    fn stored_around(&self, at: usize) -> (usize, u16) {
        let window = at & !(WINDOW - 1);
        let is_stored = |page: &usize| self.index.get(*page).kind() == Kind::Stored;
        let start = (window..at).step_by(PAGE).rev().take_while(is_stored).last().unwrap_or(at);
        let end = (at..window + WINDOW).step_by(PAGE).take_while(is_stored).count() * PAGE + at;
        (start, ((end - start) / PAGE) as u16)
    }

    /// Loads a run of stored pages to engine memory at `buffer`, object by object.
    pub(crate) fn load_run(&mut self, from: usize, pages: u16, buffer: usize) -> Result<(), Damaged> {
        let (mut at, end) = (from, from + pages as usize * PAGE);
        while at < end {
            let entry = self.index.get(at);
            let mut same = 1;
            while at + same as usize * PAGE < end && {
                let next = self.index.get(at + same as usize * PAGE);
                next.id() == entry.id() && next.offset() == entry.offset() + same
            } {
                same += 1;
            }
            let body = self.objects.get(entry.id()).body;
            self.store.load(body, entry.offset(), same, buffer + at - from)?;
            at += same as usize * PAGE;
        }
        Ok(())
    }

    /// An object cannot be restored: the program is told, never given anything else.
    fn lose(&mut self, at: usize, entry: Entry, damaged: Damaged) -> Outcome {
        let object = self.objects.get(entry.id());
        let age_ms = object.age_ms(self.kernel.now_ms());
        let bytes = match object.body {
            Body::Blob { bytes, .. } => bytes,
            _ => 0,
        };
        let lost = self.kernel.lose(
            at,
            format_args!(
                "the page at {at:#x} cannot be restored: {damaged} (page {} of an object of {bytes} bytes, stored {age_ms} ms ago)",
                entry.offset(),
            ),
        );
        if !lost {
            return Outcome::Again;
        }
        self.index.set(at, Entry::NONE);
        self.drop_entry(entry);
        Outcome::Served
    }

    /// Fresh memory, or a page of zeros: with room for it, and with the pages after it where a stream goes on.
    fn fill(&mut self, fault: Fault, entry: Entry, extent: Extent, gate: bool) -> Outcome {
        if gate {
            let usage = self.usage();
            // For a window at a time a stream would be woken more often than it is worth.
            let streams = matches!(extent, Extent::Stream { .. });
            if self.limit.marks().gated(&usage) || streams && !self.limit.marks().relieved(&usage) {
                return Outcome::Wait;
            }
        }
        // Outside of what is known to be registered: a mapping that mremap has grown, or one that has taken another's place.
        if !self.regions.registered().contains(fault.at) && !self.kernel.is_ours(fault.at) {
            self.kernel.wake(fault.at..fault.at + PAGE);
            return Outcome::Served;
        }
        if entry.kind() == Kind::Clean {
            // Gone without an event (a guard was there): what it held is gone with it.
            self.index.set(fault.at, Entry::NONE);
            self.drop_entry(entry);
        }
        let end = match extent {
            Extent::Page => fault.at + PAGE,
            Extent::Window => (fault.at & !(WINDOW - 1)) + WINDOW,
            Extent::Stream { ahead } => (fault.at & !(WINDOW - 1)) + WINDOW + ahead,
        };
        let region = self.regions.registered().find(fault.at).map_or(fault.at + PAGE, |r| r.end);
        let end = end.min(region).max(fault.at + PAGE);
        let end = self.end_of_zeros(fault.at + PAGE, end);
        if !fault.write {
            let mut moved = self.kernel.zero(fault.at, (end - fault.at).min(WINDOW));
            if moved.stop == Some(Errno::ENOENT) {
                // Part of it is another mapping by now.
                moved = self.kernel.zero(fault.at, PAGE);
            }
            return self.filled(fault.at, fault.at, moved, 0);
        }
        let mut at = fault.at;
        let mut outcome = Outcome::Served;
        let (fresh, fresh_bytes) = self.config.fresh;
        while at < end {
            let mut bytes = (WINDOW - at % WINDOW).min(end - at);
            let stock = if bytes == WINDOW { self.stage.take_stock() } else { None };
            if stock.is_none() {
                // Each move costs something by itself, and interrupts whatever threads of the program run.
                if self.stage.stock_bytes() == 0 {
                    bytes = (end - at).min(fresh_bytes);
                }
                let room = self.limit.marks().high.saturating_sub(self.limit.footprint()) & !(PAGE - 1);
                if room == 0 && at > fault.at {
                    break;
                }
                bytes = bytes.min(room).max(PAGE);
            }
            // Moved, or filled with the zero page (the write makes it a page of its own): both stop at guards and at lost pages, where a
            // copy would take their place.
            let mut moved = match stock {
                Some(slot) => {
                    let from = self.stage.at(slot);
                    self.kernel.clear(from, WINDOW);
                    let moved = self.kernel.move_pages(at, from, WINDOW);
                    self.stage.left(slot, bits(0, moved.bytes / PAGE));
                    self.put_back(slot);
                    moved
                }
                // Nothing is ever written there: what an earlier move left is zeros.
                None if (bytes > PAGE || at > fault.at) && self.kernel.populate(fresh, bytes) => {
                    self.kernel.move_pages(at, fresh, bytes)
                }
                None => self.kernel.zero(at, PAGE),
            };
            if at == fault.at && moved.stop == Some(Errno::EINVAL) {
                // Part of it is another mapping by now, or one that nothing can be moved to: the page alone.
                moved = self.kernel.zero(at, PAGE);
            }
            let short = moved.bytes < bytes;
            let new = if stock.is_some() { 0 } else { moved.bytes };
            if at == fault.at {
                outcome = self.filled(at, at, moved, new);
            } else {
                self.filled(at, at, moved, new);
            }
            if short {
                break;
            }
            at += bytes;
        }
        outcome
    }

    /// Up to which address, `end` at most, nothing but zeros is known of: memory that was filled at once and never
    /// written to (MAP_POPULATE) has gone out as pages of zeros.
    fn end_of_zeros(&self, from: usize, end: usize) -> usize {
        let mut at = from;
        while let Some((used, entry)) = self.index.next_used(at, end) {
            if entry.kind() != Kind::Zero {
                return used;
            }
            at = used + PAGE;
        }
        end
    }

    fn filled(&mut self, at: usize, to: usize, moved: Moved, new_bytes: usize) -> Outcome {
        self.limit.charge(new_bytes);
        for page in (to..to + moved.bytes).step_by(PAGE) {
            let entry = self.index.get(page);
            if entry != Entry::NONE {
                self.drop_entry(entry);
                self.index.set(page, Entry::NONE);
            }
        }
        match moved.stop {
            Some(Errno::EEXIST) if moved.bytes == 0 => {
                self.kernel.wake(at..at + PAGE);
                Outcome::Served
            }
            _ => self.landed(at, to, moved.bytes / PAGE, moved, moved.bytes > 0),
        }
    }
}

/// True when a page cannot be moved to where it belongs, but may be copied: another protection by now, or locked.
fn refused(moved: &Moved) -> bool {
    moved.bytes == 0 && !matches!(moved.stop, None | Some(Errno::EAGAIN | Errno::EEXIST | Errno::ENOENT))
}
