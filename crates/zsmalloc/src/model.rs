//! The naive model of a pool, and a backing that can be watched.
//!
//! Random operations, compared call by call with the model: a map from handle to contents. What the pool has to do
//! beyond it (few bytes, memory given back) is what the tests of compaction and of waste measure.

use crate::PAGE;
use crate::backing::Backing;
use crate::class::CLASS_MAX_BYTES;
use crate::handle::Handle;
use crate::pool::{LEN_MAX_BYTES, Pool};
use base::Random;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, HashMap};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// Memory of the test's heap, at most so much of it. Panics when something is given back that was not taken.
pub struct Heap {
    limit: AtomicUsize,
    mapped: Mutex<BTreeMap<usize, usize>>,
    decommitted: AtomicUsize,
}

impl Heap {
    /// At most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Heap { limit: AtomicUsize::new(limit), mapped: Mutex::default(), decommitted: AtomicUsize::new(0) }
    }

    /// From now on at most `limit` bytes.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Relaxed);
    }

    /// Bytes mapped now.
    pub fn mapped_bytes(&self) -> usize {
        self.mapped.lock().unwrap().values().sum()
    }

    /// Bytes that were ever decommitted.
    pub fn decommitted_bytes(&self) -> usize {
        self.decommitted.load(Relaxed)
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 64 << 10).unwrap()
    }
}

// SAFETY: `map` returns memory of the heap, zeroed, aligned, and nobody else's; `decommit` leaves it initialised.
unsafe impl Backing for Heap {
    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        assert!(bytes > 0 && bytes.is_multiple_of(64 << 10));
        if self.mapped_bytes() + bytes > self.limit.load(Relaxed) {
            return None;
        }
        // SAFETY: the layout has a size.
        let at = NonNull::new(unsafe { alloc_zeroed(Self::layout(bytes)) })?;
        self.mapped.lock().unwrap().insert(at.addr().get(), bytes);
        Some(at)
    }

    fn decommit(&self, at: NonNull<u8>, bytes: usize) {
        let mapped = self.mapped.lock().unwrap();
        let (start, len) = mapped.range(..=at.addr().get()).next_back().unwrap();
        assert!(at.addr().get() + bytes <= start + len && bytes > 0 && bytes.is_multiple_of(4096));
        // Not zeros, so that whoever relies on them is found out.
        // SAFETY: inside a mapping, which nobody uses there.
        unsafe { at.write_bytes(0xdd, bytes) };
        self.decommitted.fetch_add(bytes, Relaxed);
    }

    fn unmap(&self, at: NonNull<u8>, bytes: usize) {
        assert_eq!(self.mapped.lock().unwrap().remove(&at.addr().get()), Some(bytes));
        // SAFETY: from `alloc_zeroed` with the same layout.
        unsafe { dealloc(at.as_ptr(), Self::layout(bytes)) }
    }
}

/// Contents that no other object has.
pub fn fill(bytes: &mut [u8], seed: u64) {
    let mut random = Random(seed);
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&random.word().to_le_bytes()[..chunk.len()]);
    }
}

/// Lengths as they come: mostly compressed folios, some pages, few longer ones, and the ends of the range. Under Miri,
/// where a byte costs a microsecond, short ones of few classes.
pub fn some_len(random: &mut Random) -> usize {
    if cfg!(miri) {
        return [1, 17, 33, 500][random.below(4)];
    }
    match random.below(100) {
        0 => 1,
        1 => CLASS_MAX_BYTES + random.below(2),
        2 => CLASS_MAX_BYTES + random.below(LEN_MAX_BYTES - CLASS_MAX_BYTES),
        3 => LEN_MAX_BYTES,
        4..30 => 1 + random.below(4096),
        _ => 1024 + random.below(48 << 10),
    }
}

