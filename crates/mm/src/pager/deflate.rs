//! Out, from the inactive list to the compressors; and what they made of it becomes the pages' new place.

use crate::inactive::Use;
use crate::kernel::{Done, Job, Kernel, Prior, Spare, Store, Stored, WINDOW_PAGES};
use crate::pager::Pager;
use crate::swap_map::{Entry, Kind};
use alloc::vec::Vec;
use base::PageMask;
use core::sync::atomic::Ordering::Relaxed;
use vmscan::PAGE;
use vmscan::heat::Heat;
use zswap::objects::Body;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// Hands about `want` bytes of the inactive list's oldest to the compressors; how many it was.
    pub(super) fn deflate(&mut self, want: usize) -> usize {
        let mut got = 0;
        // While the pool is full one window at a time finds out whether it still is.
        let want =
            if self.objects.is_full() { want.min((self.inactive.in_flight() == 0) as usize) } else { want };
        // What goes to an area at once is read from there page by page, and nothing is won by compressing it.
        let is_plain = self.pool_limit.is_closed() && self.objects.swapped().has_room();
        while got < want {
            let Some(slot) = self.inactive.oldest() else { break };
            if is_plain {
                self.inactive.part(slot);
            }
            let s = self.inactive.slot(slot);
            let (objects, mut fewest) = (&self.objects, 0);
            let priors = core::array::from_fn(|page| {
                let prior = s.prior[page];
                let object = (s.owned.contains(page) && prior.kind() == Kind::Clean)
                    .then(|| objects.get(prior.id()))
                    .filter(|object| object.is_sound() && !object.is_forlorn())?;
                // A window that has changed but for a page or two leaves them no object that is kept for them alone.
                if !s.is_single {
                    fewest = fewest.max(object.wanting());
                }
                let hash = objects.hash_in_area(prior.id(), prior.offset());
                Some(Prior { body: object.body, page: prior.offset(), hash })
            });
            let lent = (0..WINDOW_PAGES).filter(|p| priors[*p].is_some()).map(|p| s.prior[p].id());
            let lent: Vec<u32> = lent.collect();
            got += s.present.count() * PAGE;
            let (at, unit) = (self.inactive.at(slot), s.unit());
            let job = Job { slot, at, pages: s.owned, unit, is_plain, priors, fewest };
            for id in lent {
                // The job reads the object, whatever becomes of the page meanwhile.
                self.objects.retain(id, true);
                self.inactive.lend(slot, id);
            }
            for page in self.inactive.send(slot).iter() {
                self.returns.add(self.inactive.slot(slot).owner[page], false);
            }
            self.objects.store_mut().submit(job);
        }
        got
    }

    /// Applies all results there are. True when there were any.
    pub(super) fn collect(&mut self) -> bool {
        let mut any = false;
        while let Some(done) = self.next_done() {
            any = true;
            self.apply_done(done);
        }
        any
    }

    /// Applies a result, or lets those run who come to one: a worker may wait for a call of the program's to end.
    pub(super) fn await_workers(&mut self) {
        if let Some(done) = self.next_done() {
            self.apply_done(done);
            return;
        }
        self.settle();
        self.kernel.pause();
    }

    /// The next result. What was stock becomes memory of the pool, which would else need new pages while stock is
    /// given back.
    fn next_done(&mut self) -> Option<Done> {
        let opened = if self.inactive.in_flight() > 0 { self.inactive.stock_pages(1) } else { None };
        let Some((page, pages)) = opened else {
            return self.objects.store_mut().complete(&mut Spare::default());
        };
        let mut spare = Spare { at: self.inactive.page_at(page), pages };
        let done = self.objects.store_mut().complete(&mut spare);
        self.inactive.left_from(page, pages - spare.pages);
        done
    }

    fn apply_done(&mut self, done: Done) {
        match done {
            Done::Stored(stored) => self.stored(stored),
            Done::Fetched { slot, sound } => self.fetched(slot, sound),
            Done::Written { number, is_written } => self.written(number, is_written),
            Done::Read { id, came } => self.came_back(id, came),
        }
    }

    /// A slot's job is over, done or withdrawn.
    pub(super) fn job_over(&mut self, slot: u32) {
        let (lent, len) = self.inactive.job_over(slot);
        for id in &lent[..len] {
            self.objects.release(*id, true);
        }
    }

    fn stored(&mut self, stored: Stored) {
        let Stored { slot, reused, zero, in_bodies, filled, bodies } = stored;
        let (unit, pages) = (self.inactive.slot(slot).unit(), in_bodies.count());
        self.objects.set_full(bodies[..pages.div_ceil(unit)].contains(&None));
        let now = self.kernel.now_ms();
        let objects = bodies.map(|body| body.map(|body| self.objects.insert(body, pages.min(unit), now)));
        // Each is named once for as long as it is handed out, so that it is freed if nobody wants it any more.
        for &id in objects.iter().flatten() {
            self.objects.retain(id, false);
        }
        let owned = self.inactive.slot(slot).owned;
        let (mut kept, mut stored) = (PageMask::NONE, [PageMask::NONE; WINDOW_PAGES]);
        for page in owned.iter() {
            let owner = self.inactive.slot(slot).owner[page];
            let inactive = self.map.get(owner);
            debug_assert_eq!(inactive.inactive_page(), (slot, page));
            let rank = in_bodies.rank(page);
            let entry = if reused.contains(page) && !self.is_prior_lost(slot, page) {
                self.reused(slot, page)
            } else if zero.contains(page) {
                self.take_page(slot, page);
                self.stat.same_filled.fetch_add(1, Relaxed);
                self.stat.swpout_zero.fetch_add(1, Relaxed);
                Entry::new(Kind::Zero, 0, 0, Heat::COLD)
            } else if in_bodies.contains(page)
                && let Some(id) = objects[rank / unit]
            {
                self.take_page(slot, page);
                self.objects.retain(id, true);
                // What one word fills is no data in the pool, whatever lies beside it.
                if filled.contains(page) {
                    self.stat.same_filled.fetch_add(1, Relaxed);
                } else {
                    stored[rank / unit].insert(page);
                }
                Entry::new(Kind::Stored, id, rank % unit, Heat::COLD).filled_by_word(filled.contains(page))
            } else {
                kept.insert(page);
                continue;
            };
            self.map.set(owner, entry.with_heat(Heat::COLD).evicted_with(inactive));
        }
        for &id in objects.iter().flatten() {
            self.objects.release(id, false);
        }
        self.job_over(slot);
        stored.into_iter().for_each(|pages| self.stat.count_out(pages));
        self.stat.reject_alloc_fail.fetch_add(kept.count() as u64, Relaxed);
        self.slot_is_stored(slot, kept);
    }

    /// A page's prior was lost while the page was compared with it: it is stored anew.
    fn is_prior_lost(&self, slot: u32, page: usize) -> bool {
        self.objects.get(self.inactive.slot(slot).prior[page].id()).is_lost()
    }

    /// A page is as its prior: it depends on that object again.
    fn reused(&mut self, slot: u32, page: usize) -> Entry {
        let prior = self.inactive.take(slot, page);
        self.objects.depend(prior.id());
        self.stat.clean_reused.fetch_add(1, Relaxed);
        let is_common = matches!(self.objects.get(prior.id()).body, Body::Common { .. });
        self.stat.common_out.fetch_add(is_common as u64, Relaxed);
        prior.with_kind(Kind::Stored)
    }

    /// A page has another place now, and its prior is of no use any more.
    fn take_page(&mut self, slot: u32, page: usize) {
        let prior = self.inactive.take(slot, page);
        self.drop_entry(prior);
    }

    /// All of a slot's pages are stored but those that are `kept`.
    fn slot_is_stored(&mut self, slot: u32, kept: PageMask) {
        if !kept.is_empty() {
            // The pool has no memory: the pages stay where they are, and are the oldest again.
            self.inactive.recall(slot);
            return;
        }
        if self.inactive.is_in_block(slot) {
            return self.discard_slot(slot);
        }
        self.inactive.emptied(slot);
        if self.inactive.slot(slot).used == Use::Waste {
            self.discard_slot(slot);
        }
    }
}
