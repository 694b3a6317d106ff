//! Programs whose memory passes no hook of the library's, since they map it by system calls of their own: they get an
//! engine from outside, by ptrace, and cannot tell.
//!
//! Each test runs `tests/c/past_libc.c`. They need the right to userfaultfd, as `zfolio doctor` does.

mod compile;
mod skip;

use compile::{compile, compile_with};
use serde_json::Value;
use skip::skip;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");
const MIB: u64 = 1 << 20;

/// The test program.
fn program() -> PathBuf {
    compile("past_libc")
}

/// True where an ancestor may trace.
fn may_trace() -> bool {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let may = !matches!(scope.trim(), "2" | "3");
    if !may {
        skip("no process may be traced here");
    }
    may
}

/// Runs it, and sees that it finds nothing wrong; what zfolio said, and its figures.
fn is_right(limit: &str, arguments: &[&str]) -> (String, Value) {
    let json = program().with_extension(format!("{}.json", arguments[0]));
    let Output { status, stdout, stderr } = Command::new("timeout")
        .args(["-k", "5", "120", ZFOLIO, "run", "--memory", limit, "--json"])
        .arg(&json)
        .arg("--")
        .arg(program())
        .args(arguments)
        .output()
        .unwrap();
    let figures = fs::read_to_string(&json).unwrap_or_default();
    let _ = fs::remove_file(json);
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr).into_owned());
    assert_eq!((status.code(), &*out), (Some(0), "right\n"), "{arguments:?}: {err}");
    (err, serde_json::from_str(&figures).unwrap())
}

#[test]
fn what_is_mapped_past_libc_keeps_the_limit() {
    if !may_trace() {
        return;
    }
    let (said, figures) = is_right("64M", &["grow", "160"]);
    assert_eq!((&figures["tree"]["managed"], &figures["tree"]["unmanaged"]), (&1.into(), &0.into()));
    let peak = figures["memory"]["peak_bytes"].as_u64().unwrap();
    assert!(peak <= 70 * MIB, "{} MiB of 64: {said}", peak / MIB);
}

/// The limit is large, so that nothing has to go out and only the moment counts when an engine is started.
/// It is grown before the library's own addresses are there.
#[test]
fn who_is_still_being_loaded_gets_its_engine_afterwards() {
    if !may_trace() {
        return;
    }
    let library = compile_with("relocated", &["-shared", "-fPIC"]);
    let json = library.with_extension("json");
    let Output { status, stderr, .. } = Command::new(ZFOLIO)
        .args(["run", "--memory", "64M", "--json"])
        .arg(&json)
        .args(["--", "env", &format!("LD_PRELOAD={}", library.display()), "sleep", "1"])
        .output()
        .unwrap();
    let (figures, err) = (fs::read_to_string(&json).unwrap(), String::from_utf8_lossy(&stderr));
    fs::remove_file(json).unwrap();
    fs::remove_file(library).unwrap();
    assert_eq!(status.code(), Some(0), "{err}");
    let figures: Value = serde_json::from_str(&figures).unwrap();
    assert_eq!((&figures["tree"]["managed"], &figures["tree"]["unmanaged"]), (&1.into(), &0.into()), "{err}");
}

#[test]
fn no_system_call_says_that_it_was_interrupted() {
    if !may_trace() {
        return;
    }
    is_right("256M", &["calls"]);
}

#[test]
fn registers_and_memory_are_as_they_were_at_whatever_instruction() {
    if !may_trace() {
        return;
    }
    let (_, figures) = is_right("64M", &["anywhere", "20"]);
    assert_eq!(figures["tree"]["unmanaged"], 0);
}

#[test]
fn every_signal_that_comes_meanwhile_is_delivered() {
    if !may_trace() {
        return;
    }
    is_right("64M", &["storm"]);
}

#[test]
fn a_parent_is_told_of_no_stop() {
    if !may_trace() {
        return;
    }
    is_right("64M", &["watched"]);
}

#[test]
fn a_parent_that_waits_in_vfork_gets_its_engine_when_it_goes_on() {
    if !may_trace() {
        return;
    }
    is_right("64M", &["vfork"]);
}

#[test]
fn who_is_traced_by_another_program_is_left_alone_and_said_to_be() {
    if !may_trace() {
        return;
    }
    let (said, figures) = is_right("64M", &["traced"]);
    let unmanaged = figures["unmanaged"].as_array().unwrap();
    let reason = unmanaged.first().and_then(|group| group["reason"].as_str()).unwrap_or_default();
    let program = program();
    let tracer = program.file_name().unwrap().to_str().unwrap();
    assert_eq!((unmanaged.len(), &figures["tree"]["unmanaged"]), (1, &1.into()), "{said}");
    assert!(reason.starts_with("maps memory by system calls of its own, and "), "{reason}");
    // The kernel keeps 15 characters of a name.
    assert!(reason.contains(&tracer[..tracer.len().min(15)]) && reason.ends_with("traces it"), "{reason}");
}

/// True while a child of this process is traced.
fn is_traced(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
}

/// Whoever is being given an engine when its run is killed goes on by itself. The moment is short, and so it is tried
/// until it was met a few times.
#[test]
fn a_run_that_is_killed_meanwhile_leaves_the_program_as_it_was() {
    if !may_trace() {
        return;
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut met = 0;
    while met < 3 && Instant::now() < deadline {
        let mut run = Command::new(ZFOLIO)
            .args(["run", "--quiet", "--memory", "64M", "--"])
            .arg(program())
            .arg("abandoned")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(run.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "begun\n");
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.id())).unwrap();
        let child = children.split_whitespace().next().expect("the program runs");
        let began = Instant::now();
        while !is_traced(child) && began.elapsed() < Duration::from_millis(500) {}
        met += is_traced(child) as u32;
        run.kill().unwrap();
        run.wait().unwrap();
        line.clear();
        out.read_to_string(&mut line).unwrap();
        assert_eq!(line, "right\n");
    }
    assert!(met > 0, "the run was never killed at the moment that counts");
}
