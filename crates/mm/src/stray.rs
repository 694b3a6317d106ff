//! Strays: copies of the process that no hook saw, where the kernel tells of them (EVENT_FORK).
//!
//! A stray finds holes where pages are out, and waits where it touches one, since what is registered is so there too. It is no relative: nobody manages it, and nothing of the
//! pool is its. Of it there is a descriptor, by which what is out is put into its memory; when that is closed all other holes are the kernel's again, zeros.
//!
//! This is safe because
//! 1. from the moment at which the kernel copies the page tables until the stray's maker runs again nothing is moved or copied here (EAGAIN), and what is out is
//!    put into the stray before anything else is done, or another event applied. So the index says what was out as the copy was made;
//! 2. but for what other threads' calls have moved at about that time. Events that were applied with another one under way are noted (`note_change`), others are
//!    read ahead until none is (`read_ahead`). Each may be of before the copy or of after it, which the stray's own mappings say. Where they do not, whoever touches
//!    that memory there gets SIGBUS, never zeros;
//! 3. a stray runs meanwhile, and what it does to its mappings is an event on its descriptor: it waits until that is read, and nothing can be put there before. So what it
//!    lacks goes where it takes it, and a copy of the copy lacks the same.

use crate::event::{insert, part, subtract};
use crate::fork::TOP;
use crate::index::{Entry, Index, Kind};
use crate::kernel::{Damaged, Errno, Kernel, Message, Store, WINDOW_PAGES};
use crate::pager::{Pager, stage_page};
use alloc::vec::Vec;
use core::ops::Range;
use vmscan::PAGE;

/// How often it is waited for a moment without an event, at most, and for a stray that does something to its mappings: that one is only slow.
const QUIET_PAUSES: usize = 10_000;
const STRAY_PAUSES: usize = 200_000;

/// What is known for the next stray.
#[derive(Default)]
pub(crate) struct Strays {
    /// What was applied since no event was under way, oldest first.
    unsettled: Vec<Change>,
    /// Some copies are relatives that have an engine, and it is not known which.
    is_mixed: bool,
}

/// A range was unmapped, or moved.
#[derive(Clone, Debug)]
struct Change {
    old: Range<usize>,
    /// Where it was moved to, and what was unmapped for that.
    new: Option<Range<usize>>,
    over: Option<Range<usize>>,
    /// What was there is not known any more.
    has_forgotten: bool,
    /// Something was out in one of the two places.
    was_out: bool,
    is_applied: bool,
}

/// One of them, or a copy of one.
struct Stray {
    descriptor: u32,
    /// What it lacks.
    missing: Index,
    /// What it must not use, since nobody knows what was there.
    lost: Vec<Range<usize>>,
}

