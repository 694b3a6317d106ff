//! A pool that two processes have after a fork, each as a copy that the kernel makes page by page as one of the two
//! writes.
//!
//! Objects are only read, and their zspages' tables lie apart. So a copy is made of nothing but what is written to, and
//! nothing is written to what is frozen: no object is put into its holes, none is moved there or from there, and what
//! becomes empty goes back to the kernel at once, which takes it from this process alone. New objects get zspages of
//! their own.

use crate::backing::Backing;
use crate::pool::Pool;

impl<B: Backing> Pool<B> {
    /// Another process has a copy of all there is from now on: what lies there now stays as it is until it is freed.
    pub fn freeze(&self) {
        while let Some(span) = { self.arenas.lock().take_spare() } {
            self.release(span);
        }
        for class in &self.classes {
            class.zspages.lock().freeze();
        }
    }

    /// No other process has a copy any more: the holes are there to be filled again.
    pub fn thaw(&self) {
        for class in &self.classes {
            class.zspages.lock().thaw();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Handle;
    use crate::model::{Heap, fill};
    use base::Random;

    fn put(pool: &Pool<&Heap>, number: u64, len: usize) -> Handle {
        let handle = pool.alloc(len).unwrap();
        pool.write(handle, |object| fill(object, number));
        handle
    }

    fn is_as_put(pool: &Pool<&Heap>, handle: Handle, number: u64) -> bool {
        let mut expected = vec![0; pool.len(handle)];
        fill(&mut expected, number);
        *pool.read(handle) == expected[..]
    }

    #[test]
    fn nothing_is_written_to_what_is_frozen_and_all_of_it_is_used_again_later() {
        for seed in 1..=if cfg!(miri) { 1 } else { 20 } {
            let (heap, mut random) = (Heap::new(usize::MAX), Random(seed));
            let pool = Pool::new(&heap);
            let count = if cfg!(miri) { 20 } else { 400 };
            let mut next = 0;
            let mut more = |pool: &Pool<&Heap>, random: &mut Random, count: usize| -> Vec<(u64, Handle)> {
                let numbers = next..next + count as u64;
                next += count as u64;
                numbers.map(|number| (number, put(pool, number, 100 + random.below(20_000)))).collect()
            };
            let mut old = more(&pool, &mut random, count);
            old.retain(|&(_, handle)| {
                let kept = random.below(3) > 0;
                if !kept {
                    pool.free(handle);
                }
                kept
            });
            pool.freeze();
            pool.check().unwrap();
            assert_eq!(pool.spare_bytes(), 0, "seed {seed}: spare memory is everybody's too");
            let mut places: Vec<_> =
                old.iter().map(|&(_, handle)| (handle, pool.read(handle).as_ptr_range())).collect();
            let mut new = more(&pool, &mut random, count);
            for (number, handle) in &new {
                let place = pool.read(*handle).as_ptr_range();
                let is_apart = places.iter().all(|(_, p)| {
                    let pages = |at: *const u8, up: usize| (at.addr() + up) / crate::PAGE;
                    pages(place.end, crate::PAGE - 1) <= pages(p.start, 0)
                        || pages(place.start, 0) >= pages(p.end, crate::PAGE - 1)
                });
                assert!(is_apart, "seed {seed}: object {number} shares a page with what is frozen");
            }
            for turn in 0..count {
                let list = if random.below(2) == 0 { &mut old } else { &mut new };
                if list.is_empty() {
                    continue;
                }
                let (_, handle) = list.swap_remove(random.below(list.len()));
                pool.free(handle);
                if turn % 50 == 0 {
                    pool.compact(1 << 20);
                }
            }
            for &(number, handle) in old.iter().chain(&new) {
                assert!(is_as_put(&pool, handle, number), "seed {seed}: object {number}");
            }
            places.retain(|(handle, _)| old.iter().any(|(_, left)| left == handle));
            for (handle, place) in places {
                assert_eq!(pool.read(handle).as_ptr_range(), place, "seed {seed}: {handle:?} has moved");
            }
            pool.check().unwrap();
            pool.thaw();
            pool.check().unwrap();
            pool.compact(usize::MAX);
            let (held, stored) = (pool.pool_bytes(), pool.stored_bytes());
            assert!(cfg!(miri) || held < stored * 2, "seed {seed}: {held} bytes for {stored} after the thaw");
            old.into_iter().chain(new).for_each(|(_, handle)| pool.free(handle));
            pool.check().unwrap();
        }
    }

    #[test]
    fn what_is_frozen_and_becomes_empty_goes_back_at_once() {
        let heap = Heap::new(usize::MAX);
        let pool = Pool::new(&heap);
        let handles: Vec<_> = (0..8).map(|number| put(&pool, number, 8192)).collect();
        pool.freeze();
        handles.into_iter().for_each(|handle| pool.free(handle));
        assert_eq!((pool.spare_bytes(), pool.stored_bytes()), (0, 0));
        assert_eq!(heap.decommitted_bytes(), 16 * crate::PAGE);
        pool.check().unwrap();
    }
}
