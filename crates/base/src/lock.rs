//! A lock on a futex, for data that only engine and workers touch.
//!
//! States of the word: 0 free, 1 held, 2 held and somebody sleeps. A holder is never a thread of the program, and so
//! cannot be asleep in a page fault that the waiter would have to serve. The threads may be of several processes that
//! have one address space: for the kernel a private futex is a word of that.

#[cfg(not(miri))]
use crate::sys;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering::*};

/// Mutual exclusion around a `T`.
pub struct Mutex<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands out one `&mut T` at a time, whichever thread asks.
unsafe impl<T: Send> Sync for Mutex<T> {}

/// The lock, held.
pub struct Guard<'a, T>(&'a Mutex<T>);

impl<T> Mutex<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Mutex { word: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// True while somebody holds it. Nothing is written.
    pub fn is_held(&self) -> bool {
        self.word.load(Relaxed) != 0
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        if self.word.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            self.lock_slowly();
        }
        Guard(self)
    }

    #[cold]
    fn lock_slowly(&self) {
        for _ in 0..100 {
            if self.word.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
                return;
            }
            core::hint::spin_loop();
        }
        while self.word.swap(2, Acquire) != 0 {
            sleep(&self.word);
        }
    }
}

/// Sleeps while somebody holds the lock and knows that somebody sleeps.
#[cfg(not(miri))]
fn sleep(word: &AtomicU32) {
    let _ = sys::futex_wait(word.as_ptr(), 2, None, false);
}

#[cfg(not(miri))]
fn wake(word: &AtomicU32) {
    sys::futex_wake(word.as_ptr(), 1, false);
}

/// Miri knows no system call of ours: it runs another thread.
#[cfg(miri)]
fn sleep(_: &AtomicU32) {
    core::hint::spin_loop();
}

#[cfg(miri)]
fn wake(_: &AtomicU32) {}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock, and is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if self.0.word.swap(0, Release) == 2 {
            wake(&self.0.word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_under_contention() {
        let counter = Mutex::new(0u64);
        let turns = if cfg!(miri) { 50 } else { 50_000 };
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..turns).for_each(|_| *counter.lock() += 1));
            }
        });
        assert_eq!(*counter.lock(), 4 * turns);
    }
}