/// Random operations from a seed on a pool with at most `limit` bytes.
fn compare_with_model(seed: u64, operations: usize, limit: usize) {
    let heap = Heap::new(limit);
    let pool = Pool::new(&heap);
    let mut model: HashMap<Handle, Vec<u8>> = HashMap::new();
    let mut order: Vec<Handle> = Vec::new();
    let mut random = Random(seed);
    let mut refused = 0;
    for turn in 0..operations {
        // Phases: more is made than freed, then the other way round.
        let growing = (turn / (operations / 6).max(1)).is_multiple_of(2);
        let context = format!("seed {seed}, turn {turn}");
        match random.below(100) {
            n if n < if growing { 55 } else { 25 } => {
                let len = some_len(&mut random);
                let Some(handle) = pool.alloc(len) else {
                    refused += 1;
                    continue;
                };
                let mut contents = vec![0; len];
                fill(&mut contents, random.word());
                pool.write(handle, |object| object.copy_from_slice(&contents));
                assert!(model.insert(handle, contents).is_none(), "{context}: {handle:?} is given out twice");
                order.push(handle);
            }
            n if n < 80 && !order.is_empty() => {
                let handle = order.swap_remove(random.below(order.len()));
                pool.free(handle);
                model.remove(&handle);
            }
            n if n < 95 && !order.is_empty() => {
                let handle = order[random.below(order.len())];
                assert_eq!(pool.len(handle), model[&handle].len(), "{context}");
                assert!(*pool.read(handle) == model[&handle][..], "{context}: contents of {handle:?}");
            }
            n if n < 97 => {
                // Every second time some objects are pinned meanwhile: they stay where they are.
                let share = if random.below(2) == 0 { 10 } else { usize::MAX };
                let pinned: Vec<_> =
                    order.iter().filter(|_| random.below(share) == 0).map(|&h| pool.read(h)).collect();
                let before: Vec<_> = pinned.iter().map(|object| object.as_ptr()).collect();
                let (held, budget) = (pool.pool_bytes(), random.below(1 << 20));
                let done = pool.compact(budget);
                assert!(done.bytes_moved < budget.max(1) + CLASS_MAX_BYTES, "{context}: {done:?}, {budget}");
                // Where the budget ends, a page may have been begun at the destination before one is free at the
                // source.
                let now = pool.pool_bytes();
                assert!(!pinned.is_empty() || now <= held + PAGE, "{context}: {held} to {now}: {done:?}");
                assert_eq!(
                    pinned.iter().map(|object| object.as_ptr()).collect::<Vec<_>>(),
                    before,
                    "{context}"
                );
            }
            _ if !order.is_empty() => {
                let handle = order[random.below(order.len())];
                let contents = model.get_mut(&handle).unwrap();
                fill(contents, random.word());
                pool.write(handle, |object| object.copy_from_slice(contents));
            }
            _ => {}
        }
        assert_eq!(pool.stored_bytes(), model.values().map(Vec::len).sum::<usize>(), "{context}");
        if turn % if cfg!(miri) { 20 } else { 50 } == 0 {
            pool.check().unwrap_or_else(|e| panic!("{context}: {e}"));
            let stats: Vec<_> = pool.class_stats().collect();
            assert_eq!(stats.iter().map(|s| s.objects).sum::<usize>(), model.len(), "{context}");
            assert_eq!(stats.iter().map(|s| s.stored_bytes).sum::<usize>(), pool.stored_bytes(), "{context}");
            assert!(stats.iter().map(|s| s.bytes).sum::<usize>() <= pool.pool_bytes(), "{context}");
        }
    }
    assert!(limit == usize::MAX || refused > 0, "seed {seed}: the backing was never exhausted");
    for (handle, contents) in &model {
        assert!(*pool.read(*handle) == contents[..], "seed {seed}: at the end, contents of {handle:?}");
    }
    for handle in order.drain(..random.below(order.len() + 1)) {
        pool.free(handle);
    }
    pool.check().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    drop(pool);
    assert_eq!(heap.mapped_bytes(), 0, "seed {seed}: the pool is gone and holds memory");
}

#[test]
fn random_operations_agree_with_the_model() {
    let (seeds, operations) = if cfg!(miri) { (1, 100) } else { (20, 3000) };
    for seed in 1..=seeds {
        compare_with_model(seed, operations, usize::MAX);
    }
}

#[test]
fn random_operations_agree_with_the_model_when_memory_is_short() {
    // Under Miri the table of handles is all that there is room for.
    let (seeds, operations, limit) = if cfg!(miri) { (1, 20, 64 << 10) } else { (10, 3000, 12 << 20) };
    for seed in 101..101 + seeds {
        compare_with_model(seed, operations, limit);
    }
}
