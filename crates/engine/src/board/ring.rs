//! A ring of slot numbers: one writer, many readers.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};

/// Where it begins and ends.
#[derive(Default)]
pub struct Ends {
    head: AtomicUsize,
    tail: AtomicUsize,
}

/// A ring: its ends, and as many places as a power of two.
#[derive(Clone, Copy)]
pub struct Ring {
    /// Where it begins and ends.
    pub ends: &'static Ends,
    /// See `ends`.
    pub slots: &'static [AtomicU32],
}

impl Ring {
    /// For the writer: adds a slot, for which there must be a place.
    pub fn push(&self, slot: u32) {
        let tail = self.ends.tail.load(Relaxed);
        assert!(tail - self.ends.head.load(Acquire) < self.slots.len(), "no slot is in a ring twice");
        self.slots[tail & (self.slots.len() - 1)].store(slot, Relaxed);
        self.ends.tail.store(tail + 1, Release);
    }

    /// For a reader: takes the first one.
    pub fn pop(&self) -> Option<u32> {
        loop {
            let head = self.ends.head.load(Acquire);
            if head == self.ends.tail.load(Acquire) {
                return None;
            }
            let slot = self.slots[head & (self.slots.len() - 1)].load(Relaxed);
            if self.ends.head.compare_exchange(head, head + 1, AcqRel, Relaxed).is_ok() {
                return Some(slot);
            }
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.tail.load(Acquire).saturating_sub(self.ends.head.load(Acquire))
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.head.load(Acquire) == self.ends.tail.load(Acquire)
    }
}
