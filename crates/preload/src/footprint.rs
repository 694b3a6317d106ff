//! How much memory a process holds, from /proc/PID/statm.

use uffd::sys;
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

/// Bytes of private mappings that can be written to, there or not: what the process can hold without mapping more. What is mapped without access does
/// not count.
pub fn data(statm: &Fd) -> usize {
    figures(statm)[5]
}
