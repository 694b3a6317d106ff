//! One open queue: its portal, how many descriptors it has, and how it is closed while others use it.
//!
//! Who uses a queue counts himself in and out (`Queue::enter`). Closing sets a bit: nobody comes in any more, and once
//! the last one is out the portal may be dropped. So no thread waits for another one, and no portal is unmapped while
//! somebody writes to it.
//!
//! Whoever closes does not drop: the kernel waits there until the device has done what it was given, which of a device
//! that does not answer may be never. That is for whoever has nothing else to do (`Queue::reap`).
//!
//! ```text
//!   state:  CLOSED  DROPPING  DROPPED  users
//!           0       0         0        n      open
//!           1       0         0        n      closed, n still inside; with n = 0 the portal waits to be dropped
//!           1       1         0        n      nobody uses the portal, and one thread drops it; n came too late and will leave at once
//!           1       0         1        n      dropped: may be opened again
//! ```

use crate::portal::Portal;
use crate::stats::QueueCounters;
use alloc::boxed::Box;
use core::cell::UnsafeCell;
use core::ops::Deref;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// What is known of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The X of wqX.Y: its device.
    pub device: u32,
    /// The Y.
    pub id: u32,
    /// The package that the device is at; `None` if nothing tells.
    pub package: Option<u8>,
    /// One process's alone: it counts its descriptors itself.
    pub dedicated: bool,
    /// Entries.
    pub size: u32,
    /// The longest input or output, in bytes.
    pub transfer_max_bytes: usize,
    /// The device may wait for missing pages.
    pub block_on_fault: bool,
}

const CLOSED: u32 = 1 << 31;
const DROPPING: u32 = 1 << 30;
const DROPPED: u32 = 1 << 29;

/// A place for a queue.
pub(crate) struct Queue {
    state: AtomicU32,
    inner: UnsafeCell<Option<(Spec, Box<dyn Portal>)>>,
    /// Generation (upper half) and descriptors that are not done (lower half) in one word: what was submitted to a
    /// queue that is closed by now must not be taken off the count of the one that has its place.
    in_flight: AtomicU64,
    /// Time-outs since the last completion.
    strikes: AtomicU32,
    /// Descriptors that were not done in time, and have not been done since.
    lost: AtomicU32,
    pub counters: QueueCounters,
}

// SAFETY: `inner` is written only in state DROPPED, by who is about to open (one at a time: the driver's lock), or in
// state DROPPING, by the one who set that; and read only between `enter` and `drop` of `Entered`, which keep both
// states away.
unsafe impl Sync for Queue {}
// SAFETY: a portal is Send.
unsafe impl Send for Queue {}

impl Queue {
    /// A place without a queue.
    pub const EMPTY: fn() -> Queue = || Queue {
        state: AtomicU32::new(CLOSED | DROPPED),
        inner: UnsafeCell::new(None),
        in_flight: AtomicU64::new(0),
        strikes: AtomicU32::new(0),
        lost: AtomicU32::new(0),
        counters: QueueCounters::default(),
    };

    /// True where a queue may be opened.
    pub fn is_free(&self) -> bool {
        self.state.load(Acquire) & DROPPED != 0
    }

    /// Opens a queue here.
    ///
    /// # Safety
    /// `is_free` said so, and nobody else opens meanwhile.
    pub unsafe fn open(&self, spec: Spec, portal: Box<dyn Portal>) {
        // SAFETY: DROPPED: nobody reads it.
        unsafe { *self.inner.get() = Some((spec, portal)) };
        let generation = self.generation().wrapping_add(1);
        self.in_flight.store(u64::from(generation) << 32, Relaxed);
        self.strikes.store(0, Relaxed);
        self.lost.store(0, Relaxed);
        // Users stay counted: one may be on its way out since before.
        self.state.fetch_and(!(CLOSED | DROPPED), Release);
    }

