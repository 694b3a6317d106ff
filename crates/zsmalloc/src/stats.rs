//! What a pool holds, by class, and where memory is that no object has.

use crate::backing::Backing;
use crate::fullness::{GROUPS, group_of};
use crate::pool::{LEN_MAX_BYTES, Pool};
use core::sync::atomic::Ordering::*;

/// One size class at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStat {
    /// Bytes of a slot. [`LEN_MAX_BYTES`] for the objects that have a mapping of their own, which are counted as zspages of one slot.
    pub size: usize,
    /// Objects.
    pub objects: usize,
    /// Slots of all zspages, also those that nothing was committed for.
    pub slots: usize,
    /// Zspages.
    pub zspages: usize,
    /// Memory committed in zspages, in bytes.
    pub bytes: usize,
    /// Sum of the objects' lengths, in bytes.
    pub stored_bytes: usize,
    /// Zspages by fullness: none, below 10 %, below 20 %, and so on, below 100 %, all slots taken.
    pub groups: [usize; GROUPS],
}

impl ClassStat {
    /// Bytes lost to rounding up to the size of a slot.
    pub fn rounding_bytes(&self) -> usize {
        if self.size == LEN_MAX_BYTES {
            self.bytes - self.stored_bytes
        } else {
            self.objects * self.size - self.stored_bytes
        }
    }

    /// Bytes lost to holes and to the ends of zspages.
    pub fn idle_bytes(&self) -> usize {
        self.bytes - self.stored_bytes - self.rounding_bytes()
    }
}

impl<B: Backing> Pool<B> {
    /// Every class from the smallest to the largest, then the objects that have a mapping of their own. Each is looked at for itself:
    /// while other threads allocate and free, the sum is of no single moment.
    pub fn class_stats(&self) -> impl Iterator<Item = ClassStat> {
        let small = self.classes.iter().map(|class| {
            let zspages = class.zspages.lock();
            let mut stat = ClassStat {
                size: class.size,
                objects: zspages.objects,
                stored_bytes: zspages.stored,
                ..ClassStat::default()
            };
            for (_, zspage) in zspages.iter() {
                stat.zspages += 1;
                stat.slots += class.slots;
                stat.bytes += zspage.span.committed;
                stat.groups[group_of(zspage.inuse as usize, class.slots)] += 1;
            }
            stat
        });
        small.chain(core::iter::once_with(|| {
            let objects = self.huge.objects.load(Relaxed);
            let mut groups = [0; GROUPS];
            groups[GROUPS - 1] = objects;
            ClassStat {
                size: LEN_MAX_BYTES,
                objects,
                slots: objects,
                zspages: objects,
                bytes: self.huge.bytes.load(Relaxed),
                stored_bytes: self.huge.stored.load(Relaxed),
                groups,
            }
        }))
    }

    /// Memory kept for the next zspages, in bytes. Compaction gives it back.
    pub fn spare_bytes(&self) -> usize {
        self.arenas.lock().spare_bytes()
    }
}
