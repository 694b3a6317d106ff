//! Handles, and the table that says where each one's object is.
//!
//! ```text
//!   entry.word  63             21    20         19     18   0
//!               +----------------+-----------+------+--------+
//!   an object   |  address >> 4  | EXCLUSIVE |  1   |  pins  |
//!   free        |  next free     |     0     |  0   |   0    |
//!               +----------------+-----------+-LIVE-+--------+
//! ```
//!
//! Reading takes no lock. It is safe because
//! 1. an object is moved, written or freed only under EXCLUSIVE, and that is taken only at 0 pins;
//! 2. a pin is taken only without EXCLUSIVE, in the same atomic step that reads the address;
//! 3. taking EXCLUSIVE acquires what the last pins released, and taking a pin what the last holder of EXCLUSIVE
//!    released;
//! 4. entries never move and are never unmapped, so a stale handle finds a free entry (a panic) or another object, and
//!    never memory that is not an object's.
//!
//! Free handles are a stack (Treiber 1986). Popping is safe although other threads pop and push meanwhile, because
//! 1. the entry that the next one is read from stays mapped, whatever it is by then;
//! 2. each push changes the tag beside the head, and so a head that went and came back is not taken for the same one.

use crate::PAGE;
use crate::arena::{UNIT, pointer};
use crate::backing::Backing;
use crate::backoff::Backoff;
use core::num::NonZeroU32;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// Names an object of a [`Pool`](crate::Pool) until it is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(NonZeroU32);

impl Handle {
    /// As a number, never 0.
    pub fn into_raw(self) -> u32 {
        self.0.get()
    }

    /// From what `into_raw` returned. `None` for 0.
    pub fn from_raw(raw: u32) -> Option<Self> {
        NonZeroU32::new(raw).map(Handle)
    }
}

const PINS: u64 = LIVE - 1;
const LIVE: u64 = 1 << 19;
const EXCLUSIVE: u64 = 1 << 20;
const ADDRESS: u32 = 21;

fn object_at(at: usize) -> u64 {
    debug_assert!(at.is_multiple_of(16) && at >> 47 == 0);
    (at as u64 >> 4) << ADDRESS | LIVE
}

fn address(word: u64) -> usize {
    (word >> ADDRESS << 4) as usize
}

/// What the table has for each handle.
///
/// `len` and `zspage` are those of the object while it is LIVE. They are written before the word that publishes them,
/// `zspage` again under EXCLUSIVE when the object moves.
pub struct Entry {
    word: AtomicU64,
    len: AtomicU32,
    zspage: AtomicU32,
}

const _: () = assert!(size_of::<Entry>() == 16);

impl Entry {
    /// Says where a new object is. The caller took the handle and has told nobody.
    pub fn publish(&self, at: usize, len: usize, zspage: u32) {
        self.len.store(len as u32, Relaxed);
        self.zspage.store(zspage, Relaxed);
        self.word.store(object_at(at), Release);
    }

    /// The object's length in bytes. Panics if the handle is free.
    pub fn len(&self) -> usize {
        assert_live(self.word.load(Acquire));
        self.len.load(Relaxed) as usize
    }

    /// Pins the object: it stays where it is until `unpin`. Panics if the handle is free.
    pub fn pin(&self) -> (NonNull<u8>, usize) {
        let mut backoff = Backoff::default();
        loop {
            let word = self.word.load(Relaxed);
            assert_live(word);
            assert!(word & PINS != PINS, "zsmalloc: an object is pinned half a million times");
            if word & EXCLUSIVE != 0 {
                backoff.wait();
            } else if self.word.compare_exchange_weak(word, word + 1, Acquire, Relaxed).is_ok() {
                return (pointer(address(word)), self.len.load(Relaxed) as usize);
            }
        }
    }

    /// Ends a pin.
    pub fn unpin(&self) {
        let word = self.word.fetch_sub(1, Release);
        debug_assert!(word & LIVE != 0 && word & PINS != 0);
    }

