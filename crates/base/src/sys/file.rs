//! Files and directories.

use super::{Fd, Result};
use linux_raw_sys::general as g;

/// Opens `path`, which must end with NUL.
pub fn open(path: &[u8], flags: u32) -> Result<Fd> {
    assert!(path.last() == Some(&0), "a path for the kernel ends with NUL");
    call!(__NR_openat, g::AT_FDCWD, path.as_ptr(), flags | g::O_CLOEXEC, 0).map(Fd::own)
}

/// Opens `path`, which must end with NUL, from the directory `dir` on.
pub fn open_at(dir: &Fd, path: &[u8], flags: u32) -> Result<Fd> {
    assert!(path.last() == Some(&0), "a path for the kernel ends with NUL");
    call!(__NR_openat, dir.0, path.as_ptr(), flags | g::O_CLOEXEC, 0).map(Fd::own)
}

/// As [`open`], with a path that is at `path`, or not.
pub fn open_at_address(path: *const u8, flags: u32) -> Result<Fd> {
    call!(__NR_openat, g::AT_FDCWD, path, flags | g::O_CLOEXEC, 0).map(Fd::own)
}

/// How many links a file or directory has; `path` must end with NUL.
pub fn links(path: &[u8]) -> Result<usize> {
    assert!(path.last() == Some(&0), "a path for the kernel ends with NUL");
    // SAFETY: plain integers, of any value.
    let mut stat: g::stat = unsafe { core::mem::zeroed() };
    call!(__NR_stat, path.as_ptr(), &raw mut stat)?;
    Ok(stat.st_nlink as usize)
}

/// Where a symbolic link leads; the length. `path` must end with NUL.
pub fn readlink(path: &[u8], to: &mut [u8]) -> Result<usize> {
    assert!(path.last() == Some(&0), "a path for the kernel ends with NUL");
    call!(__NR_readlink, path.as_ptr(), to.as_mut_ptr(), to.len())
}

/// True when the process's real user may read `path`, which must end with NUL.
pub fn may_read(path: &[u8]) -> bool {
    assert!(path.last() == Some(&0), "a path for the kernel ends with NUL");
    // The old call, which every loader makes: what lets a program be executed lets it through.
    call!(__NR_access, path.as_ptr(), g::R_OK).is_ok()
}

/// Says why the process's real user may not execute the file at `path`, where a string with NUL is, or anything.
pub fn may_execute(path: *const u8) -> Result<()> {
    call!(__NR_access, path, g::X_OK).map(drop)
}

/// Reads.
pub fn read(fd: &Fd, buffer: &mut [u8]) -> Result<usize> {
    call!(__NR_read, fd.0, buffer.as_mut_ptr(), buffer.len())
}

/// Writes.
pub fn write(fd: &Fd, buffer: &[u8]) -> Result<usize> {
    call!(__NR_write, fd.0, buffer.as_ptr(), buffer.len())
}

/// Reads at an offset.
pub fn pread(fd: &Fd, buffer: &mut [u8], offset: usize) -> Result<usize> {
    call!(__NR_pread64, fd.0, buffer.as_mut_ptr(), buffer.len(), offset)
}

/// Writes at an offset.
///
/// # Safety
/// In /proc/PID/mem: the memory must be the caller's to write.
pub unsafe fn pwrite(fd: &Fd, bytes: &[u8], offset: usize) -> Result<usize> {
    call!(__NR_pwrite64, fd.0, bytes.as_ptr(), bytes.len(), offset)
}

/// An ioctl whose argument is a structure.
///
/// # Safety
/// `arg` must be what `request` takes, and what the request does to memory must be the caller's to do.
pub unsafe fn ioctl<T>(fd: &Fd, request: u32, arg: &mut T) -> Result<usize> {
    call!(__NR_ioctl, fd.0, request, arg as *mut T)
}

/// Entries of a directory: calls `each` with every name.
pub fn read_dir(fd: &Fd, mut each: impl FnMut(&[u8])) -> Result<()> {
    rewind(fd)?;
    let mut buffer = [0u64; 512];
    loop {
        let got = call!(__NR_getdents64, fd.0, buffer.as_mut_ptr(), size_of_val(&buffer))?;
        if got == 0 {
            return Ok(());
        }
        // SAFETY: the kernel filled `got` bytes of the buffer, which lives on.
        let bytes = unsafe { core::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), got) };
        let mut rest = bytes;
        // struct linux_dirent64: inode 8, offset 8, record length 2, type 1, name until NUL.
        while rest.len() > 19 {
            let len = u16::from_ne_bytes([rest[16], rest[17]]) as usize;
            let name = &rest[19..len];
            each(&name[..name.iter().position(|&b| b == 0).unwrap_or(name.len())]);
            rest = &rest[len..];
        }
    }
}

/// Goes back to the beginning of a file or directory.
fn rewind(fd: &Fd) -> Result<()> {
    call!(__NR_lseek, fd.0, 0, 0).map(drop)
}
