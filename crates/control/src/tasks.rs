//! What the kernel tells of the program's threads, in /proc/PID/task.

use crate::line::Line;
use core::fmt::Write;
use uffd::sys::{self, consts::*};
use uffd::{Errno, Fd};

/// The file `stat` of a thread, from proc_pid_stat(5).
pub struct TaskStat {
    text: [u8; 512],
    len: usize,
}

impl TaskStat {
    /// Of a thread in `tasks`, an open /proc/PID/task; `None` when it is gone. An error says nothing of the thread.
    pub fn read(tasks: &Fd, tid: u32) -> Result<Option<TaskStat>, Errno> {
        let mut path = Line::default();
        let _ = write!(path, "{tid}/stat\0");
        let mut text = [0u8; 512];
        let read =
            sys::open_at(tasks, path.as_str().as_bytes(), O_RDONLY).and_then(|f| sys::read(&f, &mut text));
        match read {
            Ok(len) => Ok(Some(TaskStat { text, len })),
            Err(Errno::ENOENT | Errno::ESRCH) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Field number `number`, which is 3 (the state) or more.
    fn field(&self, number: usize) -> Option<&[u8]> {
        // The name in parentheses may hold anything: what follows the last one counts.
        let after = self.text[..self.len].iter().rposition(|&b| b == b')')? + 2;
        self.text[after..self.len].split(|&b| b == b' ').nth(number - 3)
    }

    /// The state letter.
    pub fn state(&self) -> Option<u8> {
        self.field(3)?.first().copied()
    }

    /// Such a field as a number.
    pub fn number(&self, number: usize) -> Option<u64> {
        Some(self.field(number)?.iter().fold(0, |n, d| n * 10 + d.wrapping_sub(b'0') as u64))
    }
}

/// True when /proc has this process by the number that it has itself: not in a PID namespace with another's /proc.
/// There its own number is another process's.
pub fn is_shown() -> bool {
    let mut name = [0; 16];
    let len = sys::readlink(b"/proc/self\0", &mut name).unwrap_or(0);
    parse_tid(&name[..len]).is_some_and(|pid| sys::getpid() == Ok(pid as usize))
}

/// A thread's number, from its name in /proc/PID/task.
pub fn parse_tid(name: &[u8]) -> Option<u32> {
    core::str::from_utf8(name).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_shown_by_its_own_number() {
        assert!(is_shown());
    }
}
