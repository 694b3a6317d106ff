//! userfaultfd, typed, and what else an engine inside a foreign process asks the kernel for.
//!
//! Nothing here goes through libc: no errno, no thread-local storage, no lock, no allocation. Every call returns
//! what the kernel returned.
//!
//! ```text
//!   Userfault  register, move, copy, zeropage, wake, poison, next message     (userfault.rs)
//!   touches    which pages are touched, where the kernel tells that           (touches.rs)
//!   Pagemap    which pages of a range are present                             (pagemap.rs)
//!   Maps       the mapping at or after an address                             (maps.rs)
//!   smaps      the text of maps and smaps, piece by piece                     (smaps.rs)
//!   kinds      why memory of a mapping cannot go out                          (kinds.rs)
//!   Memory     the memory of a process, for another one                       (memory.rs)
//!   vdso       the clock without a system call                                (vdso.rs)
//!   sites      where libc makes its system calls                              (sites.rs)
//!   loader     which loader will start a file                                 (loader.rs)
//!   file       what is behind a descriptor                                    (file.rs)
//!   socket     descriptors that come from another process                     (socket.rs)
//! ```

#![cfg_attr(not(test), no_std)]

pub mod file;
pub mod kinds;
pub mod loader;
pub mod maps;
mod memory;
pub mod pagemap;
pub mod sites;
pub mod smaps;
pub mod socket;
pub mod touches;
mod userfault;
pub mod vdso;

#[cfg(test)]
#[path = "../../zfolio/tests/skip/mod.rs"]
mod skip;

pub use base::{Advice, Errno, Fd, Mutex, PAGE, lock, sys};
pub use memory::Memory;
pub use userfault::{Features, MOVE, Message, Moved, REGISTER, Userfault};
