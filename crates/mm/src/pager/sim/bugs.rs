//! Planted bugs: each breaks one rule, and each must be found within a few seeds. What finds nothing checks nothing.

use super::World;
use super::program::Habit;
use super::run::{Plan, run};
use crate::kernel::Message;
use std::collections::VecDeque;

/// Which rules are broken.
#[derive(Clone, Debug, Default)]
pub struct Bugs {
    /// Moves and copies do not see unread events, as with an inactive list on another descriptor (docs/hazards.md, 1).
    pub blind_moves: bool,
    /// What a REMOVE covers goes out again before whoever is about to discard it has done so (docs/hazards.md, 2).
    pub hasty_census: bool,
    /// Events are read some time before they are handled, as by a second reader (docs/hazards.md, 3).
    pub late_events: bool,
    /// Events of this kind are not handled.
    pub forgets: Option<Kind>,
    /// The store takes every page that was loaded once for unchanged.
    pub credulous: bool,
    /// Those who wait are woken by what is put in their place alone, never by a call.
    pub mute_wake: bool,
    /// A page is unshared by a call that waits for it to be there.
    pub populates: bool,
    /// Pages go out as protected as a fork has left them.
    pub stays_protected: bool,
    /// A child is not told of events that its parent read after the clone.
    pub uninformed: bool,
    /// A child is not told what is wiped there.
    pub unwiped: bool,
    /// A child takes what was there before the fork for new, and the other way about.
    pub unmarked: bool,
    /// What mremap adds to a locked mapping is left unregistered.
    pub seams: bool,
    /// What is taken from memory that cannot be written to is copied first, and dropped a little later.
    pub hesitates: bool,
    /// What is held for a call of the program's goes out all the same.
    pub lets_held_go: bool,
    /// What a child may read in an area is free for its parent.
    pub unshared: bool,
    /// A batch is said to be written before it is.
    pub hasty_write: bool,
    /// That something was read from an area is not always told.
    pub drops_reads: bool,
    /// Events that were read and not handed on, and how many calls each still waits.
    late: VecDeque<(Message, usize)>,
}

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Remove,
    Unmap,
    Remap,
}

fn kind(message: &Message) -> Option<Kind> {
    match message {
        Message::Remove(_) => Some(Kind::Remove),
        Message::Unmap(_) => Some(Kind::Unmap),
        Message::Remap { .. } => Some(Kind::Remap),
        _ => None,
    }
}

impl World {
    /// The next message for the engine.
    pub fn next_message(&mut self) -> Option<Message> {
        if self.bugs.late_events {
            return self.next_late();
        }
        loop {
            let message = self.memory.read()?;
            if kind(&message).is_none() || kind(&message) != self.bugs.forgets {
                return Some(message);
            }
        }
    }

    fn next_late(&mut self) -> Option<Message> {
        while let Some(message) = self.memory.read() {
            if kind(&message).is_none() {
                return Some(message);
            }
            let wait = self.random.below(4);
            self.bugs.late.push_back((message, wait));
        }
        let (_, wait) = self.bugs.late.front_mut()?;
        if *wait > 0 {
            *wait -= 1;
            return None;
        }
        self.bugs.late.pop_front().map(|(message, _)| message)
    }
}

/// How many seeds a planted bug may escape.
const SEEDS: u64 = 500;

/// Runs with a planted bug until it is found; the message must contain one of the given words.
fn is_found(bugs: Bugs, habit: Habit, words: &[&str]) {
    is_found_where(false, bugs, habit, words);
}

/// The same on a kernel that tells touches, or on one that does not.
fn is_found_where(touches: bool, bugs: Bugs, habit: Habit, words: &[&str]) {
    for seed in 1..=SEEDS {
        // Many threads in little memory, so that they meet.
        let forks = bugs.uninformed || bugs.unwiped || bugs.unmarked || bugs.stays_protected || bugs.unshared;
        let (fork, swaps) = (if forks && !touches { 10 } else { 0 }, bugs.stays_protected && !touches);
        let area = (bugs.unshared || bugs.hasty_write || bugs.drops_reads).then_some(0);
        let crowd = Plan { threads: 4, pages: 64, evict_all: true, fork, swaps, area, ..Plan::any(seed) };
        let plan = Plan { bugs: bugs.clone(), habit, steps: 4000, touches, ..crowd };
        if let Err(failure) = run(seed, &plan) {
            assert!(
                words.iter().any(|w| failure.contains(w)),
                "{bugs:?} was found from seed {seed}, but by something else:\n{failure}"
            );
            println!("{bugs:?}: found from seed {seed}: {}", failure.lines().next().unwrap_or_default());
            return;
        }
    }
    panic!("{bugs:?} was not found in {SEEDS} seeds");
}

