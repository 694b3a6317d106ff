//! Windows that are packed together become what each becomes alone, and so do objects that are unpacked together.

use acomp::{Compressor, Context};
use base::Random;
use iaa::stats::CpuStats;
use iaa::topology::Topology;
use iaa::{Config, Driver};
use iaa_model::{DeviceConfig, Fault, Model};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zswap::layout::{Format, View};
use zswap::noise::Guesses;
use zswap::{
    BATCH_MAX, Choice, Codec, Damaged, Load, New, PAGE, PARCEL_MAX_BYTES, Packed, PageMask, Priors,
    WINDOW_PAGES, Window,
};

/// A window of pages of all kinds.
fn window(random: &mut Random) -> Vec<u8> {
    let mut window = Vec::new();
    while window.len() < WINDOW_PAGES * PAGE {
        let (kind, word) = (random.below(5), random.within(0..3));
        window.extend((0..PAGE as u64 / 8).flat_map(|place| {
            let value = match kind {
                0 => 0,
                1 => word << 7,
                2 => random.word(),
                _ => place / 3 + (random.word() & 7),
            };
            value.to_le_bytes()
        }));
    }
    window
}

/// All but the guesses: those of a batch are made before any of them was tried.
fn without_guesses(packed: Packed) -> Packed {
    Packed { guesses: Guesses::default(), ..packed }
}

#[test]
fn it_makes_no_difference_whether_windows_are_packed_together() {
    let mut random = Random(7);
    let names = Compressor::ALL.iter().map(|algorithm| algorithm.name);
    for algorithm in names.chain(["lz4,zstd:3", "zstd:-3,zstd:3"]) {
        let choice = Choice::parse(algorithm).unwrap();
        let codec = || Codec::new(choice, 7, &[]).unwrap();
        let (mut alone, mut together) = (codec(), codec());
        for round in 0..20 {
            let count = 1 + round % BATCH_MAX;
            let mut bytes: Vec<Vec<u8>> = (0..count).map(|_| window(&mut random)).collect();
            let whole = bytes.clone();
            let asked: Vec<(PageMask, usize, Priors)> = (0..count)
                .map(|_| {
                    let mut priors = Priors::default();
                    priors.want(random.below(3));
                    ((random.word() as u16).into(), [1, 3, WINDOW_PAGES][random.below(3)], priors)
                })
                .collect();
            let mut parcels = vec![vec![0xaa; PARCEL_MAX_BYTES]; count];
            let mut windows: Vec<Window<'_>> = bytes
                .iter_mut()
                .zip(&mut parcels)
                .zip(&asked)
                .map(|((bytes, parcel), (pages, unit, priors))| Window {
                    bytes,
                    pages: *pages,
                    unit: *unit,
                    priors,
                    is_plain: false,
                    parcel,
                    packed: Packed::default(),
                })
                .collect();
            together.pack(&mut windows, &mut || {});
            let packed: Vec<Packed> = windows.iter().map(|window| window.packed).collect();
            let mut parcel = vec![0; PARCEL_MAX_BYTES];
            for (at, (pages, unit, priors)) in asked.iter().enumerate() {
                let expected =
                    alone.pack_one(&mut whole[at].clone(), *pages, *unit, priors, false, &mut parcel);
                assert_eq!(without_guesses(packed[at]), without_guesses(expected), "{algorithm}");
                let lengths = expected.objects.into_iter().flatten().map(|new| match new {
                    New::Blob { bytes, .. } => bytes as usize,
                    New::Same(_) => 0,
                });
                let bytes: usize = lengths.sum();
                assert!(parcels[at][..bytes] == parcel[..bytes], "{algorithm}, {unit} pages an object");
            }
        }
    }
}

