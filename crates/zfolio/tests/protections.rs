//! Memory that is executable, or cannot be written to, goes out as other memory does, and comes back as it was;
//! what mmap is asked to fill waits for room like a write. The tests run `tests/c/protections.c`, which checks what
//! it reads. They need the right to userfaultfd, as `zfolio doctor` does.

mod compile;
mod skip;
mod slow;

use compile::compile;
use serde_json::Value;
use slow::without_slowness;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// The test program.
fn program() -> PathBuf {
    compile("protections")
}

/// Runs it, which must find all as it should be: what it says before that, and the figures.
fn run(options: &[&str], arguments: &[&str]) -> (String, Value) {
    let json = program().with_extension(format!("{}.json", [options, arguments].concat().join("_")));
    let began = Instant::now();
    let output = Command::new("timeout")
        .args(["-k", "5", "300", env!("CARGO_BIN_EXE_zfolio"), "run", "--quiet", "--json"])
        .arg(&json)
        .args(options)
        .arg("--")
        .arg(program())
        .args(arguments)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = without_slowness(&String::from_utf8_lossy(&output.stderr), began);
    assert_eq!((output.status.code(), &*stderr), (Some(0), ""), "{said}");
    let figures = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    fs::remove_file(json).unwrap();
    (said.strip_suffix("right\n").expect("the last it says").to_owned(), figures)
}

/// The most memory of a run, in MiB.
fn peak(figures: &Value) -> u64 {
    figures["memory"]["peak_bytes"].as_u64().unwrap() >> 20
}

/// How many pages went out.
fn pages_out(figures: &Value) -> u64 {
    figures["counters"]["pgdeactivate"].as_u64().unwrap()
}

#[test]
fn code_and_data_of_an_executable_heap_go_out() {
    let (_, figures) = run(&["--memory", "48M"], &["code", "96"]);
    assert!(peak(&figures) <= 53, "{} MiB", peak(&figures));
}

#[test]
fn a_heap_behind_a_write_barrier_goes_out() {
    let (_, figures) = run(&["--memory", "48M"], &["barrier", "80", "3"]);
    assert!(peak(&figures) <= 53, "{} MiB", peak(&figures));
}

#[test]
fn a_write_barrier_sees_each_write_while_all_goes_out_all_the_time() {
    let (_, figures) = run(&["--evict-all", "--memory", "64M"], &["barrier", "6", "5"]);
    // Memory that stayed where it is would go out once, before it is made read-only.
    assert!(pages_out(&figures) > 4 * (6 << 20) / 4096, "{} pages", pages_out(&figures));
}

#[test]
fn protections_change_while_all_goes_out_all_the_time() {
    run(&["--evict-all", "--memory", "64M"], &["flips", "4", "5"]);
}

#[test]
fn what_a_ring_has_for_good_stays_where_it_is_when_it_cannot_be_written_to() {
    run(&["--evict-all", "--memory", "64M"], &["lent", "2", "3"]);
}

/// A browser's JIT has its code so, and was stopped for it.
#[test]
fn read_only_memory_with_a_protection_key_goes_out() {
    for options in [&["--memory", "48M"][..], &["--evict-all", "--memory", "64M"]] {
        let mib = if options.len() == 2 { "80" } else { "6" };
        let (said, figures) = run(options, &["keys", mib]);
        if said.contains("no keys") {
            return skip::lacks("the processor has no protection keys");
        }
        assert!(peak(&figures) <= 70, "{} MiB", peak(&figures));
    }
}

#[test]
fn what_mmap_fills_waits_for_room() {
    let (said, _) = run(&["--memory", "64M"], &["populate", "160"]);
    let peak: u64 = said.trim().strip_prefix("peak ").unwrap().parse().unwrap();
    assert!(peak <= 72, "the kernel has counted {peak} MiB");
}
