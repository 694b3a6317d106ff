//! Dictionaries: every level, length and unit; the wrong one; and what the reference tool makes of the same.

mod samples;

use acomp::{Compressor, Context, Error, FILE_MAX_BYTES, Outcome, UNIT_MAX_BYTES};
use samples::{Random, Samples, compress, decompress, filter, is_installed, object, scratch, seed};

fn context_with(text: &str, unit_max: usize, dictionary: &[u8]) -> Result<Context, Error> {
    Context::with_dictionary(Compressor::parse(text).unwrap(), unit_max, dictionary)
}

fn check(context: &mut Context, unit: &[u8]) -> usize {
    let object = object(context, unit);
    let mut back = vec![0; unit.len()];
    decompress(context, &object, &mut back).unwrap();
    assert!(back == unit);
    let part = unit.len().div_ceil(3);
    back.fill(0);
    context.decompress_prefix(&object, &mut back[..part], unit.len()).unwrap();
    assert!(back[..part] == unit[..part]);
    object.len()
}

/// Heaps of one process: their pointers are near each other.
fn heaps(random: &mut Random, count: usize) -> Vec<Vec<u8>> {
    let memory = random.text(count * 2048);
    let heap = random.heap(count * 2048);
    memory.chunks(2048).zip(heap.chunks(2048)).map(|(text, heap)| [text, heap].concat()).collect()
}

#[test]
fn workspace_suffices_for_every_level_length_and_unit() {
    let mut random = Random(seed());
    for level in -7..=22 {
        for unit_max in [1, 4096, 16 << 10, 64 << 10, UNIT_MAX_BYTES] {
            // The slowest levels take a second for 2 MiB.
            if level > 9 && unit_max > 64 << 10 {
                continue;
            }
            let any = 1 + random.below(FILE_MAX_BYTES);
            for len in [1, 8, 16 << 10, FILE_MAX_BYTES, any] {
                let dictionary = random.memory(len);
                let mut context =
                    context_with(&format!("zstd:{level},dict=FILE"), unit_max, &dictionary).unwrap();
                let some = 1 + random.below(unit_max);
                for unit in [unit_max.min(256 << 10), some.min(64 << 10), unit_max.min(4096)] {
                    let unit = random.heap(unit);
                    check(&mut context, &unit);
                }
            }
        }
    }
}

#[test]
fn any_length_of_unit() {
    let mut random = Random(seed());
    for level in [-5, 1, 3, 9] {
        let dictionary = [random.text(8000), random.heap(8000)].concat();
        let text = format!("zstd:{level},dict=FILE");
        let mut context = context_with(&text, UNIT_MAX_BYTES, &dictionary).unwrap();
        let edges = [8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, UNIT_MAX_BYTES - 1];
        let edges = edges.into_iter().flat_map(|len| [len - 1, len, len + 1]);
        for len in (1..=70).chain(edges) {
            let unit = random.memory(len);
            check(&mut context, &unit);
        }
    }
}

#[test]
fn what_is_in_the_dictionary_is_short_and_is_read_with_no_other() {
    let mut random = Random(seed());
    let (page, other) = (random.noise(4096), random.noise(4096));
    let mut with = context_with("zstd:1,dict=FILE", 4096, &page).unwrap();
    let short = object(&mut with, &page);
    assert!(short.len() < 100 && object(&mut with, &other).len() > 4096);
    // After one that did not fit the next is as good as ever.
    assert_eq!(compress(&mut with, &other, &mut [0; 90]), Ok(Outcome::Incompressible));
    assert!(object(&mut with, &page) == short);
    // With another one it is refused, or comes to something else; who keeps it has a hash.
    let mut back = vec![0; 4096];
    let read = decompress(&mut context_with("zstd:1,dict=FILE", 4096, &other).unwrap(), &short, &mut back);
    assert!(read.is_err() || back != page);
    assert_eq!(decompress(&mut samples::context("zstd:1", 4096), &short, &mut back), Err(Error::Damaged));
}

#[test]
fn one_that_is_empty_too_long_or_damaged_is_refused() {
    // The last has the mark of one with tables of codes, which are none.
    for bad in [vec![], vec![7; FILE_MAX_BYTES + 1], [&[0x37, 0xa4, 0x30, 0xec][..], &[0xff; 200]].concat()] {
        let context = context_with("zstd:1,dict=FILE", 4096, &bad);
        assert_eq!(context.err(), Some(Error::NoDictionary));
    }
    let compressor = Compressor::parse("zstd:1,dict=FILE").unwrap();
    assert_eq!(Context::new(compressor, 4096).err(), Some(Error::NoDictionary));
    // Who has none does not look at it.
    let page = Random(seed()).heap(4096);
    for text in ["zstd:1", "lz4", "deflate-iaa", "842"] {
        let objects = [&page[..], &[]]
            .map(|dictionary| object(&mut context_with(text, 4096, dictionary).unwrap(), &page));
        assert!(objects[0] == objects[1], "{text}");
    }
}

/// The frames' magic number, which ours lack.
const MAGIC: [u8; 4] = 0xfd2f_b528u32.to_le_bytes();

#[test]
fn the_reference_reads_what_is_written_with_a_dictionary_and_the_other_way_round() {
    if !is_installed("zstd", "zstd") {
        return;
    }
    let mut random = Random(seed());
    let pages = heaps(&mut random, 300);
    let folder = scratch("reference");
    let raw = folder.join("raw");
    std::fs::write(&raw, [random.text(9000), random.heap(9000)].concat()).unwrap();
    let trained = train_by_reference(&folder, &pages, 64 << 10);
    for file in [&raw, &trained] {
        let dictionary = std::fs::read(file).unwrap();
        let path = file.to_str().unwrap();
        for len in [1, 300, 4096, 64 << 10, UNIT_MAX_BYTES] {
            let units = [random.text(len), random.heap(len), random.memory(len)];
            for unit in units {
                for text in ["zstd:-3,dict=FILE", "zstd:1,dict=FILE", "zstd:7,dict=FILE", "zstd:13,dict=FILE"]
                {
                    let mut context = context_with(text, len, &dictionary).unwrap();
                    let frame = [&MAGIC[..], &object(&mut context, &unit)].concat();
                    assert!(filter("zstd", &["-d", "-c", "-D", path], &frame) == unit, "{text}, {len}");
                }
                let mut context = context_with("zstd:1,dict=FILE", len, &dictionary).unwrap();
                let size = format!("--stream-size={len}");
                for level in ["--fast=3", "-1", "-12"] {
                    let frame = filter("zstd", &[level, &size, "--no-check", "-c", "-D", path], &unit);
                    let mut back = vec![0; len];
                    decompress(&mut context, &frame[4..], &mut back).unwrap();
                    assert!(back == unit, "{level}, {len}");
                }
            }
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// The file with what `zstd --train` makes of samples.
fn train_by_reference(folder: &std::path::Path, pages: &[Vec<u8>], bytes: usize) -> std::path::PathBuf {
    let (all, file) = (folder.join("samples"), folder.join("trained"));
    std::fs::write(&all, pages.concat()).unwrap();
    let (most, path) = (format!("--maxdict={bytes}"), file.to_str().unwrap());
    filter("zstd", &["--train", "-q", "-B4096", &most, "-o", path, all.to_str().unwrap()], &[]);
    file
}
