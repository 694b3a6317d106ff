//! What is done with an input that the fuzzer found for a saved device (`make fuzz`), there and in the test that tries
//! them again.
//!
//! ```text
//!   [ what | a saved device ]        with an odd `what` its checksums are made right, which no fuzzer would guess
//! ```

use xxhash_rust::xxh3::xxh3_64;
use zram::Device;

/// Devices from this size on are not loaded: to read them takes long, and is the same again and again.
const TAKES_LONG_BYTES: u64 = (1 << 22) + 1;

/// Where the disksize is.
const DISKSIZE: usize = 12;

/// What precedes the algorithms, and how long the head of one is, of which the last four bytes are a length.
const HEADER: usize = 28;
const ALGORITHM: usize = 10;
const ALGORITHMS: usize = 4;

/// What precedes a group's body: number, length, checksum.
const GROUP: usize = 20;

/// Tries one input. What can be loaded can be checked, read, written and saved. True where it can.
pub fn run(input: &[u8]) -> bool {
    let Some((what, saved)) = input.split_first() else { return false };
    let mut saved = saved.to_vec();
    if what % 2 == 1 {
        let _ = mend(&mut saved);
    }
    let takes_long = TAKES_LONG_BYTES..=zram::DISKSIZE_MAX_BYTES;
    if number(&saved, DISKSIZE).is_some_and(|bytes| takes_long.contains(&bytes)) {
        return false;
    }
    let device = Device::new().log_to(|_| ());
    if device.load(&mut &saved[..]).is_err() {
        assert_eq!(device.disksize_bytes(), 0, "what was refused has left something behind");
        return false;
    }
    device.check().expect("what was loaded is sound");
    let (mut worker, len) = (device.worker(), device.disksize_bytes() as usize);
    let mut bytes = vec![0; len];
    let _ = device.read(&mut worker, 0, &mut bytes);
    let mut again = Vec::new();
    device.save(&mut again).expect("what was loaded can be saved");
    let copy = Device::new().log_to(|_| ());
    copy.load(&mut &again[..]).expect("what was saved can be loaded");
    let _ = device.write(&mut worker, 0, &bytes[..len.min(5000)]);
    let _ = device.set("recompress", "type=idle threshold=1");
    let _ = device.set("compact", "1");
    device.check().expect("it is sound after that");
    device.discard(&mut worker, 0, len as u64).expect("all of it can be discarded");
    device.check().expect("nothing is left");
    true
}

fn number(of: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(of.get(at..at + 8)?.try_into().expect("8 bytes")))
}

fn length(of: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(of.get(at..at + 4)?.try_into().expect("4 bytes")) as usize)
}

/// Makes the checksums of header and groups right, as far as there are some. `None` at the end.
fn mend(saved: &mut [u8]) -> Option<()> {
    let mut at = HEADER;
    for _ in 0..ALGORITHMS {
        at += ALGORITHM + length(saved, at + ALGORITHM - 4)?;
    }
    let sum = xxh3_64(saved.get(..at)?);
    saved.get_mut(at..at + 8)?.copy_from_slice(&sum.to_le_bytes());
    at += 8;
    loop {
        let (group, len) = (number(saved, at)?, length(saved, at + 8)?);
        let sum = xxh3_64(saved.get(at + GROUP..at + GROUP + len)?) ^ group.rotate_left(32) ^ len as u64;
        saved[at + 12..at + GROUP].copy_from_slice(&sum.to_le_bytes());
        at += GROUP + len;
    }
}

/// Inputs to begin with: devices of each algorithm with a few blocks, which are short.
pub fn first_inputs() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for algorithm in ["lz4", "lz4hc", "zstd", "lzo", "lzo-rle", "842", "deflate"] {
        for blocks in [1, 3, 16, 20] {
            let device = Device::new().log_to(|_| ());
            for (name, value) in
                [("comp_algorithm", algorithm), ("recomp_algorithm", "algo=zstd"), ("disksize", "1M")]
            {
                device.set(name, value).expect("it takes that");
            }
            let mut worker = device.worker();
            let words: Vec<u8> = b"a few words ".iter().copied().cycle().take(blocks * 4096).collect();
            device.write(&mut worker, 8192, &words).expect("there is memory");
            device.write(&mut worker, 1 << 19, &[7; 4096]).expect("there is memory");
            let mut saved = vec![1];
            device.save(&mut saved).expect("a vector takes all");
            inputs.push(saved);
        }
    }
    inputs
}
