//! The simulated kernel, as the pager calls it.

use super::admission::stopped;
use super::huge::HUGE;
use super::memory::{Marker, Page, Vma};
use super::store::WORKERS;
use super::{Shared, TICKS_PER_MS, World};
use crate::kernel::{Birthmarks, Errno, Filled, Kernel, LOOK_PAGES, Message, Moved, Run};
use std::fmt;
use std::ops::Range;
use uffd::pagemap::{PRESENT_BIT, PROTECTED_BIT, SWAPPED_BIT};
use vmscan::PAGE;

/// The pager's view of the world.
pub struct SimKernel(pub Shared);

/// Calls that change the mappings wait for those who hold the mmap lock.
fn wait_for_readers(world: &mut World) {
    while world.memory.readers > 0 {
        world.run_on(1);
    }
}

impl Kernel for SimKernel {
    fn next(&mut self) -> Option<Message> {
        let mut world = self.0.borrow_mut();
        world.enter();
        let message = world.early.pop_front().or_else(|| world.next_message());
        if let Some(message) = message.as_ref() {
            let (what, args) = match message {
                Message::Fault { at, write, protected, .. } => {
                    ("message: fault", [*at, *write as usize, *protected as usize])
                }
                Message::Remove(r) => ("message: REMOVE", [r.start, r.end, 0]),
                Message::Unmap(r) => ("message: UNMAP", [r.start, r.end, 0]),
                Message::Remap { from, to } => ("message: REMAP", [from.start, from.end, *to]),
                Message::Other(n) => ("message of kind", [*n as usize, 0, 0]),
            };
            world.trace(what, args.map(|a| a as u64));
        }
        message
    }

    fn register(&mut self, range: Range<usize>) -> Result<Range<usize>, Errno> {
        let mut world = self.0.borrow_mut();
        world.enter();
        wait_for_readers(&mut world);
        let fits = |(whole, vma): (Range<usize>, &Vma)| {
            (whole.end >= range.end && !vma.engine && !vma.locked).then_some(whole)
        };
        let whole = world.memory.vma(range.start).and_then(fits).ok_or(Errno::EINVAL)?;
        let is_owned = world.memory.vma(range.start).is_some_and(|(_, vma)| vma.owned);
        if is_owned || whole.start < world.spared.end && world.spared.start < whole.end {
            return Err(Errno::EBUSY);
        }
        world.trace("register", [whole.start as u64, whole.end as u64, 0]);
        world.memory.change(whole.clone(), |vma| vma.registered = true);
        Ok(whole)
    }

    fn unregister(&mut self, range: Range<usize>) {
        let mut world = self.0.borrow_mut();
        world.enter();
        wait_for_readers(&mut world);
        for (whole, vma) in world.memory.vmas_in(range) {
            if !vma.engine {
                world.trace("unregister", [whole.start as u64, whole.end as u64, 0]);
                world.memory.unregister(whole.clone());
                world.memory.wake(whole);
            }
        }
    }

    fn release(&mut self, range: Range<usize>) {
        let mut world = self.0.borrow_mut();
        world.enter();
        wait_for_readers(&mut world);
        world.trace("release", [range.start as u64, range.end as u64, 0]);
        world.memory.unregister(range.clone());
        world.memory.wake(range);
    }

    fn fill_locked(&mut self, range: Range<usize>) -> Filled {
        let mut world = self.0.borrow_mut();
        world.enter();
        world.trace("fill locked", [range.start as u64, range.end as u64, 0]);
        let memory = &mut world.memory;
        let Some((mapping, vma)) = memory.vma(range.start) else { return Filled::No };
        let is_filled = vma.filled && vma.registered && memory.page(range.start).is_none();
        let fills_first = memory.fills_first.take_if(|at| range.contains(at)).is_some();
        if !fills_first && !is_filled {
            return Filled::No;
        }
        memory.changing -= fills_first as usize;
        let range = range.start..range.end.min(mapping.end);
        memory.unregister(range.clone());
        memory.wake(range.clone());
        if world.bugs.seams {
            return Filled::Left(range);
        }
        // Who waited goes on meanwhile.
        if world.scripted {
            range.clone().step_by(PAGE).for_each(|at| world.memory.fill(at, 0));
        } else {
            let steps = world.random.below(60);
            world.run_on(steps);
        }
        match world.memory.vma(range.start) {
            Some((found, vma)) if found.start == range.start && found.end >= range.end && vma.filled => {}
            _ => return Filled::Left(range),
        }
        world.memory.change(range, |vma| vma.registered = true);
        Filled::Whole
    }

    fn is_locked(&mut self, at: usize) -> bool {
        let mut world = self.0.borrow_mut();
        world.enter();
        world.memory.vma(at).is_some_and(|(_, vma)| vma.locked)
    }

