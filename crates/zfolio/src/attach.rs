//! Starts an engine in a process from outside: one of its threads is made to call a function of libzfolio.so
//! (interpose/src/attach.rs), by ptrace.
//!
//! ```text
//!   seize, interrupt ──> Stopping ── its stop: save, set ──> Running ── says Done, interrupt ──> Ending ── its stop: restore, let go
//!                           └─ too late, or not now ──> let go as soon as it stops <── too long ──┘
//! ```
//!
//! Nothing is waited for here: stops come with the ends of children (supervise.rs), and what the thread says is looked
//! at in between. The tracer is `zfolio run`'s only thread, since Yama lets ancestors trace and nobody else, and since
//! the kernel tells stops of a traced child to any thread that waits for children.
//!
//! The program cannot tell: no signal is sent, its parent is told of no stop, and none of its system calls fails. One
//! that was interrupted is made again by the kernel, with the time that is left of it; those that say EINTR whoever
//! interrupts them (epoll_wait, semtimedop, sigtimedwait, sockets with a timeout) begin their time anew. A thread that
//! waits in a call which would say how far it has come is left alone, since that would show. One that is about to wait
//! in it cannot be told from any that runs.

mod registers;
mod threads;

use crate::causes::Cause;
use crate::elf::{self, Symbol};
use crate::library::LIBRARY;
use crate::ptrace::{self, EVENT_STOP, Registers, Tracee};
use crate::sys::Pid;
use registers::{CODE_64, STACK_64, entering, forget_time, make_again, own_return};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use threads::{has_pending, is_in_sequence, threads};

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
const NO_PAGE: u32 = 4;

/// All signals but SIGKILL and SIGSTOP.
const ALL: u64 = !(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1));

/// What became of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is an engine, or it is known in the process that there will be none.
    Settled,
    /// It could not be now.
    Later,
    /// It cannot be: why, the words as the end of a sentence.
    Refused(Cause, String),
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
        Ok(match outcome {
            SETTLED => Outcome::Settled,
            NO_PAGE => no_page(self.pid),
            _ => Outcome::Later,
        })
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

/// Why the library cannot map the run's page.
fn no_page(pid: u32) -> Outcome {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    let most = limits.lines().find_map(|line| line.strip_prefix("Max address space"));
    let (cause, why) = match most.is_some_and(|most| !most.trim_start().starts_with("unlimited")) {
        true => (Cause::Addresses, "its limit of addresses (ulimit -v) leaves no room for the run's page"),
        false => (Cause::Engine, "it cannot map the run's page"),
    };
    Outcome::Refused(cause, why.to_string())
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
    Outcome::Refused(Cause::Engine, format!("maps memory by system calls of its own, and {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_limit_of_addresses_is_only_blamed_where_there_is_one() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "ulimit -v 1000000; exec sleep 100"])
            .spawn()
            .unwrap();
        let cause = |pid| match no_page(pid) {
            Outcome::Refused(cause, _) => cause,
            other => panic!("{other:?}"),
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while cause(child.id()) != Cause::Addresses {
            assert!(Instant::now() < deadline, "the shell has set its limit by now");
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(cause(child.id()), Cause::Engine, "it has ended");
    }

    #[test]
    fn who_is_traced_by_another_says_by_whom() {
        let error = io::Error::from_raw_os_error(libc::EPERM);
        let Outcome::Refused(Cause::Engine, why) = refusal(std::process::id(), &error) else {
            panic!("it is for good")
        };
        assert!(why.starts_with("maps memory by system calls of its own, and "), "{why}");
        assert_eq!(refusal(1, &io::Error::from_raw_os_error(libc::ESRCH)), Outcome::Later);
    }
}
