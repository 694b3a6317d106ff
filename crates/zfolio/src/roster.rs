//! The processes of the run, one by one. Engines hand in the figures of processes that have ended; who was killed
//! together with his engine is missed here.

use crate::supervise;
use crate::sys::{self, Pid};
use memcg::{Memcg, Process, Slot, State};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// How many processes are listed at most.
pub const LISTED: usize = 10;

/// Of so many processes that have ended the figures are kept, of those with the largest peaks.
const MOST: usize = 10_000;

/// For so long it is remembered who was killed.
const REMEMBERED: Duration = Duration::from_secs(10);

/// How often the dead are looked for.
const LOOK: Duration = Duration::from_millis(100);
/// After so many looks a process that was found dead is given up where the number of its engine is not known: it may
/// not have begun yet. One that has begun and is gone hands nothing in any more.
const PATIENCE: i32 = 20;
/// A process that was found in another PID namespace is not looked for again for so many looks.
const FOUND_ELSEWHERE: i32 = -100;

/// A process's figures, and what its engine had to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The figures.
    pub process: Process,
    /// The message for the user, if there is one.
    pub words: Option<String>,
}

/// All processes that had an engine.
pub struct Roster<'a> {
    memcg: &'a Memcg,
    ended: Vec<Entry>,
    /// Figures that were dropped for want of room, or before they were read.
    dropped: u64,
    /// How many looks ago a process (its slot, its number) was found dead first.
    suspects: HashMap<(usize, u32), i32>,
    looked: Option<Instant>,
    audit_due: bool,
    /// True when a process has ended that had a row in swap's table.
    has_left_row: bool,
    /// Processes whose engines could not manage them, by their numbers, and why.
    refused: HashMap<u32, String>,
    /// Children that were killed of late, and when: engines, among others.
    killed: Vec<(u32, Instant)>,
    /// The first messages of engines whose processes have ended, each once: the user reads them at once.
    said: Vec<String>,
    /// How many of them the user has not read yet.
    unread: usize,
}

