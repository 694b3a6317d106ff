//! What a program asks the kernel about its own pages, or has the kernel do with them past any fault: the page tables
//! know nothing of what is out.
//!
//! An answer of `look` is right because
//! 1. the pager alone moves pages, and moves none while it answers: the page tables are read and the swap map asked
//!    between two messages, when each page that is out is so in both;
//! 2. an event that was read is applied. Who causes one that is not read yet is in his call still, and nobody can tell
//!    on which side of that the answer lies.
//!
//! What `hold` has brought stays (`Kernel::is_held`): the thread that asks says what is to be held first, and then
//! waits for the answer. What the hand takes in between comes home with the rest, since the pager does one after the
//! other; later it finds the range held.

use crate::kernel::{Kernel, Store};
use crate::pager::Pager;
use crate::swap_map::{Entry, Kind};
use core::ops::Range;
use uffd::Errno;
use uffd::pagemap::{PROTECTED_BIT, SOFT_DIRTY_BIT, SWAPPED_BIT};
use vmscan::{PAGE, WINDOW};

/// What the page tables would say of a page that is out, were the kernel's own swap to have it: of no device that could
/// be named, and written to since anybody last asked, as it is when it comes back.
pub const OUT: u64 = SWAPPED_BIT | SOFT_DIRTY_BIT;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// The entries of /proc/self/pagemap from `at` on, as they would be without us.
    pub fn look(&mut self, at: usize, entries: &mut [u64]) {
        self.settle();
        self.kernel.entries(at, entries);
        for (at, entry) in (at..).step_by(PAGE).zip(entries) {
            if self.map.get(at).kind().is_out() {
                *entry = OUT;
            } else if *entry & PROTECTED_BIT != 0 && self.regions.registered().contains(at) {
                *entry &= !PROTECTED_BIT;
            }
        }
    }

    /// Brings what is out of a range home, in the order of addresses, until about `most` bytes have come; up to where
    /// everything is there. Nor is anything there protected any more.
    pub fn hold(&mut self, range: Range<usize>, most: usize) -> usize {
        let (mut at, mut end, mut came) = (range.start, range.end, 0);
        self.settle();
        while let Some(page) = self.first_away(&(at..end)) {
            if came >= most {
                end = page;
                break;
            }
            at = page;
            // As much may come with it.
            came += WINDOW;
            self.bring_contents(page, self.map.get(page));
            self.bring_zeros_home(page);
        }
        if self.cow.is_shared() || self.kernel.tells_touches() {
            self.bare(range.start..end);
        }
        end
    }

    /// The first page of a range that is out.
    pub(super) fn first_away(&self, range: &Range<usize>) -> Option<usize> {
        let mut at = range.start;
        while let Some((page, entry)) = self.map.next_used(at, range.end) {
            if entry.kind().is_out() {
                return Some(page);
            }
            at = page + PAGE;
        }
        None
    }

    /// Brings a page of zeros home as a page of its own: the kernel's shared one would look as if nobody had ever
    /// written to it.
    fn bring_zeros_home(&mut self, page: usize) {
        let (zeros, mut pauses) = (self.swapin.bounce(), 0);
        while self.map.get(page).kind() == Kind::Zero {
            self.kernel.clear(zeros, PAGE);
            let moved = self.kernel.copy(page, zeros, PAGE);
            if moved.stop == Some(Errno::EAGAIN) {
                self.wait_for_events(&mut pauses);
                continue;
            }
            self.limit.charge(moved.bytes);
            let entry = self.map.set(page, Entry::NONE);
            self.came_home(entry);
        }
    }

    /// Lets the program write to a range without telling: a page that a fork has protected looks as if it were not
    /// written to.
    fn bare(&mut self, range: Range<usize>) {
        for part in self.regions.registered().within(&range) {
            self.unprotect(part);
        }
    }
}
