//! What becomes of a program that a limit squeezes so that it gets on by waiting for memory: it is told why, or stopped
//! with the reason.
//!
//! Each test runs `tests/c/crawl.c`. They need the right to userfaultfd, as `zfolio doctor` does.

mod compile;
mod skip;

use compile::compile;
use skip::skip;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest that a run may take before it counts as hung.
const HANG: Duration = Duration::from_secs(240);

/// The line of a program that waits for most of its time.
const CRAWLS: &str = "has waited for memory for";

fn program() -> PathBuf {
    compile("crawl")
}

fn start(options: &[&str], what: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_zfolio"))
        .args(["run", "--quiet"])
        .args(options)
        .arg("--")
        .arg(program())
        .args(what)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for the end, with stdin open; a run that hangs is killed, and fails the test. Its status, and what it wrote to
/// stdout and stderr.
fn end(mut child: Child) -> (Option<i32>, String, String) {
    let (stdin, began) = (child.stdin.take(), Instant::now());
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > HANG {
            let _ = child.kill();
            panic!("the run hangs");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

const KILLED: Option<i32> = Some(128 + libc::SIGKILL);

fn can_manage() -> bool {
    let can = Command::new(env!("CARGO_BIN_EXE_zfolio")).arg("doctor").output().unwrap().status.success();
    if !can {
        skip("this machine has no right to userfaultfd");
    }
    can
}

#[test]
fn thousands_of_mappings_that_fit_are_right() {
    if can_manage() {
        assert_eq!(
            end(start(&["--memory", "128M"], &["small", "12000"])),
            (Some(0), "right\n".into(), String::new())
        );
    }
}

/// They are done before anybody can say, or are stopped with the reason: they do not hang.
#[test]
fn thousands_of_mappings_that_do_not_fit_are_stopped_with_the_reason() {
    if !can_manage() {
        return;
    }
    let (status, out, err) = end(start(&["--memory", "32M"], &["small", "25000"]));
    assert!(status == KILLED || (status, out.as_str()) == (Some(0), "right\n"), "{status:?} {out} {err}");
    if status == KILLED {
        assert!(
            err.contains("the limit of 32 MiB is full") && err.contains("mappings below 64 KiB"),
            "{err}"
        );
    }
}

#[test]
fn private_copies_of_a_file_beyond_the_limit_stop_the_program_with_the_files_name() {
    if !can_manage() {
        return;
    }
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("weights-{}.bin", std::process::id()));
    std::fs::write(&path, vec![b'a'; 48 << 20]).unwrap();
    let (status, _, err) = end(start(&["--memory", "32M"], &["copies", path.to_str().unwrap()]));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(status, KILLED, "{err}");
    let name = path.file_name().unwrap().to_str().unwrap();
    let cause = format!("48 MiB are private copies of pages of {name}");
    assert!(err.contains("the limit of 32 MiB is full") && err.contains(&cause), "{err}");
}

#[test]
fn a_crawl_is_told_once_and_the_program_goes_on() {
    if !can_manage() {
        return;
    }
    let mut child = start(&["--memory", "32M"], &["pages", "48"]);
    let (mut lines, mut err) = (BufReader::new(child.stderr.take().unwrap()).lines(), Vec::new());
    while !err.iter().any(|line: &String| line.contains(CRAWLS)) {
        err.push(lines.next().expect("it ends without having said so").unwrap());
    }
    // Two more windows, in which nothing is said.
    std::thread::sleep(Duration::from_secs(21));
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    err.extend(lines.map(|line| line.unwrap()));
    let (status, out, _) = end(child);
    assert_eq!((status, out.as_str()), (Some(0), "right\n"), "{err:?}");
    assert_eq!(err.iter().filter(|line| line.contains(CRAWLS)).count(), 1, "{err:?}");
    let line = err.iter().find(|line| line.contains(CRAWLS)).unwrap();
    assert!(line.starts_with("zfolio: warning: process ") && line.contains("may hold 32; "), "{line}");
    assert!(line.contains("what helps: more memory"), "{line}");
}

#[test]
fn who_would_rather_be_stopped_than_be_slow_is() {
    if !can_manage() {
        return;
    }
    let (status, out, err) = end(start(&["--memory", "32M", "--stop-when-slow", "3"], &["pages", "48"]));
    assert_eq!((status, out.as_str()), (KILLED, ""), "{err}");
    assert!(err.contains("was stopped (--stop-when-slow 3): it has waited for memory for"), "{err}");
}
