//! Objects that were compressed with a dictionary, and the search for one.

use std::collections::BTreeMap;
use zswap::dictionary::{CANDIDATE, FILE};
use zswap::{Codec, LoadError, New, PAGE, PARCEL_MAX_BYTES, PLACES, Packed, Priors, Uses, WINDOW_PAGES};
use zswap::{Tutor, Verdict, With, dictionary_of};

const WINDOW: usize = WINDOW_PAGES * PAGE;

fn codec(text: &str, file: &[u8]) -> Codec {
    Codec::new(acomp::Compressor::parse(text).unwrap(), 7, file).unwrap()
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33 ^ self.0
    }

    fn noise(&mut self, len: usize) -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(len).collect()
    }
}

/// Memory of a program that has the same few things again and again, everywhere: a page has each of them once at most.
struct Habit(Vec<Vec<u8>>);

impl Habit {
    fn new(seed: u64) -> Habit {
        let mut random = Random(seed);
        Habit((0..64).map(|_| random.noise(120)).collect())
    }

    fn window(&self, random: &mut Random) -> Vec<u8> {
        let mut window = Vec::with_capacity(WINDOW + 1024);
        for page in 1..=WINDOW_PAGES {
            while window.len() < page * PAGE {
                let thing = &self.0[random.next() as usize % self.0.len()];
                window.extend_from_slice(thing);
                window.extend(random.noise(24));
                window.extend([0; 80]);
            }
            window.truncate(page * PAGE);
        }
        window
    }
}

