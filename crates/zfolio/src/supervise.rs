//! The life of CMD: started, its signals passed on, its descendants reaped, its end waited for.
//!
//! CMD stays in zfolio's process group, so that the terminal treats both as one job: Ctrl-C, Ctrl-Z and a resize reach
//! CMD from the terminal itself. What is sent to zfolio alone is passed on.

use crate::descendants::{ENGINE, Tree};
use crate::sys::{self, Change, Inherited, Pid, Reaped, Signal};
use memcg::{Memcg, Slot, State};
use std::ffi::CString;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// How often the shared page is looked at, at least.
const TICK: Duration = Duration::from_millis(100);
/// How long the engines of processes that have ended may take to hand in their figures.
const LAST_FIGURES: Duration = Duration::from_secs(2);
/// How long they may take to end after that: the memory of their programs goes with them.
const LAST_MEMORY: Duration = Duration::from_secs(10);

/// How CMD ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its exit status, or 128 and the number of the signal that killed it.
    pub status: u8,
    /// Descendants of it are alive.
    pub descendants: bool,
    /// Processes whose engine did not end with them, and was killed. That is a bug of the engine.
    pub stuck: Vec<u32>,
}

/// Who follows the run while it goes on.
pub trait Watcher {
    /// Called when CMD has been started. Before, this process must have one thread.
    fn started(&mut self);

    /// Called every 100 ms, whenever a signal came, and after each [`pause`](Watcher::pause).
    fn tick(&mut self);

    /// How long it is until it has something to do.
    fn pause(&self) -> Duration;

    /// Called for a child or a traced thread that has stopped, with its status; true where that was the watcher's own
    /// doing.
    fn has_stopped(&mut self, tid: Pid, status: i32) -> bool;

    /// Called for a child or a traced thread that has ended.
    fn has_ended(&mut self, tid: Pid);

    /// Called before zfolio stops, because CMD was stopped.
    fn stops(&mut self);

    /// Called for a child, other than CMD, that was killed: an engine, or an orphan of CMD's.
    fn killed(&mut self, pid: Pid);

    /// Called when it goes on.
    fn continues(&mut self);
}

/// Runs a program to its end.
pub fn run(
    program: &Path,
    arguments: &[CString],
    environment: &[CString],
    inherited: &Inherited,
    memcg: &Memcg,
    watcher: &mut impl Watcher,
) -> io::Result<Ended> {
    sys::become_subreaper();
    let cmd = sys::spawn(program, arguments, environment, inherited)?;
    watcher.started();
    let end = loop {
        match sys::next_signal(watcher.pause().min(TICK)) {
            Some(Signal { number: libc::SIGCHLD, .. }) | None => {}
            Some(signal) => pass_on(signal, cmd),
        }
        // Engines have no exit signal, so that children are asked for at every tick, not only after SIGCHLD.
        if let Some(end) = reap_until(cmd, watcher) {
            break end;
        }
        watcher.tick();
    };
    let stuck = wait_for_figures(memcg, watcher);
    let descendants = wait_for_engines(watcher);
    let status = match end {
        Change::Killed(signal) => 128 + signal as u8,
        Change::Exited(status) => status,
        Change::Stopped(_) => unreachable!("a stop is no end"),
    };
    Ok(Ended { status, descendants, stuck })
}

/// Sends CMD what was sent to zfolio.
fn pass_on(signal: Signal, cmd: Pid) {
    match signal.number {
        // Sent to the group, by a shell's `fg` for instance, it has continued CMD already.
        libc::SIGCONT if process_state(cmd) != Some('T') => {}
        // Those that the terminal gives to the whole group.
        libc::SIGINT
        | libc::SIGQUIT
        | libc::SIGTSTP
        | libc::SIGTTIN
        | libc::SIGTTOU
        | libc::SIGHUP
        | libc::SIGWINCH
            if !signal.sent => {}
        // Ours: a write to a pipe or a file that takes no more.
        libc::SIGPIPE | libc::SIGXFSZ if !signal.sent => {}
        number => sys::kill(cmd, number),
    }
}

/// Asks about any child, and about any thread that is traced; the watcher sees to its own.
fn reap(watcher: &mut impl Watcher) -> Reaped {
    loop {
        match sys::reap() {
            Reaped::Child(tid, Change::Stopped(status)) if watcher.has_stopped(tid, status) => {}
            Reaped::Child(tid, change @ (Change::Exited(_) | Change::Killed(_))) => {
                watcher.has_ended(tid);
                return Reaped::Child(tid, change);
            }
            other => return other,
        }
    }
}

/// Reaps every child that has ended, and tells of those that were killed; returns CMD's end when it was among them.
/// Stops with CMD, so that a shell sees the job stopped.
fn reap_until(cmd: Pid, watcher: &mut impl Watcher) -> Option<Change> {
    let mut end = None;
    loop {
        match reap(watcher) {
            Reaped::Child(pid, Change::Stopped(_)) if pid == cmd => {
                watcher.stops();
                sys::stop();
                watcher.continues();
                // Continued: those who meant zfolio alone meant CMD.
                if process_state(cmd) == Some('T') {
                    sys::kill(cmd, libc::SIGCONT);
                }
            }
            Reaped::Child(pid, change) if pid == cmd => end = Some(change),
            Reaped::Child(pid, Change::Killed(_)) => watcher.killed(pid),
            Reaped::Child(..) => {}
            Reaped::Living | Reaped::None => return end,
        }
    }
}

