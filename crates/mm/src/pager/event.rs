//! Events: what the program does to its mappings, and what that does to what we hold of them.
//!
//! This is safe because
//! 1. whoever causes an event waits until it is read, and every move and copy is refused with EAGAIN from before the mapping changes
//!    until that thread runs again: so a move that succeeds was made with all events read;
//! 2. an event's effect on the tables is complete before the next message is read (`apply` runs to its end), so a move that
//!    succeeds was made with all events applied;
//! 3. what a REMOVE covers is quarantined: between the reading of the event and the zapping of the pages by its causer the old contents
//!    are still mapped, and saving them would bring them back after the zap. Nothing there is evicted until every thread that uses the memory has
//!    been seen outside of such a call since, or has run for longer than one takes (`Kernel::census_done`). Throwing the pages away at once instead would be wrong: after
//!    MADV_FREE the program may write to them as soon as the call returns, and we cannot tell the two apart.
//!
//! The events of one thread come in order, those of different threads do not: when one unmaps a range, and mremap gives its address to
//! another at once, the REMAP may be read before the UNMAP. That is seen by the target being registered still: what was there is put aside
//! (`displaced`), and the late event finds it there. So what is known to be registered (`regions`) must be all that is: whole mappings, and what
//! mremap adds to one, of which no event tells: where somebody moves to such a part (`remapped`) before it is known to be registered, there may be an event of a
//! former owner's due or not (`doubted`), until none is under way. A limit: what else comes to be registered while events are under way is known only then.
//! An UNMAP of such a place may be that former owner's, or of the one who has moved there since: it is his if nothing is mapped there any more, or what is there is not
//! registered. A limit of that: a third one may have moved there by then.

