//! What the engine does to a program that it manages, and what the program and its user see when something fails.
//!
//! Each test runs `tests/c/hold.c`, which fills memory, lets it leave, does one thing, and checks every word. They need
//! the right to userfaultfd, as `zfolio doctor` does.

mod compile;
mod skip;
mod slow;

use compile::compile;
use skip::skip;
use slow::without_slowness;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The longest that a run may take before it counts as hung.
const HANG: Duration = Duration::from_secs(60);

/// The test program.
fn hold() -> PathBuf {
    compile("hold")
}

fn start(options: &[&str], what: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_zfolio"))
        .args(["run", "--quiet"])
        .args(options)
        .arg("--")
        .arg(hold())
        .args(what)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for the end; a run that hangs is killed, and fails the test.
fn end(mut child: Child) -> Output {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > HANG {
            let _ = child.kill();
            panic!("the run hangs");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

fn run(options: &[&str], what: &[&str]) -> (Option<i32>, String, String) {
    let output = end(start(options, what));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert_eq!(output.status.signal(), None, "zfolio itself was killed");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn signal(pid: i32, number: i32) {
    // SAFETY: a signal to a process of this test.
    assert_eq!(unsafe { libc::kill(pid, number) }, 0);
}

/// The engine of a run: a child of `zfolio run`.
fn engine_of(zfolio: u32) -> i32 {
    child_of(zfolio, "(zfolio-engine)")
}

/// The first child of this name.
fn child_of(parent: u32, name: &str) -> i32 {
    let deadline = Instant::now() + HANG;
    while Instant::now() < deadline {
        if let Some(child) = children_of(parent, name).first() {
            return *child;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("there is no {name}");
}

/// The children of this name that there are.
fn children_of(parent: u32, name: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if stat.contains(name) && stat.split(' ').nth(3) == Some(&parent.to_string()) {
            found.push(entry.file_name().to_str().unwrap().parse().unwrap());
        }
    }
    found
}

/// A program that has filled its memory and waits for a word; its process id.
fn waiting(options: &[&str], what: &[&str]) -> (Child, BufReader<std::process::ChildStdout>, i32) {
    let mut child = start(options, what);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let pid = line.trim().strip_prefix("ready ").expect(&line).parse().unwrap();
    (child, out, pid)
}

const EVICT_ALL: &[&str] = &["--evict-all", "--memory", "64M"];

fn is_right(options: &[&str], what: &[&str]) {
    let began = Instant::now();
    let (status, out, err) = run(options, what);
    let err = without_slowness(&err, began);
    assert_eq!((status, &*out, &*err), (Some(0), "right\n", ""), "{options:?} {what:?}");
}

#[test]
fn memory_that_left_is_read_as_it_was() {
    is_right(EVICT_ALL, &["verify"]);
    is_right(&["--memory", "48M"], &["verify", "96"]);
}

#[test]
fn a_damaged_object_stops_the_program_by_sigbus_and_is_named() {
    let (status, out, err) = run(&["--evict-all", "--memory", "64M", "--damage", "100"], &["verify"]);
    assert_eq!((status, out.as_str()), (Some(128 + 7), ""), "never zeros, never anything else: {err}");
    for part in ["the page at 0x", "cannot be restored", "object of", "bytes, stored", "ms ago"] {
        assert!(err.contains(part), "{part:?} is missing in: {err}");
    }
}

#[test]
fn a_limit_full_of_noise_warns_once_and_then_stops_the_program() {
    let (status, out, err) = run(&["--memory", "32M", "--full-timeout-ms", "2000"], &["noise", "64"]);
    assert_eq!((status, out.as_str()), (Some(128 + 9), ""), "{err}");
    assert_eq!(err.matches("warning: the limit is full").count(), 1, "{err}");
    assert!(err.contains("the limit of 32 MiB is full and nothing more can go out"), "{err}");
}

#[test]
fn memory_that_the_program_gives_to_its_own_userfaultfd_is_home() {
    is_right(EVICT_ALL, &["userfault"]);
    is_right(&["--memory", "48M"], &["userfault", "96"]);
}

#[test]
fn what_is_lent_to_a_pipe_is_read_as_it_was() {
    is_right(EVICT_ALL, &["lend"]);
    is_right(&["--memory", "48M"], &["lend", "96"]);
}

#[test]
fn memory_is_still_there_for_the_last_thread_when_the_main_thread_has_ended() {
    is_right(EVICT_ALL, &["last"]);
    is_right(&["--memory", "48M"], &["last", "96"]);
}

/// What was registered before it was locked.
#[test]
fn a_locked_mapping_stays_one_mapping_as_it_moves_and_grows() {
    // SAFETY: it only asks.
    if unsafe { libc::geteuid() } != 0 {
        return skip("to lock 4 MiB takes root");
    }
    is_right(EVICT_ALL, &["locked", "4"]);
}

/// Kills a process of the engine's while the program waits, and lets the program go on.
fn is_loud(victim: impl FnOnce(i32) -> i32, message: &str) {
    let (mut child, mut out, _) = waiting(EVICT_ALL, &["turns"]);
    signal(victim(engine_of(child.id())), libc::SIGKILL);
    let _ = child.stdin.take().unwrap().write_all(b"go\n");
    let output = end(child);
    let mut said = String::new();
    out.read_to_string(&mut said).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.as_str()), (Some(128 + 9), ""), "{err}");
    assert!(err.contains(message), "{err}");
}

#[test]
fn a_killed_engine_stops_the_program_loudly() {
    is_loud(|engine| engine, "the engine has died");
}

/// It heeds no signal that comes from inside of its PID namespace, where its engine and workers are.
#[test]
fn a_killed_engine_stops_the_first_process_of_a_pid_namespace_too() {
    let within = ["unshare", "--pid", "--fork", "--mount-proc"];
    let may = Command::new(within[0]).args(&within[1..]).arg("true").status();
    if !may.is_ok_and(|status| status.success()) {
        return skip("a PID namespace is not to be had here");
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_zfolio"))
        .args(["run", "--quiet"])
        .args(EVICT_ALL)
        .arg("--")
        .args(within)
        .arg(hold())
        .arg("turns")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready 1\n");
    let program = child_of(child_of(child.id(), "(unshare)") as u32, "(hold-");
    // That of the process before it executed the program may still be there.
    for engine in children_of(program as u32, "(zfolio-engine)") {
        signal(engine, libc::SIGKILL);
    }
    let _ = child.stdin.take().unwrap().write_all(b"go\n");
    let output = end(child);
    let mut said = String::new();
    out.read_to_string(&mut said).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    // unshare(1) ends as it likes when its child was killed.
    assert!(!output.status.success() && said.is_empty(), "{said} {err}");
    assert!(err.contains("the engine has died"), "{err}");
}

#[test]
fn a_killed_worker_stops_the_program_loudly() {
    is_loud(|engine| child_of(engine as u32, "(zfolio-worker)"), "a worker has died");
}

#[test]
fn a_stopped_program_goes_on_where_it_was() {
    let (mut child, mut out, pid) = waiting(EVICT_ALL, &["turns"]);
    for _ in 0..3 {
        signal(pid, libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(200));
        signal(pid, libc::SIGCONT);
        // A stop of the program stops zfolio too, as a job.
        signal(child.id() as i32, libc::SIGCONT);
    }
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let output = end(child);
    let mut said = String::new();
    out.read_to_string(&mut said).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.as_str(), err.as_str()), (Some(0), "right\n", ""));
}

/// The engine does not get a processor while the program maps and fills twice as much as there is room for.
/// A program that holds `mib` of 96 MiB, and whose engine is then stopped, comes to map and fill twice as much.
fn burst(mib: &str, is_awake: bool) {
    let (mut child, mut out, pid) = waiting(&["--memory", "96M"], &["burst", mib]);
    let engine = engine_of(child.id());
    if is_awake {
        // It is as soon as there are workers.
        child_of(engine as u32, "(zfolio-worker)");
    }
    signal(engine, libc::SIGSTOP);
    assert_eq!(children_of(engine as u32, "(zfolio-worker)").is_empty(), !is_awake);
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    signal(engine, libc::SIGCONT);
    assert!(pages < 96 << 20 >> 12, "{} MiB", pages >> 8);
    let output = end(child);
    let mut said = String::new();
    out.read_to_string(&mut said).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.as_str(), err.as_str()), (Some(0), "right\n", ""));
}

#[test]
fn what_is_mapped_while_the_engine_cannot_look_waits_for_it() {
    burst("64", true);
}

#[test]
fn what_is_mapped_while_the_engine_sleeps_waits_until_it_has_looked() {
    burst("40", false);
}

#[test]
fn children_of_fork_have_all_of_it() {
    is_right(EVICT_ALL, &["fork"]);
    is_right(&["--memory", "96M"], &["fork", "48"]);
}

#[test]
fn a_program_that_execs_itself_is_managed_again() {
    is_right(EVICT_ALL, &["exec", "48"]);
}

#[test]
fn a_daemon_keeps_its_memory() {
    let (mut child, mut out) = (start(EVICT_ALL, &["daemon"]), String::new());
    // The daemon holds the pipe until it has verified.
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(out, "right\n");
    assert_eq!(end(child).status.code(), Some(0));
}