/// Has a codec work with a driver of the model's, as its compressor wants that, if it is for a device. What a device
/// that is taken away had is waited for that long; what is late on a busy machine is done in software, and must be as
/// good.
fn attach(codec: &mut Codec, model: &Model) -> Option<Arc<Driver>> {
    let mut driver = None;
    let open = |config| {
        let config = Config { timeout_ns: 2_000_000_000, ..config };
        let it = driver.insert(Arc::new(Driver::new(config, Topology::default())));
        model.attach(it);
        driver.clone()
    };
    codec.attach(|context: &mut Context| context.attach(open));
    driver
}

/// What a device packs software reads, whatever goes wrong on the way. Where it has one tier alone the others' objects
/// are the processor's work.
#[test]
fn a_device_packs_windows_together() {
    let plans: [fn(u64) -> Option<Fault>; 4] = [
        |_| None,
        |serial| (serial % 5 == 2).then_some(Fault::PageFaultReading),
        |serial| (serial % 7 == 3).then_some(Fault::Status(0x20, 0)),
        |serial| (serial == 29).then_some(Fault::Gone),
    ];
    let texts = [
        "deflate-iaa",
        "deflate-iaa:dynamic,verify_compress=1",
        "deflate-iaa:fixed",
        "lz4,deflate-iaa",
        "deflate-iaa:fixed,zstd:1",
    ];
    for (text, plan) in texts.into_iter().flat_map(|text| plans.map(|plan| (text, plan))) {
        let choice = Choice::parse(text).unwrap();
        let codec = || Codec::new(choice, 7, &[]).unwrap();
        let (mut random, mut software) = (Random(9), codec());
        assert_eq!(software.batch_size(), 1);
        let model = Model::new([DeviceConfig::default()]);
        model.set_faults(1, Box::new(move |serial, _| plan(serial)));
        let mut device = codec();
        let driver = attach(&mut device, &model).unwrap();
        assert_eq!(device.batch_size(), BATCH_MAX);
        let mut bytes: Vec<Vec<u8>> = (0..BATCH_MAX).map(|_| window(&mut random)).collect();
        let whole = bytes.clone();
        let mut parcels = vec![vec![0xaa; PARCEL_MAX_BYTES]; BATCH_MAX];
        let priors = Priors::default();
        // Each way of putting pages together: all of them, and those here and there.
        let asked =
            [1, 3, WINDOW_PAGES].map(|unit| [(u16::MAX.into(), unit), ((random.word() as u16).into(), unit)]);
        let windows = bytes.iter_mut().zip(&mut parcels).zip(asked.into_iter().flatten().cycle());
        let mut windows: Vec<Window<'_>> = windows
            .map(|((bytes, parcel), (pages, unit))| {
                let packed = Packed::default();
                Window { bytes, pages, unit, priors: &priors, is_plain: false, parcel, packed }
            })
            .collect();
        device.pack(&mut windows, &mut || {});
        // How many of their objects the processor is asked for, and the device.
        let mut asked = [0, 0];
        for (window, whole) in windows.iter().zip(&whole) {
            let pages = window.packed.in_objects.iter();
            let pages: Vec<&[u8]> = pages.map(|page| &whole[page * PAGE..][..PAGE]).collect();
            let mut at = 0;
            for (object, pages) in window.packed.objects.into_iter().flatten().zip(pages.chunks(window.unit))
            {
                let New::Blob { fingerprint, bytes, .. } = object else { continue };
                let mut plain = vec![0; pages.len() * PAGE];
                let object = &window.parcel[at..][..bytes as usize];
                at += object.len();
                software.unpack(object, fingerprint, 0, &mut plain).unwrap();
                assert!(plain == pages.concat());
                let (view, by) = (View::read(object).unwrap(), choice.of(window.packed.tier));
                let is_made = view.format == Format::Of(by.kind());
                assert!(is_made || view.format == Format::Plain, "{text}, {} pages an object", window.unit);
                asked[usize::from(by.is_for_device())] += u64::from(view.data_pages() > 0);
            }
            let by = choice.of(window.packed.tier);
            asked[usize::from(by.is_for_device())] -= u64::from(window.packed.guesses.believed);
        }
        let CpuStats { comp_calls, sw_comp_calls, .. } = driver.stats().calls();
        assert!(comp_calls > 0 && (asked[0] > 0) == (choice.fast != choice.dense), "{text}: {asked:?}");
        assert_eq!(comp_calls + sw_comp_calls, asked[1], "{text}: {:?}", driver.stats());
    }
}

