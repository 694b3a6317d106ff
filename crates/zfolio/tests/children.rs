//! What the children of a program have that keeps memory out of them (MADV_DONTFORK), and lets them have it
//! (MADV_DOFORK), while the engine keeps out of them what it has registered.
//!
//! Most tests run `tests/c/children.c`; what comes beside other memory has programs of its own. They need the right to
//! userfaultfd, as `zfolio doctor` does.

mod compile;

use compile::compile;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The test program.
fn children() -> PathBuf {
    compile("children")
}

/// Its status, and what is said on stdout and stderr, under zfolio with these options or, without any, alone.
fn run(options: &[&str], arguments: &[&str]) -> (Option<i32>, String, String) {
    run_program(&children(), options, arguments)
}

fn run_program(program: &Path, options: &[&str], arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut words = vec!["timeout", "-k", "5", "120"];
    if !options.is_empty() {
        words.extend([env!("CARGO_BIN_EXE_zfolio"), "run", "--quiet"]);
        words.extend(options);
        words.push("--");
    }
    words.push(program.to_str().unwrap());
    words.extend(arguments);
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The engine is awake from the start.
const EVICT_ALL: &[&str] = &["--evict-all", "--memory", "64M"];

/// It awakes, and makes its workers, as the program grows.
const GROWS: &[&str] = &["--memory", "32M"];

#[test]
fn children_have_what_the_program_lets_them_have_whenever_it_says_so() {
    let alone = run(&[], &["48"]);
    assert_eq!((alone.0, alone.1.lines().last()), (Some(0), Some("right")), "{alone:?}");
    assert_eq!(run(EVICT_ALL, &["8"]), alone);
    // That a clone of the engine's own waits for the engine is a matter of milliseconds.
    for _ in 0..8 {
        assert_eq!(run(GROWS, &["48"]), alone);
    }
}

/// While the engine has memory registered the kernel is not told that children are to have it: a copy that passes no
/// hook would read zeros where pages are out.
#[test]
fn what_children_are_to_have_a_copy_past_libc_does_not_find_empty() {
    for options in [EVICT_ALL, GROWS] {
        let (status, out, err) = run(options, &["40", "copy"]);
        assert_eq!((status, out.lines().last()), (Some(0), Some("a copy past libc: killed")), "{err}");
        assert_eq!(err.matches("has made a copy of itself past libc").count(), 1, "{err}");
    }
}

/// What was kept out, and is gone, is not what a mapping grows by.
#[test]
fn children_have_what_a_mapping_has_grown_by_in_the_place_of_one_that_was_kept_out() {
    let (status, out, err) = run_program(&compile("grown"), EVICT_ALL, &[]);
    assert_eq!((status, &*out, &*err), (Some(0), "the child's status is 0\n", ""));
}

/// What is never managed may come to a place of which the engine registers all in that moment.
#[test]
fn children_have_shared_memory_that_was_mapped_beside_what_is_being_registered() {
    let arrivals = compile("arrivals");
    for _ in 0..3 {
        let (status, out, err) = run_program(&arrivals, EVICT_ALL, &["3"]);
        assert_eq!((status, &*out), (Some(0), "0 kept out, the child's status is 0\n"), "{err}");
    }
}

/// And so may what is not registered yet. It must come within microseconds: without `leave_strangers` a run of six
/// seconds is mostly right all the same.
#[test]
fn children_have_private_memory_that_was_mapped_beside_what_is_being_registered() {
    let strangers = compile("strangers");
    for _ in 0..3 {
        let (status, out, err) = run_program(&strangers, EVICT_ALL, &["6"]);
        assert_eq!((status, &*out, &*err), (Some(0), "the child's status is 0\n", ""));
    }
}