    /// Waits until nobody else looks at the object, and keeps others away. Panics if the handle is free.
    pub fn exclude(&self) -> Exclusive<'_> {
        let mut backoff = Backoff::default();
        loop {
            let word = self.word.load(Relaxed);
            assert_live(word);
            match self.exclude_from(word) {
                Some(exclusive) => return exclusive,
                None => backoff.wait(),
            }
        }
    }

    /// The same, if it needs no waiting. The caller holds the lock of the object's class.
    pub fn try_exclude(&self) -> Option<Exclusive<'_>> {
        self.exclude_from(self.word.load(Relaxed))
    }

    fn exclude_from(&self, word: u64) -> Option<Exclusive<'_>> {
        let idle = word & (LIVE | EXCLUSIVE | PINS) == LIVE;
        let taken = idle && self.word.compare_exchange(word, word | EXCLUSIVE, Acquire, Relaxed).is_ok();
        taken.then(|| Exclusive(self))
    }

    /// True while somebody has pinned the object.
    pub fn is_pinned(&self) -> bool {
        self.word.load(Relaxed) & PINS != 0
    }

    /// Address, length and zspage if there is an object.
    pub fn object(&self) -> Option<(usize, usize, u32)> {
        let word = self.word.load(Acquire);
        let (len, zspage) = (self.len.load(Relaxed), self.zspage.load(Relaxed));
        (word & LIVE != 0).then(|| (address(word), len as usize, zspage))
    }
}

fn assert_live(word: u64) {
    assert!(word & LIVE != 0, "zsmalloc: the handle was freed, or is of another pool");
}

/// An object that nobody else may look at. Ends when dropped.
pub struct Exclusive<'a>(&'a Entry);

impl Exclusive<'_> {
    /// Where the object is.
    pub fn at(&self) -> NonNull<u8> {
        pointer(address(self.0.word.load(Relaxed)))
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.0.len.load(Relaxed) as usize
    }

    /// The zspage that it lies in.
    pub fn zspage(&self) -> u32 {
        self.0.zspage.load(Relaxed)
    }

    /// Says where the object is now.
    pub fn relocate(&self, at: usize, zspage: u32) {
        self.0.zspage.store(zspage, Relaxed);
        self.0.word.store(object_at(at) | EXCLUSIVE, Relaxed);
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        // Nobody else writes the word while EXCLUSIVE is set.
        self.0.word.store(self.0.word.load(Relaxed) & !EXCLUSIVE, Release);
    }
}

/// Entries of chunk 0. Chunk `c` has 2^c times as many.
const FIRST: usize = UNIT / size_of::<Entry>();
/// 2^28 handles.
const CHUNKS: usize = 16;

/// The table. It grows by chunks from the backing, each twice as long as the one before; untouched pages of a chunk
/// cost nothing.
pub struct Handles {
    chunks: [AtomicPtr<Entry>; CHUNKS],
    /// Handles from this number on were never used. Number 0 never is.
    fresh: AtomicU32,
    /// The most recently freed handle in the lower half, 0 for none; a tag in the upper.
    free: AtomicU64,
}

impl Handles {
    /// An empty table.
    pub const fn new() -> Self {
        let chunks = [const { AtomicPtr::new(null_mut()) }; CHUNKS];
        Handles { chunks, fresh: AtomicU32::new(1), free: AtomicU64::new(0) }
    }

    /// The entry of a handle. Panics if there never was such a handle.
    pub fn entry(&self, handle: Handle) -> &Entry {
        let index = handle.into_raw() as usize;
        let (chunk, offset) = place(index);
        let entries = self.chunks.get(chunk).map_or(null_mut(), |c| c.load(Acquire));
        assert!(!entries.is_null(), "zsmalloc: the handle is of another pool");
        // SAFETY: the offset is within the chunk, which is mapped, zeroed at first, and stays while the table does.
        unsafe { &*entries.add(offset) }
    }

    /// Takes a free handle. `None` when the backing has no memory for more.
    pub fn take(&self, backing: &impl Backing) -> Option<Handle> {
        let mut head = self.free.load(Acquire);
        while let Some(handle) = Handle::from_raw(head as u32) {
            let next = self.entry(handle).word.load(Relaxed) >> ADDRESS;
            let after = head & TAG | next & !TAG;
            match self.free.compare_exchange_weak(head, after, Acquire, Acquire) {
                Ok(_) => return Some(handle),
                Err(now) => head = now,
            }
        }
        let mut index = self.fresh.load(Relaxed);
        loop {
            self.grow_to(index as usize, backing)?;
            match self.fresh.compare_exchange_weak(index, index + 1, Relaxed, Relaxed) {
                Ok(_) => return Handle::from_raw(index),
                Err(now) => index = now,
            }
        }
    }

    /// Maps the chunk of entry `index`, unless it is there.
    fn grow_to(&self, index: usize, backing: &impl Backing) -> Option<()> {
        let (chunk, _) = place(index);
        let slot = self.chunks.get(chunk)?;
        if slot.load(Acquire).is_null() {
            let new = backing.map(UNIT << chunk)?;
            new.as_ptr().expose_provenance();
            // Of two threads that come here, one gives its chunk back.
            if slot.compare_exchange(null_mut(), new.as_ptr().cast(), AcqRel, Acquire).is_err() {
                backing.unmap(new, UNIT << chunk);
            }
        }
        Some(())
    }

