//! Where descriptors are put in: a page of the device mapped into the process, or its file.
//!
//! ```text
//!   Mapped   mmap of /dev/iax/wqX.Y, one page; MOVDIR64B (dedicated) or ENQCMD (shared). Since INTEL-SA-01084 only with CAP_SYS_RAWIO
//!   File     write(2) of descriptors to the same file: kernels since 6.9, and those that have the fix
//!   a model  anything else that takes descriptors: see the crate iaa-model
//! ```
//!
//! Opening the file binds the opener's address space: a child of fork has to open it again, and the kernel refuses
//! others (EPERM). A dedicated queue is opened once at a time (EBUSY).

use crate::cpu::{self, Features};
use crate::descriptor::Descriptor;
use crate::doors;
use alloc::boxed::Box;
use base::sys::{self, Errno, Fd, consts};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The device or the queue is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// A queue's entrance. Dropping it closes it, and then the device is done with all that it was given here: nothing more
/// is read or written for it. (The kernel: `idxd_file_dev_release` drains the address space before close(2) or
/// munmap(2) of the last user returns.)
pub trait Portal: Send + Sync {
    /// Puts descriptors in, in their order, and says how many the queue took: fewer than given means that it is full.
    ///
    /// # Errors
    /// [`Gone`] if it took none of them and never will.
    ///
    /// # Safety
    /// The descriptors' outputs and completion records must be valid, and nobody else's, until each record is written
    /// or the portal is dropped.
    unsafe fn submit(&self, descriptors: &[Descriptor]) -> Result<usize, Gone>;
}

/// Bytes of a portal: what may be mapped of it.
const PORTAL_BYTES: usize = 4096;

/// A portal in memory.
pub struct Mapped {
    base: usize,
    dedicated: bool,
    /// Counts stores: each goes to another 64 bytes of the page, so that they need not wait for each other.
    next: AtomicUsize,
    /// Closed when the mapping is gone, which waits for what is under way.
    _file: Fd,
}

impl Mapped {
    /// Maps the portal.
    ///
    /// # Errors
    /// EOPNOTSUPP if the CPU lacks the instruction; EPERM without CAP_SYS_RAWIO on kernels that ask for it; what
    /// mmap(2) says.
    pub fn new(file: Fd, dedicated: bool, features: Features) -> Result<Mapped, (Fd, Errno)> {
        if !(if dedicated { features.movdir64b } else { features.enqcmd }) {
            return Err((file, Errno::EOPNOTSUPP));
        }
        match sys::mmap(PORTAL_BYTES, consts::PROT_WRITE, consts::MAP_SHARED, Some(&file)) {
            Ok(base) => Ok(Mapped { base, dedicated, next: AtomicUsize::new(0), _file: file }),
            Err(errno) => Err((file, errno)),
        }
    }
}

impl Portal for Mapped {
    unsafe fn submit(&self, descriptors: &[Descriptor]) -> Result<usize, Gone> {
        cpu::store_fence();
        for (taken, descriptor) in descriptors.iter().enumerate() {
            let offset = self.next.fetch_add(64, Relaxed) % PORTAL_BYTES;
            let portal = (self.base + offset) as *mut u8;
            // SAFETY: `new` saw to the instruction and the mapping, which lasts as long as `self`; the rest is the
            // caller's contract.
            let accepted = unsafe {
                if self.dedicated {
                    cpu::movdir64b(portal, descriptor);
                    true
                } else {
                    cpu::enqcmd(portal, descriptor)
                }
            };
            if !accepted {
                return Ok(taken);
            }
        }
        // A device that was disabled takes nothing and says nothing: only the time-out tells.
        Ok(descriptors.len())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: `new` mapped it, and nobody but `submit` knows the address. An error would leave it mapped, which
        // harms nobody.
        let _ = unsafe { sys::munmap(self.base, PORTAL_BYTES) };
    }
}

/// A portal behind write(2).
pub struct File(Fd);

impl File {
    /// Tries whether the file takes descriptors.
    ///
    /// # Errors
    /// EINVAL on kernels that cannot; EPERM if another address space opened it.
    pub fn new(file: Fd) -> Result<File, Errno> {
        sys::write(&file, &[])?;
        Ok(File(file))
    }
}

