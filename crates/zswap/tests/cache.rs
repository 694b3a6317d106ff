//! The cache as its users see it: what is stored comes back, or an error does.

mod heap;

use base::Random;
use heap::Heap;
use zsmalloc::Handle;
use zswap::layout::{Format, View, plain_bytes};
use zswap::noise::Guesses;
use zswap::{Cache, Codec, Damaged, New, PAGE, PARCEL_MAX_BYTES, Packed, PageMask, Priors, WINDOW_PAGES};

/// A cache, a codec, and a window whose page `n` is text-like for `n` < 8, then noise, then one word, then zeros.
fn cache(compressor: &str) -> (Cache<Heap>, Codec, Vec<u8>) {
    let compressor = acomp::Compressor::parse(compressor).unwrap();
    let mut window = vec![0; WINDOW_PAGES * PAGE];
    let mut random = Random(1);
    for (index, page) in window.chunks_exact_mut(PAGE).enumerate() {
        for (place, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let noise = random.word();
            *word = match index {
                0..8 => (place as u64 / 3 + index as u64).to_le_bytes(),
                8..12 => noise.to_le_bytes(),
                12..14 => 0x0101_0101_0101_0101u64.to_le_bytes(),
                _ => [0; 8],
            };
        }
    }
    (Cache::new(Heap), Codec::new(compressor, 7, &[]).unwrap(), window)
}

/// An object in the cache: its handle, its fingerprint, and whether it shrank.
type Blob = (Handle, u32, bool);

/// Packs a window and takes its objects in.
fn store(
    cache: &Cache<Heap>,
    codec: &mut Codec,
    window: &[u8],
    pages: impl Into<PageMask>,
    unit: usize,
    priors: &Priors,
) -> (Packed, Vec<Blob>) {
    let mut parcel = vec![0xaa; PARCEL_MAX_BYTES];
    let packed = codec.pack_one(&mut window.to_vec(), pages.into(), unit, priors, false, &mut parcel);
    let (mut at, mut blobs) = (0, Vec::new());
    for new in packed.objects.into_iter().flatten() {
        if let New::Blob { fingerprint, bytes, compressed, .. } = new {
            let object = &parcel[at..at + bytes as usize];
            at += bytes as usize;
            blobs.push((cache.store(object).unwrap(), fingerprint, compressed));
        }
    }
    (packed, blobs)
}

/// Pages that one word fills take the word, wherever they lie: in an object of text, of noise, and of nothing else.
#[test]
fn a_page_of_one_word_among_others_has_no_data() {
    for name in ["lz4", "zstd:1", "lzo-rle", "842"] {
        let (cache, mut codec, text) = cache(name);
        for kept in [0x00ff, 0x0f00, 0x0000] {
            let mut window = text.clone();
            let filled = !kept & 0b1101_1110_1111_0110;
            for index in PageMask::from(filled).iter() {
                zswap::page::fill(&mut window[index * PAGE..][..PAGE], index as u64 + 1);
            }
            let pages = kept | filled;
            let (packed, blobs) = store(&cache, &mut codec, &window, pages, WINDOW_PAGES, &Priors::default());
            assert_eq!((packed.in_objects.to_u16(), packed.filled.to_u16()), (pages, filled), "{name}");
            let [(handle, fingerprint, compressed)] = blobs[..] else { panic!("{name}: {blobs:?}") };
            assert_eq!(compressed, kept != 0x0f00, "{name}: noise alone does not shrink");
            let Some(New::Blob { data_pages, bytes, .. }) = packed.objects[0] else { panic!("{packed:?}") };
            assert_eq!(data_pages, PageMask::from(kept).count());
            if kept == 0 {
                assert_eq!(bytes, 8 + 24 * filled.count_ones(), "{name}: a hash and a word of each");
            }
            let expected: Vec<&[u8]> =
                PageMask::from(pages).iter().map(|index| &window[index * PAGE..][..PAGE]).collect();
            for first in 0..expected.len() {
                for end in first + 1..=expected.len() {
                    let mut to = vec![0xaa; (end - first) * PAGE];
                    cache.load(&mut codec, handle, fingerprint, first, &mut to).unwrap();
                    assert!(to == expected[first..end].concat(), "{name}: {first}..{end} of {pages:#x}");
                }
            }
            // A page is known by its hash as any other, and a word that is not its own is damage.
            let mut priors = Priors::default();
            for (place, index) in PageMask::from(pages).iter().enumerate() {
                priors.set(index, cache.hash(handle, place).unwrap());
            }
            let (again, _) = store(&cache, &mut codec, &window, pages, WINDOW_PAGES, &priors);
            assert_eq!(again.reused.to_u16(), pages);
            let word = 8 + 16 * expected.len();
            cache.pool().write(handle, |object| object[word] ^= 1);
            let place = expected.iter().position(|page| zswap::page::same_filled(page).is_some()).unwrap();
            let damaged = cache.load(&mut codec, handle, fingerprint, place, &mut [0; PAGE]);
            assert_eq!(damaged, Err(Damaged::Checksum));
        }
    }
}

