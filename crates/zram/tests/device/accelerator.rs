//! Algorithms that are made for an accelerator: with a model of one, and without.

use crate::text;
use base::Random;
use iaa::Driver;
use iaa::topology::Topology;
use iaa_model::{DeviceConfig, Model};
use std::sync::{Arc, Mutex};
use zram::{BLOCK, Device, Worker};

/// Blocks of the devices here.
const BLOCKS: u64 = 256;

/// The model's number of the device.
const DEVICE: u32 = 1;

/// What a device holds must be this.
fn check(device: &Device, worker: &mut Worker, expected: &[u8]) {
    let mut read = vec![0; expected.len()];
    device.read(worker, 0, &mut read).unwrap();
    assert!(read == expected);
    // A block alone, of an object of sixteen.
    for block in [0, 5, BLOCKS as usize - 1] {
        let mut read = vec![0; BLOCK];
        device.read(worker, (block * BLOCK) as u64, &mut read).unwrap();
        assert!(read == expected[block * BLOCK..][..BLOCK]);
    }
    device.check().unwrap();
}

/// Fills it by writes of a MiB and less, and gives back what it holds.
fn fill(device: &Device, worker: &mut Worker) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..BLOCKS).flat_map(text).collect();
    device.write(worker, 0, &bytes).unwrap();
    let mut random = Random(3);
    for seed in 0..40 {
        let (block, data) = (random.below(BLOCKS as usize), text(1000 + seed));
        device.write(worker, (block * BLOCK) as u64, &data).unwrap();
        bytes[block * BLOCK..][..BLOCK].copy_from_slice(&data);
    }
    bytes
}

#[test]
fn a_device_has_its_blocks_compressed_by_an_accelerator() {
    let model = Arc::new(Model::new([DeviceConfig { id: DEVICE, ..DeviceConfig::default() }]));
    let of = model.clone();
    let device = Device::new().log_to(|line| panic!("{line}")).accelerate_by(move |config| {
        let config = iaa::Config { timeout_ns: 60_000_000_000, ..config };
        let driver = Driver::new(config, Topology::default());
        of.attach(&driver);
        Some(Arc::new(driver))
    });
    device.set("comp_algorithm", "deflate-iaa").unwrap();
    device.set("disksize", "1M").unwrap();
    let mut worker = device.worker();
    let bytes = fill(&device, &mut worker);
    let written = model.done(DEVICE);
    // Sixteen groups as a batch, and the forty blocks.
    assert!(written >= 56, "{written} units by the device");
    assert!(model.in_flight_max(DEVICE) > 1, "the groups of a write are one batch");
    check(&device, &mut worker, &bytes);
    assert!(model.done(DEVICE) > written, "it decompresses too");
    // Another thread's worker shares the driver.
    check(&device, &mut device.worker(), &bytes);
}

#[test]
fn without_an_accelerator_it_is_software_and_the_log_says_so_once() {
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = lines.clone();
    let device =
        Device::new().log_to(move |line| log.lock().unwrap().push(line.to_string())).accelerate_by(|_| None);
    device.set("comp_algorithm", "deflate-iaa:fixed").unwrap();
    device.set("disksize", "1M").unwrap();
    let mut worker = device.worker();
    let bytes = fill(&device, &mut worker);
    check(&device, &mut worker, &bytes);
    check(&device, &mut device.worker(), &bytes);
    let lines = lines.lock().unwrap();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("deflate-iaa:fixed runs in software: "), "{lines:?}");
}
