//! What the fuzzer kept for saved devices (`make fuzz`), and what it began with.

#[path = "../../../fuzz/src/corpus.rs"]
mod corpus;
mod trials;

use corpus::corpus;

#[test]
fn nothing_that_was_kept_does_harm() {
    let loaded = corpus("zram-saved").iter().filter(|input| trials::run(input)).count();
    assert!(loaded > 0, "nothing of it can be loaded");
    assert!(trials::first_inputs().iter().all(|input| trials::run(input)));
}
