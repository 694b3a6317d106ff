//! Calls by which the program lends pages to the kernel: it refers to them, unpinned, after the call has returned, and
//! UFFDIO_MOVE does not refuse such pages as it does pinned ones. A page that has gone out is used again for another,
//! and whoever reads the loan later would read that. (The kernel's own swap frees a page only when nobody refers to
//! it.) So nothing is lent: what can be copied is, and the rest is refused as by a kernel that does not know it.

use crate::libc::{Call, NO_SUCH_CALL, real};
use control::run::is_in_run;
use core::ffi::c_void;

const EAGAIN: i32 = 11;

const F_GETFL: i32 = 3;
const F_GETPIPE_SZ: i32 = 1032;
const O_ACCMODE: i32 = 3;
const O_RDONLY: i32 = 0;

const SPLICE_F_NONBLOCK: u32 = 2;
const RWF_NOWAIT: i32 = 8;
/// pwritev2's offset for "where the file stands".
const HERE: i64 = -1;

const SOL_SOCKET: i32 = 1;
const SO_ZEROCOPY: i32 = 60;
/// An option that no socket has.
const SO_NOTHING: i32 = i32::MAX;

/// What poll(2) takes.
#[repr(C)]
struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

const POLLOUT: i16 = 4;

/// libc's calls that a copy into a pipe is made of: they set errno, and a thread that waits in them can be cancelled.
#[derive(Clone, Copy)]
struct Libc {
    fcntl: unsafe extern "C" fn(i32, i32, ...) -> i32,
    pwritev2: extern "C" fn(i32, *const c_void, i32, i64, i32) -> isize,
    poll: extern "C" fn(*mut PollFd, u64, i32) -> i32,
    errno: extern "C" fn() -> *mut i32,
}

impl Libc {
    fn find() -> Option<Libc> {
        // SAFETY: the types of these functions.
        unsafe {
            Some(Libc {
                fcntl: real(Call::Fcntl)?,
                pwritev2: real(Call::Pwritev2)?,
                poll: real(Call::Poll)?,
                errno: real(Call::ErrnoLocation)?,
            })
        }
    }

    /// True for an end of a pipe into which can be written.
    fn is_pipe_to_write(&self, fd: i32) -> bool {
        // SAFETY: neither command takes a pointer; errno is as before for a call that succeeds.
        unsafe {
            let errno = *(self.errno)();
            let flags = (self.fcntl)(fd, F_GETFL);
            let is_pipe = flags >= 0 && (self.fcntl)(fd, F_GETPIPE_SZ) >= 0;
            *(self.errno)() = errno;
            is_pipe && flags & O_ACCMODE != O_RDONLY
        }
    }

    /// Copies into a pipe what there is room for, and waits until there is some, as vmsplice does.
    fn copy(&self, fd: i32, pieces: *const c_void, count: i32, flags: u32) -> isize {
        loop {
            let written = (self.pwritev2)(fd, pieces, count, HERE, RWF_NOWAIT);
            // SAFETY: the thread's own errno.
            let full = written < 0 && unsafe { *(self.errno)() } == EAGAIN;
            if !full || flags & SPLICE_F_NONBLOCK != 0 {
                return written;
            }
            let mut ready = PollFd { fd, events: POLLOUT, revents: 0 };
            if (self.poll)(&mut ready, 1, -1) < 0 {
                return -1;
            }
        }
    }
}

/// vmsplice(2): what goes into a pipe is copied. Out of one the kernel copies anyway.
pub extern "C" fn vmsplice(fd: i32, pieces: *const c_void, count: usize, flags: u32) -> isize {
    if is_in_run()
        && let Some(libc) = Libc::find()
        && libc.is_pipe_to_write(fd)
    {
        return libc.copy(fd, pieces, count.min(i32::MAX as usize) as i32, flags);
    }
    // SAFETY: the type of vmsplice(2).
    let real = unsafe { real::<extern "C" fn(i32, *const c_void, usize, u32) -> isize>(Call::Vmsplice) };
    real.map_or(NO_SUCH_CALL as isize, |f| f(fd, pieces, count, flags))
}

/// setsockopt(2): without SO_ZEROCOPY the kernel copies what is sent with MSG_ZEROCOPY.
pub extern "C" fn setsockopt(fd: i32, level: i32, option: i32, value: *const c_void, bytes: u32) -> i32 {
    // SAFETY: the type of setsockopt(2).
    let real = unsafe { real::<extern "C" fn(i32, i32, i32, *const c_void, u32) -> i32>(Call::Setsockopt) };
    let lends = is_in_run() && (level, option) == (SOL_SOCKET, SO_ZEROCOPY);
    let option = if lends { SO_NOTHING } else { option };
    real.map_or(NO_SUCH_CALL, |f| f(fd, level, option, value, bytes))
}
