//! Objects that were damaged, cut short, made up or meant for another algorithm: errors, and nothing worse.
//!
//! A byte more than `dst` or `src` would hit an inaccessible page on either side: every buffer ends where one begins.

mod samples;

use acomp::Error;
use samples::fence::{Bench, mutate};
use samples::{Random, Samples, context, object, seed};

const COMPRESSORS: [&str; 15] = [
    "lz4",
    "lz4hc",
    "zstd:-5",
    "zstd:1",
    "zstd:9",
    "zstd:19",
    "zstd:1,dict=FILE",
    "zstd:9,dict=FILE",
    "deflate:1",
    "deflate:10",
    "deflate-iaa",
    "deflate-iaa:canned",
    "lzo",
    "lzo-rle",
    "842",
];

#[test]
fn mutated_objects() {
    let seed = seed();
    for text in COMPRESSORS {
        let rounds = if text == "lz4" { 6_000 } else { 1_500 };
        let mut random = Random(seed);
        let mut bench = Bench::new(text, 64 << 10);
        let mut noticed = 0;
        for round in 0..rounds {
            let len = [1, 100, 4096, 4096, 16 << 10, 64 << 10][random.below(6)];
            let unit = random.memory(len);
            let whole = object(&mut bench.context, &unit);
            for _ in 0..4 {
                let noise = random.noise(64);
                let bad = mutate(&mut random, &whole, &noise);
                let prefix = 1 + random.below(len);
                noticed += usize::from(bench.survive(&bad, len, prefix).is_err());
            }
            if round % 16 == 0 {
                bench.is_well(&whole, &unit);
            }
        }
        println!("{text}: {noticed} of {} mutations were noticed", rounds * 4);
        assert!(noticed > rounds / 2, "{text}");
    }
}

#[test]
fn mutated_objects_of_many_blocks() {
    let seed = seed();
    for text in ["lz4", "zstd:1", "deflate", "lzo", "lzo-rle", "842"] {
        let mut random = Random(seed);
        let mut bench = Bench::new(text, 1 << 20);
        let unit = random.text(1 << 20);
        let whole = object(&mut bench.context, &unit);
        for _ in 0..300 {
            let noise = random.noise(64);
            let bad = mutate(&mut random, &whole, &noise);
            let prefix = 1 + random.below(unit.len());
            let _ = bench.survive(&bad, unit.len(), prefix);
        }
        bench.is_well(&whole, &unit);
    }
}

#[test]
fn truncated_at_every_byte() {
    let mut random = Random(seed());
    for text in COMPRESSORS {
        let mut bench = Bench::new(text, 4096);
        let mut unit = random.heap(3000);
        unit.extend(random.noise(1096));
        let whole = object(&mut bench.context, &unit);
        for len in 0..whole.len() {
            assert_eq!(bench.survive(&whole[..len], unit.len(), 100), Err(Error::Damaged), "{text}: {len}");
        }
        bench.is_well(&whole, &unit);
    }
}

#[test]
fn another_length_than_the_units() {
    let mut random = Random(seed());
    for text in COMPRESSORS {
        let mut bench = Bench::new(text, 64 << 10);
        let unit = random.memory(20_000);
        let whole = object(&mut bench.context, &unit);
        for len in [1, 4096, 19_999, 20_001, 40_000, 64 << 10] {
            assert_eq!(bench.survive(&whole, len, 1), Err(Error::Damaged), "{text}: {len}");
        }
    }
}

#[test]
fn made_up_objects() {
    let seed = seed();
    for text in COMPRESSORS {
        let mut random = Random(seed);
        let mut bench = Bench::new(text, 64 << 10);
        for _ in 0..20_000 {
            let longest = if random.below(8) == 0 { 64 << 10 } else { 300 };
            let len = 1 + random.below(longest);
            let bytes = random.below(300);
            let mut made_up = random.noise(bytes);
            // For zstd: often a header that states the right length, so that the blocks are looked at.
            if len < 256 && random.below(2) == 0 {
                made_up.splice(0..0, [0x20, len as u8]);
            }
            let prefix = 1 + random.below(len);
            let _ = bench.survive(&made_up, len, prefix);
        }
    }
}