    fn birthmarks(&mut self) -> Result<Birthmarks, Errno> {
        let world = self.0.borrow();
        let marked = |(range, vma): (Range<usize>, &Vma)| vma.marked.then_some(range);
        let known =
            if world.bugs.unmarked { Vec::new() } else { world.memory.vmas().filter_map(marked).collect() };
        let wiped = if world.bugs.unwiped { Vec::new() } else { world.wiped.clone() };
        Ok(Birthmarks { wiped, known })
    }

    fn is_mapped(&mut self, range: Range<usize>) -> bool {
        let mut world = self.0.borrow_mut();
        world.enter();
        !world.memory.vmas_in(range).is_empty()
    }

    fn is_ours(&mut self, at: usize) -> bool {
        let mut world = self.0.borrow_mut();
        world.enter();
        let spared = world.spared.clone();
        let is_spared = |range: Range<usize>| range.start < spared.end && spared.start < range.end;
        world.memory.vma(at).is_none_or(|(range, vma)| vma.registered && !is_spared(range))
    }

    fn mapping(&mut self, at: usize) -> Option<Range<usize>> {
        let mut world = self.0.borrow_mut();
        world.enter();
        world.memory.vma(at).map(|(range, _)| range)
    }

    fn area(&mut self, at: usize, asks: &mut usize) -> Result<Option<Range<usize>>, usize> {
        let mut world = self.0.borrow_mut();
        world.enter();
        let takes_unwritable = world.takes_unwritable();
        let (mut at, mut asked) = (at, 0);
        let found = loop {
            let Some(left) = asks.checked_sub(1) else { break Err(at) };
            (*asks, asked) = (left, asked + 1);
            let next = world.memory.vmas().find(|(range, _)| range.end > at);
            match next {
                Some((range, vma)) if !vma.engine && (vma.writable || takes_unwritable) => {
                    break Ok(Some(range.start.max(at)..range.end));
                }
                Some((range, _)) => at = range.end,
                None => break Ok(None),
            }
        };
        world.asked += asked;
        world.clock += asked as u64 * world.ask_ticks;
        found
    }

    fn occupied(
        &mut self,
        at: usize,
        max_pages: usize,
        wants_swapped: bool,
        runs: &mut [Run],
    ) -> Option<(usize, usize)> {
        let mut at = at;
        loop {
            let next = {
                let world = self.0.borrow();
                world.memory.vmas().find(|(range, vma)| range.end > at && !vma.engine).map(|(range, _)| range)
            }?;
            let range = at.max(next.start)..next.end;
            let (found, upto) = self.scan(range, max_pages, wants_swapped, true, runs);
            if found > 0 {
                return Some((found, upto));
            }
            at = next.end;
        }
    }

    fn present(&mut self, range: Range<usize>, max_pages: usize, runs: &mut [Run]) -> (usize, usize) {
        self.scan(range, max_pages, false, false, runs)
    }

    fn is_swapped(&self) -> bool {
        let world = self.0.borrow();
        let vmas = world.memory.vmas().filter(|(_, vma)| !vma.engine);
        vmas.flat_map(|(range, _)| world.memory.pages_in(range)).any(|(_, page)| page.swapped)
    }

    fn is_hole(&mut self, at: usize) -> bool {
        let mut world = self.0.borrow_mut();
        world.enter();
        world.memory.page(at).is_none()
    }

    fn entries(&mut self, at: usize, entries: &mut [u64]) {
        let mut world = self.0.borrow_mut();
        world.enter();
        for (at, entry) in (at..).step_by(PAGE).zip(entries) {
            let there = |page: &Page| if page.swapped { SWAPPED_BIT } else { PRESENT_BIT };
            let bits = |page: &Page| there(page) | if page.protected { PROTECTED_BIT } else { 0 };
            *entry = world.memory.page(at).map_or(0, bits);
        }
    }

    fn is_held(&mut self, at: usize) -> bool {
        let world = self.0.borrow();
        (world.held.contains(&at) || world.pinned.contains(at)) && !world.bugs.lets_held_go
    }

    fn has_unmapped(&mut self, range: &Range<usize>) {
        self.0.borrow_mut().pinned.remove(range);
    }

    fn has_remapped(&mut self, from: &Range<usize>, to: usize) {
        let pinned = &mut self.0.borrow_mut().pinned;
        let parts = pinned.within(from);
        pinned.remove(from);
        for part in parts {
            pinned.insert(part.start - from.start + to..part.end - from.start + to);
        }
    }

    fn pins(&mut self, pins: &mut Vec<usize>) {
        let mut world = self.0.borrow_mut();
        world.enter();
        world.list_pins();
        pins.extend(world.program.pins());
        pins.sort_unstable();
    }

