//! The reference tools read what is written here, and what they write is read here: lz4, zstd, python3's zlib and lzop.
//!
//! lzop is liblzo2, which may not be linked: it is run as a program. For lzo-rle there is nothing but the kernel
//! (`kernel.rs`), for 842 nothing at all: `vectors.rs` has what is known of it. A tool that is not installed is said
//! so.

mod samples;

use samples::{Random, Samples, context, decompress, filter, is_installed, object, seed};

/// Units of every kind, of one byte to 2 MiB.
fn units() -> Vec<Vec<u8>> {
    let mut random = Random(seed());
    let mut units = vec![vec![7], random.noise(3), random.text(20), random.heap(300)];
    for len in [4096, 10_000, 64 << 10, 300_000, 2 << 20] {
        units.extend([random.text(len), random.heap(len), random.memory(len)]);
    }
    units.extend([vec![0; 4096], vec![0; 2 << 20], random.noise(70_000)]);
    units
}

fn compress(text: &str, unit: &[u8]) -> Vec<u8> {
    object(&mut context(text, unit.len()), unit)
}

fn check_reads(text: &str, object: &[u8], unit: &[u8]) {
    let mut back = vec![0; unit.len()];
    decompress(&mut context(text, unit.len()), object, &mut back)
        .unwrap_or_else(|e| panic!("{text}: a stream of {} bytes: {e}", unit.len()));
    assert!(back == unit, "{text}: {} bytes came back changed", unit.len());
}

fn be32(bytes: &[u8]) -> usize {
    u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize
}

fn le32(bytes: &[u8]) -> usize {
    u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize
}

#[test]
fn lz4_blocks() {
    if !is_installed("lz4", "lz4") {
        return;
    }
    // The tool's older container is a number and, for each block, its length.
    const MAGIC: [u8; 4] = 0x184c_2102u32.to_le_bytes();
    for unit in units() {
        for text in ["lz4", "lz4hc:3", "lz4hc:12"] {
            let block = compress(text, &unit);
            let file = [&MAGIC[..], &(block.len() as u32).to_le_bytes(), &block].concat();
            assert!(filter("lz4", &["-d", "-c"], &file) == unit, "{text}, {} bytes", unit.len());
        }
        for level in ["-1", "-12"] {
            let file = filter("lz4", &["-l", level, "-c"], &unit);
            assert_eq!((&file[..4], le32(&file[4..])), (&MAGIC[..], file.len() - 8));
            check_reads("lz4hc", &file[8..], &unit);
        }
    }
}

#[test]
fn zstd_frames() {
    if !is_installed("zstd", "zstd") {
        return;
    }
    // Our frames lack it.
    const MAGIC: [u8; 4] = 0xfd2f_b528u32.to_le_bytes();
    for unit in units() {
        for text in ["zstd:-7", "zstd:1", "zstd:9"] {
            let file = [&MAGIC[..], &compress(text, &unit)].concat();
            assert!(filter("zstd", &["-d", "-c"], &file) == unit, "{text}, {} bytes", unit.len());
        }
        let size = format!("--stream-size={}", unit.len());
        for level in ["--fast=3", "-1", "-12"] {
            let file = filter("zstd", &[level, &size, "--no-check", "-c"], &unit);
            assert_eq!(file[..4], MAGIC);
            check_reads("zstd", &file[4..], &unit);
        }
    }
}

