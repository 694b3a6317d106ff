//! Error numbers.

use core::fmt;
use linux_raw_sys::errno;

/// An error number of the kernel: below 4096.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub u16);

macro_rules! names {
    ($($name:ident)*) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($name), "`.")] pub const $name: Errno = Errno(errno::$name as u16);)*

            /// The name, as in errno(3); "an unknown error" for those that zfolio never meets.
            pub fn name(self) -> &'static str {
                match self { $(Errno::$name => stringify!($name),)* _ => "an unknown error" }
            }
        }
    };
}
names!(EPERM ENOENT ESRCH EINTR EIO E2BIG EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST EINVAL ENOSYS ENOTTY ENXIO EMFILE ETIMEDOUT EOPNOTSUPP ECHILD ENOSPC);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (errno {})", self.name(), self.0)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a system call returns.
pub type Result<T> = core::result::Result<T, Errno>;
