//! Starts an engine in a process from outside: one of its threads is made to call a function of libzfolio.so (interpose/src/attach.rs), by ptrace.
//!
//! ```text
//!   seize, interrupt ──> Stopping ── its stop: save, set ──> Running ── says Done, interrupt ──> Ending ── its stop: restore, let go
//!                           └─ too late, or not now ──> let go as soon as it stops <── too long ──┘
//! ```
//!
//! Nothing is waited for here: stops come with the ends of children (supervise.rs), and what the thread says is looked at in between. The tracer is `zfolio run`'s only
//! thread, since Yama lets ancestors trace and nobody else, and since the kernel tells stops of a traced child to any thread that waits for children.
//!
//! The program cannot tell: no signal is sent, its parent is told of no stop, and none of its system calls fails. One that was interrupted is made again by the kernel,
//! with the time that is left of it; those that say EINTR whoever interrupts them (epoll_wait, semtimedop, sigtimedwait, sockets with a timeout) begin their time anew.
//! A thread that waits in a call which would say how far it has come is left alone, since that would show. One that is about to wait in it cannot be told from any that runs.

use crate::elf::{self, Symbol};
use crate::ptrace::{self, EVENT_STOP, Registers, Tracee};
use crate::rundir::LIBRARY;
use crate::sys::Pid;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a thread may take to stop: one that has not by then waits for a page or a child of vfork.
const TO_STOP: Duration = Duration::from_millis(100);
/// How long it may be at it.
const TO_END: Duration = Duration::from_secs(2);

/// How often it is asked how far it is.
pub const STEP: Duration = Duration::from_micros(300);

/// What interpose/src/attach.rs says: its stages, and what came of it.
const RUNNING: u32 = 1;
const DONE: u32 = 2;
const SETTLED: u32 = 1;

/// The kernel's, which no program sees: a call that was interrupted is to be made again, if no handler is called before, or whatever its flags; and with what is left of its time.
const ERESTARTSYS: i64 = -512;
const ERESTARTNOINTR: i64 = -513;
const ERESTARTNOHAND: i64 = -514;
const ERESTART_RESTARTBLOCK: i64 = -516;

/// Calls that say how much they have written, sent, received or done when they are interrupted; those that receive do where all is asked for ([`is_partial`]).
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

/// Selectors of 64-bit code and its stack.
const CODE_64: u64 = 0x33;
const STACK_64: u64 = 0x2b;

/// The flags that code of ours begins with: interrupts on, and nothing else.
const FLAGS: u64 = 0x202;

/// All signals but SIGKILL and SIGSTOP.
const ALL: u64 = !(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1));

/// What became of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is an engine, or it is known in the process that there will be none.
    Settled,
    /// It could not be now.
    Later,
    /// It cannot be: why, as the end of a sentence.
    Refused(String),
}

/// Where the function and what belongs to it lie in the library.
struct Library {
    entry: Symbol,
    attachment: Symbol,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Stopping,
    Running,
    Ending,
}

/// What a thread is to have again.
struct Before {
    registers: Registers,
    xstate: Vec<u8>,
    mask: u64,
}

struct Attempt {
    pid: u32,
    tracee: Tracee,
    since: Instant,
    stage: Stage,
    /// Where the library is.
    base: u64,
    before: Option<Before>,
    /// Its process was being stopped meanwhile, which interrupts what the library waits for.
    was_stopped: bool,
}

/// One attempt after the other.
pub struct Attacher {
    path: PathBuf,
    library: Option<Library>,
    attempt: Option<Attempt>,
    /// Who is let go as soon as he stops.
    leaving: Vec<Tracee>,
    outcome: Option<(u32, Outcome)>,
}

impl Attacher {
    /// `path` is that of the run's libzfolio.so.
    pub fn new(path: PathBuf) -> Attacher {
        Attacher { path, library: None, attempt: None, leaving: Vec::new(), outcome: None }
    }

    /// True while an attempt is under way, or its outcome was not asked for.
    pub fn is_busy(&self) -> bool {
        self.attempt.is_some() || self.outcome.is_some()
    }

