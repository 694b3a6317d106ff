//! What relatives store once: pages that several processes have since a fork are put into a log by one engine, for
//! all of them.
//!
//! ```text
//!   who writes     unlogged ── reads, compresses ──> record of its log
//!   each of them   note_record: Clean, as if loaded from there ── evict_logged ──> inactive list
//!                      ├─ hash as there: dropped, depends on the record
//!                      └─ another: an object of its own
//! ```
//!
//! Each for itself would make an object of its own, by way of a copy: with two of them and a ratio of 2 to 1
//! nothing would be gained.
//!
//! This is safe because
//! 1. a record is a guess, as any clean copy: a page depends on it only where the hash that it has when it has left the
//!    program is the record's. So it does not matter what has become of the page since it was logged, or whether this
//!    process ever had it;
//! 2. what is noted of a page goes wherever the page goes, or is forgotten with it, by the same events;
//! 3. a record stays as it is as long as one of the relatives may depend on it (shared_store.rs of the
//!    engine), and is checked against its hashes as it is loaded.

use crate::kernel::{Kernel, LOOK_PAGES, Run, Store, WINDOW_PAGES};
use crate::pager::Pager;
use crate::shared_store::Unlogged;
use crate::swap_map::{Entry, Kind};
use base::PageMask;
use vmscan::{PAGE, WINDOW};
use zswap::objects::Body;

/// Of so many pages at a time it is asked who has them, for one look for what to log.
const LOOKS: usize = 16;

/// How many mappings are asked about for one area.
const ASKS: usize = 256;

/// How much of what was logged goes out in one turn, at most, in bytes.
const LOGGED_STEP: usize = 4 * WINDOW;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// Looks for the next window of which others have pages too that are stored nowhere, and cold.
    pub fn unlogged(&mut self) -> Unlogged {
        for _ in 0..LOOKS {
            let area = match self.kernel.area(self.shared.search(), &mut { ASKS }) {
                Ok(Some(area)) => area,
                Ok(None) => {
                    self.shared.search_from(0);
                    return Unlogged::End;
                }
                Err(upto) => {
                    self.shared.search_from(upto);
                    continue;
                }
            };
            let from = self.shared.search().max(area.start);
            let to = area.end.min((from & !(WINDOW - 1)) + LOOK_PAGES * PAGE);
            self.shared.search_from(to);
            if !self.regions.registered().covers(&(from..to)) {
                continue;
            }
            let shared = self.kernel.shared(from..to);
            let mut at = from;
            while at < to {
                let (window, end) = (at & !(WINDOW - 1), to.min((at & !(WINDOW - 1)) + WINDOW));
                let mut pages = PageMask::NONE;
                for page in (at..end).step_by(PAGE) {
                    let is_shared = shared & 1 << ((page - from) / PAGE) != 0;
                    if is_shared && self.map.get(page).kind() == Kind::None && !self.spare(page) {
                        pages.insert((page - window) / PAGE);
                    }
                }
                if !pages.is_empty() {
                    self.shared.search_from(end);
                    return Unlogged::Pages(window, pages);
                }
                at = end;
            }
        }
        Unlogged::None
    }

    /// A log has pages of the window at `window`, one after the other in `body`: its own engine's, or a `borrowed` one.
    /// Those that are there, and stored nowhere else, go out soon.
    pub fn note_record(&mut self, window: usize, pages: PageMask, body: Body, borrowed: bool) {
        let mut id = None;
        for (rank, page) in pages.iter().enumerate() {
            let at = window + page * PAGE;
            let entry = self.map.get(at);
            if entry.kind() != Kind::None || !self.regions.registered().contains(at) || !self.is_there(at) {
                continue;
            }
            let id = match id {
                Some(id) => id,
                None => {
                    let now = self.kernel.now_ms();
                    *id.insert(self.objects.insert_common(body, pages.count(), now, borrowed))
                }
            };
            self.objects.retain(id, false);
            self.map.set(at, Entry::new(Kind::Clean, id, rank, entry.heat()));
        }
        if id.is_some() {
            self.shared.note_logged(window);
        }
    }

    fn is_there(&mut self, at: usize) -> bool {
        self.kernel.present(at..at + PAGE, 1, &mut [Run::default()]).0 > 0
    }

    /// True when a log has a page of the program's, in or out, as far as is known.
    pub(super) fn is_common(&self, at: usize) -> bool {
        let entry = self.map.get(at);
        let is_named = matches!(entry.kind(), Kind::Stored | Kind::Clean);
        is_named && matches!(self.objects.get(entry.id()).body, Body::Common { .. })
    }

    /// A page is about to be written to: what a log has of it is another.
    pub(super) fn forget_record(&mut self, at: usize) {
        if self.map.get(at).kind() == Kind::Clean && self.is_common(at) {
            let entry = self.map.set(at, Entry::NONE);
            self.drop_entry(entry);
        }
    }

    /// Moves some of what was logged to the inactive list, and has as much compared; how many bytes it was. It
    /// frees memory only when all of the relatives have done so, and so it is done also by those that are far from
    /// their limit.
    pub(super) fn evict_logged(&mut self, most: usize) -> usize {
        if !self.shared.has_logged() {
            return 0;
        }
        self.release_quarantine();
        self.list_pins();
        let (mut got, mut moved) = (0, 0..0);
        while got < most.min(LOGGED_STEP)
            && !self.inactive.is_full()
            && let Some(range) = self.shared.take_logged()
        {
            got += self.evict_range(range, &mut moved).0;
        }
        self.return_pins(moved);
        self.deflate(got);
        got
    }

    /// Brings what lies in logs into the pool, where no relative is left that has it too: a window at a time. False
    /// when there is nothing left of it.
    pub fn bring_logs_home(&mut self) -> bool {
        self.shared.forget_logged();
        for _ in 0..LOOKS * LOOK_PAGES {
            let Some((page, entry)) = self.shared.next_home(&self.map) else {
                return self.objects.has_common();
            };
            if !self.is_common(page) {
                continue;
            }
            if entry.kind() == Kind::Clean {
                self.forget_record(page);
                continue;
            }
            let window = page & !(WINDOW - 1);
            let is_out = |this: &Self, at: usize| {
                let entry = this.map.get(at);
                entry.kind() == Kind::Stored
                    && matches!(this.objects.get(entry.id()).body, Body::Common { .. })
            };
            let mask = (0..WINDOW_PAGES).filter(|&p| is_out(self, window + p * PAGE)).collect();
            if self.inactive.is_full() || self.ahead.slot_of(window).is_some() || !self.gather(window, mask) {
                // Tried again later.
                self.shared.retry_home(page);
                return true;
            }
            self.deflate(WINDOW);
            return true;
        }
        true
    }
}
