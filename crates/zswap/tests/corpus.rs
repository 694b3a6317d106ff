//! What the fuzzer kept for objects (`make fuzz`), tried between fences.

#[path = "../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../acomp/tests/samples/mod.rs"]
mod samples;
mod trials;

use corpus::corpus;

#[test]
fn nothing_that_was_kept_does_harm() {
    let mut trials = trials::Trials::new();
    corpus("objects").iter().for_each(|input| trials.run(input));
}
