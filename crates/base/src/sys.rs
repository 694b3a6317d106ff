//! Raw system calls of x86-64 Linux. Each function is the call of its name; pointers are checked by the kernel, and what
//! a call may do to the caller's memory is the caller's to know, hence `unsafe` where memory can change.

#[macro_use]
mod call;

mod clock;
pub mod consts;
mod errno;
mod fd;
mod file;
mod futex;
mod limits;
mod memory;
mod process;
mod sched;
mod signal;

pub use call::syscall;
pub use clock::{clock, now_ns, process_cpu_ns, set_clock, sleep_ns};
pub use errno::{Errno, Result};
pub use fd::*;
pub use file::*;
pub use futex::*;
pub use limits::*;
pub use memory::*;
pub use process::*;
pub use sched::*;
pub use signal::*;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_their_names() {
        assert_eq!(open(b"/no/such/file\0", 0).unwrap_err().to_string(), "ENOENT (errno 2)");
    }

    #[test]
    fn a_directory_is_read_to_its_end() {
        let dir = open(b"/proc/self/task\0", consts::O_DIRECTORY).unwrap();
        let mut names = Vec::new();
        read_dir(&dir, |name| names.push(String::from_utf8(name.to_vec()).unwrap())).unwrap();
        assert!(names.contains(&gettid().unwrap().to_string()), "{names:?}");
    }

    #[test]
    fn peek_reads_memory_and_refuses_holes() {
        let value = 0x1234_5678u32.to_le_bytes();
        let mut got = [0; 4];
        let pid = getpid().unwrap() as u32;
        assert_eq!(peek(pid, value.as_ptr() as usize, &mut got), Ok(4));
        assert_eq!(got, value);
        assert_eq!(peek(pid, 16, &mut got), Err(Errno::EFAULT));
    }
}
