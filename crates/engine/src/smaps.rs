//! What only /proc/self/smaps tells: the flags of mappings. To read it takes as long as to walk all page tables.

use core::ops::Range;
use uffd::Errno;
use uffd::kinds::Parser;
use uffd::smaps::Flags;
use uffd::sys::{self, consts::*};

/// Calls `each` with all mappings of this process, by address.
pub fn each(mut each: impl FnMut(Range<usize>, Flags)) -> Result<(), Errno> {
    let smaps = sys::open(b"/proc/self/smaps\0", O_RDONLY)?;
    let (mut buffer, mut parser) = ([0; 4096], Parser::default());
    loop {
        match sys::read(&smaps, &mut buffer)? {
            0 => return Ok(()),
            len => parser.feed(&buffer[..len], |mapping| each(mapping.range.clone(), mapping.flags)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
