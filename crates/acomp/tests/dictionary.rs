//! Dictionaries: every level, length and unit; the wrong one; what the reference tool makes of the same; and trained ones beside its own.

mod samples;

use acomp::train::Trainer;
use acomp::{CompressRequest, Compressor, Context, DecompressRequest, Error, Outcome};
use acomp::{FILE_MAX_BYTES, TRAINED_BYTES, TRAINED_MAX, UNIT_MAX_BYTES};
use samples::{Random, filter, is_installed, object, scratch, seed};

/// A context of `text` with these dictionaries, the first at place 0.
fn context_with(text: &str, unit_max: usize, dictionaries: &[&[u8]]) -> Context {
    let mut context = Context::new(Compressor::parse(text).unwrap(), unit_max).unwrap();
    for (place, dictionary) in dictionaries.iter().enumerate() {
        context.learn(place, dictionary).unwrap();
        assert_eq!(context.dictionary(place), Some(*dictionary));
    }
    context
}

fn compress(context: &mut Context, unit: &[u8], dictionary: Option<usize>) -> Vec<u8> {
    let mut room = vec![0; unit.len() + unit.len() / 8 + 64];
    let mut batch = [CompressRequest::new(unit, &mut room).with(dictionary)];
    context.compress(&mut batch);
    let Ok(Outcome::Shrunk(bytes)) = batch[0].result else { panic!("{:?}", batch[0].result) };
    room.truncate(bytes);
    room
}

fn decompress(
    context: &mut Context,
    object: &[u8],
    unit: &mut [u8],
    place: Option<usize>,
) -> Result<(), Error> {
    let mut batch = [DecompressRequest::new(object, unit).with(place)];
    context.decompress(&mut batch);
    batch[0].result
}

fn check(context: &mut Context, unit: &[u8], dictionary: Option<usize>) -> usize {
    let object = compress(context, unit, dictionary);
    let mut back = vec![0; unit.len()];
    decompress(context, &object, &mut back, dictionary).unwrap();
    assert!(back == unit);
    let part = unit.len().div_ceil(3);
    back.fill(0);
    context.decompress_prefix(&object, &mut back[..part], unit.len(), dictionary).unwrap();
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
        for (text, longest) in [("auto", TRAINED_BYTES), ("FILE", FILE_MAX_BYTES)] {
            for unit_max in [1, 4096, 16 << 10, 64 << 10, UNIT_MAX_BYTES] {
                // The slowest levels take a second for 2 MiB.
                if level > 9 && unit_max > 64 << 10 && longest != TRAINED_BYTES {
                    continue;
                }
                let any = 1 + random.below(longest);
                for len in [1, 8, longest, any] {
                    let dictionary = random.memory(len);
                    let text = format!("zstd:{level},dict={text}");
                    let mut context = context_with(&text, unit_max, &[&dictionary]);
                    let some = 1 + random.below(unit_max);
                    for unit in [unit_max.min(256 << 10), some.min(64 << 10), unit_max.min(4096)] {
                        let unit = random.heap(unit);
                        check(&mut context, &unit, Some(0));
                        check(&mut context, &unit, None);
                    }
                }
            }
        }
    }
}

#[test]
fn any_length_of_unit() {
    let mut random = Random(seed());
    for text in ["zstd:-5,dict=auto", "zstd:1,dict=auto", "zstd:3,dict=FILE", "zstd:9,dict=auto"] {
        let dictionary = [random.text(8000), random.heap(8000)].concat();
        let mut context = context_with(text, UNIT_MAX_BYTES, &[&dictionary]);
        let edges = [8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, UNIT_MAX_BYTES - 1];
        let edges = edges.into_iter().flat_map(|len| [len - 1, len, len + 1]);
        for len in (1..=70).chain(edges) {
            let unit = random.memory(len);
            check(&mut context, &unit, Some(0));
        }
    }
}

