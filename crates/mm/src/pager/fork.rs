//! Fork: parent and child go on with the same tables, each with a copy of its own, as each has of the memory and of
//! the pool.
//!
//! ```text
//!   parent's engine   quiesce ── marks mappings ── drain_events ── stands still ────────── after_clone ──> goes on
//!   parent's thread                                                      └─ clone ──> runs on   │
//!   child                                                                      └─ waits ────────┴──> take_over ──> runs on
//! ```
//!
//! This is safe because
//! 1. from `quiesce` to the clone nothing is on the inactive list or with a worker: each page is in the program, in
//!    the pool, or nowhere, as the swap map says;
//! 2. the child runs not one instruction of the program's before it has registered what is out (`take_over`);
//! 3. what the program's other threads do to mappings after `drain_events` is an event that the parent reads after
//!    the clone (`Late`), whenever it was. The child sees which it was by what it has: a mapping that was there as
//!    the engine stood still bears a mark, also where it has been moved, and what has come since bears none. Where
//!    that says nothing, and something is out there, it must not run;
//! 4. what the program wants wiped in a child is forgotten (`adopt`), and a page that is said to be out must be a
//!    hole there (`verify`).

use crate::inactive::InactiveList;
use crate::kernel::{Birthmarks, Errno, Kernel, Message, Run, Store};
use crate::pager::{Config, Pager};
use crate::ranges::RangeSet;
use crate::swap_map::SwapMap;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use memcg::Stat;
use vmscan::{PAGE, WINDOW};
use zswap::objects::Entries;

/// How often the parent waits for a moment without an event, at most.
const DRAIN_PAUSES: usize = 10_000;

/// The end of user space.
const TOP: usize = 1 << 47;

/// What a child takes over.
pub struct Handover {
    map: SwapMap,
    objects: Entries,
    regions: RangeSet,
}

/// An event that was read after the clone: it may have been before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// A range was unmapped.
    Unmap {
        /// First address.
        start: usize,
        /// Past the last one.
        end: usize,
    },
    /// A range was moved.
    Remap {
        /// From where.
        start: usize,
        /// Past the last address there.
        end: usize,
        /// To where.
        to: usize,
        /// Something is mapped at the old place: what was there before, empty (MREMAP_DONTUNMAP), or something new.
        is_kept: bool,
    },
}

/// Why a child cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// A page is out, and there in the child all the same.
    Present(usize),
    /// It cannot be told whether a page that was out was unmapped or moved before the clone or after it.
    Unclear(usize),
    /// What is out there cannot be registered.
    Refused(usize, Errno),
    /// The kernel does not tell what the mappings are.
    Blind(Errno),
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfit::Present(at) => write!(f, "the page at {at:#x} is out, and there"),
            Misfit::Unclear(at) => {
                write!(f, "the page at {at:#x} was out, and another thread unmapped or moved it meanwhile")
            }
            Misfit::Refused(at, errno) => {
                write!(f, "the memory at {at:#x} is out and cannot be registered: {errno}")
            }
            Misfit::Blind(errno) => write!(f, "its mappings cannot be looked at: {errno}"),
        }
    }
}

impl<'a, K: Kernel, S: Store> Pager<'a, K, S> {
    /// Before a clone: all that lies on the inactive list goes home, and all jobs end. Until `after_clone` nothing
    /// of this pager's may be called but `drain_events`.
    pub fn quiesce(&mut self) {
        let mut pauses = 0;
        loop {
            self.settle();
            self.collect();
            while let Some(slot) = self.ahead.under_way().first().map(|ahead| ahead.slot) {
                self.join_fetch(slot);
            }
            self.activate_all();
            self.learn_growth();
            let is_done = self.inactive.in_flight() == 0
                && !self.has_io()
                && !self.has_displaced()
                && self.regions.grown().is_none();
            if is_done && !self.inactive.holds_any() {
                return;
            }
            self.wait_for_events(&mut pauses);
        }
    }

    /// After all that is registered has been marked: waits until no event is under way, so that every one that is
    /// read later is of a change that came after the marks. False when that did not come: there can be no clone.
    pub fn drain_events(&mut self) -> bool {
        let mut pauses = 0;
        while pauses < DRAIN_PAUSES {
            // What is read now may be of a change before: the marks went with it, or are made where it has come to
            // as it is read.
            self.settle();
            if self.is_quiet() {
                return true;
            }
            self.wait_for_events(&mut pauses);
        }
        false
    }

