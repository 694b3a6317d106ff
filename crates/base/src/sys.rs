//! Raw system calls of x86-64 Linux. Each function is the call of its name, and says of each call why it may be made:
//!
//! - what the kernel writes is a reference or a slice of the caller's;
//! - an address that the kernel only reads may be any: it says EFAULT where nothing is;
//! - a call that can change or lose memory that is not its own argument is `unsafe`, and so the caller's to answer for.

#[macro_use]
mod call;

mod clock;
pub mod consts;
mod data_file;
mod errno;
mod fd;
mod file;
mod futex;
mod limits;
mod lock;
mod memory;
mod process;
mod sched;
mod signal;

pub use call::syscall;
pub use clock::{clock, now_ns, process_cpu_ns, set_clock, sleep_ns};
pub use data_file::DataFile;
pub use errno::{Errno, Result};
pub use fd::*;
pub use file::*;
pub use futex::*;
pub use limits::*;
pub use lock::*;
pub use memory::*;
pub use process::*;
pub use sched::*;
pub use signal::*;
