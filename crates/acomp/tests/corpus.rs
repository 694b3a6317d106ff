//! What the fuzzer kept (`make fuzz`): inputs that go all the ways that it has found through each algorithm, tried between fences.

mod samples;

use acomp::Compressor;
use samples::trials::{Trials, corpus};

#[test]
fn nothing_that_was_kept_does_harm() {
    for algorithm in Compressor::ALL {
        let (inputs, mut trials) = (corpus(algorithm.name), Trials::new(algorithm.name));
        inputs.iter().for_each(|input| trials.run(input));
        println!("{}: {} inputs", algorithm.name, inputs.len());
    }
}
