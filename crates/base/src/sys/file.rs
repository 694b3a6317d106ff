//! Files and directories.

use super::{Fd, Result};
use linux_raw_sys::general as g;

/// The address of a path for the kernel, which reads it as far as its NUL.
fn terminated(path: &[u8]) -> *const u8 {
    assert!(path.last() == Some(&0), "a path for the kernel ends with NUL");
    path.as_ptr()
}

/// Opens `path`, which must end with NUL.
pub fn open(path: &[u8], flags: u32) -> Result<Fd> {
    open_at_address(terminated(path), flags)
}

/// As [`open`], with a path that is at `path`, or not: EFAULT.
pub fn open_at_address(path: *const u8, flags: u32) -> Result<Fd> {
    // SAFETY: the kernel reads at the address whatever it is, and says EFAULT where nothing can be read. It changes no
    // memory.
    unsafe { call!(__NR_openat, g::AT_FDCWD, path, flags | g::O_CLOEXEC, 0) }.map(Fd::own)
}

/// Opens `path`, which must end with NUL, from the directory `dir` on.
pub fn open_at(dir: &Fd, path: &[u8], flags: u32) -> Result<Fd> {
    // SAFETY: the kernel reads the path up to its NUL, which is there, and changes no memory.
    unsafe { call!(__NR_openat, dir.raw(), terminated(path), flags | g::O_CLOEXEC, 0) }.map(Fd::own)
}

/// How many links a file or directory has; `path` must end with NUL.
pub fn links(path: &[u8]) -> Result<usize> {
    // SAFETY: plain integers, of any value.
    let mut stat: g::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel reads the path up to its NUL, which is there, and writes the structure.
    unsafe { call!(__NR_stat, terminated(path), &raw mut stat) }?;
    Ok(stat.st_nlink as usize)
}

/// Where a symbolic link leads; the length. `path` must end with NUL.
pub fn readlink(path: &[u8], to: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel reads the path up to its NUL, which is there, and writes to the buffer, whose length it is
    // told.
    unsafe { call!(__NR_readlink, terminated(path), to.as_mut_ptr(), to.len()) }
}

/// True when the process's real user may read `path`, which must end with NUL.
pub fn may_read(path: &[u8]) -> bool {
    access(terminated(path), g::R_OK).is_ok()
}

/// Says why the process's real user may not execute the file at `path`, where a string with NUL is, or anything:
/// EFAULT.
pub fn may_execute(path: *const u8) -> Result<()> {
    access(path, g::X_OK)
}

fn access(path: *const u8, mode: u32) -> Result<()> {
    // The old call, which every loader makes: what lets a program be executed lets it through. SAFETY: the kernel reads
    // at the address whatever it is, and says EFAULT where nothing can be read. It changes no memory.
    unsafe { call!(__NR_access, path, mode) }.map(drop)
}

/// Reads.
pub fn read(fd: &Fd, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes to the buffer, whose length it is told.
    unsafe { call!(__NR_read, fd.raw(), buffer.as_mut_ptr(), buffer.len()) }
}

/// Reads at an offset.
pub fn pread(fd: &Fd, buffer: &mut [u8], offset: usize) -> Result<usize> {
    // SAFETY: the kernel writes to the buffer, whose length it is told.
    unsafe { call!(__NR_pread64, fd.raw(), buffer.as_mut_ptr(), buffer.len(), offset) }
}

/// Writes.
pub fn write(fd: &Fd, buffer: &[u8]) -> Result<usize> {
    // SAFETY: the kernel reads the buffer, whose length it is told. That a descriptor of /proc/PID/mem
    // writes to memory is beyond what types can hold, as it is for std.
    unsafe { call!(__NR_write, fd.raw(), buffer.as_ptr(), buffer.len()) }
}

/// Writes at an offset.
///
/// # Safety
/// In /proc/PID/mem: the memory must be the caller's to write.
pub unsafe fn pwrite(fd: &Fd, bytes: &[u8], offset: usize) -> Result<usize> {
    // SAFETY: the kernel reads the bytes, whose number it is told; what the file is has been the caller's to know.
    unsafe { call!(__NR_pwrite64, fd.raw(), bytes.as_ptr(), bytes.len(), offset) }
}

/// Sets a file's size.
pub fn ftruncate(fd: &Fd, bytes: usize) -> Result<()> {
    // SAFETY: no memory is anybody's by this but a shared mapping of the file, which is not Rust's own.
    unsafe { call!(__NR_ftruncate, fd.raw(), bytes) }.map(drop)
}

/// An ioctl whose argument is a structure.
///
/// # Safety
/// `arg` must be what `request` takes, and what the request does to memory must be the caller's to do.
pub unsafe fn ioctl<T>(fd: &Fd, request: u32, arg: &mut T) -> Result<usize> {
    // SAFETY: the caller's contract.
    unsafe { call!(__NR_ioctl, fd.raw(), request, arg as *mut T) }
}

/// Entries of a directory: calls `each` with every name.
pub fn read_dir(fd: &Fd, mut each: impl FnMut(&[u8])) -> Result<()> {
    rewind(fd)?;
    let mut buffer = [0u64; 512];
    loop {
        // SAFETY: the kernel writes to the buffer, whose length it is told.
        let got = unsafe { call!(__NR_getdents64, fd.raw(), buffer.as_mut_ptr(), size_of_val(&buffer)) }?;
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
    // SAFETY: where a descriptor stands is no memory.
    unsafe { call!(__NR_lseek, fd.raw(), 0, 0) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::{consts, gettid};
    use super::*;

    #[test]
    fn errors_have_their_names() {
        assert_eq!(open(b"/no/such/file\0", 0).unwrap_err().to_string(), "ENOENT (errno 2)");
    }

    #[test]
    fn a_path_is_read_where_it_is_and_nowhere_else() {
        let path = b"/proc/self/comm\0";
        assert!(open_at_address(path.as_ptr(), 0).is_ok());
        for nowhere in [core::ptr::null(), core::ptr::without_provenance(16)] {
            assert_eq!(open_at_address(nowhere, 0).err(), Some(super::super::Errno::EFAULT));
            assert_eq!(may_execute(nowhere), Err(super::super::Errno::EFAULT));
        }
    }

    #[test]
    fn a_directory_is_read_to_its_end() {
        let dir = open(b"/proc/self/task\0", consts::O_DIRECTORY).unwrap();
        let mut names = Vec::new();
        read_dir(&dir, |name| names.push(String::from_utf8(name.to_vec()).unwrap())).unwrap();
        assert!(names.contains(&gettid().unwrap().to_string()), "{names:?}");
    }
}
