//! The owned descriptor, and what is made or waited for as one.

use super::Result;
use super::clock::timespec;
use core::ffi::CStr;
use linux_raw_sys::general as g;

/// An open file descriptor, closed when dropped.
#[derive(Debug)]
pub struct Fd(i32);

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
        // SAFETY: closing a descriptor changes no memory, and this one is the value's own.
        let _ = unsafe { call!(__NR_close, self.0) };
    }
}

/// Closes all descriptors of the calling file table.
pub fn close_all() {
    // SAFETY: closing descriptors changes no memory: what is mapped stays mapped.
    let _ = unsafe { call!(__NR_close_range, 0, u32::MAX, 0) };
}

/// Makes a file in memory that has no name in any directory.
pub fn memfd(name: &CStr) -> Result<Fd> {
    // SAFETY: the kernel reads the name up to its NUL, and changes no memory.
    unsafe { call!(__NR_memfd_create, name.as_ptr(), g::MFD_CLOEXEC) }.map(Fd::own)
}

/// A counter that one thread adds to and another polls.
pub fn eventfd() -> Result<Fd> {
    // SAFETY: a new descriptor changes no memory.
    unsafe { call!(__NR_eventfd2, 0, g::EFD_NONBLOCK | g::EFD_CLOEXEC) }.map(Fd::own)
}

/// Waits until one of `fds` can be read, at most `timeout_ns`; says which can.
pub fn poll<const N: usize>(fds: [&Fd; N], timeout_ns: u64) -> Result<[bool; N]> {
    let mut set = fds.map(|fd| g::pollfd { fd: fd.0, events: g::POLLIN as i16, revents: 0 });
    ppoll(&mut set, timeout_ns)?;
    Ok(set.map(|p| p.revents != 0))
}

/// True when `fd` takes something written to it now.
pub fn is_writable(fd: &Fd) -> bool {
    let mut set = [g::pollfd { fd: fd.0, events: g::POLLOUT as i16, revents: 0 }];
    ppoll(&mut set, 0).is_ok() && set[0].revents == g::POLLOUT as i16
}

fn ppoll(set: &mut [g::pollfd], timeout_ns: u64) -> Result<()> {
    let timeout = timespec(timeout_ns);
    // SAFETY: the kernel writes `revents` of the entries, whose number it is told, and reads the time; there is no
    // signal mask.
    unsafe { call!(__NR_ppoll, set.as_mut_ptr(), set.len(), &raw const timeout, 0, 8) }.map(drop)
}

/// A descriptor that becomes readable when process `pid` ends.
pub fn pidfd_open(pid: u32) -> Result<Fd> {
    // SAFETY: a new descriptor changes no memory.
    unsafe { call!(__NR_pidfd_open, pid, 0) }.map(Fd::own)
}

/// Sends a signal through a pidfd.
pub fn pidfd_send_signal(fd: &Fd, signal: u32) -> Result<()> {
    // SAFETY: the kernel reads no `siginfo_t`, since there is none, and changes no memory of the caller's.
    unsafe { call!(__NR_pidfd_send_signal, fd.0, signal, 0, 0) }.map(drop)
}

/// A duplicate of another process's descriptor.
pub fn pidfd_getfd(fd: &Fd, theirs: u32) -> Result<Fd> {
    // SAFETY: a new descriptor changes no memory.
    unsafe { call!(__NR_pidfd_getfd, fd.0, theirs, 0) }.map(Fd::own)
}
