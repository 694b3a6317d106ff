//! Objects of two compressors: each says which one made it.

use base::Random;
use std::cell::Cell;
use zswap::layout::{Format, View};
use zswap::{Choice, Codec, Damaged, New, PAGE, PARCEL_MAX_BYTES, Packed, Priors, WINDOW_PAGES, Way};

const WINDOW: usize = WINDOW_PAGES * PAGE;

fn codec(text: &str) -> Codec {
    thread_local!(static CLOCK: Cell<u64> = const { Cell::new(0) });
    Codec::new(Choice::parse(text).unwrap(), 7, &[]).unwrap().timed_by(|| CLOCK.replace(CLOCK.get() + 1000))
}

/// What this compressor's objects say.
fn of(text: &str) -> Format {
    Format::Of(Choice::parse(text).unwrap().compressor.kind())
}

/// Words, one page of noise, and one that a word fills.
fn window() -> Vec<u8> {
    let mut random = Random(1);
    let mut next = || random.below(1 << 31);
    let words: Vec<String> = (0..200).map(|_| format!("{:x} ", next())).collect();
    let mut window: Vec<u8> = Vec::new();
    while window.len() < WINDOW {
        window.extend(words[next() % words.len()].as_bytes());
    }
    window.truncate(WINDOW);
    window[3 * PAGE..4 * PAGE].iter_mut().for_each(|byte| *byte = next() as u8);
    window[5 * PAGE..6 * PAGE].fill(9);
    window
}

fn pack(codec: &mut Codec, window: &[u8], unit: usize, way: Way) -> (Packed, Vec<u8>) {
    let mut parcel = vec![0; PARCEL_MAX_BYTES];
    let packed =
        codec.pack_one(&mut window.to_vec(), u16::MAX.into(), unit, &Priors::default(), way, &mut parcel);
    (packed, parcel)
}

/// The objects that have bytes: where their pages begin, and their fingerprints.
fn objects<'a>(packed: &Packed, unit: usize, parcel: &'a [u8]) -> Vec<(usize, &'a [u8], u32)> {
    let mut rest = parcel;
    let news = packed.objects.iter().flatten().enumerate();
    news.filter_map(|(at, new)| match *new {
        New::Blob { fingerprint, bytes, .. } => {
            let (object, behind) = rest.split_at(bytes as usize);
            rest = behind;
            Some((at * unit * PAGE, object, fingerprint))
        }
        New::Same(_) => None,
    })
    .collect()
}

#[test]
fn each_object_says_who_made_it_and_is_read_by_that_one() {
    let window = window();
    for unit in [1, 3, 16] {
        let mut sizes = Vec::new();
        for way in [Way::Fast, Way::Dense, Way::Both] {
            let mut auto = codec("auto");
            let (packed, parcel) = pack(&mut auto, &window, unit, way);
            let made = of(if way == Way::Fast { "lz4" } else { "zstd" });
            let objects = objects(&packed, unit, &parcel);
            let sum: usize = objects.iter().map(|(_, object, _)| object.len()).sum();
            sizes.push(sum);
            // The clock goes on by 1000 between two looks.
            let [fast, dense] = [packed.tried.fast, packed.tried.dense];
            assert_eq!([fast.ns, dense.ns], [[0, 0], [0, 1000], [1000, 1000]][way as usize - 1]);
            assert_eq!(dense.bytes as usize, if way == Way::Fast { 0 } else { sum });
            assert_eq!(fast.bytes as usize, if way == Way::Both { sizes[0] } else { 0 });
            // Another process of the run reads them too, whatever it makes objects by.
            let (mut other, mut dense, mut fast) = (codec("auto,cpu=0"), codec("zstd:1"), codec("lz4"));
            let mut seen = 0;
            for (at, object, print) in objects {
                let view = View::read(object).unwrap();
                let mut to = vec![0; view.pages * PAGE];
                for codec in [&mut auto, &mut other, &mut dense, &mut fast] {
                    to.fill(0);
                    codec.unpack(object, print, 0, &mut to).unwrap();
                    assert!(to == window[at..][..view.pages * PAGE], "{way:?} {unit}");
                    to[..PAGE].fill(0);
                    codec.unpack(object, print, view.pages - 1, &mut to[..PAGE]).unwrap();
                    assert!(to[..PAGE] == window[at + (view.pages - 1) * PAGE..][..PAGE]);
                }
                if view.format == Format::Plain {
                    continue;
                }
                assert_eq!(view.format, made);
                seen += 1;
                // Said to be the other one's, or made with a dictionary that there is none of.
                for liar in [of(if way == Way::Fast { "zstd" } else { "lz4" }), of("zstd,dict=FILE")] {
                    let Format::Of(kind) = liar else { unreachable!() };
                    let mut bad = object.to_vec();
                    bad[1] = 1 + kind.number();
                    assert_eq!(View::read(&bad).unwrap().format, liar);
                    assert_eq!(auto.unpack(&bad, print, 0, &mut to), Err(Damaged::Stream));
                }
            }
            assert!(seen > 0);
        }
        assert!(sizes[1] < sizes[0] && sizes[2] == sizes[1], "{sizes:?}");
    }
}

#[test]
fn a_damaged_object_of_either_is_an_error() {
    let window = window();
    let mut auto = codec("auto");
    for way in [Way::Fast, Way::Dense] {
        let (packed, parcel) = pack(&mut auto, &window, 2, way);
        let (at, object, print) = objects(&packed, 2, &parcel)[0];
        let mut to = vec![0; 2 * PAGE];
        for byte in (0..object.len()).filter(|byte| *byte < 50 || byte % 7 == 0) {
            for bit in 0..8 {
                let mut bad = object.to_vec();
                bad[byte] ^= 1 << bit;
                // What decompresses to the same bytes is no damage.
                if auto.unpack(&bad, print, 0, &mut to).is_ok() {
                    assert!(to == window[at..][..2 * PAGE], "byte {byte}");
                }
            }
            assert!(auto.unpack(&object[..byte], print, 0, &mut to).is_err());
        }
    }
}

#[test]
fn without_a_budget_objects_are_lz4_s_and_with_all_of_it_zstd_s() {
    let window = window();
    for (way, alone) in [(Way::Fast, "lz4"), (Way::Dense, "zstd:1")] {
        for unit in [1, 16] {
            let ours = pack(&mut codec("auto"), &window, unit, way);
            let theirs = pack(&mut codec(alone), &window, unit, Way::Only);
            let (ours, theirs) = (objects(&ours.0, unit, &ours.1), objects(&theirs.0, unit, &theirs.1));
            assert_eq!(ours.len(), theirs.len());
            for ((_, ours, _), (_, theirs, _)) in ours.into_iter().zip(theirs) {
                // All but the byte that says so.
                assert!(ours[0] == theirs[0] && ours[2..] == theirs[2..], "{alone}");
            }
        }
    }
}
