//! What only /proc/self/smaps tells: its flags. To read it takes as long as to walk all page tables.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use uffd::sys::{self, consts::*};

/// Bytes that are read at a time.
const CHUNK: usize = 64 << 10;

/// Mappings that a child finds empty: MADV_WIPEONFORK, and what the kernel may drop at any time (MAP_DROPPABLE). Empty where smaps cannot be read.
pub fn wiped() -> Vec<Range<usize>> {
    let Ok(file) = sys::open(b"/proc/self/smaps\0", O_RDONLY) else { return Vec::new() };
    let (mut text, mut parser) = (vec![0; CHUNK], Parser::default());
    while let Ok(len @ 1..) = sys::read(&file, &mut text) {
        text[..len].iter().for_each(|&byte| parser.feed(byte));
    }
    parser.wiped
}

/// Takes the text byte by byte, since a line may lie across two reads.
#[derive(Default)]
struct Parser {
    line: Vec<u8>,
    range: Range<usize>,
    wiped: Vec<Range<usize>>,
}

impl Parser {
    fn feed(&mut self, byte: u8) {
        if byte != b'\n' {
            self.line.push(byte);
            return;
        }
        if let Some(flags) = self.line.strip_prefix(b"VmFlags:") {
            if flags.split(|&b| b == b' ').any(|flag| flag == b"wf" || flag == b"dr") {
                self.wiped.push(self.range.clone());
            }
        } else if let Some(range) = head(&self.line) {
            self.range = range;
        }
        self.line.clear();
    }
}

/// The addresses of a line that begins a mapping.
fn head(line: &[u8]) -> Option<Range<usize>> {
    let word = line.split(|&b| b == b' ').next()?;
    let (start, end) = core::str::from_utf8(word).ok()?.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some(number(start)?..number(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_that_is_wiped_is_found() {
        let bytes = 16 << 12;
        let at = sys::mmap(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, None).unwrap();
        let part = at + (4 << 12)..at + (9 << 12);
        assert!(!wiped().iter().any(|r| r.start < at + bytes && r.end > at));
        // SAFETY: the mapping is this test's own.
        unsafe { sys::madvise(part.start, part.len(), 18) }.unwrap();
        assert!(wiped().contains(&part));
        // SAFETY: as above.
        unsafe { sys::munmap(at, bytes) }.unwrap();
    }
}
