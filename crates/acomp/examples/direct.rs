//! acomp beside each library's own functions, on the same units in turns: what the layer between costs.
//!
//! `cargo run --release -p acomp --example direct -- FILE...`; `bench/dumps FOLDER` makes files. Each file by itself:
//! 12 MiB spread over it, in steps of 2 MiB, out and back by each of the two in turn, who begins changing from step to
//! step; processor time, the least of each step's rounds summed, since others can only add to it. Directly is: a
//! context that is used again, and room for whatever comes. What came back is compared.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use acomp::{CompressRequest, Compressor, Context, DecompressRequest, Outcome};

const COMPRESSORS: [&str; 6] = ["lz4:1", "lz4hc:4", "zstd:1", "zstd:3", "zstd:9", "deflate:1"];
const UNITS_BYTES: [usize; 4] = [4 << 10, 16 << 10, 64 << 10, 2 << 20];
const STEP_BYTES: usize = 2 << 20;
const STEPS: usize = 6;
/// Of steps that are quick; of slow ones as few as there is time for.
const ROUNDS: usize = 7;

mod sys {
    use super::{c_int, c_void};

    unsafe extern "C" {
        pub fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
        pub fn LZ4_compress_default(src: *const u8, dst: *mut u8, src_len: c_int, dst_len: c_int) -> c_int;
        pub fn LZ4_compress_HC_extStateHC(
            state: *mut c_void,
            src: *const u8,
            dst: *mut u8,
            src_len: c_int,
            dst_len: c_int,
            level: c_int,
        ) -> c_int;
        pub fn LZ4_sizeofStateHC() -> c_int;
        pub fn LZ4_decompress_safe(src: *const u8, dst: *mut u8, src_len: c_int, dst_len: c_int) -> c_int;
        pub fn ZSTD_createCCtx() -> *mut c_void;
        pub fn ZSTD_createDCtx() -> *mut c_void;
        pub fn ZSTD_compressCCtx(
            context: *mut c_void,
            dst: *mut u8,
            dst_len: usize,
            src: *const u8,
            src_len: usize,
            level: c_int,
        ) -> usize;
        pub fn ZSTD_decompressDCtx(
            context: *mut c_void,
            dst: *mut u8,
            dst_len: usize,
            src: *const u8,
            src_len: usize,
        ) -> usize;
        pub fn libdeflate_alloc_compressor(level: c_int) -> *mut c_void;
        pub fn libdeflate_alloc_decompressor() -> *mut c_void;
        pub fn libdeflate_deflate_compress(
            context: *mut c_void,
            src: *const u8,
            src_len: usize,
            dst: *mut u8,
            dst_len: usize,
        ) -> usize;
        pub fn libdeflate_deflate_decompress(
            context: *mut c_void,
            src: *const u8,
            src_len: usize,
            dst: *mut u8,
            dst_len: usize,
            written: *mut usize,
        ) -> c_int;
    }
}

/// What this thread has had of a processor.
fn processor_time() -> Duration {
    const THREAD_CPUTIME: i32 = 3;
    let mut time = [0; 2];
    // SAFETY: `time` is as long as a timespec, which it is filled in as.
    assert_eq!(unsafe { sys::clock_gettime(THREAD_CPUTIME, &mut time) }, 0);
    Duration::new(time[0] as u64, time[1] as u32)
}

/// A library's contexts for one direction each; kept until the program ends.
enum Library {
    Lz4,
    Lz4Hc(Vec<u64>, c_int),
    Zstd(*mut c_void, *mut c_void, c_int),
    Deflate(*mut c_void, *mut c_void),
}

impl Library {
    fn new(compressor: Compressor) -> Library {
        let level = compressor.level();
        // SAFETY: these make contexts, and say how large one is.
        unsafe {
            match compressor.name() {
                "lz4" => Library::Lz4,
                "lz4hc" => Library::Lz4Hc(vec![0; sys::LZ4_sizeofStateHC() as usize / 8 + 1], level),
                "zstd" => Library::Zstd(sys::ZSTD_createCCtx(), sys::ZSTD_createDCtx(), level),
                _ => {
                    let out = sys::libdeflate_alloc_compressor(level);
                    Library::Deflate(out, sys::libdeflate_alloc_decompressor())
                }
            }
        }
    }

    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> usize {
        let (from, to, len, room) = (src.as_ptr(), dst.as_mut_ptr(), src.len(), dst.len());
        // SAFETY: both are as long as they are said to be, and the contexts are of these libraries.
        unsafe {
            match self {
                Library::Lz4 => sys::LZ4_compress_default(from, to, len as c_int, room as c_int) as usize,
                Library::Lz4Hc(state, level) => {
                    let state = state.as_mut_ptr().cast();
                    sys::LZ4_compress_HC_extStateHC(state, from, to, len as c_int, room as c_int, *level)
                        as usize
                }
                Library::Zstd(context, _, level) => {
                    sys::ZSTD_compressCCtx(*context, to, room, from, len, *level)
                }
                Library::Deflate(context, _) => {
                    sys::libdeflate_deflate_compress(*context, from, len, to, room)
                }
            }
        }
    }

    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) {
        let (from, to, len, room) = (src.as_ptr(), dst.as_mut_ptr(), src.len(), dst.len());
        // SAFETY: as above.
        unsafe {
            match self {
                Library::Lz4 | Library::Lz4Hc(..) => {
                    sys::LZ4_decompress_safe(from, to, len as c_int, room as c_int);
                }
                Library::Zstd(_, context, _) => {
                    sys::ZSTD_decompressDCtx(*context, to, room, from, len);
                }
                Library::Deflate(_, context) => {
                    sys::libdeflate_deflate_decompress(*context, from, len, to, room, std::ptr::null_mut());
                }
            }
        }
    }
}

