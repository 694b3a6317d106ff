//! The address space that zspages lie in: arenas of 2 MiB from the backing, cut into units of 64 KiB.
//!
//! Reserved address space costs nothing until it is touched. A zspage takes 1, 2, 4 or 8 neighbouring units (a span),
//! touches them from the first byte on, and remembers how far: its committed part. When it is given back, this part
//! goes back to the kernel, except that up to `SPARE_MAX_BYTES` of spans stay committed for the next zspages of the
//! same length, so that a pool that empties and fills a zspage over and over makes no system calls and takes no page
//! faults.
//!
//! Invariants, checked by `check.rs`:
//! - each unit that is used belongs to exactly one zspage or spare span
//! - `spare_bytes` = sum of the spare spans' committed bytes, at most `SPARE_MAX_BYTES`
//! - no arena is without used units
//! - arenas below `first[length]` have no room for 2^length units

use crate::backing::Backing;
use alloc::vec::Vec;
use core::ptr::{NonNull, with_exposed_provenance_mut};

/// Bytes of a unit.
pub const UNIT: usize = 64 << 10;
/// Bytes of an arena: a bit for each of its units fits into a `u32`.
pub const ARENA: usize = 32 * UNIT;
/// Committed bytes that are kept for the next zspages.
pub const SPARE_MAX_BYTES: usize = 1 << 20;

/// Lengths of spans: 2^0 to 2^3 units.
const LENGTHS: usize = 4;
/// The most spare spans of a length; a limit so that keeping one never allocates.
const SPARES: usize = 16;

/// A part of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its address; the pointer's provenance is exposed.
    pub at: usize,
    /// How many bytes of it, from the start, may have been touched.
    pub committed: usize,
    /// The arena's number.
    pub arena: u32,
    /// Units: 1, 2, 4 or 8.
    pub units: u32,
}

impl Span {
    /// No span.
    pub const NONE: Span = Span { at: 0, committed: 0, arena: 0, units: 0 };
}

struct Arena {
    /// 0: not mapped.
    at: usize,
    used: u32,
}

/// All arenas. Its lock is a leaf: nothing else is locked under it.
pub struct Arenas {
    table: Vec<Arena>,
    /// For each length: arenas below this number have no room for it.
    first: [usize; LENGTHS],
    spare: [([Span; SPARES], usize); LENGTHS],
    spare_bytes: usize,
}

impl Arenas {
    /// None yet.
    pub const fn new() -> Self {
        let spare = [([Span::NONE; SPARES], 0); LENGTHS];
        Arenas { table: Vec::new(), first: [0; LENGTHS], spare, spare_bytes: 0 }
    }

    /// A span of `units` units. `None` when the backing has nothing more; spare spans of other lengths are the caller's
    /// last resort.
    pub fn take(&mut self, units: usize, backing: &impl Backing) -> Option<Span> {
        let length = units.ilog2() as usize;
        let (spans, count) = &mut self.spare[length];
        if *count > 0 {
            *count -= 1;
            self.spare_bytes -= spans[*count].committed;
            return Some(spans[*count]);
        }
        let room = |arena: &Arena| if arena.at == 0 { None } else { run_of(!arena.used, units) };
        let from = self.first[length].min(self.table.len());
        let found = self.table[from..].iter().position(|arena| room(arena).is_some());
        let number = match found {
            Some(found) => from + found,
            None => self.map(backing)?,
        };
        self.first[length] = number;
        let arena = &mut self.table[number];
        let unit = run_of(!arena.used, units)?;
        arena.used |= mask(unit, units);
        Some(Span { at: arena.at + unit * UNIT, committed: 0, arena: number as u32, units: units as u32 })
    }

    fn map(&mut self, backing: &impl Backing) -> Option<usize> {
        let number = match self.table.iter().position(|arena| arena.at == 0) {
            Some(number) => number,
            None => {
                self.table.try_reserve(1).ok()?;
                self.table.push(Arena { at: 0, used: 0 });
                self.table.len() - 1
            }
        };
        self.table[number].at = backing.map(ARENA)?.as_ptr().expose_provenance();
        self.has_room(number);
        Some(number)
    }