/// An object that is to be restored, and what must come of it.
struct Wanted {
    object: Vec<u8>,
    fingerprint: u32,
    first: usize,
    pages: usize,
}

/// What is unpacked together is what each comes to alone, by a device and in software, whatever goes wrong and
/// whichever are damaged.
#[test]
fn objects_are_unpacked_together_as_each_alone() {
    let plans: [fn(u64) -> Option<Fault>; 4] = [
        |_| None,
        |serial| (serial % 5 == 2).then_some(Fault::PageFaultReading),
        |serial| (serial % 3 == 1).then_some(Fault::Status(0x20, 0)),
        |serial| (serial == 11).then_some(Fault::Gone),
    ];
    for (name, plan) in ["deflate-iaa", "deflate-iaa:canned", "zstd:1", "lz4,zstd:1", "lz4,deflate-iaa"]
        .into_iter()
        .flat_map(|name| plans.map(|plan| (name, plan)))
    {
        let codec = || Codec::new(Choice::parse(name).unwrap(), 7, &[]).unwrap();
        let (mut alone, mut together) = (codec(), codec());
        let model = Model::new([DeviceConfig::default()]);
        model.set_faults(1, Box::new(move |serial, _| plan(serial)));
        let driver = attach(&mut together, &model);
        let mut random = Random(5);
        for _ in 0..20 {
            let mut wanted = Vec::new();
            for _ in 0..1 + random.below(BATCH_MAX) {
                let window = window(&mut random);
                let unit = [1, 3, WINDOW_PAGES][random.below(3)];
                let mut parcel = vec![0; PARCEL_MAX_BYTES];
                let packed = alone.pack_one(
                    &mut window.clone(),
                    u16::MAX.into(),
                    unit,
                    &Priors::default(),
                    false,
                    &mut parcel,
                );
                let is_blob = |new: &New| matches!(new, New::Blob { .. });
                let Some(New::Blob { fingerprint, bytes, .. }) =
                    packed.objects.into_iter().flatten().find(is_blob)
                else {
                    continue;
                };
                let in_objects = packed.in_objects.count();
                let all = unit.min(in_objects);
                let mut object = parcel[..bytes as usize].to_vec();
                let (mut first, mut pages, mut named) = (0, all, fingerprint);
                match random.below(6) {
                    0 => named ^= 1,
                    1 => {
                        let at = random.below(object.len());
                        object[at] ^= 1 << random.below(8);
                    }
                    2 => {
                        first = random.below(all);
                        pages = 1 + random.below(all - first);
                    }
                    3 => pages += random.below(2),
                    _ => {}
                }
                wanted.push(Wanted { object, fingerprint: named, first, pages });
            }
            let room = |wanted: &Wanted| vec![0xa5; wanted.pages * PAGE];
            let mut rooms: Vec<Vec<u8>> = wanted.iter().map(room).collect();
            let mut loads: Vec<Load<'_>> = wanted
                .iter()
                .zip(&mut rooms)
                .map(|(Wanted { object, fingerprint, first, .. }, to)| {
                    let result = Err(Damaged::Stream);
                    Load { object, fingerprint: *fingerprint, first: *first, to, result }
                })
                .collect();
            together.unpack_all(&mut loads, &mut || {});
            let results: Vec<_> = loads.iter().map(|load| load.result).collect();
            for ((wanted, result), room) in wanted.iter().zip(results).zip(&rooms) {
                let mut expected = vec![0xa5; wanted.pages * PAGE];
                let Wanted { object, fingerprint, first, .. } = wanted;
                let by_one = alone.unpack(object, *fingerprint, *first, &mut expected);
                // A device does not notice bytes behind an object's end: then the checksum does.
                assert_eq!(result.is_ok(), by_one.is_ok(), "{name}: {result:?} and {by_one:?}");
                assert!(result.is_err() || *room == expected, "{name}");
            }
        }
        let calls = driver.map_or_else(CpuStats::default, |driver| driver.stats().calls());
        assert_eq!(calls.decomp_calls > 0, name.contains("deflate-iaa"), "{name}: {calls:?}");
    }
}