    /// Begins an attempt, by another thread each time.
    pub fn begin(&mut self, pid: u32, number: usize) {
        if let Err(outcome) = self.try_begin(pid, number) {
            self.outcome = Some((pid, outcome));
        }
    }

    fn try_begin(&mut self, pid: u32, number: usize) -> Result<(), Outcome> {
        if self.library.is_none() {
            let symbol = |name| elf::symbol(LIBRARY, name).ok_or(Outcome::Later);
            self.library =
                Some(Library { entry: symbol("zfolio_attach")?, attachment: symbol("zfolio_attachment")? });
        }
        let maps = fs::read(format!("/proc/{pid}/maps")).map_err(|_| Outcome::Later)?;
        let base = base_of(&maps, self.path.as_os_str().as_encoded_bytes()).ok_or(Outcome::Later)?;
        let threads = threads(pid);
        let tid = *threads.get(number % threads.len().max(1)).ok_or(Outcome::Later)? as Pid;
        if self.leaving.contains(&Tracee(tid)) {
            return Err(Outcome::Later);
        }
        let tracee = Tracee::seize(tid).map_err(|error| refusal(pid, &error))?;
        let (since, stage) = (Instant::now(), Stage::Stopping);
        self.attempt = Some(Attempt { pid, tracee, since, stage, base, before: None, was_stopped: false });
        Ok(())
    }

    /// A child or traced thread has been stopped, and this is its status; false where that is none of ours.
    pub fn stopped(&mut self, tid: Pid, status: i32) -> bool {
        let (tracee, signal, event) = (Tracee(tid), status >> 8 & 0xff, status >> 16);
        if let Some(at) = self.leaving.iter().position(|leaving| *leaving == tracee) {
            self.leaving.swap_remove(at);
            let _ = tracee.detach(if event == 0 { signal } else { 0 });
            return true;
        }
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.tracee == tracee) else {
            return false;
        };
        let library = self.library.as_ref().expect("known before the first attempt");
        let done = match (attempt.stage, event) {
            // A signal: it is delivered as ever, and the stop that was asked for comes next.
            (_, 0) => tracee.go_on(signal).map(|()| None),
            (Stage::Stopping, EVENT_STOP) if signal == libc::SIGTRAP => match attempt.launch(library) {
                Ok(true) => Ok(None),
                Ok(false) => tracee.detach(0).map(|()| Some(Outcome::Later)),
                Err(error) => Err(error),
            },
            // The process is being stopped, and does not grow.
            (Stage::Stopping, _) => tracee.detach(0).map(|()| Some(Outcome::Later)),
            // The kernel stops it when it is let go of.
            (Stage::Running, _) => {
                attempt.was_stopped = true;
                tracee.go_on(0).map(|()| None)
            }
            (Stage::Ending, _) => attempt.finish(library).map(Some),
        };
        // A thread that cannot be asked any more has been killed.
        let outcome = done.unwrap_or_else(|_| {
            let _ = tracee.detach(0);
            Some(Outcome::Later)
        });
        if let Some(outcome) = outcome {
            self.end(outcome);
        }
        true
    }

    fn end(&mut self, outcome: Outcome) {
        self.outcome = self.attempt.take().map(|attempt| (attempt.pid, outcome));
    }

    /// A child or traced thread has ended.
    pub fn ended(&mut self, tid: Pid) {
        self.leaving.retain(|leaving| leaving.0 != tid);
        if self.attempt.as_ref().is_some_and(|attempt| attempt.tracee.0 == tid) {
            self.end(Outcome::Later);
        }
    }

    /// Goes on with the attempt under way; what came of one that has ended, and of which process.
    pub fn step(&mut self, now: Instant) -> Option<(u32, Outcome)> {
        if let Some(attempt) = &mut self.attempt {
            let (tracee, waited) = (attempt.tracee, now.saturating_duration_since(attempt.since));
            let library = self.library.as_ref().expect("known before the first attempt");
            let is_late = match attempt.stage {
                Stage::Stopping => waited > TO_STOP,
                Stage::Running => {
                    let stage = attempt.said(library).map_or(RUNNING, |(stage, _)| stage);
                    if stage == DONE && tracee.interrupt().is_ok() {
                        attempt.stage = Stage::Ending;
                    }
                    waited > TO_END
                }
                Stage::Ending => waited > 2 * TO_END,
            };
            let is_gone = !fs::exists(format!("/proc/{}/task/{}", attempt.pid, tracee.0)).unwrap_or(true);
            if is_late || is_gone {
                // Where it is at it, it goes on by itself when nobody fetches it.
                let _ = tracee.interrupt();
                if !is_gone {
                    self.leaving.push(tracee);
                }
                self.end(Outcome::Later);
            }
        }
        self.outcome.take()
    }
}

