//! How much memory a process holds, from /proc/PID/statm.

use uffd::sys;
use uffd::{Fd, PAGE};

/// The size of the address space, and how much private memory is in it (resident less shared), in bytes.
pub fn sizes(statm: &Fd) -> (usize, usize) {
    let mut text = [0u8; 128];
    let len = sys::pread(statm, &mut text, 0).unwrap_or(0);
    let mut numbers = text[..len]
        .split(|b| !b.is_ascii_digit())
        .map(|digits| digits.iter().fold(0usize, |n, d| n * 10 + (d - b'0') as usize));
    let mut next = || numbers.next().unwrap_or(0);
    let (mapped, resident, shared) = (next(), next(), next());
    (mapped * PAGE, resident.saturating_sub(shared) * PAGE)
}

/// Bytes of private memory in the address space.
pub fn footprint(statm: &Fd) -> usize {
    sizes(statm).1
}