#[test]
fn each_request_of_a_batch_has_the_dictionary_that_it_names() {
    let mut random = Random(seed());
    let dictionaries: Vec<Vec<u8>> = (0..TRAINED_MAX).map(|_| random.noise(4096)).collect();
    let all: Vec<&[u8]> = dictionaries.iter().map(|d| &d[..]).collect();
    let mut context = context_with("zstd:1,dict=auto", 4096, &all);
    let mut rooms: Vec<Vec<u8>> = vec![vec![0; 5000]; 40];
    let place = |at: usize| (at % 4).checked_sub(1);
    // Each is one of the dictionaries: it is short with that one alone.
    let mut batch: Vec<_> = rooms
        .iter_mut()
        .enumerate()
        .map(|(at, room)| CompressRequest::new(&dictionaries[at % 4 * 2 % 3], room).with(place(at)))
        .collect();
    context.compress(&mut batch);
    let lengths: Vec<usize> = batch
        .iter()
        .map(|request| match request.result {
            Ok(Outcome::Shrunk(bytes)) => bytes,
            _ => panic!("{:?}", request.result),
        })
        .collect();
    for (at, &len) in lengths.iter().enumerate() {
        let is_short = place(at) == Some(at % 4 * 2 % 3);
        assert_eq!(len < 100, is_short, "{at}: {len} bytes");
        let mut back = vec![0; 4096];
        decompress(&mut context, &rooms[at][..len], &mut back, place(at)).unwrap();
        assert!(back == dictionaries[at % 4 * 2 % 3]);
        // With another one it is refused, or comes to something else; who keeps it has a hash.
        if is_short {
            let other = (place(at).unwrap() + 1) % TRAINED_MAX;
            back.fill(0);
            let read = decompress(&mut context, &rooms[at][..len], &mut back, Some(other));
            assert!(read.is_err() || back != dictionaries[at % 4 * 2 % 3]);
            assert_eq!(decompress(&mut context, &rooms[at][..len], &mut back, None), Err(Error::Damaged));
        }
    }
}

#[test]
fn a_place_has_what_was_put_there_last_or_nothing() {
    let mut random = Random(seed());
    let (old, new) = (random.noise(4096), random.noise(4096));
    let mut context = context_with("zstd:1,dict=auto", 4096, &[&old]);
    let mut room = vec![0; 5000];
    let mut compress_at = |context: &mut Context, place| {
        let mut batch = [CompressRequest::new(&new, &mut room).with(Some(place))];
        context.compress(&mut batch);
        batch[0].result
    };
    assert!(matches!(compress_at(&mut context, 0), Ok(Outcome::Shrunk(4096..))));
    context.learn(0, &new).unwrap();
    assert!(matches!(compress_at(&mut context, 0), Ok(Outcome::Shrunk(..100))));
    // After one that did not fit the next is as good as ever.
    let mut short = [0; 90];
    let mut batch = [CompressRequest::new(&old, &mut short).with(Some(0))];
    context.compress(&mut batch);
    assert_eq!(batch[0].result, Ok(Outcome::Incompressible));
    assert!(matches!(compress_at(&mut context, 0), Ok(Outcome::Shrunk(..100))));
    for place in [1, TRAINED_MAX, usize::MAX] {
        assert_eq!(compress_at(&mut context, place), Err(Error::NoDictionary));
        assert_eq!(decompress(&mut context, &[1, 2], &mut [0; 9], Some(place)), Err(Error::NoDictionary));
    }
    assert_eq!(context.learn(TRAINED_MAX, &new), Err(Error::NoDictionary));
    // Too long, empty, and with tables of codes that are none: what was there is gone.
    for bad in [vec![7; TRAINED_BYTES + 1], vec![], [&[0x37, 0xa4, 0x30, 0xec][..], &[0xff; 200]].concat()] {
        context.learn(0, &new).unwrap();
        assert_eq!(context.learn(0, &bad), Err(Error::NoDictionary));
        assert_eq!(context.dictionary(0), None);
        assert_eq!(compress_at(&mut context, 0), Err(Error::NoDictionary));
    }
    for text in ["zstd", "lz4", "deflate-iaa", "842"] {
        let mut context = context_with(text, 4096, &[]);
        assert_eq!(context.learn(0, &new), Err(Error::NoDictionary));
        assert_eq!(compress_at(&mut context, 0), Err(Error::NoDictionary));
        assert_eq!(context.decompress_prefix(&[1, 2, 3], &mut [0; 4], 8, Some(0)), Err(Error::NoDictionary));
    }
}

