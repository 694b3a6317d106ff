//! The zspages of one class, in groups by how full they are.
//!
//! ```text
//!   group    0      1     2     ..   9     10    11        (the kernel's fullness groups)
//!   in use   none   <10%  <20%  ..  <90%  <100%  all
//!                   '---- linked lists -----'    in no list
//! ```
//!
//! Objects are allocated from the fullest zspage that has room, and compaction empties the emptiest one: with time,
//! zspages are either full or gone. A zspage that becomes empty leaves the class at once, and so group 0 has none.
//!
//! Invariants, checked by `check.rs`:
//! - a zspage is in the list of its group, if the group has one, and in no other; one that is frozen is in none
//! - `objects` = sum of inuse; `stored` = sum of the lengths of these objects
//! - `owners_bytes` = 4 * number of zspages * slots

use crate::zspage::{NONE, Zspage};
use alloc::vec::Vec;

/// How many fullness groups there are.
pub const GROUPS: usize = 12;
/// Groups 1 to `FULL - 1` have lists.
const FULL: usize = GROUPS - 1;

/// The fullness group of a zspage with `inuse` of `slots` slots taken.
pub fn group_of(inuse: usize, slots: usize) -> usize {
    match inuse {
        0 => 0,
        n if n == slots => FULL,
        n => n * 10 / slots + 1,
    }
}

/// The zspages of one class.
pub struct Zspages {
    /// By number. Numbers of dead ones are used again.
    pub table: Vec<Zspage>,
    dead: u32,
    heads: [u32; FULL],
    owners_bytes: usize,
    /// Objects in them.
    pub objects: usize,
    /// Sum of the objects' lengths, in bytes.
    pub stored: usize,
}

impl Default for Zspages {
    fn default() -> Self {
        Zspages { table: Vec::new(), dead: NONE, heads: [NONE; FULL], owners_bytes: 0, objects: 0, stored: 0 }
    }
}

impl Zspages {
    /// Enters a new, empty zspage, and returns its number; it is in no list before its first object. `None` without
    /// memory for it.
    pub fn insert(&mut self, zspage: Zspage) -> Option<u32> {
        let owners_bytes = size_of_val(&zspage.owners[..]);
        let id = if self.dead != NONE {
            let id = self.dead;
            self.dead = self.table[id as usize].next;
            self.table[id as usize] = zspage;
            id
        } else {
            self.table.try_reserve(1).ok()?;
            self.table.push(zspage);
            self.table.len() as u32 - 1
        };
        self.owners_bytes += owners_bytes;
        Some(id)
    }

    /// Removes an empty zspage.
    pub fn remove(&mut self, id: u32) -> Zspage {
        debug_assert_eq!(self.get(id).inuse, 0);
        let dead = Zspage::dead(self.dead);
        self.dead = id;
        let zspage = core::mem::replace(self.get(id), dead);
        self.owners_bytes -= size_of_val(&zspage.owners[..]);
        zspage
    }

    /// Bytes of metadata.
    pub fn meta_bytes(&self) -> usize {
        self.owners_bytes + self.table.capacity() * size_of::<Zspage>()
    }

    /// Zspage number `id`.
    pub fn get(&mut self, id: u32) -> &mut Zspage {
        &mut self.table[id as usize]
    }

    /// All zspages, by number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Zspage)> {
        self.table.iter().enumerate().filter(|(_, z)| !z.owners.is_empty()).map(|(id, z)| (id as u32, z))
    }

    /// The fullest zspage that has room, by group.
    pub fn fullest(&self) -> Option<u32> {
        self.heads[1..].iter().rev().copied().find(|&head| head != NONE)
    }

    /// The emptiest zspage that has room and the fullest other one, by group; within a group by what they hold.
    pub fn emptiest_and_fullest(&self) -> Option<(u32, Option<u32>)> {
        let emptiest = self.heads[1..].iter().copied().find(|&head| head != NONE)?;
        let fullest = self.fullest().filter(|&id| id != emptiest);
        let next = self.table[emptiest as usize].next;
        let fullest = fullest.or((next != NONE).then_some(next));
        let inuse = |id: u32| self.table[id as usize].inuse;
        Some(match fullest {
            Some(fullest) if inuse(fullest) < inuse(emptiest) => (fullest, Some(emptiest)),
            _ => (emptiest, fullest),
        })
    }

    /// Changes a zspage by `change`, and puts it into the list that it then belongs to.
    pub fn change<R>(&mut self, id: u32, change: impl FnOnce(&mut Zspage) -> R) -> R {
        let zspage = self.get(id);
        if zspage.frozen {
            return change(zspage);
        }
        let slots = zspage.owners.len();
        let before = group_of(zspage.inuse as usize, slots);
        let result = change(zspage);
        let after = group_of(zspage.inuse as usize, slots);
        if before != after {
            self.unlink(id, before);
            self.link(id, after);
        }
        result
    }

    /// Takes all zspages that there are out of the lists: no object is put into them.
    pub fn freeze(&mut self) {
        self.heads = [NONE; FULL];
        // A dead one's `next` is the next dead one.
        for zspage in self.table.iter_mut().filter(|z| !z.owners.is_empty()) {
            (zspage.frozen, zspage.prev, zspage.next) = (true, NONE, NONE);
        }
    }

    /// Undoes that.
    pub fn thaw(&mut self) {
        for id in 0..self.table.len() as u32 {
            let zspage = self.get(id);
            if core::mem::take(&mut zspage.frozen) {
                let group = group_of(zspage.inuse as usize, zspage.owners.len());
                self.link(id, group);
            }
        }
    }

    fn link(&mut self, id: u32, group: usize) {
        if !(1..FULL).contains(&group) {
            return;
        }
        let head = self.heads[group];
        let zspage = self.get(id);
        (zspage.prev, zspage.next) = (NONE, head);
        if head != NONE {
            self.get(head).prev = id;
        }
        self.heads[group] = id;
    }

    fn unlink(&mut self, id: u32, group: usize) {
        if !(1..FULL).contains(&group) {
            return;
        }
        let zspage = self.get(id);
        let (prev, next) = (zspage.prev, zspage.next);
        match prev {
            NONE => self.heads[group] = next,
            _ => self.get(prev).next = next,
        }
        if next != NONE {
            self.get(next).prev = prev;
        }
    }

    /// The zspages in the list of `group`, as far as the links are sound: each must name the one before.
    pub fn list(&self, group: usize) -> impl Iterator<Item = Result<u32, &'static str>> {
        let mut at = if (1..FULL).contains(&group) { self.heads[group] } else { NONE };
        let mut before = NONE;
        core::iter::from_fn(move || {
            if at == NONE {
                return None;
            }
            let id = at;
            let zspage = &self.table[id as usize];
            if zspage.prev != before {
                at = NONE;
                return Some(Err("a list's backward link is wrong"));
            }
            (before, at) = (id, zspage.next);
            Some(Ok(id))
        })
    }
}
