//! What goes in comes out: every level, every length, batches with failures among them.

mod samples;

use acomp::{CompressRequest, Compressor, Context, DecompressRequest, Error, Outcome, UNIT_MAX_BYTES};
use samples::{Random, Samples, compress, context, decompress, decompress_prefix, grown_bytes, object, seed};

/// A spread of levels that is short enough to be tried at every length.
const QUICK: [&str; 20] = [
    "lz4",
    "lz4:32",
    "lz4hc:3",
    "lz4hc",
    "lz4hc:12",
    "zstd:-7",
    "zstd:-1",
    "zstd:1",
    "zstd:3",
    "zstd:-5,dict=FILE",
    "zstd:1,dict=FILE",
    "zstd:6,dict=FILE",
    "deflate:1",
    "deflate:5",
    "deflate-iaa",
    "deflate-iaa:fixed",
    "deflate-iaa:canned",
    "lzo",
    "lzo-rle",
    "842",
];

/// Every level, with a few in lz4's long range.
fn every_compressor() -> impl Iterator<Item = Compressor> {
    Compressor::ALL.iter().flat_map(|algorithm| {
        let texts: Vec<String> = match &algorithm.parameter {
            None => vec![algorithm.name.to_owned()],
            Some(parameter) => {
                let levels = parameter.accepted.clone().filter(|level| *level <= 24 || level % 13107 == 0);
                levels.map(|level| format!("{}:{}", algorithm.name, parameter.text(level))).collect()
            }
        };
        texts.into_iter().map(|text| Compressor::parse(&text).unwrap())
    })
}

/// Compresses and decompresses, the whole and prefixes.
fn round_trip(context: &mut Context, random: &mut Random, unit: &[u8], prefixes: usize) {
    let compressor = context.compressor();
    let object = object(context, unit);
    let mut back = vec![0xa5; unit.len()];
    decompress(context, &object, &mut back).unwrap();
    assert!(back == unit, "{compressor}, {} bytes: another unit came back", unit.len());
    for _ in 0..prefixes {
        let len = 1 + random.below(unit.len());
        back.fill(0xa5);
        decompress_prefix(context, &object, &mut back[..len], unit.len()).unwrap();
        assert!(back[..len] == unit[..len], "{compressor}: the first {len} of {} bytes differ", unit.len());
        assert!(back[len..].iter().all(|byte| *byte == 0xa5), "{compressor}: written past a prefix of {len}");
    }
}

#[test]
fn every_level_at_every_order() {
    let mut random = Random(seed());
    for compressor in every_compressor() {
        // The slowest levels take a second for 2 MiB: those once, below.
        let longest =
            if compressor.level() > 9 && compressor.name() == "zstd" { 256 << 10 } else { UNIT_MAX_BYTES };
        let mut context = Context::new(compressor, UNIT_MAX_BYTES).unwrap();
        let mut len = longest;
        while len > 0 {
            let unit = random.memory(len);
            round_trip(&mut context, &mut random, &unit, 1);
            len /= 4;
        }
    }
}

/// Every level of zstd that the test above leaves out there, and with a dictionary some.
#[test]
fn slowest_levels_at_the_longest_unit() {
    let mut random = Random(seed());
    let levels = (10..=22).map(|level| format!("zstd:{level}"));
    let with = ["zstd:1,dict=FILE", "zstd:12,dict=FILE", "zstd:19,dict=FILE"];
    for text in levels.chain(with.map(str::to_owned)) {
        // Different all along, and what is in one half comes again in the other.
        let half = random.heap(UNIT_MAX_BYTES / 2);
        let unit = [&half[..], &half].concat();
        round_trip(&mut context(&text, UNIT_MAX_BYTES), &mut random, &unit, 1);
    }
}