    /// Counts the caller in; `None` if the queue is closed.
    pub fn enter(&self) -> Option<Entered<'_>> {
        let entered = self.state.fetch_add(1, Acquire) & CLOSED == 0;
        let guard = Inside(self);
        // A queue that is closed now stays as it is until the guard is dropped.
        entered.then(|| Entered { generation: self.generation(), guard })
    }

    /// Lets nobody in any more. True for the one call that closed it.
    pub fn close(&self) -> bool {
        let before = self.state.fetch_or(CLOSED, AcqRel);
        before & CLOSED == 0
    }

    /// Drops the portal of a closed queue if nobody is inside: of all who find that out at the same time one does. It
    /// may take as long as the device does. False if somebody is inside, so that it has to be tried again.
    pub fn reap(&self) -> bool {
        if self.state.compare_exchange(CLOSED, CLOSED | DROPPING, AcqRel, Relaxed).is_ok() {
            // SAFETY: nobody is inside, and nobody comes in: those who try see CLOSED. Nobody opens before DROPPED is
            // set.
            unsafe { *self.inner.get() = None };
            self.state.fetch_xor(DROPPING | DROPPED, Release);
        }
        self.state.load(Relaxed) & (CLOSED | DROPPING | DROPPED) != CLOSED
    }

    fn generation(&self) -> u32 {
        (self.in_flight.load(Relaxed) >> 32) as u32
    }

    /// True while the queue that had this generation is open.
    pub fn is_open(&self, generation: u32) -> bool {
        self.state.load(Acquire) & CLOSED == 0 && self.generation() == generation
    }

    /// True once the portal of this generation is dropped: the device is done with whatever it was given there
    /// ([`Portal`]).
    pub fn is_drained(&self, generation: u32) -> bool {
        self.generation() != generation || self.is_free()
    }

    /// A descriptor is done.
    pub fn release(&self, generation: u32, count: u32) {
        let _ = self.in_flight.fetch_update(Relaxed, Relaxed, |word| {
            (word >> 32 == u64::from(generation)).then(|| word - u64::from(count))
        });
    }

    /// A descriptor was not done in time; returns how many in a row, and how many have not been done to this day.
    pub fn strike(&self) -> (u32, u32) {
        (self.strikes.fetch_add(1, Relaxed) + 1, self.lost.fetch_add(1, Relaxed) + 1)
    }

    /// One of those was done after all.
    pub fn found(&self, generation: u32) {
        if self.is_open(generation) {
            let _ = self.lost.fetch_update(Relaxed, Relaxed, |lost| lost.checked_sub(1));
        }
    }

    /// A descriptor was done.
    pub fn answered(&self) {
        self.strikes.store(0, Relaxed);
    }
}

struct Inside<'a>(&'a Queue);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_sub(1, AcqRel);
    }
}

/// A queue that stays as it is as long as this is held.
pub(crate) struct Entered<'a> {
    guard: Inside<'a>,
    pub generation: u32,
}

impl Entered<'_> {
    fn inner(&self) -> &(Spec, Box<dyn Portal>) {
        // SAFETY: counted in while it was open: it is `Some`, and nobody writes it before the guard is dropped.
        unsafe { (*self.guard.0.inner.get()).as_ref().expect("an open queue has a portal") }
    }

    /// The portal.
    pub fn portal(&self) -> &dyn Portal {
        &*self.inner().1
    }

    /// Takes room for up to `wanted` descriptors and says for how many there is. A shared queue says itself when it is
    /// full.
    pub fn reserve(&self, wanted: u32) -> u32 {
        let most = if self.dedicated { self.size } else { u32::MAX };
        let mut got = 0;
        let _ = self.guard.0.in_flight.fetch_update(Relaxed, Relaxed, |word| {
            got = wanted.min(most.saturating_sub(word as u32));
            Some(word + u64::from(got))
        });
        got
    }
}

