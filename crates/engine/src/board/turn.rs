//! A worker's turn at the board, and its sleep between turns.

use super::job::{Answer, Hand, Reply, Task, Work};
use super::{BUSY, Board, DONE, PARCELS, QUEUED};
use core::sync::atomic::{Ordering::*, fence};
use uffd::sys;
use zswap::BATCH_MAX;

impl Board {
    /// A worker begins the job of a slot, which came out of a ring; `None` when there is none.
    fn begin(&self, slot: u32, own: u32) -> Option<Task<'_>> {
        let cell = &self.cells[slot as usize];
        cell.listed.swap(0, SeqCst);
        cell.state.compare_exchange(QUEUED, BUSY, SeqCst, Relaxed).ok()?;
        // SAFETY: the cell is BUSY, so this worker's, and the pager has written the work.
        let work = unsafe { (*cell.work.get()).assume_init_ref() };
        // SAFETY: the caller has taken the parcel.
        Some(Task { work, parcel: unsafe { self.objects_of(own) }, reply: Reply::Unpacked(false), slot, own })
    }

    /// A worker's turn: takes a job, or several of a kind where it works on several at a time, and has `act` do them.
    /// False when there was none, or no parcel.
    pub fn serve(&self, hand: &mut Hand, act: impl FnOnce(&mut [Option<Task<'_>>])) -> bool {
        hand.parcel = hand.parcel.or_else(|| self.take_parcel(hand.most));
        let Some(own) = hand.parcel else { return false };
        let Some(slot) = self.fetches.pop().or_else(|| self.stores.pop()) else { return false };
        let Some(task) = self.begin(slot, own) else { return true };
        hand.parcel = None;
        let is_store = matches!(task.work, Work::Pack { .. });
        let mut tasks = [const { None }; BATCH_MAX];
        let (mut count, mut want) = (1, 1);
        tasks[0] = Some(task);
        let others = if is_store { &self.stores } else { &self.fetches };
        if hand.most > 1 {
            // Others are to have something to do too, and a load that comes meanwhile a parcel.
            let workers = self.working();
            want = (1 + others.len()).div_ceil(workers).min(hand.most).min(PARCELS / workers - 1);
        }
        while count < want
            && let Some(own) = hand.parcel.take().or_else(|| self.take_parcel(hand.most))
        {
            hand.parcel = Some(own);
            let Some(slot) = others.pop() else { break };
            if let Some(task) = self.begin(slot, own) {
                hand.parcel = None;
                tasks[count] = Some(task);
                count += 1;
            }
        }
        act(&mut tasks);
        tasks.into_iter().flatten().for_each(|task| self.end_task(task, &mut hand.parcel));
        true
    }

    /// A worker's turn in the middle of another one: takes a load that was put up meanwhile, for which a thread may
    /// wait, and has `act` do it. `most` is its hand's. False when there was none, or no parcel.
    pub fn serve_load(&self, most: usize, act: impl FnOnce(&mut [Option<Task<'_>>])) -> bool {
        if self.fetches.is_empty() {
            return false;
        }
        // Workers in the middle of their turns have fewer than there are, and the pager gives back the others.
        let Some(own) = self.take_parcel(most) else { return false };
        let mut parcel = Some(own);
        let slot = self.fetches.pop();
        // It may be a store by now: that is a newer job of the same slot.
        let mut tasks = [slot.and_then(|slot| self.begin(slot, own))];
        if tasks[0].is_some() {
            parcel = None;
            act(&mut tasks);
            tasks.into_iter().flatten().for_each(|task| self.end_task(task, &mut parcel));
        }
        if let Some(own) = parcel {
            self.free_parcel(own);
        }
        slot.is_some()
    }

    /// A worker has done a job. Its parcel, unless it goes with the answer, is the next one, or free if there is one.
    fn end_task(&self, Task { reply, slot, own, .. }: Task<'_>, next: &mut Option<u32>) {
        let answer = match reply {
            Reply::Packed(packed) => {
                // SAFETY: the parcel is this worker's, and begins with room for it.
                unsafe { self.head_of(own).write(packed) };
                Answer::Packed { parcel: own }
            }
            Reply::Unpacked(sound) => {
                match next {
                    None => *next = Some(own),
                    Some(_) => self.free_parcel(own),
                }
                Answer::Unpacked(sound)
            }
        };
        let cell = &self.cells[slot as usize];
        // SAFETY: the cell is BUSY, so this worker's.
        unsafe { (*cell.answer.get()).write(answer) };
        cell.state.store(DONE, SeqCst);
        if self.head.pager_wants.fetch_update(SeqCst, SeqCst, |wants| wants.checked_sub(1)) == Ok(1) {
            self.wake_pager();
        }
    }

    /// True where worker `number` is to take work.
    pub fn is_wanted(&self, number: usize) -> bool {
        number < self.head.wanted.load(SeqCst) as usize
    }

    /// A worker that is to take no work has no parcel either.
    pub fn rest(&self, hand: &mut Hand) {
        if let Some(parcel) = hand.parcel.take() {
            self.free_parcel(parcel);
        }
    }

    /// A worker is ready.
    pub fn report_ready(&self) {
        self.head.ready.fetch_add(1, SeqCst);
        sys::futex_wake(self.head.ready.as_ptr(), 1, true);
    }

    /// Worker `number` sleeps until there is work, or a parcel has come back for it if it has none, at most
    /// `timeout_ns`.
    pub fn wait(&self, number: usize, hand: &Hand, timeout_ns: u64) {
        let (own, calls) = (1 << number, &self.head.calls[number]);
        let seen = calls.load(SeqCst);
        self.head.asleep.fetch_or(own, SeqCst);
        fence(SeqCst);
        // Whoever posts from now on finds it asleep, and what was posted before is seen here; so is who is wanted.
        let idle = !self.is_wanted(number) || self.fetches.is_empty() && self.stores.is_empty();
        let starves = !idle && hand.parcel.is_none();
        if starves {
            self.head.starving.fetch_or(own, SeqCst);
        }
        let has_none = || self.head.free.load(SeqCst) & self.parcels_mask(hand.most) == 0;
        let lacks_all = starves && has_none();
        if lacks_all && self.head.pager_wants.swap(0, SeqCst) > 0 {
            // It waits for more results than there are parcels for. Where it is about to, it sees who starves.
            self.wake_pager();
        }
        // One that is to rest from now on has a parcel that others need.
        let is_to_rest = hand.parcel.is_some() && !self.is_wanted(number);
        let nothing_to_do = (idle || lacks_all) && !is_to_rest && !self.is_to_follow(number);
        if nothing_to_do && self.head.stop.load(SeqCst) == 0 {
            let _ = sys::futex_wait(calls.as_ptr(), seen, Some(timeout_ns), true);
        }
        self.head.starving.fetch_and(!own, SeqCst);
        self.head.asleep.fetch_and(!own, SeqCst);
    }

    /// True when worker `number` is to do so.
    pub fn is_to_follow(&self, number: usize) -> bool {
        self.head.followed[number].load(SeqCst) != self.head.rights.load(SeqCst)
    }

    /// Worker `number` does so by `act`.
    pub fn follow(&self, number: usize, act: impl FnOnce()) {
        let wanted = self.head.rights.load(SeqCst);
        act();
        self.head.followed[number].store(wanted, SeqCst);
    }
}
