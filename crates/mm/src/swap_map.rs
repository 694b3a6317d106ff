//! The swap map: for each page of the program, what the engine knows about it. Leaves of 128 entries in a tree:
//! programs spread their mappings over all of the address space (V8 does so on purpose), where a page table's upper
//! levels would take more memory than the pages.
//!
//! ```text
//!   entry     63      46 45                14 13       12     5 4  3 2   0
//!            [ evicted  | object or page   | filled | offset  | heat | kind ]
//! ```
//!
//! | kind | the page's contents | id | offset |
//! | --- | --- | --- | --- |
//! | `None` | in the program, or nowhere yet: a hole reads as zeros | - | - |
//! | `Inactive` | on the inactive list | page of the list | - |
//! | `Stored` | in an object | object | page within it |
//! | `Clean` | in the program, and the same in an object when it came in | object | page within it |
//! | `Zero` | known to be zeros, stored without data | - | - |
//!
//! `filled` says that one word fills the page, whatever else its object holds. `evicted` says when the page went out
//! last, by the number of pages that had gone before it, in steps of 64.

use crate::kernel::WINDOW_PAGES;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::Cell;
use core::ops::Range;
use vmscan::PAGE;
use vmscan::heat::Heat;

const LEAF: usize = 128;
const LEAF_BYTES: usize = LEAF * PAGE;
const OFFSET_BITS: u32 = 8;
const FILLED: u64 = 1 << 13;
const EVICTED: u32 = 46;

/// How many evictions are one step of an entry's clock.
const EVICTED_STEP: usize = 64;

/// Where a page's contents are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// In the program, or nowhere yet.
    None = 0,
    /// On the inactive list.
    Inactive = 1,
    /// In an object.
    Stored = 2,
    /// In the program, with a copy in an object.
    Clean = 3,
    /// Zeros.
    Zero = 4,
}

impl Kind {
    /// The page's only copy is in the pool, or it is known to be zeros.
    pub fn is_stored(self) -> bool {
        matches!(self, Kind::Stored | Kind::Zero)
    }

    /// The page's contents are with us alone.
    pub fn is_out(self) -> bool {
        self == Kind::Inactive || self.is_stored()
    }
}

/// What is known about one page.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry(u64);

impl core::fmt::Debug for Entry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}({}+{} {:?})", self.kind(), self.id(), self.offset(), self.heat())
    }
}

impl Entry {
    /// Nothing known.
    pub const NONE: Entry = Entry(0);

    /// An entry with all its parts.
    pub fn new(kind: Kind, id: u32, offset: usize, heat: Heat) -> Entry {
        debug_assert!(offset < 1 << OFFSET_BITS);
        Entry(kind as u64 | heat.bits() << 3 | (offset as u64) << 5 | (id as u64) << 14)
    }

    /// Where the contents are.
    pub fn kind(self) -> Kind {
        match self.0 & 7 {
            0 => Kind::None,
            1 => Kind::Inactive,
            2 => Kind::Stored,
            3 => Kind::Clean,
            _ => Kind::Zero,
        }
    }

    /// Object, or page of the inactive list.
    pub fn id(self) -> u32 {
        (self.0 >> 14) as u32
    }

    /// Page within the object.
    pub fn offset(self) -> usize {
        (self.0 >> 5) as usize & ((1 << OFFSET_BITS) - 1)
    }

    /// Of a `Inactive` one: the slot of the inactive list, and its page there.
    pub fn inactive_page(self) -> (u32, usize) {
        (self.id() / WINDOW_PAGES as u32, self.id() as usize % WINDOW_PAGES)
    }

    /// True for a page that is out, and that one word fills.
    pub fn is_same_filled(self) -> bool {
        self.kind() == Kind::Zero || self.kind() == Kind::Stored && self.0 & FILLED != 0
    }

    /// The same of a page that one word fills, or does not.
    pub fn filled_by_word(self, is_filled: bool) -> Entry {
        Entry(if is_filled { self.0 | FILLED } else { self.0 & !FILLED })
    }

    /// How many visits of the hand the page survives.
    pub fn heat(self) -> Heat {
        Heat::from_bits(self.0 >> 3)
    }

