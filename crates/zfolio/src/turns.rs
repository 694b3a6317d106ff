//! Turns: where too many processes at a time miss what they take from each other, some wait (vmscan/load.rs decides
//! which). Their engines serve no fault until then.

use crate::descendants::Process;
use crate::sys;
use base::Random;
use memcg::{Memcg, SLOTS, Slot, State};
use std::collections::HashMap;
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use vmscan::load::{Entrant, Load, Past};
use vmscan::share::Member;

/// How long a process still waits of which the coordinator says nothing more: where hundreds want the CPUs it may look
/// as seldom. When it dies, or ends, all go on at once.
const PARKED: Duration = Duration::from_secs(3);

/// Test mode: once in so many looks a process has to wait, each time for no longer than this.
const AT_RANDOM: u64 = 32;
const RANDOM: Duration = Duration::from_millis(60);

/// What is remembered of a slot.
#[derive(Clone, Copy, Default)]
struct Known {
    pid: u32,
    /// See [`Entrant::busy_ns`], since the process began.
    busy_ns: u64,
    past: Past,
}

/// See the head of the file.
pub struct Turns {
    load: Load,
    known: Vec<Known>,
    /// Test mode: what is chosen next.
    random: Random,
}

impl Turns {
    /// Nobody waits.
    pub fn new(memcg: &Memcg) -> Turns {
        let random = Random(memcg.settings.seed.into());
        Turns { load: Load::default(), known: vec![Known::default(); SLOTS], random }
    }

    /// True while whoever has this slot has to wait.
    pub fn waits(&self, index: usize, slot: &Slot) -> bool {
        let known = &self.known[index];
        known.past.is_parked && known.pid == slot.pid.load(Relaxed)
    }

    /// Decides whose turn it is of the `members`, who have `slots` and `usable` bytes together, and tells their
    /// engines. `ms` have passed since the last time; `processes` are all of the run.
    pub fn take(
        &mut self,
        ms: u64,
        usable: u64,
        memcg: &Memcg,
        slots: &[(usize, &Slot)],
        members: &[Member],
        processes: &[Process],
    ) {
        if memcg.settings.evict_all != 0 {
            return self.take_at_random(slots);
        }
        let is_waiting = self.known.iter().any(|known| known.past.is_parked);
        if memcg.settings.no_turns != 0 || !is_waiting && !memcg.is_short() {
            return;
        }
        // A slot has the number that its process sees itself.
        let seen: HashMap<(u32, u64), u32> =
            processes.iter().map(|p| ((p.own_pid, p.start), p.pid)).collect();
        let stored: u64 = members.iter().map(|member| member.stored).sum();
        let pool: u64 = members.iter().map(|member| member.pool).sum();
        let entrant = |(&(index, slot), member): (&(usize, &Slot), &Member)| {
            let (pid, start) = (slot.pid.load(Relaxed), slot.start.load(Relaxed));
            let used_ns = seen.get(&(pid, start)).map_or(0, |&pid| sys::cpu_ns_of(pid as sys::Pid));
            let busy_ns = used_ns.saturating_add(slot.stat.stall_ns.load(Relaxed));
            let known = &mut self.known[index];
            if known.pid != pid {
                *known = Known { pid, busy_ns, past: Past::default() };
            }
            Entrant {
                started: start,
                busy_ns: busy_ns.saturating_sub(std::mem::replace(&mut known.busy_ns, busy_ns)),
                misses: member.misses,
                near: member.near,
                is_managed: slot.state() == State::Awake,
                wanted: member.wanted + member.kept_free,
                least: member.least(stored, pool),
                past: known.past,
            }
        };
        let mut entrants: Vec<Entrant> = slots.iter().zip(members).map(entrant).collect();
        let cpus = memcg.division.cpus.load(Relaxed) as usize;
        self.load.control(ms, cpus, usable, !memcg.is_short(), &mut entrants);
        let until = now_ns() + PARKED.as_nanos() as u64;
        self.known.iter_mut().for_each(|known| known.past.is_parked = false);
        for (&(index, slot), entrant) in slots.iter().zip(&entrants) {
            self.known[index].past = entrant.past;
            slot.share.parked_until_ns.store(if entrant.past.is_parked { until } else { 0 }, Relaxed);
        }
    }

    /// Test mode: each waits now and then, whatever it does.
    fn take_at_random(&mut self, slots: &[(usize, &Slot)]) {
        for (_, slot) in slots {
            let chosen = self.random.word();
            if chosen.is_multiple_of(AT_RANDOM) {
                let ns = (chosen / AT_RANDOM) % RANDOM.as_nanos() as u64;
                slot.share.parked_until_ns.store(now_ns() + ns, Relaxed);
            }
        }
    }
}

fn now_ns() -> u64 {
    uffd::sys::now_ns()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memcg::Settings;

    /// Which of four that refault much on two CPUs have to wait after a second.
    fn waiting(settings: Settings) -> Vec<bool> {
        // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
        let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
        memcg.init(1 << 30, settings);
        memcg.division.cpus.store(2, Relaxed);
        let slots: Vec<(usize, &Slot)> = (0..4).map(|i| (i, memcg.claim(i as u32 + 1).unwrap())).collect();
        for &(i, slot) in &slots {
            slot.begin(i as u32 + 1, 10);
            slot.state.store(State::Awake as u32, Relaxed);
            slot.start.store(i as u64 + 1, Relaxed);
        }
        let mut turns = Turns::new(&memcg);
        for _ in 0..100 {
            let members = vec![Member { misses: 100, near: 100, ..Member::default() }; 4];
            slots.iter().for_each(|(_, slot)| _ = slot.stat.stall_ns.fetch_add(5_000_000, Relaxed));
            turns.take(10, 0, &memcg, &slots, &members, &[]);
            let told = |&(i, slot): &(usize, &Slot)| {
                !turns.waits(i, slot) || slot.share.parked_until_ns.load(Relaxed) > now_ns()
            };
            assert!(slots.iter().all(told));
        }
        slots.iter().map(|(_, slot)| slot.share.parked_until_ns.load(Relaxed) > 0).collect()
    }

    #[test]
    fn the_youngest_wait_unless_nobody_is_to() {
        assert_eq!(waiting(Settings::default()), [false, false, true, true]);
        assert_eq!(waiting(Settings { no_turns: 1, ..Settings::default() }), [false; 4]);
        assert_eq!(waiting(Settings { evict_all: 1, ..Settings::default() }), [true; 4], "each at some time");
    }
}