#[test]
fn deflate_streams() {
    if !is_installed("python3", "python3") {
        return;
    }
    // All of them in one run, each after its length. A stream must end where the object does.
    let read = "import sys, zlib\n\
                d, o = sys.stdin.buffer.read(), sys.stdout.buffer\n\
                while d:\n\
                \x20 n = int.from_bytes(d[:4], 'big'); z = zlib.decompressobj(-15)\n\
                \x20 p = z.decompress(d[4:4+n]); assert z.eof and not z.unused_data\n\
                \x20 o.write(len(p).to_bytes(4, 'big') + p); d = d[4+n:]\n";
    let write = "import sys, zlib\n\
                 d, o = sys.stdin.buffer.read(), sys.stdout.buffer\n\
                 while d:\n\
                 \x20 n = int.from_bytes(d[:4], 'big')\n\
                 \x20 for level, strategy in (0, 0), (1, 0), (6, 0), (9, 0), (6, zlib.Z_FIXED), (6, zlib.Z_HUFFMAN_ONLY):\n\
                 \x20  z = zlib.compressobj(level, zlib.DEFLATED, -15, 8, strategy)\n\
                 \x20  p = z.compress(d[4:4+n]) + z.flush(); o.write(len(p).to_bytes(4, 'big') + p)\n\
                 \x20 d = d[4+n:]\n";
    let with_lengths = |pieces: &[Vec<u8>]| -> Vec<u8> {
        pieces.iter().flat_map(|bytes| [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat()).collect()
    };
    let units = units();
    for text in
        ["deflate:1", "deflate:6", "deflate:12", "deflate-iaa", "deflate-iaa:fixed", "deflate-iaa:canned"]
    {
        let streams: Vec<_> = units.iter().map(|unit| compress(text, unit)).collect();
        let plain = filter("python3", &["-c", read], &with_lengths(&streams));
        assert!(plain == with_lengths(&units), "{text}");
    }
    let streams = filter("python3", &["-c", write], &with_lengths(&units));
    let mut rest = &streams[..];
    for unit in &units {
        for _ in 0..6 {
            let (object, behind) = rest[4..].split_at(be32(rest));
            check_reads("deflate", object, unit);
            check_reads("deflate-iaa", object, unit);
            rest = behind;
        }
    }
    assert!(rest.is_empty());
}

/// Adler-32 (RFC 1950), which lzop has for its header.
fn adler32(bytes: &[u8]) -> u32 {
    let (a, b) = bytes.iter().fold((1u32, 0u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65521;
        (a, (b + a) % 65521)
    });
    b << 16 | a
}

/// lzop's container with one block.
fn lzop_file(block: &[u8], plain_bytes: usize) -> Vec<u8> {
    let mut header = Vec::new();
    for version in [0x1040u16, 0x20a0, 0x0940] {
        header.extend(version.to_be_bytes());
    }
    header.extend([1, 5]); // LZO1X-1, level 5
    for word in [0u32, 0o100_644, 0, 0] {
        header.extend(word.to_be_bytes()); // flags: no checksums; mode; time
    }
    header.push(0); // no name
    header.extend(adler32(&header).to_be_bytes());
    let mut file = b"\x89LZO\0\r\n\x1a\n".to_vec();
    file.extend(header);
    file.extend((plain_bytes as u32).to_be_bytes());
    file.extend((block.len() as u32).to_be_bytes());
    file.extend(block);
    file.extend([0; 4]);
    file
}

/// The blocks of lzop's container, each with how many bytes it holds.
fn lzop_blocks(file: &[u8]) -> Vec<(&[u8], usize)> {
    // Magic, three versions, method and level; flags; mode and times; the name's length.
    let flags = be32(&file[17..]);
    assert_eq!(flags & 0x800, 0, "a filter");
    let name_bytes = usize::from(file[33]);
    let mut rest = &file[34 + name_bytes + 4..];
    let checksums = |bits: [usize; 2]| bits.iter().filter(|bit| flags & **bit != 0).count();
    let mut blocks = Vec::new();
    while be32(rest) != 0 {
        let (plain_bytes, bytes) = (be32(rest), be32(&rest[4..]));
        let mut sums = checksums([0x1, 0x100]);
        if bytes < plain_bytes {
            sums += checksums([0x2, 0x200]);
        }
        let (block, behind) = rest[8 + 4 * sums..].split_at(bytes);
        blocks.push((block, plain_bytes));
        rest = behind;
    }
    blocks
}

/// lzop's levels 1 and 3 are two searches of LZO1X-1, and 9 is LZO1X-999, which alone uses every instruction.
#[test]
fn lzo_streams() {
    if !is_installed("lzop", "lzop") {
        return;
    }
    for unit in units() {
        let block = compress("lzo", &unit);
        // lzop has no block that did not shrink, and none that is longer.
        if block.len() < unit.len() && unit.len() <= 256 << 10 {
            let plain = filter("lzop", &["-d", "-c"], &lzop_file(&block, unit.len()));
            assert!(plain == unit, "{} bytes", unit.len());
        }
        for level in ["-1", "-3", "-9"] {
            let file = filter("lzop", &[level, "-c"], &unit);
            let mut at = 0;
            for (block, bytes) in lzop_blocks(&file) {
                let plain = &unit[at..at + bytes];
                at += bytes;
                if block.len() < bytes {
                    check_reads("lzo", block, plain);
                    check_reads("lzo-rle", block, plain);
                }
            }
            assert_eq!(at, unit.len());
        }
    }
}
