//! Streams made by hand, to which the formats' descriptions give a meaning, for what has no reference tool.
//!
//! They prove that the decoders take the descriptions' instructions for what these say, and that the encoders write
//! what the descriptions have. `kernel.rs` has lzo and lzo-rle beside the running kernel, `kernel_streams.rs` these and
//! 842 beside the kernel's code, and `reference.rs` lzo beside lzop.

mod samples;

use samples::{Random, Samples, compress, context, decompress, object, seed};

/// What a stream holds, by the decoder of `text`.
fn plain(text: &str, stream: &[u8], len: usize) -> Vec<u8> {
    let mut back = vec![0xa5; len];
    decompress(&mut context(text, len), stream, &mut back)
        .unwrap_or_else(|e| panic!("{text}: {stream:x?}: {e}"));
    back
}

const END: [u8; 3] = [0x11, 0, 0];

/// `head`, what `middle` says, and the end.
fn lzo(head: &[u8], middle: &[u8]) -> Vec<u8> {
    [head, middle, &END].concat()
}

#[test]
fn lzo_instructions() {
    let noise = Random(seed()).noise(50_000);
    // All of the noise as literals: a zero, a zero byte for each 255, and what is left.
    let all = |len: usize| {
        let rest = len - 18;
        let mut stream = vec![0; 1 + (rest - 1) / 255];
        stream.push(((rest - 1) % 255 + 1) as u8);
        stream.extend(&noise[..len]);
        stream
    };
    let back = |len: usize, distance: usize, count: usize| -> Vec<u8> {
        let mut plain = noise[..len].to_vec();
        for _ in 0..count {
            plain.push(plain[plain.len() - distance]);
        }
        plain
    };
    // Instruction, how many bytes it is behind, how far back it copies, and how many.
    let cases: [(&[u8], usize, usize, usize); 14] = [
        // 01LDDDSS H: 3 and 4 bytes, from 1 and from 2048.
        (&[0x40, 0], 100, 1, 3),
        (&[0x60 | 7 << 2, 255], 3000, 2048, 4),
        // 1LLDDDSS H: 5 and 8 bytes.
        (&[0x80 | 2 << 2, 1], 100, 11, 5),
        (&[0xe0, 12], 100, 97, 8),
        // 001LLLLL: 3 and 33 bytes with the length within, 34, 288 and 289 with it behind.
        (&[0x21, 0xfc, 0xff], 20_000, 16384, 3),
        (&[0x3f, 4, 0], 100, 2, 33),
        (&[0x20, 1, 0x8c, 0x01], 100, 100, 34),
        (&[0x20, 255, 0, 0], 100, 1, 288),
        (&[0x20, 0, 1, 0, 0], 100, 1, 289),
        // 0001HLLL: the nearest, the first with H, the furthest.
        (&[0x11, 4, 0], 20_000, 16385, 3),
        (&[0x1f, 0, 0], 40_000, 32768, 9),
        (&[0x10, 1, 4, 0], 20_000, 16385, 10),
        (&[0x19, 0xf8, 0xff], 50_000, 0xbffe, 3),
        // 0000DDSS H after four and more literals: 3 bytes from 2049 and further.
        (&[2 << 2, 3], 5000, 2049 + 2 + 12, 3),
    ];
    for (instruction, len, distance, count) in cases {
        for text in ["lzo", "lzo-rle"] {
            let stream = lzo(&all(len), instruction);
            assert!(plain(text, &stream, len + count) == back(len, distance, count), "{instruction:x?}");
        }
    }
    // In the first version alone 0xbfff is a distance: in the other it says that zeros come.
    let furthest = lzo(&all(50_000), &[0x19, 0xfc, 0xff]);
    assert!(plain("lzo", &furthest, 50_003) == back(50_000, 0xbfff, 3));
}

#[test]
fn lzo_literals() {
    // The first byte counts 1 to 238 literals; 1 to 3 make 0000DDSS a copy of 2 from 1 KiB back at most.
    assert_eq!(plain("lzo", &lzo(&[18, b'a'], &[0, 0]), 3), b"aaa");
    assert_eq!(plain("lzo", &lzo(&[20, b'a', b'b', b'c'], &[1 << 2 | 1, 0, b'd']), 6), b"abcbcd");
    let long: Vec<u8> = (0..238).map(|i| i as u8).collect();
    assert_eq!(plain("lzo", &lzo(&[255], &long), 238), long);
    // Literals after a copy, by its last two bits: in the first byte of two, in the second of three, in the third of
    // four.
    assert_eq!(
        plain("lzo", &lzo(&[21, b'a', b'b', b'c', b'd'], &[0x43 | 3 << 2, 0, b'x', b'y', b'z']), 10),
        b"abcdabcxyz"
    );
    assert_eq!(
        plain("lzo", &lzo(&[21, b'a', b'b', b'c', b'd'], &[0x21, 3 << 2 | 1, 0, b'x']), 8),
        b"abcdabcx"
    );
    // Long literals where none came before: 4, 18 and 19 of them.
    for len in [4usize, 18, 19, 300] {
        let letters = vec![b'l'; len];
        let count: &[u8] = match len {
            4 => &[1],
            18 => &[15],
            19 => &[0, 1],
            _ => &[0, 0, 27],
        };
        let stream = lzo(&[18, b'a'], &[&[0x40, 0][..], count, &letters].concat());
        assert_eq!(plain("lzo", &stream, 4 + len), [b"aaaa", &letters[..]].concat());
    }
}

