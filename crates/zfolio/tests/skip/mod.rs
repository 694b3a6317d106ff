//! Tests, or parts of them, that cannot be made here. Crates whose own tests need it have it by its path.

use std::io::{self, Write};

/// Says why, past the test harness, which holds back what a test that passes prints; fails where `ZFOLIO_REQUIRE_ALL`
/// says that all can be made.
#[allow(dead_code, reason = "not every test can be left out")]
pub fn skip(why: &str) {
    assert!(std::env::var_os("ZFOLIO_REQUIRE_ALL").is_none(), "skipped: {why}");
    lacks(why);
}

/// The same for what no installation gives this machine: a processor's instruction, a newer kernel.
#[allow(dead_code, reason = "most tests need nothing of the kind")]
pub fn lacks(why: &str) {
    tell(&format!("skipped: {why}"));
}

/// Prints a line that the test harness does not hold back.
#[allow(dead_code, reason = "not every test has something to tell")]
pub fn tell(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