use crate::index::{ASIDE, Entry, Kind};
use crate::kernel::{Kernel, Message, Store};
use crate::pager::{Fault, Pager, stage_page};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use uffd::Errno;
use vmscan::PAGE;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// Reads all messages and applies all events. Faults are left in the queue.
    pub fn settle(&mut self) {
        while let Some(message) = self.kernel.next() {
            self.apply(message);
        }
    }

    /// The same at the beginning of a turn: the fault of a thread that misses alone is served before more is read. A turn does well without: the
    /// kernel lets nothing be moved or copied while an event is under way, and what must be known before is waited for (`is_quiet`).
    pub(crate) fn attend(&mut self) {
        while let Some(message) = self.kernel.next() {
            self.apply(message);
            if self.alone && !self.faults.is_empty() {
                break;
            }
        }
    }

    pub(crate) fn apply(&mut self, message: Message) {
        match message {
            Message::Fault { at, .. } if self.bell(at) != 0 => self.rang |= self.bell(at),
            Message::Fault { at, write, protected, .. } => {
                let since_ns = self.kernel.now_ns();
                self.faults.push_back(Fault { at, write, protected, since_ns });
            }
            Message::Remove(range) => {
                self.stat.events.fetch_add(1, Relaxed);
                self.forget(range.clone());
                self.readahead.forget(range.start, range.end);
                insert(&mut self.quarantine.young, range);
            }
            Message::Unmap(range) => {
                self.stat.events.fetch_add(1, Relaxed);
                self.areas.forget_at(&range);
                self.unmap(range);
            }
            Message::Remap { from, to } => {
                self.stat.events.fetch_add(1, Relaxed);
                self.areas.forget_at(&from);
                self.areas.forget_at(&(to..to + from.len()));
                self.remap(from, to);
            }
            Message::Other(_) => {}
        }
    }

    /// Contents of a range are nobody's any more.
    pub(crate) fn forget(&mut self, range: Range<usize>) {
        let mut gone = Vec::new();
        self.index.take(range, |_, entry| gone.push(entry));
        for entry in gone {
            self.drop_entry(entry);
        }
    }

    /// The same as a thread asks for it that has thrown the contents away by a call that sends no event. One under way may be of who had the place
    /// before, and has taken its contents elsewhere: that comes first.
    pub fn disown(&mut self, range: Range<usize>) {
        self.await_quiet();
        self.forget(range);
    }

    /// Returns when no event is under way, and all that is registered is known.
    pub fn await_quiet(&mut self) {
        let mut pauses = 0;
        loop {
            self.learn_growth();
            if self.is_quiet() && self.remapped.is_empty() {
                return;
            }
            self.wait_for_events(&mut pauses);
        }
    }

    /// A range has a new address. The old one's UNMAP follows, unless the program keeps the old mapping, empty (MREMAP_DONTUNMAP).
    fn remap(&mut self, from: Range<usize>, to: usize) {
        let len = from.end - from.start;
        let target = to..to + len;
        let mut moving = Vec::new();
        let (late, rest) = part(&self.displaced, &from);
        for range in late {
            self.index.take(aside(&range), |at, entry| moving.push((at - ASIDE - from.start + to, entry)));
        }
        for range in rest {
            self.index.take(range.clone(), |at, entry| moving.push((at - from.start + to, entry)));
            self.quarantine.lift(&range);
            subtract(&mut self.remapped, &range);
            // Whether we knew or not, it was registered, and is until its UNMAP comes.
            insert(&mut self.regions, range);
        }
        // What is still registered there has another owner, whose event is yet to come.
        let (mut taken, _) = part(&self.regions, &target);
        // What that one's mremap had added to his mapping was registered too; but it may be this one's own that was seen there.
        for range in part(&self.remapped, &target).0 {
            for range in part(&taken, &range).1 {
                insert(&mut self.doubted, range.clone());
                insert(&mut taken, range);
            }
        }
        self.unregistered(&target);
        // Where the old mapping is kept it does not grow, and its thread may be anywhere by now.
        if self.kernel.mapping(from.start).is_none()
            && let Some(mapping) = self.kernel.mapping(to)
        {
            insert(&mut self.remapped, to..mapping.end);
        }
        for range in taken {
            let mut old = Vec::new();
            self.index.take(range.clone(), |at, entry| old.push((at + ASIDE, entry)));
            self.place(old);
            insert(&mut self.displaced, range);
        }
        self.forget(target.clone());
        self.place(moving);
        self.readahead.forget(from.start, from.end);
        self.quarantine.lift(&target);
        insert(&mut self.regions, target);
    }

    /// What mremap has added to a mapping is registered with it, and no event tells how much it is; but while its thread is busy still the new
    /// mapping is as mremap made it. What no event has been about since then is still there with none under way, perhaps in parts of several
    /// kinds. It is registered once more, so that it is certain.
    pub(crate) fn learn_growth(&mut self) {
        while let Some(Range { start, end }) = self.remapped.first().cloned() {
            let mapping = self.kernel.mapping(start);
            let part = start..mapping.map_or(end, |m| m.end.min(end));
            match self.enroll(&part, start) {
                Err(Errno::EAGAIN) => return,
                // It was quiet then: registered with the rest, before that was locked.
                Err(_) if self.kernel.is_locked(start) => insert(&mut self.regions, part.clone()),
                // What is refused is left to the hand, which comes to it if it can be managed.
                _ => {}
            }
            subtract(&mut self.remapped, &part);
        }
    }

    /// Nothing of a range is known to be registered any more.
    pub(crate) fn unregistered(&mut self, range: &Range<usize>) {
        subtract(&mut self.regions, range);
        subtract(&mut self.remapped, range);
    }

    /// A range is gone. Where somebody else has moved to already, what was there before is aside.
    fn unmap(&mut self, range: Range<usize>) {
        self.unfault(&range);
        let (late, mut rest) = part(&self.displaced, &range);
        for range in late {
            let (doubted, _) = part(&self.doubted, &range);
            self.no_longer_due(&range);
            // There may have been no former owner, and this be the new one's: he has it no longer then.
            for range in doubted {
                rest.extend(self.unheld(&range));
            }
        }
        for range in rest {
            self.forget(range.clone());
            self.readahead.forget(range.start, range.end);
            self.unregistered(&range);
            self.quarantine.lift(&range);
        }
    }

    /// What of a range is not mapped, or not registered, while an event is under way that says it was unmapped.
    fn unheld(&mut self, range: &Range<usize>) -> Vec<Range<usize>> {
        let (mut at, mut parts) = (range.start, Vec::new());
        while at < range.end {
            let mapping = self.kernel.mapping(at);
            let end = match &mapping {
                Some(mapping) => mapping.end.min(range.end),
                None if self.kernel.is_mapped(at..range.end) => at + PAGE,
                None => range.end,
            };
            if mapping.is_none() || !self.kernel.is_ours(at) {
                insert(&mut parts, at..end);
            }
            at = end;
        }
        parts
    }

    /// The event of a range's former owner has come, or was none: what was there before is nobody's.
    fn no_longer_due(&mut self, range: &Range<usize>) {
        self.forget(aside(range));
        subtract(&mut self.displaced, range);
        subtract(&mut self.doubted, range);
    }

    /// No event is under way: none is due of which that was in doubt.
    pub(crate) fn nothing_is_due(&mut self) {
        while let Some(range) = self.doubted.first().cloned() {
            self.no_longer_due(&range);
        }
    }

    /// Faults on a range that is gone are nobody's: a thread that a signal interrupted in its fault has told it twice, and has gone on
    /// since. What is mapped there next may not be ours to fill.
    pub(crate) fn unfault(&mut self, range: &Range<usize>) {
        let count = |pager: &Self| pager.faults.len() + pager.waiting.len() + pager.parked.len();
        let before = count(self);
        self.faults.retain(|fault| !range.contains(&fault.at));
        self.waiting.retain(|fault| !range.contains(&fault.at));
        self.parked.retain(|fault| !range.contains(&fault.at));
        if count(self) < before {
            self.kernel.wake(range.clone());
        }
    }

    /// Enters pages at other addresses than before.
    fn place(&mut self, pages: Vec<(usize, Entry)>) {
        for (at, entry) in pages {
            if entry.kind() == Kind::Staged {
                let (slot, page) = stage_page(entry);
                self.stage.rename(slot, page, at);
            }
            self.index.set(at, entry);
        }
    }

    /// Ends the quarantine of ranges whose causers have all been seen elsewhere since.
    pub(crate) fn release_quarantine(&mut self) {
        let q = &mut self.quarantine;
        if !q.old.is_empty() && self.kernel.census_done() {
            q.old.clear();
        }
        if q.old.is_empty() && !q.young.is_empty() {
            core::mem::swap(&mut q.old, &mut q.young);
            let bytes = q.old.iter().map(|range| range.len()).sum::<usize>();
            // No more than that can be there.
            self.kernel.census_begin(bytes.min(self.marks.limit));
        }
    }
}

