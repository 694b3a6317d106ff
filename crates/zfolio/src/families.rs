//! Families: processes that have pages in common since a fork. Where one of them wants for memory, one engine is asked
//! to store for all what they share: each for itself would store it once more. (shared_store.rs and sharing.rs of
//! engine do it.)

use memcg::{Slot, State};
use std::collections::HashMap;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};
use vmscan::PAGE;

/// How much is asked for at a time, in bytes of the program: twice as much each time, as long as one of the family is
/// pressed.
const ASKED: [u64; 2] = [512 << 10, 4 << 20];

/// How long it takes at least until what was asked for has gone out everywhere, and it can be seen whether it was
/// enough.
const PAUSE: Duration = Duration::from_millis(20);

/// How long an engine that had nothing left to tell is not asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// What is read back costs each reader a copy that it did not have before. It is looked so often whether that was more
/// than one part in so many of what went out; then nothing is asked for some time, unless somebody waits for room for
/// long.
const LOOK: Duration = Duration::from_millis(500);
const READ_PART: u64 = 4;
const REST: Duration = Duration::from_secs(5);
const LONG_MS: u64 = 50;

/// What is remembered of a family.
struct Family {
    looked: Instant,
    /// Pages that had gone out and had been read back then, of all of its members.
    out: u64,
    read: u64,
    rests_until: Instant,
    /// When it was asked last, and for how much.
    asked: Instant,
    bytes: u64,
}

/// See the head of the file.
#[derive(Default)]
pub struct Families {
    known: HashMap<u32, Family>,
    /// Whom not to ask before: by the slot's number and the process's.
    asked_all: HashMap<(usize, u32), Instant>,
}

/// A process with relatives, at a tick.
pub struct Kin {
    /// Its slot, and the slot's number.
    pub index: usize,
    /// See `index`.
    pub slot: &'static Slot,
    /// It wants for memory: it has missed pages since the last tick, or waits for room.
    pub is_pressed: bool,
}

impl Families {
    /// Asks one of each family, the eldest that has something to tell, where one of them is pressed.
    pub fn ask(&mut self, kin: &[Kin], now: Instant) {
        let mut families: HashMap<u32, Vec<&Kin>> = HashMap::new();
        for one in kin {
            families.entry(one.slot.family.load(Relaxed)).or_default().push(one);
        }
        families.retain(|&family, members| family != 0 && members.len() > 1);
        self.known.retain(|family, _| families.contains_key(family));
        self.asked_all.retain(|&(index, pid), until| {
            now < *until && kin.iter().any(|one| one.index == index && one.slot.pid.load(Relaxed) == pid)
        });
        for (family, members) in families {
            let rests = self.rests(family, &members, now);
            let is_pressed = members.iter().any(|one| one.is_pressed);
            let known = self.known.get_mut(&family).expect("it was looked at");
            if now < known.asked + PAUSE {
                continue;
            }
            if rests || !is_pressed {
                known.bytes = ASKED[0];
                continue;
            }
            let bytes = known.bytes;
            (known.asked, known.bytes) = (now, (2 * bytes).min(ASKED[1]));
            self.ask_one(members, bytes, now);
        }
    }

    /// True while it would be of little use to ask a family.
    fn rests(&mut self, family: u32, members: &[&Kin], now: Instant) -> bool {
        let sum = |count: fn(&Slot) -> u64| members.iter().map(|one| count(one.slot)).sum::<u64>();
        let out = sum(|slot| slot.stat.common_out.load(Relaxed));
        let read = sum(|slot| slot.stat.common_read.load(Relaxed));
        let new = Family { looked: now, out, read, rests_until: now, asked: now, bytes: ASKED[0] };
        let known = self.known.entry(family).or_insert(new);
        if now >= known.looked + LOOK {
            // Who has ended took its counts along.
            let (out_since, read_since) = (out.saturating_sub(known.out), read.saturating_sub(known.read));
            if read_since > out_since / READ_PART && read_since * PAGE as u64 > ASKED[0] {
                known.rests_until = now + REST;
            }
            (known.looked, known.out, known.read) = (now, out, read);
        }
        let waits_long = members.iter().any(|one| one.slot.share.waiting_ms.load(Relaxed) > LONG_MS);
        now < known.rests_until && !waits_long
    }

    fn ask_one(&mut self, mut members: Vec<&Kin>, bytes: u64, now: Instant) {
        members.sort_by_key(|one| one.slot.started_ns());
        for one in members.iter().filter(|one| one.slot.state() == State::Awake) {
            let (share, name) = (&one.slot.share, (one.index, one.slot.pid.load(Relaxed)));
            if share.told_all.swap(0, Relaxed) != 0 {
                self.asked_all.insert(name, now + AGAIN);
            }
            if !self.asked_all.contains_key(&name) {
                share.tell_bytes.store(bytes, Relaxed);
                return;
            }
        }
    }
}

