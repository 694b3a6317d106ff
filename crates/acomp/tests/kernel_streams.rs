//! lzo, lzo-rle and 842 as the kernel's own code writes and reads them, for what `kernel.rs` cannot have a running
//! kernel show: lzo-rle that it wrote, and 842.
//!
//! `tools/kernel-streams` builds that code (lib/lzo and lib/842 of Debian's linux-source-6.1) into a program, tries it
//! both ways on many units, and keeps what it made of some pages (kernel/*.streams). These prove that our decoders read
//! what that code writes, in every test run; that it reads what ours write is seen when the tool is run.

mod samples;

use std::fs;
use std::path::{Path, PathBuf};

use samples::{Random, Samples, context, decompress, filter, object, seed};

const NAMES: [&str; 3] = ["lzo", "lzo-rle", "842"];

/// The seed of the units whose streams are kept.
const KEPT: u64 = 842;

/// The units whose streams are kept: pages of every kind of memory, and larger ones.
fn kept_units() -> Vec<Vec<u8>> {
    let mut random = Random(KEPT);
    let mut units = vec![vec![0; 4096], vec![b'z'; 4096], random.noise(4096)];
    for _ in 0..3 {
        units.extend([random.text(4096), random.heap(4096), random.sparse(4096)]);
    }
    // Larger than each of 842's rings (512 bytes, and 2 KiB), and long enough for far copies of lzo's.
    units.extend([random.text(16 << 10), random.sparse(64 << 10)]);
    units
}

/// Behind its length, as the program has it.
fn framed(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat()
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(len);
    *bytes = rest;
    taken
}

fn take_length(bytes: &mut &[u8]) -> usize {
    u32::from_le_bytes(take(bytes, 4).try_into().unwrap()) as usize
}

/// Streams, each with the length of what it holds, out of what the program wrote.
fn streams(mut bytes: &[u8]) -> Vec<(usize, &[u8])> {
    let mut streams = Vec::new();
    while !bytes.is_empty() {
        let plain = take_length(&mut bytes);
        let len = take_length(&mut bytes);
        streams.push((plain, take(&mut bytes, len)));
    }
    streams
}

fn assert_read(name: &str, streams: &[(usize, &[u8])], units: &[Vec<u8>]) {
    assert_eq!(streams.len(), units.len());
    for ((len, stream), unit) in streams.iter().zip(units) {
        assert_eq!(*len, unit.len());
        let mut back = vec![0xa5; *len];
        decompress(&mut context(name, *len), stream, &mut back)
            .unwrap_or_else(|e| panic!("{name}: the kernel's stream of {len} bytes: {e}"));
        assert!(back == *unit, "{name}: the kernel's stream of {len} bytes is read as others");
    }
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/kernel/{name}.streams"))
}

#[test]
fn what_the_kernels_code_wrote_is_read() {
    for name in NAMES {
        let kept = fs::read(file(name)).unwrap();
        assert_read(name, &streams(&kept), &kept_units());
    }
}

#[test]
#[ignore = "tools/kernel-streams builds what it needs"]
fn the_kernels_code_and_ours_read_each_other() {
    let program =
        std::env::var("ACOMP_KERNEL_STREAMS").expect("tools/kernel-streams says where its program is");
    let mut random = Random(seed());
    // 842 fills up what is not a multiple of 8 by itself; lzo takes anything from one byte on.
    let mut units: Vec<Vec<u8>> = (1..200).map(|len| random.memory(len)).collect();
    for _ in 0..3000 {
        let most = 8 << random.below(14);
        let len = 1 + random.below(most);
        units.push(if random.below(2) == 0 { random.memory(len) } else { random.sparse(len) });
    }
    let plain: Vec<u8> = units.iter().flat_map(|unit| framed(unit)).collect();
    let kept: Vec<u8> = kept_units().iter().flat_map(|unit| framed(unit)).collect();
    for name in NAMES {
        let theirs = filter(&program, &["c", name], &plain);
        assert_read(name, &streams(&theirs), &units);
        let ours: Vec<Vec<u8>> =
            units.iter().map(|unit| object(&mut context(name, unit.len()), unit)).collect();
        let both = units.iter().zip(&ours);
        let framed: Vec<u8> = both
            .flat_map(|(unit, ours)| [&(unit.len() as u32).to_le_bytes()[..], &framed(ours)].concat())
            .collect();
        let back = filter(&program, &["d", name], &framed);
        let mut rest = &back[..];
        for unit in &units {
            let len = take_length(&mut rest);
            let is_same = take(&mut rest, len) == unit;
            assert!(is_same, "{name}: {} bytes that ours wrote are others to the kernel's code", unit.len());
        }
        assert!(rest.is_empty());
        let same = streams(&theirs).iter().zip(&ours).filter(|((_, theirs), ours)| theirs == ours).count();
        let theirs_bytes: usize = streams(&theirs).iter().map(|(_, stream)| stream.len()).sum();
        let ours_bytes: usize = ours.iter().map(Vec::len).sum();
        println!(
            "{name}: {} units read both ways; theirs come to {theirs_bytes} bytes, ours to {ours_bytes}, {same} of them the same",
            units.len()
        );
        fs::write(file(name), filter(&program, &["c", name], &kept)).unwrap();
    }
}
