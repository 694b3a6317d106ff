//! A lock for a few threads that hold it for a microsecond: spins, then yields the processor.
//!
//! It is not fair, and not for waiting: a holder never sleeps, except in a system call that gives or takes memory.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering::*};

/// Mutual exclusion around a `T`.
pub struct Lock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands out one `&mut T` at a time, whichever thread asks.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The lock, held.
pub struct Guard<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Lock { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        let mut backoff = Backoff::default();
        while self.held.compare_exchange_weak(false, true, Acquire, Relaxed).is_err() {
            backoff.wait();
        }
        Guard(self)
    }
}

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
        self.0.held.store(false, Release);
    }
}

/// What to do between two attempts.
#[derive(Default)]
pub struct Backoff(u32);

impl Backoff {
    /// A microsecond or two: as long as most holders take. On a machine with fewer processors than threads, more is lost.
    const SPINS: u32 = 64;

    /// Waits a moment.
    pub fn wait(&mut self) {
        self.0 += 1;
        if self.0 < Self::SPINS { core::hint::spin_loop() } else { yield_now() }
    }
}

/// sched_yield(2), without libc.
#[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
fn yield_now() {
    const SCHED_YIELD: usize = 24;
    // SAFETY: the call has no arguments and touches no memory; `syscall` clobbers rax, rcx and r11.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") SCHED_YIELD => _, out("rcx") _, out("r11") _, options(nostack, nomem));
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64", not(miri))))]
fn yield_now() {
    core::hint::spin_loop();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_under_contention() {
        let counter = Lock::new(0u64);
        let turns = if cfg!(miri) { 50 } else { 50_000 };
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..turns).for_each(|_| *counter.lock() += 1));
            }
        });
        assert_eq!(*counter.lock(), 4 * turns);
    }
}
