//! Batches on a device, of which there is a model here, and the same call without one.

mod samples;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use acomp::{Batch, CompressRequest, Context, DecompressRequest, Device, Error, Outcome};
use iaa::descriptor::Opcode;
use iaa::topology::Topology;
use iaa::{Config, Driver, Mode, Reason};
use iaa_model::{DeviceConfig, Fault, Model};
use samples::{Random, Samples, context, grown_bytes, seed};

/// A driver of the model's devices, as the algorithm sets it up; nothing is late, however busy the machine is.
fn driver(model: &Model) -> Arc<Driver> {
    driver_by(model, Device::DEFAULT.config(Mode::Dynamic))
}

/// The same with settings.
fn driver_by(model: &Model, config: Config) -> Arc<Driver> {
    let config = Config { timeout_ns: 60_000_000_000, ..config };
    let driver = Driver::new(config, Topology::default());
    model.attach(&driver);
    Arc::new(driver)
}

/// A context of `deflate-iaa` with the device.
fn attached(driver: &Arc<Driver>, unit_max: usize) -> Context {
    let mut context = context("deflate-iaa", unit_max);
    assert!(context.attach(|_| Some(driver.clone())));
    context
}

/// A context with a driver that is as the compressor wants it.
fn attached_by(model: &Model, text: &str, unit_max: usize) -> (Context, Arc<Driver>) {
    let (mut context, mut driver) = (context(text, unit_max), None);
    assert!(context.attach(|config| {
        driver = Some(driver_by(model, config));
        driver.clone()
    }));
    (context, driver.unwrap())
}

/// Compresses all units as one batch; an empty object is an incompressible unit.
fn compress_all(context: &mut Context, units: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut rooms: Vec<Vec<u8>> = units.iter().map(|unit| vec![0; unit.len()]).collect();
    let mut batch: Vec<_> =
        units.iter().zip(&mut rooms).map(|(unit, room)| CompressRequest::new(unit, room)).collect();
    context.compress(&mut batch);
    let bytes: Vec<usize> = batch
        .iter()
        .map(|request| match request.result.unwrap() {
            Outcome::Shrunk(bytes) => bytes,
            Outcome::Incompressible => 0,
        })
        .collect();
    rooms.iter_mut().zip(bytes).for_each(|(room, bytes)| room.truncate(bytes));
    rooms
}

/// Decompresses all objects as one batch, each to so many bytes.
fn decompress_all(
    context: &mut Context,
    objects: &[Vec<u8>],
    lengths: &[usize],
) -> Vec<Result<Vec<u8>, Error>> {
    let mut rooms: Vec<Vec<u8>> = lengths.iter().map(|&bytes| vec![0; bytes]).collect();
    let mut batch: Vec<_> =
        objects.iter().zip(&mut rooms).map(|(object, room)| DecompressRequest::new(object, room)).collect();
    context.decompress(&mut batch);
    let results: Vec<_> = batch.iter().map(|request| request.result).collect();
    results.into_iter().zip(rooms).map(|(result, room)| result.map(|()| room)).collect()
}

