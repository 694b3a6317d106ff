//! A pool's memory from the kernel, for processes that have nothing better: private anonymous memory in base pages.

use crate::arena::{UNIT, pointer};
use crate::backing::Backing;
use base::sys::{self, consts::*};
use core::ptr::NonNull;

/// Private anonymous memory of the process, which costs nothing until it is touched.
#[derive(Clone, Copy, Debug, Default)]
pub struct Anonymous;

// SAFETY: a mapping is zeroed and nobody else's, and only its aligned part is kept; MADV_DONTNEED leaves zeros.
unsafe impl Backing for Anonymous {
    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        let longer = bytes.checked_add(UNIT)?;
        let (prot, flags) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
        let start = sys::mmap(longer, prot, flags, None).ok()?;
        let at = start.next_multiple_of(UNIT);
        for (part, len) in [(start, at - start), (at + bytes, start + UNIT - at)] {
            if len > 0 {
                // SAFETY: a part of the new mapping, which nobody knows of. Refused, it stays, and is not used.
                let _ = unsafe { sys::munmap(part, len) };
            }
        }
        // Refused where there are no huge pages.
        let _ = sys::madvise_keep(at, bytes, MADV_NOHUGEPAGE);
        Some(pointer(at))
    }

    fn commit(&self, at: NonNull<u8>, bytes: usize) {
        // Refused, the pages come one by one.
        let _ = sys::madvise_keep(at.as_ptr().expose_provenance(), bytes, MADV_POPULATE_WRITE);
    }

    fn decommit(&self, at: NonNull<u8>, bytes: usize) {
        // SAFETY: the pool has no object there. Refused, the pages stay, and are used again.
        let _ = unsafe { sys::madvise(at.as_ptr().expose_provenance(), bytes, MADV_DONTNEED) };
    }

    fn unmap(&self, at: NonNull<u8>, bytes: usize) {
        // SAFETY: the pool has no object there and forgets the range.
        let _ = unsafe { sys::munmap(at.as_ptr().expose_provenance(), bytes) };
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::Pool;

    #[test]
    fn objects_lie_in_it_and_it_is_given_back() {
        let pool = Pool::new(Anonymous);
        let lens = [1, 5000, 70_000, 200_000];
        let handles = lens.map(|len| pool.alloc(len).unwrap());
        for (n, handle) in handles.iter().enumerate() {
            pool.write(*handle, |object| object.fill(n as u8 + 1));
        }
        for (n, handle) in handles.iter().enumerate() {
            assert!(pool.read(*handle).iter().all(|byte| *byte == n as u8 + 1));
        }
        pool.check().unwrap();
        handles.into_iter().for_each(|handle| pool.free(handle));
        let kept = pool.pool_bytes();
        pool.compact(usize::MAX);
        assert!(pool.pool_bytes() < kept);
        pool.check().unwrap();
    }

    #[test]
    fn more_than_there_can_be_is_refused() {
        assert_eq!(Anonymous.map(usize::MAX / UNIT * UNIT), None);
        assert_eq!(Anonymous.map(1 << 47), None);
    }
}
