//! The program's own advice (MADV_PAGEOUT, MADV_COLD, MADV_WILLNEED) moves its pages, far below the limit too. The
//! tests need the right to userfaultfd, as `zfolio doctor` does.

mod compile;
mod right;

use compile::compile;
use right::count;
use serde_json::Value;
use std::path::PathBuf;

/// The test program.
fn advice() -> PathBuf {
    compile("advice")
}

/// Runs `tests/c/advice.c` in the manner `way`; the counters of the run.
fn counters(way: &str, memory: &str) -> Value {
    right::counters(&advice(), way, memory)
}

#[test]
fn memory_that_is_needed_comes_in_before_it_is_touched() {
    let told = counters("needed", "2G");
    assert!(count(&told, "advised_out") > PAGES * 9 / 10, "{told:#}");
    assert!(count(&told, "advised_in") > PAGES * 9 / 10, "{told:#}");
    assert!(count(&told, "faults") < PAGES / 20, "{told:#}");
}

/// The program grows from 96 to 128 MiB.
#[test]
fn memory_that_is_cold_goes_first() {
    let told = counters("cold", "112M");
    assert!(count(&told, "advised_cold") > PAGES / 2, "{told:#}");
}

/// What the program advises, in pages.
const PAGES: u64 = (32 << 20) / 4096;

#[test]
fn memory_that_is_to_go_out_goes_although_there_is_room() {
    for way in ["out", "syscall", "process"] {
        let told = counters(way, "2G");
        // Its last two pages never go.
        assert!(count(&told, "advised_out") > PAGES * 9 / 10, "{way}: {told:#}");
        assert!(count(&told, "zswpout") > PAGES * 9 / 10, "{way}: {told:#}");
        assert_eq!(count(&told, "advice_dropped"), 0, "{way}: {told:#}");
    }
}
