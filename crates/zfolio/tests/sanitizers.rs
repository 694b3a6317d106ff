//! Programs that are built with AddressSanitizer, or have its runtime preloaded: they run, and errors are found as without zfolio.

mod compile;

use compile::{compile, compile_with};
use std::path::Path;
use std::process::{Command, Output};

/// What `overflow.c` prints: the sum of `i & 15` over 100,000 allocations.
const SUM: &str = "750000\n";

fn run(preload: Option<&Path>, command: &[&str]) -> Output {
    let mut run = Command::new(env!("CARGO_BIN_EXE_zfolio"));
    run.args(["run", "--quiet", "--memory", "200M", "--"]).args(command);
    match preload {
        Some(library) => run.env("LD_PRELOAD", library),
        None => run.env_remove("LD_PRELOAD"),
    };
    run.output().unwrap()
}

fn assert_sum(output: &Output) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stdout), SUM, "{stderr}");
}

#[test]
fn a_program_built_with_a_sanitizer_runs_and_its_errors_are_found() {
    let built = compile_with("overflow", &["-g", "-fsanitize=address"]);
    let program = built.to_str().unwrap();
    assert_sum(&run(None, &[program]));
    assert_sum(&run(None, &["sh", "-c", &format!("{program}; exit $?")]));
    let found = run(None, &[program, "17"]);
    assert!(!found.status.success());
    let stderr = String::from_utf8_lossy(&found.stderr);
    assert!(stderr.contains("heap-buffer-overflow"), "{stderr}");
}

#[test]
fn a_sanitizer_that_is_preloaded_into_any_program_starts() {
    let plain = compile("overflow");
    let name = Command::new("gcc").arg("-print-file-name=libasan.so").output().unwrap();
    let library = String::from_utf8(name.stdout).unwrap();
    let library = Path::new(library.trim());
    assert!(library.is_absolute(), "gcc has no libasan.so");
    assert_sum(&run(Some(library), &[plain.to_str().unwrap()]));
}
