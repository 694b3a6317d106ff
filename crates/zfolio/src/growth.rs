//! Processes that have grown and have no engine: their memory passed no hook of the library's (interpose/src/grow.rs),
//! since the program maps it by system calls of its own. They are found by looks at /proc, and given an engine from
//! outside (attach.rs).
//!
//! A process fills memory at some 4 bytes in a nanosecond, and so looks are the more frequent the less room is left of
//! the limit: no more than a quarter of it is filled between two. Where nothing has been started since the last one, a
//! look reads the size of each process without an engine, which most often is none or a few.

use crate::attach::{Attacher, Outcome, STEP};
use crate::causes::Cause;
use crate::descendants::{self, Process, Tree};
use crate::rundir;
use crate::sys::{self, Pid};
use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A process fills no more than so many bytes in a nanosecond, and this part of the room between two looks.
const PACE: u64 = 4;
const ROOM_PART: u64 = 4;

/// How often is looked at most, and at least.
const LEAST: Duration = Duration::from_millis(5);
const MOST: Duration = Duration::from_millis(100);

/// Looks take no more than one part in so many of a processor's time.
const PART: u32 = 50;

/// What the data of libraries comes to, in which nothing has to be mapped by the program, in bytes.
const LIBRARIES: u64 = 1 << 20;

/// When a process is tried again, and twice as late each further time.
const AGAIN: Duration = Duration::from_millis(10);
const AGAIN_MOST: Duration = Duration::from_secs(5);

/// A process, for as long as its number is its own.
type Key = (u32, u64);

/// What has been tried with a process.
struct Tried {
    count: usize,
    next: Instant,
    /// Why it cannot be.
    refused: Option<(Cause, String)>,
}

/// Who looks.
pub struct Growth {
    /// A process with so much of its own is to have an engine.
    grown_bytes: u64,
    attacher: Attacher,
    due: Instant,
    /// When an attempt under way was last looked at.
    stepped: Instant,
    /// The last number that was given to a process or thread.
    born: Option<u32>,
    /// Who had no engine at the last look.
    small: Vec<Process>,
    tried: HashMap<Key, Tried>,
}

impl Growth {
    /// For a run of this limit. `library` is the path of libzfolio.so.
    pub fn new(max_bytes: u64, library: PathBuf) -> Growth {
        Growth {
            grown_bytes: rundir::grown_bytes(max_bytes) + LIBRARIES,
            attacher: Attacher::new(library),
            due: Instant::now(),
            stepped: Instant::now(),
            born: None,
            small: Vec::new(),
            tried: HashMap::new(),
        }
    }

    /// The run has another limit, in bytes.
    pub fn set_limit(&mut self, max_bytes: u64) {
        self.grown_bytes = rundir::grown_bytes(max_bytes) + LIBRARIES;
    }

    /// When it is to be asked again.
    pub fn due(&self) -> Instant {
        if self.attacher.is_busy() { self.stepped + STEP } else { self.due }
    }

    /// See [`crate::supervise::Watcher`].
    pub fn has_stopped(&mut self, tid: Pid, status: i32) -> bool {
        self.attacher.stopped(tid, status)
    }

    /// See [`crate::supervise::Watcher`].
    pub fn has_ended(&mut self, tid: Pid) {
        self.attacher.ended(tid);
    }

    /// Why a process that has grown has no engine.
    pub fn refusals(&self) -> impl Iterator<Item = (Key, Cause, &str)> {
        self.tried.iter().filter_map(|(key, tried)| {
            let (cause, why) = tried.refused.as_ref()?;
            Some((*key, *cause, why.as_str()))
        })
    }

    /// Looks, if it is time to, and sees to who is found. `room` is what is left of the limit, in bytes; `is_settled`
    /// says by its own number whether a process has an engine or is known to have none.
    pub fn tick(&mut self, now: Instant, tree: &Tree, room: u64, is_settled: impl Fn(u32) -> bool) {
        self.stepped = now;
        if let Some((pid, outcome)) = self.attacher.step(now) {
            self.learn(pid, outcome, now);
            self.try_next(now);
        }
        if now < self.due {
            return;
        }
        let began = sys::cpu_time();
        let born = last_born();
        if born.is_none() || born != self.born {
            self.born = born;
            self.small = tree.find();
            let there: Vec<Key> = self.small.iter().map(key).collect();
            self.tried.retain(|key, _| there.contains(key));
        } else {
            self.small.retain_mut(|process| match descendants::private_bytes(process.pid) {
                Some(bytes) => {
                    process.private_bytes = bytes;
                    true
                }
                None => false,
            });
        }
        self.leave_out(is_settled);
        self.try_next(now);
        self.due = now + pause(room).max((sys::cpu_time() - began) * PART);
    }

    /// The tree has been looked at: sees to who is found there. Somebody in it may have an engine no more, since it has
    /// executed a program.
    pub fn note(&mut self, now: Instant, tree: &Tree, is_settled: impl Fn(u32) -> bool) {
        self.small = tree.processes.clone();
        self.leave_out(is_settled);
        self.try_next(now);
    }

