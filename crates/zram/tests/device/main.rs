//! A device from outside: attributes, an accelerator, a pool without memory, several threads, saved and loaded.

mod accelerator;
mod attributes;
mod full;
mod saved;
mod threads;

use base::Random;
use zram::{BLOCK, Device, Worker};

/// A device of so many bytes that compresses with lz4, and recompresses with zstd.
fn device(disksize: &str) -> (Device, Worker) {
    let device = Device::new().log_to(|_| ());
    device.set("comp_algorithm", "lz4").unwrap();
    device.set("recomp_algorithm", "algo=zstd").unwrap();
    device.set("disksize", disksize).unwrap();
    let worker = device.worker();
    (device, worker)
}

/// A block that compresses to a part of itself, another one for each seed.
fn text(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let words: Vec<[u8; 6]> =
        (0..40).map(|_| std::array::from_fn(|_| b'a' + random.below(20) as u8)).collect();
    let mut block = Vec::new();
    while block.len() < BLOCK {
        block.extend(random.pick(&words));
    }
    block.truncate(BLOCK);
    block
}

/// A block that does not compress.
fn noise(seed: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    Random(seed).fill(&mut block);
    block
}

/// An area in memory, of so many blocks.
fn area(slots: usize) -> swap::FileArea {
    let fd = base::sys::memfd(c"area").unwrap();
    base::sys::ftruncate(&fd, slots * BLOCK).unwrap();
    let file = base::sys::DataFile::new(fd).unwrap();
    swap::FileArea::new(file, (slots * BLOCK) as u64)
}

/// What is left of a line of block_state for a block: its flags.
fn state(device: &Device, block: u64) -> String {
    let all = device.show("block_state").unwrap();
    let line = all.lines().find(|line| line.split_whitespace().next() == Some(&block.to_string()));
    line.map_or(String::new(), |line| line.split_whitespace().nth(2).unwrap().to_string())
}
