//! Which objects go to an area first: a list by age, out of whose middle any can be taken at once.
//!
//! ```text
//!   push ──> newest ⇄ ... ⇄ oldest ──> pop
//!                              ^
//!   push_first ────────────────┘     what gains nothing by lying in the pool
//! ```
//!
//! Invariant: whoever is in the list is in it once, and both directions say the same.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// No neighbour: the end of the list.
const END: u32 = u32::MAX;

/// Not in the list.
const OUT: Link = Link { newer: OUTSIDE, older: OUTSIDE };
const OUTSIDE: u32 = u32::MAX - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    newer: u32,
    older: u32,
}

/// The list. Members are numbers, densely used from 0 on.
#[derive(Clone, Debug)]
pub struct Lru {
    links: Vec<Link>,
    newest: u32,
    oldest: u32,
    len: usize,
}

impl Default for Lru {
    fn default() -> Lru {
        Lru { links: Vec::new(), newest: END, oldest: END, len: 0 }
    }
}

impl Lru {
    /// How many are in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The oldest.
    pub fn first(&self) -> Option<u32> {
        (self.oldest != END).then_some(self.oldest)
    }

    /// True for a member.
    pub fn contains(&self, id: u32) -> bool {
        self.links.get(id as usize).is_some_and(|link| *link != OUT)
    }

    /// Takes in as the newest one that is not in it.
    pub fn push(&mut self, id: u32) {
        self.enter(id, Link { newer: END, older: self.newest });
    }

    /// Takes in as the oldest one that is not in it.
    pub fn push_first(&mut self, id: u32) {
        self.enter(id, Link { newer: self.oldest, older: END });
    }

    fn enter(&mut self, id: u32, link: Link) {
        debug_assert!(!self.contains(id), "{id} is in the list");
        if self.links.len() <= id as usize {
            self.links.resize(id as usize + 1, OUT);
        }
        self.links[id as usize] = link;
        self.tie(link, id, id);
        self.len += 1;
    }

    /// Takes one out, if it is in it.
    pub fn remove(&mut self, id: u32) {
        if self.contains(id) {
            let link = core::mem::replace(&mut self.links[id as usize], OUT);
            self.tie(link, link.older, link.newer);
            self.len -= 1;
        }
    }

    /// Takes the oldest out.
    pub fn pop(&mut self) -> Option<u32> {
        let oldest = (self.oldest != END).then_some(self.oldest)?;
        self.remove(oldest);
        Some(oldest)
    }

    /// The neighbours that `link` names have these as theirs from now on.
    fn tie(&mut self, link: Link, older: u32, newer: u32) {
        match link.newer {
            END => self.newest = older,
            id => self.links[id as usize].older = older,
        }
        match link.older {
            END => self.oldest = newer,
            id => self.links[id as usize].newer = newer,
        }
    }

    /// What does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        let (mut at, mut newer, mut found) = (self.newest, END, 0);
        while at != END {
            let link = self.links[at as usize];
            if link.newer != newer || found > self.len {
                return Err(format!("{at} follows {newer} in the list of objects by age, and says {link:?}"));
            }
            (newer, at, found) = (at, link.older, found + 1);
        }
        let members = self.links.iter().filter(|link| **link != OUT).count();
        if newer != self.oldest || [found, members] != [self.len; 2] {
            return Err(format!(
                "{found} of {members} objects are in the list by age, {} are counted",
                self.len
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Random;
    use std::collections::VecDeque;

    #[test]
    fn it_is_a_queue_out_of_which_any_can_be_taken() {
        for seed in 1..=20 {
            let (mut lru, mut model, mut random) = (Lru::default(), VecDeque::new(), Random(seed));
            for _ in 0..5000 {
                let id = random.below(50) as u32;
                let is_in = model.contains(&id);
                assert_eq!(lru.contains(id), is_in, "seed {seed}");
                match random.below(4) {
                    0 if !is_in => {
                        lru.push(id);
                        model.push_back(id);
                    }
                    1 if !is_in => {
                        lru.push_first(id);
                        model.push_front(id);
                    }
                    2 => {
                        lru.remove(id);
                        model.retain(|other| *other != id);
                    }
                    _ => assert_eq!(lru.pop(), model.pop_front(), "seed {seed}"),
                }
                assert_eq!((lru.check(), lru.len()), (Ok(()), model.len()), "seed {seed}");
            }
        }
    }
}