#[test]
fn lzo_runs_of_zeros() {
    // The mark, the version, a literal, a run of 4 zeros, three literals in it, a run of 2051, one of 260 whose lower
    // bits are 0.
    let stream = [
        17,
        1,
        18,
        b'a',
        0x18,
        0xfc | 3,
        0xff,
        0,
        b'x',
        b'y',
        b'z',
        0x1f,
        0xfc,
        0xff,
        0xff,
        0x18,
        0xfc | 1,
        0xff,
        32,
        b'e',
        0x11,
        0,
        0,
    ];
    let expected = [&b"a"[..], &[0; 4], b"xyz", &[0; 2051], &[0; 260], b"e"].concat();
    // Either's decoder reads either version, as the kernel's does.
    for text in ["lzo", "lzo-rle"] {
        assert!(plain(text, &stream, expected.len()) == expected);
    }
    // The encoder's stream for a page that is nothing but zeros: a literal, two runs of zeros, the end.
    let stream = object(&mut context("lzo-rle", 4096), &[0; 4096]);
    let mut expected = vec![17, 1, 18, 0, 0x1f, 0xfc, 0xff, 0xff];
    let left = 4095 - 2051 - 4;
    expected.extend([0x18 | (left & 7) as u8, 0xfc, 0xff, (left >> 3) as u8, 0x11, 0, 0]);
    assert_eq!(stream, expected);
    // lzo has none of this: lzop reads it.
    assert_ne!(object(&mut context("lzo", 4096), &[0; 4096])[0], 17);
}

/// Far copies of 261 to 264 bytes with three literals behind could be taken for runs of zeros: none may be written.
#[test]
fn lzo_copies_that_look_like_runs() {
    let mut random = Random(seed());
    let mut context = context("lzo-rle", 64 << 10);
    for distance in [0x803fusize, 0x807f, 0xa03f, 0xb03f, 0xbfbf, 0xbffe, 0xbfff, 0xc000, 0x8040] {
        for len in 258..268 {
            let mut unit = random.noise(300);
            unit.resize(distance, 0);
            unit.extend_from_within(..len);
            unit.extend(random.noise(3));
            unit.extend([0; 100]);
            unit.extend(random.noise(20));
            let object = object(&mut context, &unit);
            let mut back = vec![0; unit.len()];
            decompress(&mut context, &object, &mut back).unwrap();
            assert!(back == unit, "{len} bytes from {distance:#x}");
            assert!(
                distance > 0xbffe || object.len() < unit.len(),
                "{len} bytes from {distance:#x} were not found"
            );
        }
    }
}

/// An 842 stream: bits, the CRC of the plain data, and zeros up to 8 bytes.
fn nx842(bits: &str, plain: &[u8]) -> Vec<u8> {
    let mut crc = 0u32;
    for byte in plain {
        crc ^= u32::from(*byte) << 24;
        for _ in 0..8 {
            crc = crc << 1 ^ if crc >> 31 == 1 { 0x04c1_1db7 } else { 0 };
        }
    }
    let text = format!("{bits} 11110 {crc:032b}");
    let mut bits: Vec<u8> = text.bytes().filter(|bit| *bit != b' ').map(|bit| bit - b'0').collect();
    bits.resize(bits.len().next_multiple_of(64), 0);
    bits.chunks(8).map(|byte| byte.iter().fold(0, |byte, bit| byte << 1 | bit)).collect()
}

fn binary(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:08b}")).collect()
}

