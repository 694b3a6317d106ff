//! Several threads at once.

use super::{area, device};
use base::Random;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::time::Duration;
use zram::{BLOCK, Device, Error};

const THREADS: usize = 4;
const BLOCKS: usize = 256;

/// Contents of a block in a version: the version in each word, in a pattern that compresses or does not.
fn contents(block: usize, version: u32) -> Vec<u8> {
    let mut random = Random((block as u64) << 32 | u64::from(version));
    match version % 4 {
        0 => vec![version as u8; BLOCK],
        1 => {
            let mut bytes = vec![0; BLOCK];
            random.fill(&mut bytes);
            bytes
        }
        _ => {
            let words: Vec<[u8; 8]> = (0..20).map(|_| random.word().to_le_bytes()).collect();
            (0..BLOCK / 8).flat_map(|_| *random.pick(&words)).collect()
        }
    }
}

/// Ends what others do for as long as it lives, also when its thread panics.
struct Until<'a>(&'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Does what users do, until it is to end.
fn commands(device: &Device, end: &AtomicBool) {
    let mut second = 0;
    while !end.load(Relaxed) {
        for (name, value) in [
            ("idle", "all"),
            ("recompress", "type=idle"),
            ("recompress", "type=huge"),
            ("writeback", "huge"),
            ("compact", "1"),
        ] {
            match device.set(name, value) {
                Ok(()) | Err(Error::NoSpace | Error::BackingFull(_) | Error::Invalid { .. }) => {}
                Err(error) => panic!("{name}: {error}"),
            }
        }
        second += 1;
        device.tick(Duration::from_secs(second)).unwrap();
        device.show("block_state").unwrap();
        device.save(&mut std::io::sink()).unwrap();
    }
}

/// Blocks of all threads lie side by side in each group. Each thread writes its own, in whole or in part, and reads
/// those of others: a version that was acknowledged before the read began, or a later one, and never a mixture.
#[test]
fn each_read_sees_what_was_acknowledged_before() {
    let (device, _) = with_area();
    let acknowledged: Vec<AtomicU32> = (0..BLOCKS).map(|_| AtomicU32::new(0)).collect();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| commands(&device, &end));
        let _until = Until(&end);
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (device, acknowledged) = (&device, &acknowledged);
                scope.spawn(move || {
                    let (mut worker, mut random) = (device.worker(), Random(thread as u64));
                    for turn in 0..2000 {
                        let block = random.below(BLOCKS);
                        let at = (block * BLOCK) as u64;
                        if block % THREADS == thread {
                            let version = acknowledged[block].load(Relaxed) + 1;
                            let bytes = contents(block, version);
                            if turn % 3 == 0 {
                                // In two halves: others must not look meanwhile.
                                acknowledged[block].store(u32::MAX, SeqCst);
                                device.write(&mut worker, at, &bytes[..1000]).unwrap();
                                device.write(&mut worker, at + 1000, &bytes[1000..]).unwrap();
                            } else {
                                device.write(&mut worker, at, &bytes).unwrap();
                            }
                            acknowledged[block].store(version, SeqCst);
                            continue;
                        }
                        let before = acknowledged[block].load(SeqCst);
                        let mut read = vec![0; BLOCK];
                        device.read(&mut worker, at, &mut read).unwrap();
                        let after = acknowledged[block].load(SeqCst);
                        if before == u32::MAX || after == u32::MAX {
                            continue;
                        }
                        let is_known = (before..=after + 1).any(|version| {
                            if version == 0 {
                                read == vec![0; BLOCK]
                            } else {
                                read == contents(block, version)
                            }
                        });
                        // A write in two halves may have come and gone in between.
                        assert!(is_known || after > before, "block {block}, version {before} to {after}");
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    device.check().unwrap();
    let mut worker = device.worker();
    for (block, version) in acknowledged.iter().map(|version| version.load(Relaxed)).enumerate() {
        let mut read = vec![0; BLOCK];
        device.read(&mut worker, (block * BLOCK) as u64, &mut read).unwrap();
        assert!(version == 0 || read == contents(block, version), "block {block}");
    }
}

/// Threads write parts of the same block: none is lost.
#[test]
fn parts_of_one_block_by_several_threads_are_all_there() {
    let (device, _) = device("64K");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let device = &device;
            scope.spawn(move || {
                let mut worker = device.worker();
                for turn in 1..=300u32 {
                    let from = vec![(turn % 250) as u8 + thread as u8; BLOCK / THREADS];
                    device.write(&mut worker, (thread * BLOCK / THREADS) as u64, &from).unwrap();
                }
            });
        }
    });
    let mut read = vec![0; BLOCK];
    device.read(&mut device.worker(), 0, &mut read).unwrap();
    for (thread, part) in read.chunks_exact(BLOCK / THREADS).enumerate() {
        assert!(part.iter().all(|byte| *byte == 50 + thread as u8), "thread {thread}");
    }
    device.check().unwrap();
}

