//! Help that lists what there is, from the tables that have it.

use acomp::Compressor;
use memcg::Counter;

/// The help text of `--compressor`: the names, and if it is `long` what each is good for.
pub fn compressors(long: bool) -> String {
    let names: Vec<&str> = Compressor::ALL.iter().map(|algorithm| algorithm.name).collect();
    let (last, others) = names.split_last().expect("there is one");
    let mut text = format!(
        "Compress single pages with FAST and windows of 64 KiB with DENSE, or all with FAST: {} or {last}, \
         if you like with a level",
        others.join(", ")
    );
    if long {
        text += "\n";
        for algorithm in Compressor::ALL {
            // A form is one word for whoever breaks lines.
            let form = algorithm.to_string().replace("][,", "]\n    [,");
            text += &format!("\n{form}:\n    {}", algorithm.description);
        }
        text += &format!(
            "\n\ndict=FILE: a dictionary, at most {} KiB: any bytes, or what `zstd --train` writes.",
            acomp::FILE_MAX_BYTES >> 10
        );
        text += "\n\ng_comp_wqs_per_iaa=N: the last N queues of each accelerator compress, its others decompress; 0: all do both. distribute_comps=0, \
                 distribute_decomps=0: a CPU's own accelerator instead of all of its package in turn. verify_compress=1: what an accelerator has written it \
                 reads back, and what is wrong is done again. sync_mode=1: one unit after the other, for comparison. timeout_ms=N: what takes an accelerator longer the CPU does (100).";
    }
    text
}

/// The help of --json.
pub fn counters() -> String {
    let mut text = "Write the figures of the run to FILE as JSON when CMD has ended\n\nIts counters, all processes together:".to_string();
    for Counter { name, unit, text: what } in memcg::COUNTERS {
        text += &format!("\n  {name}: {} {what}", unit.name());
    }
    text += "\n\nIts folios, by size:";
    for Counter { name, unit, text: what } in memcg::FOLIOS {
        text += &format!("\n  {name}: {} {what}", unit.name());
    }
    text
}
