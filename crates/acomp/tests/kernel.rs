//! The kernel reads what is written here, and what it wrote is read here: through file systems that compress, in images
//! that are mounted for it.
//!
//! squashfs takes an image whose blocks are our streams: lzo's and lzo-rle's are read by the same lzo1x_decompress_safe
//! that zswap and zram have, lz4's, zstd's and deflate's by the kernel's own copies of those libraries. btrfs
//! compresses what is written to it, with lzo in pages of 4 KiB, by the same lzo1x_1_compress as zswap's `lzo`, and
//! gives the streams away (BTRFS_IOC_ENCODED_READ). So lzo is proved both ways, and lzo-rle as far as the kernel reads
//! it: what writes lzo-rle (f2fs, ubifs, zram) and 842 is not in the usual kernels, or does not give it away. For these
//! `kernel_streams.rs` has the kernel's code. It takes root; where that, a file system or mkfs.btrfs is missing it is
//! said so.

mod samples;

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use base::PAGE;
use samples::{Random, Samples, context, decompress, object, scratch, seed};

/// Says that a test cannot be made here. What a kernel has not got no installation gives it.
fn skip(why: &str) {
    samples::skip::lacks(&format!("{why}: the kernel's streams were not compared"));
}

/// Whether images of this file system can be mounted. If not, that is said.
fn is_known(file_system: &str) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let is_root =
        status.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"));
    let known = fs::read_to_string("/proc/filesystems").unwrap();
    let is_there = known.lines().any(|line| line.split_whitespace().last() == Some(file_system));
    match (is_root, is_there) {
        (false, _) => skip("only root mounts images"),
        (_, false) => skip(&format!("this kernel has no {file_system}")),
        _ => return true,
    }
    false
}

/// An image that is mounted, for as long as this lives.
struct Mount(PathBuf);