impl<'a> Roster<'a> {
    /// For a run that begins.
    pub fn new(memcg: &'a Memcg) -> Roster<'a> {
        Roster {
            memcg,
            ended: Vec::new(),
            dropped: 0,
            suspects: HashMap::new(),
            looked: None,
            audit_due: false,
            has_left_row: false,
            refused: HashMap::new(),
            killed: Vec::new(),
            said: Vec::new(),
            unread: 0,
        }
    }

    /// Collects who has ended; to be called every 100 ms, or more often.
    pub fn tick(&mut self) {
        self.tick_at(Instant::now());
    }

    fn tick_at(&mut self, now: Instant) {
        if self.looked.is_none_or(|looked| now - looked >= LOOK) {
            self.looked = Some(now);
            self.bury(|engine| if engine == 0 { PATIENCE } else { 0 });
        }
        self.give_up(now.checked_sub(LOOK).unwrap_or(now));
        self.killed.retain(|(_, at)| now - *at < REMEMBERED);
        self.collect();
    }

    /// A child of zfolio's was killed.
    pub fn note_killed(&mut self, pid: u32) {
        self.killed.push((pid, Instant::now()));
    }

    /// Ends the slots whose engine was killed and has moved nothing, as one has that meets a filter of its program's:
    /// nothing is lost, the program goes on without it, and its user is told. (Who kills one later stops the program,
    /// see the engine.) A slot may get its engine's number after the engine's death, so that it is asked for again and
    /// again. Who was killed with his engine may take a moment to end: those are left alone whose engine was killed
    /// after `before`.
    fn give_up(&mut self, before: Instant) {
        for slot in
            self.memcg.used().iter().filter(|slot| matches!(slot.state(), State::Starting | State::Asleep))
        {
            let (pid, engine) = (slot.pid.load(Acquire), slot.engine_pid.load(Acquire));
            // A number may have come round to another by now; and who died with his engine is another matter.
            if self.killed.iter().any(|(killed, at)| *killed == engine && *at <= before)
                && !supervise::alive(engine)
                && supervise::alive(pid)
            {
                slot.say("its engine was killed");
                self.memcg.managed.fetch_sub(1, Relaxed);
                self.memcg.unmanaged.fetch_add(1, Relaxed);
                slot.state.store(State::Unmanaged as u32, Release);
                self.audit_due |= !self.memcg.reap(slot, uffd::sys::now_ns());
            }
        }
    }

    /// The processes whose engines have ended and said why they did not manage them.
    pub fn refused(&self) -> &HashMap<u32, String> {
        &self.refused
    }

    /// What engines have said since the last call, of processes that they managed and that have ended.
    pub fn take_words(&mut self) -> Vec<String> {
        let unread = std::mem::take(&mut self.unread);
        self.said[self.said.len() - unread..].to_vec()
    }

    /// True where a process with a row in swap's table has ended since the last call.
    pub fn take_left_row(&mut self) -> bool {
        std::mem::take(&mut self.has_left_row)
    }

    /// All that [`Roster::take_words`] has given.
    pub fn said(&self) -> &[String] {
        &self.said
    }

    /// At the run's end: the figures of all processes, those that still live last, and how many were dropped.
    pub fn finish(mut self) -> (Vec<Entry>, u64) {
        self.bury(|_| 0);
        self.give_up(Instant::now());
        self.collect();
        for slot in self.memcg.used().iter().filter(|slot| slot.state() != State::Free) {
            self.ended
                .push(Entry { process: slot.process(), words: slot.said(&mut [0; 512]).map(str::to_string) });
        }
        (self.ended, self.dropped + self.memcg.unrecorded.load(Relaxed))
    }

    fn collect(&mut self) {
        for slot in self.memcg.used() {
            let row = slot.row.load(Relaxed);
            let is_collected = self.memcg.collect(slot, |process, words| {
                if process.state == State::Unmanaged {
                    self.refused.insert(process.pid, words.unwrap_or_default().to_string());
                } else if let Some(words) = words
                    && self.said.len() < LISTED
                    && !self.said.iter().any(|said| said == words)
                {
                    self.said.push(words.to_string());
                    self.unread += 1;
                }
                self.ended.push(Entry { process: *process, words: words.map(str::to_string) });
            });
            self.has_left_row |= is_collected && row != 0;
        }
        if self.ended.len() >= 2 * MOST {
            // What was said comes first.
            self.ended
                .sort_by_key(|e| std::cmp::Reverse((e.words.is_some(), e.process.footprint_peak_bytes)));
            self.dropped += (self.ended.len() - MOST) as u64;
            self.ended.truncate(MOST);
        }
        if self.audit_due {
            self.audit_due = !self.memcg.audit();
        }
    }

    /// Hands in the figures of processes that are found dead for longer than `patience`, which is asked by the engine's
    /// number.
    fn bury(&mut self, patience: impl Fn(u32) -> i32) {
        let mut suspects = HashMap::new();
        let mut dead = Vec::new();
        for (index, slot) in self.memcg.used().iter().enumerate().filter(|(_, slot)| looks_dead(slot)) {
            let key = (index, slot.pid.load(Acquire));
            let looks = self.suspects.get(&key).map_or(0, |looks| looks + 1);
            suspects.insert(key, looks);
            if looks >= patience(slot.engine_pid.load(Acquire)) {
                dead.push((key, slot));
            }
        }
        self.suspects = suspects;
        if dead.is_empty() {
            return;
        }
        let elsewhere = pids_elsewhere();
        for (key, slot) in dead {
            if elsewhere.contains(&key.1) {
                self.suspects.insert(key, FOUND_ELSEWHERE);
            } else {
                self.audit_due |= !self.memcg.reap(slot, uffd::sys::now_ns());
            }
        }
    }
}

/// True when neither a slot's process nor its engine can be found under their numbers.
fn looks_dead(slot: &Slot) -> bool {
    if matches!(slot.state(), State::Free | State::Ended) {
        return false;
    }
    // The engine is asked for first: it is a child of zfolio's, and no zombie for long, and one system call tells.
    let (pid, engine) = (slot.pid.load(Acquire), slot.engine_pid.load(Acquire));
    !sys::exists(engine as Pid) && !supervise::alive(pid)
}

/// The numbers that processes of other PID namespaces have there: in a slot they look like those of processes that are
/// gone.
fn pids_elsewhere() -> HashSet<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashSet::new() };
    let statuses = entries.flatten().filter_map(|entry| fs::read(entry.path().join("status")).ok());
    statuses.filter_map(|status| inner_pid(&String::from_utf8_lossy(&status))).collect()
}