#[test]
fn what_it_takes_is_what_it_says() {
    let bytes = |text: &str| Compressor::parse(text).unwrap().workspace_bytes(64 << 10);
    let (none, auto, file) = (bytes("zstd:1"), bytes("zstd:1,dict=auto"), bytes("zstd:1,dict=FILE"));
    println!("{none} bytes without, {auto} and {file} with dictionaries");
    assert!(auto > none + TRAINED_MAX * TRAINED_BYTES && file > none + FILE_MAX_BYTES);
    assert!(auto < 2 * none + (1 << 20) && file < 2 * none + (1 << 20));
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
                    let mut context = context_with(text, len, &[&dictionary]);
                    let frame = [&MAGIC[..], &compress(&mut context, &unit, Some(0))].concat();
                    assert!(filter("zstd", &["-d", "-c", "-D", path], &frame) == unit, "{text}, {len}");
                }
                let mut context = context_with("zstd:1,dict=FILE", len, &[&dictionary]);
                let size = format!("--stream-size={len}");
                for level in ["--fast=3", "-1", "-12"] {
                    let frame = filter("zstd", &[level, &size, "--no-check", "-c", "-D", path], &unit);
                    let mut back = vec![0; len];
                    decompress(&mut context, &frame[4..], &mut back, Some(0)).unwrap();
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

/// What pages come to with a dictionary, or without one.
fn compressed_bytes(pages: &[Vec<u8>], dictionary: Option<&[u8]>) -> usize {
    let mut context = match dictionary {
        Some(dictionary) => context_with("zstd:1,dict=FILE", 4096, &[dictionary]),
        None => samples::context("zstd:1", 4096),
    };
    let place = dictionary.map(|_| 0);
    pages.iter().map(|page| compress(&mut context, page, place).len()).sum()
}

/// No fewer bytes of tables come before the content of what the reference trains: 141 to 144 on heaps.
const TABLES_BYTES: usize = 256;

/// On the memory in the file that ACOMP_MEMORY names, or on made-up memory: what is trained here gains as much as the content that the reference chooses.
#[test]
fn what_is_trained_gains_as_much_as_the_reference_s() {
    let mut random = Random(seed());
    let pages: Vec<Vec<u8>> = match std::env::var_os("ACOMP_MEMORY") {
        Some(file) => std::fs::read(file).unwrap().chunks_exact(4096).map(<[u8]>::to_vec).collect(),
        None => heaps(&mut random, 1200),
    };
    let step = (pages.len() / 256).max(1);
    let train: Vec<Vec<u8>> = pages.iter().step_by(step).cloned().collect();
    let held: Vec<Vec<u8>> = pages.iter().skip(1).step_by(step).cloned().collect();
    let mut trainer = Trainer::new(train.concat(), 4096, TRAINED_BYTES).unwrap();
    let (mut steps, began) = (0, std::time::Instant::now());
    while trainer.step() {
        steps += 1;
    }
    let took = began.elapsed();
    let (dictionary, _) = trainer.finish();
    let (without, ours) = (compressed_bytes(&held, None), compressed_bytes(&held, Some(&dictionary)));
    let gain = |bytes: usize| (without as f64 / bytes as f64 - 1.0) * 100.0;
    println!("{} bytes trained in {steps} steps, {took:?}: {:.2} % more ratio", dictionary.len(), gain(ours));
    assert!(ours < without);
    if is_installed("zstd", "zstd") {
        let folder = scratch("training");
        let reference = std::fs::read(train_by_reference(&folder, &train, TRAINED_BYTES)).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        let (theirs, content) = (&reference[..], &reference[TABLES_BYTES..]);
        let [theirs, content] = [theirs, content].map(|d| compressed_bytes(&held, Some(d)));
        println!("the reference's {:.2} %, its content alone {:.2} %", gain(theirs), gain(content));
        assert!(ours as f64 <= content as f64 * 1.02, "{ours} bytes, and {content} with the reference's");
    }
}

#[test]
fn a_context_of_one_source_still_reads_what_has_no_dictionary() {
    let mut random = Random(seed());
    let unit = random.heap(5000);
    let object = object(&mut samples::context("zstd:3", unit.len()), &unit);
    let mut back = vec![0; unit.len()];
    decompress(&mut context_with("zstd:1,dict=auto", 5000, &[]), &object, &mut back, None).unwrap();
    assert!(back == unit);
}