impl Attempt {
    fn at(&self, symbol: &Symbol) -> u64 {
        self.base + symbol.at
    }

    /// What the library says: its stage, and what came of it.
    fn said(&self, library: &Library) -> io::Result<(u32, u32)> {
        let words = ptrace::read::<8>(self.tracee.0, self.at(&library.attachment))?;
        let word = |at: usize| u32::from_le_bytes(words[at..at + 4].try_into().expect("four bytes"));
        Ok((word(0), word(4)))
    }

    /// It has stopped: has it call the function. False where it must not, as it stands.
    fn launch(&mut self, library: &Library) -> io::Result<bool> {
        let tracee = self.tracee;
        let mut registers = tracee.registers()?;
        let mask = tracee.signal_mask()?;
        let is_ours = || -> io::Result<bool> {
            Ok(ptrace::read::<32>(tracee.0, self.at(&library.entry))?[..] == library.entry.bytes[..32])
        };
        let is_fit = registers.cs == CODE_64 && registers.ss == STACK_64 && mask & ALL != ALL;
        if !is_fit || !is_ours()? || is_in_sequence(tracee, registers.rip) {
            return Ok(false);
        }
        if !make_again(&mut registers, || has_pending(self.pid, tracee.0)) {
            return Ok(false);
        }
        let before = Before { registers, xstate: tracee.xstate()?, mask };
        let top = self.at(&library.attachment) + library.attachment.size;
        let frame = own_return(&registers);
        let at = top - frame.len() as u64;
        let head = [(RUNNING as u64).to_le_bytes(), mask.to_le_bytes()].concat();
        // SAFETY: the library's own page and stack for this (interpose/src/attach.rs), which nobody uses.
        unsafe {
            ptrace::write(tracee.0, self.at(&library.attachment), &head)?;
            ptrace::write(tracee.0, at, &frame)?;
        }
        let entering = entering(&registers, self.at(&library.entry), at);
        tracee.set_signal_mask(ALL)?;
        tracee.set_registers(&entering)?;
        tracee.go_on(0)?;
        (self.stage, self.before) = (Stage::Running, Some(before));
        Ok(true)
    }

    /// It has stopped again: gives it back what it had. Where it has gone on by itself it is left alone.
    fn finish(&mut self, library: &Library) -> io::Result<Outcome> {
        let (stage, outcome) = self.said(library)?;
        if let Some(mut before) = self.before.take().filter(|_| stage == DONE) {
            if self.was_stopped {
                forget_time(&mut before.registers);
            }
            self.tracee.set_xstate(&before.xstate)?;
            self.tracee.set_registers(&before.registers)?;
            self.tracee.set_signal_mask(before.mask)?;
        }
        self.tracee.detach(0)?;
        Ok(if outcome == SETTLED { Outcome::Settled } else { Outcome::Later })
    }
}

/// The system call that a thread was interrupted in; none where it was not in one.
fn interrupted(registers: &Registers) -> Option<u64> {
    (registers.orig_rax as i64 >= 0).then_some(registers.orig_rax)
}