/// How far one is.
enum Step {
    More,
    /// It does something that must be known first.
    Again,
    Done,
}

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// An event is about to be applied: it may matter to a copy that is made at this moment.
    pub(crate) fn note_change(&mut self, message: &Message) {
        if self.kernel.tells_of_forks()
            && let Some(change) = self.change(message, true)
        {
            self.strays.unsettled.push(change);
        }
    }

    /// What an event does.
    fn change(&self, message: &Message, is_applied: bool) -> Option<Change> {
        let (old, new) = match message.clone() {
            Message::Unmap(old) => (old, None),
            Message::Remap { from, to } => (from.clone(), Some(to..to + from.len())),
            _ => return None,
        };
        let mut places = core::iter::once(&old).chain(&new);
        let was_out = places.any(|range| self.next_out(range.start, range.end).is_some());
        Some(Change { old, new, over: None, has_forgotten: is_applied, was_out, is_applied })
    }

    /// No event is under way: what was noted was before any copy that is yet to be told of.
    pub(crate) fn nothing_is_unsettled(&mut self) {
        self.strays.unsettled.clear();
    }

    /// True while something is noted.
    pub(crate) fn is_unsettled(&self) -> bool {
        !self.strays.unsettled.is_empty()
    }

    /// From now on copies are told of that have an engine of their own, and which these are is not known; or not any more.
    pub(crate) fn mix_strays(&mut self, yes: bool) {
        self.strays.is_mixed = yes;
    }

    /// A copy has been made that no hook saw: brings it what is out.
    pub(crate) fn take_in(&mut self, descriptor: u32) {
        let is_clear = self.read_ahead() && !self.strays.is_mixed;
        let stray = self.stray(descriptor, is_clear);
        let mut family = alloc::vec![stray];
        while let Some(stray) = family.pop() {
            self.bring(stray, &mut family);
        }
    }

    /// Reads all events that are under way, and applies none yet; false where they do not end.
    fn read_ahead(&mut self) -> bool {
        for _ in 0..QUIET_PAUSES {
            let is_quiet = self.is_at_rest();
            while let Some(message) = self.kernel.next() {
                self.unread.push_back(message);
            }
            if is_quiet {
                return true;
            }
            self.kernel.pause();
        }
        false
    }

    /// What a stray lacks, of which nothing was read yet.
    fn stray(&mut self, descriptor: u32, is_clear: bool) -> Stray {
        let mut stray = Stray { descriptor, missing: Index::default(), lost: Vec::new() };
        let wiped = self.kernel.birthmarks().ok().filter(|_| is_clear).map(|marks| marks.wiped);
        let Some(wiped) = wiped else {
            stray.lost = self.regions.clone();
            return stray;
        };
        let mut at = 0;
        while let Some((page, entry)) = self.next_out(at, TOP) {
            stray.missing.set(page, entry);
            at = page + PAGE;
        }
        // One thread does one thing after the other.
        if !self.kernel.has_one_thread() {
            self.date_all(&mut stray);
        }
        for range in wiped {
            stray.forget(&range);
        }
        stray
    }

    /// Has what a stray lacks be where it was as the stray was made.
    fn date_all(&mut self, stray: &mut Stray) {
        let applied = self.strays.unsettled.iter().cloned();
        let read = self.unread.iter().filter_map(|message| self.change(message, false));
        let mut changes = fold(applied.chain(read).collect());
        let unread = changes.partition_point(|change| change.is_applied);
        // What was applied is undone, the last one first.
        changes[..unread].reverse();
        for number in (0..changes.len()).filter(|&number| changes[number].was_out) {
            let is_alone = (0..changes.len()).all(|n| n == number || !changes[n].meets(&changes[number]));
            self.date(stray, &changes[number], is_alone);
        }
    }

    /// The same, as far as one change goes: it was before that or after it. If it `is_alone` no other change was there.
    fn date(&mut self, stray: &mut Stray, change: &Change, is_alone: bool) {
        let Some(new) = &change.new else {
            // What is unmapped later is as it was, or not there.
            if change.is_applied || !is_alone {
                stray.lose(&change.old);
            }
            return;
        };
        let (old, over) = (&change.old, change.over.as_ref().unwrap_or(new));
        let mut has = |range: &Range<usize>| self.kernel.stray_has(stray.descriptor, range.start);
        let was_before = match (has(old), has(new)) {
            _ if !is_alone => None,
            (Ok(true), Ok(false)) => Some(false),
            (Ok(false), Ok(true)) => Some(true),
            // The old mapping is kept (MREMAP_DONTUNMAP), or there was something at the new place before.
            _ => None,
        };
        match was_before {
            Some(true) if change.is_applied => {}
            Some(true) => {
                stray.forget(over);
                stray.relocate(old, new);
            }
            Some(false) => {
                if change.is_applied {
                    stray.relocate(new, old);
                }
                if change.has_forgotten {
                    stray.lose(over);
                }
            }
            None => [old, new, over].into_iter().for_each(|range| stray.lose(range)),
        }
    }

    /// The first page from `at` on that is out, and not known to be zeros.
    fn next_out(&self, at: usize, end: usize) -> Option<(usize, Entry)> {
        let mut at = at;
        while let Some((page, entry)) = self.index.next_used(at, end) {
            if matches!(entry.kind(), Kind::Staged | Kind::Stored) {
                return Some((page, entry));
            }
            at = page + PAGE;
        }
        None
    }

    /// Brings one what it lacks, and is through with it. Copies of it go to its family.
    fn bring(&mut self, mut stray: Stray, family: &mut Vec<Stray>) {
        let mut pauses = 0;
        loop {
            match self.fill_some(&mut stray) {
                Step::More => pauses = 0,
                Step::Done => break,
                Step::Again => {
                    while let Some(message) = self.kernel.stray_next(stray.descriptor) {
                        stray.follow(message, family);
                        pauses = 0;
                    }
                    pauses += 1;
                    // It comes no further, and it must not read zeros: it waits for ever instead.
                    if pauses > STRAY_PAUSES {
                        return;
                    }
                    self.kernel.pause();
                }
            }
        }
        self.kernel.end_stray(stray.descriptor);
    }

    fn fill_some(&mut self, stray: &mut Stray) -> Step {
        let Some((at, entry)) = stray.missing.next_used(0, TOP) else {
            return self.poison_one(stray);
        };
        let Ok((from, most)) = self.source(stray, at, entry) else {
            stray.lose(&(at..at + PAGE));
            return Step::More;
        };
        let mut moved = self.kernel.fill_stray(stray.descriptor, at, from, most * PAGE);
        if most > 1 && moved.bytes == 0 && moved.stop == Some(Errno::ENOENT) {
            // It ends in another mapping.
            moved = self.kernel.fill_stray(stray.descriptor, at, from, PAGE);
        }
        stray.missing.take(at..at + moved.bytes, |_, _| ());
        match moved.stop {
            None => Step::More,
            Some(Errno::EAGAIN) => Step::Again,
            Some(Errno::ESRCH) => Step::Done,
            Some(_) if moved.bytes > 0 => Step::More,
            // There is a page, or the stray does not have that memory.
            Some(Errno::EEXIST | Errno::ENOENT) => {
                stray.missing.set(at, Entry::NONE);
                Step::More
            }
            Some(_) => {
                stray.lose(&(at..at + PAGE));
                Step::More
            }
        }
    }

    /// Where in the engine's memory the contents of a page are, and of how many after it.
    fn source(&mut self, stray: &Stray, at: usize, entry: Entry) -> Result<(usize, usize), Damaged> {
        if entry.kind() == Kind::Staged {
            let (slot, page) = stage_page(entry);
            return Ok((self.stage.at(slot) + page * PAGE, 1));
        }
        let follows = |page: &usize| {
            let next = stray.missing.get(at + page * PAGE);
            (next.kind(), next.id()) == (entry.kind(), entry.id())
                && next.offset() as usize == entry.offset() as usize + page
        };
        let pages = 1 + (1..WINDOW_PAGES).take_while(follows).count();
        let body = self.objects.get(entry.id()).body;
        let to = self.config.nursery;
        let loaded = self.store.load(body, entry.offset(), pages as u16, to);
        // The others are somebody else's as long as nobody asks for them.
        let loaded =
            loaded.map(|()| pages).or_else(|_| self.store.load(body, entry.offset(), 1, to).map(|()| 1));
        loaded.map(|pages| (to, pages))
    }

    fn poison_one(&mut self, stray: &mut Stray) -> Step {
        let Some(at) = stray.lost.first().map(|range| range.start) else { return Step::Done };
        match self.kernel.poison_stray(stray.descriptor, at) {
            Err(Errno::EAGAIN) => return Step::Again,
            Err(Errno::ESRCH) => return Step::Done,
            // There is a page, or the stray does not have that memory.
            Ok(()) | Err(_) => subtract(&mut stray.lost, &(at..at + PAGE)),
        }
        Step::More
    }
}