#[test]
fn hostile_objects() {
    let mut zstd = Bench::new("zstd", 64 << 10);
    let hostile: [&[u8]; 9] = [
        &[],
        &[0x20],
        // An RLE block of 2 MiB where 100 bytes are due.
        &[0x20, 100, 0x03, 0xff, 0xff, 0xaa],
        // A raw block that is longer than the object.
        &[0x20, 100, 0x21, 0x03, 0x00, 1, 2, 3],
        // The largest window there is, an unknown length, a dictionary that nobody has.
        &[0x00, 0xff, 0x01, 0x00, 0x00],
        &[0x03, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x00, 0x00],
        // A length of 2^64 - 1.
        &[0xe0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x00, 0x00],
        // A frame with a magic number, and a skippable one.
        &[0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x01, 0x09, 0x00, 0x00, 0x61],
        &[0x50, 0x2a, 0x4d, 0x18, 0x01, 0x00, 0x00, 0x00, 0x00],
    ];
    for object in hostile {
        assert_eq!(zstd.survive(object, 100, 50), Err(Error::Damaged), "{object:x?}");
    }
    let mut lz4 = Bench::new("lz4", 64 << 10);
    let mut endless = vec![0xff; 5000];
    let hostile: [&[u8]; 5] = [
        &[],
        // Literals longer than the object.
        &[0xf0, 0xff, 0xff, 0xff],
        // A match before the beginning, and one at distance nought.
        &[0x1f, b'a', 0x02, 0x00, 0x00],
        &[0x1f, b'a', 0x00, 0x00, 0x00],
        &endless.clone(),
    ];
    for object in hostile {
        assert_eq!(lz4.survive(object, 100, 50), Err(Error::Damaged), "{object:x?}");
    }
    // A match that is to be copied a million times over.
    endless.splice(0..0, [0x1f, b'a', 0x01, 0x00]);
    assert_eq!(lz4.survive(&endless, 64 << 10, 4096), Err(Error::Damaged));
}

/// Streams of our own decoders that ask for what is not theirs. Where a byte is `a`, it is a literal.
#[test]
fn hostile_lzo_streams() {
    let mut endless = vec![0; 5000];
    endless.splice(0..0, [18, b'a', 0x20]);
    let hostile: [&[u8]; 16] = [
        &[],
        &[0x11],
        // The end alone, the end of another length, the end with literals, and with a byte behind it.
        &[0x11, 0, 0],
        &[18, b'a', 0x12, 0, 0],
        &[18, b'a', 0x11, 1, 0, b'b'],
        &[18, b'a', 0x11, 0, 0, 0],
        // A version that nobody knows.
        &[17, 2, 18, b'a', 0x11, 0, 0],
        // More literals than there are.
        &[255, b'a', b'b', 0x11, 0, 0],
        &[0, 0, 0, 0, 0, 0, 0, 0],
        // Copies from before the beginning, by each instruction.
        &[18, b'a', 0x40, 0xff, 0x11, 0, 0],
        &[18, b'a', 0x00, 0x01, 0x11, 0, 0],
        &[22, b'a', b'b', b'c', b'd', b'e', 0x00, 0x00, 0x11, 0, 0],
        &[18, b'a', 0x21, 0x04, 0x00, 0x11, 0, 0],
        &[18, b'a', 0x19, 0x00, 0x00, 0x11, 0, 0],
        // An instruction without its distance, and a length that never ends.
        &[18, b'a', 0x21, 0x00],
        &endless,
    ];
    for text in ["lzo", "lzo-rle"] {
        let mut bench = Bench::new(text, 64 << 10);
        for object in hostile {
            for len in [1, 2, 100, 64 << 10] {
                assert_eq!(bench.survive(object, len, 1), Err(Error::Damaged), "{text}: {object:x?}");
            }
        }
        // A length of more than there is room for.
        let mut long = endless.clone();
        long.extend([1, 0, 0, 0x11, 0, 0]);
        assert_eq!(bench.survive(&long, 64 << 10, 4096), Err(Error::Damaged));
        // Runs of zeros where the version has none.
        let run = [18, b'a', 0x18, 0xfc, 0xff, 0, 0x11, 0, 0];
        assert_eq!(bench.survive(&run, 5, 3), Err(Error::Damaged));
    }
}

