//! Constants of the executable that hold addresses go out too, and stay what they are: read-only. The test runs
//! `tests/c/constants.c`, which reads its own. It needs the right to userfaultfd, as `zfolio doctor` does.

mod compile;

use compile::compile;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// All 8 MiB of them, in pages.
const ALL: u64 = (8 << 20) / 4096;

/// The test program.
fn constants() -> PathBuf {
    compile("constants")
}

/// How many pages went out in a run with these arguments, after which everything must be right.
fn pages_out(arguments: [&str; 3]) -> u64 {
    let json = constants().with_extension(format!("{}.json", arguments[2]));
    let output = Command::new("timeout")
        .args(["-k", "5", "120", env!("CARGO_BIN_EXE_zfolio"), "run", "--quiet", "--json"])
        .arg(&json)
        .args(["--evict-all", "--memory", "64M", "--"])
        .arg(constants())
        .args(arguments)
        .output()
        .unwrap();
    let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert_eq!((output.status.code(), said), (Some(0), ["right\n".to_owned(), String::new()]));
    let figures: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    fs::remove_file(json).unwrap();
    figures["counters"]["pgdeactivate"].as_u64().unwrap()
}

/// The program has next to nothing else.
#[test]
fn constants_go_out() {
    let out = pages_out(["2", "0", "0"]);
    assert!(out >= ALL, "{out} pages went out, of {ALL}");
}

#[test]
fn constants_are_what_they_were_beside_forks_and_threads_that_change_mappings() {
    pages_out(["5", "4", "2"]);
}
