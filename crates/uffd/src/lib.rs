//! userfaultfd, typed, and the few raw system calls that an engine inside a foreign process makes.
//!
//! Nothing here goes through libc: no errno, no thread-local storage, no lock, no allocation. Every call returns
//! what the kernel returned.
//!
//! ```text
//!   Userfault  register, move, copy, zeropage, wake, poison, next message     (uffd.rs)
//!   Pagemap    which pages of a range are present                             (pagemap.rs)
//!   Maps       the mapping at or after an address                             (maps.rs)
//!   kinds      why memory of a mapping cannot go out                          (kinds.rs)
//!   sys        mmap, madvise, futex, clone, ... as functions                  (sys.rs)
//!   Memory     the memory of a process, for another one                       (memory.rs)
//!   vdso       the clock without a system call                                 (vdso.rs)
//!   sites      where libc makes its system calls                               (sites.rs)
//!   loader     which loader will start a file                                  (loader.rs)
//!   file       what is behind a descriptor                                (file.rs)
//!   socket     descriptors that come from another process                     (socket.rs)
//!   Mutex      a lock on a futex, for memory that no program's thread sees    (lock.rs)
//! ```

#![cfg_attr(not(test), no_std)]

pub mod file;
pub mod kinds;
pub mod loader;
pub mod lock;
pub mod maps;
mod memory;
pub mod pagemap;
pub mod sites;
pub mod socket;
pub mod sys;
mod userfault;
pub mod vdso;

pub use lock::Mutex;
pub use memory::Memory;
pub use sys::{Errno, Fd};
pub use userfault::{Features, MOVE, Message, Moved, REGISTER, Userfault};

/// Bytes of a base page: 4 KiB on the only architecture so far, x86-64.
pub const PAGE: usize = 4096;