    /// Takes a handle back. The caller is the last to use it, and nothing is left of an object.
    pub fn give(&self, handle: Handle) {
        let entry = self.entry(handle);
        let mut head = self.free.load(Relaxed);
        loop {
            entry.word.store((head & !TAG) << ADDRESS, Relaxed);
            let after = (head & TAG).wrapping_add(1 << 32) | handle.into_raw() as u64;
            match self.free.compare_exchange_weak(head, after, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Every handle that was ever used.
    pub fn iter(&self) -> impl Iterator<Item = Handle> {
        (1..self.fresh.load(Relaxed)).filter_map(Handle::from_raw)
    }

    /// The free handles that were used before. Only while no other thread takes or gives any.
    pub fn iter_free(&self) -> impl Iterator<Item = Handle> {
        let mut at = self.free.load(Acquire) as u32;
        core::iter::from_fn(move || {
            let handle = Handle::from_raw(at)?;
            at = (self.entry(handle).word.load(Relaxed) >> ADDRESS) as u32;
            Some(handle)
        })
    }

    /// Bytes of the table that were touched.
    pub fn bytes(&self) -> usize {
        match self.fresh.load(Relaxed) as usize {
            1 => 0,
            fresh => (fresh * size_of::<Entry>()).next_multiple_of(PAGE),
        }
    }

    /// Unmaps the table.
    pub fn unmap_all(&mut self, backing: &impl Backing) {
        for (chunk, slot) in self.chunks.iter_mut().enumerate() {
            if let Some(entries) = NonNull::new(core::mem::replace(slot.get_mut(), null_mut())) {
                backing.unmap(entries.cast(), UNIT << chunk);
            }
        }
    }
}

const TAG: u64 = !0 << 32;

/// Chunk and offset of entry `index`: chunk `c` starts at entry `FIRST * (2^c - 1)`.
fn place(index: usize) -> (usize, usize) {
    let chunk = (index / FIRST + 1).ilog2() as usize;
    (chunk, index - FIRST * ((1 << chunk) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Heap;

    #[test]
    fn chunks_follow_each_other_without_a_gap() {
        assert_eq!((place(0), place(FIRST - 1)), ((0, 0), (0, FIRST - 1)));
        assert_eq!((place(FIRST), place(3 * FIRST - 1)), ((1, 0), (1, 2 * FIRST - 1)));
        assert_eq!(place(3 * FIRST), (2, 0));
    }

    #[test]
    fn a_head_that_comes_back_is_another() {
        let heap = Heap::new(usize::MAX);
        let mut handles = Handles::new();
        let (a, b) = (handles.take(&heap).unwrap(), handles.take(&heap).unwrap());
        handles.give(b);
        handles.give(a);
        // What a slow thread has read: `a` is free, and `b` is the next.
        let seen = handles.free.load(Relaxed);
        assert_eq!((handles.take(&heap), handles.take(&heap)), (Some(a), Some(b)));
        handles.give(a);
        let now = handles.free.load(Relaxed);
        assert_eq!(seen as u32, now as u32);
        assert_ne!(seen, now, "the slow thread would make `b` free, which is in use");
        handles.unmap_all(&heap);
    }

    #[test]
    fn a_handle_is_nobody_elses_until_it_is_given_back() {
        let heap = Heap::new(usize::MAX);
        let handles = Handles::new();
        let turns = if cfg!(miri) { 40 } else { 40_000 };
        std::thread::scope(|s| {
            for thread in 1..=4u64 {
                let (handles, heap) = (&handles, &heap);
                s.spawn(move || {
                    for turn in 0..turns {
                        let mine: Vec<_> = (0..1 + turn % 5).map(|_| handles.take(heap).unwrap()).collect();
                        for h in &mine {
                            handles.entry(*h).publish(thread as usize * 16, turn, 0);
                        }
                        for h in mine {
                            assert_eq!(handles.entry(h).object(), Some((thread as usize * 16, turn, 0)));
                            handles.give(h);
                        }
                    }
                });
            }
        });
        let mut free: Vec<_> = handles.iter_free().collect();
        free.sort();
        assert_eq!(free, handles.iter().collect::<Vec<_>>());
        assert!(free.len() <= 20, "{} handles for 4 threads with at most 5 each", free.len());
        let mut handles = handles;
        handles.unmap_all(&heap);
        assert_eq!(heap.mapped_bytes(), 0);
    }
}