#[test]
fn any_length_up_to_the_longest() {
    let mut random = Random(seed());
    for text in QUICK {
        let mut context = context(text, UNIT_MAX_BYTES);
        // Lengths at which the format or the parameters change, and any others.
        let edges = [1 << 8, 16 << 10, 64 << 10, (64 << 10) + 256, 128 << 10, 256 << 10];
        let edges = edges.into_iter().flat_map(|len| [len - 1, len, len + 1]);
        let short = 1..=70;
        let any: Vec<usize> =
            (0..40).map(|_| 1 + (random.word() as usize & ((2 << random.below(20)) - 1))).collect();
        for len in short.chain(edges).chain(any) {
            let unit = random.memory(len);
            round_trip(&mut context, &mut random, &unit, 2);
        }
    }
}

#[test]
fn workspace_suffices_for_every_level_and_unit() {
    let mut random = Random(seed());
    for compressor in every_compressor() {
        for unit_max in [1, 4096, 16 << 10, (16 << 10) + 1, 64 << 10, (128 << 10) + 4096] {
            let mut context = Context::new(compressor, unit_max).unwrap();
            for len in [unit_max, 1 + random.below(unit_max), unit_max] {
                let unit = random.heap(len);
                round_trip(&mut context, &mut random, &unit, 1);
            }
        }
    }
}

#[test]
fn any_level_reads_any_other_level() {
    let mut random = Random(seed());
    let unit = random.heap(64 << 10);
    for (writer, reader) in [
        ("zstd:-7", "zstd:22"),
        ("zstd:19", "zstd:1"),
        ("lz4:1", "lz4:900"),
        ("lz4hc:12", "lz4hc:3"),
        ("lz4hc", "lz4"),
        ("deflate:12", "deflate:1"),
        ("deflate-iaa:dynamic", "deflate"),
        ("deflate-iaa:fixed", "deflate"),
        ("deflate-iaa:canned", "deflate"),
        ("deflate-iaa:canned", "deflate-iaa:fixed"),
        ("deflate:12", "deflate-iaa"),
        ("lzo", "lzo-rle"),
        ("lzo-rle", "lzo"),
    ] {
        let object = object(&mut context(writer, unit.len()), &unit);
        let mut back = vec![0; unit.len()];
        decompress(&mut context(reader, unit.len()), &object, &mut back).unwrap();
        assert_eq!(back, unit);
    }
}

#[test]
fn failures_leave_their_neighbours_alone() {
    let mut random = Random(seed());
    for text in QUICK {
        let mut context = context(text, 64 << 10);
        let units: Vec<Vec<u8>> = vec![
            random.heap(64 << 10),
            random.noise(64 << 10),
            random.heap(4096),
            random.heap((64 << 10) + 1),
            Vec::new(),
            random.heap(20_000),
            random.heap(64 << 10),
            random.heap(50_000),
            random.heap(1 << 10),
        ];
        let mut rooms: Vec<Vec<u8>> = units.iter().map(|unit| vec![0; unit.len() * 7 / 8]).collect();
        rooms[6].truncate(16);
        rooms[8].truncate(0);
        let mut batch: Vec<_> =
            units.iter().zip(&mut rooms).map(|(unit, room)| CompressRequest::new(unit, room)).collect();
        assert!(batch.iter().all(|request| request.result == Err(Error::NotRun)));
        assert!(context.batch_size() > 1 && batch.len() > context.batch_size());
        context.compress(&mut batch);
        let results: Vec<_> = batch.iter().map(|request| request.result).collect();
        let shrunk = |index: usize| match results[index] {
            Ok(Outcome::Shrunk(bytes)) => bytes,
            other => panic!("{text}: unit {index} came to {other:?}"),
        };
        for index in [1, 4, 6, 8] {
            assert_eq!(results[index], Ok(Outcome::Incompressible), "{text}: unit {index}");
        }
        assert_eq!(results[3], Err(Error::UnitTooLong { bytes: (64 << 10) + 1, unit_max: 64 << 10 }));

        // Objects, whole or not, and the length that each is said to have.
        let (damaged, too_long) = (Err(Error::Damaged), results[3].map(|_| ()));
        let cases: [(&[u8], usize, Result<(), Error>); 10] = [
            (&rooms[0][..shrunk(0)], units[0].len(), Ok(())),
            (&rooms[2][..shrunk(2) - 1], units[2].len(), damaged),
            (&rooms[2][..shrunk(2)], units[2].len(), Ok(())),
            (&rooms[0][..shrunk(0)], units[3].len(), too_long),
            (&[], 100, damaged),
            (&rooms[5][..shrunk(5)], units[5].len(), Ok(())),
            (&rooms[5][..shrunk(5)], 0, damaged),
            (&rooms[5][..shrunk(5)], units[5].len() + 1, damaged),
            (&rooms[5][..shrunk(5)], units[5].len() - 1, damaged),
            (&rooms[7][..shrunk(7)], units[7].len(), Ok(())),
        ];
        let mut plain: Vec<Vec<u8>> = cases.iter().map(|(_, len, _)| vec![0; *len]).collect();
        let mut batch: Vec<_> =
            cases.iter().zip(&mut plain).map(|(case, plain)| DecompressRequest::new(case.0, plain)).collect();
        context.decompress(&mut batch);
        for (index, (request, (_, _, expected))) in batch.iter().zip(&cases).enumerate() {
            assert_eq!(request.result, *expected, "{text}: object {index}");
        }
        for (object, unit) in [(0, 0), (2, 2), (5, 5), (9, 7)] {
            assert!(plain[object] == units[unit], "{text}: unit {unit} came back changed");
        }
    }
}

