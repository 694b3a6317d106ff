//! Locks on single bytes of a file, which need not be there. They belong to the open file description: to all processes
//! that have inherited it or were sent it. The kernel takes them away with its last descriptor, however that goes, and
//! shows them in all namespaces.

use super::{Errno, Fd, Result};
use linux_raw_sys::general as g;

/// Takes the lock of the byte at an offset without waiting: a shared one, for which `fd` must be readable, or one that
/// excludes all others, for which it must be writable. False where another description has one that excludes it. A lock
/// that `fd` has there already is changed to this.
pub fn lock_byte(fd: &Fd, at: u64, shared: bool) -> Result<bool> {
    let kind = if shared { g::F_RDLCK } else { g::F_WRLCK };
    match control(fd, g::F_OFD_SETLK, &mut byte(at, kind)) {
        Ok(()) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Gives the lock of a byte back, if `fd` has one.
pub fn unlock_byte(fd: &Fd, at: u64) -> Result<()> {
    control(fd, g::F_OFD_SETLK, &mut byte(at, g::F_UNLCK))
}

/// True where another description than that of `fd` has a lock of the byte, of either kind.
pub fn is_byte_locked(fd: &Fd, at: u64) -> Result<bool> {
    let mut lock = byte(at, g::F_WRLCK);
    control(fd, g::F_OFD_GETLK, &mut lock)?;
    Ok(lock.l_type as u32 != g::F_UNLCK)
}

fn byte(at: u64, kind: u32) -> g::flock {
    g::flock { l_type: kind as i16, l_whence: g::SEEK_SET as i16, l_start: at as i64, l_len: 1, l_pid: 0 }
}

fn control(fd: &Fd, command: u32, lock: &mut g::flock) -> Result<()> {
    // SAFETY: the kernel reads the structure, and writes it for F_OFD_GETLK; a lock is no memory.
    unsafe { call!(__NR_fcntl, fd.raw(), command, &raw mut *lock) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::{consts, memfd, open, syscall};
    use super::*;

    const AT: u64 = 1 << 40;

    /// A file by so many descriptions.
    fn descriptions<const N: usize>() -> [Fd; N] {
        let file = memfd(c"locks").unwrap();
        let path = format!("/proc/self/fd/{}\0", file.raw());
        core::array::from_fn(|_| open(path.as_bytes(), consts::O_RDWR).unwrap())
    }

    #[test]
    fn a_lock_is_one_descriptions_and_goes_with_it() {
        let [a, b] = descriptions();
        assert_eq!(is_byte_locked(&b, AT), Ok(false));
        assert_eq!(lock_byte(&a, AT, true), Ok(true));
        assert_eq!((is_byte_locked(&a, AT), is_byte_locked(&b, AT)), (Ok(false), Ok(true)));
        for other in [AT - 1, AT + 1, 0] {
            assert_eq!(is_byte_locked(&b, other), Ok(false), "{other}");
        }
        // SAFETY: a duplicate of a descriptor is no memory.
        let duplicate =
            unsafe { syscall(g::__NR_dup, [a.raw() as usize, 0, 0, 0, 0, 0]) }.map(Fd::own).unwrap();
        drop(a);
        assert_eq!(is_byte_locked(&b, AT), Ok(true), "another descriptor of the description is there");
        drop(duplicate);
        assert_eq!(is_byte_locked(&b, AT), Ok(false));
    }

    #[test]
    fn shared_locks_exclude_only_the_other_kind() {
        let [a, b, c] = descriptions();
        assert_eq!((lock_byte(&a, AT, true), lock_byte(&b, AT, true)), (Ok(true), Ok(true)));
        assert_eq!(lock_byte(&c, AT, false), Ok(false));
        unlock_byte(&a, AT).unwrap();
        assert_eq!((is_byte_locked(&c, AT), lock_byte(&c, AT, false)), (Ok(true), Ok(false)));
        unlock_byte(&b, AT).unwrap();
        assert_eq!((is_byte_locked(&c, AT), lock_byte(&c, AT, false)), (Ok(false), Ok(true)));
        assert_eq!((lock_byte(&a, AT, true), is_byte_locked(&a, AT)), (Ok(false), Ok(true)));
        unlock_byte(&a, AT).unwrap();
        assert_eq!(is_byte_locked(&a, AT), Ok(true), "what another has is not given back");
    }

    #[test]
    fn what_has_no_locks_is_an_error() {
        let dead = Fd::own(usize::MAX >> 1);
        assert_eq!(lock_byte(&dead, AT, true), Err(Errno::EBADF));
        assert_eq!(is_byte_locked(&dead, AT), Err(Errno::EBADF));
        let to_be_read = open(b"/dev/null\0", consts::O_RDONLY).unwrap();
        assert_eq!(lock_byte(&to_be_read, AT, false), Err(Errno::EBADF));
    }
}
