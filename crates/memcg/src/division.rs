//! How the run's limit is divided: a share for each process, and a pot of memory that nobody has.
//!
//! ```text
//!   usable = limit - what is not managed - reserve
//!   usable = pot + the shares, each counted as no less than the process holds
//!
//!   coordinator (`zfolio run`)                     engine
//!   begin: closes the pot          ──── pot ────   take: claims, takes out of the pot, adds to its share
//!   reads shares and claims        ─── share ───   lives within it
//!   moves shares, opens the pot
//! ```
//!
//! Rules, which hold whoever dies at whatever instruction:
//! 1. Engines move from the pot to their own share, and from there to the pot when their process has ended. Else only
//!    the coordinator lowers a share, but for an engine that makes room before a fork: what it gives up so is nobody's
//!    until the next division finds it.
//! 2. An engine says what it is about to take before it does (`claim_bytes`), and the coordinator reads the claim
//!    before the share: it may count the same memory twice, which gives too little for a tick, and never not at all.
//! 3. While the pot is closed nothing leaves it, so that what the coordinator reads between `begin` and `end` is all
//!    there is. Nor does anything come into it: a share that is given up while the coordinator divides, or divided
//!    since the giver looked, may be counted as free already.

use crate::{Memcg, Slot, State};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Set in [`Division::pot`] while the coordinator divides.
const CLOSED: u64 = 1 << 63;

/// Of [`Division::pot`], what is neither [`CLOSED`] nor bytes counts the divisions.
const BYTES: u64 = (1 << 48) - 1;
const DIVIDED: u64 = 1 << 48;

/// The run's part in the division; a slot's is its [`Share`](crate::share::Share).
#[repr(C)]
#[derive(Default)]
pub struct Division {
    /// Memory that nobody has, in bytes, below the number of the last division and a bit that says that the coordinator
    /// divides.
    pot: AtomicU64,
    /// How many may take from the pot at a time: processes, or CPUs if those are fewer.
    pub takers: AtomicU64,
    /// How many processes divide the limit. A gauge.
    pub processes: AtomicU64,
    /// How many CPUs the run may keep busy, by its affinity and its control group's quota.
    pub cpus: AtomicU64,
    /// How many CPUs the machine has.
    pub online_cpus: AtomicU64,
    /// Which CPUs the coordinator may run on, a bit for each of the first 1024: at the run's start, and now.
    pub affinity: [[AtomicU64; 16]; 2],
    /// What processes without an engine hold, and `zfolio run` itself with its files, in bytes. A gauge.
    pub unmanaged_bytes: AtomicU64,
    /// The coordinator's process id, as it sees it itself, and the start of that process as /proc/PID/stat has it.
    pub pid: AtomicU64,
    /// See `pid`.
    pub start: AtomicU64,
    /// When it divided last, in nanoseconds of CLOCK_MONOTONIC.
    pub divided_ns: AtomicU64,
    /// 1 while the coordinator has stopped itself, together with CMD.
    pub stopped: AtomicU32,
    /// 1 once an engine has found that the coordinator has died.
    pub orphaned: AtomicU32,
    /// 1 while the machine's own swap holds anything: processes may have memory there, which counts.
    pub swaps: AtomicU32,
}

impl Division {
    /// How many processes there are for each CPU that can run them at a time.
    pub fn processes_per_cpu(&self) -> usize {
        (self.processes.load(Relaxed) / self.takers.load(Relaxed).max(1)) as usize
    }

    /// Bytes in the pot, open or closed.
    pub fn pot_bytes(&self) -> u64 {
        self.pot.load(SeqCst) & BYTES
    }

    /// For the coordinator: closes the pot. Returns the bytes in it.
    pub fn begin(&self) -> u64 {
        self.pot.fetch_or(CLOSED, SeqCst) & BYTES
    }

    /// Opens the pot, with so many bytes in it.
    pub fn end(&self, bytes: u64) {
        let number = self.pot.load(SeqCst) & !(CLOSED | BYTES);
        self.pot.store((number.wrapping_add(DIVIDED) | bytes.min(BYTES)) & !CLOSED, SeqCst);
    }