/// Sees to it that a system call that the stop has ended is made again. False where a signal has come that it is to end by.
fn make_again(registers: &mut Registers, has_pending: impl FnOnce() -> bool) -> bool {
    let is_ended = registers.rax as i64 == -i64::from(libc::EINTR);
    match interrupted(registers) {
        // That has closed the descriptor, and another may have its number.
        Some(call) if is_ended && call as i64 != libc::SYS_close => {
            registers.rax = ERESTARTNOHAND as u64;
            !has_pending()
        }
        _ => true,
    }
}

/// A call that would go on with the time that is left begins anew, since the kernel may have forgotten that time.
fn forget_time(registers: &mut Registers) {
    if interrupted(registers).is_some() && registers.rax as i64 == ERESTART_RESTARTBLOCK {
        registers.rax = ERESTARTNOHAND as u64;
    }
}

/// What a thread goes on with that nobody fetches: as the kernel would have it, without a signal.
fn alone(registers: &Registers) -> Registers {
    let mut alone = *registers;
    if let Some(call) = interrupted(registers) {
        let again = match registers.rax as i64 {
            ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND => Some(call),
            ERESTART_RESTARTBLOCK => Some(libc::SYS_restart_syscall as u64),
            _ => None,
        };
        if let Some(again) = again {
            // A `syscall` has two bytes.
            (alone.rip, alone.rax) = (registers.rip - 2, again);
        }
    }
    alone
}

/// Where it then goes on, as iretq takes it.
fn own_return(registers: &Registers) -> Vec<u8> {
    let r = alone(registers);
    [r.rip, r.cs, r.eflags, r.rsp, r.ss].map(u64::to_le_bytes).concat()
}

/// The registers with which a thread enters the function; it is in no system call, and so none is made again meanwhile.
fn entering(registers: &Registers, entry: u64, stack: u64) -> Registers {
    let rax = alone(registers).rax;
    Registers { rip: entry, rsp: stack, rax, eflags: FLAGS, orig_rax: u64::MAX, ..*registers }
}

/// True where a thread is in a restartable sequence: the kernel ends one when it goes on elsewhere meanwhile, and it would not notice.
fn is_in_sequence(tracee: Tracee, rip: u64) -> bool {
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
fn has_pending(pid: u32, tid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
    };
    (set("SigPnd:") | set("ShdPnd:")) & !set("SigBlk:") != 0
}

