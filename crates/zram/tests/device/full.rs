//! A pool without memory, at every place.

use super::{device, noise, state, text};
use base::Random;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use zram::{BLOCK, Device, Error};
use zsmalloc::{Anonymous, Backing};

/// Memory that is refused when so many mappings were made, as long as the count is not set again.
struct Meagre(Arc<AtomicI64>);

// SAFETY: what it gives is what `Anonymous` gives.
unsafe impl Backing for Meagre {
    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        if self.0.fetch_sub(1, SeqCst) > 0 { Anonymous.map(bytes) } else { None }
    }
    fn commit(&self, at: NonNull<u8>, bytes: usize) {
        Anonymous.commit(at, bytes)
    }
    fn decommit(&self, at: NonNull<u8>, bytes: usize) {
        Anonymous.decommit(at, bytes)
    }
    fn unmap(&self, at: NonNull<u8>, bytes: usize) {
        Anonymous.unmap(at, bytes)
    }
}

#[test]
fn whichever_mapping_is_refused_the_write_fails_alone() {
    for refused in 0..6 {
        let left = Arc::new(AtomicI64::new(refused));
        let memory = left.clone();
        let device = Device::with_backing(move || Meagre(memory.clone())).log_to(|_| ());
        device.set("disksize", "16M").unwrap();
        let (mut worker, mut random) = (device.worker(), Random(refused as u64));
        let mut model = vec![0; 16 << 20];
        let mut failures = 0;
        for turn in 0..400 {
            let start = random.below(200) * BLOCK * 16 + [0, BLOCK, 700][random.below(3)];
            let mut from = vec![0; [16 * BLOCK, 3 * BLOCK, 40 * BLOCK, 100][random.below(4)]];
            random.fill(&mut from);
            match device.write(&mut worker, start as u64, &from) {
                Ok(()) => model[start..start + from.len()].copy_from_slice(&from),
                Err(Error::NoSpace) => {
                    failures += 1;
                    let mut read = vec![0; from.len()];
                    device.read(&mut worker, start as u64, &mut read).unwrap();
                    // Each group of it is as it was, or as it was to be.
                    let mut at = 0;
                    while at < from.len() {
                        let end = (at + 16 * BLOCK - (start + at) % (16 * BLOCK)).min(from.len());
                        let (is, was) = (&read[at..end], &mut model[start + at..start + end]);
                        assert!(is == was || is == &from[at..end], "{refused} {turn}");
                        was.copy_from_slice(is);
                        at = end;
                    }
                    device.check().unwrap();
                }
                Err(error) => panic!("{error}"),
            }
            if turn == 200 {
                left.store(1000, SeqCst);
            }
        }
        assert!(failures > 0, "{refused}");
        let mut read = vec![0; model.len()];
        device.read(&mut worker, 0, &mut read).unwrap();
        assert!(read == model, "{refused}");
        device.check().unwrap();
        assert_eq!(device.stats().refused_writes, failures);
    }
}

#[test]
fn wherever_the_limit_is_it_is_kept() {
    let (device, mut worker) = device("4M");
    let used = device.stats().mem_used_bytes;
    for limit in (0..60).map(|step| used + step * 20_000) {
        device.set("mem_limit", &limit.to_string()).unwrap();
        let mut written = Vec::new();
        for n in 0..300 {
            match device.write(&mut worker, n * BLOCK as u64, &noise(n)) {
                Ok(()) => written.push(n),
                Err(Error::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let stats = device.stats();
        assert!(stats.mem_used_bytes <= limit + 70_000, "{} {limit}", stats.mem_used_bytes);
        for n in &written {
            let mut read = vec![0; BLOCK];
            device.read(&mut worker, n * BLOCK as u64, &mut read).unwrap();
            assert!(read == noise(*n));
        }
        assert!(written.len() < 300);
        // What needs no memory goes on.
        device.write(&mut worker, 0, &[3; BLOCK]).unwrap();
        device.discard(&mut worker, 0, 4 << 20).unwrap();
        device.set("compact", "1").unwrap();
        device.check().unwrap();
    }
}

#[test]
fn objects_get_denser_beyond_the_limit() {
    let (device, mut worker) = device("4M");
    (0..64).for_each(|block| device.write(&mut worker, block * BLOCK as u64, &text(block)).unwrap());
    device.set("mem_limit", "1").unwrap();
    assert!(matches!(device.write(&mut worker, 0, &text(100)), Err(Error::NoSpace)));
    let before = device.stats().compr_data_bytes;
    device.set("idle", "all").unwrap();
    device.set("recompress", "type=idle").unwrap();
    assert!(device.stats().compr_data_bytes < before);
    assert!(state(&device, 5).contains('r'));
    device.check().unwrap();
}
