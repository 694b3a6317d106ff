//! What the fuzzer kept (`make fuzz`): inputs that go all the ways that it has found through each algorithm, tried
//! between fences.

#[path = "../../../fuzz/src/corpus.rs"]
mod corpus;
mod samples;

use acomp::Compressor;
use corpus::corpus;
use samples::trials::{Trials, WITH_DICTIONARY};

#[test]
fn nothing_that_was_kept_does_harm() {
    for name in Compressor::ALL.iter().map(|algorithm| algorithm.name).chain([WITH_DICTIONARY]) {
        let (inputs, mut trials) = (corpus(name), Trials::new(name));
        inputs.iter().for_each(|input| trials.run(input));
        println!("{name}: {} inputs", inputs.len());
    }
}