/// Threads of a process that may stop at once: those that run before those that wait.
fn threads(pid: u32) -> Vec<u32> {
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

/// Where the beginning of a file is mapped.
fn base_of(maps: &[u8], path: &[u8]) -> Option<u64> {
    let line = maps.split(|&byte| byte == b'\n').find(|line| line.ends_with(path))?;
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_ascii_whitespace();
    let (range, offset) = (words.next()?, words.nth(1)?);
    let start = u64::from_str_radix(range.split_once('-')?.0, 16).ok()?;
    (u64::from_str_radix(offset, 16) == Ok(0)).then_some(start)
}

/// Why a process cannot be traced.
fn refusal(pid: u32, error: &io::Error) -> Outcome {
    const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
    if error.raw_os_error() != Some(libc::EPERM) {
        return Outcome::Later;
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).map_or("0", str::trim);
    let scope = fs::read_to_string(SCOPE).ok().and_then(|text| text.trim().parse::<u32>().ok());
    let why = match (tracer, scope) {
        ("0", Some(scope)) if scope > 1 => format!("kernel.yama.ptrace_scope is {scope}"),
        ("0", _) => "it must not be traced".to_string(),
        (tracer, _) => {
            let name = fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
            format!("{} ({tracer}) traces it", name.trim())
        }
    };
    Outcome::Refused(format!("maps memory by system calls of its own, and {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers(call: i64, rax: i64) -> Registers {
        // SAFETY: integers, for which all zeros is a value.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        (registers.orig_rax, registers.rax) = (call as u64, rax as u64);
        (registers.rip, registers.rsp, registers.cs, registers.ss) = (0x1002, 0x7000, CODE_64, STACK_64);
        registers
    }

    #[test]
    fn a_call_that_only_the_stop_has_ended_is_made_again() {
        let eintr = -i64::from(libc::EINTR);
        let again = |call, rax, pending| {
            let mut registers = registers(call, rax);
            (make_again(&mut registers, || pending), registers.rax as i64)
        };
        assert_eq!(again(libc::SYS_epoll_wait, eintr, false), (true, ERESTARTNOHAND));
        assert!(!again(libc::SYS_epoll_wait, eintr, true).0, "a signal has ended it");
        assert_eq!(again(libc::SYS_close, eintr, false), (true, eintr), "the descriptor is closed");
        assert_eq!(again(libc::SYS_read, ERESTARTSYS, true), (true, ERESTARTSYS), "the kernel decides");
        assert_eq!(again(-1, eintr, true), (true, eintr), "a number in a register, and no call");
        assert_eq!(again(libc::SYS_read, 17, true), (true, 17));
    }

    #[test]
    fn whoever_is_not_fetched_makes_its_call_again() {
        let alone = |call, rax| {
            let alone = alone(&registers(call, rax));
            (alone.rip, alone.rax as i64)
        };
        for restart in [ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND] {
            assert_eq!(alone(libc::SYS_read, restart), (0x1000, libc::SYS_read));
        }
        assert_eq!(alone(libc::SYS_nanosleep, ERESTART_RESTARTBLOCK), (0x1000, libc::SYS_restart_syscall));
        assert_eq!(alone(libc::SYS_read, 17), (0x1002, 17), "that call has ended");
        assert_eq!(alone(-1, ERESTARTSYS), (0x1002, ERESTARTSYS), "a number in a register, and no call");
        let entering = entering(&registers(libc::SYS_read, ERESTARTSYS), 0x5000, 0x6000);
        assert_eq!((entering.rip, entering.rsp, entering.rax), (0x5000, 0x6000, libc::SYS_read as u64));
        assert_eq!(entering.orig_rax as i64, -1, "no call is made again before the function has run");
    }

    #[test]
    fn time_that_may_be_forgotten_is_not_counted_on() {
        for (rax, then) in [(ERESTART_RESTARTBLOCK, ERESTARTNOHAND), (ERESTARTSYS, ERESTARTSYS), (3, 3)] {
            let mut registers = registers(libc::SYS_nanosleep, rax);
            forget_time(&mut registers);
            assert_eq!(registers.rax as i64, then);
        }
    }

    #[test]
    fn the_library_is_found_where_its_beginning_is_mapped() {
        let maps = b"7f01000-7f02000 r--p 00000000 0:1 5 /run/libother.so\n\
                     7f03000-7f04000 r-xp 00000000 0:1 6 /run/libzfolio.so\n\
                     7f04000-7f05000 rw-p 00001000 0:1 6 /run/libzfolio.so\n";
        assert_eq!(base_of(maps, b"/run/libzfolio.so"), Some(0x7f03000));
        assert_eq!(base_of(maps, b"/run/libnone.so"), None);
        assert_eq!(base_of(b"7f04000-7f05000 rw-p 00001000 0:1 6 /l.so", b"/l.so"), None);
    }

    #[test]
    fn the_embedded_library_has_the_function_and_its_stack() {
        let [entry, attachment] =
            ["zfolio_attach", "zfolio_attachment"].map(|name| elf::symbol(LIBRARY, name).unwrap());
        assert!(entry.bytes.len() >= 32 && entry.bytes.iter().any(|byte| *byte != 0));
        assert!(attachment.at % 4096 == 0 && attachment.size > 32 << 10);
        assert_eq!(attachment.size % 16, 0);
        assert!(elf::symbol(LIBRARY, "zfolio_nothing").is_none());
    }

    #[test]
    fn who_is_traced_by_another_says_by_whom() {
        let error = io::Error::from_raw_os_error(libc::EPERM);
        let Outcome::Refused(why) = refusal(std::process::id(), &error) else { panic!("it is for good") };
        assert!(why.starts_with("maps memory by system calls of its own, and "), "{why}");
        assert_eq!(refusal(1, &io::Error::from_raw_os_error(libc::ESRCH)), Outcome::Later);
    }

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