    /// Keeps a span with all that it has committed; false if there is enough already.
    pub fn keep(&mut self, span: Span) -> bool {
        let (spans, count) = &mut self.spare[span.units.ilog2() as usize];
        if *count == SPARES || self.spare_bytes + span.committed > SPARE_MAX_BYTES {
            return false;
        }
        spans[*count] = span;
        *count += 1;
        self.spare_bytes += span.committed;
        true
    }

    /// A spare span, for the caller to decommit and give back.
    pub fn take_spare(&mut self) -> Option<Span> {
        let (spans, count) = self.spare.iter_mut().find(|(_, count)| *count > 0)?;
        *count -= 1;
        self.spare_bytes -= spans[*count].committed;
        Some(spans[*count])
    }

    /// Takes a span back whose memory is decommitted already. An arena without spans is unmapped.
    pub fn give(&mut self, span: Span, backing: &impl Backing) {
        let number = span.arena as usize;
        let arena = &mut self.table[number];
        let mask = mask((span.at - arena.at) / UNIT, span.units as usize);
        debug_assert_eq!(arena.used & mask, mask);
        arena.used &= !mask;
        if arena.used == 0 {
            backing.unmap(pointer(arena.at), ARENA);
            arena.at = 0;
        }
        self.has_room(number);
    }

    /// Arena `number` has room that it did not have before.
    fn has_room(&mut self, number: usize) {
        for first in &mut self.first {
            *first = number.min(*first);
        }
    }

    /// Unmaps everything.
    pub fn unmap_all(&mut self, backing: &impl Backing) {
        for arena in self.table.drain(..).filter(|arena| arena.at != 0) {
            backing.unmap(pointer(arena.at), ARENA);
        }
    }

    /// Bytes committed in spare spans.
    pub fn spare_bytes(&self) -> usize {
        self.spare_bytes
    }

    /// The spare spans.
    pub fn spares(&self) -> impl Iterator<Item = &Span> {
        self.spare.iter().flat_map(|(spans, count)| &spans[..*count])
    }

    /// False if there is room that `take` would not find.
    pub fn finds_all_room(&self) -> bool {
        let has_room =
            |arena: &Arena, length: usize| arena.at != 0 && run_of(!arena.used, 1 << length).is_some();
        let no_room =
            |length: usize, first: usize| !self.table.iter().take(first).any(|a| has_room(a, length));
        self.first.iter().enumerate().all(|(length, &first)| no_room(length, first))
    }

    /// Number, address and used units of every arena that is mapped.
    pub fn mapped(&self) -> impl Iterator<Item = (u32, usize, u32)> {
        let numbered = self.table.iter().enumerate().filter(|(_, arena)| arena.at != 0);
        numbered.map(|(number, arena)| (number as u32, arena.at, arena.used))
    }
}

/// The pointer to an address in memory of the backing.
pub fn pointer(at: usize) -> NonNull<u8> {
    debug_assert!(at != 0);
    // SAFETY: addresses here come from the backing, which returns no null.
    unsafe { NonNull::new_unchecked(with_exposed_provenance_mut(at)) }
}

/// The units from `unit` on, as bits.
pub fn mask(unit: usize, units: usize) -> u32 {
    ((1 << units) - 1) << unit
}

/// The first of `units` neighbouring bits that are set.
fn run_of(free: u32, units: usize) -> Option<usize> {
    let starts = (1..units).fold(free, |starts, i| starts & free >> i);
    (starts != 0).then(|| starts.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_units() {
        assert_eq!(run_of(0b0110_1110, 3), Some(1));
        assert_eq!(run_of(0b0110_1110, 4), None);
        assert_eq!(run_of(!0, 8), Some(0));
        assert_eq!(run_of(0xff00_0000, 8), Some(24));
        assert_eq!(run_of(0xfe00_0000, 8), None, "a run does not reach past the arena");
        assert_eq!(run_of(0, 1), None);
        assert_eq!(mask(4, 2), 0b11_0000);
    }
}
