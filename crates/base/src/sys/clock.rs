//! Clocks.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use linux_raw_sys::general as g;

/// Nanoseconds on a clock of clock_gettime(2); 0 where there is no such clock.
pub fn clock(id: u32) -> u64 {
    let mut now = Timespec { sec: 0, nsec: 0 };
    // SAFETY: the kernel writes the time.
    let _ = unsafe { call!(__NR_clock_gettime, id, &raw mut now) };
    now.ns()
}

/// The address of a clock_gettime that is no system call; 0 when none is known.
static CLOCK: AtomicUsize = AtomicUsize::new(0);

/// Has [`now_ns`] call a function at this address.
///
/// # Safety
/// It must be a clock_gettime by the C calling convention, and stay.
pub unsafe fn set_clock(address: usize) {
    CLOCK.store(address, Relaxed);
}

/// Nanoseconds since some point in the past.
pub fn now_ns() -> u64 {
    let address = CLOCK.load(Relaxed);
    if address == 0 {
        return clock(g::CLOCK_MONOTONIC);
    }
    let mut now = Timespec { sec: 0, nsec: 0 };
    // SAFETY: the contract of `set_clock`.
    unsafe {
        let clock: extern "C" fn(u32, *mut Timespec) -> i32 = core::mem::transmute(address);
        clock(g::CLOCK_MONOTONIC, &mut now);
    }
    now.ns()
}

/// CPU nanoseconds of the calling process (all its threads).
pub fn process_cpu_ns() -> u64 {
    clock(g::CLOCK_PROCESS_CPUTIME_ID)
}

/// Sleeps.
pub fn sleep_ns(ns: u64) {
    let time = timespec(ns);
    // SAFETY: the kernel reads the time, and writes no rest, since none is asked for.
    let _ = unsafe { call!(__NR_nanosleep, &raw const time, 0) };
}

#[repr(C)]
pub(super) struct Timespec {
    sec: i64,
    nsec: i64,
}

impl Timespec {
    fn ns(&self) -> u64 {
        self.sec as u64 * 1_000_000_000 + self.nsec as u64
    }
}

pub(super) fn timespec(ns: u64) -> Timespec {
    Timespec { sec: (ns / 1_000_000_000) as i64, nsec: (ns % 1_000_000_000) as i64 }
}
