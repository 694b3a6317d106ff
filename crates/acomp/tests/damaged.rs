//! Objects that were damaged, cut short, made up or meant for another algorithm: errors, and nothing worse.
//!
//! A byte more than `dst` or `src` would hit an inaccessible page on either side: every buffer ends where one begins.

mod samples;

use std::ptr::null_mut;

use acomp::{Context, Error};
use samples::{Random, context, decompress, object, seed};

const COMPRESSORS: [&str; 5] = ["lz4", "zstd:-5", "zstd:1", "zstd:9", "zstd:19"];

mod sys {
    use std::ffi::c_void;
    pub const READ_WRITE: i32 = 3;
    pub const PRIVATE_ANONYMOUS: i32 = 0x22;
    unsafe extern "C" {
        pub fn mmap(
            at: *mut c_void,
            bytes: usize,
            access: i32,
            flags: i32,
            fd: i32,
            offset: i64,
        ) -> *mut c_void;
        pub fn mprotect(at: *mut c_void, bytes: usize, access: i32) -> i32;
    }
}

/// Memory between two inaccessible pages, kept until the test ends.
struct Fenced {
    memory: &'static mut [u8],
}

impl Fenced {
    const PAGE: usize = 4096;

    fn new(bytes: usize) -> Fenced {
        let bytes = bytes.next_multiple_of(Self::PAGE);
        // SAFETY: a new mapping, which nobody else knows, is fenced and then used as plain bytes.
        let memory = unsafe {
            let all = bytes + 2 * Self::PAGE;
            let start =
                sys::mmap(null_mut(), all, sys::READ_WRITE, sys::PRIVATE_ANONYMOUS, -1, 0).cast::<u8>();
            assert_ne!(start as isize, -1);
            assert_eq!(sys::mprotect(start.cast(), Self::PAGE, 0), 0);
            assert_eq!(sys::mprotect(start.add(Self::PAGE + bytes).cast(), Self::PAGE, 0), 0);
            std::slice::from_raw_parts_mut(start.add(Self::PAGE), bytes)
        };
        Fenced { memory }
    }

    /// The last `len` bytes, right before the fence.
    fn back(&mut self, len: usize) -> &mut [u8] {
        let start = self.memory.len() - len;
        &mut self.memory[start..]
    }

    /// The first `len` bytes, right behind the other fence.
    fn front(&mut self, len: usize) -> &mut [u8] {
        &mut self.memory[..len]
    }
}

/// A context, and fenced buffers for what it reads and writes.
struct Bench {
    context: Context,
    src: Fenced,
    dst: Fenced,
}

impl Bench {
    fn new(text: &str, unit_max: usize) -> Bench {
        let bytes = unit_max + unit_max / 100 + 4096;
        Bench { context: context(text, unit_max), src: Fenced::new(bytes), dst: Fenced::new(bytes) }
    }

    /// Decompresses an object that may be anything, wholly and in part. It may come to any bytes, but
    /// only within `dst`, of which the bytes before it are watched and those behind it are fenced.
    fn survive(&mut self, object: &[u8], len: usize, prefix: usize) -> Result<(), Error> {
        const WATCHED: usize = 64;
        let src = self.src.back(object.len());
        src.copy_from_slice(object);
        let dst = self.dst.back(len + WATCHED);
        dst[..WATCHED].fill(0xc3);
        let result = decompress(&mut self.context, src, &mut dst[WATCHED..]);
        assert_eq!(dst[..WATCHED], [0xc3; WATCHED], "written before dst");

        let src = self.src.front(object.len());
        src.copy_from_slice(object);
        let dst = self.dst.front(prefix + WATCHED);
        dst[prefix..].fill(0xc3);
        let _ = self.context.decompress_prefix(src, &mut dst[..prefix], len);
        assert_eq!(dst[prefix..], [0xc3; WATCHED], "written behind dst");
        result
    }

    /// The context still reads what is whole.
    fn is_well(&mut self, object: &[u8], unit: &[u8]) {
        let dst = self.dst.back(unit.len());
        decompress(&mut self.context, object, dst).unwrap();
        assert!(dst == unit);
        let dst = self.dst.back(unit.len().div_ceil(2));
        self.context.decompress_prefix(object, dst, unit.len()).unwrap();
        assert!(*dst == unit[..dst.len()]);
    }
}

/// Changes an object in one of the ways in which memory goes bad, or as somebody would who means harm.
fn mutate(random: &mut Random, object: &[u8], other: &[u8]) -> Vec<u8> {
    let mut object = object.to_vec();
    for _ in 0..1 + random.below(3) {
        if object.is_empty() {
            break;
        }
        let at = if random.below(3) == 0 {
            random.below(object.len().min(24))
        } else {
            random.below(object.len())
        };
        match random.below(8) {
            0 => object[at] ^= 1 << random.below(8),
            1 => object[at] = random.next() as u8,
            2 => object[at] = [0, 0xff, 0x80, 0x7f][random.below(4)],
            3 => object.truncate(at),
            4 => drop(object.remove(at)),
            5 => object.insert(at, random.next() as u8),
            6 => {
                let piece = random.below(64).min(object.len() - at).min(other.len());
                object[at..at + piece].copy_from_slice(&other[..piece]);
            }
            _ => {
                let piece = random.below(200).min(object.len() - at);
                object[at..at + piece].fill(0xff);
            }
        }
    }
    object
}

#[test]
fn mutated_objects() {
    let seed = seed();
    for (text, rounds) in COMPRESSORS.iter().zip([6_000, 1_500, 1_500, 1_500, 1_500]) {
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
    for text in ["lz4", "zstd:1"] {
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

#[test]
fn another_algorithms_objects() {
    let mut random = Random(seed());
    for (writer, reader) in [("lz4", "zstd"), ("zstd", "lz4")] {
        let mut bench = Bench::new(reader, 64 << 10);
        for _ in 0..200 {
            let unit = random.memory(16 << 10);
            let object = object(&mut context(writer, unit.len()), &unit);
            assert!(bench.survive(&object, unit.len(), 4096).is_err(), "{writer} read by {reader}");
        }
    }
}