impl Portal for File {
    unsafe fn submit(&self, descriptors: &[Descriptor]) -> Result<usize, Gone> {
        cpu::store_fence();
        // SAFETY: plain data without padding.
        let bytes = unsafe {
            core::slice::from_raw_parts(descriptors.as_ptr().cast::<u8>(), size_of_val(descriptors))
        };
        match sys::write(&self.0, bytes) {
            // The kernel counts whole descriptors.
            Ok(written) => Ok(written / size_of::<Descriptor>()),
            // Full: the kernel has tried several times.
            Err(Errno::EAGAIN | Errno::EBUSY | Errno::EINTR) => Ok(0),
            Err(_) => Err(Gone),
        }
    }
}

/// Opens the queue whose file is `path` (which ends with NUL): mapped if that is permitted, else by write(2).
///
/// # Errors
/// What open(2), mmap(2) or write(2) said last.
pub fn open(path: &[u8], dedicated: bool, features: Features) -> Result<Box<dyn Portal>, Errno> {
    let file = sys::open(doors::find(path).unwrap_or(path), consts::O_RDWR)?;
    match Mapped::new(file, dedicated, features) {
        Ok(mapped) => Ok(Box::new(mapped)),
        Err((file, _)) => Ok(Box::new(File::new(file)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::IntoRawFd;

    fn two() -> [Descriptor; 2] {
        [Descriptor { src: 1, ..Default::default() }, Descriptor { src: 2, inputs: 3, ..Default::default() }]
    }

    #[test]
    fn descriptors_are_written_one_after_the_other() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let portal = File::new(Fd::own(writer.into_raw_fd() as usize)).unwrap();
        // SAFETY: no device is at the other end.
        assert_eq!(unsafe { portal.submit(&two()) }, Ok(2));
        let mut bytes = [0; 128];
        reader.read_exact(&mut bytes).unwrap();
        assert_eq!((bytes[16], bytes[64 + 16], bytes[64 + 60]), (1, 2, 3));
        drop(reader);
        // SAFETY: nobody reads. The pipe says EPIPE; Rust's programs ignore the signal.
        assert_eq!(unsafe { portal.submit(&two()) }, Err(Gone));
    }

    #[test]
    fn a_full_queue_takes_what_it_has_room_for() {
        let (_reader, writer) = std::io::pipe().unwrap();
        let fd = writer.into_raw_fd();
        // SAFETY: fcntl on a descriptor of ours: the smallest pipe, 4096 bytes, that does not block.
        unsafe {
            let call = |op: usize, value: usize| {
                sys::syscall(linux_raw_sys::general::__NR_fcntl, [fd as usize, op, value, 0, 0, 0]).unwrap()
            };
            assert_eq!(call(1031, 4096), 4096);
            call(4, consts::O_NONBLOCK as usize);
        }
        let portal = File::new(Fd::own(fd as usize)).unwrap();
        let many = [Descriptor::default(); 70];
        // SAFETY: no device is at the other end.
        let taken = [(); 2].map(|()| unsafe { portal.submit(&many) });
        assert_eq!(taken, [Ok(64), Ok(0)]);
    }

    #[test]
    fn what_takes_no_descriptors_is_told() {
        let directory = sys::open(b"/proc\0", consts::O_RDONLY).unwrap();
        assert_eq!(File::new(directory).err(), Some(Errno::EBADF));
        assert_eq!(open(b"/dev/iax/wq999.0\0", true, Features::default()).err(), Some(Errno::ENOENT));
    }

    #[test]
    fn a_mapping_without_the_instruction_is_refused() {
        let file = || sys::open(b"/dev/zero\0", consts::O_RDWR).unwrap();
        for dedicated in [true, false] {
            let refused = Mapped::new(file(), dedicated, Features::default()).err().unwrap();
            assert_eq!(refused.1, Errno::EOPNOTSUPP);
        }
        let all = Features { movdir64b: true, enqcmd: true, waitpkg: false };
        let mapped = Mapped::new(file(), true, all).ok().unwrap();
        if Features::of_this_cpu().movdir64b {
            // SAFETY: shared memory of nobody's is behind it.
            assert_eq!(unsafe { mapped.submit(&two()) }, Ok(2));
        } else {
            crate::skip::lacks("this CPU has no MOVDIR64B to write to a portal with");
        }
    }
}
