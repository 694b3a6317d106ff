//! Out: the clock hand takes present pages to the stage, the stage's oldest go to the compressors, and what they made of them
//! becomes the pages' new place.
//!
//! Evicting is safe because
//! 1. the source is registered on the descriptor that moves it, and has been since the last event was applied (event.rs);
//! 2. a page is `Staged` in the index before any message is read after its move, so its fault finds it;
//! 3. nothing is taken from a range that somebody may be discarding (the quarantine), also not after an event that came during the move: what is
//!    left of the run is looked at again;
//! 4. pages that the kernel writes without a fault are left where they are: they are listed before the move, and again after it,
//!    and one that was moved in between goes back at once.

use crate::index::{Entry, Kind};
use crate::kernel::{Body, Done, Errno, Job, Kernel, LOOK_PAGES, Prior, Run, Spare, Store, WINDOW_PAGES};
use crate::pager::family::hull;
use crate::pager::{Pager, bits, stage_page};
use crate::stage::Use;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use vmscan::heat::Heat;
use vmscan::{PAGE, WINDOW};

/// How many pages are looked at between two looks for faults.
const EVICT_PAGES: usize = 128;

/// So long pages are taken, in nanoseconds, until it is looked for faults all the same: of memory that cannot be
/// written to each run can take as long as a fault.
const LONG_NS: u64 = 500_000;

/// Runs shorter than this many pages share slots: what goes out in pieces was left over by accesses here and there.
const PACKED_BELOW: usize = WINDOW_PAGES / 2;

/// How much of a crowded stage is sent to the compressors at a time.
const CROWDED_BYTES: usize = 64 * PAGE;

/// How often a search looks which pages are there, and for how many wanted pages once more.
const LOOKS: usize = 4;
const PAGES_PER_LOOK: usize = 8;

/// How many windows that streams have passed are looked at in a search, beside one for each that is wanted: most may be gone, or hot.
const PASSED_LOOKS: usize = 32;

/// How many warm pages are spared in a search, and for each page that is wanted: a bound for the time that somebody may wait for it. Each is
/// colder afterwards, so that altogether no more are spared than were made warm, three times for a fault at most.
pub(crate) const PATIENCE: usize = 4096;
const PATIENCE_PER_PAGE: usize = 64;

