//! Objects of two compressors: each says which one made it.

use base::Random;
use zswap::layout::{Format, View};
use zswap::{Choice, Codec, Damaged, New, PAGE, PARCEL_MAX_BYTES, Packed, Priors, Tier, WINDOW_PAGES};

const WINDOW: usize = WINDOW_PAGES * PAGE;

/// Pages an object, and who makes it by [`BOTH`].
const UNITS: [(usize, Tier, &str); 3] =
    [(1, Tier::Fast, "lz4"), (3, Tier::Dense, "zstd:1"), (WINDOW_PAGES, Tier::Dense, "zstd:1")];

const BOTH: &str = "lz4,zstd:1";

fn codec(text: &str) -> Codec {
    Codec::new(Choice::parse(text).unwrap(), 7, &[]).unwrap()
}

/// What this compressor's objects say.
fn of(text: &str) -> Format {
    Format::Of(Choice::parse(text).unwrap().dense.kind())
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

fn pack(codec: &mut Codec, window: &[u8], unit: usize) -> (Packed, Vec<u8>) {
    let mut parcel = vec![0; PARCEL_MAX_BYTES];
    let packed =
        codec.pack_one(&mut window.to_vec(), u16::MAX.into(), unit, &Priors::default(), false, &mut parcel);
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
fn a_page_is_made_by_the_fast_one_and_a_window_by_the_dense_one_and_any_codec_reads_both() {
    let window = window();
    for (unit, tier, by) in UNITS {
        let mut both = codec(BOTH);
        let (packed, parcel) = pack(&mut both, &window, unit);
        assert_eq!(packed.tier, tier);
        // Another process of the run reads them too, whatever it makes objects by.
        let mut others = [codec("zstd:3,lz4:9"), codec("zstd:1"), codec("lz4"), codec("842,zstd:-3")];
        let mut seen = 0;
        for (at, object, print) in objects(&packed, unit, &parcel) {
            let view = View::read(object).unwrap();
            let mut to = vec![0; view.pages * PAGE];
            for codec in [&mut both].into_iter().chain(&mut others) {
                to.fill(0);
                codec.unpack(object, print, 0, &mut to).unwrap();
                assert!(to == window[at..][..view.pages * PAGE], "{unit}");
                to[..PAGE].fill(0);
                codec.unpack(object, print, view.pages - 1, &mut to[..PAGE]).unwrap();
                assert!(to[..PAGE] == window[at + (view.pages - 1) * PAGE..][..PAGE]);
            }
            if view.format == Format::Plain {
                continue;
            }
            assert_eq!(view.format, of(by));
            seen += 1;
            // Said to be the other one's, or made with a dictionary that there is none of.
            for liar in [of(if tier == Tier::Fast { "zstd" } else { "lz4" }), of("zstd,dict=FILE")] {
                let Format::Of(kind) = liar else { unreachable!() };
                let mut bad = object.to_vec();
                bad[1] = 1 + kind.number();
                assert_eq!(View::read(&bad).unwrap().format, liar);
                assert_eq!(both.unpack(&bad, print, 0, &mut to), Err(Damaged::Stream));
            }
        }
        assert!(seen > 0);
    }
}

#[test]
fn a_damaged_object_of_either_is_an_error() {
    let window = window();
    let mut both = codec(BOTH);
    for unit in [1, 2] {
        let (packed, parcel) = pack(&mut both, &window, unit);
        let (at, object, print) = objects(&packed, unit, &parcel)[0];
        let mut to = vec![0; unit * PAGE];
        for byte in (0..object.len()).filter(|byte| *byte < 50 || byte % 7 == 0) {
            for bit in 0..8 {
                let mut bad = object.to_vec();
                bad[byte] ^= 1 << bit;
                // What decompresses to the same bytes is no damage.
                if both.unpack(&bad, print, 0, &mut to).is_ok() {
                    assert!(to == window[at..][..unit * PAGE], "byte {byte}");
                }
            }
            assert!(both.unpack(&object[..byte], print, 0, &mut to).is_err());
        }
    }
}

#[test]
fn each_of_two_makes_what_it_makes_alone() {
    let window = window();
    for (unit, _, by) in UNITS {
        let ours = pack(&mut codec(BOTH), &window, unit);
        let theirs = pack(&mut codec(by), &window, unit);
        assert_eq!(ours.0, theirs.0);
        let bytes = |all: &(Packed, Vec<u8>)| {
            objects(&all.0, unit, &all.1)
                .iter()
                .flat_map(|(_, object, _)| object.to_vec())
                .collect::<Vec<_>>()
        };
        assert!(bytes(&ours) == bytes(&theirs), "{by}");
    }
}

#[test]
fn one_algorithm_at_two_levels_makes_both_and_reads_both() {
    let window = window();
    let mut both = codec("zstd:-7,zstd:19");
    for (unit, alone) in [(1, "zstd:-7"), (WINDOW_PAGES, "zstd:19")] {
        let (packed, parcel) = pack(&mut both, &window, unit);
        assert_eq!(packed, pack(&mut codec(alone), &window, unit).0);
        assert_ne!(packed, pack(&mut codec("zstd:1"), &window, unit).0);
        // It goes on as two, and as one.
        for now in ["zstd:-7,zstd:19", "zstd:19", "zstd:3,zstd:-7", "lz4"] {
            both.make_by(Choice::parse(now).unwrap()).unwrap();
            for (at, object, print) in objects(&packed, unit, &parcel) {
                let mut to = vec![0; unit * PAGE];
                both.unpack(object, print, 0, &mut to).unwrap();
                assert!(to == window[at..][..unit * PAGE], "{now}");
            }
        }
        both.make_by(Choice::parse("zstd:-7,zstd:19").unwrap()).unwrap();
    }
}

#[test]
fn noise_is_guessed_for_the_one_that_does_not_give_up_early() {
    let mut noise = vec![0; WINDOW];
    Random(3).fill(&mut noise);
    let mut both = codec("lz4,zstd:3");
    let mut believed = [0, 0];
    for _ in 0..40 {
        for (unit, believed) in [1, WINDOW_PAGES].into_iter().zip(&mut believed) {
            *believed += pack(&mut both, &noise, unit).0.guesses.believed;
        }
    }
    assert!(believed[0] == 0 && believed[1] > 20, "{believed:?}");
}
