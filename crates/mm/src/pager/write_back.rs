//! Out of the pool to a swap area, and back: the oldest objects go where the pool is at its limit, or where nothing
//! else is left that would make room.
//!
//! This is safe because
//! 1. an object is in the pool until its batch is written: who wants it meanwhile has it, and what is given up
//!    meanwhile has no place in the area afterwards;
//! 2. what is read is opened with the key, serial and place under which it was sealed, and compared with its
//!    fingerprint as any object: what is not that is lost, and said to be;
//! 3. a thread that waits for a read is looked at again after every read, whatever has become of its page: it waits for
//!    one that is under way (`Pager::check`).

use crate::kernel::{Kernel, Store};
use crate::pager::Pager;
use crate::pager::serve::Outcome;
use crate::swap_map::{Entry, Kind};
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use swap::Row;
use swap::slots::Slots;
use vmscan::balance::Miss;
use vmscan::readahead::Extent;
use vmscan::shrinker::Pool;
use vmscan::{PAGE, WINDOW};
use zswap::objects::{BATCH_BYTES, BATCHES, Came, Io, WriteBack};

/// While so many reads are under way none is begun that nobody waits for: those of two windows, page by page.
const READS_AHEAD: usize = 32;

/// How much is read around a page that is asked for: what a disk takes hardly longer for than for the page alone.
const AROUND: usize = 4 * PAGE;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// From now on the process has these slots of swap areas.
    pub fn open_areas(&mut self, slots: Slots) {
        self.objects.swapped_mut().open(slots);
    }

    /// How many bytes the pool may have at most where there are areas, and how much of what it comes to, in percent, is
    /// left once objects have begun to go.
    pub fn set_pool_limit(&mut self, max_pool_bytes: usize, accept_threshold_percent: u8) {
        let balanced = self.balance.most_bytes(self.marks().limit);
        self.pool_limit.set(max_pool_bytes.min(balanced), accept_threshold_percent);
    }

    /// A page is asked for that is out: what that says of the pool and of what is resident.
    pub(super) fn weigh(&mut self, at: usize) {
        let entry = self.map.get(at);
        let is_swapped = self.objects.get(entry.id()).is_swapped();
        let stored_pages = self.pooled_bytes() / PAGE;
        let miss = Miss {
            distance: self.map.distance(entry),
            resident: self.resident_pages(),
            left: is_swapped.then(|| self.objects.left_since(entry.id())),
            page_bytes: self.objects.pool_bytes() / stored_pages.max(1),
        };
        self.balance.missed(self.limit.marks().limit, &miss);
    }

    /// From now on what is new goes to areas as it is, page by page, while these have room: nothing is to stay in the
    /// pool. Or it is.
    pub fn close_pool(&mut self, is_closed: bool) {
        self.pool_limit.close(is_closed);
    }

    /// From now on nothing is written to areas, or what has to be (`memory.zswap.writeback`). What is there is read.
    pub fn set_writeback(&mut self, writes: bool) {
        self.pool_limit.keep(!writes);
    }

    /// Before a clone, which a child of this row will come of: what it takes over of what lies in areas. False where
    /// there are areas, and no row: there can be no clone.
    pub fn prepare_child(&mut self, row: Option<Row>) -> bool {
        self.objects.swapped_mut().prepare_child(row)
    }

    /// The row of a child that is about to be cloned.
    pub fn childs_row(&self) -> Option<Row> {
        self.objects.swapped().childs().map(Slots::row)
    }

    /// Nothing more is written to the area that begins with this cluster.
    pub fn close_area(&mut self, first_cluster: u32) {
        self.objects.swapped_mut().slots_mut().into_iter().for_each(|slots| slots.close_area(first_cluster));
    }

    /// True where there are areas.
    pub fn has_areas(&self) -> bool {
        self.objects.swapped().is_open()
    }

    /// How many bytes the areas have room for.
    pub fn area_room(&self) -> u64 {
        self.objects.swapped().slots().map_or(0, Slots::free_slots) * PAGE as u64
    }

    /// How much of the pool may go to areas that have room for so many bytes.
    pub fn may_go_bytes(&self, room: u64) -> u64 {
        if self.pool_limit.is_kept() { 0 } else { room.min(self.objects.pool_bytes() as u64) }
    }

    /// Whether areas take what goes into the pool as fast as it comes; `None` where none has room.
    pub(super) fn areas_take(&self) -> Option<bool> {
        let has_room = self.objects.swapped().has_room() && !self.pool_limit.is_kept();
        has_room.then(|| self.objects.swapped().under_way().0 < BATCHES)
    }

    /// False where there are areas, and none has room.
    pub fn has_room(&self) -> bool {
        self.objects.swapped().has_room()
    }

    /// Bytes of the program that are in the pool, uncompressed.
    pub fn pooled_bytes(&self) -> usize {
        // What is on its way depends on objects, too.
        self.stored_bytes().saturating_sub(self.objects.swapped_pages() * PAGE)
    }

    /// Gives clusters back of which this process needs nothing.
    pub fn give_back_slots(&mut self) {
        self.objects.give_back_slots();
    }

    /// Has the oldest objects written while the pool is beyond its limit. True when that has freed memory, or may soon.
    pub(super) fn write_back(&mut self) -> bool {
        if !self.objects.swapped().is_open() {
            return false;
        }
        let pool = self.objects.pool_bytes();
        // What goes leaves holes, which the pool does not give back at once: it is counted by its bytes.
        let any = self.write_while(|pager, gone| pager.pool_limit.wants(pool.saturating_sub(gone)));
        self.stat.pool_limit_hit.fetch_add(self.pool_limit.take_hits(), Relaxed);
        any
    }

    /// From now on some of the pool goes as well where pages must go, or it does not.
    pub fn set_shrinker(&mut self, is_wanted: bool) {
        self.pool_limit.set_shrinker(is_wanted && self.has_areas());
    }

    /// The pool's part of `want` bytes that must go, where it shrinks early. True when some of it goes.
    pub(super) fn shrink(&mut self, want: usize) -> bool {
        let (bytes, resident) = (self.objects.pool_bytes(), self.resident_pages() * PAGE);
        let stored = self.pooled_bytes().saturating_sub(self.borrowed_bytes());
        let (false, Some(shrinker)) = (self.pool_limit.is_kept(), self.pool_limit.shrinker_mut()) else {
            return false;
        };
        let due = shrinker.due(want, resident, Pool { bytes, stored }, BATCH_BYTES);
        self.write_while(|_, gone| gone < due)
    }

    /// Has a batch of the oldest objects written. False where there is no area, no room, or nothing old enough, where
    /// as many batches are under way as may be, or where nothing is to be written.
    pub(super) fn write_some(&mut self) -> bool {
        !self.pool_limit.is_kept()
            && matches!(self.write_batch(), WriteBack::Begun { .. } | WriteBack::Freed { .. })
    }

    /// Has the oldest objects written as long as they are raw, and no more than `want` bytes: they take as much of the
    /// pool as their pages did, and so it frees nothing that these went there. True when some go.
    pub(super) fn write_raw(&mut self, want: usize) -> bool {
        let is_kept = self.pool_limit.is_kept();
        self.write_while(|pager, gone| gone < want && !is_kept && pager.objects.oldest_is_raw())
    }

    /// Has batches of the oldest objects written as long as `goes_on` says so, which hears how many bytes have gone.
    /// True when any have.
    fn write_while(&mut self, mut goes_on: impl FnMut(&mut Self, usize) -> bool) -> bool {
        let (mut gone, mut any) = (0, false);
        while goes_on(self, gone) {
            match self.write_batch() {
                WriteBack::Begun { bytes } | WriteBack::Freed { bytes } => gone += bytes.max(1),
                WriteBack::Full | WriteBack::None => break,
            }
            any = true;
        }
        any
    }

    fn write_batch(&mut self) -> WriteBack {
        let came_to = self.objects.write_back();
        match came_to {
            WriteBack::Begun { .. } => {
                let now_ns = self.kernel.now_ns();
                for (number, since_ns) in self.batches_ns.iter_mut().enumerate() {
                    let is_under_way = self.objects.swapped().batch(number).is_some();
                    *since_ns = is_under_way.then(|| since_ns.unwrap_or(now_ns));
                }
            }
            WriteBack::Full => {
                self.stat.area_full.fetch_add(1, Relaxed);
                self.stat.count_no_room(self.objects.oldest_pages());
            }
            WriteBack::Freed { .. } | WriteBack::None => {}
        }
        came_to
    }

    /// A batch was written, or could not be: then its objects stay where they are.
    pub(super) fn written(&mut self, number: usize, is_written: bool) {
        self.count_batch(number, is_written);
        self.objects.written(number, is_written);
    }

    /// An object was read, or not: whoever waits for one looks again.
    pub(super) fn came_back(&mut self, id: u32, came: Came) {
        if let (Some(shrinker), Came::Here(body)) = (self.pool_limit.shrinker_mut(), came) {
            shrinker.came_back(body.bytes());
        }
        if let Came::Here(_) = came {
            self.stat.count_read(self.objects.get(id).pages.into());
        }
        match came {
            Came::Not => self.shortage.refused(self.kernel.now_ns()),
            Came::Here(_) if self.shortage.has_ended() => self.faults.may_have_memory(),
            Came::Here(_) | Came::Lost(_) => {}
        }
        self.objects.came_back(id, came);
        self.faults.have_read();
    }

    /// The page at `at` is in an area: has its object read, and as much beside it as is wanted.
    pub(super) fn read_back(&mut self, at: usize, entry: Entry, extent: Extent) -> Outcome {
        if let Io::Lost(damaged) = self.objects.get(entry.id()).io() {
            return self.lose(at, entry, damaged);
        }
        if self.objects.get(entry.id()).io() == Io::None && self.rests_from_reads() {
            return Outcome::Starving;
        }
        self.objects.read_back(entry.id());
        self.worth.add(0, self.objects.take_vain());
        let around = match extent {
            Extent::Stream { .. } => WINDOW,
            Extent::Window if self.worth.pays() => AROUND,
            Extent::Window | Extent::Page => PAGE,
        };
        let from = at & !(around - 1);
        self.read_ahead(from..from + around);
        self.objects.submit_reads();
        Outcome::Reading
    }

    /// Has read what is in an area of a range, though nobody waits for it yet. `submit_reads` follows.
    pub(super) fn read_ahead(&mut self, range: Range<usize>) {
        for page in range.step_by(PAGE) {
            let entry = self.map.get(page);
            let may_read = self.objects.swapped().under_way().1 < READS_AHEAD && !self.rests_from_reads();
            if may_read && entry.kind() == Kind::Stored && self.objects.read_back(entry.id()) {
                self.objects.note_ahead(entry.id());
            }
        }
    }

    /// True while nothing is read, since the pool had no memory for what was.
    fn rests_from_reads(&mut self) -> bool {
        self.shortage.is_on() && self.shortage.rests(self.kernel.now_ns())
    }

    /// Has those who wait for memory of the pool look again when it is time.
    pub(super) fn end_rest_of_reads(&mut self) {
        let has_freed = self.objects.take_freed();
        if !self.shortage.is_on() {
            return;
        }
        if has_freed {
            self.shortage.freed();
        }
        if !self.rests_from_reads() {
            self.faults.may_have_memory();
        }
    }

    /// True while something is on its way to an area or back.
    pub(super) fn has_io(&self) -> bool {
        self.objects.swapped().under_way() != (0, 0)
    }
}