/// Every template: two groups of data, and a third of pieces of them.
#[test]
fn nx842_templates() {
    let data = b"abcdefghijklmnop";
    // Arguments of the description's table, in order: D and I of 2, 4 and 8 bytes.
    let templates = [
        "D8",
        "D4 D2 I2",
        "D4 I2 D2",
        "D4 I2 I2",
        "D4 I4",
        "D2 I2 D4",
        "D2 I2 D2 I2",
        "D2 I2 I2 D2",
        "D2 I2 I2 I2",
        "D2 I2 I4",
        "I2 D2 D4",
        "I2 D4 I2",
        "I2 D2 I2 D2",
        "I2 D2 I2 I2",
        "I2 D2 I4",
        "I2 I2 D4",
        "I2 I2 D2 I2",
        "I2 I2 I2 D2",
        "I2 I2 I2 I2",
        "I2 I2 I4",
        "I4 D4",
        "I4 D2 I2",
        "I4 I2 D2",
        "I4 I2 I2",
        "I4 I4",
        "I8",
    ];
    for (code, arguments) in templates.iter().enumerate() {
        let mut bits = format!("00000 {} 00000 {} {code:05b}", binary(&data[..8]), binary(&data[8..]));
        let mut expected = data.to_vec();
        for (number, argument) in arguments.split(' ').enumerate() {
            let bytes: usize = argument[1..].parse().unwrap();
            if argument.starts_with('D') {
                let new = &b"QRSTUVWXYZ"[number..number + bytes];
                bits += &binary(new);
                expected.extend(new);
            } else {
                // One that no other argument has.
                let index = (16 / bytes - 1).saturating_sub(number);
                let width = if bytes == 4 { 9 } else { 8 };
                bits += &format!("{index:0width$b}");
                expected.extend(&data[index * bytes..(index + 1) * bytes]);
            }
        }
        assert_eq!(expected.len(), 24, "{arguments}");
        assert_eq!(plain("842", &nx842(&bits, &expected), 24), expected, "code {code}: {arguments}");
    }
}

#[test]
fn nx842_rings() {
    // 600 groups that differ, then indexes. A ring of 512 bytes has gone round 9 times and stands at 192; one of 2048
    // twice, and stands at 704.
    let mut random = Random(seed());
    let data = random.noise(4800);
    let mut bits: String = data.chunks(8).map(|group| format!("00000 {}", binary(group))).collect();
    let mut expected = data.clone();
    let at = |expected: &mut Vec<u8>, from: usize, bytes: usize| {
        expected.extend_from_slice(&data[from..from + bytes])
    };
    // I2: 0, the last that this round has, the first that the round before has, its last.
    bits += "10010 00000000 01011111 01100000 11111111";
    for from in [4608, 4608 + 190, 4096 + 192, 4096 + 510] {
        at(&mut expected, from, 2);
    }
    // I4, after 4808 bytes: 0, and the last that the round before has.
    bits += "11000 000000000 111111111";
    for from in [4096, 2048 + 2044] {
        at(&mut expected, from, 4);
    }
    // I8, after 4816 bytes: the oldest that can be had.
    bits += &format!("11001 {:08b}", (4816 - 4096) / 8);
    at(&mut expected, 4816 - 2048, 8);
    assert!(plain("842", &nx842(&bits, &expected), expected.len()) == expected);
}

#[test]
fn nx842_repeats_zeros_and_short_data() {
    let group = b"abcdefgh";
    let bits =
        format!("00000 {} 11011 000000 11100 11011 111111 11101 011 {}", binary(group), binary(b"xyz"));
    let expected = [&group[..], group, &[0; 8], &[0; 512], b"xyz"].concat();
    assert!(plain("842", &nx842(&bits, &expected), expected.len()) == expected);
    // The encoder's.
    assert_eq!(object(&mut context("842", expected.len()), &expected), nx842(&bits, &expected));
    let (empty_page, mut room) = (vec![0; 4096], vec![0; 100]);
    let bits = format!("11100 {} 11011 111110", "11011 111111".repeat(7));
    compress(&mut context("842", 4096), &empty_page, &mut room).unwrap();
    assert!(room.starts_with(&nx842(&bits, &empty_page)));
    // A half is coded by the shortest of what it could be: an index of 4 bytes, two of 2, one of 2 and data. What was
    // seen twice is taken from where it was last.
    let unit = b"abcdefghefghghabab--cdef";
    let (first, dashes) = (binary(group), binary(b"--"));
    let bits =
        format!("00000 {first} 10111 000000001 00000011 00000000 01101 00000111 {dashes} 00000001 00000100");
    let stream = object(&mut context("842", unit.len()), unit);
    assert_eq!(stream, nx842(&bits, unit));
    assert_eq!(plain("842", &stream, unit.len()), unit);
}

/// Each bit of a stream of one group is looked at.
#[test]
fn nx842_keeps_a_crc() {
    let stream = object(&mut context("842", 8), b"abcdefgh");
    for bit in 0..64 {
        let mut bad = stream.clone();
        bad[bit / 8] ^= 0x80 >> (bit % 8);
        let mut back = [0; 8];
        assert!(decompress(&mut context("842", 8), &bad, &mut back).is_err(), "bit {bit}");
    }
}
