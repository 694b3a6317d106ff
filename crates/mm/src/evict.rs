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

use crate::event::{covers, insert, subtract};
use crate::index::{Entry, Kind};
use crate::kernel::{Body, Done, Errno, Job, Kernel, Prior, Run, Store, WINDOW_PAGES};
use crate::pager::{Pager, stage_page};
use crate::stage::Use;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use vmscan::heat::Heat;
use vmscan::{PAGE, WINDOW};

/// How many pages are looked at between two looks for faults.
const EVICT_PAGES: usize = 128;

/// How much of a crowded stage is sent to the compressors at a time.
const CROWDED_BYTES: usize = 64 * PAGE;

/// How many warm pages are spared in a search, and for each page that is wanted.
const PATIENCE: usize = 256;
const PATIENCE_PER_PAGE: usize = 2;

/// Milliseconds between two looks for mappings that are not registered yet, and how many areas make it one more: a program can have
/// ten thousands of them.
const ENROLL_MS: u64 = 4;
const ENROLL_AREAS: u64 = 64;

/// How often one run of pages is tried again while events come.
const TRIES: usize = 200;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// Does what the watermarks ask for. True when there may be more to do at once.
    pub(crate) fn reclaim(&mut self) -> bool {
        // Where everything goes out all the time no fault waits for room, and the hand registers what it comes to.
        if self.footprint > self.marks.low && !self.config.evict_all {
            self.enroll_all();
        }
        let actions = self.marks.decide(&self.usage());
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
        while self.objects.clean_bytes() > self.marks.clean && self.objects.drop_clean(&mut self.store) {}
        if self.pool_full && self.objects.drop_clean(&mut self.store) {
            self.pool_full = false;
        }
        let evicted = if actions.evict > 0 { self.evict(actions.evict) } else { 0 };
        // Single pages take a slot each, and use the stage up long before they are many bytes.
        let crowded = self.stage.is_crowded() && actions.evict > 0;
        let deflate = if crowded { actions.deflate.max(CROWDED_BYTES) } else { actions.deflate };
        let deflated = self.deflate(deflate);
        if actions.evict > 0 && evicted == 0 && deflated == 0 && self.footprint > self.marks.low {
            // Nothing left to take: clean copies are memory too.
            return self.objects.drop_clean(&mut self.store) || dropped > 0;
        }
        dropped + evicted + deflated > 0
    }

    /// Moves about `want` bytes to the stage; how many it was.
    pub(crate) fn evict(&mut self, want: usize) -> usize {
        let (mut got, mut rounds) = (0, 0);
        // Looking for cold pages may cost so much, and not more: where nearly all are warm, one is as good as another.
        let mut patience = PATIENCE + want / PAGE * PATIENCE_PER_PAGE;
        self.release_quarantine();
        self.list_pins();
        while got < want && rounds < 2 && !self.stage.is_full() {
            let Some(area) = self.kernel.area(self.hand) else {
                self.hand = 0;
                rounds += 1;
                let now = self.kernel.now_ms();
                self.round_ms = now - self.round_began_ms;
                self.round_began_ms = now;
                continue;
            };
            let from = self.hand.max(area.start);
            let mut runs = [Run::default(); 64];
            let (found, upto) = self.kernel.present(from..area.end, EVICT_PAGES, &mut runs);
            // What is empty is not registered either: somebody may be about to give it to another userfaultfd.
            if found > 0 {
                match self.enroll(&area, from) {
                    Ok(()) => {}
                    // An event is under way, whose causer may have a fault to be served first.
                    Err(Errno::EAGAIN) => {
                        self.settle();
                        break;
                    }
                    // Somebody else's, or not of a kind that can be registered: left alone.
                    Err(_) => {
                        self.hand = area.end;
                        continue;
                    }
                }
            }
            let before = got;
            for run in &runs[..found] {
                got += self.evict_run(run.start..run.end, &mut patience);
            }
            if got > before {
                self.return_pins(from..upto);
            }
            self.hand = upto.max(from + PAGE);
            // A thread that waits goes first, as long as there is room; the hand stays where it is.
            self.settle();
            if !self.faults.is_empty() && self.footprint < self.marks.high {
                break;
            }
        }
        got
    }

    /// Registers an area, unless all of it from `from` on is registered already.
    fn enroll(&mut self, area: &Range<usize>, from: usize) -> Result<(), Errno> {
        if covers(&self.regions, &(from..area.end)) {
            return Ok(());
        }
        self.kernel.register(area.clone())?;
        // An event under way may be about this mapping, or about what was there before: what the regions say must be what is registered,
        // or an event whose part has come twice is taken for one that is yet to come (event.rs).
        if !self.is_quiet() {
            return Err(Errno::EAGAIN);
        }
        subtract(&mut self.regions, area);
        insert(&mut self.regions, area.clone());
        Ok(())
    }

    /// Registers all there is, ahead of the hand: only then does fresh memory fault to us and can be made to wait. No event tells of new
    /// mappings, and so this is done again and again while the footprint is high.
    fn enroll_all(&mut self) {
        let now = self.kernel.now_ms();
        if now < self.enroll_next_ms {
            return;
        }
        let (mut at, mut areas) = (0, 0);
        while let Some(area) = self.kernel.area(at) {
            at = area.end;
            areas += 1;
            // What is refused or must wait for an event now comes round again.
            let _ = self.enroll(&area, area.start);
        }
        self.enroll_next_ms = now + ENROLL_MS + areas / ENROLL_AREAS;
    }

    /// Takes the pages of a run of present ones that are cold, as long as there is patience to spare the others.
    fn evict_run(&mut self, run: Range<usize>, patience: &mut usize) -> usize {
        let (mut got, mut start) = (0, run.start);
        let mut at = run.start;
        while at < run.end {
            if !self.config.evict_all && *patience > 0 && self.spare(at) {
                *patience -= 1;
                got += self.move_out(start..at);
                start = at + PAGE;
            }
            at += PAGE;
        }
        got + self.move_out(start..run.end)
    }

    /// True when the page's heat saves it once more.
    fn spare(&mut self, at: usize) -> bool {
        let entry = self.index.get(at);
        match entry.heat().visited() {
            Some(heat) => {
                self.index.set(at, entry.with_heat(heat));
                true
            }
            None => false,
        }
    }

    /// True for pages that the kernel writes without a fault, and for those that somebody may be discarding.
    fn must_stay(&self, at: usize) -> bool {
        self.pins.binary_search(&at).is_ok() || !self.quarantine.is_empty() && self.quarantine.holds(at)
    }

    /// Moves a run to the stage, as far as it goes; how many bytes it was. What may be moved is asked anew before each move, since the
    /// events that were applied meanwhile may have changed the answer.
    fn move_out(&mut self, range: Range<usize>) -> usize {
        let (mut at, mut got, mut tries, mut unshared) = (range.start, 0, 0, 0);
        while at < range.end && covers(&self.regions, &(at..range.end)) {
            if self.must_stay(at) {
                at += PAGE;
                continue;
            }
            let windows = range.end.div_ceil(WINDOW) - at / WINDOW;
            let Some((slot, count)) = self.stage.find_free(windows.min(32)) else { break };
            let skip = at % WINDOW;
            let bytes = (range.end - at).min(count * WINDOW - skip);
            let bytes = (PAGE..bytes).step_by(PAGE).find(|&next| self.must_stay(at + next)).unwrap_or(bytes);
            let moved = self.kernel.move_pages(self.stage.at(slot) + skip, at, bytes);
            self.staged(at, moved.bytes, slot);
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
                // Shared since a fork, or pinned by I/O in flight: the first can be helped.
                Some(Errno::EBUSY) if unshared != at && self.kernel.unshare(at) => unshared = at,
                Some(Errno::EBUSY) => {
                    self.stat.busy.fetch_add(1, Relaxed);
                    let entry = self.index.get(at);
                    self.index.set(at, entry.with_heat(Heat::HOT));
                    at += PAGE;
                }
                // The page went meanwhile.
                Some(Errno::ENOENT) => at += PAGE,
                // Another protection, locked, or no longer what it was: not ours to take.
                Some(_) => break,
            }
        }
        got
    }

    /// Enters pages that lie on the stage now.
    fn staged(&mut self, at: usize, bytes: usize, slot: u32) {
        if bytes == 0 {
            return;
        }
        debug_assert!(self.displaced.is_empty(), "a move proves that no event is due");
        self.stat.pgdeactivate.fetch_add((bytes / PAGE) as u64, Relaxed);
        let first = at / WINDOW;
        for page in (at..at + bytes).step_by(PAGE) {
            let old = self.index.get(page);
            let prior = match old.kind() {
                Kind::Clean if self.objects.get(old.id()).body != Body::Dropped => old,
                // What the page tables say counts: a page that was present is what the program saw.
                _ => {
                    self.drop_entry(old);
                    Entry::NONE
                }
            };
            let slot = slot + (page / WINDOW - first) as u32;
            let index = page / PAGE % WINDOW_PAGES;
            self.stage.put(slot, index, page, prior);
            let id = slot * WINDOW_PAGES as u32 + index as u32;
            self.index.set(page, Entry::new(Kind::Staged, id, 0, old.heat()));
        }
    }

    fn list_pins(&mut self) {
        self.pins.clear();
        self.kernel.pins(&mut self.pins);
    }

    fn return_pins(&mut self, moved: Range<usize>) {
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
        let want = if self.pool_full { want.min((self.in_flight == 0) as usize) } else { want };
        while got < want {
            let Some(slot) = self.stage.oldest() else { break };
            let s = self.stage.slot(slot);
            let objects = &self.objects;
            let priors = core::array::from_fn(|page| {
                let prior = s.prior[page];
                (s.staged & 1 << page != 0 && prior.kind() == Kind::Clean)
                    .then(|| Prior { body: objects.get(prior.id()).body, page: prior.offset() })
                    .filter(|p| p.body != Body::Dropped)
            });
            let lent = (0..WINDOW_PAGES).filter(|p| priors[*p].is_some()).map(|p| s.prior[p].id());
            let lent: Vec<u32> = lent.collect();
            got += s.staged.count_ones() as usize * PAGE;
            let job = Job { slot, at: self.stage.at(slot), pages: s.staged, priors };
            for id in lent {
                // The job reads the object, whatever becomes of the page meanwhile.
                self.objects.retain(id, true);
                self.stage.lend(slot, id);
            }
            self.in_flight_pages += self.stage.send(slot);
            self.in_flight += 1;
            self.store.submit(job);
        }
        got
    }

    /// Applies all results there are. True when there were any.
    pub(crate) fn collect(&mut self) -> bool {
        let mut any = false;
        while let Some(done) = self.store.complete() {
            any = true;
            self.apply_done(done);
        }
        any
    }

    pub(crate) fn apply_done(&mut self, done: Done) {
        match done {
            Done::Stored { slot, reused, zero, in_body, body } => {
                self.stored(slot, reused, zero, in_body, body)
            }
            Done::Fetched { slot, sound } => self.fetched(slot, sound),
        }
    }

    /// A slot's job is over, done or withdrawn.
    pub(crate) fn job_over(&mut self, slot: u32) {
        self.in_flight -= 1;
        self.in_flight_pages -= self.stage.slot(slot).sent.count_ones() as usize;
        let (lent, len) = self.stage.unlend(slot);
        for id in &lent[..len] {
            self.objects.release(*id, true, &mut self.store);
        }
    }

    fn stored(&mut self, slot: u32, reused: u16, zero: u16, in_body: u16, body: Option<Body>) {
        self.pool_full = in_body != 0 && body.is_none();
        let now = self.kernel.now_ms();
        let object = body.map(|body| self.objects.insert(body, now));
        // Named once for as long as it is handed out, so that it is freed if nobody wants it any more.
        if let Some(id) = object {
            self.objects.retain(id, false);
        }
        let staged = self.stage.slot(slot).staged;
        let mut kept = 0;
        for page in (0..WINDOW_PAGES).filter(|p| staged & 1 << p != 0) {
            let bit = 1u16 << page;
            let owner = self.stage.slot(slot).owner[page];
            let heat = self.index.get(owner).heat();
            debug_assert_eq!(stage_page(self.index.get(owner)), (slot, page));
            let entry = if reused & bit != 0 {
                let prior = self.stage.take(slot, page, false);
                self.objects.depend(prior.id());
                self.stat.clean_reused.fetch_add(1, Relaxed);
                prior.with_kind(Kind::Stored)
            } else if zero & bit != 0 {
                let prior = self.stage.take(slot, page, false);
                self.drop_entry(prior);
                self.stat.same_filled.fetch_add(1, Relaxed);
                Entry::new(Kind::Zero, 0, 0, heat)
            } else if let (Some(id), true) = (object, in_body & bit != 0) {
                let prior = self.stage.take(slot, page, false);
                self.drop_entry(prior);
                self.objects.retain(id, true);
                let offset = (in_body & (bit - 1)).count_ones() as u16;
                Entry::new(Kind::Stored, id, offset, heat)
            } else {
                kept |= bit;
                continue;
            };
            self.count_stored(1, 0);
            self.index.set(owner, entry.with_heat(Heat::COLD));
        }
        if let Some(id) = object {
            self.objects.release(id, false, &mut self.store);
        }
        self.job_over(slot);
        self.stat.zswpout[order((staged & !kept).count_ones())].fetch_add(1, Relaxed);
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

/// The order of the smallest folio that holds `pages` pages.
pub(crate) fn order(pages: u32) -> usize {
    pages.max(1).next_power_of_two().ilog2() as usize
}