/// By no compressor: what goes to a swap area at once.
#[test]
fn what_is_to_be_plain_is_kept_as_it_is_page_by_page() {
    let (cache, mut codec, mut window) = cache("zstd:1");
    let mut parcel = vec![0xaa; PARCEL_MAX_BYTES];
    let (priors, pages) = (Priors::default(), PageMask::first(WINDOW_PAGES));
    let packed = codec.pack_one(&mut window.clone(), pages, 1, &priors, true, &mut parcel);
    assert_eq!(
        (packed.zero.to_u16(), packed.filled.to_u16()),
        (0xc000, 0x3000),
        "these have no data all the same"
    );
    let (mut at, mut found) = (0, 0);
    for (index, new) in packed.in_objects.iter().zip(packed.objects.into_iter().flatten()) {
        let page = &mut window[index * PAGE..][..PAGE];
        let New::Blob { fingerprint, bytes, compressed, .. } = new else {
            assert_eq!(new, New::Same(0x0101_0101_0101_0101));
            continue;
        };
        assert_eq!((bytes as usize, compressed), (plain_bytes(1), false));
        let handle = cache.store(&parcel[at..][..bytes as usize]).unwrap();
        let mut to = [0; PAGE];
        cache.load(&mut codec, handle, fingerprint, 0, &mut to).unwrap();
        assert!(to == *page, "page {index}");
        (at, found) = (at + bytes as usize, found + 1);
    }
    assert_eq!(found, 12);
}

/// `max_compression_ratio`: by every compressor, whatever room that leaves it.
#[test]
fn what_comes_to_more_than_is_wanted_is_kept_as_it_is() {
    for algorithm in acomp::Compressor::ALL {
        let name = algorithm.name;
        let (cache, mut codec, window) = cache(name);
        for (percent, unit, shrinks) in
            [(1, 1, false), (1, 4, false), (100, 4, true), (0, 1, false), (99, 1, true)]
        {
            codec.keep_above(percent);
            let (_, blobs) = store(&cache, &mut codec, &window, 0x00ffu16, unit, &Priors::default());
            assert_eq!(blobs.len(), 8 / unit);
            for (number, (handle, fingerprint, compressed)) in blobs.into_iter().enumerate() {
                assert_eq!(compressed, shrinks, "{name} at {percent} %");
                let mut to = vec![0xaa; unit * PAGE];
                cache.load(&mut codec, handle, fingerprint, 0, &mut to).unwrap();
                assert!(to == window[number * unit * PAGE..][..unit * PAGE], "{name} at {percent} %");
            }
        }
    }
}

/// The masks: reused, zero, in objects.
fn masks(packed: &Packed) -> (u16, u16, u16) {
    (packed.reused.to_u16(), packed.zero.to_u16(), packed.in_objects.to_u16())
}

#[test]
fn a_window_comes_back_whole_in_parts_and_page_by_page() {
    for name in ["lz4", "zstd:1", "zstd:-3"] {
        let (cache, mut codec, window) = cache(name);
        let pages = 0b0011_0000_1111_1111;
        let (packed, blobs) = store(&cache, &mut codec, &window, pages, WINDOW_PAGES, &Priors::default());
        assert_eq!(masks(&packed), (0, 0, pages));
        let [(handle, fingerprint, compressed)] = blobs[..] else { panic!("{name}: {blobs:?}") };
        assert!(compressed, "{name}");
        let expected = [&window[..8 * PAGE], &window[12 * PAGE..14 * PAGE]].concat();
        for (first, count) in [(0, 10), (0, 1), (9, 1), (3, 4), (7, 3)] {
            let mut to = vec![0xaa; count * PAGE];
            cache.load(&mut codec, handle, fingerprint, first, &mut to).unwrap();
            assert_eq!(to, expected[first * PAGE..][..count * PAGE], "{name}: {count} from {first}");
        }
        let past_the_end = cache.load(&mut codec, handle, fingerprint, 9, &mut [0; 2 * PAGE]);
        assert_eq!(past_the_end, Err(Damaged::Stream));
    }
}

