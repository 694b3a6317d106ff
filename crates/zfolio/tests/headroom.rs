//! A limit above what a program takes leaves it alone; one that is a little too small is said to be.

mod compile;

use compile::compile;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Runs `spread.c` with a table of 80 MiB; its sum, the figures of the run, and what was said.
fn run(program: &Path, limit: &str) -> (String, Value, String) {
    let json = std::env::temp_dir().join(format!("zfolio-headroom-{limit}-{}", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_zfolio"))
        .args(["run", "--memory", limit, "--json"])
        .arg(&json)
        .arg("--")
        .arg(program)
        .arg("80")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let figures = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();
    (String::from_utf8(output.stdout).unwrap(), figures, said)
}

/// It takes 82 MiB. Where 8.5 MiB were kept free under 90 it lost and missed a million pages.
#[test]
fn a_limit_above_the_footprint_leaves_a_program_alone() {
    let program = compile("spread");
    let (alone, ..) = run(&program, "1G");
    let (sum, figures, said) = run(&program, "90M");
    assert_eq!(sum, alone);
    // What comes about at the last moment may have pushed some out, once.
    let out = figures["processes"][0]["pages_out"].as_u64().unwrap();
    assert!(out < 10_000, "{out} pages went out: {said}");
}
