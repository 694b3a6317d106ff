//! Programs that make copies of themselves by other calls than fork: libc's clone with a stack, and clone, clone3 and
//! fork as system calls, with many a flag.
//!
//! Each test runs `tests/c/copies.c`, whose copies verify all that their parents had while another thread writes, and
//! make copies in turn. They need the right to userfaultfd, as `zfolio doctor` does.

mod compile;
mod skip;
mod slow;

use compile::compile;
use skip::skip;
use slow::without_slowness;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// The test program.
fn copies() -> PathBuf {
    compile("copies")
}

/// What the program says, and what is said on stderr, under zfolio with these options or, without any, alone.
fn run(options: &[&str], way: &str, mib: u32, rounds: u32) -> (Option<i32>, String, String) {
    let mut words = vec!["timeout", "-k", "5", "120"];
    if !options.is_empty() {
        words.extend([env!("CARGO_BIN_EXE_zfolio"), "run", "--quiet"]);
        words.extend(options);
        words.push("--");
    }
    let (program, mib, rounds) = (copies(), mib.to_string(), rounds.to_string());
    words.extend([program.to_str().unwrap(), way, &mib, &rounds]);
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

const EVICT_ALL: &[&str] = &["--evict-all", "--memory", "64M"];

/// Three generations in a limit for one and a half may have to wait for room, of which they are told.
const WAITS: &str = "zfolio: warning: the limit is full, and nothing more can go out: the program waits\n";

fn is_right(options: &[&str], way: &str, mib: u32, rounds: u32) {
    let began = Instant::now();
    let (status, out, err) = run(options, way, mib, rounds);
    let err = without_slowness(&err, began);
    let may_wait = options != EVICT_ALL;
    let err = if may_wait { err.replace(WAITS, "") } else { err };
    assert_eq!((status, out.as_str(), err.as_str()), (Some(0), "right\n", ""), "{options:?} {way}");
}

#[test]
fn copies_on_a_stack_of_their_own_have_all_of_it() {
    is_right(EVICT_ALL, "stack", 8, 20);
    is_right(&["--memory", "64M"], "stack", 40, 1);
}

#[test]
fn copies_by_a_system_call_have_all_of_it() {
    for way in ["raw", "clone3"] {
        is_right(EVICT_ALL, way, 8, 20);
        is_right(&["--memory", "64M"], way, 40, 1);
    }
    for way in ["rawfork", "rawstack", "clone3stack"] {
        is_right(EVICT_ALL, way, 8, 3);
    }
}

/// What the kernel writes for the program lies on pages that are out.
#[test]
fn parents_and_copies_are_told_what_they_ask_for() {
    for way in ["told", "pidfd"] {
        is_right(EVICT_ALL, way, 8, 3);
    }
}

#[test]
fn what_else_is_shared_or_not_changes_nothing() {
    for way in ["files", "vfork", "spaces", "user"] {
        if run(&[], way, 1, 1).1 == "right\n" {
            is_right(EVICT_ALL, way, 8, 3);
        } else {
            skip(&format!("{way}: it is not allowed here"));
        }
    }
}

/// Its engine would look at other processes' threads in /proc.
#[test]
fn copies_in_a_pid_namespace_have_all_of_it_and_run_without_a_limit() {
    if run(&[], "pid", 1, 1).1 != "right\n" {
        return skip("a PID namespace is not to be had here");
    }
    let (status, out, err) = run(EVICT_ALL, "pid", 8, 3);
    assert_eq!((status, out.as_str()), (Some(0), "right\n"), "{err}");
    assert!(err.contains("ran without a limit") && err.contains("PID namespace"), "{err}");
}

#[test]
fn a_copy_that_no_hook_sees_dies_and_the_user_is_told_why() {
    for options in [EVICT_ALL, &["--memory", "48M"]] {
        let (status, out, err) = run(options, "inline", if options == EVICT_ALL { 8 } else { 64 }, 1);
        assert_eq!((status, out.as_str()), (Some(96), "signal 11\nnot right\n"), "{err}");
        assert_eq!(err.matches("has made a copy of itself past libc").count(), 1, "{err}");
    }
}

/// A mapping that is moved while the engine goes through all of them, to let children have them, is not passed over.
#[test]
fn a_child_has_what_another_thread_moves_to_and_fro() {
    let program = compile("mover");
    let mut words = vec!["-k", "5", "120", env!("CARGO_BIN_EXE_zfolio"), "run", "--quiet"];
    words.extend(EVICT_ALL);
    words.extend(["--", program.to_str().unwrap(), "100"]);
    let output = Command::new("timeout").args(&words).output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*out, &*err), (Some(0), "right\n", ""), "{words:?}");
}
