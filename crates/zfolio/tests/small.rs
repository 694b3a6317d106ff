//! Small processes have no engine, and those that grow get one in time. Each case runs `tests/c/grow.c`, which says by
//! its exit status whether all that it wrote is there. They need the right to userfaultfd, as `zfolio doctor` does.

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

const ZFOLIO: &str = env!("CARGO_BIN_EXE_zfolio");

/// Half of what is too much for the limit, in pages. On a busy machine the limit itself is exceeded for a moment: so
/// small a one is full before the engine has looked twice.
const ENOUGH_PAGES: u64 = (16 << 20) / 4096;

fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("small-{name}-{}", std::process::id()))
}

/// The figures of a run of `command` with `options`, which must exit with 0.
fn figures(name: &str, options: &[&str], command: &[&str]) -> Value {
    let json = scratch(name).with_extension("json");
    let output = Command::new("timeout")
        .args(["-k", "5", "120", ZFOLIO, "run", "--quiet", "--json"])
        .arg(&json)
        .args(options)
        .arg("--")
        .args(command)
        .output()
        .unwrap();
    let text = fs::read_to_string(&json).unwrap_or_default();
    let _ = fs::remove_file(json);
    assert_eq!(output.status.code(), Some(0), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&text).unwrap()
}

/// Runs the test program, built with `flags`, in each of these ways, in 32 MiB; the engines that each had, and how many
/// pages went out.
fn grow(test: &str, flags: &[&str], ways: &[&str]) -> Vec<(u64, u64)> {
    grow_in("32M", test, flags, ways)
}

/// The same with another limit. What is small is so by the limit: up to 8 MiB, and 1 MiB where that is as small as
/// here.
fn grow_in(memory: &str, test: &str, flags: &[&str], ways: &[&str]) -> Vec<(u64, u64)> {
    let program = scratch(test);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/grow.c");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-Wall", "-pthread", "-o"]).arg(&program).args(flags).arg(source);
    assert!(gcc.status().expect("gcc is needed").success());
    let run = |way: &&str| {
        let json =
            figures(&format!("{test}-{way}"), &["--memory", memory], &[program.to_str().unwrap(), way]);
        assert_eq!(json["tree"]["unmanaged"], 0, "{way}: {json}");
        (json["tree"]["managed"].as_u64().unwrap(), json["counters"]["pgdeactivate"].as_u64().unwrap())
    };
    let found = ways.iter().map(run).collect();
    fs::remove_file(program).unwrap();
    found
}

#[test]
fn small_processes_have_no_engine() {
    // "vfork_alone": what the child of a vfork maps is its parent's, which does not grow by itself.
    for way in ["nothing", "churn", "vfork_alone"] {
        let found = grow_in("1G", way, &[], &[way]);
        assert_eq!(found[0].0, 0, "{way}");
    }
    // (Not sort, which maps a buffer of more than the mark.)
    let shell = [
        "sh",
        "-c",
        "for i in 1 2 3 4 5; do ls / | tail -n 1 | grep -c . >/dev/null; done; expr 1 + 1 >/dev/null",
    ];
    assert_eq!(figures("shell", &[], &shell)["tree"]["managed"], 0);
}

#[test]
fn a_process_that_grows_gets_an_engine_in_time() {
    let ways = [
        "malloc",
        "mmap",
        "realloc",
        "thread",
        "small_thread",
        "bare_thread",
        "own_stack",
        "mremap",
        "fork",
        "raw_fork",
        "vfork",
        "handler",
        "seccomp",
        "setuid",
    ];
    // Each makes 64 MiB, with a limit of 32.
    for (way, found) in ways.iter().zip(grow("ways", &[], &ways)) {
        // Where other tests have the CPUs a thread can be done before the engine looks: then once more, by itself.
        let (engines, out) = if found.1 > ENOUGH_PAGES { found } else { grow(way, &[], &[way])[0] };
        assert!(engines == 1 && out > ENOUGH_PAGES, "{way}: {engines} engines, {out} pages went out");
    }
    let (engines, out) = grow("bss", &["-DBSS"], &["bss"])[0];
    assert!(engines == 1 && out > ENOUGH_PAGES, "bss: {engines} engines, {out} pages went out");
}

#[test]
fn advice_from_before_there_was_an_engine_holds_after_it() {
    // The program, and its child.
    assert_eq!(grow("advice", &[], &["dontfork"])[0].0, 2);
}

#[test]
fn the_test_mode_has_an_engine_in_every_process_that_checks_itself() {
    let program = "import time; held = bytearray(8 << 20); time.sleep(1)";
    let json = figures(
        "at-once",
        &["--evict-all", "--memory", "64M"],
        &["sh", "-c", &format!("/bin/true; python3 -c '{program}'; true")],
    );
    // The shell, true and python; a shell that does not use vfork has a child between them.
    assert!(json["tree"]["managed"].as_u64().unwrap() >= 3, "{json}");
    // What python's engine keeps count of was recomputed while python waited, and was right.
    assert!(json["counters"]["checks"].as_u64().unwrap() > 0, "{json}");
}