#[test]
fn hostile_842_streams() {
    // Bits, the highest first, filled up to eight bytes.
    let stream = |bits: &str| -> Vec<u8> {
        let mut bits: Vec<u8> = bits.bytes().filter(|bit| *bit != b' ').map(|bit| bit - b'0').collect();
        bits.resize(bits.len().next_multiple_of(64), 0);
        bits.chunks(8).map(|byte| byte.iter().fold(0, |byte, bit| byte << 1 | bit)).collect()
    };
    let end = "11110 00000000000000000000000000000000";
    let zeros_and = |bits: &str| stream(&format!("11100 {bits}"));
    let mut bench = Bench::new("842", 64 << 10);
    assert_eq!(bench.survive(&zeros_and(end), 8, 4), Ok(()));
    let hostile = [
        Vec::new(),
        stream(""),
        stream(end),
        // Another CRC, eight bytes too many behind the end, and none of it.
        zeros_and("11110 00000000000000000000000000000001"),
        [zeros_and(end), vec![0; 8]].concat(),
        zeros_and("11110")[..2].to_vec(),
        // A repetition of nothing, and of more than there is room for.
        stream(&format!("11011 000000 {end}")),
        zeros_and(&format!("11011 111111 {end}")),
        // Indexes into what is not made: of 8, 4 and 2 bytes.
        stream(&format!("11001 00000000 {end}")),
        zeros_and(&format!("11001 00000001 {end}")),
        zeros_and(&format!("11000 000000010 000000000 {end}")),
        zeros_and(&format!("10010 00000100 00000000 00000000 00000000 {end}")),
        // Codes that are none.
        zeros_and(&format!("11010 {end}")),
        zeros_and(&format!("11111 {end}")),
        // Bytes after a group that is not whole.
        stream(&format!("11101 001 00000000 11100 {end}")),
        stream(&format!("11101 111 00000000 {end}")),
    ];
    for object in hostile {
        for len in [1, 8, 9, 16, 100, 64 << 10] {
            assert_eq!(bench.survive(&object, len, 1), Err(Error::Damaged), "{object:x?} of {len}");
        }
    }
}

#[test]
fn hostile_deflate_streams() {
    let mut bench = Bench::new("deflate", 64 << 10);
    let hostile: [&[u8]; 8] = [
        &[],
        // A block of a type that is none; one that is stored with a length that does not match its complement.
        &[0x07],
        &[0x01, 0x01, 0x00, 0xff, 0xff, b'a'],
        // A stored block that is longer than the object.
        &[0x01, 0xff, 0xff, 0x00, 0x00, b'a'],
        // Fixed codes: a match before the beginning; an end at once; no end.
        &[0x03, 0x02, 0x00],
        &[0x03, 0x00],
        &[0x4b],
        // Codes of codes that are all empty.
        &[0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00],
    ];
    for object in hostile {
        for len in [1, 100, 64 << 10] {
            assert_eq!(bench.survive(object, len, 1), Err(Error::Damaged), "{object:x?}");
        }
    }
}

#[test]
fn another_algorithms_objects() {
    let mut random = Random(seed());
    let formats = ["lz4", "zstd", "deflate", "lzo", "lzo-rle", "842"];
    let pairs = formats.iter().flat_map(|writer| formats.map(|reader| (*writer, reader)));
    // lzo and lzo-rle read each other's.
    for (writer, reader) in pairs.filter(|(writer, reader)| writer[..3] != reader[..3]) {
        let mut bench = Bench::new(reader, 64 << 10);
        for _ in 0..50 {
            let unit = random.memory(16 << 10);
            let object = object(&mut context(writer, unit.len()), &unit);
            assert!(bench.survive(&object, unit.len(), 4096).is_err(), "{writer} read by {reader}");
        }
    }
}
