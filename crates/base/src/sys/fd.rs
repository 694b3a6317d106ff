//! The owned descriptor, and what is made or waited for as one.

use super::{
    Result,
    clock::{Timespec, timespec},
};
use core::ffi::CStr;
use linux_raw_sys::general as g;

/// An open file descriptor, closed when dropped.
#[derive(Debug)]
pub struct Fd(pub(super) i32);

impl Fd {
    /// The number.
    pub fn raw(&self) -> i32 {
        self.0
    }

    /// Takes ownership of a descriptor.
    pub fn own(fd: usize) -> Fd {
        Fd(fd as i32)
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        let _ = call!(__NR_close, self.0);
    }
}

/// Waits until one of `fds` can be read, at most `timeout_ns`; says which can.
pub fn poll<const N: usize>(fds: [&Fd; N], timeout_ns: u64) -> Result<[bool; N]> {
    let mut set = fds.map(|fd| g::pollfd { fd: fd.0, events: g::POLLIN as i16, revents: 0 });
    let timeout = timespec(timeout_ns);
    call!(__NR_ppoll, set.as_mut_ptr(), N, &timeout as *const Timespec, 0, 8)?;
    Ok(set.map(|p| p.revents != 0))
}

/// True when `fd` takes something written to it now.
pub fn is_writable(fd: &Fd) -> bool {
    let mut set = [g::pollfd { fd: fd.0, events: g::POLLOUT as i16, revents: 0 }];
    let timeout = timespec(0);
    let told = call!(__NR_ppoll, set.as_mut_ptr(), 1, &timeout as *const Timespec, 0, 8);
    told.is_ok() && set[0].revents == g::POLLOUT as i16
}

/// A counter that one thread adds to and another polls.
pub fn eventfd() -> Result<Fd> {
    call!(__NR_eventfd2, 0, g::EFD_NONBLOCK | g::EFD_CLOEXEC).map(Fd::own)
}

/// Makes a file in memory that has no name in any directory.
pub fn memfd(name: &CStr) -> Result<Fd> {
    call!(__NR_memfd_create, name.as_ptr(), g::MFD_CLOEXEC).map(Fd::own)
}

/// Sets a file's size.
pub fn ftruncate(fd: &Fd, bytes: usize) -> Result<()> {
    call!(__NR_ftruncate, fd.0, bytes).map(drop)
}

/// Closes all descriptors of the calling file table.
pub fn close_all() {
    let _ = call!(__NR_close_range, 0, u32::MAX, 0);
}

/// A descriptor that becomes readable when process `pid` ends.
pub fn pidfd_open(pid: u32) -> Result<Fd> {
    call!(__NR_pidfd_open, pid, 0).map(Fd::own)
}

/// Sends a signal through a pidfd.
pub fn pidfd_send_signal(fd: &Fd, signal: u32) -> Result<()> {
    call!(__NR_pidfd_send_signal, fd.0, signal, 0, 0).map(drop)
}

/// A duplicate of another process's descriptor.
pub fn pidfd_getfd(fd: &Fd, theirs: u32) -> Result<Fd> {
    call!(__NR_pidfd_getfd, fd.0, theirs, 0).map(Fd::own)
}
