//! What the fuzzer kept for the control socket (`make fuzz`).

#[path = "../../../fuzz/src/corpus.rs"]
mod corpus;
mod trials;

use corpus::corpus;

#[test]
fn nothing_that_was_kept_does_harm() {
    let mut trials = trials::Trials::new();
    corpus("zram-asked").iter().for_each(|input| trials.run(input));
    trials.first_inputs().iter().for_each(|input| trials.run(input));
    trials.end();
}