#[test]
fn each_page_is_an_object_of_its_own_if_asked_so() {
    let (cache, mut codec, window) = cache("zstd:1");
    let (packed, blobs) = store(&cache, &mut codec, &window, u16::MAX, 1, &Priors::default());
    assert_eq!(masks(&packed), (0, 0b1100_0000_0000_0000, 0b0011_1111_1111_1111));
    assert_eq!(blobs.len(), 12);
    for (index, (handle, fingerprint, compressed)) in blobs.into_iter().enumerate() {
        assert_eq!(compressed, index < 8, "noise does not shrink");
        let mut to = vec![0xaa; PAGE];
        cache.load(&mut codec, handle, fingerprint, 0, &mut to).unwrap();
        assert_eq!(to, window[index * PAGE..][..PAGE], "page {index}");
    }
    assert_eq!(packed.objects[12..14], [Some(New::Same(0x0101_0101_0101_0101)); 2]);
    assert_eq!(packed.objects[14..], [None; 2]);
}

#[test]
fn noise_page_by_page_fits_into_a_parcel() {
    let (cache, mut codec, mut window) = cache("lz4");
    let noise = window[8 * PAGE..9 * PAGE].to_vec();
    window.chunks_exact_mut(PAGE).for_each(|page| page.copy_from_slice(&noise));
    let (packed, blobs) = store(&cache, &mut codec, &window, u16::MAX, 1, &Priors::default());
    assert_eq!(masks(&packed), (0, 0, u16::MAX));
    let bytes: usize = blobs.iter().map(|b| cache.pool().len(b.0)).sum();
    assert_eq!(bytes, PARCEL_MAX_BYTES);
}

#[test]
fn pages_that_are_kept_as_they_are_make_the_object_that_they_were() {
    let (cache, mut codec, mut window) = cache("lz4");
    let mut random = Random(2);
    window.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = random.word().to_le_bytes());
    for pages in [1, 5, WINDOW_PAGES] {
        let mask = PageMask::first(pages);
        let (_, blobs) = store(&cache, &mut codec, &window, mask, WINDOW_PAGES, &Priors::default());
        let &[(handle, fingerprint, false)] = &blobs[..] else { panic!("{blobs:?}") };
        let object = cache.pool().read(handle).to_vec();
        assert_eq!(object.len(), plain_bytes(pages));
        let view = View::read(&object).unwrap();
        assert_eq!((view.format, view.payload), (Format::Plain, &window[..pages * PAGE]));
        let mut again = vec![0xaa; object.len()];
        assert_eq!(codec.pack_plain(view.payload, &mut again), fingerprint);
        assert!(again == object, "{pages} pages");
        assert_eq!(codec.plain_pages(&again), Some(&window[..pages * PAGE]));
        // A bit of the header, a hash, or a page.
        for at in [0, 9, object.len() - 1] {
            again[at] ^= 1;
            assert_eq!(codec.plain_pages(&again), None, "byte {at}");
            again[at] ^= 1;
        }
    }
}

#[test]
fn an_unchanged_page_is_not_stored_again_and_a_changed_one_is() {
    let (cache, mut codec, mut window) = cache("lz4");
    let (_, blobs) = store(&cache, &mut codec, &window, 0b1111, WINDOW_PAGES, &Priors::default());
    let handle = blobs[0].0;
    let mut priors = Priors::default();
    (0..4).for_each(|page| priors.set(page, cache.hash(handle, page).unwrap()));
    window[2 * PAGE + 77] ^= 1;
    let (packed, blobs) = store(&cache, &mut codec, &window, 0b1111, WINDOW_PAGES, &priors);
    assert_eq!((masks(&packed), blobs.len()), ((0b1011, 0, 0b0100), 1));
    priors.want(3);
    assert_eq!(
        masks(&store(&cache, &mut codec, &window, 0b1111, WINDOW_PAGES, &priors).0),
        (0b1011, 0, 0b0100)
    );
    // The old object would be kept for too few.
    priors.want(4);
    let (packed, blobs) = store(&cache, &mut codec, &window, 0b1111, WINDOW_PAGES, &priors);
    assert_eq!((masks(&packed), blobs.len()), ((0, 0, 0b1111), 1));
    assert_eq!(cache.hash(handle, 4), None, "a page that the object does not have");
}

