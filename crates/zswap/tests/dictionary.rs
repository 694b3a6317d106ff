//! Objects that were compressed with a dictionary.

use base::Random;
use zswap::{Codec, New, PAGE, PARCEL_MAX_BYTES, Packed, Priors, WINDOW_PAGES};

const WINDOW: usize = WINDOW_PAGES * PAGE;

fn codec(text: &str, file: &[u8]) -> Codec {
    let file = Vec::leak(file.to_vec());
    Codec::new(acomp::Compressor::parse(text).unwrap(), 7, file).unwrap()
}

fn noise(random: &mut Random, len: usize) -> Vec<u8> {
    let mut noise = vec![0; len];
    random.fill(&mut noise);
    noise
}

/// Memory of a program that has the same few things again and again, everywhere: a page has each of them once at most.
struct Habit(Vec<Vec<u8>>);

impl Habit {
    fn new(seed: u64) -> Habit {
        let mut random = Random(seed);
        Habit((0..64).map(|_| noise(&mut random, 120)).collect())
    }

    fn window(&self, random: &mut Random) -> Vec<u8> {
        let mut window = Vec::with_capacity(WINDOW + 1024);
        for page in 1..=WINDOW_PAGES {
            while window.len() < page * PAGE {
                let thing = &self.0[random.below(self.0.len())];
                window.extend_from_slice(thing);
                window.extend(noise(random, 24));
                window.extend([0; 80]);
            }
            window.truncate(page * PAGE);
        }
        window
    }
}

/// Packs all pages of a window.
fn pack(codec: &mut Codec, window: &[u8], unit: usize) -> (Packed, Vec<u8>) {
    let mut parcel = vec![0; PARCEL_MAX_BYTES];
    let packed =
        codec.pack_one(&mut window.to_vec(), u16::MAX.into(), unit, &Priors::default(), false, &mut parcel);
    (packed, parcel)
}

/// The objects of what was packed.
fn objects<'a>(packed: &Packed, parcel: &'a [u8]) -> Vec<(&'a [u8], u32)> {
    let mut rest = parcel;
    let news = packed.objects.iter().flatten();
    news.filter_map(|new| match *new {
        New::Blob { fingerprint, bytes, .. } => {
            let (object, behind) = rest.split_at(bytes as usize);
            rest = behind;
            Some((object, fingerprint))
        }
        New::Same(_) => None,
    })
    .collect()
}

#[test]
fn an_object_is_read_with_its_dictionary_alone() {
    let (habit, mut random) = (Habit::new(1), Random(2));
    let dictionary = habit.0.concat();
    let window = habit.window(&mut random);
    for (text, unit) in [("zstd:1,dict=FILE", 1), ("zstd:1,dict=FILE", 16), ("zstd:-2,dict=FILE", 5)] {
        let (mut with, mut without) = (codec(text, &dictionary), codec("zstd:1", &[]));
        let mut stranger = codec(text, &noise(&mut random, dictionary.len()));
        let plain = pack(&mut without, &window, unit);
        let (packed, parcel) = pack(&mut with, &window, unit);
        let sum =
            |packed: &Packed, parcel: &[u8]| objects(packed, parcel).iter().map(|o| o.0.len()).sum::<usize>();
        assert!(sum(&packed, &parcel) < sum(&plain.0, &plain.1), "{text}");
        for (at, (object, print)) in objects(&packed, &parcel).into_iter().enumerate() {
            let pages = unit.min(WINDOW_PAGES - at * unit);
            let (mut to, expected) = (vec![0; pages * PAGE], &window[at * unit * PAGE..][..pages * PAGE]);
            with.unpack(object, print, 0, &mut to).unwrap();
            assert!(to == expected, "{text}");
            to[..PAGE].fill(0);
            with.unpack(object, print, pages - 1, &mut to[..PAGE]).unwrap();
            assert!(to[..PAGE] == expected[(pages - 1) * PAGE..]);
            assert!(without.unpack(object, print, 0, &mut to).is_err());
            assert!(stranger.unpack(object, print, 0, &mut to).is_err());
        }
    }
    assert!(Codec::new(acomp::Compressor::parse("zstd,dict=x").unwrap(), 7, &[]).is_err());
}

#[test]
fn a_damaged_object_with_a_dictionary_is_an_error() {
    let (habit, mut random) = (Habit::new(1), Random(2));
    let window = habit.window(&mut random);
    let mut codec = codec("zstd:1,dict=FILE", &habit.0.concat());
    let (packed, parcel) = pack(&mut codec, &window, 1);
    let (object, print) = objects(&packed, &parcel)[3];
    let mut to = vec![0; PAGE];
    for at in (0..object.len()).filter(|at| *at < 30 || at % 7 == 0) {
        for bit in 0..8 {
            let mut bad = object.to_vec();
            bad[at] ^= 1 << bit;
            // What decompresses to the same bytes is no damage.
            if codec.unpack(&bad, print, 0, &mut to).is_ok() {
                assert!(to == window[3 * PAGE..4 * PAGE], "byte {at}");
            }
        }
        assert!(codec.unpack(&object[..at], print, 0, &mut to).is_err());
    }
}
