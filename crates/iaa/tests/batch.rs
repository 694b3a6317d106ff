//! Batches through the model of the device, when all is well: what comes back is what went in.

mod rig;

use iaa::{Config, Context, Crc64, Error, Operation, Outcome, Policy, Reason, Request, Requests, Software};
use iaa_model::{DeviceConfig, Fault, Model, Zlib};
use rig::*;
use std::time::Duration;

#[test]
fn units_of_any_size_come_back() {
    let model = Model::new([DeviceConfig { engines: 2, ..Default::default() }]);
    for (at, mode) in modes().into_iter().enumerate() {
        let driver = driver(Config { mode, verify_compress: at == 1, ..patient() }, &model);
        let mut context = context(&driver, 8, 2 << 20);
        let mut random = Random(at as u64);
        let lengths =
            [1, 2, 3, 4, 5, 63, 64, 65, 255, 4095, 4096, 4097, 8192, 65_536, 262_144, (2 << 20) - 1, 2 << 20];
        for length in lengths {
            let units: Vec<_> =
                (0..if length > 65_536 { 1 } else { 6 }).map(|_| random.unit(length)).collect();
            round_trip(&mut context, &units);
        }
        let stats = driver.stats();
        assert_eq!(stats.reasons, [0; Reason::ALL.len()], "the device did all of it");
        assert_eq!(stats.calls().comp_calls, stats.total().comp_calls);
        assert!(stats.total().comp_calls >= 13 * 6 && stats.total().decomp_calls > 0);
    }
}

#[test]
fn better_codes_make_less_of_it() {
    let model = Model::new([DeviceConfig::default()]);
    let units: Vec<_> = {
        let mut random = Random(11);
        (0..64).map(|_| random.unit(4096)).collect()
    };
    let sizes = modes().map(|mode| {
        let driver = driver(Config { mode, ..patient() }, &model);
        round_trip(&mut context(&driver, 16, 4096), &units)
    });
    println!("fixed, dynamic, canned: {sizes:?} of {} bytes", 64 * 4096);
    assert!(sizes[1] < sizes[0] * 9 / 10 && sizes[2] < sizes[0], "{sizes:?}");
}

#[test]
fn batches_of_any_size_with_failures_in_the_middle() {
    let model = Model::new([DeviceConfig { queues: vec![16], ..Default::default() }]);
    let driver = driver(patient(), &model);
    let mut context = context(&driver, 8, 4096);
    let mut random = Random(3);
    for size in 0..=64 {
        let units: Vec<_> = (0..size).map(|_| random.unit(4096)).collect();
        let mut objects: Vec<_> = units
            .iter()
            .map(|unit| {
                let mut room = vec![0; 8192];
                let bytes = Zlib::default().compress(unit, &mut room).unwrap();
                room[..bytes].to_vec()
            })
            .collect();
        let broken = random.below(size.max(1));
        if let Some(object) = objects.get_mut(broken) {
            // Cut short: no reader of deflate can miss that.
            object.truncate(object.len() / 2);
        }
        let back = decompress(&mut context, &objects, &vec![4096; size]);
        for (at, (unit, back)) in units.iter().zip(back).enumerate() {
            match back {
                Err(error) => assert_eq!((at, error), (broken, Error::Damaged)),
                Ok(back) => assert!(back == *unit && at != broken),
            }
        }
        round_trip(&mut context, &units);
    }
    assert_eq!(driver.stats().software(Reason::Data), 64, "each broken one was tried in software");
    assert_eq!(driver.stats().calls().sw_decomp_calls, 64);
    assert!(model.in_flight_max(1) == 8, "as many as there are descriptors");
}

