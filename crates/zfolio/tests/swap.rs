//! The machine's own swap beneath: what the kernel has swapped of a run counts against its limit, and is as it was.
//!
//! The program has the kernel swap all that there is in its address space, to a file of the test's own. That needs root, and a
//! file system that can be swapped to.

mod compile;
mod machine_swap;
mod skip;

use compile::compile;
use machine_swap::Swap;
use skip::skip;
use std::process::Command;

const MIB: u64 = 1 << 20;

#[test]
fn what_the_kernel_swaps_counts_against_the_limit_and_is_as_it_was() {
    let _swap = match Swap::on(300) {
        Ok(swap) => swap,
        Err(why) => return skip(&format!("no swap: {why}")),
    };
    let program = compile("swapped");
    let limit = 64 * MIB;
    let mut run = Command::new(env!("CARGO_BIN_EXE_zfolio"));
    let output = run.args(["run", "--memory", "64M", "--"]).arg(program).arg("96").output().unwrap();
    let [said, told] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{said}{told}");
    let figures: Vec<u64> = said.split_whitespace().map(|kib| kib.parse().unwrap()).collect();
    let [held, swapped] = [figures[0] * 1024, figures[1] * 1024];
    assert!(swapped > 16 * MIB, "the kernel has swapped {} MiB: nothing is tried", swapped / MIB);
    assert!(held <= limit / 10 * 11, "{} MiB, {} of them swapped: {told}", held / MIB, swapped / MIB);
}