/// Batches of every size, of units of any length and kind. Some do not shrink, are too long or empty, or have too
/// little room; some objects are cut short, belong to another length, or are none. Each of those fails by itself,
/// wherever in the batch it is, and what is beside it comes back.
#[test]
fn batches_of_1_to_64_with_failures_in_the_middle() {
    const UNIT_MAX: usize = 16 << 10;
    let mut random = Random(seed());
    for text in QUICK {
        let mut context = context(text, UNIT_MAX);
        let mut failed = [0; 2];
        for count in 1..=64 {
            let wrong: Vec<usize> = (0..count).map(|_| random.below(10)).collect();
            let units: Vec<Vec<u8>> = wrong
                .iter()
                .map(|wrong| match wrong {
                    0 => {
                        let len = 64 + random.below(UNIT_MAX - 64);
                        random.noise(len)
                    }
                    1 => {
                        let len = UNIT_MAX + 1 + random.below(100);
                        random.heap(len)
                    }
                    2 => Vec::new(),
                    _ if random.below(8) == 0 => random.text(UNIT_MAX),
                    _ => {
                        let len = 1000 + random.below(3000);
                        if random.below(2) == 0 { random.heap(len) } else { random.text(len) }
                    }
                })
                .collect();
            let room = |unit: &Vec<u8>, wrong| match wrong {
                0 => unit.len() - unit.len() / 32,
                3 => 5,
                _ => grown_bytes(unit.len()),
            };
            let mut rooms: Vec<Vec<u8>> =
                units.iter().zip(&wrong).map(|(unit, wrong)| vec![0; room(unit, *wrong)]).collect();
            let pairs = units.iter().zip(&mut rooms);
            let mut batch: Vec<_> = pairs.map(|(unit, room)| CompressRequest::new(unit, room)).collect();
            context.compress(&mut batch);
            let results: Vec<_> = batch.iter().map(|request| request.result).collect();
            let mut objects = Vec::new();
            for (at, result) in results.iter().enumerate() {
                let expected = match wrong[at] {
                    0 | 2 | 3 => Ok(Outcome::Incompressible),
                    1 => Err(Error::UnitTooLong { bytes: units[at].len(), unit_max: UNIT_MAX }),
                    _ => {
                        let Ok(Outcome::Shrunk(bytes)) = *result else {
                            panic!("{text}: unit {at} of {count}, {} bytes: {result:?}", units[at].len());
                        };
                        objects.push((&rooms[at][..bytes], &units[at]));
                        continue;
                    }
                };
                failed[0] += 1;
                assert_eq!(*result, expected, "{text}: unit {at} of {count}");
            }

            let wrong: Vec<usize> = objects.iter().map(|_| random.below(8)).collect();
            let mut plain: Vec<Vec<u8>> = Vec::new();
            let given: Vec<&[u8]> = objects
                .iter()
                .zip(&wrong)
                .map(|((object, unit), wrong)| {
                    // Of the longest a byte more would be too long, which is another failure.
                    let more = usize::from(*wrong == 1 && unit.len() < UNIT_MAX);
                    plain.push(vec![0xa5; unit.len() + more]);
                    match wrong {
                        0 | 1 if more == 0 => &object[..object.len() - 1],
                        2 => &[],
                        _ => *object,
                    }
                })
                .collect();
            let mut batch: Vec<_> = given
                .iter()
                .zip(&mut plain)
                .map(|(object, plain)| DecompressRequest::new(object, plain))
                .collect();
            context.decompress(&mut batch);
            for (at, request) in batch.iter().enumerate() {
                let unit = objects[at].1;
                if wrong[at] < 3 {
                    failed[1] += 1;
                    assert_eq!(request.result, Err(Error::Damaged), "{text}: object {at} of {count}");
                } else {
                    assert_eq!(request.result, Ok(()), "{text}: object {at} of {count}");
                    assert!(request.dst == unit, "{text}: unit {at} of {count} came back changed");
                }
            }
        }
        assert!(failed.iter().all(|failed| *failed > 100), "{text}: {failed:?}");
    }
}