/// Ranges that REMOVE events covered, and that may not be evicted yet.
#[derive(Default)]
pub(crate) struct Quarantine {
    /// Those that the census under way is about.
    pub(crate) old: Vec<Range<usize>>,
    /// Those that came after it began.
    pub(crate) young: Vec<Range<usize>>,
}

impl Quarantine {
    /// True when nothing is in quarantine.
    pub(crate) fn is_empty(&self) -> bool {
        self.old.is_empty() && self.young.is_empty()
    }

    /// True when the page at `at` is in quarantine.
    pub(crate) fn holds(&self, at: usize) -> bool {
        [&self.old, &self.young].iter().any(|list| covers(list, &(at..at + 1)))
    }

    /// The mapping is gone, and whoever discards there discards something else.
    fn lift(&mut self, range: &Range<usize>) {
        subtract(&mut self.old, range);
        subtract(&mut self.young, range);
    }
}

/// Takes `hole` out of a list of ranges.
pub(crate) fn subtract(ranges: &mut Vec<Range<usize>>, hole: &Range<usize>) {
    let mut index = 0;
    while index < ranges.len() {
        let r = ranges[index].clone();
        if r.end <= hole.start || r.start >= hole.end {
            index += 1;
            continue;
        }
        ranges.remove(index);
        for rest in [hole.end.max(r.start)..r.end, r.start..hole.start.min(r.end)] {
            if rest.start < rest.end {
                ranges.insert(index, rest);
            }
        }
        index += (r.start < hole.start) as usize + (r.end > hole.end) as usize;
    }
}

/// Puts a range into a sorted list, joined with what it overlaps or touches.
pub(crate) fn insert(ranges: &mut Vec<Range<usize>>, mut range: Range<usize>) {
    let first = ranges.partition_point(|r| r.end < range.start);
    let last = ranges.partition_point(|r| r.start <= range.end);
    if first < last {
        range.start = range.start.min(ranges[first].start);
        range.end = range.end.max(ranges[last - 1].end);
    }
    ranges.splice(first..last, [range]);
}

/// The parts of a range that a sorted list has, and those that it has not.
pub(crate) fn part(ranges: &[Range<usize>], range: &Range<usize>) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
    let mut without = alloc::vec![range.clone()];
    let within = |r: &Range<usize>| r.start.max(range.start)..r.end.min(range.end);
    let with: Vec<_> = ranges.iter().map(within).filter(|r| r.start < r.end).collect();
    for r in &with {
        subtract(&mut without, r);
    }
    (with, without)
}

fn aside(range: &Range<usize>) -> Range<usize> {
    range.start + ASIDE..range.end + ASIDE
}

/// True when one range of a sorted list covers all of `range`.
pub(crate) fn covers(ranges: &[Range<usize>], range: &Range<usize>) -> bool {
    let after = ranges.partition_point(|r| r.start <= range.start);
    after > 0 && ranges[after - 1].end >= range.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_lists_agree_with_a_set_of_numbers() {
        for seed in 1..=50u64 {
            let mut random = seed;
            let mut next = |n: u64| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                ((random >> 33) % n) as usize
            };
            let (mut ranges, mut model) = (Vec::new(), [false; 64]);
            for _ in 0..200 {
                let start = next(60);
                let range = start..start + 1 + next(4);
                let add = next(2) == 0;
                if add {
                    insert(&mut ranges, range.clone());
                } else {
                    subtract(&mut ranges, &range);
                }
                model[range.clone()].fill(add);
                for (n, &there) in model.iter().enumerate() {
                    assert_eq!(
                        ranges.iter().any(|r| r.contains(&n)),
                        there,
                        "seed {seed}: {n} of {ranges:?}"
                    );
                    assert_eq!(covers(&ranges, &(n..n + 1)), there, "seed {seed}");
                }
                assert!(ranges.windows(2).all(|w| w[0].end <= w[1].start), "seed {seed}: {ranges:?}");
            }
        }
    }
}
