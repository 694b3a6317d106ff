//! Where the pages of a range are, for the program that asks.

use crate::kernel::{Kernel, Run, Store};
use crate::pager::Pager;
use crate::swap_map::Kind;
use core::ops::Range;
use vmscan::PAGE;
use zswap::objects::Body;

/// Bytes of a range, by where its pages are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// In the program.
    pub resident: usize,
    /// In RAM as they are, on the inactive list.
    pub inactive: usize,
    /// In the pool.
    pub stored: usize,
    /// What those take there, compressed. What relatives have stored in common is nobody's.
    pub pool: usize,
    /// In swap areas alone.
    pub swapped: usize,
    /// Out, and filled with one word, or zeros: without data anywhere.
    pub filled: usize,
}

impl Places {
    /// All of them, in the order of the fields.
    pub fn values(&self) -> [usize; 6] {
        let &Places { resident, inactive, stored, pool, swapped, filled } = self;
        [resident, inactive, stored, pool, swapped, filled]
    }
}

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// Where the pages of a range are. (Right as in look.rs.)
    pub fn tell(&mut self, range: Range<usize>) -> Places {
        self.settle();
        let mut places = Places { resident: self.resident_bytes(&range), ..Places::default() };
        let mut at = range.start;
        while let Some((page, entry)) = self.map.next_used(at, range.end) {
            at = page + PAGE;
            match entry.kind() {
                Kind::Inactive => places.inactive += PAGE,
                Kind::Zero => places.filled += PAGE,
                Kind::Stored => {
                    let object = self.objects.get(entry.id());
                    if object.is_swapped() {
                        places.swapped += PAGE;
                    } else if let Body::Same(_) = object.body {
                        places.filled += PAGE;
                    } else {
                        places.stored += PAGE;
                        places.pool += object.body.bytes() / usize::from(object.pages.max(1));
                    }
                }
                Kind::None | Kind::Clean => {}
            }
        }
        places
    }

    fn resident_bytes(&mut self, range: &Range<usize>) -> usize {
        let (mut at, mut bytes) = (range.start, 0);
        while at < range.end {
            let mut runs = [Run::default(); 64];
            let (found, upto) = self.kernel.present(at..range.end, usize::MAX, &mut runs);
            bytes += runs[..found].iter().map(|run| run.end - run.start).sum::<usize>();
            at = upto.max(at + PAGE);
        }
        bytes
    }
}