/// From /proc/PID/status: the number in the innermost namespace, where that is not the outermost too.
fn inner_pid(status: &str) -> Option<u32> {
    let mut numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace();
    numbers.next()?;
    numbers.last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memcg::Settings;
    use std::process::Command;

    fn memcg() -> Box<Memcg> {
        // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
        let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
        memcg.init(1 << 30, Settings::default());
        memcg
    }

    /// The number of a process that is gone.
    fn gone() -> u32 {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    }

    #[test]
    fn who_has_ended_is_collected_at_each_tick() {
        let m = memcg();
        let mut roster = Roster::new(&m);
        for round in 0..3 {
            let slots: Vec<_> = (1..=300).map(|pid| m.claim(pid + round * 1000).unwrap()).collect();
            for slot in slots {
                slot.begin(slot.pid.load(Relaxed), std::process::id());
                m.release(slot, 5);
            }
            roster.tick();
        }
        let (entries, dropped) = roster.finish();
        assert_eq!((entries.len(), dropped, m.living()), (900, 0, 0));
    }

    #[test]
    fn a_process_that_died_with_its_engine_is_missed_and_the_living_are_not() {
        let m = memcg();
        let (dead, engine, own) = (gone(), gone(), std::process::id());
        let killed = m.claim(dead).unwrap();
        assert!(killed.begin(dead, engine));
        m.publish(killed, 1000, 3000, 0, 0);
        let living = m.claim(own).unwrap();
        assert!(living.begin(own, engine), "a process whose engine alone has died: its workers see to it");
        m.publish(living, 10, 30, 0, 0);
        let orphan = m.claim(dead + 1).unwrap();
        assert!(orphan.begin(dead + 1, own), "its engine is not through yet");

        let mut roster = Roster::new(&m);
        assert_eq!(m.current.footprint(), 1010);
        roster.tick();
        assert_eq!((m.current.footprint(), m.living()), (10, 2));
        let (entries, _) = roster.finish();
        let states: Vec<_> = entries.iter().map(|e| (e.process.pid, e.process.state)).collect();
        assert_eq!(states, [(dead, State::Killed), (own, State::Asleep), (dead + 1, State::Asleep)]);
    }

    #[test]
    fn a_process_goes_on_unmanaged_when_its_engine_was_killed_asleep() {
        let m = memcg();
        let (engine, own) = (gone(), std::process::id());
        let mut roster = Roster::new(&m);
        let start = |awake: bool| {
            let slot = m.claim(own).unwrap();
            m.managed.fetch_add(1, Relaxed);
            assert!(slot.begin(own, engine));
            if awake {
                slot.state.store(State::Awake as u32, Relaxed);
            }
            m.publish(slot, 1000, 1000, 0, 0);
        };
        start(false);
        start(true);
        roster.tick();
        assert_eq!(m.living(), 2, "nobody has said that its engine was killed");
        roster.note_killed(engine);
        roster.tick();
        assert_eq!(m.living(), 2, "it may be about to end, too");
        roster.tick_at(Instant::now() + LOOK);
        assert_eq!(
            (m.living(), m.current.footprint()),
            (1, 1000),
            "one that is awake stops its program itself"
        );
        assert_eq!((m.managed.load(Relaxed), m.unmanaged.load(Relaxed)), (1, 1));
        assert!(roster.refused().contains_key(&own));
        let (entries, _) = roster.finish();
        assert_eq!(entries[0].process.state, State::Unmanaged);
        assert_eq!(entries[0].words.as_deref(), Some("its engine was killed"));
    }

    #[test]
    fn a_row_that_is_left_is_told_of_once() {
        let m = memcg();
        let mut roster = Roster::new(&m);
        for row in [0, 1, 512] {
            let slot = m.claim(5).unwrap();
            assert!(slot.begin(5, std::process::id()));
            slot.row.store(row, Relaxed);
            roster.tick();
            assert!(!roster.take_left_row(), "it lives");
            m.release(slot, 5);
            roster.tick();
            assert_eq!([roster.take_left_row(), roster.take_left_row()], [row != 0, false], "{row}");
        }
    }

    #[test]
    fn who_was_killed_before_its_engine_began_is_missed_after_a_longer_time() {
        let m = memcg();
        m.claim(gone()).unwrap();
        let mut roster = Roster::new(&m);
        let began = Instant::now();
        for look in 0..PATIENCE as u32 {
            // Signals make for more ticks, and not for less time.
            for part in 0..10 {
                roster.tick_at(began + look * LOOK + part * LOOK / 10);
                assert_eq!(m.living(), 1);
            }
        }
        roster.tick_at(began + PATIENCE as u32 * LOOK);
        assert_eq!(m.living(), 0);
    }

    #[test]
    fn figures_of_the_largest_are_kept_and_what_was_said() {
        let m = memcg();
        let mut roster = Roster::new(&m);
        let own = std::process::id();
        for pid in 1..=2 * MOST as u32 {
            let slot = m.claim(pid).unwrap();
            slot.begin(pid, own);
            m.publish(slot, pid as u64, pid as u64, 0, 0);
            if pid == 1 {
                slot.say("small, and in trouble");
            }
            m.release(slot, 5);
            if pid % 500 == 0 {
                roster.tick();
            }
        }
        assert_eq!(roster.take_words(), ["small, and in trouble"]);
        assert!(roster.take_words().is_empty(), "it is said once");
        let (entries, dropped) = roster.finish();
        assert_eq!((entries.len(), dropped), (MOST, MOST as u64));
        assert_eq!(entries[0].words.as_deref(), Some("small, and in trouble"));
        assert_eq!(entries.last().unwrap().process.footprint_peak_bytes, MOST as u64 + 2);
    }

    #[test]
    fn numbers_in_other_namespaces() {
        assert_eq!(inner_pid("Name:\tsh\nNSpid:\t812\t31\t7\nVmPeak: 1"), Some(7));
        assert_eq!(inner_pid("Name:\tsh\nNSpid:\t812\n"), None);
        assert_eq!(inner_pid("Name:\tsh\n"), None);
    }
}
