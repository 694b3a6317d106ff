//! One zspage: a run of slots of one size.
//!
//! ```text
//!            0    1    2    3    4    5
//!   slots  | a  | b  |    | c  |    |    |~~~~~~~~~~~|   reserved, never touched
//!                       ^lowest   ^top   ^committed      (page-aligned)
//! ```
//!
//! Invariants, checked by `check.rs`:
//! - `inuse` = owners that are not 0
//! - every slot below `lowest` is taken; every slot at or above `top` is free
//! - `top * size <= span.committed`, a multiple of a page

use crate::PAGE;
use crate::arena::Span;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// In place of a zspage's number: none.
pub const NONE: u32 = u32::MAX;

/// A zspage. All of it is behind the lock of its class.
pub struct Zspage {
    /// Where it lies.
    pub span: Span,
    /// The raw handle of the object in each slot, 0 for none: what compaction finds objects by.
    pub owners: Box<[u32]>,
    /// Slots taken.
    pub inuse: u16,
    lowest: u16,
    top: u16,
    /// Another process has it too, as a copy that is made by the page when one of the two writes: nothing is put into
    /// it, and it is in no list.
    pub frozen: bool,
    /// Neighbours in the list of its fullness group.
    pub prev: u32,
    /// See `prev`. In a dead zspage, the next dead one.
    pub next: u32,
}

const _: () = assert!(size_of::<Zspage>() == 56);

impl Zspage {
    /// An empty zspage. `None` without memory for its owners.
    pub fn new(span: Span, slots: usize) -> Option<Self> {
        let mut owners = Vec::new();
        owners.try_reserve_exact(slots).ok()?;
        owners.resize(slots, 0);
        Some(Zspage {
            span,
            owners: owners.into(),
            inuse: 0,
            lowest: 0,
            top: 0,
            frozen: false,
            prev: NONE,
            next: NONE,
        })
    }

    /// What is left in the table of a zspage that is gone.
    pub fn dead(next: u32) -> Self {
        Zspage {
            span: Span::NONE,
            owners: Box::default(),
            inuse: 0,
            lowest: 0,
            top: 0,
            frozen: false,
            prev: NONE,
            next,
        }
    }

    /// The lowest free slot.
    pub fn lowest_free(&mut self) -> Option<usize> {
        let from = self.lowest as usize;
        let free = self.owners[from..].iter().position(|&owner| owner == 0);
        self.lowest = free.map_or(self.owners.len(), |free| from + free) as u16;
        free.map(|free| from + free)
    }

    /// Taken slots from the highest down.
    pub fn taken_from_top(&self) -> impl Iterator<Item = (usize, u32)> {
        let below_top = &self.owners[..self.top as usize];
        below_top.iter().copied().enumerate().rev().filter(|&(_, owner)| owner != 0)
    }

    /// Takes slot `slot`, of `size` bytes, for `owner`. Returns how many bytes become committed.
    pub fn take(&mut self, slot: usize, owner: u32, size: usize) -> usize {
        debug_assert!(self.owners[slot] == 0 && owner != 0);
        self.owners[slot] = owner;
        self.inuse += 1;
        self.top = self.top.max(slot as u16 + 1);
        let end = ((slot + 1) * size).next_multiple_of(PAGE);
        let grown = end.saturating_sub(self.span.committed);
        self.span.committed += grown;
        grown
    }

    /// Frees slot `slot`.
    pub fn give(&mut self, slot: usize) {
        debug_assert!(self.owners[slot] != 0);
        self.owners[slot] = 0;
        self.inuse -= 1;
        self.lowest = self.lowest.min(slot as u16);
    }

    /// Cuts off the committed pages past the last taken slot: returns their address and length for the caller to
    /// decommit.
    pub fn trim(&mut self, size: usize) -> (usize, usize) {
        let last = self.taken_from_top().next();
        self.top = last.map_or(0, |(slot, _)| slot as u16 + 1);
        let end = (self.top as usize * size).next_multiple_of(PAGE);
        let cut = self.span.committed - end;
        self.span.committed = end;
        (self.span.at + end, cut)
    }

    /// What does not hold of the hints, in words.
    pub fn check(&self, size: usize) -> Result<(), &'static str> {
        let taken = |owners: &[u32]| owners.iter().filter(|&&owner| owner != 0).count();
        let (lowest, top) = (self.lowest as usize, self.top as usize);
        if taken(&self.owners) != self.inuse as usize {
            return Err("inuse is not the number of owners");
        }
        if taken(&self.owners[..lowest]) != lowest {
            return Err("a slot below `lowest` is free");
        }
        if taken(&self.owners[top..]) != 0 {
            return Err("a slot above `top` is taken");
        }
        if top * size > self.span.committed || !self.span.committed.is_multiple_of(PAGE) {
            return Err("`committed` does not reach `top`, or is not whole pages");
        }
        Ok(())
    }
}