#[test]
fn fits_exactly_or_is_incompressible() {
    let mut random = Random(seed());
    for text in QUICK {
        let mut context = context(text, 64 << 10);
        for len in [300, 4096, 64 << 10] {
            let unit = random.text(len);
            let bytes = object(&mut context, &unit).len();
            // zstd wants up to 9 bytes more room than it ends up using.
            let fits: Vec<bool> = (bytes - 1..bytes + 10)
                .map(|room| {
                    let mut dst = vec![0xa5; room + 16];
                    let outcome = compress(&mut context, &unit, &mut dst[..room]).unwrap();
                    assert_eq!(dst[room..], [0xa5; 16], "{text}: written past the room");
                    if let Outcome::Shrunk(bytes) = outcome {
                        let mut back = vec![0; len];
                        decompress(&mut context, &dst[..bytes], &mut back).unwrap();
                        assert_eq!(back, unit);
                    }
                    outcome != Outcome::Incompressible
                })
                .collect();
            println!("{text} {len}: {bytes} bytes, fits from {:?}", fits.iter().position(|fit| *fit));
            assert!(!fits[0] && fits[10], "{text} {len}: {fits:?}");
        }
    }
}

#[test]
fn a_moved_context_works_on() {
    let mut random = Random(seed());
    let mut contexts: Vec<Context> = Vec::new();
    for round in 0..20 {
        contexts.push(context(QUICK[round % QUICK.len()], 64 << 10)); // moves the earlier ones as it grows
        for context in &mut contexts {
            let unit = random.heap(10_000);
            round_trip(context, &mut random, &unit, 1);
        }
    }
    let context = contexts.pop().unwrap();
    let unit = random.heap(64 << 10);
    std::thread::spawn(move || round_trip(&mut { context }, &mut random, &unit, 1)).join().unwrap();
}

#[test]
fn longer_than_any_folio_is_refused() {
    for algorithm in Compressor::ALL {
        let compressor = Compressor::parse(algorithm.name).unwrap();
        let error = Context::new(compressor, UNIT_MAX_BYTES + 1).err();
        assert_eq!(error, Some(Error::UnitTooLong { bytes: UNIT_MAX_BYTES + 1, unit_max: UNIT_MAX_BYTES }));
    }
}
