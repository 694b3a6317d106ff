//! What processes have in common since a fork, and is to be counted once; and what those that have ended leave, until
//! it is known.

use super::{Coordinator, MOST, PRESSED, Publisher, Tenant};
use crate::descendants::{self, Process};
use crate::sys;
use memcg::{SLOTS, Slot, State};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// Page tables are walked for at most one part in so many of the time.
const WALK_PART: u32 = 50;

/// For those that share more than they knew it is waited no longer than this.
pub(super) const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// Who leaves less than one part in so many of what is large, 1 MiB at most, is not waited for.
const SLIGHT_PART: u64 = 4;

/// What the page tables of a process say.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub index: usize,
    pub slot: &'static Slot,
    /// So much of its memory is counted with its relatives, in bytes.
    pub excess: u64,
    /// How much it had copied before, ever: what it has copied since may have been seen or not.
    pub copied: u64,
}

impl Coordinator {
    /// Takes note of who has ended. All that it had is there until its engine, which has it too, is gone; and what it
    /// shared with relatives they have to themselves now: that is not to be given away before it is known.
    pub(super) fn note_departed(&mut self) {
        let tenant = |(index, slot): (usize, &Slot)| Tenant {
            index,
            pid: slot.pid.load(Relaxed),
            engine: slot.engine_pid.load(Relaxed),
            bytes: slot.footprint_bytes.load(Relaxed).min(MOST),
            has_relatives: slot.family.load(SeqCst) != 0,
        };
        let present: Vec<Tenant> = self.taken().map(tenant).collect();
        // Who executes another program has another engine, and left what it had to the one before.
        let is_same = |old: &Tenant, new: &Tenant| {
            (old.index, old.pid) == (new.index, new.pid) && (old.engine == 0 || old.engine == new.engine)
        };
        let lives = |old: &Tenant| present.iter().any(|new| is_same(old, new));
        let (before, slight) = (std::mem::take(&mut self.present), self.slight_bytes());
        self.departed.extend(before.into_iter().filter(|old| old.bytes >= slight && !lives(old)));
        self.present = present;
    }

    fn slight_bytes(&self) -> u64 {
        self.large_bytes() / SLIGHT_PART
    }

    /// How much of the private memory of forked processes is counted with their relatives: asks about one after the
    /// other, at a bounded pace.
    pub(super) fn learn_excess(&mut self, now: Instant) {
        let shares = |slot: &Slot| slot.share.excess_bytes.load(Relaxed) > 0;
        let gone = self.departed.extract_if(.., |tenant| !descendants::is_engine(tenant.engine));
        let has_lost_one = gone.fold(false, |lost, tenant| lost | tenant.has_relatives);
        if has_lost_one {
            self.waits = None;
        }
        if self.is_waiting(now) || now < self.walk && !has_lost_one {
            return;
        }
        let began = sys::cpu_time();
        let large = self.large_bytes();
        let mut due: Vec<(usize, &'static Slot, u32)> = Vec::new();
        for (index, slot) in self.taken().filter(|(_, slot)| slot.state() != State::Starting) {
            let pid = slot.pid.load(Relaxed);
            let found = self.tree.processes.iter().find(|process| process.own_pid == pid);
            let related = |p: &&Process| p.private_bytes >= large && self.tree.is_related(p.pid);
            if let Some(process) = found.filter(|p| shares(slot) || related(p)) {
                due.push((index, slot, process.pid));
            }
        }
        due.sort_by_key(|&(index, ..)| self.known[index].walked);
        // What a new one shares others share with it.
        let has_new_one = due.first().is_some_and(|&(index, ..)| self.known[index].walked == 0);
        let count = if has_lost_one || has_new_one { SLOTS } else { 1 };
        let mut found = Vec::new();
        for (index, slot, pid) in due.into_iter().take(count) {
            self.walks += 1;
            let walk = self.walks;
            self.known(index, slot).walked = walk;
            let copied = slot.share.copied_bytes.load(SeqCst);
            if let Some((private, proportional)) = descendants::shared_bytes(pid) {
                let excess = private.saturating_sub(proportional);
                found.push(Found { index, slot, excess, copied });
            }
        }
        self.recount(&found, now);
        self.walk = now + PRESSED.max((sys::cpu_time() - began) * WALK_PART);
    }

    /// Takes note of what is shared. Memory that is counted elsewhere from now on takes its part of the share with it:
    /// an engine's limit, which is share and excess, is the same before and after. Those that hold less than they knew
    /// publish that first, so that the sum of all is never too high because of it; those that hold more do in the
    /// meantime only here.
    pub(super) fn recount(&mut self, found: &[Found], now: Instant) {
        let mut publishers = Vec::new();
        for &Found { index, slot, excess, copied } in found {
            // In this order: what is copied between the two is taken off twice, rather than not at all.
            let before = slot.share.excess_bytes.load(SeqCst);
            let since = slot.share.copied_bytes.load(SeqCst).saturating_sub(copied);
            let excess = excess.saturating_sub(since);
            if excess > before {
                let published = slot.published();
                slot.share.excess_bytes.fetch_add(excess - before, SeqCst);
                let less = |bytes: u64| Some(bytes.saturating_sub(excess - before));
                let _ = slot.share.bytes.fetch_update(SeqCst, SeqCst, less);
                publishers.push((index, slot.pid.load(Relaxed), published));
            }
            // Also of a process that has come since the last division.
            self.known(index, slot).recounted = before.saturating_sub(excess);
        }
        self.waits = Some((now + LONGEST_WAIT, publishers));
        self.is_waiting(now);
    }

    /// False when nobody has to wait to be recounted, any more; then all are.
    pub(super) fn is_waiting(&mut self, now: Instant) -> bool {
        let holds = |&(index, pid, published): &Publisher| {
            let slot = &self.memcg.slots[index];
            slot.pid.load(Relaxed) == pid && slot.published() == published && slot.state() != State::Ended
        };
        if self.waits.as_ref().is_some_and(|(until, all)| now < *until && all.iter().any(holds)) {
            return true;
        }
        self.waits = None;
        for (index, slot) in self.taken() {
            let known = &mut self.known[index];
            let more = std::mem::take(&mut known.recounted);
            if known.pid == slot.pid.load(Relaxed) {
                let less = |excess: u64| Some(excess.saturating_sub(more));
                let before = slot.share.excess_bytes.fetch_update(SeqCst, SeqCst, less);
                slot.share.bytes.fetch_add(more.min(before.unwrap_or(0)), SeqCst);
            }
        }
        false
    }
}