#[test]
fn odd_requests_have_their_own_results() {
    let model = Model::new([DeviceConfig::default()]);
    let driver = driver(patient(), &model);
    let mut context = context(&driver, 4, 4096);
    let (unit, long) = (vec![1; 4096], vec![1; 4097]);
    let mut rooms = [vec![0; 4096], vec![], vec![0; 10], vec![0; 4096], vec![0; 1]];
    let [a, b, c, d, e] = &mut rooms;
    let mut batch = [
        Request::new(&long, a),
        Request::new(&unit, b),
        Request::new(&[], c),
        Request::new(&unit, d),
        Request::new(&unit, e),
    ];
    context.compress(&mut batch);
    let too_long = Err(Error::UnitTooLong { bytes: 4097, unit_max: 4096 });
    let little = Ok(Outcome::Incompressible);
    assert_eq!(
        batch.each_ref().map(|r| r.result).map(|r| r.map(|o| matches!(o, Outcome::Written(_)))),
        [too_long.map(|_: Outcome| true), little.map(|_: Outcome| false), Ok(false), Ok(true), Ok(false),]
    );
    let mut room = vec![0; 4097];
    let mut batch = [Request::new(&unit, &mut room)];
    context.decompress(&mut batch);
    assert_eq!(batch[0].result, too_long);
    assert!(Context::new(driver, Box::new(Zlib::default()), 0, 4096).is_err());
}

/// What others wrote: with a window of 4 KiB the device reads it, and with a larger one software does.
#[test]
fn streams_of_another_deflate_are_read() {
    let model = Model::new([DeviceConfig::default()]);
    let driver = driver(patient(), &model);
    let mut context = context(&driver, 8, 256 << 10);
    let mut random = Random(5);
    // Matches from 16 KiB back, and blocks of several kinds.
    let noise: Vec<u8> = (0..2048).flat_map(|_| random.word().to_le_bytes()).collect();
    let unit = [&noise[..], &random.unit(10_000), &noise, &random.unit(90_000)].concat();
    for level in 0..=9 {
        for window_bits in [12, 15] {
            let mut room = vec![0; 256 << 10];
            let bytes = Zlib { window_bits, level }.compress(&unit, &mut room).unwrap();
            let back = decompress(&mut context, &[room[..bytes].to_vec()], &[unit.len()]);
            assert!(back[0].as_ref().unwrap() == &unit, "level {level}, window {window_bits}");
        }
    }
    // Level 0 has no matches at all, whatever the window.
    assert_eq!((driver.stats().software(Reason::Data), driver.stats().total().decomp_calls), (9, 11));
}

/// What the seed's tables are about: a batch is under way at the same time, and single units are not.
#[test]
fn a_batch_is_under_way_at_the_same_time() {
    for (batch, most) in [(1, 1), (8, 8), (3, 3)] {
        let config = DeviceConfig { latency: Duration::from_millis(20), ..Default::default() };
        let model = Model::new([config]);
        let driver = driver(patient(), &model);
        let mut context = context(&driver, batch, 4096);
        let units: Vec<_> = (0..8).map(|at| Random(at).unit(4096)).collect();
        compress(&mut context, &units);
        assert_eq!(model.in_flight_max(1), most);
    }
}

#[test]
fn a_batch_can_be_polled_and_given_up() {
    let model = Model::new([DeviceConfig { latency: Duration::from_millis(50), ..Default::default() }]);
    let driver = driver(patient(), &model);
    let mut context = context(&driver, 8, 4096);
    let units: Vec<_> = (0..8).map(|at| Random(at + 20).unit(4096)).collect();
    {
        let mut rooms = vec![vec![0; 4096]; 8];
        let mut batch: Vec<_> =
            units.iter().zip(&mut rooms).map(|(unit, room)| Request::new(unit, room)).collect();
        let mut flight = context.begin(Requests(Operation::Compress, &mut batch));
        assert_eq!(flight.poll(), 8, "nothing waits");
        drop(flight);
        assert!(batch.iter().all(|request| request.result == Err(Error::NotRun)));
        // In a context of its own: in the one above all descriptors are lost for now.
        context = self::context(&driver, 8, 4096);
        let flight = context.begin(Requests(Operation::Compress, &mut batch));
        assert_eq!(flight.in_flight(), 8);
        std::mem::forget(flight);
        // Buffers go while the device works on them: it reads what is there now, or a hole, and writes to its lanes.
    }
    // What was forgotten is not taken for what comes next.
    let others: Vec<_> = (0..8).map(|at| Random(at + 40).unit(4096)).collect();
    round_trip(&mut context, &others);
    drop(context);
    let mut context = self::context(&driver, 8, 4096);
    round_trip(&mut context, &units);
}