/// How often one run of pages is tried again while events come.
const TRIES: usize = 200;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// Does what the watermarks ask for, evicting about `most` bytes at most. True when there may be more to do at once.
    pub(crate) fn reclaim(&mut self, most: usize) -> bool {
        // Where everything goes out all the time no fault waits for room, and the hand registers what it comes to.
        if self.limit.footprint() > self.limit.marks().wake && !self.limit.evicts_all() {
            self.enroll_all();
        }
        self.areas.begin_search();
        let actions = self.limit.marks().decide(&self.usage());
        for _ in 0..self.stage.waste_len() {
            if let Some(slot) = self.stage.take_waste() {
                self.discard_slot(slot);
            }
        }
        let mut dropped = 0;
        while dropped < actions.drop {
            let Some(slot) = self.stage.take_stock() else { break };
            self.discard_slot(slot);
            dropped += WINDOW;
        }
        let clean = self.limit.marks().clean_at(self.store.pool_bytes());
        while self.objects.clean_bytes() > clean && self.drop_clean() {}
        if self.pool_full && self.drop_clean() {
            self.pool_full = false;
        }
        let told = self.evict_told(most);
        let evicted = if actions.evict > 0 { self.evict(actions.evict.min(most)) } else { 0 };
        // What goes out in pieces leaves holes in its slots, and can use the stage up long before it is many bytes.
        let crowded = self.stage.is_crowded() && actions.evict > 0;
        let deflate = if crowded { actions.deflate.max(CROWDED_BYTES) } else { actions.deflate };
        let deflated = self.deflate(deflate);
        let packed = actions.evict > 0 && self.pack();
        if actions.evict > 0
            && told + evicted + deflated + self.stage.in_flight() == 0
            && self.faults.is_empty()
            && self.limit.footprint() > self.limit.marks().low
        {
            // Nothing left to take: clean copies are memory too, and so is what an object holds of pages that are elsewhere.
            return self.drop_clean()
                || dropped > 0
                || self.limit.footprint() >= self.limit.marks().high && self.pack_at_last();
        }
        packed || dropped + told + evicted + deflated > 0
    }

    /// Moves about `want` bytes to the stage; how many it was.
    pub(crate) fn evict(&mut self, want: usize) -> usize {
        if self.rests() {
            return 0;
        }
        self.release_quarantine();
        self.list_pins();
        if self.limit.evicts_all() {
            // It is the hand that finds what is new.
            self.areas.forget();
        }
        let mut rounds = 0;
        let mut got = self.evict_passed(want) + self.evict_recent(want);
        if self.shares && got > 0 {
            return got;
        }
        // Where little is left to take, going round again and again would cost those who wait more than it brings.
        let mut looks = LOOKS + want / PAGE / PAGES_PER_LOOK;
        // Looking for cold pages may cost so much, and not more: where nearly all are warm, one is as good as another.
        let mut patience = PATIENCE + want / PAGE * PATIENCE_PER_PAGE;
        while got < want && rounds < 2 && looks > 0 && !self.stage.is_full() {
            looks -= 1;
            let mut runs = [Run::default(); 64];
            self.hand = self.known_from(self.hand);
            let none_left = self.hand == usize::MAX;
            let Some((found, upto)) = (!none_left).then(|| self.occupied(&mut runs)).flatten() else {
                self.hand = 0;
                rounds += 1;
                let found = self.rest.round(self.kernel.now_ns());
                self.takes_swapped = self.kernel.is_swapped() && (!found || self.limit.evicts_all());
                if !found && !self.limit.evicts_all() {
                    break;
                }
                continue;
            };
            let (before, mut due, began) = (got, false, self.kernel.now_ns());
            self.hand = upto;
            for run in &runs[..found] {
                let is_long = got > before && self.kernel.now_ns() > began + LONG_NS;
                if got >= want || due || is_long {
                    self.hand = self.hand.min(run.start);
                    break;
                }
                let (more, stop) = self.evict_occupied(run.start..run.end, &mut patience);
                got += more;
                if let Some(at) = stop {
                    (self.hand, due) = (at, true);
                }
            }
            if got > before {
                self.rest.found();
                self.return_pins(runs[0].start..self.hand);
            }
            // An event is under way, whose causer may have a fault to be served first.
            if due {
                self.rest.found();
                self.settle();
                break;
            }
            // A thread that waits goes first.
            let waited = self.faults.len();
            self.settle();
            if self.faults.len() > waited {
                break;
            }
        }
        got
    }

    /// What there is from the hand on. What the kernel has swapped is cold, and takes no memory, but it counts: it is
    /// taken where a round has found nothing else to take, and a worker has the kernel bring it back as it reads it.
    fn occupied(&mut self, runs: &mut [Run]) -> Option<(usize, usize)> {
        self.kernel.occupied(self.hand, EVICT_PAGES, self.takes_swapped, runs)
    }

    /// True when nothing was found lately, and nobody waits for room: what others gave up meanwhile is to be seen at once then.
    fn rests(&mut self) -> bool {
        self.faults.is_empty()
            && !self.faults.has_waiting()
            && !self.limit.evicts_all()
            && self.rest.is_on(self.kernel.now_ns())
    }

    /// Moves to the stage what streams have gone through, and nothing has made hot; how many bytes it was.
    fn evict_passed(&mut self, want: usize) -> usize {
        let (mut got, mut moved, mut looks) = (0, 0..0, PASSED_LOOKS + want / WINDOW);
        while got < want
            && looks > 0
            && !self.stage.is_full()
            && let Some(window) = self.readahead.passed()
        {
            looks -= 1;
            // What came in with the stream has a copy in the pool. Fresh memory has none, and is left to the hand: it is what the program has made last.
            let is_due = |this: &Self, page: usize| {
                let entry = this.index.get(page);
                entry.kind() == Kind::Clean && (entry.heat() <= Heat::WARM || this.limit.evicts_all())
            };
            let (mut at, end) = (window, window + WINDOW);
            while at < end {
                let pages = (at..end).step_by(PAGE).take_while(|&page| is_due(self, page)).count();
                if pages > 0 {
                    got += self.move_out(at..at + pages * PAGE);
                }
                at += (pages + 1) * PAGE;
            }
            moved = hull(&moved, &(window..end));
        }
        if got > 0 {
            self.return_pins(moved);
        }
        got
    }

    /// Takes what is manageable and cold of a run of present pages: how many bytes it was, and where to go on once events have been read.
    pub(crate) fn evict_occupied(
        &mut self,
        run: Range<usize>,
        patience: &mut usize,
    ) -> (usize, Option<usize>) {
        let (mut at, mut got) = (run.start, 0);
        while at < run.end {
            let Some(area) = self.area(at) else { return (got, Some(at)) };
            if area.start > at {
                // What is registered now was asked about now.
                at = area.start;
                continue;
            }
            let part = at..run.end.min(area.end);
            match self.enroll(&area, part.start) {
                Ok(()) => got += self.evict_run(part.clone(), patience),
                Err(Errno::EAGAIN) => return (got, Some(part.start)),
                // Somebody else's, or not of a kind that can be registered: left alone.
                Err(_) => {}
            }
            at = part.end;
        }
        (got, None)
    }

    /// The first address from `at` on where there may be something to take, as far as is known; that of the end when
    /// there is nothing.
    fn known_from(&mut self, at: usize) -> usize {
        self.areas.keep_until(self.kernel.now_ns());
        self.areas.skip(at)
    }

    /// The first area that can be taken and ends after an address, or an empty one at the address up to which there is
    /// none; at the end of all addresses when there is none at all. `None` when enough was asked in this search.
    fn area(&mut self, at: usize) -> Option<Range<usize>> {
        // What is known still holds where all is registered, since what has changed was an event; and before that there
        // is nothing to take, or it is new.
        let now = self.kernel.now_ns();
        self.areas.keep_until(now);
        let holds =
            |area: &Range<usize>| at < area.start || self.regions.registered().covers(&(at..area.end));
        if let Some(area) = self.areas.find(at).filter(holds) {
            return Some(area);
        }
        let area = match self.kernel.area(at, &mut self.areas.asks) {
            Ok(area) => area.unwrap_or(usize::MAX..usize::MAX),
            Err(upto) if upto > at => upto..upto,
            Err(_) => return None,
        };
        let took = self.kernel.now_ns().saturating_sub(now);
        self.areas.learn(at, area.clone(), took);
        Some(area)
    }

    /// Takes the pages of a run of present ones that are cold, as long as there is patience to spare the others.
    fn evict_run(&mut self, run: Range<usize>, patience: &mut usize) -> usize {
        let (mut got, mut start) = (0, run.start);
        // To take a page from one of those who have it frees little, and costs a copy, and what that is compressed to: at last, for a thread that waits and waits.
        let spares_shared = self.shares && !self.is_at_last();
        let mut shared = 0;
        for (page, at) in run.clone().step_by(PAGE).enumerate() {
            let spares = !self.limit.evicts_all() && *patience > 0;
            if spares_shared && spares && page % LOOK_PAGES == 0 {
                shared = self.kernel.shared(at..run.end.min(at + LOOK_PAGES * PAGE));
            }
            let stays = shared & 1 << (page % LOOK_PAGES) != 0 && !self.is_common(at);
            if spares && (stays || self.spare(at)) {
                *patience -= 1;
                got += self.move_out(start..at);
                start = at + PAGE;
            }
        }
        got + self.move_out(start..run.end)
    }

    /// True when the page's heat saves it once more.
    pub(crate) fn spare(&mut self, at: usize) -> bool {
        let is_spared = self.index.cool(at, Heat::visited);
        if is_spared {
            self.rest.found();
        }
        is_spared
    }

    /// True for pages that the kernel writes without a fault, for those that somebody may be discarding, and for those that are held.
    fn must_stay(&mut self, at: usize) -> bool {
        self.pins.binary_search(&at).is_ok() || self.regions.quarantine().holds(at) || self.kernel.is_held(at)
    }

    /// Moves a run to the stage, as far as it goes; how many bytes it was. What may be moved is asked anew before each move, since the
    /// events that were applied meanwhile may have changed the answer.
    fn move_out(&mut self, range: Range<usize>) -> usize {
        let (mut at, mut got, mut tries, mut unshared, mut split) = (range.start, 0, 0, 0, 0);
        while at < range.end && self.regions.registered().covers(&(at..range.end)) {
            if self.must_stay(at) {
                at += PAGE;
                continue;
            }
            let end = (at + PAGE..range.end).step_by(PAGE).find(|&next| self.must_stay(next));
            let wanted = (end.unwrap_or(range.end) - at) / PAGE;
            let found = if wanted < PACKED_BELOW {
                self.stage.find_packed()
            } else {
                let windows = (at + wanted * PAGE).div_ceil(WINDOW) - at / WINDOW;
                self.stage.find_windows(windows.min(32), at / PAGE % WINDOW_PAGES)
            };
            let Some((first, room)) = found else { break };
            let bytes = wanted.min(room) * PAGE;
            let moved = self.move_unprotected(self.stage.page_at(first), at, bytes);
            self.staged(at, moved.bytes, first);
            if wanted < PACKED_BELOW && moved.bytes > 0 {
                self.stage.packed(first + (moved.bytes / PAGE) as u32);
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
                // Shared since a fork, in a folio whose first page is, or pinned by I/O in flight: all but the last can be helped.
                Some(Errno::EBUSY) if unshared != at && self.unshare(at..at + bytes.min(WINDOW)) => {
                    unshared = at
                }
                Some(Errno::EBUSY) if split != at && self.kernel.split_folio(at) => split = at,
                Some(Errno::EBUSY) => {
                    self.stat.busy.fetch_add(1, Relaxed);
                    let entry = self.index.get(at);
                    self.index.set(at, entry.with_heat(Heat::HOT));
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

    /// Enters pages that lie on the stage now, from its page `first` on.
    fn staged(&mut self, at: usize, bytes: usize, first: u32) {
        if bytes == 0 {
            return;
        }
        self.nothing_is_due();
        debug_assert!(!self.regions.has_displaced(), "a move proves that no event is due");
        self.stat.pgdeactivate.fetch_add((bytes / PAGE) as u64, Relaxed);
        let evictions = self.index.evict(bytes / PAGE);
        self.objects.set_clock(evictions);
        for (page, id) in (at..at + bytes).step_by(PAGE).zip(first..) {
            let old = self.index.get(page);
            let prior = match old.kind() {
                Kind::Clean if self.objects.get(old.id()).is_sound() => old,
                // What the page tables say counts: a page that was present is what the program saw.
                _ => {
                    self.drop_entry(old);
                    Entry::NONE
                }
            };
            let staged = Entry::new(Kind::Staged, id, 0, old.heat()).evicted_at(evictions);
            let (slot, index) = stage_page(staged);
            self.stage.put(slot, index, page, prior);
            self.index.set(page, staged);
        }
    }

    pub(crate) fn list_pins(&mut self) {
        self.pins.clear();
        self.kernel.pins(&mut self.pins);
    }

    pub(crate) fn return_pins(&mut self, moved: Range<usize>) {
        if moved.is_empty() {
            return;
        }
        // A list of locks is followed no further than to the first that is out: once that is home, the rest is seen.
        loop {
            self.list_pins();
            let is_out = |this: &Self, pin: usize| this.index.get(pin).kind() == Kind::Staged;
            let first = self.pins.partition_point(|&p| p < moved.start);
            let last = self.pins.partition_point(|&p| p < moved.end);
            let out: Vec<usize> =
                self.pins[first..last].iter().copied().filter(|&p| is_out(self, p)).collect();
            if out.is_empty() {
                return;
            }
            for pin in out {
                let entry = self.index.get(pin);
                self.bring_home(pin, entry);
            }
        }
    }

    /// Hands about `want` bytes of the stage's oldest to the compressors; how many it was.
    pub(crate) fn deflate(&mut self, want: usize) -> usize {
        let mut got = 0;
        // While the pool is full one window at a time finds out whether it still is.
        let want = if self.pool_full { want.min((self.stage.in_flight() == 0) as usize) } else { want };
        while got < want {
            let Some(slot) = self.stage.oldest() else { break };
            let s = self.stage.slot(slot);
            let (objects, mut fewest) = (&self.objects, 0);
            let priors = core::array::from_fn(|page| {
                let prior = s.prior[page];
                let object = (s.staged & 1 << page != 0 && prior.kind() == Kind::Clean)
                    .then(|| objects.get(prior.id()))
                    .filter(|object| object.is_sound() && !object.is_forlorn())?;
                // A window that has changed but for a page or two leaves them no object that is kept for them alone.
                if !s.packed {
                    fewest = fewest.max(object.wanting());
                }
                Some(Prior { body: object.body, page: prior.offset() })
            });
            let lent = (0..WINDOW_PAGES).filter(|p| priors[*p].is_some()).map(|p| s.prior[p].id());
            let lent: Vec<u32> = lent.collect();
            got += s.present.count_ones() as usize * PAGE;
            let (at, unit, is_awaited) = (self.stage.at(slot), s.unit(), self.faults.has_waiting());
            let from = s.owner[s.staged.trailing_zeros() as usize % WINDOW_PAGES];
            let job = Job { slot, at, from, is_awaited, pages: s.staged, unit, priors, fewest };
            for id in lent {
                // The job reads the object, whatever becomes of the page meanwhile.
                self.objects.retain(id, true);
                self.stage.lend(slot, id);
            }
            self.stage.send(slot);
            self.store.submit(job);
        }
        got
    }

    /// Applies all results there are. True when there were any.
    pub(crate) fn collect(&mut self) -> bool {
        let mut any = false;
        while let Some(done) = self.next_done() {
            any = true;
            self.apply_done(done);
        }
        any
    }

    /// The next result. What was stock becomes memory of the pool, which would else need new pages while stock is given back.
    pub(crate) fn next_done(&mut self) -> Option<Done> {
        let opened = if self.stage.in_flight() > 0 { self.stage.stock_pages() } else { None };
        let Some((page, pages)) = opened else { return self.store.complete(&mut Spare::default()) };
        let mut spare = Spare { at: self.stage.page_at(page), pages };
        let done = self.store.complete(&mut spare);
        self.stage.left(page / WINDOW_PAGES as u32, bits(page as usize % WINDOW_PAGES, pages - spare.pages));
        done
    }

    pub(crate) fn apply_done(&mut self, done: Done) {
        match done {
            Done::Stored { slot, reused, zero, in_bodies, bodies } => {
                self.stored(slot, reused, zero, in_bodies, bodies)
            }
            Done::Fetched { slot, sound } => self.fetched(slot, sound),
        }
    }

    /// A slot's job is over, done or withdrawn.
    pub(crate) fn job_over(&mut self, slot: u32) {
        let (lent, len) = self.stage.job_over(slot);
        for id in &lent[..len] {
            self.objects.release(*id, true, &mut self.store);
        }
    }

    fn stored(
        &mut self,
        slot: u32,
        reused: u16,
        zero: u16,
        in_bodies: u16,
        bodies: [Option<Body>; WINDOW_PAGES],
    ) {
        let (unit, pages) = (self.stage.slot(slot).unit(), in_bodies.count_ones() as usize);
        self.pool_full = bodies[..pages.div_ceil(unit)].contains(&None);
        let now = self.kernel.now_ms();
        let objects = bodies.map(|body| body.map(|body| self.objects.insert(body, pages.min(unit), now)));
        // Each is named once for as long as it is handed out, so that it is freed if nobody wants it any more.
        for &id in objects.iter().flatten() {
            self.objects.retain(id, false);
        }
        let staged = self.stage.slot(slot).staged;
        let (mut kept, mut stored) = (0, [0; WINDOW_PAGES]);
        for page in (0..WINDOW_PAGES).filter(|p| staged & 1 << p != 0) {
            let bit = 1u16 << page;
            let owner = self.stage.slot(slot).owner[page];
            let on_stage = self.index.get(owner);
            debug_assert_eq!(stage_page(on_stage), (slot, page));
            let entry = if reused & bit != 0 {
                let prior = self.stage.take(slot, page, false);
                self.objects.depend(prior.id());
                self.stat.clean_reused.fetch_add(1, Relaxed);
                let is_common = matches!(self.objects.get(prior.id()).body, Body::Common { .. });
                self.stat.common_out.fetch_add(is_common as u64, Relaxed);
                prior.with_kind(Kind::Stored)
            } else if zero & bit != 0 {
                let prior = self.stage.take(slot, page, false);
                self.drop_entry(prior);
                self.stat.same_filled.fetch_add(1, Relaxed);
                Entry::new(Kind::Zero, 0, 0, Heat::COLD)
            } else if let (rank, true) = ((in_bodies & (bit - 1)).count_ones() as usize, in_bodies & bit != 0)
                && let Some(id) = objects[rank / unit]
            {
                let prior = self.stage.take(slot, page, false);
                self.drop_entry(prior);
                self.objects.retain(id, true);
                // What one word fills is no data in the pool, however many pages it fills.
                if let Body::Same(_) = self.objects.get(id).body {
                    self.stat.same_filled.fetch_add(1, Relaxed);
                } else {
                    stored[rank / unit] |= bit;
                }
                Entry::new(Kind::Stored, id, (rank % unit) as u16, Heat::COLD)
            } else {
                kept |= bit;
                continue;
            };
            self.index.set(owner, entry.with_heat(Heat::COLD).evicted_with(on_stage));
        }
        for &id in objects.iter().flatten() {
            self.objects.release(id, false, &mut self.store);
        }
        self.job_over(slot);
        stored.into_iter().for_each(|pages| self.stat.count_out(pages));
        if kept != 0 {
            // The pool has no memory: the pages stay where they are, and are the oldest again.
            self.stage.recall(slot);
        } else {
            self.stage.emptied(slot);
            if self.stage.slot(slot).used == Use::Waste {
                self.discard_slot(slot);
            }
        }
    }
}