    /// Leaves out who needs nothing.
    fn leave_out(&mut self, is_settled: impl Fn(u32) -> bool) {
        self.small.retain(|process| {
            let settled = is_settled(process.own_pid);
            // Should it have none later, it has executed another program.
            if settled {
                self.tried.remove(&key(process));
            }
            !settled
        });
    }

    /// Begins with the process that has been tried least, if nothing is under way.
    fn try_next(&mut self, now: Instant) {
        while !self.attacher.is_busy() {
            let count = |process: &Process| self.tried.get(&key(process)).map_or(0, |tried| tried.count);
            let is_due = |process: &&Process| {
                let next = self.tried.get(&key(process)).map_or(now, |tried| tried.next);
                process.private_bytes >= self.grown_bytes && now >= next
            };
            let next = self.small.iter().filter(is_due).min_by_key(|process| count(process));
            let Some(&Process { pid, parent, .. }) = next else { return };
            let count = next.map_or(0, count);
            // A child of vfork has its parent's memory, which is the parent's to see to.
            if uffd::sys::same_vm(pid, parent) == Ok(true) {
                self.learn(pid, Outcome::Later, now);
            } else {
                self.attacher.begin(pid, count);
            }
        }
    }

    /// Takes note of what came of an attempt.
    fn learn(&mut self, pid: u32, outcome: Outcome, now: Instant) {
        let Some(process) = self.small.iter().find(|process| process.pid == pid) else { return };
        let tried = self.tried.entry(key(process)).or_insert(Tried { count: 0, next: now, refused: None });
        tried.count += 1;
        tried.next = now + wait(tried.count, &outcome);
        if outcome == Outcome::Settled {
            // The next look says whether it has an engine.
            self.small.retain(|process| process.pid != pid);
        }
        tried.refused = match outcome {
            Outcome::Refused(cause, why) => Some((cause, why)),
            _ => None,
        };
    }
}

fn key(process: &Process) -> Key {
    (process.pid, process.start)
}

/// How long it is from one look to the next.
fn pause(room: u64) -> Duration {
    Duration::from_nanos(room / PACE / ROOM_PART).clamp(LEAST, MOST)
}

/// How long a process is left alone that has been tried so often.
fn wait(count: usize, outcome: &Outcome) -> Duration {
    match outcome {
        // One that has an engine by that is not asked for, unless it has executed another program by then.
        Outcome::Settled | Outcome::Later => (AGAIN * (1 << count.clamp(1, 16)) / 2).min(AGAIN_MOST),
        Outcome::Refused(..) => AGAIN_MOST,
    }
}

/// The number of the youngest process or thread; none where the kernel does not say.
fn last_born() -> Option<u32> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.trim_end().rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn looks_are_as_frequent_as_the_room_that_is_left_asks_for() {
        assert_eq!(pause(0), LEAST);
        assert_eq!(pause(160_000_000), Duration::from_millis(10));
        assert_eq!(pause(8 << 30), MOST);
    }

    #[test]
    fn who_cannot_be_managed_now_is_tried_again_ever_later() {
        let waits = [1, 2, 3, 40].map(|count| wait(count, &Outcome::Later));
        assert_eq!(waits, [AGAIN, 2 * AGAIN, 4 * AGAIN, AGAIN_MOST]);
        assert_eq!(wait(1, &Outcome::Refused(Cause::Engine, String::new())), AGAIN_MOST);
    }

    #[test]
    fn what_is_started_changes_the_last_number() {
        let before = last_born();
        assert!(before.is_some());
        std::process::Command::new("true").status().unwrap();
        assert_ne!(last_born(), before);
    }

    #[test]
    fn only_who_has_grown_is_tried_and_then_left_alone_for_a_while() {
        let own = std::process::id();
        let process = |private_bytes| Process {
            pid: own,
            own_pid: own,
            parent: 1,
            name: "test".into(),
            start: 1,
            forked: false,
            private_bytes,
            shared_bytes: 0,
        };
        let mut growth = Growth::new(100 * MIB, "/no/such/library.so".into());
        assert_eq!(growth.grown_bytes, 2 * MIB);
        let now = Instant::now();
        growth.small = vec![process(2 * MIB - 1)];
        growth.try_next(now);
        assert!(!growth.attacher.is_busy(), "it is small");
        growth.small = vec![process(2 * MIB)];
        growth.try_next(now);
        let (pid, outcome) =
            growth.attacher.step(now).expect("it is known at once that the library is not there");
        assert_eq!((pid, &outcome), (own, &Outcome::Later));
        growth.learn(pid, outcome, now);
        growth.try_next(now);
        assert!(!growth.attacher.is_busy());
        growth.try_next(now + AGAIN);
        assert!(growth.attacher.is_busy());
        growth.learn(own, Outcome::Refused(Cause::Engine, "is busy".into()), now);
        assert_eq!(growth.refusals().collect::<Vec<_>>(), [((own, 1), Cause::Engine, "is busy")]);
    }
}
