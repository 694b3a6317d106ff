//! What processes have in common since a fork, and is to be counted once; and what those that have ended leave, until
//! it is known.

use super::{Coordinator, MOST, PRESSED, Publisher, Tenant};
use crate::descendants::{self, Process};
use crate::sys;
use memcg::{Slot, State};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// Page tables are walked for at most one part in so many of the time.
const WALK_PART: u32 = 50;

/// For those that share more than they knew it is waited no longer than this.
pub(super) const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// For so long a family is not walked while one of it is only starting.
const LONGEST_POSTPONED: Duration = Duration::from_secs(1);

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

/// By so little of it, one part in so many, parts of memory may be too small in sum.
const ROUNDED_PART: u64 = 64;

/// What walks the page tables of a process: its private memory, and the same with each page divided by the number of
/// processes that have it, in bytes.
type Walk<'a> = &'a mut dyn FnMut(u32) -> Option<(u64, u64)>;

/// A process of a family, or one that has none.
struct Relative {
    index: usize,
    slot: &'static Slot,
    /// Its process, where the tree has it.
    pid: Option<u32>,
    /// It may share so much that its page tables are to be walked.
    is_due: bool,
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

    /// How much of the private memory of forked processes is counted with their relatives: asks about one family after
    /// the other, at a bounded pace.
    ///
    /// A family is walked as a whole: what one of it has copied makes the parts of all others larger, and the sum is
    /// right only if all parts are of the same moment. Between two walks the copies that are counted keep it right.
    pub(super) fn learn_excess(&mut self, now: Instant, walk: Walk) {
        let gone = self.departed.extract_if(.., |tenant| !descendants::is_engine(tenant.engine));
        let has_lost_one = gone.fold(false, |lost, tenant| lost | tenant.has_relatives);
        if has_lost_one {
            self.waits = None;
        }
        if self.is_waiting(now) || now < self.walk && !has_lost_one {
            return;
        }
        let mut families = self.families_due();
        if !has_lost_one {
            families.truncate(1);
        }
        let can_wait = !has_lost_one && now < *self.postponed.get_or_insert(now + LONGEST_POSTPONED);
        if can_wait && !families.iter().all(|family| is_whole(family)) {
            return;
        }
        self.postponed = None;
        let began = sys::cpu_time();
        let walked = families.iter().flat_map(|family| self.walk_family(family, can_wait, walk));
        let found: Vec<Found> = walked.collect();
        self.recount(&found, now);
        self.walk = now + PRESSED.max((sys::cpu_time() - began) * WALK_PART);
    }

    /// The families in which somebody is to be walked, those first whose last walk is the longest ago.
    fn families_due(&self) -> Vec<Vec<Relative>> {
        let large = self.large_bytes();
        let mut families: BTreeMap<(u32, usize), Vec<Relative>> = BTreeMap::new();
        for (index, slot) in self.taken() {
            let pid = slot.pid.load(Relaxed);
            let found = self.tree.processes.iter().find(|process| process.own_pid == pid);
            let shares = slot.share.excess_bytes.load(Relaxed) > 0;
            let related = |p: &Process| p.private_bytes >= large && self.tree.is_related(p.pid);
            let is_due = found.is_some_and(|p| shares || related(p));
            let family = slot.family.load(SeqCst);
            let alone = if family == 0 { index + 1 } else { 0 };
            let relative = Relative { index, slot, pid: found.map(|process| process.pid), is_due };
            families.entry((family, alone)).or_default().push(relative);
        }
        let mut due: Vec<Vec<Relative>> = families.into_values().collect();
        due.retain(|family| family.iter().any(|relative| relative.is_due));
        let walked = |family: &Vec<Relative>| family.iter().map(|r| self.known[r.index].walked).min();
        due.sort_by_key(walked);
        due
    }

    /// Walks the page tables of a family. Where one of it is missing, or somebody has come meanwhile, a part of the
    /// pages that those have too is nobody's. Then nothing of it is believed, or, if it cannot wait, only what a
    /// process has more.
    fn walk_family(&mut self, family: &[Relative], can_wait: bool, walk: Walk) -> Vec<Found> {
        let mut found = Vec::new();
        let [mut most, mut sum] = [0; 2];
        self.walks += 1;
        let number = self.walks;
        family.iter().for_each(|relative| self.known(relative.index, relative.slot).walked = number);
        for &Relative { index, slot, pid, .. } in family.iter().filter(|relative| relative.is_due) {
            let copied = slot.share.copied_bytes.load(SeqCst);
            if let Some((private, proportional)) = pid.and_then(&mut *walk) {
                let excess = private.saturating_sub(proportional);
                found.push(Found { index, slot, excess, copied });
                (most, sum) = (most.max(private), sum + proportional);
            }
        }
        let name = family[0].slot.family.load(SeqCst);
        let is_of_it = |(_, slot): &(usize, &Slot)| name != 0 && slot.family.load(SeqCst) == name;
        let has_grown = self.taken().filter(is_of_it).count() > family.len();
        // All pages of one are there. Where the parts come to less, which are rounded, the rest is with somebody who
        // counts nowhere yet.
        let is_all = sum + self.forked_strangers_bytes() + most / ROUNDED_PART >= most;
        let is_right = is_all && !has_grown && is_whole(family);
        if !is_right {
            found.retain(|relative| {
                !can_wait && relative.excess < relative.slot.share.excess_bytes.load(SeqCst)
            });
        }
        found
    }

    /// What is counted of processes without a slot that have forked off and executed nothing.
    fn forked_strangers_bytes(&self) -> u64 {
        let is_forked = |pid: u32| self.tree.processes.iter().any(|p| p.own_pid == pid && p.forked);
        self.strangers.iter().filter(|(pid, _)| is_forked(*pid)).map(|(_, bytes)| bytes).sum()
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

/// All of them run, and can be walked.
fn is_whole(family: &[Relative]) -> bool {
    family.iter().all(|relative| relative.pid.is_some() && relative.slot.state() != State::Starting)
}