/// Packs all pages of a window.
fn pack(codec: &mut Codec, window: &[u8], unit: usize, with: With) -> (Packed, Vec<u8>) {
    let mut parcel = vec![0; PARCEL_MAX_BYTES];
    let packed = codec.pack(window, u16::MAX, unit, &Priors::default(), with, &mut parcel);
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
fn an_object_names_its_dictionary_and_is_read_with_that_one_alone() {
    let (habit, mut random) = (Habit::new(1), Random(2));
    let dictionary = habit.0.concat();
    let window = habit.window(&mut random);
    for (text, unit) in [("zstd:1,dict=auto", 1), ("zstd:1,dict=auto", 16), ("zstd:-2,dict=FILE", 5)] {
        let mut writer = codec(text, &dictionary);
        let name = if text.ends_with("FILE") { FILE } else { 77 };
        let place = if name == FILE { 0 } else { PLACES - 1 };
        assert!(name == FILE || writer.learn(place, name, &dictionary));
        let with = With { name, uses: Uses::ALL, ..With::default() };
        let plain = pack(&mut writer, &window, unit, With::default());
        let (packed, parcel) = pack(&mut writer, &window, unit, with);
        let sum =
            |packed: &Packed, parcel: &[u8]| objects(packed, parcel).iter().map(|o| o.0.len()).sum::<usize>();
        assert!(sum(&packed, &parcel) < sum(&plain.0, &plain.1), "{text}");
        let mut stranger = codec("zstd:1,dict=auto", &[]);
        let mut without = codec("zstd:1", &[]);
        for (at, (object, print)) in objects(&packed, &parcel).into_iter().enumerate() {
            assert_eq!(dictionary_of(object), name);
            let pages = unit.min(WINDOW_PAGES - at * unit);
            let (mut to, expected) = (vec![0; pages * PAGE], &window[at * unit * PAGE..][..pages * PAGE]);
            writer.unpack(object, print, 0, &mut to).unwrap();
            assert!(to == expected, "{text}");
            to[..PAGE].fill(0);
            writer.unpack(object, print, pages - 1, &mut to[..PAGE]).unwrap();
            assert!(to[..PAGE] == expected[(pages - 1) * PAGE..]);
            // Absent, and there under its name but another.
            assert_eq!(without.unpack(object, print, 0, &mut to), Err(LoadError::Dictionary));
            assert_eq!(stranger.unpack(object, print, 0, &mut to), Err(LoadError::Dictionary));
            assert!(stranger.learn(1, name, &random.noise(dictionary.len())));
            assert!(stranger.unpack(object, print, 0, &mut to).is_err());
            assert!(stranger.learn(1, name, &dictionary));
            stranger.unpack(object, print, 0, &mut to).unwrap();
            assert!(stranger.learn(1, name + 1, &dictionary));
        }
        for (object, print) in objects(&plain.0, &plain.1) {
            assert_eq!(dictionary_of(object), 0);
            without.unpack(object, print, 0, &mut vec![0; PAGE]).unwrap();
        }
    }
}

#[test]
fn a_dictionary_is_used_for_the_objects_that_it_is_good_for_and_where_it_is_known() {
    let (habit, mut random) = (Habit::new(1), Random(2));
    let window = habit.window(&mut random);
    let mut codec = codec("zstd:1,dict=auto", &[]);
    assert!(codec.learn(0, 5, &habit.0.concat()));
    let mut names = |unit, with| {
        let (packed, parcel) = pack(&mut codec, &window, unit, with);
        let names: Vec<u32> =
            objects(&packed, &parcel).iter().map(|object| dictionary_of(object.0)).collect();
        names[0]
    };
    let pages = With { name: 5, uses: Uses { pages: true, windows: false }, ..With::default() };
    let windows = With { name: 5, uses: Uses { pages: false, windows: true }, ..With::default() };
    assert_eq!([names(1, pages), names(16, pages), names(1, windows), names(16, windows)], [5, 0, 0, 5]);
    assert_eq!(names(1, With { name: 6, ..pages }), 0, "nobody has it");
    assert!(Codec::new(acomp::Compressor::parse("zstd,dict=x").unwrap(), 7, &[]).is_err());
}

#[test]
fn a_damaged_object_with_a_dictionary_is_an_error() {
    let (habit, mut random) = (Habit::new(1), Random(2));
    let window = habit.window(&mut random);
    let mut codec = codec("zstd:1,dict=auto", &[]);
    assert!(codec.learn(0, 5, &habit.0.concat()));
    let with = With { name: 5, uses: Uses::ALL, ..With::default() };
    let (packed, parcel) = pack(&mut codec, &window, 1, with);
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

/// Has a tutor see windows of a habit, in objects of `unit` pages, until it says something; what it says is done, as an engine does it.
struct School {
    codec: Codec,
    tutor: Tutor,
    with: With,
    next: u32,
    seen: usize,
    random: Random,
}

impl School {
    fn new() -> School {
        let (codec, random) = (codec("zstd:1,dict=auto", &[]), Random(3));
        School { codec, tutor: Tutor::default(), with: With::default(), next: 1, seen: 0, random }
    }

    fn learn(&mut self, habit: &Habit, unit: usize, most: usize) -> Option<Verdict> {
        for _ in 0..most / WINDOW {
            let window = habit.window(&mut self.random);
            let (packed, _) = pack(&mut self.codec, &window, unit, self.with);
            self.tutor.see(&window, unit, &packed, self.with);
            self.seen += WINDOW;
            while self.tutor.is_busy() {
                let Some(verdict) = self.tutor.turn(&mut self.codec, || Some(1)) else { continue };
                match verdict {
                    Verdict::Trained { place, uses, .. } if !uses.is_none() => {
                        let dictionary = self.codec.dictionary(place).unwrap().to_vec();
                        assert_eq!(self.codec.place(CANDIDATE), Some(place));
                        assert!(self.codec.learn(0, self.next, &dictionary));
                        self.with = With { name: self.next, uses, ..With::default() };
                        self.next += 1;
                    }
                    Verdict::Tested { with, .. } => {
                        self.with = if with.uses.is_none() { With::default() } else { with };
                    }
                    Verdict::Trained { .. } => {}
                }
                return Some(verdict);
            }
        }
        None
    }
}

#[test]
fn one_is_kept_where_it_gains_and_replaced_when_the_data_are_others() {
    let (habit, other) = (Habit::new(1), Habit::new(100));
    let mut school = School::new();
    let trained = school.learn(&habit, 1, 100 << 20);
    let Some(Verdict::Trained { sample, uses, .. }) = trained else { panic!("{trained:?}") };
    println!("after {} MiB: {sample:?}", school.seen >> 20);
    assert_eq!(uses, Uses { pages: true, windows: false }, "windows were not seen");
    assert!(sample.pages.with < sample.pages.without * 9 / 10 && sample.pages.plain >= 128 << 10);
    assert_eq!(sample.windows, Default::default());
    // It is tested now and then, and stays.
    let tested = school.learn(&habit, 1, 200 << 20);
    let Some(Verdict::Tested { with, .. }) = tested else { panic!("{tested:?}") };
    assert_eq!((with, school.with.name), (school.with, 1));
    // Now everything is different.
    let tested = school.learn(&other, 1, 200 << 20);
    let Some(Verdict::Tested { with: With { name: 1, uses, .. }, sample }) = tested else {
        panic!("{tested:?}")
    };
    println!("of other data: {sample:?}");
    assert!(uses.is_none() && school.with == With::default());
    let seen = school.seen;
    let trained = school.learn(&other, 1, 200 << 20);
    assert!(matches!(trained, Some(Verdict::Trained { uses: Uses { pages: true, .. }, .. })), "{trained:?}");
    assert_eq!(school.with.name, 2);
    assert!(school.seen - seen < 16 << 20, "it is looked for at once");
}

#[test]
fn none_is_kept_where_nothing_is_gained_and_it_is_tried_ever_less_often() {
    // Each window has a habit of its own.
    let mut school = School::new();
    let mut tries = Vec::new();
    let mut seed = 1000;
    while school.seen < 500 << 20 {
        seed += 1;
        match school.learn(&Habit::new(seed), 1, WINDOW) {
            Some(Verdict::Trained { uses, sample, .. }) => {
                assert!(uses.is_none(), "{sample:?}");
                tries.push(school.seen >> 20);
            }
            None => {}
            other => panic!("{other:?}"),
        }
    }
    println!("tried after {tries:?} MiB");
    assert!(tries.len() == 4 && tries.windows(3).all(|t| t[2] - t[1] > (t[1] - t[0]) * 3 / 2), "{tries:?}");
}

#[test]
fn training_is_the_same_from_the_same_samples() {
    let habit = Habit::new(1);
    let mut dictionaries = BTreeMap::new();
    for unit in [1, 1, 16] {
        let mut school = School::new();
        assert!(school.learn(&habit, unit, 100 << 20).is_some());
        *dictionaries.entry(school.codec.dictionary(1).unwrap().to_vec()).or_insert(0) += 1;
    }
    assert_eq!(dictionaries.into_values().collect::<Vec<_>>().iter().max(), Some(&2));
}
