//! The instructions that a device is driven with, and whether this CPU has them. Intel SDM, volume 2.

use crate::descriptor::{Completion, Descriptor};
use base::sys;
use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count, _mm_sfence, _rdtsc};
use core::sync::atomic::Ordering;

/// What the CPU can do of it. CPUID leaf 7, ECX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// MOVDIR64B: 64 bytes in one write, for a dedicated queue.
    pub movdir64b: bool,
    /// ENQCMD: the same with an answer, for a shared queue.
    pub enqcmd: bool,
    /// UMONITOR and UMWAIT: sleeping until a cache line is written.
    pub waitpkg: bool,
}

impl Features {
    /// Asks the CPU.
    pub fn of_this_cpu() -> Features {
        // The leaf is asked for only where it exists.
        #[allow(unused_unsafe, reason = "needed by the oldest Rust that is supported (rust-version)")]
        // SAFETY: every x86-64 CPU has CPUID.
        let ecx = unsafe { if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ecx } else { 0 } };
        let bit = |bit: u32| ecx >> bit & 1 == 1;
        Features { movdir64b: bit(28), enqcmd: bit(29), waitpkg: bit(5) }
    }
}

/// Writes a descriptor to a dedicated queue's portal. Nothing tells whether there was room.
///
/// # Safety
/// The CPU has MOVDIR64B, `portal` is a mapped portal's address and a multiple of 64, and what the descriptor names
/// stays the device's until it is done.
pub unsafe fn movdir64b(portal: *mut u8, descriptor: &Descriptor) {
    // SAFETY: the contract.
    unsafe {
        asm!("movdir64b {to}, zmmword ptr [{from}]", to = in(reg) portal, from = in(reg) descriptor, options(nostack, preserves_flags));
    }
}

/// Writes a descriptor to a shared queue's portal; false when the queue is full.
///
/// # Safety
/// As for [`movdir64b`], with ENQCMD, and the process's address space is bound to the device.
pub unsafe fn enqcmd(portal: *mut u8, descriptor: &Descriptor) -> bool {
    let full: u8;
    // SAFETY: the contract. ZF is set when the device wants it to be tried again.
    unsafe {
        asm!("enqcmd {to}, zmmword ptr [{from}]", "setz {full}",
             to = in(reg) portal, from = in(reg) descriptor, full = out(reg_byte) full, options(nostack));
    }
    full == 0
}

/// Makes what was written so far visible to the device before what is written to a portal: MOVDIR64B and ENQCMD are not
/// ordered after ordinary stores.
pub fn store_fence() {
    // SAFETY: every x86-64 CPU has SSE2.
    unsafe { _mm_sfence() };
}

/// At most this many time stamp counts are slept: some tens of microseconds. Linux permits 100,000 at a time.
const SLEEP_MAX_TSC: u64 = 50_000;

/// How one waits for a completion: first by pausing, then by giving the CPU away, and at last by sleeping. Who gives a
/// CPU away is soon back on it, and keeps it from whom it waits for, where that is a program.
pub struct Wait {
    features: Features,
    rounds: u32,
}

impl Wait {
    /// Rounds of pausing before other threads may run in between: some ten microseconds, as long as the device takes
    /// for a page.
    const PAUSES: u32 = 64;
    /// Rounds after which a device is late for any batch.
    const YIELDS: u32 = 1024;
    /// How long a sleep is.
    const SLEEP_NS: u64 = 50_000;

    /// A wait that has not begun.
    pub fn new(features: Features) -> Wait {
        Wait { features, rounds: 0 }
    }

    /// Something was done: begin again.
    pub fn reset(&mut self) {
        self.rounds = 0;
    }

    /// Waits a little, and less if the completion comes. The caller keeps the bound.
    pub fn relax(&mut self, completion: Option<&Completion>) {
        self.rounds = self.rounds.saturating_add(1);
        if self.rounds > Self::YIELDS {
            sys::sleep_ns(Self::SLEEP_NS);
        } else if self.rounds > Self::PAUSES {
            sys::sched_yield();
        }
        match completion {
            // SAFETY: the CPU has WAITPKG.
            Some(completion) if self.features.waitpkg => unsafe { sleep_on(completion) },
            _ => (0..16).for_each(|_| core::hint::spin_loop()),
        }
    }
}

/// Sleeps until the completion's cache line is written, or [`SLEEP_MAX_TSC`].
///
/// # Safety
/// The CPU has WAITPKG.
unsafe fn sleep_on(completion: &Completion) {
    // SAFETY: monitoring an address of ours, and time stamps are readable in user space, as UMWAIT's being there says.
    unsafe {
        asm!("umonitor {line}", line = in(reg) completion.address(), options(nostack, preserves_flags));
        // Written between the caller's look and the monitor: no need to sleep.
        if completion.status_byte().load(Ordering::Relaxed) != 0 {
            return;
        }
        let until = _rdtsc() + SLEEP_MAX_TSC;
        // State C0.1: the quicker one to wake from.
        asm!("umwait ecx", in("ecx") 1, in("eax") until as u32, in("edx") (until >> 32) as u32, options(nostack));
    }
}

/// The CPU that the caller runs on, or ran on a moment ago.
pub fn current() -> usize {
    let mut cpu = 0u32;
    // SAFETY: getcpu writes the one word.
    let got =
        unsafe { sys::syscall(linux_raw_sys::general::__NR_getcpu, [&raw mut cpu as usize, 0, 0, 0, 0, 0]) };
    if got.is_ok() { cpu as usize } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_those_that_the_kernel_lists() {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags = text.lines().find(|line| line.starts_with("flags")).unwrap();
        let has = |name: &str| flags.split_whitespace().any(|flag| flag == name);
        let features = Features::of_this_cpu();
        assert_eq!((features.movdir64b, features.waitpkg), (has("movdir64b"), has("waitpkg")));
        // The kernel takes ENQCMD off its list where it cannot bind address spaces to devices.
        assert!(features.enqcmd || !has("enqcmd"));
    }

    #[test]
    fn a_descriptor_goes_out_in_one_piece() {
        if !Features::of_this_cpu().movdir64b {
            crate::skip::lacks("this CPU has no MOVDIR64B");
            return;
        }
        let (source, mut target) =
            (Descriptor { src: 7, inputs: 9, ..Default::default() }, Descriptor::default());
        // SAFETY: ordinary memory takes it as well.
        unsafe { movdir64b((&raw mut target).cast(), &source) };
        store_fence();
        assert_eq!(source, target);
    }

    #[test]
    fn the_cpu_is_one_that_the_thread_may_run_on() {
        assert!(sys::CpuSet::of_this_thread().contains(current()));
    }

    #[test]
    fn waiting_ends() {
        let mut wait = Wait::new(Features::of_this_cpu());
        let completion = Completion::new();
        (0..100).for_each(|_| wait.relax(Some(&completion)));
        wait.reset();
        wait.relax(None);
    }
}
