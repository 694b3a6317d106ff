//! Ratio and speed of every algorithm on a file, in units of several lengths.
//!
//! `cargo run --release -p acomp --example speed -- FILE [COMPRESSOR...]`; `bench/make-data FILE --size 24M` makes one
//! that is long enough and takes a minute or two.

use std::time::Duration;

use acomp::{CompressRequest, Compressor, Context, DecompressRequest, Outcome};

/// Every algorithm, at its usual level and at others that make a difference.
const COMPRESSORS: [&str; 18] = [
    "lz4",
    "lz4:8",
    "lz4hc:3",
    "lz4hc:9",
    "lz4hc:12",
    "zstd:-5",
    "zstd:-1",
    "zstd:1",
    "zstd:3",
    "zstd:9",
    "zstd:19",
    "deflate:1",
    "deflate:6",
    "deflate:12",
    "deflate-iaa",
    "lzo",
    "lzo-rle",
    "842",
];
const UNITS_BYTES: [usize; 3] = [4 << 10, 64 << 10, 2 << 20];
const PAGE_BYTES: usize = 4 << 10;

/// What the units of one length came to.
struct Row {
    object_bytes: usize,
    incompressible: usize,
    compress: Duration,
    decompress: Duration,
    /// Time for the first page of every unit.
    first_page: Duration,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).ok_or("usage: speed FILE [COMPRESSOR...]")?;
    let asked: Vec<String> = std::env::args().skip(2).collect();
    let compressors: Vec<&str> =
        if asked.is_empty() { COMPRESSORS.to_vec() } else { asked.iter().map(String::as_str).collect() };
    let memory = std::fs::read(&file)?;

    println!(
        "{file}, {} MiB; GB/s of plain bytes, by processor time; µs for the first 4 KiB of a unit",
        memory.len() >> 20
    );
    println!(
        "{:<10}{:>7}{:>8}{:>7}{:>10}{:>12}{:>13}",
        "", "unit", "ratio", "raw", "compress", "decompress", "first page"
    );
    for text in compressors {
        let compressor = Compressor::parse(text)?;
        for unit_bytes in UNITS_BYTES {
            let row = measure(compressor, &memory, unit_bytes)?;
            let units = memory.len().div_ceil(unit_bytes);
            println!(
                "{text:<10}{:>6}K{:>8.2}{:>6.1}%{:>10.2}{:>12.2}{:>13.2}",
                unit_bytes >> 10,
                memory.len() as f64 / row.object_bytes as f64,
                100.0 * row.incompressible as f64 / units as f64,
                memory.len() as f64 / row.compress.as_nanos() as f64,
                memory.len() as f64 / row.decompress.as_nanos() as f64,
                row.first_page.as_nanos() as f64 / 1e3 / units as f64,
            );
        }
    }
    Ok(())
}

/// What this thread has had of a processor: on a busy machine the clock on the wall says nothing.
fn processor_time() -> Duration {
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
    }
    const THREAD_CPUTIME: i32 = 3;
    let mut time = [0; 2];
    // SAFETY: `time` is as long as a timespec, which it is filled in as.
    assert_eq!(unsafe { clock_gettime(THREAD_CPUTIME, &mut time) }, 0);
    Duration::new(time[0] as u64, time[1] as u32)
}

/// Takes all of `memory` out and back in batches, and checks that it came back.
fn measure(compressor: Compressor, memory: &[u8], unit_bytes: usize) -> Result<Row, acomp::Error> {
    let mut context = Context::new(compressor, unit_bytes)?;
    let mut row = Row {
        object_bytes: 0,
        incompressible: 0,
        compress: Duration::ZERO,
        decompress: Duration::ZERO,
        first_page: Duration::ZERO,
    };
    let batch_bytes = unit_bytes * context.batch_size();
    let mut room = vec![0; batch_bytes];
    let mut back = vec![0; batch_bytes];
    for batch in memory.chunks(batch_bytes) {
        let mut out: Vec<_> = batch
            .chunks(unit_bytes)
            .zip(room.chunks_mut(unit_bytes))
            .map(|(unit, room)| {
                let limit = unit.len() - 1;
                CompressRequest::new(unit, &mut room[..limit])
            })
            .collect();
        let start = processor_time();
        context.compress(&mut out);
        row.compress += processor_time() - start;

        let mut units = Vec::new();
        let mut objects = Vec::new();
        for request in &out {
            match request.result? {
                Outcome::Shrunk(bytes) => {
                    row.object_bytes += bytes;
                    units.push(request.src);
                    objects.push(&request.dst[..bytes]);
                }
                Outcome::Incompressible => {
                    row.object_bytes += request.src.len();
                    row.incompressible += 1;
                }
            }
        }

        let mut pieces = back.chunks_mut(unit_bytes);
        let mut input: Vec<_> = units
            .iter()
            .zip(&objects)
            .zip(&mut pieces)
            .map(|((unit, object), piece)| DecompressRequest::new(object, &mut piece[..unit.len()]))
            .collect();
        let start = processor_time();
        context.decompress(&mut input);
        row.decompress += processor_time() - start;
        for (request, unit) in input.iter().zip(&units) {
            request.result?;
            assert!(request.dst == *unit, "another unit came back");
        }

        for (unit, object) in units.iter().zip(&objects) {
            let mut page = [0; PAGE_BYTES];
            let page = &mut page[..PAGE_BYTES.min(unit.len())];
            let start = processor_time();
            context.decompress_prefix(object, page, unit.len())?;
            row.first_page += processor_time() - start;
            assert!(*page == unit[..page.len()], "another page came back");
        }
    }
    Ok(row)
}