    /// After the clone: reads what was not read before it, and says what a child must know of it. If there `is_child`,
    /// the pool is its too.
    ///
    /// Equal changes are told once. Who makes one waits until it is read, so that each thread has made one before
    /// the clone at most: what is moved to and fro is moved so after it, but for the first time.
    pub fn after_clone(&mut self, is_child: bool) -> Vec<Late> {
        let (mut pauses, mut late) = (0, Vec::new());
        let mut tell = |event| {
            if !late.contains(&event) {
                late.push(event);
            }
        };
        loop {
            // An event is under way until its causer runs again: with none under way, all that was done before the
            // clone has been read.
            let is_quiet = self.is_quiet();
            while let Some(message) = self.kernel.next() {
                match message {
                    Message::Unmap(Range { start, end }) => tell(Late::Unmap { start, end }),
                    Message::Remap { from: Range { start, end }, to } => {
                        let is_kept = self.kernel.is_mapped(start..end);
                        tell(Late::Remap { start, end, to, is_kept });
                    }
                    _ => {}
                }
                self.apply(message);
            }
            if is_quiet {
                break;
            }
            self.let_run(&mut pauses);
        }
        self.objects.swapped_mut().forget_child();
        if is_child {
            self.freeze();
            self.share();
        }
        late
    }

    /// What is in the pool is another process's too.
    fn freeze(&mut self) {
        self.objects.freeze();
    }

    /// What a child of this pager takes over. In the child, where this pager is a copy of which nothing else is used.
    pub fn hand_over(&mut self) -> Handover {
        self.inactive = InactiveList::new(0, 0, WINDOW);
        Handover {
            map: core::mem::take(&mut self.map),
            objects: self.objects.take_entries(),
            regions: core::mem::take(&mut self.regions).into_registered(),
        }
    }

    /// The same as a copy.
    #[cfg(test)]
    pub fn handover(&mut self) -> Handover {
        Handover {
            map: self.map.clone(),
            objects: self.objects.copy_for_child(),
            regions: self.regions.registered().clone(),
        }
    }

    /// A child's pager. All that is out is registered when it is there; `kernel` has no memory of the program's
    /// registered yet.
    pub fn take_over(
        kernel: K,
        store: S,
        stat: &'a Stat,
        config: Config,
        limit: usize,
        handover: Handover,
        late: &[Late],
    ) -> Result<Self, Misfit> {
        let mut pager = Pager::new(kernel, store, stat, config, limit);
        let Handover { map, objects, mut regions } = handover;
        pager.map = map;
        pager.stat.inherited.fetch_add(pager.map.stored() as u64, Relaxed);
        pager.objects.adopt(objects);
        pager.objects.swapped_mut().be_child();
        let mut seen = Seen::default();
        for event in late {
            let marks = seen.look(&mut pager.kernel)?;
            match *event {
                Late::Unmap { start, end } => pager.clear_unmap(start..end, &marks.known, late)?,
                Late::Remap { start, end, to, is_kept } => {
                    let target = to..to + end - start;
                    pager.clear_remap(start..end, target, is_kept, &marks.known, &mut regions)?
                }
            }
        }
        pager.adopt(&mut seen)?;
        pager.verify()?;
        pager.objects.borrow_all();
        pager.freeze();
        pager.share();
        Ok(pager)
    }

    /// The first page of a range that is out.
    fn first_out(&self, range: &Range<usize>) -> Option<usize> {
        let mut at = range.start;
        while let Some((page, entry)) = self.map.next_used(at, range.end) {
            if entry.kind().is_stored() {
                return Some(page);
            }
            at = page + PAGE;
        }
        None
    }

    /// A range was unmapped, before the clone or after it. In the child are the mappings `known`, and maybe new ones.
    fn clear_unmap(&mut self, range: Range<usize>, known: &RangeSet, late: &[Late]) -> Result<(), Misfit> {
        let there: RangeSet = known.within(&range).into_iter().collect();
        // What is there is as it was, or has been moved there, which is another event's; but what mremap has added
        // to that is new, and known as well.
        for event in late {
            if let Late::Remap { start, end, to, .. } = *event
                && let Some(mapping) = self.kernel.mapping(to)
            {
                for kept in there.within(&(to + end - start..mapping.end.max(to + end - start))) {
                    self.first_out(&kept).map_or(Ok(()), |at| Err(Misfit::Unclear(at)))?;
                }
            }
        }
        // The rest is gone, or new.
        for gone in known.without(&range) {
            self.forget(gone);
        }
        Ok(())
    }