impl Mount {
    fn new(image: &Path, file_system: &str, options: &str) -> Result<Mount, String> {
        let at = image.with_extension("mounted");
        fs::create_dir_all(&at).unwrap();
        let mut mount = Command::new("mount");
        let output = mount.args(["-t", file_system, "-o", options]).args([image, &at]).output().unwrap();
        if output.status.success() {
            return Ok(Mount(at));
        }
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// squashfs's names for what its blocks are compressed with, and what it wants around a stream of ours.
enum Around {
    Zlib = 1,
    Lzo = 3,
    Lz4 = 5,
    Zstd = 6,
}

const BLOCK_BYTES: usize = 1 << 20;

/// A block of metadata as it is: its length and the mark for that, and it.
fn metadata(bytes: &[u8]) -> Vec<u8> {
    assert!(bytes.len() <= 8192);
    [&(0x8000 | bytes.len() as u16).to_le_bytes()[..], bytes].concat()
}

/// A file system of files `0`, `1`, … in one folder, each one block, by the format's description
/// (Documentation/filesystems/squashfs.rst).
fn squashfs(around: Around, files: &[(Vec<u8>, usize)]) -> Vec<u8> {
    const NONE: u64 = u64::MAX;
    let mut image = vec![0; 96];
    // No fragments, no extended attributes; lz4's options must be there.
    let mut flags = 0x10u16 | 0x200;
    if matches!(around, Around::Lz4) {
        flags |= 0x400;
        image.extend(metadata(&[1, 0, 0, 0, 0, 0, 0, 0]));
    }
    let (mut inodes, mut names) = (Vec::new(), Vec::new());
    let inode = |kind: u16, number: usize| -> Vec<u8> {
        let mut head: Vec<u8> = [kind, 0o755, 0, 0].iter().flat_map(|half| half.to_le_bytes()).collect();
        head.extend(0u32.to_le_bytes());
        head.extend((number as u32).to_le_bytes());
        head
    };
    let words =
        |words: &[usize]| -> Vec<u8> { words.iter().flat_map(|word| (*word as u32).to_le_bytes()).collect() };
    let mut order: Vec<usize> = (0..files.len()).collect();
    order.sort_by_key(|number| number.to_string());
    for number in order {
        let (stream, plain_bytes) = &files[number];
        let name = number.to_string();
        names.extend((inodes.len() as u16).to_le_bytes());
        names.extend((number as i16).to_le_bytes());
        names.extend(2u16.to_le_bytes());
        names.extend((name.len() as u16 - 1).to_le_bytes());
        names.extend(name.bytes());
        inodes.extend(inode(2, 1 + number));
        inodes.extend(words(&[image.len(), u32::MAX as usize, 0, *plain_bytes, stream.len()]));
        image.extend(stream);
    }
    let names = [words(&[files.len() - 1, 0, 1]), names].concat();
    let root = inodes.len();
    inodes.extend(inode(1, 1 + files.len()));
    inodes.extend(words(&[0, 2]));
    inodes.extend((names.len() as u16 + 3).to_le_bytes());
    inodes.extend(0u16.to_le_bytes());
    inodes.extend(words(&[2 + files.len()]));
    let tables = [metadata(&inodes), metadata(&names), metadata(&[0; 4])].map(|table| {
        let at = image.len() as u64;
        image.extend(table);
        at
    });
    let ids = image.len() as u64;
    image.extend(tables[2].to_le_bytes());
    let mut head = b"hsqs".to_vec();
    head.extend(words(&[1 + files.len(), 0, BLOCK_BYTES, 0]));
    let halves = [around as u16, BLOCK_BYTES.ilog2() as u16, flags, 1, 4, 0];
    head.extend(halves.iter().flat_map(|half| half.to_le_bytes()));
    let places = [root as u64, image.len() as u64, ids, NONE, tables[0], tables[1], NONE, NONE];
    head.extend(places.iter().flat_map(|place| place.to_le_bytes()));
    image[..96].copy_from_slice(&head);
    image.resize(image.len().next_multiple_of(4096), 0);
    image
}

/// Adler-32 (RFC 1950).
fn adler32(bytes: &[u8]) -> u32 {
    let (a, b) = bytes.iter().fold((1u32, 0u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65521;
        (a, (b + a) % 65521)
    });
    b << 16 | a
}

/// Units of every kind, of one byte to a block.
fn units() -> Vec<Vec<u8>> {
    let mut random = Random(seed());
    let mut units = vec![vec![7], random.text(20), random.heap(300)];
    for len in [4096, 10_000, 16 << 10, 64 << 10, 300_000, BLOCK_BYTES] {
        units.extend([
            random.text(len),
            random.heap(len),
            vec![0; len],
            random.memory(len),
            random.sparse(len),
        ]);
    }
    units
}

#[test]
fn the_kernel_reads_what_is_written() {
    if !is_known("squashfs") {
        return;
    }
    let folder = scratch("squashfs");
    // What is compressed as nothing shows whether images can be mounted here at all.
    let image = folder.join("plain");
    fs::write(&image, squashfs(Around::Lzo, &[(vec![1; 1], 1)])).unwrap();
    if let Err(why) = Mount::new(&image, "squashfs", "loop,ro") {
        fs::remove_dir_all(&folder).unwrap();
        return skip(&format!("images cannot be mounted ({why})"));
    }
    for (text, around) in [
        ("lzo", Around::Lzo),
        ("lzo-rle", Around::Lzo),
        ("lz4", Around::Lz4),
        ("lz4hc:12", Around::Lz4),
        ("zstd:-7", Around::Zstd),
        ("zstd:1", Around::Zstd),
        ("zstd:19", Around::Zstd),
        ("deflate:1", Around::Zlib),
        ("deflate:12", Around::Zlib),
        ("deflate-iaa", Around::Zlib),
        ("deflate-iaa:fixed", Around::Zlib),
        ("deflate-iaa:canned", Around::Zlib),
    ] {
        let units = units();
        let mut context = context(text, BLOCK_BYTES);
        let mut runs = 0;
        let streams = units.iter().map(|unit| {
            let stream = object(&mut context, unit);
            runs += usize::from(stream[0] == 17);
            match around {
                Around::Lzo | Around::Lz4 => stream,
                Around::Zstd => [&0xfd2f_b528u32.to_le_bytes()[..], &stream].concat(),
                Around::Zlib => [&[0x78, 0x9c], &stream[..], &adler32(unit).to_be_bytes()].concat(),
            }
        });
        // A block that is longer than what it holds is refused by the kernel.
        let files: Vec<(Vec<u8>, usize)> =
            streams.zip(&units).map(|(stream, unit)| (stream, unit.len())).collect();
        let is_block = |stream: &Vec<u8>| stream.len() <= BLOCK_BYTES;
        let (files, units): (Vec<_>, Vec<_>) =
            files.into_iter().zip(units).filter(|((stream, _), _)| is_block(stream)).unzip();
        let image = folder.join(text.replace(':', "-"));
        fs::write(&image, squashfs(around, &files)).unwrap();
        let mount = Mount::new(&image, "squashfs", "loop,ro").unwrap_or_else(|why| panic!("{text}: {why}"));
        for (number, unit) in units.iter().enumerate() {
            let read = fs::read(mount.0.join(number.to_string()));
            let read = read.unwrap_or_else(|e| panic!("{text}: {} bytes: {e}", unit.len()));
            assert!(read == *unit, "{text}: the kernel reads {} bytes as others", unit.len());
        }
        println!("{text}: {} streams, {runs} of them with the mark of lzo-rle", units.len());
        if text.starts_with("lzo") {
            assert_eq!(runs, if text == "lzo" { 0 } else { units.len() }, "{text}");
        }
        drop(mount);
        fs::remove_file(image).unwrap();
    }
    fs::remove_dir_all(folder).unwrap();
}

/// What the kernel takes and gives for encoded data (include/uapi/linux/btrfs.h).
#[repr(C)]
struct Encoded<'a> {
    buffers: *mut Buffer<'a>,
    count: u64,
    offset: i64,
    flags: u64,
    len: u64,
    plain_len: u64,
    plain_offset: u64,
    compression: u32,
    encryption: u32,
    reserved: [u8; 64],
}

#[repr(C)]
struct Buffer<'a> {
    at: *mut u8,
    bytes: usize,
    of: std::marker::PhantomData<&'a mut [u8]>,
}

