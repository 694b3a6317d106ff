//! The constants of the executable that hold addresses (RELRO): pages of its file of which the loader has made private
//! copies. In a browser they are 11 MiB of each process that is executed, hardly looked at, and no userfaultfd has them
//! as long as they belong to a file.
//!
//! ```text
//!   start: file, private copies ── copied, and mremap ──> anonymous memory, read-only as before
//!   later: as all memory that cannot be written to (detach.rs)
//! ```
//!
//! This is safe because the process has one thread, which is here, and the loader is done with what it has made
//! read-only.

use crate::loaded;
use control::CONTROL;
use core::ops::Range;
use core::sync::atomic::Ordering::*;
use uffd::maps::Maps;
use uffd::pagemap::Pagemap;
use uffd::sys::{self, consts::*};

/// Fewer bytes of constants stay where they are.
const LEAST: usize = 1 << 20;

/// So much is moved at a time, and held twice meanwhile.
const PIECE: usize = 256 << 10;

/// One part in so many may be the file's own pages.
const FILE_PART: usize = 8;

/// Gives the constants of the executable, which lie at `range`, anonymous memory. Where anything is not as expected
/// they stay as they are.
pub fn make_anonymous(range: Range<usize>) {
    if range.len() < LEAST || !loaded::has_one_thread() || !is_private(&range) {
        return;
    }
    let flags = MAP_PRIVATE | MAP_ANONYMOUS;
    let Ok(from) = sys::mmap(range.len(), PROT_READ | PROT_WRITE, flags, None) else { return };
    let mut done = 0;
    while done < range.len() {
        let bytes = PIECE.min(range.len() - done);
        // SAFETY: the constants are there and stay the same; the new mapping is nobody else's; and nobody runs who
        // could see the one take the other's place.
        let moved = unsafe {
            core::ptr::copy_nonoverlapping(
                (range.start + done) as *const u8,
                (from + done) as *mut u8,
                bytes,
            );
            sys::mprotect(from + done, bytes, PROT_READ)
                .and_then(|()| sys::mremap(from + done, bytes, bytes, 0, range.start + done))
        };
        if moved.is_err() {
            // SAFETY: what has not been moved is nobody's.
            let _ = unsafe { sys::munmap(from + done, range.len() - done) };
            break;
        }
        done += bytes;
    }
    CONTROL.constants.0.store(range.start, Relaxed);
    CONTROL.constants.1.store(range.start + done, Relaxed);
}

/// True when a range is one read-only mapping of a file, of which there are private copies of nearly all.
fn is_private(range: &Range<usize>) -> bool {
    let (Ok(maps), Ok(pagemap)) = (Maps::open(), Pagemap::open()) else { return false };
    let is_mapping = maps.query(range.start).is_ok_and(|m| {
        m.is_some_and(|m| {
            m.protection == PROT_READ && m.range.start <= range.start && range.end <= m.range.end
        })
    });
    let mut runs = [Default::default(); 64];
    let (mut at, mut copies) = (range.start, 0);
    while is_mapping
        && at < range.end
        && let Ok((found, upto)) = pagemap.present(at..range.end, usize::MAX, &mut runs)
    {
        copies += runs[..found].iter().map(|run| run.end - run.start).sum::<usize>();
        at = upto;
    }
    range.len() - copies <= range.len() / FILE_PART
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_constants_and_what_is_not_a_mapping_of_a_file_stay_where_they_are() {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS;
        for bytes in [LEAST / 2, LEAST] {
            let at = sys::mmap(bytes, PROT_READ, flags, None).unwrap();
            make_anonymous(at..at + bytes);
            assert!(!CONTROL.are_constants(&(at..at + bytes)));
        }
    }
}
