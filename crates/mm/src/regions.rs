//! What of the address space is registered with the userfaultfd, as far as the events that were read tell.
//!
//! The events of one thread come in order, those of different threads do not: when one unmaps a range, and mremap
//! gives its address to another at once, the REMAP may be read before the UNMAP. That is seen by the target being
//! registered still: what was known there is put aside (`displaced`), and the late event finds it there. So what is
//! known to be registered must be all that is: whole mappings, and what mremap adds to one, of which no event tells
//! (`remapped`). Where somebody moves to such a part before it is known to be registered, there may be an event of
//! a former owner's due or not (`doubted`), until none is under way. So it is with what is registered while an event
//! comes.
//!
//! An UNMAP of such a place may be that former owner's, or of the one who has moved there since: it is his if
//! nothing is mapped there any more, or what is there is not registered. Where yet another has moved there by then
//! it is not known whose it was (`undecided`): if it was the new one's, the REMAP of the one who is there now is
//! yet to be read, and finds nobody to be displaced.
//!
//! A limit: mremap may add memory where another has just left whose REMAP was not read yet. Of that it is not known
//! that it is registered, until it is looked at again with no event under way. And one whose place is in doubt may
//! move on and keep the old mapping, so that his REMAP is taken for a former owner's (scenes.rs plays both).
//!
//! Invariants: `doubted` is part of `displaced`, `undecided` of `registered`; each is a set of ranges.

use crate::kernel::Kernel;
use crate::quarantine::Quarantine;
use crate::ranges::RangeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use vmscan::PAGE;

/// What the book-keeping asks of the mappings as they are now.
pub trait Mappings {
    /// The mapping, of any kind, that holds `at`.
    fn mapping(&mut self, at: usize) -> Option<Range<usize>>;
    /// True when any page of a range is mapped.
    fn is_mapped(&mut self, range: Range<usize>) -> bool;
    /// False when the mapping at `at` is not registered with us.
    fn is_ours(&mut self, at: usize) -> bool;
}

impl<K: Kernel> Mappings for K {
    fn mapping(&mut self, at: usize) -> Option<Range<usize>> {
        Kernel::mapping(self, at)
    }

    fn is_mapped(&mut self, range: Range<usize>) -> bool {
        Kernel::is_mapped(self, range)
    }

    fn is_ours(&mut self, at: usize) -> bool {
        Kernel::is_ours(self, at)
    }
}

/// All that is known of it.
#[derive(Debug, Default)]
pub struct Regions {
    /// Registered ranges.
    registered: RangeSet,
    /// Mappings that mremap has made, all of it registered, until no event is under way; and those that were
    /// registered while one was.
    remapped: RangeSet,
    /// Ranges that somebody moved to before the event of their former owner was read: what is known of his pages is
    /// aside.
    displaced: RangeSet,
    /// Those of them that may have had no former owner.
    doubted: RangeSet,
    /// Ranges of which an UNMAP was taken for a former owner's that may have had none: if it was the new one's, yet
    /// another is there by now, whose REMAP is due.
    undecided: RangeSet,
    /// What a REMOVE covered.
    quarantine: Quarantine,
}

/// What an mremap means for what is known of pages.
#[derive(Debug, PartialEq, Eq)]
pub struct Remapped {
    /// Parts of the old place of which it is aside, and is to be entered at the new one.
    pub aside: Vec<Range<usize>>,
    /// The other parts of the old place.
    pub here: Vec<Range<usize>>,
    /// Parts of the new place where it is another owner's, and is to be put aside first.
    pub taken: Vec<Range<usize>>,
    /// Where it is nobody's any more.
    pub gone: Vec<Range<usize>>,
}

/// What an unmapping means for what is known of pages: it is nobody's any more.
#[derive(Debug, PartialEq, Eq)]
pub struct Unmapped {
    /// Where it is aside.
    pub aside: Vec<Range<usize>>,
    /// Where it is in its place.
    pub here: Vec<Range<usize>>,
}

impl Regions {
    /// What is registered.
    pub fn registered(&self) -> &RangeSet {
        &self.registered
    }

    /// The same, with all else forgotten.
    pub fn into_registered(self) -> RangeSet {
        self.registered
    }

    /// True when an event of a former owner's is due, or may be.
    pub fn has_displaced(&self) -> bool {
        !self.displaced.is_empty()
    }

    /// True when what is known of a former owner's page at `at` is aside.
    pub fn is_displaced(&self, at: usize) -> bool {
        self.displaced.contains(at)
    }

    /// The first mapping that mremap has made and of which it is not known yet how much is registered.
    pub fn grown(&self) -> Option<Range<usize>> {
        self.remapped.first()
    }

    /// Of this part of it that is known now.
    pub fn growth_is_known(&mut self, part: &Range<usize>) {
        self.remapped.remove(part);
    }

    /// A whole mapping is registered.
    pub fn register(&mut self, whole: Range<usize>) {
        self.registered.insert(whole);
    }

    /// A whole mapping was registered, but an event is under way that may be of it: whether it was before that is
    /// known when there is none.
    pub fn register_in_doubt(&mut self, whole: Range<usize>) {
        self.remapped.insert(whole);
    }