    /// For an engine: takes up to `want` bytes out of the pot for its process. Returns how many it was: 0 also while
    /// the pot is closed.
    pub fn take(&self, slot: &Slot, want: u64) -> u64 {
        let share = &slot.share;
        loop {
            let pot = self.pot.load(SeqCst);
            let taken = want.min(pot & BYTES);
            if pot & CLOSED != 0 || taken == 0 {
                return 0;
            }
            share.claim_bytes.store(taken, SeqCst);
            let won = self.pot.compare_exchange(pot, pot - taken, SeqCst, SeqCst).is_ok();
            if won {
                share.bytes.fetch_add(taken, SeqCst);
            }
            share.claim_bytes.store(0, SeqCst);
            if won {
                return taken;
            }
        }
    }

    /// The number of the last division, and whether the next one is under way.
    fn number(&self) -> u64 {
        self.pot.load(SeqCst) & !BYTES
    }

    /// Puts what was somebody's into the pot, unless the coordinator has divided, or does, since the `number` was read:
    /// it may have found it.
    fn give_back(&self, bytes: u64, number: u64) {
        let more = |pot: u64| (pot & !BYTES == number && pot & CLOSED == 0).then(|| pot + bytes);
        let _ = self.pot.fetch_update(SeqCst, SeqCst, more);
    }

    /// For an engine: says that the coordinator has died; true for the one that is the first to say so.
    pub fn orphan(&self) -> bool {
        if self.orphaned.compare_exchange(0, 1, SeqCst, SeqCst).is_err() {
            return false;
        }
        // It may have died while it divided.
        self.pot.fetch_and(!CLOSED, SeqCst);
        true
    }
}

/// Little is less than one part in so many of the limit.
const LITTLE: u64 = 2;

/// How much each process may grow before its engine looks, where all want the CPUs: about 3 bytes in a nanosecond for a
/// turn or two of the kernel's scheduler, in bytes.
const UNSEEN: u64 = 16 << 20;

impl Memcg {
    /// True while there is a coordinator that divides.
    pub fn is_led(&self) -> bool {
        self.closed.load(SeqCst) == 0 && self.division.orphaned.load(SeqCst) == 0
    }

    /// True while little is in the pot: who wants more may have to wait for others to give it up.
    pub fn is_short(&self) -> bool {
        self.division.pot_bytes() < self.max_bytes.load(Relaxed) / LITTLE
    }

    /// True where all that is in the pot may be gone before the engines that sleep have looked again, of whose programs
    /// one has just mapped so many bytes.
    pub fn may_run_short(&self, mapped_bytes: u64) -> bool {
        self.is_short() || self.division.pot_bytes() < self.living() as u64 * UNSEEN + mapped_bytes
    }

    /// What a process may hold that has come when the pot was empty, and has no share yet, in bytes: what nobody else
    /// is to have, divided by all like it.
    pub fn unshared_bytes(&self) -> u64 {
        let (mut held, mut newcomers) = (self.division.unmanaged_bytes.load(Relaxed), 0);
        let is_taken = |slot: &&Slot| !matches!(slot.state(), State::Free | State::Unmanaged | State::Ended);
        for slot in self.used().iter().filter(is_taken) {
            match slot.share.bytes.load(Relaxed) {
                0 => newcomers += 1,
                share => held = held.saturating_add(share.max(slot.footprint_bytes.load(Relaxed))),
            }
        }
        self.max_bytes.load(Relaxed).saturating_sub(held) / newcomers.max(1)
    }

    /// A process has copied so many bytes that its relatives have too: that much more is there now. It counts with the
    /// process, or, where all that it holds did so already, with the relatives, who have the originals to themselves.
    pub fn count_copies(&self, slot: &Slot, bytes: u64) {
        let family = slot.family.load(SeqCst);
        let mut left = slot.share.disclose(bytes);
        for other in self.used().iter().filter(|other| family != 0 && other.family.load(SeqCst) == family) {
            if left == 0 {
                return;
            }
            left = other.share.disclose(left);
        }
    }