    fn move_pages(&mut self, dst: usize, src: usize, bytes: usize) -> Moved {
        let mut world = self.0.borrow_mut();
        world.enter();
        let moved = match world.admit(|w| w.movable(dst, src, bytes)) {
            Err(errno) => (errno == Errno::EINVAL)
                .then(|| world.take_unwritable(dst, src..src + bytes))
                .flatten()
                .unwrap_or(stopped(0, errno)),
            Ok(()) if let Some(moved) = world.move_whole(dst, src, bytes) => moved,
            Ok(()) => world.pages(dst, bytes, |world, offset| {
                let (to, from) = (dst + offset, src + offset);
                if world.memory.page(to).is_some() || world.memory.markers.contains_key(&to) {
                    return Err(Errno::EEXIST);
                }
                if world.memory.markers.contains_key(&from) {
                    return Err(Errno::EFAULT);
                }
                let page = *world.memory.page(from).ok_or(Errno::ENOENT)?;
                if !page.zero && (page.pins > 0 || page.bound || !page.exclusive) || world.chance(400) {
                    return Err(Errno::EBUSY);
                }
                world.memory.move_page(from, to);
                Ok(())
            }),
        };
        world.trace("move", [dst as u64, src as u64, bytes as u64]);
        let errno = moved.stop.map_or(0, |e| e.0 as u64);
        world.trace("  moved, and stopped by", [moved.bytes as u64, errno, 0]);
        moved
    }

    fn move_huge(&mut self, dst: usize, src: usize, bytes: usize) -> Moved {
        self.move_pages(dst, src, bytes)
    }

    fn wants_huge(&mut self, _: &Range<usize>) -> bool {
        self.0.borrow().program.huge
    }

    fn populate_huge(&mut self, at: usize, bytes: usize) -> bool {
        self.populate(at, bytes);
        let mut world = self.0.borrow_mut();
        !world.chance(20) && world.memory.became_huge(at)
    }

    fn collapse(&mut self, range: Range<usize>) -> bool {
        let mut world = self.0.borrow_mut();
        world.enter();
        world.trace("collapse", [range.start as u64, range.end as u64, 0]);
        range.len() == HUGE && !world.chance(20) && world.memory.collapse(range.start)
    }

    fn copy(&mut self, dst: usize, src: usize, bytes: usize) -> Moved {
        let mut world = self.0.borrow_mut();
        world.enter();
        let moved = match world.admit(|w| w.fillable(dst, bytes)) {
            Err(errno) => stopped(0, errno),
            Ok(()) => world.pages(dst, bytes, |world, offset| {
                if world.memory.page(dst + offset).is_some() {
                    return Err(Errno::EEXIST);
                }
                let content = world.memory.engine_reads(src + offset);
                // A guard is no obstacle.
                world.memory.fill(dst + offset, content);
                Ok(())
            }),
        };
        world.trace("copy", [dst as u64, src as u64, moved.bytes as u64]);
        moved
    }

    fn zero(&mut self, dst: usize, bytes: usize) -> Moved {
        let mut world = self.0.borrow_mut();
        world.enter();
        let moved = match world.admit(|w| w.fillable(dst, bytes)) {
            Err(errno) => stopped(0, errno),
            Ok(()) => world.pages(dst, bytes, |world, offset| {
                let at = dst + offset;
                if world.memory.page(at).is_some() || world.memory.markers.contains_key(&at) {
                    return Err(Errno::EEXIST);
                }
                world.memory.fill_zero(at);
                Ok(())
            }),
        };
        world.trace("zero", [dst as u64, moved.bytes as u64, moved.stop.map_or(0, |e| e.0 as u64)]);
        moved
    }

    fn tells_touches(&self) -> bool {
        self.0.borrow().memory.tells_touches
    }

    fn watch(&mut self, range: Range<usize>) -> Result<(), Errno> {
        if self.tells_touches() { self.set_protection(range, true).map(drop) } else { Ok(()) }
    }

    fn protect(&mut self, range: Range<usize>) -> Result<(), Errno> {
        self.set_protection(range, true).map(drop)
    }

    fn unprotect(&mut self, range: Range<usize>) -> Result<usize, Errno> {
        let shared = self.set_protection(range.clone(), false)?;
        let mut world = self.0.borrow_mut();
        if !world.bugs.mute_wake {
            world.memory.wake(range);
        }
        Ok(shared)
    }

    fn lift_protection(&mut self, range: Range<usize>) -> Result<(), Errno> {
        self.bare(range)
    }

