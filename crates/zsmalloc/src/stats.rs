//! What a pool holds, by class, and where memory is that no object has.

use crate::backing::Backing;
use crate::fullness::{GROUPS, group_of};
use crate::pool::{LEN_MAX_BYTES, Pool};
use core::sync::atomic::Ordering::*;

/// One size class at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStat {
    /// Bytes of a slot. [`LEN_MAX_BYTES`] for the objects that have a mapping of their own, which are counted as
    /// zspages of one slot.
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
    /// Every class from the smallest to the largest, then the objects that have a mapping of their own. Each is looked
    /// at for itself: while other threads allocate and free, the sum is of no single moment.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE;
    use crate::model::Heap;
    use base::Random;

    /// What the project promises of a pool of compressed folios: at least 95 % of it are their bytes.
    #[test]
    #[cfg_attr(miri, ignore = "20,000 objects")]
    fn a_pool_of_compressed_folios_wastes_little() {
        for (megabytes, least_percent) in [(200, 98.0), (20, 96.0), (2, 85.0)] {
            let heap = Heap::new(usize::MAX);
            let pool = Pool::new(&heap);
            let mut random = Random(megabytes);
            while pool.stored_bytes() < megabytes as usize * 1_000_000 {
                pool.alloc((2 << 10) + random.below(38 << 10)).unwrap();
            }
            pool.check().unwrap();
            let (held, stored) = (pool.pool_bytes(), pool.stored_bytes());
            let percent = stored as f64 * 100.0 / held as f64;
            assert!(percent >= least_percent, "{megabytes} MB: {stored} bytes in {held}: {percent:.1} %");
            // Every byte of the pool has a name.
            let sum = |part: fn(&ClassStat) -> usize| pool.class_stats().map(|s| part(&s)).sum::<usize>();
            let bytes = sum(|s| s.bytes);
            assert_eq!(bytes, stored + sum(ClassStat::rounding_bytes) + sum(ClassStat::idle_bytes));
            assert!(held - bytes < 200_000 + held / 200, "{} bytes of metadata", held - bytes);
        }
    }

    #[test]
    fn a_class_counts_what_it_has() {
        let heap = Heap::new(usize::MAX);
        let pool = Pool::new(&heap);
        let handles: Vec<_> = (0..9).map(|_| pool.alloc(8001).unwrap()).collect();
        pool.free(handles[0]);
        let huge = pool.alloc(200_000).unwrap();
        let stat = pool.class_stats().find(|stat| stat.size == 8064).unwrap();
        let zspages = stat.zspages;
        assert_eq!((stat.objects, stat.stored_bytes, stat.slots % zspages), (8, 8 * 8001, 0));
        assert_eq!(stat.rounding_bytes(), 8 * 63);
        assert_eq!(stat.groups.iter().sum::<usize>(), zspages);
        let last = pool.class_stats().last().unwrap();
        assert_eq!((last.objects, last.bytes, last.stored_bytes), (1, 49 * PAGE, 200_000));
        assert_eq!((last.rounding_bytes(), last.idle_bytes()), (49 * PAGE - 200_000, 0));
        pool.free(huge);
        assert_eq!(pool.class_stats().last().unwrap().bytes, 0);
    }
}