/// Waits until each engine whose process has ended is through with its figures. One that is too slow is killed, since
/// nobody else will: returns the process ids that they were for. Daemons are not waited for.
fn wait_for_figures(memcg: &Memcg, watcher: &mut impl Watcher) -> Vec<u32> {
    let deadline = Instant::now() + LAST_FIGURES;
    let mut pause = Duration::from_micros(200);
    loop {
        reap_all(watcher);
        let waiting: Vec<&Slot> = memcg.used().iter().filter(|slot| hands_in_figures(slot)).collect();
        if waiting.is_empty() || Instant::now() > deadline {
            return waiting
                .into_iter()
                .filter(|slot| end_engine(slot))
                .map(|slot| slot.pid.load(Relaxed))
                .collect();
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Waits until no engine is left of a process that has ended: an engine is the last to have its memory. Returns true
/// when descendants of CMD live on.
fn wait_for_engines(watcher: &mut impl Watcher) -> bool {
    let deadline = Instant::now() + LAST_MEMORY;
    let mut pause = Duration::from_micros(200);
    let mut tree = Tree::new(std::process::id());
    while reap_all(watcher) {
        tree.look(Instant::now());
        if !tree.processes.is_empty() || Instant::now() > deadline {
            return true;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
    false
}

/// Reaps every child that has ended, and tells of those that were killed; returns true when there are others.
fn reap_all(watcher: &mut impl Watcher) -> bool {
    loop {
        match reap(watcher) {
            Reaped::Child(pid, Change::Killed(_)) => watcher.killed(pid),
            Reaped::Child(..) => {}
            Reaped::Living => return true,
            Reaped::None => return false,
        }
    }
}

/// Kills a slot's engine with its workers. The page can be written by any process of the run, which may have fewer
/// rights than this one: only a child of ours that calls itself an engine and leads a process group of its own is
/// believed to be one.
fn end_engine(slot: &Slot) -> bool {
    let engine = slot.engine_pid.load(Acquire) as Pid;
    let ours = process(engine)
        .is_some_and(|p| p.parent == std::process::id() && p.group == engine && p.name == ENGINE.as_bytes());
    if ours {
        sys::kill(engine, libc::SIGKILL);
        sys::kill(-engine, libc::SIGKILL);
    }
    ours
}

/// True for a slot whose process is gone and whose engine is not.
fn hands_in_figures(slot: &Slot) -> bool {
    let state = slot.state.load(Acquire);
    let (pid, engine) = (slot.pid.load(Acquire), slot.engine_pid.load(Acquire));
    ![State::Free, State::Unmanaged, State::Ended].map(|state| state as u32).contains(&state)
        && engine != 0
        && !alive(pid)
        && alive(engine)
}

/// True when a process runs, or sleeps: a zombie does neither. One that /proc hides from this user is taken for alive.
pub fn alive(pid: u32) -> bool {
    match process_state(pid as Pid) {
        Some(state) => !matches!(state, 'Z' | 'X'),
        None => sys::exists(pid as Pid),
    }
}

fn process_state(pid: Pid) -> Option<char> {
    process(pid).map(|process| process.state)
}

/// What /proc/PID/stat says first.
struct Process {
    name: Vec<u8>,
    state: char,
    parent: u32,
    group: Pid,
}

fn process(pid: Pid) -> Option<Process> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name comes before, and may hold anything, parentheses and blanks included.
    let (open, close) = (stat.iter().position(|&b| b == b'(')?, stat.iter().rposition(|&b| b == b')')?);
    let name = stat.get(open + 1..close)?.to_vec();
    let mut fields = stat[close + 1..].split(|&b| b == b' ').skip(1);
    let state = *fields.next()?.first()? as char;
    let parent = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let group = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    Some(Process { name, state, parent, group })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    /// Any process of the run can write any number to its slot.
    #[test]
    fn only_an_engine_is_ended_as_one() {
        // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
        let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
        memcg.init(1 << 30, memcg::Settings::default());
        let slot = memcg.claim(1).unwrap();
        let mut child = std::process::Command::new("sleep").arg("100").process_group(0).spawn().unwrap();
        for number in [0, 1, 2, child.id(), -1i32 as u32, -(child.id() as i32) as u32, std::process::id()] {
            slot.engine_pid.store(number, Relaxed);
            assert!(!end_engine(slot), "{number}");
        }
        assert!(alive(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn states_of_processes() {
        let own = std::process::id();
        assert!(alive(own));
        assert!(!alive(0) && !alive(u32::MAX / 2));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while process_state(child.id() as Pid) != Some('Z') && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!alive(child.id()), "a zombie is not alive");
        assert_eq!(process(child.id() as Pid).unwrap().parent, own);
        child.wait().unwrap();
    }
}