#[test]
fn threads_submit_at_the_same_time() {
    let model = Model::new([1, 3].map(|id| DeviceConfig {
        id,
        engines: 2,
        queues: vec![4, 4],
        ..Default::default()
    }));
    let driver = driver(patient(), &model);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let driver = &driver;
            scope.spawn(move || {
                let mut context = context(driver, 8, 16_384);
                let mut random = Random(thread);
                for _ in 0..20 {
                    let units: Vec<_> = (0..1 + random.below(24)).map(|_| random.unit(4096)).collect();
                    round_trip(&mut context, &units);
                }
            });
        }
        // Meanwhile queues go and come.
        for round in 0..50 {
            driver.remove(1 + 2 * (round % 2), round / 2 % 2);
            std::thread::sleep(Duration::from_millis(2));
            model.attach(&driver);
        }
    });
    let stats = driver.stats();
    assert_eq!(driver.queue_count(), 4);
    for reason in [Reason::Timeout, Reason::Data, Reason::Status, Reason::PageFault, Reason::TooLong] {
        assert_eq!(stats.software(reason), 0, "{}: {stats:?}", reason.name());
    }
    assert!(model.done(1) > 0 && model.done(3) > 0);
}

/// One bit after the other: nobody's who is tested here.
fn crc_by_bits(crc: Crc64, bytes: &[u8]) -> u64 {
    let initial = if crc.inverted { u64::MAX } else { 0 };
    let by_bit =
        |value: u64, bit: u8| value << 1 ^ if (value >> 63) as u8 != bit { crc.polynomial } else { 0 };
    let order = |bit: u8| if crc.big_endian { 7 - bit } else { bit };
    let value = bytes
        .iter()
        .fold(initial, |value, &byte| (0..8).fold(value, |value, bit| by_bit(value, byte >> order(bit) & 1)));
    (if crc.big_endian { value } else { value.reverse_bits() }) ^ initial
}

/// The CRCs of all units as one batch.
fn crcs(context: &mut Context, crc: Crc64, units: &[Vec<u8>]) -> Vec<u64> {
    let mut none = vec![[0u8; 0]; units.len()];
    let mut batch: Vec<_> =
        units.iter().zip(&mut none).map(|(unit, none)| Request::new(unit, none)).collect();
    context.crc64(crc, &mut batch);
    let checksum = |request: &Request<'_>| match request.result {
        Ok(Outcome::Checksum(crc)) => crc,
        other => panic!("a checksum is not {other:?}"),
    };
    batch.iter().map(checksum).collect()
}

