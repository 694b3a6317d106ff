//! How much memory a process holds: what is there, from /proc/PID/statm, and what the machine's own swap has of it,
//! from /proc/PID/status.
//!
//! Both count: what the kernel has swapped comes back when it is used, and the limit is to hold then, too.

use core::sync::atomic::Ordering::Relaxed;
use memcg::Memcg;
use uffd::sys::{self, consts::*};
use uffd::{Fd, PAGE};

/// The first six figures of statm, in bytes: size, resident, shared, text, library (always 0), data.
fn figures(statm: &Fd) -> [usize; 6] {
    let mut text = [0u8; 128];
    let len = sys::pread(statm, &mut text, 0).unwrap_or(0);
    let mut numbers = text[..len]
        .split(|b| !b.is_ascii_digit())
        .map(|digits| digits.iter().fold(0usize, |n, d| n * 10 + (d - b'0') as usize) * PAGE);
    core::array::from_fn(|_| numbers.next().unwrap_or(0))
}

/// The size of the address space, and how much private memory is in it (resident less shared), in bytes.
pub fn sizes(statm: &Fd) -> (usize, usize) {
    let [mapped, resident, shared, ..] = figures(statm);
    (mapped, resident.saturating_sub(shared))
}

/// Bytes of private memory in the address space.
pub fn footprint(statm: &Fd) -> usize {
    sizes(statm).1
}

/// /proc/self/status: what the machine's own swap has of this process's memory, and what of it is shared.
pub struct Status {
    /// None where it cannot be had.
    file: Option<Fd>,
    swapped: usize,
    due_ns: u64,
}

/// How often the kernel is asked: to write the file takes it some 10 us, and in the meantime no fast device swaps more
/// than some MiB.
const SWAPPED_NS: u64 = 10_000_000;

impl Status {
    /// That of the calling process.
    pub fn open() -> Status {
        Status { file: sys::open(b"/proc/self/status\0", O_RDONLY).ok(), swapped: 0, due_ns: 0 }
    }

    /// How much is swapped, in bytes, or was a moment ago. Where the machine's swap is empty the kernel is not asked.
    pub fn swapped_bytes(&mut self, now_ns: u64, memcg: &Memcg) -> usize {
        if memcg.division.swaps.load(Relaxed) == 0 {
            self.swapped = 0;
        } else if now_ns >= self.due_ns {
            self.due_ns = now_ns + SWAPPED_NS;
            self.swapped = self.bytes(b"VmSwap:").unwrap_or(0);
        }
        self.swapped
    }

    /// How much shared memory is there, in bytes, files on disks not among it; `None` where that is not known.
    pub fn shmem_bytes(&self) -> Option<usize> {
        self.bytes(b"RssShmem:")
    }

    fn bytes(&self, name: &[u8]) -> Option<usize> {
        let mut text = [0u8; 4096];
        let len = sys::pread(self.file.as_ref()?, &mut text, 0).ok()?;
        bytes_of(&text[..len], name)
    }
}

/// What the line of this name says, in bytes.
fn bytes_of(status: &[u8], name: &[u8]) -> Option<usize> {
    let line = status.split(|&b| b == b'\n').find_map(|line| line.strip_prefix(name))?;
    let digits = line.iter().filter(|b| b.is_ascii_digit());
    Some(digits.fold(0usize, |n, digit| n * 10 + (digit - b'0') as usize) * 1024)
}

/// Bytes of private mappings that can be written to, there or not: what the process can hold without mapping more. What
/// is mapped without access does not count.
pub fn data(statm: &Fd) -> usize {
    figures(statm)[5]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_status_says_of_swap_and_of_shared_memory() {
        let text = b"VmRSS:\t     212 kB\nRssShmem:\t    8 kB\nVmSwap:\t     1234 kB\nThreads:\t1\n";
        assert_eq!(bytes_of(text, b"VmSwap:"), Some(1234 << 10));
        assert_eq!(bytes_of(text, b"RssShmem:"), Some(8 << 10));
        assert_eq!(bytes_of(b"Threads:\t1\n", b"VmSwap:"), None, "a kernel without swap");
        let own = std::fs::read("/proc/self/status").unwrap();
        assert!(own.len() < 4096 && Status::open().shmem_bytes().is_some());
        assert!(bytes_of(&own, b"VmSwap:").is_some());
    }
}
