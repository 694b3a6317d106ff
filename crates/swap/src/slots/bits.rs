//! One bit for each slot of a cluster.

use crate::CLUSTER;

/// 64 slots each.
const WORDS: usize = CLUSTER as usize / 64;

/// A set of slots of a cluster, by their numbers in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bits([u64; WORDS]);

impl Bits {
    pub fn has(&self, slot: u32) -> bool {
        self.0[slot as usize / 64] >> (slot % 64) & 1 != 0
    }

    pub fn set(&mut self, slot: u32) {
        self.0[slot as usize / 64] |= 1 << (slot % 64);
    }

    pub fn clear(&mut self, slot: u32) {
        self.0[slot as usize / 64] &= !(1 << (slot % 64));
    }

    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    pub fn or(&self, other: &Bits) -> Bits {
        Bits(core::array::from_fn(|n| self.0[n] | other.0[n]))
    }

    pub fn not(&self) -> Bits {
        Bits(self.0.map(|word| !word))
    }

    /// The first naturally aligned run of 2^order slots from `from` on of which none is in the set.
    pub fn gap(&self, order: u8, from: u32) -> Option<u32> {
        let step = 1u32 << order;
        let mut slot = from.next_multiple_of(step);
        while slot < CLUSTER {
            if order >= 6 {
                let words = slot as usize / 64..(slot + step) as usize / 64;
                if self.0[words].iter().all(|word| *word == 0) {
                    return Some(slot);
                }
                slot += step;
                continue;
            }
            // A bit for each run of this word that begins at it and has a slot of the set.
            let folded = (0..order).fold(self.0[slot as usize / 64], |word, n| word | word >> (1 << n));
            let starts = u64::MAX / (u64::MAX >> (64 - step));
            let free = !folded & starts & u64::MAX << (slot % 64);
            if free != 0 {
                return Some(slot / 64 * 64 + free.trailing_zeros());
            }
            slot = (slot / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Random;

    #[test]
    fn gaps_are_those_that_a_look_at_each_slot_finds() {
        let mut random = Random(3);
        for round in 0..2000 {
            let mut bits = Bits::default();
            for _ in 0..random.below([2, 20, 200, 2000][round % 4]) {
                bits.set(random.below(CLUSTER as usize) as u32);
            }
            let order = random.below(10) as u8;
            let from = random.below(CLUSTER as usize + 1) as u32;
            let step = 1u32 << order;
            let is_gap =
                |slot: &u32| slot.is_multiple_of(step) && (*slot..slot + step).all(|slot| !bits.has(slot));
            assert_eq!(bits.gap(order, from), (from..CLUSTER).find(is_gap), "round {round}: {order} {from}");
            let set = (0..CLUSTER).filter(|slot| bits.has(*slot)).count() as u32;
            assert_eq!((bits.count(), bits.not().count()), (set, CLUSTER - set));
        }
    }
}
