//! Engine and workers have no more rights than their program, which goes on all the same. Each test runs
//! `tests/c/rights.c`, which gives up rights in some way, looks at its engine and its workers, and then uses all of its
//! memory, threads, robust locks and forks. They need root, and the right to userfaultfd.

mod compile;
mod skip;

use compile::compile;
use serde_json::Value;
use skip::skip;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// What is too much for the limit, in pages.
const ENOUGH_PAGES: u64 = (16 << 20) / 4096;

/// The test program.
fn program() -> PathBuf {
    compile("rights")
}

fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let is_root = status.lines().any(|line| line.starts_with("Uid:\t0\t0\t0\t0"));
    if !is_root {
        skip("this takes root");
    }
    is_root
}

/// The program gives up rights in this way, and goes on within a limit of half of its memory.
fn goes_on(way: &str) {
    if !is_root() {
        return;
    }
    let json = program().with_extension(format!("{way}.json"));
    let output = Command::new("timeout")
        .args(["-k", "5", "120", env!("CARGO_BIN_EXE_zfolio"), "run", "--quiet", "--memory", "32M", "--json"])
        .arg(&json)
        .arg("--")
        .arg(program())
        .arg(way)
        .output()
        .unwrap();
    let figures = fs::read_to_string(&json).unwrap_or_default();
    let _ = fs::remove_file(json);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if out == "skipped\n" {
        return skip(&format!("{way}: it is not allowed here"));
    }
    assert_eq!((output.status.code(), &*out), (Some(0), "right\n"), "{way}: {err}");
    let figures: Value = serde_json::from_str(&figures).unwrap();
    let gone_out = figures["counters"]["pgdeactivate"].as_u64().unwrap();
    assert!(gone_out > ENOUGH_PAGES, "{way}: {gone_out} pages went out: {err}");
}

#[test]
fn a_program_that_becomes_another_user_takes_its_engine_along() {
    goes_on("setuid");
    goes_on("syscall");
}

#[test]
fn a_call_that_no_hook_sees_is_found_within_a_second() {
    goes_on("raw");
}

#[test]
fn who_can_come_back_is_followed_as_often_as_it_goes() {
    goes_on("saved");
    goes_on("turns");
    goes_on("keep");
}

#[test]
fn ids_for_files_and_groups_are_followed() {
    goes_on("files");
    goes_on("groups");
}

#[test]
fn capabilities_are_followed() {
    goes_on("capset");
    goes_on("bounding");
    goes_on("space");
}

#[test]
fn privileges_and_looks_are_followed() {
    goes_on("privileges");
    goes_on("dumpable");
    goes_on("looks");
}

/// It has opened all that it takes to awake.
#[test]
fn an_engine_that_sleeps_follows_and_awakes_later() {
    goes_on("early");
}

#[test]
fn a_process_whose_main_thread_has_ended_is_followed() {
    goes_on("last");
}
