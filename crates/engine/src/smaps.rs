//! What only /proc/self/smaps tells: the flags of mappings. To read it takes as long as to walk all page tables.

use core::ops::Range;
use uffd::Errno;
use uffd::sys::{self, consts::*};

/// The flags of a mapping: two letters each, as in proc(5).
pub struct Flags<'a>(&'a [u8]);

impl Flags<'_> {
    fn has(&self, flag: &[u8]) -> bool {
        self.0.split(|&b| b == b' ').any(|word| word == flag)
    }

    /// MADV_DONTFORK: no child has it.
    pub fn is_kept_out(&self) -> bool {
        self.has(b"dc")
    }

    /// MADV_WIPEONFORK, and what the kernel may drop at any time (MAP_DROPPABLE): a child finds it empty.
    pub fn is_wiped(&self) -> bool {
        self.has(b"wf") || self.has(b"dr")
    }

    /// Locked, and filled as it is touched (MLOCK_ONFAULT).
    pub fn is_locked_on_fault(&self) -> bool {
        self.has(b"lf")
    }

    /// MADV_RANDOM.
    pub fn is_random(&self) -> bool {
        self.has(b"rr")
    }
}

/// Calls `each` with all mappings of this process, by address.
pub fn each(each: impl FnMut(Range<usize>, Flags)) -> Result<(), Errno> {
    let smaps = sys::open(b"/proc/self/smaps\0", O_RDONLY)?;
    each_of(|buffer| sys::read(&smaps, buffer), each)
}

/// The same of a text that `read` reads a piece of.
fn each_of(
    mut read: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    mut each: impl FnMut(Range<usize>, Flags),
) -> Result<(), Errno> {
    let (mut buffer, mut held, mut mapping) = ([0u8; 4096], 0, 0..0);
    loop {
        let got = read(&mut buffer[held..])?;
        held += got;
        let mut rest = &buffer[..held];
        while let Some(end) = rest.iter().position(|&b| b == b'\n') {
            let line = &rest[..end];
            rest = &rest[end + 1..];
            if let Some(range) = range_of(line) {
                mapping = range;
            } else if let Some(flags) = line.strip_prefix(b"VmFlags:") {
                each(mapping.clone(), Flags(flags));
            }
        }
        let left = rest.len();
        buffer.copy_within(held - left..held, 0);
        // A line that is longer than the buffer is a mapping's, with a long name: its beginning is what counts.
        held = if left == buffer.len() { 64 } else { left };
        if got == 0 {
            return Ok(());
        }
    }
}

/// The range at the beginning of a line, `7f0000000000-7f0000001000 rw-p ...`.
fn range_of(line: &[u8]) -> Option<Range<usize>> {
    let number = |digits: &[u8]| usize::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok();
    let dash = line.iter().take(17).position(|&b| b == b'-')?;
    let blank = line.iter().take(34).position(|&b| b == b' ')?;
    Some(number(&line[..dash])?..number(line.get(dash + 1..blank)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_read_whatever_pieces_they_come_in() {
        let name = "n".repeat(6000);
        let mapping = |range: &str, name: &str, flags: &str| {
            format!("{range} rw-p 00000000 00:00 0 {name}\nSize: 4 kB\nRss: dc kB\nVmFlags: rd wr {flags}\n")
        };
        let text = [
            mapping("55d0e0a00000-55d0e0a21000", "[heap]", "mr mw me ac "),
            mapping("7f0000000000-7f0000001000", "", "mr dc me "),
            mapping("7f0000001000-7f0000005000", &name, "dc"),
            mapping("7f0000005000-7f0000006000", "", "dcx"),
            mapping("ffffffffff600000-ffffffffff601000", "[vsyscall]", ""),
        ]
        .concat();
        for piece in [1, 7, 100, 4096] {
            let (mut rest, mut found) = (text.as_bytes(), Vec::new());
            let read = |buffer: &mut [u8]| {
                let len = rest.len().min(buffer.len()).min(piece);
                buffer[..len].copy_from_slice(&rest[..len]);
                rest = &rest[len..];
                Ok(len)
            };
            each_of(read, |range, flags| found.extend(flags.is_kept_out().then_some(range))).unwrap();
            assert_eq!(found, [0x7f0000000000..0x7f0000001000, 0x7f0000001000..0x7f0000005000], "{piece}");
        }
    }

    #[test]
    fn advice_to_the_kernel_is_seen() {
        let bytes = 16 << 12;
        let at = sys::mmap(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, None).unwrap();
        let seen = || {
            let (mut wiped, mut random) = (Vec::new(), Vec::new());
            each(|range, flags| {
                if range.start >= at && range.end <= at + bytes {
                    wiped.extend(flags.is_wiped().then(|| range.clone()));
                    random.extend(flags.is_random().then_some(range));
                }
            })
            .unwrap();
            (wiped, random)
        };
        let (wiped, random) = (at + (4 << 12)..at + (9 << 12), at + (9 << 12)..at + (11 << 12));
        assert_eq!(seen(), (vec![], vec![]));
        const MADV_WIPEONFORK: u32 = 18;
        // SAFETY: the mapping is this test's own.
        unsafe { sys::madvise(wiped.start, wiped.len(), MADV_WIPEONFORK) }.unwrap();
        sys::madvise_keep(random.start, random.len(), MADV_RANDOM).unwrap();
        assert_eq!(seen(), (vec![wiped], vec![random]));
        // SAFETY: as above.
        unsafe { sys::munmap(at, bytes) }.unwrap();
    }
}
