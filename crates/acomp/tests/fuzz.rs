//! A great many objects that were changed at random, again and again: those that still decompress are changed further.
//!
//! From a seed, so that a failure comes again; `ACOMP_FUZZ_ROUNDS` for more than the seconds that it takes in a test.

mod samples;

use samples::fence::{Bench, mutate};
use samples::{Random, Samples, object, seed};

/// How many objects each algorithm is given: some seconds' worth.
const ROUNDS: usize = 2_000_000;
/// Objects that are kept to be changed further.
const CORPUS: usize = 200;
const UNIT_MAX_BYTES: usize = 2000;

fn fuzz(text: &str) {
    let rounds = std::env::var("ACOMP_FUZZ_ROUNDS").map_or(ROUNDS, |text| text.parse().unwrap());
    let mut random = Random(seed());
    let mut bench = Bench::new(text, UNIT_MAX_BYTES);
    let fresh = |random: &mut Random, bench: &mut Bench| {
        let len = 1 + random.below(UNIT_MAX_BYTES);
        let unit = random.memory(len);
        (object(&mut bench.context, &unit), len)
    };
    let mut corpus: Vec<(Vec<u8>, usize)> = (0..CORPUS).map(|_| fresh(&mut random, &mut bench)).collect();
    let sound_unit = random.text(UNIT_MAX_BYTES);
    let sound_object = object(&mut bench.context, &sound_unit);
    let mut survived = 0;
    for round in 0..rounds {
        let (chosen, other) = (random.below(CORPUS), random.below(CORPUS));
        let other = &corpus[other].0;
        let (parent, own_len) = &corpus[chosen];
        // Bytes of another's, from anywhere in it.
        let child = mutate(&mut random, parent, &other[round % other.len().max(1)..]);
        let len = if random.below(8) == 0 { 1 + random.below(UNIT_MAX_BYTES) } else { *own_len };
        let prefix = 1 + random.below(len);
        if bench.survive(&child, len, prefix).is_ok() && len == *own_len && child.len() <= 2 * UNIT_MAX_BYTES
        {
            survived += 1;
            corpus[chosen].0 = child;
        }
        // Or in the end all would be literals.
        if random.below(100) == 0 {
            corpus[chosen] = fresh(&mut random, &mut bench);
        }
        if round % 10_000 == 0 {
            bench.is_well(&sound_object, &sound_unit);
        }
    }
    println!("{text}: {survived} of {rounds} changed objects came to as many bytes as the one before");
}

/// One test for each format, so that a failure names it.
macro_rules! formats {
    ($($name:ident: $text:literal,)*) => {
        $(#[test] fn $name() { fuzz($text); })*
    };
}

formats! {
    lz4: "lz4",
    lz4hc: "lz4hc:12",
    zstd: "zstd:3",
    zstd_with_dictionary: "zstd:1,dict=FILE",
    deflate: "deflate:6",
    deflate_iaa: "deflate-iaa",
    lzo: "lzo",
    lzo_rle: "lzo-rle",
    nx842: "842",
}