    /// A range was moved, before the clone or after it. The parent had `regions`, wherever they have been moved by
    /// then.
    fn clear_remap(
        &mut self,
        from: Range<usize>,
        target: Range<usize>,
        is_kept: bool,
        known: &RangeSet,
        regions: &mut RangeSet,
    ) -> Result<(), Misfit> {
        let is_there = known.overlaps(&from);
        let has_come = known.overlaps(&target);
        // Both can be there before as well as after it, if the old place was kept: then it counts whether there was
        // something at the new one.
        let was_there = regions.overlaps(&target);
        let is_before = match (is_there, has_come) {
            (true, false) => false,
            (true, true) if !is_kept => false,
            // What was moved had come there later itself.
            (false, true) if !regions.overlaps(&from) => false,
            (false, true) => true,
            (true, true) if !was_there => true,
            _ => {
                let out = self.first_out(&from).or_else(|| self.first_out(&target));
                return out.map_or(Ok(()), |at| Err(Misfit::Unclear(at)));
            }
        };
        if is_before {
            regions.remove(&from);
            regions.insert(target.clone());
            self.relocate(from, target);
        }
        Ok(())
    }

    /// What is known of a range is at another address now.
    fn relocate(&mut self, from: Range<usize>, target: Range<usize>) {
        let mut moving = Vec::new();
        self.map.take(from.clone(), |at, entry| moving.push((at - from.start + target.start, entry)));
        self.forget(target);
        for (at, entry) in moving {
            self.map.set(at, entry);
        }
    }

    /// Registers every mapping of which something is known, and forgets what is not mapped, or has been wiped.
    fn adopt(&mut self, seen: &mut Seen) -> Result<(), Misfit> {
        let mut at = 0;
        while let Some((page, _)) = self.map.next_used(at, TOP) {
            let Some(mapping) = self.kernel.mapping(page) else {
                self.forget(page..page + PAGE);
                at = page + PAGE;
                continue;
            };
            match self.kernel.register(page..mapping.end) {
                Ok(whole) => {
                    at = whole.end;
                    // What is wiped has no page at all, which is seldom so, and to ask the kernel for it takes long.
                    if self.kernel.present(whole.clone(), 1, &mut [Run::default()]).0 == 0 {
                        let marks = seen.look(&mut self.kernel)?;
                        if marks.wiped.covers(&whole) {
                            self.forget(whole.clone());
                        }
                    }
                    self.regions.register(whole);
                }
                Err(errno) => {
                    let rest = page..mapping.end;
                    if let Some(out) = self.first_out(&rest) {
                        return Err(Misfit::Refused(out, errno));
                    }
                    at = rest.end;
                    self.forget(rest);
                }
            }
        }
        // Beyond user space lies what no event has come for; of such there is none after `quiesce`.
        debug_assert!(self.map.next_used(TOP, 2 * TOP).is_none());
        Ok(())
    }

    /// Everything that is out is a hole.
    fn verify(&mut self) -> Result<(), Misfit> {
        for region in self.regions().to_vec() {
            let mut at = region.start;
            while at < region.end {
                let mut runs = [Run::default(); 64];
                let (found, upto) = self.kernel.present(at..region.end, usize::MAX, &mut runs);
                for run in &runs[..found] {
                    if let Some(page) = self.first_out(&(run.start..run.end)) {
                        return Err(Misfit::Present(page));
                    }
                }
                at = upto;
            }
        }
        Ok(())
    }
}

/// What was seen of a child's mappings, if somebody has looked. To look takes long.
#[derive(Default)]
struct Seen(Option<Marks>);

/// See [`Birthmarks`].
struct Marks {
    wiped: RangeSet,
    known: RangeSet,
}

impl Seen {
    fn look(&mut self, kernel: &mut impl Kernel) -> Result<&Marks, Misfit> {
        if self.0.is_none() {
            let Birthmarks { wiped, known } = kernel.birthmarks().map_err(Misfit::Blind)?;
            let [wiped, known] = [wiped, known].map(|ranges| ranges.into_iter().collect());
            self.0 = Some(Marks { wiped, known });
        }
        Ok(self.0.as_ref().expect("looked above"))
    }
}