#[test]
fn crc64_by_device_and_by_software() {
    let check = vec![b"123456789".to_vec()];
    type Plan = fn(u64) -> Option<Fault>;
    let plans: [(Plan, Option<Reason>); 8] = [
        (|_| None, None),
        (|serial| (serial % 3 == 1).then_some(Fault::Full), None),
        (|serial| (serial % 3 == 1).then_some(Fault::PageFaultReading), None),
        (|serial| (serial % 4 == 3).then_some(Fault::Status(0x30, 0)), Some(Reason::Status)),
        (|serial| (serial % 4 == 3).then_some(Fault::Status(0x0a, 3)), Some(Reason::Data)),
        (|serial| (serial % 16 == 5).then_some(Fault::Lost), Some(Reason::Timeout)),
        (|serial| (serial % 4 == 3).then_some(Fault::PageFaultElsewhere), Some(Reason::PageFault)),
        (|_| Some(Fault::Full), Some(Reason::Full)),
    ];
    for (plan, reason) in plans {
        let model = Model::new([DeviceConfig::default()]);
        model.set_faults(1, Box::new(move |serial, _| plan(serial)));
        let config = Config {
            timeout_ns: if reason == Some(Reason::Timeout) { 300_000_000 } else { 60_000_000_000 },
            strikes_max: u32::MAX,
            lost_max: u32::MAX,
            ..Config::default()
        };
        let driver = driver(config, &model);
        let mut context = context(&driver, 8, 4096);
        let mut random = Random(6);
        assert_eq!(crcs(&mut context, Crc64::XZ, &check), [0x995d_c9bb_df19_39fa]);
        assert_eq!(crcs(&mut context, Crc64::ECMA_182, &check), [0x6c40_df5f_0b49_7347]);
        for round in 0..8 {
            // Longer ones than the context's units too: nothing comes out that a lane would have to hold.
            let lengths: Vec<_> = (0..round).map(|_| random.below(20_000)).collect();
            let mut units: Vec<_> = lengths.into_iter().map(|length| random.unit(length)).collect();
            units.push(Vec::new());
            let crc = Crc64 {
                polynomial: random.word(),
                inverted: random.below(2) == 0,
                big_endian: random.below(2) == 0,
            };
            let expected: Vec<_> = units.iter().map(|unit| crc_by_bits(crc, unit)).collect();
            assert_eq!(crcs(&mut context, crc, &units), expected, "{crc:x?}");
            // In between what else there is goes through the same descriptors.
            units.iter_mut().for_each(|unit| unit.truncate(4096));
            units.retain(|unit| !unit.is_empty());
            round_trip(&mut context, &units);
            context.rest();
        }
        let stats = driver.stats();
        match reason {
            None => assert_eq!(stats.reasons, [0; Reason::ALL.len()]),
            Some(reason) => assert!(only(&driver, reason) > 2 && stats.calls().sw_crc_calls > 0, "{stats:?}"),
        }
        let by_device = stats.calls().crc_calls;
        assert_eq!(by_device + stats.calls().sw_crc_calls, 30, "{stats:?}");
        assert_eq!((stats.total().crc_calls, by_device > 0), (by_device, reason != Some(Reason::Full)));
    }
}

#[test]
fn crcs_do_not_stand_behind_compressions() {
    let model = Model::new([DeviceConfig { queues: vec![8, 8, 8], ..Default::default() }]);
    let policy = Policy { g_comp_wqs_per_iaa: 2, ..Policy::default() };
    let driver = driver(Config { policy, ..patient() }, &model);
    let units: Vec<_> = (0..24).map(|at| Random(at).unit(4096)).collect();
    crcs(&mut context(&driver, 8, 4096), Crc64::XZ, &units);
    let calls: Vec<_> = driver.stats().queues.iter().map(|queue| queue.2.crc_calls).collect();
    assert_eq!(calls, [24, 0, 0]);
    // A queue that takes less than a whole unit is not given it.
    let model = Model::new([DeviceConfig { transfer_max_bytes: 4000, ..Default::default() }]);
    let driver = self::driver(patient(), &model);
    crcs(&mut context(&driver, 8, 4096), Crc64::XZ, &units);
    assert_eq!((only(&driver, Reason::TooLong), model.done(1)), (24, 0));
    // Nor anything to a machine without a device.
    let driver = self::driver(patient(), &Model::new([]));
    let expected: Vec<_> = units.iter().map(|unit| crc_by_bits(Crc64::XZ, unit)).collect();
    assert_eq!(crcs(&mut context(&driver, 8, 4096), Crc64::XZ, &units), expected);
    assert_eq!(only(&driver, Reason::NoQueue), 24);
}
