//! Threads that make, read and free objects while another one compacts.

use crate::handle::Handle;
use crate::model::{Heap, fill};
use crate::pool::Pool;
use base::Random;
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// Whoever frees an object has this for writing, so that nobody reads it meanwhile: the pool's contract.
type Place = RwLock<Option<(Handle, usize)>>;

/// Contents follow from handle and length, so that every reader can tell what it should see.
fn contents(handle: Handle, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, (handle.into_raw() as u64) << 32 | len as u64);
    bytes
}

/// Few classes, so that threads meet in them.
fn some_len(random: &mut Random) -> usize {
    let lens: &[usize] = if cfg!(miri) { &[1, 40] } else { &[40, 500, 3000, 12_000, 30_000, 200_000] };
    lens[random.below(lens.len())]
}

fn churn(pool: &Pool<&Heap>, places: &[Place], random: &mut Random) {
    let mut place = places[random.below(places.len())].write().unwrap();
    match place.take() {
        Some((handle, _)) => pool.free(handle),
        None => {
            let len = some_len(random);
            let handle = pool.alloc(len).unwrap();
            pool.write(handle, |object| object.copy_from_slice(&contents(handle, len)));
            *place = Some((handle, len));
        }
    }
}

fn look(pool: &Pool<&Heap>, places: &[Place], random: &mut Random) {
    let place = places[random.below(places.len())].read().unwrap();
    if let Some((handle, len)) = *place {
        let object = pool.read(handle);
        assert_eq!(object.len(), len);
        assert!(*object == contents(handle, len)[..], "{handle:?}: {len} bytes differ");
    }
}

/// Counts down when a thread ends, also by a panic.
struct End<'a>(&'a AtomicUsize);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[test]
fn readers_see_whole_objects_while_others_churn_and_one_compacts() {
    let (count, turns) = if cfg!(miri) { (10, 15) } else { (2000, 20_000) };
    let heap = Heap::new(usize::MAX);
    let pool = Pool::new(&heap);
    let places: Vec<Place> = (0..count).map(|_| Place::default()).collect();
    let (moved, left) = (AtomicUsize::new(0), AtomicUsize::new(4));
    std::thread::scope(|s| {
        let (pool, places, moved, left) = (&pool, &places[..], &moved, &left);
        for seed in 1..=4 {
            s.spawn(move || {
                // However the thread ends, the compactor hears of it.
                let _end = End(left);
                let mut random = Random(seed);
                for _ in 0..turns {
                    if seed <= 2 { churn(pool, places, &mut random) } else { look(pool, places, &mut random) }
                }
            });
        }
        s.spawn(move || {
            while left.load(Relaxed) > 0 {
                moved.fetch_add(pool.compact(64 << 10).objects_moved, Relaxed);
                std::thread::yield_now();
            }
        });
    });
    pool.check().unwrap();
    let moved = moved.into_inner();
    assert!(cfg!(miri) || moved > 10, "only {moved} objects were moved");
    for place in places {
        if let Some((handle, len)) = place.into_inner().unwrap() {
            assert!(*pool.read(handle) == contents(handle, len)[..]);
            pool.free(handle);
        }
    }
    pool.check().unwrap();
    assert_eq!(pool.stored_bytes(), 0);
}

#[test]
fn a_reader_waits_for_the_writer() {
    let heap = Heap::new(usize::MAX);
    let pool = Pool::new(&heap);
    let handle = pool.alloc(100).unwrap();
    let waiting = AtomicUsize::new(0);
    std::thread::scope(|s| {
        pool.write(handle, |object| {
            object.fill(1);
            s.spawn(|| {
                waiting.store(1, Relaxed);
                assert!(pool.read(handle).iter().all(|&byte| byte == 2), "read while it was written");
            });
            while waiting.load(Relaxed) == 0 {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
            object.fill(2);
        });
    });
    pool.check().unwrap();
}

#[test]
fn many_may_read_one_object() {
    let heap = Heap::new(usize::MAX);
    let pool = Pool::new(&heap);
    let handle = pool.alloc(100).unwrap();
    pool.write(handle, |object| object.fill(7));
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                for _ in 0..if cfg!(miri) { 20 } else { 20_000 } {
                    let (a, b) = (pool.read(handle), pool.read(handle));
                    assert!(a.iter().chain(&*b).all(|&byte| byte == a[0]));
                }
            });
        }
        s.spawn(|| {
            for n in 0..if cfg!(miri) { 20 } else { 20_000 } {
                pool.write(handle, |object| object.fill(n as u8));
            }
        });
    });
    pool.check().unwrap();
}