    /// How many pages have gone out since this one did, when `evictions` have altogether; counts from 0 again after
    /// 16 million.
    pub fn distance(self, evictions: usize) -> usize {
        let steps = ((evictions / EVICTED_STEP) as u64).wrapping_sub(self.0 >> EVICTED);
        (steps & ((1 << (64 - EVICTED)) - 1)) as usize * EVICTED_STEP
    }

    /// The same, gone out when `evictions` pages had altogether.
    pub fn evicted_at(self, evictions: usize) -> Entry {
        Entry(self.0 & ((1 << EVICTED) - 1) | ((evictions / EVICTED_STEP) as u64) << EVICTED)
    }

    /// The same, gone out when `other` was.
    pub fn evicted_with(self, other: Entry) -> Entry {
        let mask = (1 << EVICTED) - 1;
        Entry(self.0 & mask | other.0 & !mask)
    }

    /// The same with another heat.
    pub fn with_heat(self, heat: Heat) -> Entry {
        Entry(self.0 & !(3 << 3) | heat.bits() << 3)
    }

    /// The same with another kind.
    pub fn with_kind(self, kind: Kind) -> Entry {
        Entry(self.0 & !7 | kind as u64)
    }
}

#[cfg_attr(test, derive(Clone))]
struct Leaf {
    entries: [Entry; LEAF],
    /// Entries that are not `NONE`; a leaf without any is freed.
    used: usize,
}

/// All entries.
#[cfg_attr(test, derive(Clone))]
pub struct SwapMap {
    /// Where in `slab` a leaf is.
    leaves: BTreeMap<usize, usize>,
    slab: Vec<Option<Box<Leaf>>>,
    /// Places of `slab` that hold nothing.
    free: Vec<usize>,
    /// Leaves found lately and their places in `slab`, by number modulo `FOUND`: one overwrites another.
    found: Box<[Cell<(u32, u32)>]>,
    /// How many entries are stored.
    stored: usize,
    /// Of those: how many are filled by one word.
    same_filled: usize,
    /// How many pages have gone to the inactive list, ever.
    evictions: usize,
}

/// A leaf that nothing has.
const NO_LEAF: (u32, u32) = (u32::MAX, 0);

/// How many leaves are found without a search: those of 2 GiB in a row.
const FOUND: usize = 4096;

/// Added to the address of a page whose place was taken by another before the event came that says what becomes of it.
pub const ASIDE: usize = 1 << 47;

/// A page's leaf, and its place there.
fn split(at: usize) -> (usize, usize) {
    assert!(at < 2 * ASIDE, "a user address has 47 bits");
    (at / LEAF_BYTES, at / PAGE % LEAF)
}

impl Default for SwapMap {
    fn default() -> Self {
        let found = vec![Cell::new(NO_LEAF); FOUND].into();
        SwapMap {
            leaves: BTreeMap::new(),
            slab: Vec::new(),
            free: Vec::new(),
            found,
            stored: 0,
            same_filled: 0,
            evictions: 0,
        }
    }
}

impl SwapMap {
    /// The place of a leaf in `slab`.
    fn find(&self, leaf: usize) -> Option<usize> {
        let found = &self.found[leaf % FOUND];
        let (number, place) = found.get();
        if number as usize == leaf {
            return Some(place as usize);
        }
        let place = *self.leaves.get(&leaf)?;
        found.set((leaf as u32, place as u32));
        Some(place)
    }

    fn leaf(&self, place: usize) -> &Leaf {
        self.slab[place].as_ref().expect("a leaf that is found")
    }

    fn leaf_mut(&mut self, place: usize) -> &mut Leaf {
        self.slab[place].as_mut().expect("a leaf that is found")
    }

    fn insert(&mut self, leaf: usize) -> usize {
        let new = Some(Box::new(Leaf { entries: [Entry::NONE; LEAF], used: 0 }));
        let place = match self.free.pop() {
            Some(place) => {
                self.slab[place] = new;
                place
            }
            None => {
                self.slab.push(new);
                self.slab.len() - 1
            }
        };
        self.leaves.insert(leaf, place);
        place
    }

    fn remove(&mut self, leaf: usize, place: usize) {
        self.found[leaf % FOUND].set(NO_LEAF);
        self.leaves.remove(&leaf);
        self.slab[place] = None;
        self.free.push(place);
    }