/// What is urgent does not wait for a batch that a device has: 50 ms of latency here, and as much again for each
/// further pass.
#[test]
fn a_load_is_back_before_the_batch_that_is_under_way() {
    let compressor = Compressor::parse("deflate-iaa").unwrap();
    let codec = || Codec::new(compressor, 7, &[]).unwrap();
    let latency = Duration::from_millis(50);
    let model = Model::new([DeviceConfig { latency, ..Default::default() }]);
    let config = Config { timeout_ns: 60_000_000_000, ..Config::default() };
    let driver = Arc::new(Driver::new(config, Topology::default()));
    model.attach(&driver);
    let (mut device, mut aside, mut random) = (codec(), codec(), Random(3));
    assert!(device.attach(|context: &mut Context| context.attach(|_| Some(driver.clone()))));

    let mut object = vec![0; PARCEL_MAX_BYTES];
    let priors = Priors::default();
    let plain: Vec<u8> = (0..WINDOW_PAGES * PAGE / 8).flat_map(|n| (n as u64 / 3).to_le_bytes()).collect();
    let made = aside.pack_one(&mut plain.clone(), u16::MAX.into(), WINDOW_PAGES, &priors, false, &mut object);
    let Some(New::Blob { fingerprint, bytes, .. }) = made.objects[0] else { panic!("{made:?}") };
    let object = &object[..bytes as usize];

    let mut bytes: Vec<Vec<u8>> = (0..BATCH_MAX).map(|_| window(&mut random)).collect();
    let mut parcels = vec![vec![0xaa; PARCEL_MAX_BYTES]; BATCH_MAX];
    let mut windows: Vec<Window<'_>> = bytes
        .iter_mut()
        .zip(&mut parcels)
        .map(|(bytes, parcel)| {
            let (pages, unit, packed) = (u16::MAX.into(), WINDOW_PAGES, Packed::default());
            Window { bytes, pages, unit, priors: &priors, is_plain: false, parcel, packed }
        })
        .collect();
    let began = Instant::now();
    let (mut room, mut loaded) = (vec![0; plain.len()], None);
    let mut load = |room: &mut [u8]| {
        aside.unpack(object, fingerprint, 0, room).unwrap();
        (began.elapsed(), model.done(1))
    };
    device.pack(&mut windows, &mut || {
        loaded.get_or_insert_with(|| load(&mut room));
    });
    let packed = began.elapsed();
    let (loaded, done) = loaded.expect("it was asked for something urgent");
    println!("loaded after {loaded:?}, packed after {packed:?}");
    assert!(room == plain && loaded < packed && packed >= latency);
    assert!(done < model.done(1), "the device was at it");

    // Nor does it wait for other loads.
    let mut rooms = vec![vec![0; plain.len()]; BATCH_MAX];
    let mut loads: Vec<Load<'_>> = rooms
        .iter_mut()
        .map(|to| Load { object, fingerprint, first: 0, to, result: Err(Damaged::Stream) })
        .collect();
    let (mut later, began) = (None, Instant::now());
    device.unpack_all(&mut loads, &mut || {
        later.get_or_insert_with(|| load(&mut room));
    });
    assert!(loads.iter().all(|load| load.result == Ok(())) && began.elapsed() >= latency);
    assert!(later.expect("and here too").1 < model.done(1));
    assert!(rooms.iter().all(|room| *room == plain));
}
