//! What is behind a descriptor of the program's, which is its own to close.

use crate::sys::{Errno, Fd, Result, syscall};
use core::ffi::CStr;
use linux_raw_sys::general as g;

/// File systems that say how much memory there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// /proc.
    Proc,
    /// Control groups of version 1.
    Cgroup,
    /// Control groups of version 2.
    Cgroup2,
    /// One of a process's own: lxcfs, in containers, is mounted over single files of /proc.
    Fuse,
}

/// The file system of an open file; `None` for any other.
pub fn file_system(fd: i32) -> Option<FileSystem> {
    // SAFETY: plain integers, of any value.
    let mut told: g::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes the structure.
    unsafe { syscall(g::__NR_fstatfs, [fd as usize, &raw mut told as usize, 0, 0, 0, 0]) }.ok()?;
    match told.f_type as u32 {
        g::PROC_SUPER_MAGIC => Some(FileSystem::Proc),
        g::CGROUP_SUPER_MAGIC => Some(FileSystem::Cgroup),
        g::CGROUP2_SUPER_MAGIC => Some(FileSystem::Cgroup2),
        g::FUSE_SUPER_MAGIC => Some(FileSystem::Fuse),
        _ => None,
    }
}

/// The number of the mount that an open file was found in, as /proc/PID/mountinfo has it.
pub fn mount(fd: i32) -> Result<u64> {
    // SAFETY: plain integers, of any value.
    let mut told: g::statx = unsafe { core::mem::zeroed() };
    let (flags, mask) = (g::AT_EMPTY_PATH as usize, g::STATX_MNT_ID as usize);
    let arguments = [fd as usize, c"".as_ptr() as usize, flags, mask, &raw mut told as usize, 0];
    // SAFETY: the kernel writes the structure.
    unsafe { syscall(g::__NR_statx, arguments) }?;
    if told.stx_mask & g::STATX_MNT_ID == 0 { Err(Errno::EOPNOTSUPP) } else { Ok(told.stx_mnt_id) }
}

/// How a file was opened: the flags of open(2) that stay with it.
pub fn status_flags(fd: i32) -> Result<u32> {
    // SAFETY: changes nothing.
    unsafe { syscall(g::__NR_fcntl, [fd as usize, g::F_GETFL as usize, 0, 0, 0, 0]) }
        .map(|flags| flags as u32)
}

/// Reads an open file from an offset on, and leaves where it stands.
pub fn read_at(fd: i32, buffer: &mut [u8], offset: usize) -> Result<usize> {
    let arguments = [fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), offset, 0, 0];
    // SAFETY: the buffer is the caller's.
    unsafe { syscall(g::__NR_pread64, arguments) }
}

/// A new file in memory that has no name in any directory, and is nobody's to execute.
pub fn in_memory(name: &CStr) -> Result<Fd> {
    let flags = g::MFD_CLOEXEC | g::MFD_NOEXEC_SEAL;
    // SAFETY: the kernel reads the name.
    unsafe { syscall(g::__NR_memfd_create, [name.as_ptr() as usize, flags as usize, 0, 0, 0, 0]) }
        .map(Fd::own)
}

/// Puts another open file in the place of the one behind a descriptor, in one step. Whether the descriptor is closed by
/// exec stays as it was.
pub fn replace(fd: i32, with: &Fd) -> Result<()> {
    // SAFETY: changes nothing.
    let closes = unsafe { syscall(g::__NR_fcntl, [fd as usize, g::F_GETFD as usize, 0, 0, 0, 0]) }?;
    let flags = if closes & g::FD_CLOEXEC as usize != 0 { g::O_CLOEXEC } else { 0 };
    // SAFETY: the caller's descriptor, of which it says so.
    unsafe { syscall(g::__NR_dup3, [with.raw() as usize, fd as usize, flags as usize, 0, 0, 0]) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsRawFd;

    #[test]
    fn files_are_known_by_what_they_are() {
        let of = |path: &str| File::open(path).ok().and_then(|file| file_system(file.as_raw_fd()));
        assert_eq!(of("/proc/meminfo"), Some(FileSystem::Proc));
        assert_eq!(of("/"), None);
        assert_eq!(file_system(-1), None);
        let proc = File::open("/proc/meminfo").unwrap();
        let number = mount(proc.as_raw_fd()).unwrap();
        let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = mountinfo.lines().find(|line| line.starts_with(&format!("{number} "))).unwrap();
        assert!(line.contains(" /proc "), "{line}");
    }

    #[test]
    fn a_file_takes_the_place_of_another() {
        let mut file = File::open("/proc/meminfo").unwrap();
        let made = in_memory(c"made").unwrap();
        sys::write(&made, b"other words").unwrap();
        let path = format!("/proc/thread-self/fd/{}\0", made.raw());
        let again = sys::open(path.as_bytes(), g::O_RDONLY).unwrap();
        replace(file.as_raw_fd(), &again).unwrap();
        drop((made, again));
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "other words");
        file.rewind().unwrap();
        assert_eq!(read_at(file.as_raw_fd(), &mut [0; 5], 6), Ok(5));
        assert_eq!(status_flags(file.as_raw_fd()).unwrap() & 3, g::O_RDONLY);
        assert!(file.write_all(b"x").is_err(), "it is open to be read");
        // SAFETY: changes nothing.
        let closes = unsafe { sys::syscall(g::__NR_fcntl, [file.as_raw_fd() as usize, 1, 0, 0, 0, 0]) };
        assert_eq!(closes, Ok(1), "as std opened it");
    }
}