    /// Takes a process out of the division, which holds so many bytes as long as its engine, which has its memory too.
    /// What of its share was more than that goes back to the pot, unless the coordinator is at it and finds it at its
    /// next look; the rest is free when the coordinator finds the engine gone. Of one with relatives nothing goes back:
    /// what they shared with it they have to themselves now, which the coordinator must find out before others take
    /// what seems to be free.
    pub fn leave(&self, slot: &Slot, held: u64) {
        let is_led = self.is_led();
        if is_led && slot.family.load(SeqCst) != 0 {
            return slot.share.clear();
        }
        let number = self.division.number();
        let bytes = slot.share.bytes.swap(0, SeqCst);
        slot.share.clear();
        self.division.give_back(bytes.saturating_sub(if is_led { held } else { 0 }), number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SLOTS, Settings};
    use base::Random;
    use std::sync::atomic::AtomicBool;

    fn memcg() -> Box<Memcg> {
        // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
        let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
        memcg.init(1 << 30, Settings::default());
        memcg
    }

    #[test]
    fn a_share_comes_out_of_the_pot_and_no_more_than_is_there() {
        let m = memcg();
        let slot = m.claim(7).unwrap();
        m.division.end(100);
        assert_eq!((m.division.take(slot, 30), m.division.take(slot, 90)), (30, 70));
        assert_eq!((slot.share.held(), m.division.pot_bytes()), (100, 0));
        assert_eq!(m.division.take(slot, 1), 0);
    }

    #[test]
    fn nothing_is_taken_while_the_coordinator_divides_and_all_of_it_once_it_has_died() {
        let m = memcg();
        let slot = m.claim(7).unwrap();
        m.division.end(100);
        assert_eq!(m.division.begin(), 100);
        assert_eq!((m.division.take(slot, 30), m.division.pot_bytes()), (0, 100));
        assert!(m.division.orphan() && !m.division.orphan());
        assert_eq!(m.division.take(slot, 30), 30);
    }

    #[test]
    fn a_share_that_is_left_goes_back_unless_the_coordinator_counts() {
        let m = memcg();
        for (is_dividing, left) in [(false, 100), (true, 0)] {
            let slot = m.claim(7).unwrap();
            m.division.end(100);
            m.division.take(slot, 100);
            if is_dividing {
                m.division.begin();
            }
            m.release(slot, 1);
            assert_eq!((slot.share.held(), m.division.pot_bytes()), (0, left));
            m.collect(slot, |_, _| ());
        }
        let slot = m.claim(7).unwrap();
        m.division.end(100);
        m.division.take(slot, 100);
        m.publish(slot, 70, 70, 0, 0);
        m.release(slot, 1);
        assert_eq!(m.division.pot_bytes(), 30, "the rest is there until its engine is gone");
        let [parent, child] = [8, 9].map(|pid| m.claim(pid).unwrap());
        m.join_family(parent, child);
        m.division.end(100);
        m.division.take(child, 100);
        m.release(child, 1);
        assert_eq!(m.division.pot_bytes(), 0, "others may have what it held");
        let number = m.division.number();
        m.division.end(70);
        m.division.give_back(30, number);
        assert_eq!(m.division.pot_bytes(), 70, "the 30 were nobody's when it divided");
    }

    #[test]
    fn who_comes_when_the_pot_is_empty_has_its_part_of_what_nobody_is_to_have() {
        let m = memcg();
        let [old, large, _new, _newer] = [1, 2, 3, 4].map(|pid| m.claim(pid).unwrap());
        m.division.end(0);
        m.division.unmanaged_bytes.store(24 << 20, Relaxed);
        old.share.bytes.store(500 << 20, Relaxed);
        large.share.bytes.store(100 << 20, Relaxed);
        m.publish(large, 200 << 20, 200 << 20, 0, 0);
        assert_eq!(m.unshared_bytes(), 150 << 20);
        old.share.bytes.store(u64::MAX, Relaxed);
        assert_eq!(m.unshared_bytes(), 0);
    }

    #[test]
    fn the_more_processes_there_are_the_more_must_be_in_the_pot() {
        let m = memcg();
        m.division.end(600 << 20);
        let short = (1..100).find(|&pid| {
            m.claim(pid).unwrap();
            m.may_run_short(0)
        });
        assert_eq!((short, m.is_short()), (Some(38), false));
        let m = memcg();
        m.division.end(600 << 20);
        m.claim(1).unwrap();
        assert!(!m.may_run_short(584 << 20) && m.may_run_short((584 << 20) + 1));
        let m = memcg();
        m.division.end(500 << 20);
        assert!(m.is_short() && m.may_run_short(0), "it is less than half");
    }

    #[test]
    fn a_copy_counts_with_who_made_it_or_with_who_has_the_original() {
        let m = memcg();
        let [parent, child, other, stranger] = [1, 2, 3, 4].map(|pid| m.claim(pid).unwrap());
        [child, other].iter().for_each(|slot| m.join_family(parent, slot));
        [child, stranger].iter().for_each(|slot| slot.share.excess_bytes.store(100, Relaxed));
        other.share.excess_bytes.store(20, Relaxed);
        let excess = || [parent, child, other, stranger].map(|slot| slot.share.excess_bytes.load(Relaxed));
        m.count_copies(child, 30);
        assert_eq!(excess(), [0, 70, 20, 100]);
        m.count_copies(parent, 80);
        assert_eq!((excess(), child.share.copied_bytes.load(Relaxed)), ([0, 0, 10, 100], 100));
        m.count_copies(child, 80);
        assert_eq!(excess(), [0, 0, 0, 100], "nothing is shared that is known of");
    }

    /// What was claimed and not taken is all that can be missing for a round.
    #[test]
    fn no_memory_is_given_twice_while_everybody_takes() {
        everybody_takes(|_| false);
    }

    /// What is left in the middle of a division is missing until the next.
    #[test]
    fn no_memory_is_given_twice_while_processes_end() {
        everybody_takes(|random| random >> 40 & 15 == 0);
    }

    /// Engines take, and give all back when `ends` says so, and the coordinator divides at the same time: what it
    /// counts is never less than there is.
    fn everybody_takes(ends: impl Fn(u64) -> bool + Sync) {
        const USABLE: u64 = 1 << 20;
        let m = memcg();
        let slots: Vec<&Slot> = (0..4).map(|pid| m.claim(pid + 1).unwrap()).collect();
        assert!(slots.len() < SLOTS);
        m.division.end(USABLE);
        let (done, mut claimed) = (AtomicBool::new(false), 0);
        std::thread::scope(|scope| {
            for (index, slot) in slots.iter().enumerate() {
                let (m, done, ends) = (&m, &done, &ends);
                scope.spawn(move || {
                    let mut random = Random(index as u64 + 1);
                    while !done.load(Relaxed) {
                        let word = random.word();
                        m.division.take(slot, word >> 52);
                        if ends(word) {
                            m.leave(slot, 0);
                        }
                    }
                });
            }
            for round in 0..50_000 {
                let pot = m.division.begin();
                let claims: Vec<u64> = slots.iter().map(|slot| slot.share.claim_bytes.load(SeqCst)).collect();
                let all: Vec<u64> = slots.iter().map(|slot| slot.share.bytes.load(SeqCst)).collect();
                let shares: u64 = all.iter().sum();
                let held = shares + claims.iter().sum::<u64>();
                let is_all = held + pot + claimed >= USABLE || ends(0);
                let is_right = is_all && shares + pot <= USABLE;
                if !is_right {
                    done.store(true, Relaxed);
                }
                assert!(is_right, "round {round}: {shares}, {claims:?} and {pot}, {claimed} before");
                // What counts twice is missing in the pot for this round.
                claimed = held - shares;
                let back = all[round % slots.len()] / 2;
                let less = |bytes: u64| Some(bytes.saturating_sub(back));
                let _ = slots[round % slots.len()].share.bytes.fetch_update(SeqCst, SeqCst, less);
                m.division.end((USABLE + back).saturating_sub(held));
            }
            done.store(true, Relaxed);
        });
        m.division.begin();
        let held: u64 = slots.iter().map(|slot| slot.share.held()).sum();
        assert!(held <= USABLE);
        m.division.end(USABLE - held);
    }
}