    /// The entry of the page at `at`.
    pub fn get(&self, at: usize) -> Entry {
        let (leaf, place) = split(at);
        self.find(leaf).map_or(Entry::NONE, |l| self.leaf(l).entries[place])
    }

    /// Replaces the entry of the page at `at`; returns the old one.
    pub fn set(&mut self, at: usize, entry: Entry) -> Entry {
        let (number, place) = split(at);
        let found = match self.find(number) {
            Some(found) => found,
            None if entry == Entry::NONE => return Entry::NONE,
            None => self.insert(number),
        };
        let leaf = self.leaf_mut(found);
        let old = core::mem::replace(&mut leaf.entries[place], entry);
        leaf.used = leaf.used + (entry != Entry::NONE) as usize - (old != Entry::NONE) as usize;
        if leaf.used == 0 {
            self.remove(number, found);
        }
        self.stored = self.stored + entry.kind().is_stored() as usize - old.kind().is_stored() as usize;
        self.same_filled = self.same_filled + entry.is_same_filled() as usize - old.is_same_filled() as usize;
        old
    }

    /// Replaces the heat of the page at `at` by what `change` makes of it, unless that is nothing; true if it was
    /// something.
    pub fn cool(&mut self, at: usize, change: impl FnOnce(Heat) -> Option<Heat>) -> bool {
        let (number, place) = split(at);
        let Some(found) = self.find(number) else { return false };
        let leaf = self.leaf_mut(found);
        let entry = &mut leaf.entries[place];
        let Some(heat) = change(entry.heat()) else { return false };
        let old = core::mem::replace(entry, entry.with_heat(heat));
        if *entry == Entry::NONE && old != Entry::NONE {
            leaf.used -= 1;
            if leaf.used == 0 {
                self.remove(number, found);
            }
        }
        true
    }

    /// The first page at or after `at`, and before `end`, about which something is known.
    pub fn next_used(&self, at: usize, end: usize) -> Option<(usize, Entry)> {
        let (first, place) = split(at);
        for (&leaf, &found) in self.leaves.range(first..end.div_ceil(LEAF_BYTES).max(first)) {
            let (l, skip) = (self.leaf(found), if leaf == first { place } else { 0 });
            let found = l.entries[skip..].iter().position(|&e| e != Entry::NONE);
            if let Some(place) = found.map(|more| skip + more) {
                let page = leaf * LEAF_BYTES + place * PAGE;
                return (page < end).then_some((page, l.entries[place]));
            }
        }
        None
    }

    /// How many pages have no other copy than the pool's.
    pub fn stored(&self) -> usize {
        self.stored
    }

    /// How many of them are filled by one word.
    pub fn same_filled(&self) -> usize {
        self.same_filled
    }

    /// So many pages go to the inactive list now; how many have gone there, ever.
    pub fn evict(&mut self, pages: usize) -> usize {
        self.evictions += pages;
        self.evictions
    }

    /// How many pages have gone out since this entry's did.
    pub fn distance(&self, entry: Entry) -> usize {
        entry.distance(self.evictions)
    }

