//! Which thread of a process can be made to call a function.

use crate::ptrace::{self, Tracee};
use crate::sys::Pid;
use std::fs;

/// Calls that say how much they have written, sent, received or done when they are interrupted; those that receive do
/// where all is asked for ([`is_partial`]).
const PARTIAL: [i64; 13] = [
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_vmsplice,
    libc::SYS_io_uring_enter,
];

/// True where a thread is in a restartable sequence: the kernel ends one when it goes on elsewhere meanwhile, and it
/// would not notice.
pub(super) fn is_in_sequence(tracee: Tracee, rip: u64) -> bool {
    /// `rseq_cs` in `struct rseq`.
    const SEQUENCE: u64 = 8;
    let abi = tracee.rseq();
    if abi == 0 {
        return false;
    }
    let sequence = ptrace::read::<8>(tracee.0, abi + SEQUENCE).map(u64::from_le_bytes);
    match sequence {
        Ok(0) => false,
        // `struct rseq_cs`: version, flags, start, length, where it is ended.
        Ok(at) => ptrace::read::<24>(tracee.0, at).is_ok_and(|words| {
            let word = |at: usize| u64::from_le_bytes(words[at..at + 8].try_into().expect("eight bytes"));
            rip.wrapping_sub(word(8)) < word(16)
        }),
        Err(_) => true,
    }
}

/// True where a signal is about to be delivered to a thread, by what it blocks in the system call that it is in.
pub(super) fn has_pending(pid: u32, tid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
    };
    (set("SigPnd:") | set("ShdPnd:")) & !set("SigBlk:") != 0
}

/// Threads of a process that may stop at once: those that run before those that wait.
pub(super) fn threads(pid: u32) -> Vec<u32> {
    /// So many are looked at.
    const MOST: usize = 64;
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let tids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).take(MOST);
    let state = |tid: u32| {
        let stat = fs::read(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
        let close = stat.iter().rposition(|&byte| byte == b')')?;
        stat.get(close + 2).copied()
    };
    let mut threads: Vec<(bool, u32)> = tids
        .filter_map(|tid| match state(tid)? {
            b'R' => Some((false, tid)),
            b'S' if !is_partial(pid, tid) => Some((true, tid)),
            _ => None,
        })
        .collect();
    threads.sort_unstable();
    threads.into_iter().map(|(_, tid)| tid).collect()
}

/// True where a thread waits in a call of [`PARTIAL`].
fn is_partial(pid: u32, tid: u32) -> bool {
    /// recv waits for all that was asked for.
    const ALL_OR_NONE: u64 = libc::MSG_WAITALL as u64;
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
    let mut words = text.split_ascii_whitespace();
    let Some(call) = words.next().and_then(|number| number.parse::<i64>().ok()) else { return false };
    let argument = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or(0);
    let arguments: Vec<u64> = words.map(argument).collect();
    let flags = |index: usize| arguments.get(index).is_some_and(|flags| flags & ALL_OR_NONE != 0);
    match call {
        libc::SYS_recvfrom => flags(3),
        libc::SYS_recvmsg => flags(2),
        call => PARTIAL.contains(&call),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn threads_that_run_come_first() {
        let own = std::process::id();
        let (send, receive) = std::sync::mpsc::channel::<()>();
        let waits = std::thread::spawn(move || receive.recv());
        std::thread::sleep(Duration::from_millis(20));
        let listed = threads(own);
        // SAFETY: touches no memory.
        let this = unsafe { libc::gettid() } as u32;
        assert!(listed.len() >= 2 && listed.contains(&this));
        drop(send);
        let _ = waits.join();
    }
}
