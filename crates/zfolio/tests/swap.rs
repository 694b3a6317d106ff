//! The machine's own swap beneath: what the kernel has swapped of a run counts against its limit, and is as it was.
//!
//! The program has the kernel swap all that there is in its address space, to a file of the test's own. That needs
//! root, and a file system that can be swapped to.

mod compile;
mod machine_swap;
mod skip;

use compile::compile;
use machine_swap::Swap;
use skip::skip;
use std::process::Command;

const MIB: u64 = 1 << 20;

const LIMIT: u64 = 64 * MIB;

/// Runs the test program within `LIMIT`, beneath which the machine swaps to so many MiB; how much of the program's was
/// there and swapped at most.
fn held_and_swapped(swap_mib: u64, arguments: &[&str]) -> Option<(u64, u64)> {
    let _swap = match Swap::on(swap_mib) {
        Ok(swap) => swap,
        Err(why) => {
            skip(&format!("no swap: {why}"));
            return None;
        }
    };
    // One that stands still is ended.
    let mut run = Command::new("timeout");
    run.args(["-k", "5", "250", env!("CARGO_BIN_EXE_zfolio"), "run", "--memory", &LIMIT.to_string(), "--"]);
    let output = run.arg(compile("swapped")).args(arguments).output().unwrap();
    let [said, told] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{}: {said}{told}", output.status);
    let figures: Vec<u64> = said.split_whitespace().map(|kib| kib.parse().unwrap()).collect();
    let [held, swapped] = [figures[0] * 1024, figures[1] * 1024];
    assert!(swapped > 16 * MIB, "the kernel has swapped {} MiB: nothing is tried", swapped / MIB);
    Some((held, swapped))
}

#[test]
fn what_the_kernel_swaps_counts_against_the_limit_and_is_as_it_was() {
    let Some((held, swapped)) = held_and_swapped(300, &["96"]) else { return };
    assert!(held <= LIMIT / 10 * 11, "{} MiB, {} of them swapped", held / MIB, swapped / MIB);
}

/// A swap entry is moved with its protection against writes, which a fork has given it. Where one had come to the
/// stage, the engine's own write there waited for the engine.
///
/// Only a page that is its process's alone is moved. It becomes that again when it is read while more than half of the
/// machine's swap is used: so there is little.
#[test]
fn what_a_fork_has_protected_and_the_kernel_has_swapped_goes_out_and_comes_in() {
    held_and_swapped(62, &["96", "2"]);
}