/// What went in comes out of either, whoever wrote it, with faults in the middle of the batches and damaged objects
/// among them.
#[test]
fn the_device_and_software_read_each_other_whatever_goes_wrong() {
    type Plan = fn(u64) -> Option<Fault>;
    let plans: [(Plan, Option<Reason>); 6] = [
        (|_| None, None),
        (|n| (n % 5 == 2).then_some(Fault::PageFaultReading), None),
        (|n| (n % 4 == 1).then_some(Fault::Full), None),
        (|n| (n % 7 == 3).then_some(Fault::Status(0x20, 0)), Some(Reason::Status)),
        (|n| (n % 7 == 3).then_some(Fault::Status(0x0a, 17)), Some(Reason::Data)),
        (|n| (n == 11).then_some(Fault::Gone), Some(Reason::NoQueue)),
    ];
    for (plan, reason) in plans {
        let model = Model::new([DeviceConfig::default()]);
        let driver = driver(&model);
        model.set_faults(1, Box::new(move |serial, _| plan(serial)));
        let (mut device, mut software) = (attached(&driver, 64 << 10), context("deflate-iaa", 64 << 10));
        let mut random = Random(seed());
        for round in 0..5 {
            let units: Vec<Vec<u8>> = (0..1 + round * 5)
                .map(|_| {
                    let len = [100, 4096, 4096, 4096, 20_000, 64 << 10][random.below(6)];
                    random.memory(len)
                })
                .collect();
            let lengths: Vec<usize> = units.iter().map(Vec::len).collect();
            let by_device = compress_all(&mut device, &units);
            let by_software = compress_all(&mut software, &units);
            for objects in [by_device, by_software] {
                let damaged = random.below(units.len());
                for reader in [&mut device, &mut software] {
                    let mut objects = objects.clone();
                    // Cut short: no reader of deflate can miss that.
                    let half = objects[damaged].len() / 2;
                    objects[damaged].truncate(half);
                    let plain = decompress_all(reader, &objects, &lengths);
                    for (at, (plain, unit)) in plain.into_iter().zip(&units).enumerate() {
                        match plain {
                            Ok(plain) => assert!(plain == *unit && at != damaged),
                            Err(error) => {
                                assert!(error == Error::Damaged && (at == damaged || objects[at].is_empty()))
                            }
                        }
                    }
                }
            }
        }
        let stats = driver.stats();
        match reason {
            Some(reason) => assert!(stats.software(reason) > 0, "{stats:?}"),
            None => assert_eq!(stats.software(Reason::Data), stats.reasons.iter().sum(), "{stats:?}"),
        }
    }
}

/// Nothing that is written, by either, reaches farther back than the device can read.
#[test]
fn all_that_is_written_the_device_reads() {
    let model = Model::new([DeviceConfig::default()]);
    let driver = driver(&model);
    let (mut device, mut software) = (attached(&driver, 2 << 20), context("deflate-iaa", 2 << 20));
    let mut random = Random(seed());
    let units: Vec<Vec<u8>> = [1, 5, 4096, 4097, 8192, 100_000, 2 << 20]
        .into_iter()
        .flat_map(|len| [random.text(len), random.heap(len), random.memory(len)])
        .collect();
    for unit in &units {
        for is_device in [false, true] {
            let context = if is_device { &mut device } else { &mut software };
            let mut object = vec![0; grown_bytes(unit.len())];
            let Ok(Outcome::Shrunk(bytes)) = samples::compress(context, unit, &mut object) else {
                panic!("{} bytes are incompressible with room to grow", unit.len());
            };
            object.truncate(bytes);
            let plain = decompress_all(&mut device, &[object], &[unit.len()]);
            assert!(plain[0].as_ref() == Ok(unit));
        }
    }
    assert_eq!(driver.stats().reasons, [0; Reason::ALL.len()], "{:?}", driver.stats());
    // What deflate wrote with a longer history is left to software, and comes back too.
    let noise = random.noise(10_000);
    let unit = [&noise[..], &noise].concat();
    let object = samples::object(&mut context("deflate", unit.len()), &unit);
    assert!(decompress_all(&mut device, &[object], &[unit.len()])[0].as_ref() == Ok(&unit));
    assert_eq!(driver.stats().software(Reason::Data), 1);
}

