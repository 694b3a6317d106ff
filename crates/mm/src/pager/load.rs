//! In, from an object: a page, or what is stored of its window.

use crate::fault_queue::Fault;
use crate::kernel::{Damaged, Kernel, Moved, Store, WINDOW_PAGES};
use crate::pager::Pager;
use crate::pager::activate::refused;
use crate::pager::huge::HugeIn;
use crate::pager::serve::Outcome;
use crate::swap_map::{Entry, Kind};
use base::PageMask;
use core::sync::atomic::Ordering::Relaxed;
use vmscan::heat::Heat;
use vmscan::readahead::Extent;
use vmscan::returns::Return;
use vmscan::{PAGE, WINDOW};
use zswap::objects::{Object, READ_TRIES};

/// Where pages lie that were loaded, on their way to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Buffer {
    /// A slot of stock, which a window is moved out of.
    Slot(u32),
    /// Pages of stock from this page of the list on, which are moved.
    Pages(u32),
    /// The window that is not registered.
    Bounce,
}

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// Loads a page that a thread waits for, and as much of its window as is likely to be wanted.
    pub(super) fn load_asked(
        &mut self,
        fault: &Fault,
        entry: Entry,
        extent: Extent,
        is_first: bool,
        gate: bool,
    ) -> Outcome {
        let at = fault.at;
        if self.objects.take_ahead(entry.id()) {
            self.worth.add(self.objects.get(entry.id()).pages.into(), 0);
        }
        if self.objects.get(entry.id()).is_swapped() || self.ahead.slot_of(at).is_some() {
            return self.load(at, entry, extent, is_first);
        }
        if self.wants_huge_for(extent) {
            match self.load_huge(fault, gate) {
                HugeIn::Filled => return Outcome::Served,
                HugeIn::Wait => return Outcome::AwaitHuge,
                // Events may have been applied meanwhile.
                HugeIn::Not if self.map.get(at) != entry => return Outcome::Again,
                HugeIn::Not => {}
            }
        }
        let extent = match self.returns_of(at, extent) {
            Return::Whole => extent,
            Return::Alone => Extent::Page,
            Return::Tried => match self.try_window(at) {
                Some(outcome) => return outcome,
                None => extent,
            },
        };
        self.load(at, entry, extent, is_first)
    }

    /// Loads the page, or its window, from its object. What is tried again counts once.
    pub(super) fn load(&mut self, at: usize, entry: Entry, extent: Extent, is_first: bool) -> Outcome {
        if let Some(slot) = self.ahead.slot_of(at) {
            self.join_fetch(slot);
            if self.inactive.is_in_block(slot) && self.wants_huge_for(extent) {
                self.fetch_next_huge(at);
            }
            // It is there, and whoever waited has been woken; or not.
            let is_there = !self.map.get(at).kind().is_out();
            return if is_there { Outcome::Served } else { Outcome::Again };
        }
        if self.objects.get(entry.id()).is_swapped() {
            return self.read_back(at, entry, extent);
        }
        let is_alone = extent == Extent::Page;
        if is_first {
            self.swapin.load(self.objects.get(entry.id()), is_alone);
            if is_alone {
                self.objects.pick(entry.id());
            }
        }
        if is_alone
            && self.swapin.splits(self.objects.get(entry.id()))
            && let Some(slot) = self.slot_to_load()
            && let Some(outcome) = self.split(at, entry, slot)
        {
            return outcome;
        }
        let (mut to, mut pages) = if is_alone { (at, 1) } else { self.stored_around(at, extent) };
        let mut buffer = self.buffer(pages);
        if self.load_run(to, pages, self.buffer_at(buffer)).is_err() {
            // Damaged is what somebody asks for; the pages around it may be so as long as nobody does.
            if let Buffer::Slot(slot) = buffer {
                self.put_back(slot);
            }
            self.count_one_of(to, pages);
            (to, pages, buffer) = (at, 1, Buffer::Bounce);
            if let Err(damaged) = self.load_run(at, 1, self.buffer_at(buffer)) {
                return self.lose(at, entry, damaged);
            }
        }
        let (to, pages, moved) = self.move_in(at, to, pages, buffer);
        self.loaded(to, moved.bytes, None);
        let covered = (to..to + moved.bytes).contains(&at);
        if let (Extent::Stream { ahead }, true) = (extent, covered) {
            self.fetch_ahead(to + pages * PAGE, ahead);
        }
        self.landed(at, to, pages, moved, covered)
    }

    /// Loads what is stored around a page for which no thread waits. What is damaged is told at the fault that needs
    /// it.
    pub(super) fn load_unasked(&mut self, at: usize) {
        let (to, pages) = self.stored_around(at, Extent::Window);
        let buffer = self.buffer(pages);
        if self.load_run(to, pages, self.buffer_at(buffer)).is_err() {
            if let Buffer::Slot(slot) = buffer {
                self.put_back(slot);
            }
            return;
        }
        let (to, pages, moved) = self.move_in(at, to, pages, buffer);
        self.loaded(to, moved.bytes, None);
        self.landed(at, to, pages, moved, (to..to + moved.bytes).contains(&at));
    }

    /// How much of a page's window is to come, where it may.
    fn returns_of(&mut self, at: usize, extent: Extent) -> Return {
        // What relatives have too is put nowhere else.
        if extent != Extent::Window || self.cow.is_shared() {
            return Return::Whole;
        }
        if self.limit.evicts_all() { self.returns.take_turns() } else { self.returns.decide(at) }
    }

    /// Loads what is stored around a page: the page goes to the program, the rest waits on the inactive list, and has
    /// its objects as priors. `None` where nothing is beside it, a page is damaged, which need not be this one, or
    /// there is no room.
    fn try_window(&mut self, at: usize) -> Option<Outcome> {
        let (to, pages) = self.stored_around(at, Extent::Window);
        if pages == 1 {
            return None;
        }
        let slot = self.slot_to_load()?;
        let base = self.inactive.at(slot);
        let place = |page: usize| page / PAGE % WINDOW_PAGES;
        if self.load_run(to, pages, base + place(to) * PAGE).is_err() {
            self.put_back(slot);
            return None;
        }
        let landed = self.kernel.copy(at, base + place(at) * PAGE, PAGE);
        self.loaded(at, landed.bytes, None);
        self.inactive.hold(slot, false);
        let beside = PageMask::range(place(to)..place(to) + pages) - PageMask::page(place(at));
        self.stat.count_in(beside);
        for page in beside.iter().map(|index| (at & !(WINDOW - 1)) + index * PAGE) {
            let entry = self.map.get(page);
            self.inactive.put(slot, place(page), page, entry.with_kind(Kind::Clean));
            let id = slot * WINDOW_PAGES as u32 + place(page) as u32;
            self.map.set(page, Entry::new(Kind::Inactive, id, 0, Heat::COLD).evicted_with(entry));
            self.objects.clean(entry.id());
        }
        self.inactive.try_all(slot);
        Some(self.landed(at, at, 1, landed, landed.bytes > 0))
    }

    /// Where so many pages are loaded to: stock, which is moved in; a single page while one thread alone misses.
    fn buffer(&mut self, pages: usize) -> Buffer {
        let slot = (pages == WINDOW_PAGES).then(|| self.inactive.take_stock()).flatten();
        if let Some(slot) = slot {
            return Buffer::Slot(slot);
        }
        let is_moved = pages > 1 || self.swapin.is_alone();
        let row = is_moved.then(|| self.inactive.stock_pages(pages)).flatten();
        row.map_or(Buffer::Bounce, |(page, _)| Buffer::Pages(page))
    }

    fn buffer_at(&self, buffer: Buffer) -> usize {
        match buffer {
            Buffer::Slot(slot) => self.inactive.at(slot),
            Buffer::Pages(page) => self.inactive.page_at(page),
            Buffer::Bounce => self.swapin.bounce(),
        }
    }

    /// Moves or copies what was loaded to `to`, or the page at `at` alone: where to, how many pages, and what came
    /// of it.
    fn move_in(&mut self, at: usize, to: usize, pages: usize, buffer: Buffer) -> (usize, usize, Moved) {
        let from = self.buffer_at(buffer);
        let mut moved = if pages == 1 && !matches!(buffer, Buffer::Pages(_)) {
            self.kernel.copy(to, from, PAGE)
        } else {
            self.kernel.move_pages(to, from, pages * PAGE)
        };
        let (mut to, mut pages) = (to, pages);
        if refused(&moved) {
            // One page, since a copy does not stop at guards, nor at the end of a mapping.
            moved = self.kernel.copy(at, from + at - to, PAGE);
            self.count_one_of(to, pages);
            (to, pages) = (at, 1);
        } else {
            match buffer {
                Buffer::Slot(slot) => self.inactive.left(slot, PageMask::first(moved.bytes / PAGE)),
                Buffer::Pages(page) => self.inactive.left_from(page, moved.bytes / PAGE),
                Buffer::Bounce => {}
            }
        }
        if let Buffer::Slot(slot) = buffer {
            self.put_back(slot);
        }
        (to, pages, moved)
    }

    /// A run of pages was to come in, and one of them does.
    fn count_one_of(&self, to: usize, pages: usize) {
        if pages > 1 {
            let first = to / PAGE % WINDOW_PAGES;
            self.stat.count_one_of(PageMask::range(first..first + pages));
        }
    }

    /// Loads all of an object whose pages are asked for one by one: this page goes to the program, the others to
    /// the inactive list, from where they go out again, each on its own. `None` where a page of it is damaged,
    /// which need not be this one.
    fn split(&mut self, at: usize, entry: Entry, slot: u32) -> Option<Outcome> {
        let (id, to) = (entry.id(), self.inactive.at(slot));
        let object = *self.objects.get(id);
        if self.objects.store_mut().load(object.body, 0, object.pages.into(), to).is_err() {
            self.put_back(slot);
            return None;
        }
        let landed = self.kernel.copy(at, to + entry.offset() * PAGE, PAGE);
        self.loaded(at, landed.bytes, None);
        self.inactive.hold(slot, true);
        self.scatter(at & !(WINDOW - 1), id, slot);
        Some(self.landed(at, at, 1, landed, landed.bytes > 0))
    }

    /// Those pages of a window that an object holds, and that are not elsewhere by now, are on a slot of the
    /// inactive list.
    fn scatter(&mut self, window: usize, id: u32, slot: u32) {
        // Named while it is asked for, so that it is not freed meanwhile.
        self.objects.retain(id, false);
        for page in (window..window + WINDOW).step_by(PAGE) {
            let entry = self.map.get(page);
            if entry.kind() == Kind::Stored && entry.id() == id {
                self.deactivate(page, slot, entry.offset());
                self.stat.parted.fetch_add(1, Relaxed);
            }
        }
        self.objects.give_up(id);
        self.objects.release(id, false);
        if self.inactive.slot(slot).owned.is_empty() {
            self.discard_slot(slot);
        }
    }

    /// A page that was `Stored` is on a slot of the inactive list now, and does not depend on its object any more.
    pub(super) fn deactivate(&mut self, page: usize, slot: u32, place: usize) {
        let entry = self.map.get(page);
        self.inactive.put(slot, place, page, Entry::NONE);
        let id = slot * WINDOW_PAGES as u32 + place as u32;
        self.map.set(page, Entry::new(Kind::Inactive, id, 0, Heat::COLD).evicted_with(entry));
        self.objects.release(entry.id(), true);
    }

    /// Pages that were `Stored` are in the program now, and their object is a clean copy. Without a heat each has
    /// that of its own refault.
    pub(super) fn loaded(&mut self, to: usize, bytes: usize, heat: Option<Heat>) {
        // Where everything goes out all the time it is wanted again at once.
        let is_resident = !self.limit.evicts_all();
        for page in (to..to + bytes).step_by(PAGE) {
            let entry = self.map.get(page);
            debug_assert_eq!(entry.kind(), Kind::Stored);
            let heat = heat.unwrap_or_else(|| self.refault(entry, 1));
            if !(is_resident && self.objects.leave_to_area(entry.id())) {
                let object = self.objects.get(entry.id());
                if object.pages == 1 && !object.is_shared() {
                    self.objects.release(entry.id(), true);
                    self.map.set(page, Entry::NONE.with_heat(heat));
                    continue;
                }
                self.objects.clean(entry.id());
            }
            self.map.set(page, entry.with_kind(Kind::Clean).with_heat(heat));
        }
        if bytes > 0 {
            let first = to / PAGE % WINDOW_PAGES;
            self.stat.count_in(PageMask::range(first..first + bytes / PAGE));
            self.limit.charge(bytes);
        }
    }

    /// The run of stored pages around `at`, within its window, whatever objects of the pool they are in: address and
    /// count. Not those that were read ahead and may have been so in vain: nobody would hear of it.
    fn stored_around(&self, at: usize, extent: Extent) -> (usize, usize) {
        let window = at & !(WINDOW - 1);
        let is_sure = self.worth.is_sure() || extent != Extent::Window;
        let is_stored = |page: &usize| {
            let entry = self.map.get(*page);
            let may_come = |object: &Object| is_sure || *page == at || !object.is_ahead();
            let is_here = |object: &Object| !object.is_swapped() && may_come(object);
            entry.kind() == Kind::Stored && is_here(self.objects.get(entry.id()))
        };
        let start = (window..at).step_by(PAGE).rev().take_while(is_stored).last().unwrap_or(at);
        let end = (at..window + WINDOW).step_by(PAGE).take_while(is_stored).count() * PAGE + at;
        (start, (end - start) / PAGE)
    }

    /// Loads a run of stored pages to engine memory at `buffer`, object by object.
    pub(super) fn load_run(&mut self, from: usize, pages: usize, buffer: usize) -> Result<(), Damaged> {
        let (mut at, end) = (from, from + pages * PAGE);
        while at < end {
            let entry = self.map.get(at);
            let mut same = 1;
            while at + same * PAGE < end && {
                let next = self.map.get(at + same * PAGE);
                next.id() == entry.id() && next.offset() == entry.offset() + same
            } {
                same += 1;
            }
            let body = self.objects.get(entry.id()).body;
            self.objects.store_mut().load(body, entry.offset(), same, buffer + at - from)?;
            at += same * PAGE;
        }
        Ok(())
    }

    /// An object cannot be restored: the program is told, never given anything else.
    pub(super) fn lose(&mut self, at: usize, entry: Entry, damaged: Damaged) -> Outcome {
        let object = self.objects.get(entry.id());
        let (age_ms, page) = (object.age_ms(self.kernel.now_ms()), entry.offset());
        let bytes = object.body.bytes();
        let lost = match self.objects.where_in_area(entry.id()) {
            Some((area, offset, bytes)) => self.kernel.lose(
                at,
                format_args!(
                    "the page at {at:#x} cannot be restored: {damaged}, after {READ_TRIES} tries (page {page} of {bytes} bytes \
                     in area {} of --backing, at byte {offset}, stored {age_ms} ms ago)",
                    area + 1,
                ),
            ),
            None => self.kernel.lose(
                at,
                format_args!(
                    "the page at {at:#x} cannot be restored: {damaged} (page {page} of an object of {bytes} bytes, \
                     stored {age_ms} ms ago)",
                ),
            ),
        };
        if !lost {
            return Outcome::Again;
        }
        let is_in_pool = !self.objects.get(entry.id()).is_swapped();
        self.stat.decompress_fail.fetch_add(is_in_pool as u64, Relaxed);
        self.map.set(at, Entry::NONE);
        self.drop_entry(entry);
        Outcome::Served
    }
}
