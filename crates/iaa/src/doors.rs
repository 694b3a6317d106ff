//! The names of the queues' files, sealed: for a process that may open nothing else from now on, and is to open queues
//! that come later.
//!
//! A filter of system calls sees a path's address, and not the path. So the names of all queues that there are, enabled
//! or not, are written to a page, one each [`STEP_BYTES`], which is then made unwritable and sealed (mseal(2)): it
//! cannot be written to, unmapped, moved, or mapped over any more, by whatever runs in the process. Whoever opens to
//! write at an address that is in the page and a multiple of the step opens one of these files, or, where no name
//! stands, nothing.

use crate::queues::QUEUES_MAX;
use crate::sysfs::{self, Device};
use base::sys::{self, consts::*};
use core::sync::atomic::{AtomicUsize, Ordering::*};
use linux_raw_sys::general::__NR_mseal;

/// Bytes of the page: its address is a multiple of them.
pub const BYTES: usize = 4096;
/// Bytes from one name to the next.
pub const STEP_BYTES: usize = BYTES / QUEUES_MAX;
const _: () = assert!(STEP_BYTES.is_power_of_two() && STEP_BYTES >= 32 && BYTES == base::PAGE);

/// Where this process's page is; 0 where it has none. It stays for ever.
static PAGE_AT: AtomicUsize = AtomicUsize::new(0);

/// Makes the page, for the calling process: what [`portal::open`](crate::portal::open) opens from then on is at an
/// address in it. Returns the address; `None` where there is no device, or the kernel does not seal (before 6.10): then
/// there is none.
pub fn seal(root: &str) -> Option<usize> {
    let devices = sysfs::discover(root).ok().filter(|devices| !devices.is_empty())?;
    let at = match PAGE_AT.load(Acquire) {
        0 => make(root, &devices)?,
        at => at,
    };
    PAGE_AT.store(at, Release);
    Some(at)
}

fn make(root: &str, devices: &[Device]) -> Option<usize> {
    let at = sys::mmap(BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, None).ok()?;
    let paths = devices.iter().flat_map(|device| &device.queues).map(|queue| queue.path(root));
    // One that is too long is left out: nobody opens it.
    for (place, path) in paths.filter(|path| path.len() <= STEP_BYTES).take(QUEUES_MAX).enumerate() {
        let to = (at + place * STEP_BYTES) as *mut u8;
        // SAFETY: within the new page, which nobody else knows of.
        unsafe { to.copy_from_nonoverlapping(path.as_ptr(), path.len()) };
    }
    // SAFETY: ours; whoever reads it does so for ever.
    unsafe {
        let is_sealed = sys::mprotect(at, BYTES, PROT_READ).is_ok()
            && sys::syscall(__NR_mseal, [at, BYTES, 0, 0, 0, 0]).is_ok();
        if !is_sealed {
            let _ = sys::munmap(at, BYTES);
            return None;
        }
    }
    Some(at)
}

/// The same path, where it is in the page.
pub(crate) fn find(path: &[u8]) -> Option<&'static [u8]> {
    let at = PAGE_AT.load(Acquire);
    if at == 0 || path.len() > STEP_BYTES {
        return None;
    }
    // SAFETY: `seal` has mapped it, and it stays as it is.
    let page = unsafe { core::slice::from_raw_parts(at as *const u8, BYTES) };
    page.chunks_exact(STEP_BYTES).map(|name| &name[..path.len()]).find(|name| *name == path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Errno;
    use iaa_model::Tree;
    use linux_raw_sys::general::__NR_mmap;

    #[test]
    fn what_is_sealed_stays() {
        // A short name: it is to fit.
        let tree = Tree::at(format!("/tmp/d{}", std::process::id()));
        let path = |name: &str| format!("{}/dev/iax/{name}\0", tree.root()).into_bytes();
        assert_eq!((seal(tree.root()), find(&path("wq1.0"))), (None, None), "no device yet");
        tree.device(1, 0);
        (0..3).for_each(|id| tree.queue(1, id, "shared", 16));
        tree.set(1, "wq1.2/state", "disabled");
        let Some(at) = seal(tree.root()) else {
            crate::skip::lacks("this kernel does not seal");
            return;
        };
        assert_eq!(at % BYTES, 0);
        for id in 0..3 {
            let path = path(&format!("wq1.{id}"));
            let found = find(&path).unwrap();
            assert_eq!((found, found.as_ptr() as usize), (&path[..], at + id * STEP_BYTES));
        }
        for other in ["wq1.3", "wq1", ""] {
            assert_eq!(find(&path(other)), None);
        }
        // SAFETY: all of it is refused.
        unsafe {
            let refused = [
                sys::munmap(at, BYTES),
                sys::mprotect(at, BYTES, PROT_READ | PROT_WRITE),
                sys::mremap(at, BYTES, BYTES, 0, at + (1 << 30)),
                sys::madvise(at, BYTES, MADV_DONTNEED),
                sys::syscall(__NR_mmap, [at, BYTES, 3, 0x32, usize::MAX, 0]).map(drop),
            ];
            assert_eq!(refused, [Err(Errno::EPERM); 5]);
        }
        assert_eq!(seal(tree.root()), Some(at), "there is one");
        assert!(crate::portal::open(&path("wq1.0"), false, Default::default()).is_ok());
        let names = [at, at + STEP_BYTES].map(|at| {
            // SAFETY: sealed: it is there, and text.
            unsafe { core::ffi::CStr::from_ptr(at as *const core::ffi::c_char) }.to_bytes_with_nul()
        });
        assert_eq!(names, [&path("wq1.0")[..], &path("wq1.1")]);
    }
}