    /// What does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        let (mut stored, mut same_filled) = (0, 0);
        for (&number, &place) in &self.leaves {
            let entries =
                self.slab.get(place).and_then(Option::as_ref).map(|leaf| (&leaf.entries, leaf.used));
            let Some((entries, counted)) = entries else {
                return Err(format!("leaf {number} is at place {place}, where there is none"));
            };
            let used = entries.iter().filter(|entry| **entry != Entry::NONE).count();
            if used != counted || used == 0 {
                return Err(format!("leaf {number} has {used} entries, and {counted} are counted"));
            }
            stored += entries.iter().filter(|entry| entry.kind().is_stored()).count();
            same_filled += entries.iter().filter(|entry| entry.is_same_filled()).count();
        }
        if [stored, same_filled] != [self.stored, self.same_filled] {
            let counted = [self.stored, self.same_filled];
            return Err(format!(
                "pages are out, and filled: {stored}, {same_filled}; counted are {counted:?}"
            ));
        }
        let leaves = self.slab.iter().flatten().count();
        if leaves != self.leaves.len() || leaves + self.free.len() != self.slab.len() {
            return Err(format!("{leaves} leaves are kept, {} are known", self.leaves.len()));
        }
        Ok(())
    }

    /// Forgets a range: calls `each` with every page and entry that was known.
    pub fn take(&mut self, range: Range<usize>, mut each: impl FnMut(usize, Entry)) {
        let mut at = range.start;
        while let Some((page, entry)) = self.next_used(at, range.end) {
            self.set(page, Entry::NONE);
            each(page, entry);
            at = page + PAGE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_keeps_its_parts() {
        let e = Entry::new(Kind::Stored, u32::MAX, 255, Heat::HOT);
        assert!(!e.is_same_filled() && e.filled_by_word(true).is_same_filled());
        assert_eq!(e.filled_by_word(true).filled_by_word(false), e);
        let e = e.filled_by_word(true);
        assert_eq!((e.kind(), e.id(), e.offset(), e.heat()), (Kind::Stored, u32::MAX, 255, Heat::HOT));
        assert!(!e.with_kind(Kind::Clean).is_same_filled(), "it is in");
        assert!(e.with_kind(Kind::Clean).with_kind(Kind::Stored).is_same_filled());
        let e = e.with_kind(Kind::Clean).with_heat(Heat::COLD);
        assert_eq!((e.kind(), e.id(), e.offset(), e.heat()), (Kind::Clean, u32::MAX, 255, Heat::COLD));
        let gone = e.evicted_at(EVICTED_STEP * 1000);
        assert_eq!((gone.kind(), gone.id(), gone.offset()), (e.kind(), e.id(), e.offset()));
        assert_eq!(gone.distance(EVICTED_STEP * 1005 + 3), 5 * EVICTED_STEP);
        assert_eq!(gone.distance(EVICTED_STEP * ((1 << 18) + 1001)), EVICTED_STEP, "it counts from 0 again");
        assert_eq!(e.evicted_with(gone), gone);
    }

    #[test]
    fn the_swap_map_is_a_map() {
        for seed in 1..=10u64 {
            let (mut map, mut model, mut random) = (SwapMap::default(), BTreeMap::new(), seed);
            let mut next = |n: u64| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (random >> 33) % n
            };
            let bases = [0x1000_0000usize, 0x7f00_0000_0000, 0x7fff_ffe0_0000, (1 << 34) - (2 << 20)];
            for _ in 0..20_000 {
                let at = bases[next(4) as usize] + next(1024).min(511) as usize * PAGE;
                match next(5) {
                    0 => {
                        let end = at + next(40) as usize * PAGE;
                        let mut taken = Vec::new();
                        map.take(at..end, |a, e| taken.push((a, e)));
                        let expected: Vec<_> = model.range(at..end).map(|(a, e)| (*a, *e)).collect();
                        assert_eq!(taken, expected, "seed {seed}");
                        model.retain(|a, _| *a < at || *a >= end);
                    }
                    1 => assert_eq!(map.get(at), *model.get(&at).unwrap_or(&Entry::NONE), "seed {seed}"),
                    _ => {
                        let kind = [Kind::Stored, Kind::Clean, Kind::Zero, Kind::None][next(4) as usize];
                        let e = Entry::new(kind, next(9) as u32, 3, Heat::COLD);
                        assert_eq!(map.set(at, e), model.insert(at, e).unwrap_or(Entry::NONE), "seed {seed}");
                    }
                }
            }
            assert_eq!(
                (map.check(), map.stored()),
                (Ok(()), model.values().filter(|e| e.kind().is_stored()).count())
            );
            map.take(0..1 << 47, |_, _| ());
            // In places that others had: the last two bases share some of `found`.
            for base in bases {
                assert_eq!(map.get(base), Entry::NONE, "seed {seed}");
                map.set(base, Entry::new(Kind::Stored, base as u32 >> 12, 0, Heat::COLD));
            }
            assert!(bases.iter().all(|&base| map.get(base).id() == base as u32 >> 12), "seed {seed}");
            map.take(0..1 << 47, |_, _| ());
            assert!(map.leaves.is_empty(), "empty leaves are freed");
            assert!(map.slab.iter().all(Option::is_none), "and their memory is");
        }
    }
}