/// Bytes of all logs of all families. A log is its owner's as long as that lives; what is left then is counted once,
/// however many read it.
pub fn log_bytes(slots: impl Iterator<Item = &'static Slot>) -> u64 {
    let mut families: HashMap<u32, (u64, u64)> = HashMap::new();
    let mut sum = 0;
    for slot in slots {
        let (own, read) = (slot.share.log_bytes.load(Relaxed), slot.share.read_bytes.load(Relaxed));
        match slot.family.load(Relaxed) {
            0 => sum += own + read,
            family => {
                let (owned, most_read) = families.entry(family).or_default();
                *owned += own;
                *most_read = read.max(*most_read);
            }
        }
    }
    sum + families.values().map(|&(owned, read)| owned.max(read)).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memcg::{Memcg, Settings};

    /// A run with three processes of one family, the first the eldest; and one without.
    fn run() -> (&'static Memcg, [&'static Slot; 4]) {
        // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
        let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
        memcg.init(1 << 30, Settings::default());
        let memcg: &'static Memcg = Box::leak(memcg);
        let slots = [1, 2, 3, 4].map(|pid| {
            let slot = memcg.claim(pid).unwrap();
            slot.introduce(0, &[0; 16], pid.into());
            slot.state.store(State::Awake as u32, Relaxed);
            slot
        });
        [slots[1], slots[2]].iter().for_each(|child| memcg.join_family(slots[0], child));
        (memcg, slots)
    }

    fn kin(slots: &[&'static Slot], is_pressed: bool) -> Vec<Kin> {
        slots.iter().enumerate().map(|(index, &slot)| Kin { index, slot, is_pressed }).collect()
    }

    fn asked(slots: &[&'static Slot]) -> Vec<u64> {
        slots.iter().map(|slot| slot.share.tell_bytes.swap(0, Relaxed)).collect()
    }

    #[test]
    fn the_eldest_is_asked_for_more_and_more_until_nobody_is_pressed() {
        let (_, slots) = run();
        let (mut families, mut now) = (Families::default(), Instant::now());
        families.ask(&kin(&slots, true), now);
        assert_eq!(asked(&slots), [0; 4], "it is seen for the first time");
        let mut ask = |is_pressed| {
            now += PAUSE;
            families.ask(&kin(&slots, is_pressed), now);
            asked(&slots)
        };
        let [least, most] = ASKED;
        assert_eq!([ask(true), ask(true)], [vec![least, 0, 0, 0], vec![2 * least, 0, 0, 0]]);
        for _ in 0..9 {
            ask(true);
        }
        assert_eq!(ask(true), [most, 0, 0, 0]);
        assert_eq!([ask(false), ask(true)], [vec![0; 4], vec![least, 0, 0, 0]]);
        slots[0].share.told_all.store(1, Relaxed);
        assert_eq!(ask(true), [0, 2 * least, 0, 0], "the eldest has told all");
    }

    #[test]
    fn nobody_is_asked_while_much_is_read_again_unless_somebody_waits() {
        let (_, slots) = run();
        let (mut families, mut now) = (Families::default(), Instant::now());
        families.ask(&kin(&slots, true), now);
        slots[1].stat.common_out.store(2000, Relaxed);
        slots[2].stat.common_read.store(1000, Relaxed);
        let mut ask = |after: Duration| {
            now += after;
            families.ask(&kin(&slots, true), now);
            asked(&slots).iter().sum::<u64>() > 0
        };
        assert!(ask(PAUSE) && !ask(LOOK) && !ask(PAUSE));
        slots[1].share.waiting_ms.store(LONG_MS + 1, Relaxed);
        assert!(ask(PAUSE));
        slots[1].share.waiting_ms.store(0, Relaxed);
        assert!(!ask(PAUSE) && ask(REST));
    }

    #[test]
    fn logs_count_once_also_when_their_owner_has_ended() {
        let (_, slots) = run();
        let all = || log_bytes(slots.into_iter());
        slots[0].share.log_bytes.store(100, Relaxed);
        slots[1].share.read_bytes.store(100, Relaxed);
        slots[2].share.read_bytes.store(100, Relaxed);
        slots[3].share.log_bytes.store(7, Relaxed);
        assert_eq!(all(), 107);
        slots[1].share.log_bytes.store(20, Relaxed);
        assert_eq!(all(), 127);
        slots[0].share.log_bytes.store(0, Relaxed);
        assert_eq!(all(), 107, "what the dead has told is there, and of the other's it is not known");
    }
}
