//! Where the kernel makes huge pages: what /sys says of all memory, and what the program has advised on each mapping.
//!
//! What was advised only smaps tells, which takes long: some 15 ms for each GiB. So it is read once, and then where
//! memory is filled of which nothing is known, once in a while, if the program has ever advised such a thing. That it
//! has is seen in smaps, or by the hook of madvise.

use crate::smaps;
use control::CONTROL;
use control::arena;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use mm::ranges::RangeSet;
use uffd::sys::{self, consts::*};

/// Of so much time one part in so many may be spent on reading smaps.
const REST: u64 = 64;

/// No more often than that, in nanoseconds.
const REST_NS: u64 = 2_000_000;

/// Where huge pages of 2 MiB are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Enabled {
    Never,
    /// Where the program has advised it.
    Madvise,
    /// Where it has not advised against it.
    Always,
}

impl Enabled {
    fn read() -> Enabled {
        let own = chosen(b"/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled\0");
        match own {
            Some(Some(enabled)) => enabled,
            // `inherit`, or a kernel that has one setting for all sizes.
            _ => chosen(b"/sys/kernel/mm/transparent_hugepage/enabled\0").flatten().unwrap_or(Enabled::Never),
        }
    }
}

/// The word in brackets of a file of choices, if it can be read, and if it is one of ours.
fn chosen(path: &[u8]) -> Option<Option<Enabled>> {
    let mut text = [0; 64];
    let file = sys::open(path, O_RDONLY).ok()?;
    let len = sys::read(&file, &mut text).ok()?;
    let mut words = text[..len].split(|byte| b" \n".contains(byte));
    let word = words.find(|word| word.starts_with(b"["))?;
    Some(match word {
        b"[always]" => Some(Enabled::Always),
        b"[madvise]" => Some(Enabled::Madvise),
        b"[never]" => Some(Enabled::Never),
        _ => None,
    })
}

/// What is known of it.
pub struct HugePages {
    enabled: Enabled,
    /// What was mapped when smaps was read, and where huge pages were wanted then.
    seen: RangeSet,
    wanted: RangeSet,
    /// When it may be read again.
    next_ns: u64,
    has_looked: bool,
    /// Something was advised, for huge pages or against them; and how often it was by the hook.
    is_advised: bool,
    advised: u32,
}

impl HugePages {
    /// None are made.
    pub fn none() -> HugePages {
        let (seen, wanted) = (RangeSet::default(), RangeSet::default());
        let (has_looked, is_advised) = (false, false);
        let (enabled, next_ns, advised) = (Enabled::Never, 0, 0);
        HugePages { enabled, seen, wanted, next_ns, has_looked, is_advised, advised }
    }

    /// Nothing is known but what /sys says.
    pub fn new() -> HugePages {
        HugePages { enabled: Enabled::read(), ..HugePages::none() }
    }

    /// True where the kernel makes a huge page for the first touch of this range.
    pub fn are_wanted(&mut self, range: &Range<usize>) -> bool {
        if self.enabled == Enabled::Never || sys::is_thp_disabled() != Ok(false) {
            return false;
        }
        let advised = CONTROL.huge_advice.load(Relaxed);
        if advised != core::mem::replace(&mut self.advised, advised) {
            self.is_advised = true;
            self.forget(&(0..usize::MAX));
        }
        if !self.seen.covers(range) && (self.is_advised || !self.has_looked) {
            self.look();
        }
        let is_known = self.is_advised && self.seen.covers(range);
        if is_known { self.wanted.covers(range) } else { self.enabled == Enabled::Always }
    }

    /// The mappings of a range may have changed.
    pub fn forget(&mut self, range: &Range<usize>) {
        self.seen.remove(range);
        self.wanted.remove(range);
    }

    fn look(&mut self) {
        let began = sys::now_ns();
        if began < self.next_ns {
            return;
        }
        let (mut seen, mut wanted) = (RangeSet::default(), RangeSet::default());
        let flag = if self.enabled == Enabled::Always { b"nh" } else { b"hg" };
        self.has_looked = true;
        let _ = smaps::each(|range, flags| {
            let is_own = arena::first_foreign(range.clone()).is_empty();
            self.is_advised |= flags.has(flag) && !is_own;
            if flags.has(flag) == (self.enabled == Enabled::Madvise) {
                wanted.insert(range.clone());
            }
            seen.insert(range);
        });
        (self.seen, self.wanted) = (seen, wanted);
        let end = sys::now_ns();
        self.next_ns = end + ((end - began) * REST).max(REST_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uffd::PAGE;

    #[test]
    fn what_the_program_has_advised_is_seen() {
        let mapped =
            || sys::mmap(4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, None).unwrap();
        // Apart from each other, by one that is not private.
        let ranges = [mapped(), mapped(), mapped()].map(|at| at..at + 4 * PAGE);
        let [plain, wanted, not_wanted] = &ranges;
        sys::madvise_keep(wanted.start, wanted.len(), MADV_HUGEPAGE).unwrap();
        sys::madvise_keep(not_wanted.start, not_wanted.len(), MADV_NOHUGEPAGE).unwrap();
        let seen = |enabled| {
            let mut huge = HugePages { enabled, ..HugePages::none() };
            [plain, wanted, not_wanted].map(|range| huge.are_wanted(range))
        };
        assert_eq!(seen(Enabled::Never), [false; 3]);
        assert_eq!(seen(Enabled::Madvise), [false, true, false]);
        assert_eq!(seen(Enabled::Always), [true, true, false]);
        let mut huge = HugePages { enabled: Enabled::Madvise, ..HugePages::none() };
        assert!(huge.are_wanted(wanted));
        huge.forget(wanted);
        assert!(!huge.are_wanted(wanted), "it was read a moment ago");
        huge.next_ns = 0;
        assert!(huge.are_wanted(wanted));
    }
}