const STALE: &[&str] = &["may read", "the swap map", "no hole", "not registered", "no event is due"];

const MISSING: &[&str] = &["was overwritten", "another object lies", "the row has no bit"];

#[test]
fn a_stage_on_another_descriptor_is_found() {
    is_found(Bugs { blind_moves: true, ..Bugs::default() }, Habit::None, STALE);
}

#[test]
fn a_page_saved_before_its_discard_is_found() {
    is_found(Bugs { hasty_census: true, ..Bugs::default() }, Habit::Discards, STALE);
}

#[test]
fn an_event_that_is_read_and_not_yet_handled_is_found() {
    is_found(Bugs { late_events: true, ..Bugs::default() }, Habit::None, STALE);
}

#[test]
fn a_forgotten_unmap_is_found() {
    is_found(Bugs { forgets: Some(Kind::Unmap), ..Bugs::default() }, Habit::None, STALE);
}

#[test]
fn a_forgotten_remap_is_found() {
    is_found(Bugs { forgets: Some(Kind::Remap), ..Bugs::default() }, Habit::None, STALE);
}

#[test]
fn a_forgotten_remove_is_found() {
    is_found(Bugs { forgets: Some(Kind::Remove), ..Bugs::default() }, Habit::None, STALE);
}

#[test]
fn a_stale_object_is_found() {
    is_found(Bugs { credulous: true, ..Bugs::default() }, Habit::None, &["may read"]);
}

#[test]
fn slots_that_are_used_again_while_a_child_has_them_are_found() {
    is_found(Bugs { unshared: true, ..Bugs::default() }, Habit::None, MISSING);
}

#[test]
fn an_object_that_is_freed_before_it_is_written_is_found() {
    is_found(Bugs { hasty_write: true, ..Bugs::default() }, Habit::None, MISSING);
}

#[test]
fn a_read_that_nobody_hears_of_is_found() {
    is_found(Bugs { drops_reads: true, ..Bugs::default() }, Habit::None, &["waits"]);
}

#[test]
fn a_lost_wake_is_found() {
    is_found(
        Bugs { mute_wake: true, ..Bugs::default() },
        Habit::Remaps,
        &["waits", "goes round in circles", "slots of the inactive list are left"],
    );
}

#[test]
fn an_engine_that_waits_for_itself_is_found() {
    is_found(Bugs { populates: true, ..Bugs::default() }, Habit::Forks, &["only itself can fill"]);
}

#[test]
fn a_page_that_goes_out_protected_is_found() {
    is_found(Bugs { stays_protected: true, ..Bugs::default() }, Habit::None, &["and waits for itself"]);
}

#[test]
fn a_page_that_goes_out_watched_is_found() {
    let bugs = Bugs { stays_protected: true, ..Bugs::default() };
    is_found_where(true, bugs, Habit::None, &["and waits for itself"]);
}

#[test]
fn a_child_that_is_not_told_of_late_events_is_found() {
    let words = [STALE, &["is out, and there"]].concat();
    is_found(Bugs { uninformed: true, ..Bugs::default() }, Habit::Remaps, &words);
}

#[test]
fn a_child_that_does_not_know_what_was_there_before_is_found() {
    is_found(Bugs { unmarked: true, ..Bugs::default() }, Habit::Remaps, STALE);
}

#[test]
fn wiped_memory_that_is_restored_in_a_child_is_found() {
    is_found(Bugs { unwiped: true, ..Bugs::default() }, Habit::None, STALE);
}

#[test]
fn a_locked_mapping_that_comes_apart_as_it_grows_is_found() {
    is_found(Bugs { seams: true, ..Bugs::default() }, Habit::Locks, &["a seam"]);
}

#[test]
fn memory_that_becomes_writable_while_it_is_taken_matters() {
    is_found(Bugs { hesitates: true, ..Bugs::default() }, Habit::Remaps, STALE);
}

#[test]
fn memory_that_leaves_while_it_is_held_is_found() {
    is_found(Bugs { lets_held_go: true, ..Bugs::default() }, Habit::Owns, &["finds a hole"]);
}
