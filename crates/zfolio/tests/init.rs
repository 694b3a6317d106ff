//! A process to which orphans come (the first of a PID namespace, or a subreaper) and that waits until it has no child
//! left does not wait for engines, its own or others', and is told of none. Each test runs `tests/c/init.c`; most take
//! root.

mod compile;
mod skip;

use compile::compile;
use skip::skip;
use std::path::PathBuf;
use std::process::{Command, Output};

/// The test program.
fn program() -> PathBuf {
    compile("init")
}

fn run(memory: &str, place: &str, way: &str) -> Output {
    Command::new("timeout")
        .args(["-k", "5", "60", env!("CARGO_BIN_EXE_zfolio"), "run", "--memory", memory, "--"])
        .arg(program())
        .args([place, way])
        .output()
        .unwrap()
}

fn comes_to_its_end(place: &str, ways: &[&str]) {
    for way in ways {
        let output = run("24M", place, way);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if out == "skipped\n" {
            return skip(&format!("{place}: no namespace may be made here"));
        }
        assert_eq!((output.status.code(), &*out), (Some(0), "no child left\n"), "{place} {way}: {err}");
    }
}

#[test]
fn the_first_process_of_a_namespace_waits_for_no_engine() {
    comes_to_its_end("own", &["wait", "waitid", "syscall", "all", "poll", "signal", "threads"]);
}

/// Numbers are others in /proc: no engine is recognised by its number there, and no child of the program's is taken for
/// one.
#[test]
fn where_proc_is_another_namespaces_it_waits_for_no_engine_either() {
    comes_to_its_end("foreign", &["wait", "waitid", "syscall", "all", "poll", "signal", "threads"]);
}

#[test]
fn a_subreaper_waits_for_no_engine() {
    comes_to_its_end("subreaper", &["wait", "waitid", "syscall", "all", "poll", "signal", "threads"]);
}

/// The engine of the program before goes, though nothing of it can be seen in /proc, and the new one is not taken for
/// managed.
#[test]
fn from_whom_the_library_is_hidden_is_told_so() {
    let output = run("300M", "hidden", "exec");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if out == "skipped\n" {
        return skip("no namespace may be made here");
    }
    assert_eq!((output.status.code(), &*out), (Some(0), "no child left\n"), "{err}");
    let said = err.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains(": /dev/shm, where the library is, is hidden from it"), "{err}");
}