    fn shared(&mut self, range: Range<usize>) -> u128 {
        let mut world = self.0.borrow_mut();
        world.enter();
        let pages = world.memory.pages_in(range.clone()).filter(|(_, page)| !page.exclusive && !page.swapped);
        let numbers = pages.map(|(at, _)| (at - range.start) / PAGE).filter(|number| *number < LOOK_PAGES);
        numbers.fold(0, |bits, number| bits | 1 << number)
    }

    fn unshare(&mut self, at: usize) -> bool {
        let mut world = self.0.borrow_mut();
        world.enter();
        let Some((_, vma)) = world.memory.vma(at) else { return false };
        let registered = vma.registered;
        if !vma.writable || world.memory.markers.contains_key(&at) {
            return false;
        }
        let Some(&page) = world.memory.page(at) else {
            let waits = registered && world.bugs.populates;
            assert!(!waits, "the engine populates a hole at {at:#x} that only itself can fill");
            return false;
        };
        if page.protected && registered {
            return false;
        }
        world.memory.swap_in(at);
        if !page.exclusive {
            world.memory.copy_on_write(at, page.content);
            let lazy = &mut world.memory.page_mut(at).expect("just filled").lazy;
            *lazy = page.lazy;
        }
        true
    }

    fn split_folio(&mut self, at: usize) -> bool {
        let mut world = self.0.borrow_mut();
        if !world.memory.page(at).is_some_and(|page| page.bound) {
            return false;
        }
        world.enter();
        world.memory.page_mut(at).map(|page| page.bound = false).is_some()
    }

    fn wake(&mut self, range: Range<usize>) {
        let mut world = self.0.borrow_mut();
        world.enter();
        world.trace("wake", [range.start as u64, range.end as u64, 0]);
        if !world.bugs.mute_wake {
            world.memory.wake(range);
        }
    }

    fn lose(&mut self, at: usize, why: fmt::Arguments<'_>) -> bool {
        let mut world = self.0.borrow_mut();
        world.enter();
        assert!(why.to_string().contains(&format!("{at:#x}")), "a message names the address");
        match world.admit(|w| w.fillable(at, PAGE)) {
            Err(Errno::EAGAIN) => return false,
            Err(_) => {}
            Ok(()) => {
                world.trace("lost", [at as u64, 0, 0]);
                if world.memory.page(at).is_none() {
                    world.memory.markers.entry(at).or_insert(Marker::Poison);
                }
            }
        }
        world.memory.wake(at..at + PAGE);
        true
    }

    fn discard(&mut self, at: usize, bytes: usize) -> bool {
        let mut world = self.0.borrow_mut();
        world.enter();
        let (_, vma) = world.memory.vma(at).expect("the engine discards its own");
        assert!(vma.engine, "the engine discards the program's memory at {at:#x}");
        let stays = world.chance(100) || world.stubborn;
        world.trace("discard", [at as u64, bytes as u64, stays as u64]);
        if !stays {
            let is_whole = bytes == HUGE && world.memory.huge.contains(at);
            for page in (at..at + bytes).step_by(PAGE) {
                let gone: Option<Page> = world.memory.remove(page);
                assert!(gone.is_none_or(|p| p.pins == 0));
            }
            // It goes by a move, which leaves the tables of what is in pieces.
            world.memory.huge.clear(&(at..at + bytes), is_whole);
        }
        !stays
    }

    fn populate(&mut self, at: usize, bytes: usize) -> bool {
        let mut world = self.0.borrow_mut();
        world.enter();
        for page in (at..at + bytes).step_by(PAGE) {
            // MADV_POPULATE_WRITE is a write, also to what is there.
            let content = world.memory.page(page).map_or(0, |page| page.content);
            world.memory.engine_writes(page, content);
        }
        true
    }

    fn clear(&mut self, at: usize, bytes: usize) {
        let mut world = self.0.borrow_mut();
        world.enter();
        for page in (at..at + bytes).step_by(PAGE) {
            world.memory.engine_writes(page, 0);
        }
    }

    fn census_begin(&mut self, _: usize) {
        let mut world = self.0.borrow_mut();
        world.enter();
        world.trace("a census begins", [0, 0, 0]);
        world.program.census_begin();
    }

    fn census_done(&mut self) -> bool {
        let mut world = self.0.borrow_mut();
        world.enter();
        let done = world.program.census_done() || world.bugs.hasty_census;
        world.trace("the census is done", [done as u64, 0, 0]);
        done
    }

    fn pause(&mut self) {
        let mut world = self.0.borrow_mut();
        world.enter();
        if world.scripted {
            (0..WORKERS).for_each(|worker| world.step_worker(worker));
            return;
        }
        let steps = world.random.below(12);
        world.run_on(steps);
    }

    fn now_ms(&mut self) -> u64 {
        self.0.borrow().clock / TICKS_PER_MS
    }
}
