//! Out, from the program to the inactive list.
//!
//! Evicting is safe because
//! 1. the source is registered on the descriptor that moves it, and has been since the last event was applied
//!    (event.rs);
//! 2. a page is `Inactive` in the swap map before any message is read after its move, so its fault finds it;
//! 3. nothing is taken from a range that somebody may be discarding (the quarantine), also not after an event that
//!    came during the move: what is left of the run is looked at again;
//! 4. pages that the kernel writes without a fault are left where they are: they are listed before the move, and
//!    again after it, and one that was moved in between goes back at once.

use crate::kernel::{Errno, Kernel, Moved, Store, WINDOW_PAGES};
use crate::pager::Pager;
use crate::swap_map::{Entry, Kind};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use vmscan::heat::Heat;
use vmscan::{PAGE, WINDOW};

/// Runs shorter than this many pages share slots: what goes out in pieces was left over by accesses here and there.
const SINGLE_BELOW: usize = WINDOW_PAGES / 2;

/// How often one run of pages is tried again while events come.
const TRIES: usize = 200;

/// What was done for pages that could not be moved: where last.
#[derive(Default)]
struct Helped {
    unshared: usize,
    split: usize,
}

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// True for pages that the kernel writes without a fault, for those that somebody may be discarding, and for
    /// those that are held.
    fn must_stay(&mut self, at: usize) -> bool {
        self.reclaim.is_pinned(at) || self.regions.quarantine().holds(at) || self.kernel.is_held(at)
    }

    /// Moves a run to the inactive list, as far as it goes; how many bytes it was. What may be moved is asked anew
    /// before each move, since the events that were applied meanwhile may have changed the answer.
    pub(super) fn move_out(&mut self, range: Range<usize>) -> usize {
        let (mut at, mut got, mut tries, mut helped) = (range.start, 0, 0, Helped::default());
        while at < range.end && self.regions.registered().covers(&(at..range.end)) {
            if self.must_stay(at) {
                at += PAGE;
                continue;
            }
            let end = (at + PAGE..range.end).step_by(PAGE).find(|&next| self.must_stay(next));
            let wanted = (end.unwrap_or(range.end) - at) / PAGE;
            let Some((first, room)) = self.room_on_list(at, wanted) else { break };
            let bytes = wanted.min(room) * PAGE;
            let moved = self.move_unprotected(self.inactive.page_at(first), at, bytes);
            self.enter(at, moved.bytes, first);
            if wanted < SINGLE_BELOW && moved.bytes > 0 {
                self.inactive.singles_put(first + (moved.bytes / PAGE) as u32);
            }
            at += moved.bytes;
            got += moved.bytes;
            match moved.stop {
                None => {}
                Some(_) if moved.bytes > 0 => {}
                Some(Errno::EAGAIN) => {
                    self.settle();
                    tries += 1;
                    if tries > TRIES {
                        break;
                    }
                    self.kernel.pause();
                }
                Some(Errno::EBUSY) if self.can_be_helped(at, bytes, &mut helped) => {}
                Some(Errno::EBUSY) => {
                    self.stat.busy.fetch_add(1, Relaxed);
                    let entry = self.map.get(at);
                    self.map.set(at, entry.with_heat(Heat::HOT));
                    at += PAGE;
                }
                // The page went meanwhile, or is a guard, which looks like a swapped one.
                Some(Errno::ENOENT | Errno::EFAULT) => at += PAGE,
                // Another protection, locked, or no longer what it was: not ours to take.
                Some(_) => break,
            }
        }
        got
    }

    /// Where `wanted` pages from `at` on go: the inactive list page, and for how many there is room.
    fn room_on_list(&mut self, at: usize, wanted: usize) -> Option<(u32, usize)> {
        if wanted < SINGLE_BELOW {
            return self.inactive.find_singles();
        }
        let windows = (at + wanted * PAGE).div_ceil(WINDOW) - at / WINDOW;
        self.inactive.find_windows(windows.min(32), at / PAGE % WINDOW_PAGES)
    }

    /// Pages that are refused are shared since a fork, in a folio whose first page is, or pinned by I/O in flight:
    /// all but the last can be helped, once.
    fn can_be_helped(&mut self, at: usize, bytes: usize, helped: &mut Helped) -> bool {
        if helped.unshared != at && self.unshare(at..at + bytes.min(WINDOW)) {
            helped.unshared = at;
            return true;
        }
        if helped.split != at && self.kernel.split_folio(at) {
            helped.split = at;
            return true;
        }
        false
    }

    /// Moves pages of the program's to the inactive list, without their protection.
    ///
    /// A swap entry would take it along, and so would a page on kernels since April 2026. Then the engine's own
    /// write to the inactive list would wait for the engine. It is safe to take protection away first: a write to a
    /// page that nobody else has copies nothing, and one that others have too stays, and what is copied there is
    /// counted late. Nor does it matter that somebody may touch a page that was watched: it is moved, or not, as it is.
    fn move_unprotected(&mut self, dst: usize, src: usize, bytes: usize) -> Moved {
        match self.lift_protection(src..src + bytes) {
            Ok(()) => self.kernel.move_pages(dst, src, bytes),
            Err(errno) => Moved { bytes: 0, stop: Some(errno) },
        }
    }

    /// Takes protection away from what is about to be moved. Where touches are told it must be gone; else the move says
    /// what is the matter.
    pub(super) fn lift_protection(&mut self, range: Range<usize>) -> Result<(), Errno> {
        match self.kernel.lift_protection(range) {
            Err(errno) if errno == Errno::EAGAIN || self.kernel.tells_touches() => Err(errno),
            _ => Ok(()),
        }
    }

    /// Enters pages that lie on the inactive list now, from its page `first` on.
    pub(super) fn enter(&mut self, at: usize, bytes: usize, first: u32) {
        if bytes == 0 {
            return;
        }
        self.nothing_is_due();
        debug_assert!(!self.regions.has_displaced(), "a move proves that no event is due");
        self.stat.pgdeactivate.fetch_add((bytes / PAGE) as u64, Relaxed);
        let evictions = self.map.evict(bytes / PAGE);
        self.objects.set_clock(evictions);
        for (page, id) in (at..at + bytes).step_by(PAGE).zip(first..) {
            let old = self.map.get(page);
            let prior = match old.kind() {
                Kind::Clean if self.objects.get(old.id()).is_sound() => old,
                // What the page tables say counts: a page that was present is what the program saw.
                _ => {
                    self.drop_entry(old);
                    Entry::NONE
                }
            };
            let entry = Entry::new(Kind::Inactive, id, 0, old.heat()).evicted_at(evictions);
            let (slot, index) = entry.inactive_page();
            self.inactive.put(slot, index, page, prior);
            self.map.set(page, entry);
        }
    }

    pub(super) fn list_pins(&mut self) {
        self.reclaim.list_pins(&mut self.kernel);
    }

    /// Brings back what was moved out of a range and is a pin by now.
    pub(super) fn return_pins(&mut self, moved: Range<usize>) {
        if moved.is_empty() {
            return;
        }
        // A list of locks is followed no further than to the first that is out: once that is home, the rest is seen.
        loop {
            self.list_pins();
            let is_out = |pin: &usize| self.map.get(*pin).kind() == Kind::Inactive;
            let out: Vec<usize> = self.reclaim.pins_in(&moved).iter().copied().filter(is_out).collect();
            if out.is_empty() {
                return;
            }
            for pin in out {
                let entry = self.map.get(pin);
                self.bring_home(pin, entry);
            }
        }
    }
}