/// A group is written as a whole, and read as a whole.
#[test]
fn a_unit_is_never_seen_in_pieces() {
    let (device, _) = device("128K");
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut worker, _until) = (device.worker(), Until(&end));
            for version in 1..800 {
                let unit: Vec<u8> = (0..16).flat_map(|_| contents(0, version)).collect();
                device.write(&mut worker, 0, &unit).unwrap();
            }
        });
        scope.spawn(|| {
            let (mut worker, mut read) = (device.worker(), vec![0; 16 * BLOCK]);
            while !end.load(Relaxed) {
                device.read(&mut worker, 0, &mut read).unwrap();
                assert!(read.chunks_exact(BLOCK).all(|block| block == &read[..BLOCK]));
            }
        });
    });
    device.check().unwrap();
}

/// Requests go on over a reset: they fail or succeed, and the device is whole.
#[test]
fn a_reset_in_the_midst_of_requests_harms_nobody() {
    let (device, _) = device("1M");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let device = &device;
            scope.spawn(move || {
                let (mut worker, mut random) = (device.worker(), Random(thread as u64));
                for _ in 0..1500 {
                    let at = (random.below(BLOCKS) * BLOCK) as u64;
                    match device.write(&mut worker, at, &contents(thread, 3)) {
                        Ok(()) | Err(Error::NotInitialised) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(2));
            device.set("reset", "1").unwrap();
            device.set("disksize", "1M").unwrap();
        }
    });
    device.check().unwrap();
}

/// One thread writes a group's blocks while another one makes one object of them, again and again.
#[test]
fn what_is_written_during_a_recompression_stays() {
    let (device, mut worker) = device("64K");
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Relaxed) {
                device.set("recompress", "threshold=0").unwrap();
                device.set("idle", "all").unwrap();
                device.set("recompress", "type=idle").unwrap();
            }
        });
        let _until = Until(&end);
        let (mut random, mut versions) = (Random(1), [0; 16]);
        for turn in 1..1500 {
            let block = random.below(16);
            versions[block] = 2 + 4 * turn;
            device.write(&mut worker, (block * BLOCK) as u64, &contents(block, versions[block])).unwrap();
            let (block, mut read) = (random.below(16), vec![0; BLOCK]);
            device.read(&mut worker, (block * BLOCK) as u64, &mut read).unwrap();
            let should = if versions[block] == 0 { vec![0; BLOCK] } else { contents(block, versions[block]) };
            assert!(read == should, "block {block} in turn {turn}");
        }
    });
    device.check().unwrap();
}

/// Memory that calls somebody back before it is written to.
struct Told<F>(swap::FileArea, F);

impl<F: Fn() + Send + Sync> swap::Area for Told<F> {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }
    fn align(&self) -> usize {
        self.0.align()
    }
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), base::Errno> {
        self.0.read(at, to)
    }
    fn write(&self, at: u64, from: &[u8]) -> Result<(), base::Errno> {
        (self.1)();
        self.0.write(at, from)
    }
    fn discard(&self, at: u64, bytes: u64) -> Result<(), base::Errno> {
        self.0.discard(at, bytes)
    }
}

/// A request comes while a block is on its way to the backing device.
#[test]
fn what_is_written_while_it_goes_out_stays() {
    let device = std::sync::Arc::new(Device::new());
    let other = std::sync::Arc::downgrade(&device);
    let write = move || {
        let device = other.upgrade().unwrap();
        device.write(&mut device.worker(), 5, b"newer").unwrap();
    };
    device.set_backing("memory", Box::new(Told(area(BLOCKS), write))).unwrap();
    device.set("disksize", "1M").unwrap();
    let (mut worker, mut block) = (device.worker(), contents(0, 1));
    device.write(&mut worker, 0, &block).unwrap();
    device.set("writeback", "huge").unwrap();
    block[5..10].copy_from_slice(b"newer");
    let mut read = vec![0; BLOCK];
    device.read(&mut worker, 0, &mut read).unwrap();
    assert!(read == block);
    assert_eq!(device.stats().bd_count, 0);
    device.check().unwrap();
}

fn with_area() -> (Device, zram::Worker) {
    let device = Device::new().log_to(|_| ());
    device.set("recomp_algorithm", "algo=zstd").unwrap();
    device.set_backing("memory", Box::new(area(BLOCKS))).unwrap();
    device.set("disksize", "1M").unwrap();
    let worker = device.worker();
    (device, worker)
}
