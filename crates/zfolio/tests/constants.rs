//! Constants of the executable that hold addresses go out too, and stay what they are: read-only. The test runs `tests/c/constants.c`, which reads its own beside
//! threads that change mappings and processes that are forked. It needs the right to userfaultfd, as `zfolio doctor` does.

mod compile;

use compile::compile;
use serde_json::Value;
use std::fs;
use std::process::Command;

/// All 8 MiB of them, in pages.
const ALL: u64 = (8 << 20) / 4096;

#[test]
fn constants_go_out_and_come_back_as_they_were() {
    let program = compile("constants");
    let json = program.with_extension("json");
    let output = Command::new("timeout")
        .args(["-k", "5", "120", env!("CARGO_BIN_EXE_zfolio"), "run", "--quiet", "--json"])
        .arg(&json)
        .args(["--evict-all", "--memory", "64M", "--"])
        .arg(&program)
        .args(["5", "4"])
        .output()
        .unwrap();
    let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert_eq!((output.status.code(), said), (Some(0), ["right\n".to_owned(), String::new()]));
    let figures: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let out = figures["pages"]["deactivated"].as_u64().unwrap();
    assert!(out >= ALL, "{out} pages went out, of {ALL}");
    fs::remove_file(json).unwrap();
    fs::remove_file(program).unwrap();
}
