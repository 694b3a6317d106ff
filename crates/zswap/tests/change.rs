//! The compressor changes while objects of others are there: each is read by what has made it, by whoever has it.

mod heap;

use base::Random;
use heap::Heap;
use zsmalloc::Handle;
use zswap::layout::{Format, View};
use zswap::{BATCH_MAX, Cache, Choice, Codec, Load, New, PAGE, PARCEL_MAX_BYTES, Priors, Tier, WINDOW_PAGES};

const WINDOW: usize = WINDOW_PAGES * PAGE;

/// Every one that a run can change to.
const CHOICES: [&str; 15] = [
    "lz4",
    "lz4:40",
    "lz4hc:3",
    "zstd:1",
    "zstd:-5",
    "zstd:7",
    "deflate:1",
    "deflate:6",
    "lzo",
    "lzo-rle",
    "842",
    "lz4,zstd:1",
    "zstd:-3,zstd:3",
    "zstd:3,lz4",
    "842,lzo",
];

fn choice(text: &str) -> Choice {
    Choice::parse(text).unwrap()
}

fn any(random: &mut Random) -> Choice {
    choice(CHOICES[random.below(CHOICES.len())])
}

/// Words, and now and then a page of noise or of one word.
fn window(random: &mut Random) -> Vec<u8> {
    let words: Vec<String> = (0..100).map(|_| format!("{:x} ", random.below(1 << 31))).collect();
    let mut window = Vec::new();
    while window.len() < WINDOW {
        window.extend(random.pick(&words).as_bytes());
    }
    window.truncate(WINDOW);
    let (noise, filled) = (random.below(2 * WINDOW_PAGES), random.below(2 * WINDOW_PAGES));
    if let Some(page) = window.chunks_exact_mut(PAGE).nth(noise) {
        random.fill(page);
    }
    if let Some(page) = window.chunks_exact_mut(PAGE).nth(filled) {
        page.fill(9);
    }
    window
}

/// An object in the pool, what it was made of, and by what.
struct Stored {
    handle: Handle,
    fingerprint: u32,
    pages: Vec<u8>,
    made_by: Choice,
    tier: Tier,
}

impl Stored {
    /// What its header is to say, if it shrank.
    fn format(&self) -> Format {
        Format::Of(self.made_by.of(self.tier).kind())
    }
}

/// Makes objects of a window, and takes them in.
fn store(cache: &Cache<Heap>, codec: &mut Codec, made_by: Choice, random: &mut Random) -> Vec<Stored> {
    let (window, unit) = (window(random), *random.pick(&[1, 5, WINDOW_PAGES]));
    let mut parcel = vec![0; PARCEL_MAX_BYTES];
    let packed =
        codec.pack_one(&mut window.clone(), u16::MAX.into(), unit, &Priors::default(), false, &mut parcel);
    let tier = if unit == 1 { Tier::Fast } else { Tier::Dense };
    assert_eq!(packed.tier, tier);
    let (mut at, mut all) = (0, Vec::new());
    for (new, pages) in packed.objects.iter().flatten().zip(window.chunks(unit * PAGE)) {
        if let New::Blob { fingerprint, bytes, .. } = *new {
            let handle = cache.store(&parcel[at..at + bytes as usize]).unwrap();
            at += bytes as usize;
            all.push(Stored { handle, fingerprint, pages: pages.to_vec(), made_by, tier });
        }
    }
    // A page that has not changed is known again, whatever has made its object.
    let mut priors = Priors::default();
    let mut page = 0;
    for stored in all.iter().filter(|_| all.len() == WINDOW_PAGES.div_ceil(unit)) {
        for within in 0..stored.pages.len() / PAGE {
            priors.set(page, cache.hash(stored.handle, within).unwrap());
            page += 1;
        }
    }
    let mut other = Codec::new(any(random), SEED, &[]).unwrap();
    let again = other.pack_one(&mut window.clone(), u16::MAX.into(), unit, &priors, false, &mut parcel);
    assert_eq!(again.reused.count(), page);
    all
}