#[test]
fn damage_and_another_object_in_its_place_are_errors() {
    let (cache, mut codec, window) = cache("zstd:1");
    let (_, blobs) = store(&cache, &mut codec, &window, 0b11, 1, &Priors::default());
    let [(one, print, _), (two, ..)] = blobs[..] else { panic!("{blobs:?}") };
    let mut to = vec![0; PAGE];
    assert_eq!(cache.load(&mut codec, two, print, 0, &mut to), Err(Damaged::Object));
    let (bytes, mut errors) = (cache.pool().len(one), 0);
    for byte in 0..bytes {
        cache.pool().write(one, |object| object[byte] ^= 0x10);
        // Some bits of a frame's header say nothing about the contents.
        let loaded = cache.load(&mut codec, one, print, 0, &mut to);
        assert!(loaded.is_err() || to == window[..PAGE], "byte {byte} is damaged");
        errors += loaded.is_err() as usize;
        cache.pool().write(one, |object| object[byte] ^= 0x10);
    }
    assert!(errors > bytes - 8, "{errors} errors of {bytes}");
    cache.load(&mut codec, one, print, 0, &mut to).unwrap();
    // Freed, the handle goes to the next object.
    cache.invalidate(one);
    let (_, blobs) = store(&cache, &mut codec, &window, 0b100, 1, &Priors::default());
    assert_eq!(blobs[0].0, one);
    assert_eq!(cache.load(&mut codec, one, print, 0, &mut to), Err(Damaged::Object));
}

/// A window of noise, of which every `period` bytes are the same within a page.
fn noise(seed: u64, period: usize) -> Vec<u8> {
    let mut random = Random(seed);
    let mut window = vec![0; WINDOW_PAGES * PAGE];
    for page in window.chunks_exact_mut(PAGE) {
        for word in page[..period].as_chunks_mut::<8>().0 {
            *word = random.word().to_le_bytes();
        }
        (period..PAGE).step_by(period).for_each(|at| page.copy_within(..period, at));
    }
    window
}

/// Takes a window out whole, checks that it comes back, and says whether it shrank and what was guessed.
fn guess(cache: &Cache<Heap>, codec: &mut Codec, window: &[u8]) -> (bool, Guesses) {
    let (packed, blobs) = store(cache, codec, window, u16::MAX, WINDOW_PAGES, &Priors::default());
    let [(handle, fingerprint, compressed)] = blobs[..] else { panic!("{blobs:?}") };
    let mut to = vec![0xaa; WINDOW_PAGES * PAGE];
    cache.load(codec, handle, fingerprint, 0, &mut to).unwrap();
    assert!(to == window);
    cache.invalidate(handle);
    (compressed, packed.guesses)
}

const BELIEVED: Guesses = Guesses { believed: 1, tried: 0, wrong: 0 };
const RIGHT: Guesses = Guesses { believed: 0, tried: 1, wrong: 0 };
const WRONG: Guesses = Guesses { believed: 0, tried: 1, wrong: 1 };

#[test]
fn noise_is_not_compressed_in_vain_once_guesses_were_right() {
    for name in ["zstd:1", "lz4hc", "deflate", "842"] {
        let (cache, mut codec, _) = cache(name);
        for index in 0..60 {
            // The first eight, and from then on every sixteenth.
            let expected = if index < 8 || (index - 7) % 16 == 0 { RIGHT } else { BELIEVED };
            assert_eq!(guess(&cache, &mut codec, &noise(index, PAGE)), (false, expected), "{name}: {index}");
        }
    }
    // These give up on it by themselves.
    for name in ["lz4", "lzo", "lzo-rle", "zstd:-1"] {
        let (cache, mut codec, _) = cache(name);
        for index in 0..20 {
            assert_eq!(guess(&cache, &mut codec, &noise(index, PAGE)), (false, Guesses::default()), "{name}");
        }
    }
}

#[test]
fn a_wrong_guess_is_counted_and_the_next_ones_are_tried() {
    let (cache, mut codec, text) = cache("zstd:1");
    for index in 0..8 {
        guess(&cache, &mut codec, &noise(index, PAGE));
    }
    // What comes twice within a page: its values are those of noise.
    let windows = (100..116).map(|seed| guess(&cache, &mut codec, &noise(seed, 1024)));
    let kept: Vec<_> = windows.collect();
    assert_eq!(kept[..15], [(false, BELIEVED); 15]);
    assert_eq!(kept[15], (true, WRONG));
    for seed in 200..300 {
        assert_eq!(guess(&cache, &mut codec, &noise(seed, 1024)), (true, WRONG), "{seed}");
    }
    // What is no noise at all is no guess.
    let packed = store(&cache, &mut codec, &text, 0xff, WINDOW_PAGES, &Priors::default()).0;
    assert_eq!(packed.guesses, Guesses::default());
}

#[test]
fn noise_that_comes_twice_in_a_window_is_compressed() {
    let (cache, mut codec, _) = cache("zstd:1");
    for index in 0..9 {
        guess(&cache, &mut codec, &noise(index, PAGE));
    }
    let mut window = noise(77, PAGE);
    window.copy_within(..8 * PAGE, 8 * PAGE);
    assert_eq!(guess(&cache, &mut codec, &window), (true, Guesses::default()));
}
