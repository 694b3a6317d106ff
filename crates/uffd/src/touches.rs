//! Which pages are touched, as the kernel tells it of memory that is registered to be protected from reads and writes
//! (UFFDIO_REGISTER_MODE_RWP, Linux 7.3): a touch gives a page its rights back, without a message, and PAGEMAP_SCAN
//! says which pages have them.
//!
//! Written from Documentation/admin-guide/mm/userfaultfd.rst and the kernel's header, which linux-raw-sys does not have
//! yet. No kernel that has it was at hand: so what the document says is tried before anything relies on it.

use crate::pagemap::{Pagemap, Run, Wanted};
use crate::sys::{self, Result};
use crate::userfault::uffdio_range;
use crate::{Memory, PAGE, Userfault};
use core::ops::Range;
use linux_raw_sys::general as g;

/// struct uffdio_rwprotect.
#[repr(C)]
struct Protection {
    range: g::uffdio_range,
    mode: u64,
}

const UFFDIO_RWPROTECT: u32 = 0xc000_aa09 | (size_of::<Protection>() as u32) << 16;
const UFFDIO_RWPROTECT_MODE_RWP: u64 = 1;

impl Userfault {
    /// Has [`register`](Userfault::register) register memory so that it is told which pages are touched, if this kernel
    /// does it as its document says; false where it does not. Writes to that memory are not told then.
    ///
    /// It is tried in the two pages of `scratch`: the caller's, written to, and not registered.
    pub fn tell_touches(&mut self, pagemap: &Pagemap, memory: &Memory, scratch: Range<usize>) -> bool {
        self.tells_touches = self.has_touches;
        if self.has_touches {
            let is_registered = self.register(scratch.clone()).is_ok();
            self.tells_touches =
                is_registered && self.try_touches(pagemap, memory, scratch.start) == Ok(true);
            let _ = self.unregister(scratch);
        }
        self.tells_touches
    }

    /// True where two pages are told of as they are to be.
    fn try_touches(&self, pagemap: &Pagemap, memory: &Memory, at: usize) -> Result<bool> {
        let (pages, second) = (at..at + 2 * PAGE, at + PAGE..at + 2 * PAGE);
        let touched = || touched_of(pagemap, pages.clone());
        let begun = touched()?;
        self.watch(pages.clone())?;
        let watched = touched()?;
        // By the file, since that waits for nobody, should there be a message.
        let is_read = memory.glance(at, &mut [0]) == Ok(1);
        let read = touched()?;
        self.unprotect(second)?;
        let told = [begun, watched, read, touched()?];
        let expected = [[true, true], [false, false], [true, false], [true, true]];
        Ok(is_read && told == expected && self.next().is_none())
    }

    /// From now on it is told which of the pages that are in a registered range now are touched. What comes by a move
    /// is watched too; what comes by a copy, or as zeros, is not. ENOENT: a part of it is not registered so.
    pub fn watch(&self, range: Range<usize>) -> Result<()> {
        self.protect_from_all(range, UFFDIO_RWPROTECT_MODE_RWP)
    }

    pub(crate) fn protect_from_all(&self, range: Range<usize>, mode: u64) -> Result<()> {
        let mut arg = Protection { range: uffdio_range(&range), mode };
        // SAFETY: what memory holds stays as it is.
        unsafe { sys::ioctl(self.fd(), UFFDIO_RWPROTECT, &mut arg) }.map(drop)
    }
}

/// Which of the two pages of a range are there and touched.
fn touched_of(pagemap: &Pagemap, range: Range<usize>) -> Result<[bool; 2]> {
    let mut runs = [Run::default(); 2];
    let wanted = Wanted { touches: true, ..Wanted::default() };
    let (found, _) = pagemap.look(range.clone(), 2, wanted, &mut runs)?;
    let is_touched = |at| runs[..found].iter().any(|run| run.touched && (run.start..run.end).contains(&at));
    Ok([is_touched(range.start), is_touched(range.start + PAGE)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Features;
    use crate::sys::consts::*;

    /// As `_IOWR(0xAA, 0x09, struct uffdio_rwprotect)` of 24 bytes has it.
    #[test]
    fn the_request_is_the_headers() {
        assert_eq!(UFFDIO_RWPROTECT, 0xc018_aa09);
    }

    /// Where the kernel says that it tells touches, it does as its document says; where it does not, nothing is
    /// changed.
    #[test]
    fn touches_are_told_or_all_is_as_it_was() {
        let Ok(mut userfault) = Userfault::open(Features::Events) else {
            return crate::skip::skip("userfaultfd is refused");
        };
        let (pagemap, memory) = (Pagemap::open().unwrap(), Memory::own().unwrap());
        let at = sys::mmap(2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, None).unwrap();
        let pages = at..at + 2 * PAGE;
        // SAFETY: inside the mapping made above.
        unsafe { pages.clone().step_by(PAGE).for_each(|page| (page as *mut u64).write(7)) };
        let has_it = userfault.has_touches;
        assert_eq!(userfault.tell_touches(&pagemap, &memory, pages.clone()), has_it);
        assert_eq!(userfault.tells_touches(), has_it);
        userfault.register(pages.clone()).unwrap();
        assert_eq!(userfault.watch(pages.clone()).is_ok(), has_it);
        userfault.unprotect(pages).unwrap();
        // SAFETY: as above; the page is there.
        assert_eq!(unsafe { (at as *const u64).read_volatile() }, 7);
        assert_eq!(userfault.next(), None);
        if !has_it {
            println!("touches are not told by this kernel (Linux 7.3 does): what comes of it was not tried");
        }
    }
}