unsafe extern "C" {
    fn ioctl(file: i32, request: u64, ...) -> i32;
}

/// The extent at a place of a file as it lies on the disk: how it is compressed, its bytes, and how many it holds.
fn extent(file: &File, offset: usize) -> std::io::Result<(u32, Vec<u8>, usize)> {
    const READ: u64 = 0x8080_9440;
    let mut room = vec![0; 256 << 10];
    let mut buffer = Buffer { at: room.as_mut_ptr(), bytes: room.len(), of: std::marker::PhantomData };
    let mut encoded = Encoded {
        buffers: &mut buffer,
        count: 1,
        offset: offset as i64,
        flags: 0,
        len: 0,
        plain_len: 0,
        plain_offset: 0,
        compression: 0,
        encryption: 0,
        reserved: [0; 64],
    };
    // SAFETY: the request takes this structure, and writes into it and the buffer that it names.
    let bytes = unsafe { ioctl(file.as_raw_fd(), READ, &raw mut encoded) };
    if bytes < 0 {
        return Err(std::io::Error::last_os_error());
    }
    room.truncate(bytes as usize);
    // The file may end before it does.
    assert!(encoded.plain_offset == 0 && encoded.len <= encoded.plain_len, "all of an extent");
    Ok((encoded.compression, room, encoded.plain_len as usize))
}

fn le32(bytes: &[u8]) -> usize {
    u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize
}

/// Each page of an extent is a stream of lzo of its own, behind its length, which lies in one sector: its description
/// is in fs/btrfs/lzo.c.
fn lzo_streams(extent: &[u8]) -> Vec<&[u8]> {
    let end = le32(extent);
    let (mut at, mut streams) = (4, Vec::new());
    while at < end {
        if PAGE - at % PAGE < 4 {
            at = at.next_multiple_of(PAGE);
        }
        let len = le32(&extent[at..]);
        streams.push(&extent[at + 4..][..len]);
        at += 4 + len;
    }
    streams
}

#[test]
fn what_the_kernel_wrote_is_read() {
    if !is_known("btrfs") || !samples::is_installed("mkfs.btrfs", "btrfs-progs") {
        return;
    }
    let folder = scratch("btrfs");
    let image = folder.join("image");
    File::create(&image).unwrap().set_len(160 << 20).unwrap();
    let mut make = Command::new("mkfs.btrfs");
    let made =
        make.args(["-q", "-f", "-m", "single", "-d", "single", "-s", "4096"]).arg(&image).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mount = match Mount::new(&image, "btrfs", "loop,compress-force=lzo,max_inline=0") {
        Ok(mount) => mount,
        Err(why) => {
            fs::remove_dir_all(&folder).unwrap();
            return skip(&format!("images cannot be mounted ({why})"));
        }
    };
    let mut contexts = ["lzo", "lzo-rle"].map(|text| context(text, PAGE));
    let (mut streams, mut bytes) = (0, 0);
    // Whole pages: whether what a file's end leaves of one is compressed too differs from kernel to kernel.
    for (number, unit) in units().iter().enumerate().filter(|(_, unit)| unit.len() % PAGE == 0) {
        let path = mount.0.join(number.to_string());
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all(unit).unwrap();
        file.sync_all().unwrap();
        let mut offset = 0;
        while offset < unit.len() {
            let (compression, stored, len) = extent(&file, offset).unwrap();
            let plain = &unit[offset..offset + len];
            offset += len;
            // 3 is lzo with sectors of 4 KiB; what did not shrink is stored as it is.
            if compression == 0 {
                continue;
            }
            assert_eq!(compression, 3);
            let pieces = lzo_streams(&stored);
            assert_eq!(pieces.len(), len / PAGE);
            for (piece, plain) in pieces.iter().zip(plain.chunks(PAGE)) {
                for context in &mut contexts {
                    let text = context.compressor();
                    let mut back = [0; PAGE];
                    decompress(context, piece, &mut back).unwrap_or_else(|e| {
                        panic!("{text}: the kernel's stream of {} bytes: {e}", piece.len())
                    });
                    assert!(back == plain, "{text}: the kernel's stream is read as another page");
                }
                (streams, bytes) = (streams + 1, bytes + piece.len());
            }
        }
    }
    println!("{streams} of the kernel's streams, {bytes} bytes");
    assert!(streams > 500, "{streams}");
    drop(mount);
    fs::remove_dir_all(folder).unwrap();
}