#[test]
fn the_device_works_while_the_caller_does_something_else() {
    let latency = Duration::from_millis(300);
    let model = Model::new([DeviceConfig { latency, ..DeviceConfig::default() }]);
    let driver = driver(&model);
    let mut context = attached(&driver, 4096);
    assert_eq!(context.batch_size(), 8);
    let mut random = Random(seed());
    let units: Vec<Vec<u8>> = (0..8).map(|_| random.heap(4096)).collect();
    let mut rooms = vec![vec![0; 4096]; 8];
    let mut batch: Vec<_> =
        units.iter().zip(&mut rooms).map(|(unit, room)| CompressRequest::new(unit, room)).collect();
    let mut pending = context.submit(Batch::Compress(&mut batch));
    assert_eq!(pending.poll(), 8, "it does not wait");
    assert_eq!(model.in_flight_max(1), 8, "the device has all of it");
    // Given up: nothing has come of it, and what comes later is nobody's.
    drop(pending);
    assert!(batch.iter().all(|request| request.result == Err(Error::NotRun)));
    // Its descriptors are the device's until that has done with them: another context has others.
    let mut context = attached(&driver, 4096);
    let mut pending = context.submit(Batch::Compress(&mut batch));
    let mut done_meanwhile = 0u64;
    while pending.poll() > 0 {
        done_meanwhile += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(pending);
    assert!(done_meanwhile > 2, "{done_meanwhile}");
    assert_eq!((driver.stats().calls().comp_calls, driver.stats().calls().sw_comp_calls), (8, 0));
    for (request, unit) in batch.iter().zip(&units) {
        let Ok(Outcome::Shrunk(bytes)) = request.result else { panic!("{:?}", request.result) };
        let mut plain = vec![0; 4096];
        samples::decompress(&mut context_of_software(), &request.dst[..bytes], &mut plain).unwrap();
        assert_eq!(plain, *unit);
    }
}

fn context_of_software() -> Context {
    context("deflate-iaa", 4096)
}

/// What batches are for. `examples/batching.rs` measures it at the latencies that a device has.
#[test]
fn a_batch_has_three_times_the_throughput_of_single_units() {
    let latency = Duration::from_millis(60);
    let model = Model::new([DeviceConfig { latency, ..DeviceConfig::default() }]);
    let driver = driver(&model);
    let mut context = attached(&driver, 4096);
    let mut random = Random(seed());
    let units: Vec<Vec<u8>> = (0..8).map(|_| random.heap(4096)).collect();
    let mut time = |size: usize| {
        let begun = Instant::now();
        units.chunks(size).for_each(|units| drop(compress_all(&mut context, units)));
        begun.elapsed()
    };
    let (together, one_by_one) = (time(8), time(1));
    assert_eq!(driver.stats().calls().sw_comp_calls, 0);
    println!("8 units: {together:?} as a batch, {one_by_one:?} one by one");
    assert!(one_by_one > 3 * together, "{together:?} and {one_by_one:?}");
}

/// Without a device each poll does no more than a few units, whatever the algorithm.
#[test]
fn software_gives_way_between_batches() {
    let mut random = Random(seed());
    let units: Vec<Vec<u8>> = (0..20).map(|_| random.heap(4096)).collect();
    for algorithm in acomp::ALGORITHMS {
        let mut context = context(algorithm.name, 4096);
        let mut rooms = vec![vec![0; 4096]; 20];
        let mut batch: Vec<_> =
            units.iter().zip(&mut rooms).map(|(unit, room)| CompressRequest::new(unit, room)).collect();
        let mut pending = context.submit(Batch::Compress(&mut batch));
        assert_eq!([(); 4].map(|()| pending.poll()), [12, 4, 0, 0], "{}", algorithm.name);
        drop(pending);
        assert!(batch.iter().all(|request| matches!(request.result, Ok(Outcome::Shrunk(_)))));
        // What is given up is left undone.
        let mut pending = context.submit(Batch::Compress(&mut batch));
        pending.poll();
        drop(pending);
        assert!(batch[..8].iter().all(|request| request.result.is_ok()));
        assert!(batch[8..].iter().all(|request| request.result == Err(Error::NotRun)));
    }
}

#[test]
fn only_an_algorithm_for_it_asks_for_a_device() {
    for algorithm in acomp::ALGORITHMS {
        let asked = Cell::new(false);
        let attached = context(algorithm.name, 4096).attach(|_| {
            asked.set(true);
            None
        });
        assert!(!attached);
        assert_eq!(asked.get(), algorithm.name == "deflate-iaa");
    }
}

/// With `verify_compress` every compression is read back by the device, which compares checksums: what it wrote wrongly
/// never gets out.
#[test]
fn what_the_device_writes_wrongly_is_noticed() {
    let model = Model::new([DeviceConfig::default()]);
    let (mut device, driver) = attached_by(&model, "deflate-iaa,verify_compress=1", 4096);
    model
        .set_faults(1, Box::new(|_, d| (d.opcode() == Opcode::Compress as u8).then_some(Fault::WrongOutput)));
    let mut software = context_of_software();
    let mut random = Random(seed());
    let units: Vec<Vec<u8>> = (0..16).map(|_| random.heap(4096)).collect();
    let objects = compress_all(&mut device, &units);
    for (plain, unit) in decompress_all(&mut software, &objects, &[4096; 16]).into_iter().zip(&units) {
        assert!(plain.as_ref() == Ok(unit));
    }
    // The bit that is wrong is in the last byte, of which not all bits count.
    assert!(driver.stats().software(Reason::Verify) >= 4, "{:?}", driver.stats());
}

/// A device that does nothing is given up, and its descriptors are the next one's once somebody has had the time to
/// close it.
#[test]
fn who_rests_lets_go_of_a_device_that_does_not_answer() {
    let (dead, alive) = (Model::new([DeviceConfig::default()]), Model::new([DeviceConfig::default()]));
    dead.set_faults(1, Box::new(|_, _| Some(Fault::Lost)));
    let config = Config { timeout_ns: 300_000_000, lost_max: 1, ..Config::default() };
    let driver = Driver::new(config, Topology::default());
    dead.attach(&driver);
    let driver = Arc::new(driver);
    let mut context = attached(&driver, 4096);
    let mut random = Random(seed());
    let units: Vec<Vec<u8>> = (0..8).map(|_| random.heap(4096)).collect();
    let expected = compress_all(&mut context, &units);
    assert_eq!((driver.queue_count(), driver.stats().calls().sw_comp_calls), (0, 8));
    compress_all(&mut context, &units);
    assert_eq!(driver.stats().software(Reason::NoDescriptor), 8, "{:?}", driver.stats());
    context.rest();
    alive.attach(&driver);
    for (object, unit) in compress_all(&mut context, &units).iter().zip(&units) {
        let mut plain = vec![0; 4096];
        samples::decompress(&mut context_of_software(), object, &mut plain).unwrap();
        assert_eq!(plain, *unit);
    }
    assert!(alive.done(1) >= 8 && expected.len() == 8);
}

/// The first block's kind: its second and third bit (RFC 1951, 3.2.3).
fn block_kind(object: &[u8]) -> u8 {
    object[0] >> 1 & 3
}

/// In every mode, with a device and without, an object is raw deflate: every other mode reads it, and `deflate` does;
/// and the mode is the one that was asked for.
#[test]
fn every_mode_is_read_by_all_others_with_faults_in_the_middle_of_batches() {
    const TEXTS: [&str; 3] = ["deflate-iaa:dynamic", "deflate-iaa:fixed", "deflate-iaa:canned"];
    const LONGEST: usize = 2 << 20;
    let mut random = Random(seed());
    let mut units: Vec<Vec<u8>> =
        [1, 2, 63, 64, 65, 4095, 4096, 4097, 20_000, 64 << 10, 300_000, LONGEST - 1, LONGEST]
            .into_iter()
            .flat_map(|len| [random.heap(len), random.text(len)])
            .collect();
    units.extend((0..40).map(|_| {
        let len = 1 + random.below(20_000);
        random.memory(len)
    }));
    let lengths: Vec<usize> = units.iter().map(Vec::len).collect();
    let model = Model::new([DeviceConfig::default()]);
    let mut readers: Vec<Context> = TEXTS.map(|text| context(text, LONGEST)).into();
    readers.push(context("deflate", LONGEST));
    readers.push(attached_by(&model, TEXTS[0], LONGEST).0);
    let mut sums = [0; 3];
    for (mode, text) in TEXTS.into_iter().enumerate() {
        let (mut device, driver) = attached_by(&model, text, LONGEST);
        let mut software = context(text, LONGEST);
        for with_faults in [false, true] {
            let plan = move |serial: u64| match serial % 16 {
                3 => Some(Fault::Status(0x20, 0)),
                7 => Some(Fault::PageFaultReading),
                9 => Some(Fault::Full),
                _ => None,
            };
            model.set_faults(1, Box::new(move |serial, _| plan(serial).filter(|_| with_faults)));
            for (at, writer) in [&mut device, &mut software].into_iter().enumerate() {
                let mut objects = compress_all(writer, &units);
                let kept: Vec<usize> = (0..units.len()).filter(|&at| !objects[at].is_empty()).collect();
                assert!(kept.len() > 40);
                for &unit in &kept {
                    let kinds: &[u8] = [&[1, 2][..], &[1], &[2]][mode];
                    assert!(kinds.contains(&block_kind(&objects[unit])), "{text}: {} bytes", lengths[unit]);
                    sums[mode] +=
                        objects[unit].len() * usize::from(at == 1 && !with_faults && lengths[unit] == 4096);
                }
                // What is cut short in the middle of a batch is damaged, and its neighbours are not.
                let damaged = kept[kept.len() / 2];
                let half = objects[damaged].len() / 2;
                objects[damaged].truncate(half);
                for reader in &mut readers {
                    let plain = decompress_all(reader, &objects, &lengths);
                    for &unit in &kept {
                        match &plain[unit] {
                            Ok(plain) => assert!(*plain == units[unit] && unit != damaged, "{text}"),
                            Err(error) => assert_eq!((*error, unit), (Error::Damaged, damaged), "{text}"),
                        }
                    }
                }
            }
        }
        assert!(driver.stats().total().comp_calls > 60, "{text}: {:?}", driver.stats());
    }
    println!("units of 4096 bytes: dynamic, fixed, canned: {sums:?}");
    assert!(sums[0] < sums[1]);
}

/// What one pass over a unit is for: a device has half of the work.
#[test]
fn codes_that_are_the_same_for_all_take_one_pass() {
    let mut random = Random(seed());
    let units: Vec<Vec<u8>> = (0..16).map(|_| random.heap(4096)).collect();
    let passes = |parameters: &str| {
        ["dynamic", "fixed", "canned"].map(|mode| {
            let model = Model::new([DeviceConfig::default()]);
            let (mut device, driver) = attached_by(&model, &format!("deflate-iaa:{mode}{parameters}"), 4096);
            compress_all(&mut device, &units);
            assert_eq!(driver.stats().calls().sw_comp_calls, 0);
            model.done(1)
        })
    };
    assert_eq!(passes(""), [2 * 16, 16, 16]);
    // Each is read back and compared, too.
    assert_eq!(passes(",verify_compress=1"), [3 * 16, 2 * 16, 2 * 16]);
}

/// Which queues do what is as the compressor says it.
#[test]
fn the_policy_that_is_named_is_the_drivers() {
    let mut random = Random(seed());
    let units: Vec<Vec<u8>> = (0..16).map(|_| random.heap(4096)).collect();
    // Compressions and decompressions of wq1.0, wq1.1, wq3.0 and wq3.1. All on the one CPU that there is, whose own
    // device is the first.
    for (parameters, expected) in [
        ("", [[4, 4], [4, 4], [4, 4], [4, 4]]),
        (",g_comp_wqs_per_iaa=1", [[0, 8], [8, 0], [0, 8], [8, 0]]),
        (",g_comp_wqs_per_iaa=1,distribute_comps=0", [[0, 8], [16, 0], [0, 8], [0, 0]]),
        (",distribute_decomps=0", [[4, 8], [4, 8], [4, 0], [4, 0]]),
        (",g_comp_wqs_per_iaa=1,distribute_comps=0,distribute_decomps=0", [[0, 16], [16, 0], [0, 0], [0, 0]]),
    ] {
        let devices = [1, 3].map(|id| DeviceConfig { id, queues: vec![16, 16], ..DeviceConfig::default() });
        let model = Model::new(devices);
        let (mut device, driver) = attached_by(&model, &format!("deflate-iaa:fixed{parameters}"), 4096);
        let objects = compress_all(&mut device, &units);
        assert!(decompress_all(&mut device, &objects, &[4096; 16]).iter().all(Result::is_ok));
        let stats = driver.stats();
        let counts: Vec<_> = stats.queues.iter().map(|(.., q)| [q.comp_calls, q.decomp_calls]).collect();
        assert_eq!(counts, expected, "{parameters}: {stats:?}");
    }
}
