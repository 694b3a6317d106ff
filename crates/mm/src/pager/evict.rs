//! Out: what the watermarks ask for. The clock hand takes present pages to the inactive list (move_out.rs), the
//! inactive list's oldest go to the compressors (deflate.rs), and what they made of them becomes the pages' new
//! place.

use crate::kernel::{Errno, Kernel, LOOK_PAGES, Run, Store};
use crate::pager::Pager;
use crate::pager::huge::HugeOut;
use crate::swap_map::Kind;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use vmscan::heat::Heat;
use vmscan::watermark::Actions;
use vmscan::{PAGE, WINDOW};

/// So long pages are taken, in nanoseconds, until it is looked for faults all the same: of memory that cannot be
/// written to each run can take as long as a fault.
const LONG_NS: u64 = 500_000;

/// How much of a crowded inactive list is sent to the compressors at a time.
const CROWDED_BYTES: usize = 64 * PAGE;

/// How often a search looks which pages are there, and for how many wanted pages once more.
const LOOKS: usize = 4;
const PAGES_PER_LOOK: usize = 8;

/// How many windows that streams have passed are looked at in a search, beside one for each that is wanted: most
/// may be gone, or hot.
const PASSED_LOOKS: usize = 32;

/// How many warm pages are spared in a search, and for each page that is wanted: a bound for the time that somebody
/// may wait for it. Each is colder afterwards, so that altogether no more are spared than were made warm, three
/// times for a fault at most.
pub(super) const PATIENCE: usize = 4096;
const PATIENCE_PER_PAGE: usize = 64;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// Does what the watermarks ask for, evicting about `most` bytes at most. True when there may be more to do at
    /// once.
    pub(super) fn reclaim(&mut self, most: usize) -> bool {
        // Where everything goes out all the time no fault waits for room, and the hand registers what it comes to.
        let is_asked = self.limit.is_above_asked();
        if (is_asked || self.limit.footprint() > self.marks().wake) && !self.limit.evicts_all() {
            self.register_all();
        }
        self.reclaim.begin_search();
        let actions = self.limit.decide(&self.usage());
        let dropped = self.drop_spare(&actions);
        let logged = self.evict_logged(most);
        let evicted = if actions.evict > 0 { self.evict(actions.evict.min(most)) } else { 0 };
        // What goes out in pieces leaves holes in its slots, and can use the inactive list up long before it is
        // many bytes.
        let crowded = self.inactive.is_crowded() && actions.evict > 0;
        let deflate = if crowded { actions.deflate.max(CROWDED_BYTES) } else { actions.deflate };
        let deflated = self.deflate(deflate);
        let recompressed = actions.evict > 0 && self.recompress();
        let shrunk = actions.evict > 0 && self.shrink(actions.evict.min(most));
        let written = self.write_back() | shrunk | (is_asked && self.write_raw(actions.evict.min(most)));
        let is_above = self.limit.footprint() > self.marks().low;
        if actions.evict > 0
            && logged + evicted + deflated + self.inactive.in_flight() == 0
            && self.faults.is_empty()
            && (is_above || is_asked)
        {
            // What was spared is cold unless somebody touches it again: it is looked at before anything else goes.
            if self.reclaim.has_spared_touched() {
                self.reclaim.lenience.in_vain();
                return true;
            }
            // Nothing left to take: clean copies are memory too, and so is what an object holds of pages that are
            // elsewhere, and the pool where there are areas.
            return self.drop_clean()
                || dropped > 0
                || self.write_some()
                || self.limit.footprint() >= self.marks().high && self.recompress_at_last();
        }
        recompressed || written || dropped + logged + evicted + deflated > 0
    }

    /// Gives back what nobody needs: waste, stock beyond what is wanted, and clean copies. How many bytes of stock
    /// it was.
    fn drop_spare(&mut self, actions: &Actions) -> usize {
        for first in self.inactive.blocks_of_waste() {
            let is_whole = self.kernel.is_huge(self.huge_at(self.inactive.at(first)));
            self.discard_block(first, is_whole);
        }
        for _ in 0..self.inactive.waste_len() {
            if let Some(slot) = self.inactive.take_waste() {
                self.discard_slot(slot);
            }
        }
        let mut dropped = 0;
        while dropped < actions.drop {
            let Some(slot) = self.inactive.take_stock().or_else(|| self.inactive.take_opened()) else {
                break;
            };
            dropped += self.inactive.slot(slot).present.count() * PAGE;
            self.discard_slot(slot);
        }
        let is_much = dropped + self.inactive.block_bytes() <= actions.drop;
        if is_much || dropped < actions.drop && self.limit.footprint() >= self.marks().max {
            dropped += self.drop_huge_stock();
        }
        let clean = self.marks().clean_at(self.objects.pool_bytes());
        while self.objects.clean_bytes() > clean && self.drop_clean() {}
        if self.objects.is_full() && self.drop_clean() {
            self.objects.set_full(false);
        }
        dropped
    }

    /// Gives up a clean copy: one whose page should have gone out by now, or the newest. False when there is none.
    fn drop_clean(&mut self) -> bool {
        let due = 2 * self.resident_pages();
        self.objects.drop_clean(due)
    }

    /// Moves about `want` bytes to the inactive list; how many it was.
    pub(super) fn evict(&mut self, want: usize) -> usize {
        if self.rests() {
            return 0;
        }
        self.release_quarantine();
        self.list_pins();
        let evicts_all = self.limit.evicts_all();
        if evicts_all {
            // It is the hand that finds what is new.
            self.reclaim.forget_areas();
        }
        let cold = self.evict_cold(want);
        let rest = want - cold.min(want);
        let mut got = cold + self.evict_passed(rest) + self.evict_recent(rest);
        if self.cow.is_shared() && got > 0 {
            return got;
        }
        // Where little is left to take, going round again and again would cost those who wait more than it brings.
        let (mut rounds, mut looks) = (0, LOOKS + want / PAGE / PAGES_PER_LOOK);
        // Looking for cold pages may cost so much, and not more: where nearly all are warm, one is as good as another.
        let mut patience = PATIENCE + want / PAGE * PATIENCE_PER_PAGE;
        while got < want && rounds < 2 && looks > 0 && !self.inactive.is_full() {
            looks -= 1;
            let mut runs = [Run::default(); 64];
            let Some((found, upto)) = self.reclaim.find(&mut self.kernel, &mut runs) else {
                rounds += 1;
                if !self.reclaim.round(&mut self.kernel, evicts_all) && !evicts_all {
                    break;
                }
                continue;
            };
            let (more, is_due) = self.evict_found(&runs[..found], upto, want - got, &mut patience);
            got += more;
            // An event is under way, whose causer may have a fault to be served first; and a thread that waits goes
            // first.
            let waited = self.faults.len();
            self.settle();
            if is_due || self.faults.len() > waited {
                break;
            }
        }
        got
    }

    /// Takes what it can of runs of present pages that the hand has found, up to `upto`, until about `want` bytes
    /// have gone: how many it was, and whether an event is to be read first.
    fn evict_found(&mut self, runs: &[Run], upto: usize, want: usize, patience: &mut usize) -> (usize, bool) {
        let (mut got, mut is_due, began) = (0, false, self.kernel.now_ns());
        let mut has_touched = false;
        self.reclaim.go_on_from(upto);
        for run in runs {
            let is_long = got > 0 && self.kernel.now_ns() > began + LONG_NS;
            if got >= want || is_due || is_long {
                self.reclaim.go_on_from(self.reclaim.hand().min(run.start));
                break;
            }
            has_touched |= run.touched;
            // Of a huge page all is told as one, and all is passed.
            let end = if run.huge { self.huge_at(run.end - PAGE).end } else { run.end };
            if run.touched && self.spare_touched(run.start..end) {
                self.reclaim.go_on_from(self.reclaim.hand().max(end));
                continue;
            }
            let taken = self.evict_occupied(run, patience);
            got += taken.bytes;
            is_due = taken.is_due;
            if is_due || taken.upto > run.end {
                self.reclaim.go_on_from(taken.upto);
            }
        }
        if got > 0 {
            self.reclaim.lenience.took(got / PAGE);
            self.reclaim.found();
            // A huge page is taken whole, wherever the hand stood in it.
            self.return_pins(self.huge_at(runs[0].start).start..self.reclaim.hand());
        }
        if is_due {
            self.reclaim.found();
        }
        if has_touched {
            self.watch_passed(runs);
        }
        (got, is_due)
    }

    /// True where a range is spared since it was touched after the hand came by last; not what could not be taken
    /// anyway.
    fn spare_touched(&mut self, range: Range<usize>) -> bool {
        if self.limit.evicts_all() {
            return false;
        }
        let area = self.reclaim.area(&mut self.kernel, &self.regions, range.start);
        let pages = range.len() / PAGE;
        let is_spared =
            area.is_some_and(|area| area.start < range.end) && self.reclaim.lenience.spares(pages);
        if is_spared {
            self.stat.referenced.fetch_add(pages as u64, Relaxed);
            self.reclaim.spared_touched();
        }
        is_spared
    }

    /// What the hand has passed of these runs is watched anew: when it comes again, it sees what was touched meanwhile.
    /// Where that is refused, because an event is under way or a part is not registered, all of it counts as touched
    /// once more.
    fn watch_passed(&mut self, runs: &[Run]) {
        if self.limit.evicts_all() {
            return;
        }
        let (first, mut end) = (&runs[0], self.reclaim.hand());
        // A huge page of which a part alone is watched would be split.
        let start = if first.huge { self.huge_at(first.start).start } else { first.start };
        if runs.iter().rfind(|run| run.start < end).is_some_and(|last| last.huge) {
            end = self.huge_at(end).start;
        }
        for part in self.regions.registered().within(&(start..end)) {
            let _ = self.kernel.watch(part);
        }
    }

    /// True when nothing was found lately, and nobody waits for room: what others gave up meanwhile is to be seen
    /// at once then.
    fn rests(&mut self) -> bool {
        self.faults.is_empty()
            && !self.faults.has_waiting()
            && !self.faults.is_awaiting_huge()
            && !self.limit.evicts_all()
            && self.reclaim.rests(self.kernel.now_ns())
    }

    /// Moves to the inactive list what streams have gone through, and nothing has made hot; how many bytes it was.
    fn evict_passed(&mut self, want: usize) -> usize {
        let (mut got, mut moved, mut looks) = (0, 0..0, PASSED_LOOKS + want / WINDOW);
        while got < want
            && looks > 0
            && !self.inactive.is_full()
            && let Some(window) = self.ahead.passed()
        {
            looks -= 1;
            // What came in with the stream has a copy in the pool. Fresh memory has none, and is left to the hand:
            // it is what the program has made last.
            let is_due = |this: &Self, page: usize| {
                let entry = this.map.get(page);
                entry.kind() == Kind::Clean && (entry.heat() <= Heat::WARM || this.limit.evicts_all())
            };
            let (mut at, end) = (window, window + WINDOW);
            let huge = self.huge_at(window);
            if self.huge.is_used && self.kernel.is_huge(huge.clone()) {
                // All of it has been passed with the last window; and whose last page was out once is no end of a
                // mapping, which stays.
                if end == huge.end
                    && is_due(self, end - PAGE)
                    && let HugeOut::Gone(bytes) = self.evict_huge(&huge, &mut 0)
                {
                    got += bytes;
                    moved = hull(&moved, &huge);
                }
                continue;
            }
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

    /// Moves what is there of a range to the inactive list, but for what stays for a reason: how many bytes it was,
    /// and whether anything is left. Adds the range to `moved`.
    pub(super) fn evict_range(&mut self, range: Range<usize>, moved: &mut Range<usize>) -> (usize, bool) {
        let (mut runs, mut patience) = ([Run::default(); 2 * WINDOW / PAGE], PATIENCE);
        let (found, upto) = self.kernel.present(range.clone(), usize::MAX, &mut runs);
        let (mut got, mut is_left) = (0, upto < range.end);
        for run in &runs[..found] {
            let taken = self.evict_occupied(&self.whole_within(run, &range), &mut patience);
            got += taken.bytes;
            is_left |= taken.bytes < run.end - run.start || taken.is_due;
        }
        *moved = hull(moved, &range);
        (got, is_left)
    }

    /// Takes what is manageable and cold of a run of present pages. Of huge pages it takes all, also what lies beside
    /// the run.
    pub(super) fn evict_occupied(&mut self, run: &Run, patience: &mut usize) -> Taken {
        let (mut at, mut bytes) = (run.start, 0);
        while at < run.end {
            let Some(area) = self.reclaim.area(&mut self.kernel, &self.regions, at) else {
                return Taken { bytes, upto: at, is_due: true };
            };
            if area.start > at {
                // What is registered now was asked about now.
                at = area.start;
                continue;
            }
            let part = at..run.end.min(area.end);
            match self.register(&area, part.start) {
                Ok(()) => {
                    let huge = self.huge_at(at);
                    let out = match run.huge && huge.end <= area.end {
                        true => self.evict_huge(&huge, patience),
                        false => HugeOut::Split,
                    };
                    if let HugeOut::Gone(more) = out {
                        bytes += more;
                        at = huge.end;
                        continue;
                    }
                    let more = self.evict_run(part.clone(), patience);
                    self.stat.thp_swpout_fallback.fetch_add((run.huge && more > 0) as u64, Relaxed);
                    bytes += more;
                }
                Err(Errno::EAGAIN) => return Taken { bytes, upto: part.start, is_due: true },
                // Somebody else's, or not of a kind that can be registered: left alone.
                Err(_) => {}
            }
            at = part.end;
        }
        Taken { bytes, upto: at, is_due: false }
    }

    /// Takes the pages of a run of present ones that are cold, as long as there is patience to spare the others.
    fn evict_run(&mut self, run: Range<usize>, patience: &mut usize) -> usize {
        let (mut got, mut start) = (0, run.start);
        // To take a page from one of those who have it frees little, and costs a copy, and what that is compressed
        // to: at last, for a thread that waits and waits. Where there are areas, as fast as they take that.
        let spares_shared = self.cow.is_shared() && !self.areas_take().unwrap_or_else(|| self.is_at_last());
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
    pub(super) fn spare(&mut self, at: usize) -> bool {
        let is_spared = self.map.cool(at, Heat::visited);
        if is_spared {
            self.reclaim.found();
        }
        is_spared
    }
}

/// What was taken of a run.
pub(super) struct Taken {
    /// How much it was.
    pub bytes: usize,
    /// Where to go on.
    pub upto: usize,
    /// Events are to be read before that.
    pub is_due: bool,
}

/// Joins two ranges, of which the first may be empty.
pub(super) fn hull(whole: &Range<usize>, range: &Range<usize>) -> Range<usize> {
    if whole.is_empty() { range.clone() } else { whole.start.min(range.start)..whole.end.max(range.end) }
}
