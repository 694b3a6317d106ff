//! Huge pages go out whole, and come back so. The tests need the right to userfaultfd, as `zfolio doctor` does, and a
//! machine that makes transparent huge pages where a program asks for them.

mod compile;
mod right;
mod skip;

use compile::compile;
use right::count;
use serde_json::Value;

/// Huge pages of the program.
const HUGES: u64 = 160;

/// Runs `tests/c/huge.c` in half of the memory that it fills: the counters of the run. `None` where the machine makes
/// no huge pages.
fn counters(way: &str) -> Option<Value> {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if !enabled.contains("[always]") && !enabled.contains("[madvise]") {
        skip::skip("no transparent huge pages: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
        return None;
    }
    Some(right::counters(&compile("huge"), way, "160M"))
}

/// Half of them are out at the end of each pass. How many are filled and come back whole follows from how fast others
/// make room for them, on a busy machine too.
#[test]
fn huge_pages_go_out_whole_and_come_back_whole() {
    let Some(told) = counters("whole") else { return };
    let [filled, out, come] = ["thp_fault_alloc", "thp_swpout", "thp_swpin"].map(|name| count(&told, name));
    assert!(filled > HUGES / 4 && out > HUGES / 4 && come > HUGES / 16, "{told:#}");
    assert!(count(&told, "thp_swpout_fallback") < HUGES / 4, "{told:#}");
}

#[test]
fn huge_pages_that_are_taken_apart_hold_what_they_held() {
    let Some(told) = counters("pieces") else { return };
    assert!(count(&told, "thp_swpout") > HUGES / 4 && count(&told, "events") > 0, "{told:#}");
}