    /// Nothing of a range is registered any more.
    pub fn unregister(&mut self, range: &Range<usize>) {
        self.registered.remove(range);
        self.remapped.remove(range);
        self.undecided.remove(range);
    }

    /// An event says that a range has a new address. The old one's UNMAP follows, unless the program keeps the old
    /// mapping, empty (MREMAP_DONTUNMAP).
    pub fn remap(&mut self, from: &Range<usize>, to: usize, mappings: &mut impl Mappings) -> Remapped {
        let target = to..to + from.len();
        // Where it is in doubt whether there was a former owner the new one has moved away, if he has it no longer.
        let mut left = RangeSet::default();
        for range in self.doubted.within(from) {
            unheld(&range, mappings).into_iter().for_each(|range| left.insert(range));
        }
        let aside: Vec<_> =
            self.displaced.within(from).iter().flat_map(|range| left.without(range)).collect();
        let mut here = self.displaced.without(from);
        here.extend_from_slice(left.as_slice());
        for range in &here {
            self.quarantine.lift(range);
            self.remapped.remove(range);
            self.undecided.remove(range);
            // Whether we knew or not, it was registered, and is until its UNMAP comes.
            self.registered.insert(range.clone());
        }
        // What is still registered there has another owner, whose event is yet to come.
        let mut taken: RangeSet = self.registered.within(&target).into_iter().collect();
        // What that one's mremap had added to his mapping was registered too; but it may be this one's own that was
        // seen there.
        for grown in self.remapped.within(&target) {
            for range in taken.without(&grown) {
                self.doubted.insert(range.clone());
                taken.insert(range);
            }
        }
        // And the event of the one who was there may have been read already.
        self.undecided.within(&target).into_iter().for_each(|range| self.doubted.insert(range));
        self.unregister(&target);
        // Where the old mapping is kept it does not grow, and its thread may be anywhere by now; but what is there
        // may be another's as well.
        let mut gone = Vec::new();
        let has_left = mappings.mapping(from.start).is_none();
        if let Some(mapping) = mappings.mapping(to)
            && (has_left || mappings.is_ours(to))
        {
            self.remapped.insert(to..mapping.end);
            // The UNMAP before this was of the one whose place this takes: all that has been added too.
            gone = self.undecided.within(&(target.end..mapping.end));
        }
        gone.iter().for_each(|range| self.undecided.remove(range));
        let taken = taken.as_slice().to_vec();
        for range in &taken {
            self.displaced.insert(range.clone());
        }
        self.quarantine.lift(&target);
        self.registered.insert(target);
        Remapped { aside, here, taken, gone }
    }

    /// An event says that a range is gone. Where somebody else has moved to already, what was there before is aside.
    pub fn unmap(&mut self, range: &Range<usize>, mappings: &mut impl Mappings) -> Unmapped {
        let (aside, mut here) = (self.displaced.within(range), self.displaced.without(range));
        for range in &aside {
            // There may have been no former owner, and this be the new one's: he has it no longer then.
            for range in self.doubted.within(range) {
                let unheld = unheld(&range, mappings);
                self.undecided.insert(range);
                here.extend(unheld);
            }
            self.no_longer_displaced(range);
        }
        for range in &here {
            self.unregister(range);
            self.quarantine.lift(range);
        }
        Unmapped { aside, here }
    }

    /// No event is under way: none is due of which that was in doubt. The next range of which what is aside is
    /// nobody's; `None` when there is none left.
    pub fn next_not_due(&mut self) -> Option<Range<usize>> {
        let range = self.doubted.first();
        match &range {
            Some(range) => self.no_longer_displaced(range),
            None => self.undecided.clear(),
        }
        range
    }

    /// The event of a range's former owner has come, or was none.
    fn no_longer_displaced(&mut self, range: &Range<usize>) {
        self.displaced.remove(range);
        self.doubted.remove(range);
    }

    /// What REMOVE events covered.
    pub fn quarantine(&self) -> &Quarantine {
        &self.quarantine
    }

    /// The same, to be changed.
    pub fn quarantine_mut(&mut self) -> &mut Quarantine {
        &mut self.quarantine
    }

    /// What does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        [&self.registered, &self.remapped, &self.displaced, &self.doubted, &self.undecided]
            .into_iter()
            .try_for_each(RangeSet::check)?;
        self.quarantine.check()?;
        for (part, whole) in [(&self.doubted, &self.displaced), (&self.undecided, &self.registered)] {
            if !part.as_slice().iter().all(|range| whole.covers(range)) {
                return Err(alloc::format!("what is in doubt is not known: {self:x?}"));
            }
        }
        Ok(())
    }
}

/// What of a range is not mapped, or not registered, while an event is under way that says it was unmapped.
fn unheld(range: &Range<usize>, mappings: &mut impl Mappings) -> Vec<Range<usize>> {
    let (mut at, mut parts) = (range.start, RangeSet::default());
    while at < range.end {
        let mapping = mappings.mapping(at);
        let end = match &mapping {
            Some(mapping) => mapping.end.min(range.end),
            None if mappings.is_mapped(at..range.end) => at + PAGE,
            None => range.end,
        };
        if mapping.is_none() || !mappings.is_ours(at) {
            parts.insert(at..end);
        }
        at = end;
    }
    parts.as_slice().to_vec()
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod scenes;