/// What keys the hashes.
const SEED: u64 = 7;

/// Reads all of it by `codec`: one object in each of three ways, and then several together.
fn read(cache: &Cache<Heap>, codec: &mut Codec, all: &[Stored], random: &mut Random, seed: u64) {
    for stored in all {
        let Stored { handle, fingerprint, ref pages, .. } = *stored;
        let mut to = vec![0; pages.len()];
        cache.load(codec, handle, fingerprint, 0, &mut to).unwrap();
        assert!(to == *pages, "seed {seed}: {:?}", stored.made_by);
        let last = pages.len() / PAGE - 1;
        let first = random.below(last + 1);
        let part = first * PAGE..(first + 1 + random.below(last + 1 - first)) * PAGE;
        to.fill(0);
        cache.load(codec, handle, fingerprint, first, &mut to[part.clone()]).unwrap();
        assert!(to[part.clone()] == pages[part], "seed {seed}: {:?}", stored.made_by);
    }
    for together in all.chunks(BATCH_MAX) {
        let objects: Vec<Vec<u8>> =
            together.iter().map(|stored| cache.pool().read(stored.handle).to_vec()).collect();
        let mut places: Vec<Vec<u8>> = together.iter().map(|stored| vec![0; stored.pages.len()]).collect();
        let loads = together.iter().zip(&objects).zip(&mut places);
        let mut loads: Vec<_> = loads
            .map(|((stored, object), to)| {
                let view = View::read(object).unwrap();
                assert!(view.format == Format::Plain || view.format == stored.format(), "seed {seed}");
                let result = Err(zswap::Damaged::Stream);
                Load { object, fingerprint: stored.fingerprint, first: 0, to, result }
            })
            .collect();
        codec.unpack_all(&mut loads, &mut || {});
        assert!(loads.iter().all(|load| load.result == Ok(())), "seed {seed}");
        drop(loads);
        assert!(places.iter().zip(together).all(|(to, stored)| *to == stored.pages), "seed {seed}");
    }
}

#[test]
fn objects_of_many_compressors_lie_in_one_pool_and_each_is_read() {
    for seed in 0..12 {
        let mut random = Random(seed);
        let mut made_by = any(&mut random);
        let (cache, mut codec) = (Cache::new(Heap), Codec::new(made_by, SEED, &[]).unwrap());
        let mut all = Vec::new();
        for _ in 0..16 {
            all.extend(store(&cache, &mut codec, made_by, &mut random));
            // Now and then some are gone, and others take their places.
            for _ in 0..random.below(8) {
                if !all.is_empty() {
                    cache.invalidate(all.swap_remove(random.below(all.len())).handle);
                }
            }
            made_by = any(&mut random);
            codec.make_by(made_by).unwrap();
        }
        read(&cache, &mut codec, &all, &mut random, seed);
        // Who comes later has made nothing yet.
        let mut other = Codec::new(any(&mut random), SEED, &[]).unwrap();
        read(&cache, &mut other, &all, &mut random, seed);
        all.iter().for_each(|stored| cache.invalidate(stored.handle));
        assert_eq!(cache.pool().stored_bytes(), 0, "seed {seed}");
    }
}

#[test]
fn a_change_that_cannot_be_had_changes_nothing() {
    let (cache, mut random) = (Cache::new(Heap), Random(1));
    let mut codec = Codec::new(choice("zstd:3"), SEED, &[]).unwrap();
    // It has no dictionary.
    for text in ["zstd:1,dict=FILE", "lz4,zstd:1,dict=FILE", "zstd:1,dict=FILE,lz4"] {
        assert!(codec.make_by(choice(text)).is_err());
    }
    assert!(codec.prepare(choice("zstd:1,dict=FILE").dense.kind()).is_err());
    let all = store(&cache, &mut codec, choice("zstd:3"), &mut random);
    read(&cache, &mut codec, &all, &mut random, 1);
    assert!(!all.is_empty());
    all.iter().for_each(|stored| cache.invalidate(stored.handle));
}