impl Stray {
    /// What is known of a range is not what the stray had there, or nobody knows.
    fn lose(&mut self, range: &Range<usize>) {
        self.missing.take(range.clone(), |_, _| ());
        insert(&mut self.lost, range.clone());
    }

    /// What it lacks in a range it lacks in another one, and not there what it did.
    fn relocate(&mut self, from: &Range<usize>, to: &Range<usize>) {
        let place = |at: usize| at - from.start + to.start;
        let (mut moved, lost) = (Vec::new(), part(&self.lost, from).0);
        self.missing.take(from.clone(), |at, entry| moved.push((place(at), entry)));
        self.forget(from);
        self.forget(to);
        for (at, entry) in moved {
            self.missing.set(at, entry);
        }
        lost.into_iter().for_each(|range| insert(&mut self.lost, place(range.start)..place(range.end)));
    }

    /// It has done something to its mappings, or has been copied.
    fn follow(&mut self, message: Message, family: &mut Vec<Stray>) {
        match message {
            Message::Remove(range) | Message::Unmap(range) => self.forget(&range),
            Message::Remap { from, to } => self.relocate(&from, &(to..to + from.len())),
            Message::Fork(descriptor) => {
                family.push(Stray { descriptor, missing: self.missing.clone(), lost: self.lost.clone() })
            }
            // Who waits is woken by what is brought.
            Message::Fault { .. } | Message::Other(_) => {}
        }
    }

    fn forget(&mut self, range: &Range<usize>) {
        self.missing.take(range.clone(), |_, _| ());
        subtract(&mut self.lost, range);
    }
}

impl Change {
    fn places(&self) -> impl Iterator<Item = &Range<usize>> {
        core::iter::once(&self.old).chain(&self.new).chain(&self.over)
    }

    fn meets(&self, other: &Change) -> bool {
        let mut pairs = self.places().flat_map(|mine| other.places().map(move |its| (mine, its)));
        pairs.any(|(mine, its)| mine.start < its.end && its.start < mine.end)
    }

    /// It only unmaps something.
    fn unmaps(&self, is_it: impl Fn(&Range<usize>) -> bool) -> bool {
        self.new.is_none() && is_it(&self.old)
    }
}

/// mremap unmaps what is at the new place, and tells so before it tells that it has moved something; after that it tells that the old place is unmapped. All of it is one change.
fn fold(changes: Vec<Change>) -> Vec<Change> {
    let mut folded: Vec<Change> = Vec::new();
    let mut left: Vec<Range<usize>> = Vec::new();
    for mut change in changes {
        if let Some(new) = &change.new {
            let covers = |range: &Range<usize>| range.start == new.start && range.end >= new.end;
            if let Some(place) = folded.iter().rposition(|before| before.unmaps(covers)) {
                let before = folded.remove(place);
                (change.over, change.has_forgotten) = (Some(before.old), before.is_applied);
                change.was_out |= before.was_out;
            }
            left.push(change.old.clone());
        } else if let Some(place) = left.iter().position(|old| *old == change.old) {
            left.remove(place);
            continue;
        }
        folded.push(change);
    }
    folded
}