/// What a step came to by one of the two: bytes, and the times of its rounds out and back.
#[derive(Default)]
struct Step {
    bytes: usize,
    times: [Vec<Duration>; 2],
}

fn by_library(
    library: &mut Library,
    step: &[u8],
    unit: usize,
    room: &mut [u8],
    back: &mut [u8],
    to: &mut Step,
) {
    let room_bytes = room.len() / (STEP_BYTES / unit);
    let mut lengths = Vec::with_capacity(step.len() / unit);
    let began = processor_time();
    for (unit, room) in step.chunks(unit).zip(room.chunks_mut(room_bytes)) {
        lengths.push(library.compress(unit, room));
    }
    to.times[0].push(processor_time() - began);
    let began = processor_time();
    for ((length, room), back) in lengths.iter().zip(room.chunks(room_bytes)).zip(back.chunks_mut(unit)) {
        library.decompress(&room[..*length], back);
    }
    to.times[1].push(processor_time() - began);
    to.bytes = lengths.iter().sum();
}

fn by_acomp(
    context: &mut Context,
    step: &[u8],
    unit: usize,
    room: &mut [u8],
    back: &mut [u8],
    to: &mut Step,
) {
    let room_bytes = room.len() / (STEP_BYTES / unit);
    let mut lengths = Vec::with_capacity(step.len() / unit);
    let began = processor_time();
    for (units, room) in step.chunks(8 * unit).zip(room.chunks_mut(8 * room_bytes)) {
        let mut pairs = units.chunks(unit).zip(room.chunks_mut(room_bytes));
        let mut batch: [CompressRequest<'_>; 8] = std::array::from_fn(|_| {
            let (unit, room) = pairs.next().unwrap_or_default();
            CompressRequest::new(unit, room)
        });
        let count = units.len() / unit;
        context.compress(&mut batch[..count]);
        lengths.extend(batch[..count].iter().map(|request| match request.result {
            Ok(Outcome::Shrunk(bytes)) => bytes,
            other => panic!("{other:?}"),
        }));
    }
    to.times[0].push(processor_time() - began);
    let began = processor_time();
    for ((lengths, room), back) in
        lengths.chunks(8).zip(room.chunks(8 * room_bytes)).zip(back.chunks_mut(8 * unit))
    {
        let mut pairs = lengths.iter().zip(room.chunks(room_bytes)).zip(back.chunks_mut(unit));
        let mut batch: [DecompressRequest<'_>; 8] = std::array::from_fn(|_| match pairs.next() {
            Some(((length, room), back)) => DecompressRequest::new(&room[..*length], back),
            None => DecompressRequest::new(&[], &mut []),
        });
        context.decompress(&mut batch[..lengths.len()]);
        assert!(batch[..lengths.len()].iter().all(|request| request.result.is_ok()));
    }
    to.times[1].push(processor_time() - began);
    to.bytes = lengths.iter().sum();
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files: Vec<String> = std::env::args().skip(1).collect();
    println!(
        "| | | unit | ratio: direct | acomp | out, GB/s: direct | acomp | | in, GB/s: direct | acomp | |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for file in &files {
        let memory = std::fs::read(file)?;
        let name = file.rsplit('/').next().unwrap_or(file).trim_end_matches(".mem");
        let all = memory.len() / STEP_BYTES;
        let count = STEPS.min(all);
        let steps: Vec<&[u8]> =
            (0..count).map(|step| &memory[step * all / count * STEP_BYTES..][..STEP_BYTES]).collect();
        for text in COMPRESSORS {
            let compressor = Compressor::parse(text)?;
            for unit in UNITS_BYTES {
                let (mut library, mut context) = (Library::new(compressor), Context::new(compressor, unit)?);
                let room_bytes = unit + unit / 4 + 128;
                let (mut room, mut back) = (vec![0; room_bytes * (STEP_BYTES / unit)], vec![0; STEP_BYTES]);
                // Directly, and through acomp.
                let (mut bytes, mut sums) = ([0; 2], [[Duration::ZERO; 2]; 2]);
                for (number, step) in steps.iter().enumerate() {
                    let mut both = [Step::default(), Step::default()];
                    let rounds = if text == "zstd:9" { 4 } else { ROUNDS };
                    for round in 0..rounds {
                        for turn in 0..2 {
                            let who = (number + round + turn) % 2;
                            back.fill(0);
                            let to = &mut both[who];
                            match who {
                                0 => by_library(&mut library, step, unit, &mut room, &mut back, to),
                                _ => by_acomp(&mut context, step, unit, &mut room, &mut back, to),
                            }
                            assert!(back == *step, "{text}, {unit}: other memory came back");
                        }
                    }
                    for (who, step) in both.iter().enumerate() {
                        bytes[who] += step.bytes;
                        for (way, times) in step.times.iter().enumerate() {
                            sums[who][way] += times.iter().min().copied().unwrap_or_default();
                        }
                    }
                }
                let plain = (steps.len() * STEP_BYTES) as f64;
                let speed = |who: usize, way: usize| plain / sums[who][way].as_secs_f64() / 1e9;
                let more = |way: usize| 100.0 * (speed(1, way) / speed(0, way) - 1.0);
                println!(
                    "| {name} | {text} | {} | {:.3} | {:.3} | {:.3} | {:.3} | {:+.1} % | {:.3} | {:.3} | {:+.1} % |",
                    if unit < 1 << 20 { format!("{}K", unit >> 10) } else { format!("{}M", unit >> 20) },
                    plain / bytes[0] as f64,
                    plain / bytes[1] as f64,
                    speed(0, 0),
                    speed(1, 0),
                    more(0),
                    speed(0, 1),
                    speed(1, 1),
                    more(1)
                );
            }
        }
    }
    Ok(())
}