impl Deref for Entered<'_> {
    type Target = Spec;
    fn deref(&self) -> &Spec {
        &self.inner().0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::Descriptor;
    use crate::portal::Gone;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    /// Counts those that live, and notices one that is used after its end.
    struct Probe(Arc<AtomicUsize>, u64);

    const ALIVE: u64 = 0x600d_600d;

    impl Portal for Probe {
        unsafe fn submit(&self, given: &[Descriptor]) -> Result<usize, Gone> {
            assert_eq!(self.1, ALIVE, "used after its end");
            Ok(given.len())
        }
    }

    impl Drop for Probe {
        fn drop(&mut self) {
            self.0.fetch_sub(1, SeqCst);
            // SAFETY: a field of ours; volatile, lest it be left out.
            unsafe { (&raw mut self.1).write_volatile(0xdead) };
        }
    }

    fn probe(living: &Arc<AtomicUsize>) -> Box<dyn Portal> {
        living.fetch_add(1, SeqCst);
        Box::new(Probe(living.clone(), ALIVE))
    }

    fn spec(dedicated: bool, size: u32) -> Spec {
        Spec {
            device: 1,
            id: 0,
            package: None,
            dedicated,
            size,
            transfer_max_bytes: 4096,
            block_on_fault: false,
        }
    }

    #[test]
    fn a_portal_is_dropped_by_who_reaps_once_the_last_one_is_out() {
        let living = Arc::default();
        let queue = Queue::EMPTY();
        assert!(queue.enter().is_none() && queue.is_free());
        // SAFETY: free, and one thread.
        unsafe { queue.open(spec(true, 4), probe(&living)) };
        let (one, two) = (queue.enter().unwrap(), queue.enter().unwrap());
        assert!(queue.close() && !queue.close());
        assert!(!queue.reap());
        assert!(
            queue.enter().is_none() && !queue.is_open(one.generation) && !queue.is_drained(one.generation)
        );
        let generation = one.generation;
        drop(one);
        assert_eq!(living.load(SeqCst), 1);
        drop(two);
        // Not by who left: he has something else to do.
        assert_eq!(living.load(SeqCst), 1);
        assert!(queue.reap());
        assert_eq!(living.load(SeqCst), 0);
        assert!(queue.is_free() && queue.is_drained(generation));
    }

    #[test]
    fn a_dedicated_queue_counts_its_entries() {
        let living = Arc::default();
        let queue = Queue::EMPTY();
        // SAFETY: free, and one thread.
        unsafe { queue.open(spec(true, 4), probe(&living)) };
        let entered = queue.enter().unwrap();
        assert_eq!((entered.reserve(3), entered.reserve(3), entered.reserve(3)), (3, 1, 0));
        queue.release(entered.generation, 2);
        assert_eq!(entered.reserve(3), 2);
        // What the one before submitted is nothing to the next one.
        let before = entered.generation;
        drop(entered);
        queue.close();
        queue.reap();
        // SAFETY: free, and one thread.
        unsafe { queue.open(spec(true, 4), probe(&living)) };
        queue.release(before, 2);
        assert_eq!(queue.enter().unwrap().reserve(9), 4);
        queue.close();
        queue.reap();
        // SAFETY: free, and one thread.
        unsafe { queue.open(spec(false, 4), probe(&living)) };
        assert_eq!(queue.enter().unwrap().reserve(9), 9);
    }

    #[test]
    fn queues_come_and_go_under_their_users() {
        let living: Arc<AtomicUsize> = Arc::default();
        let queue = Queue::EMPTY();
        let done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        if let Some(entered) = queue.enter() {
                            // SAFETY: no device is behind it.
                            unsafe { entered.portal().submit(&[]) }.unwrap();
                        }
                    }
                    done.fetch_add(1, SeqCst);
                });
            }
            while done.load(SeqCst) < 3 {
                if queue.is_free() {
                    // SAFETY: free, and this thread alone opens.
                    unsafe { queue.open(spec(true, 4), probe(&living)) };
                    assert!(living.load(SeqCst) <= 1);
                }
                std::thread::yield_now();
                queue.close();
                queue.reap();
            }
        });
        queue.close();
        queue.reap();
        assert_eq!(living.load(SeqCst), 0);
    }
}
