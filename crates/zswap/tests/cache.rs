//! The cache as its users see it: what is stored comes back, or an error does.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use zsmalloc::{Backing, Handle};
use zswap::cache::Object;
use zswap::{Cache, LoadError, PAGE, Prior, Stored, WINDOW_PAGES, Worker};

struct Heap;

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 64 << 10).unwrap()
}

// SAFETY: zeroed memory of the allocator, aligned as asked, that stays until it is unmapped.
unsafe impl Backing for Heap {
    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: never of no bytes.
        NonNull::new(unsafe { alloc_zeroed(layout(bytes)) })
    }
    fn decommit(&self, _: NonNull<u8>, _: usize) {}
    fn unmap(&self, at: NonNull<u8>, bytes: usize) {
        // SAFETY: as it was mapped.
        unsafe { dealloc(at.as_ptr(), layout(bytes)) }
    }
}

/// A cache, a worker, and a window whose page `n` is text-like for `n` < 8, then noise, then one word, then zeros.
fn cache(compressor: &str) -> (Cache<Heap>, Worker, Vec<u8>) {
    let compressor = acomp::Compressor::parse(compressor).unwrap();
    let mut window = vec![0; WINDOW_PAGES * PAGE];
    let mut noise = 1u64;
    for (index, page) in window.chunks_exact_mut(PAGE).enumerate() {
        for (place, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            noise = noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *word = match index {
                0..8 => (place as u64 / 3 + index as u64).to_le_bytes(),
                8..12 => (noise ^ noise >> 32).to_le_bytes(),
                12..14 => 0x0101_0101_0101_0101u64.to_le_bytes(),
                _ => [0; 8],
            };
        }
    }
    (Cache::new(Heap, compressor, 7), Worker::new(compressor).unwrap(), window)
}

const NO_PRIORS: [Option<Prior>; WINDOW_PAGES] = [None; WINDOW_PAGES];

fn blob(object: Option<Object>) -> (Handle, u32, bool) {
    match object {
        Some(Object::Blob { handle, fingerprint, compressed, .. }) => (handle, fingerprint, compressed),
        other => panic!("no blob: {other:?}"),
    }
}

#[test]
fn a_window_comes_back_whole_in_parts_and_page_by_page() {
    for name in ["lz4", "zstd:1", "zstd:-3"] {
        let (cache, mut worker, window) = cache(name);
        let mut objects = [None; WINDOW_PAGES];
        let pages = 0b0011_0000_1111_1111;
        let stored = cache.store(&mut worker, &window, pages, WINDOW_PAGES, &NO_PRIORS, &mut objects);
        assert_eq!(stored, Stored { reused: 0, zero: 0, in_objects: pages });
        let (handle, fingerprint, compressed) = blob(objects[0]);
        assert!(compressed && objects[1..].iter().all(Option::is_none), "{name}");
        let expected = [&window[..8 * PAGE], &window[12 * PAGE..14 * PAGE]].concat();
        for (first, count) in [(0, 10), (0, 1), (9, 1), (3, 4), (7, 3)] {
            let mut to = vec![0xaa; count * PAGE];
            cache.load(&mut worker, handle, fingerprint, first, &mut to).unwrap();
            assert_eq!(to, expected[first * PAGE..][..count * PAGE], "{name}: {count} from {first}");
        }
        let past_the_end = cache.load(&mut worker, handle, fingerprint, 9, &mut [0; 2 * PAGE]);
        assert_eq!(past_the_end, Err(LoadError::Stream));
    }
}

#[test]
fn each_page_is_an_object_of_its_own_if_asked_so() {
    let (cache, mut worker, window) = cache("zstd:1");
    let mut objects = [None; WINDOW_PAGES];
    let stored = cache.store(&mut worker, &window, u16::MAX, 1, &NO_PRIORS, &mut objects);
    assert_eq!((stored.zero, stored.in_objects), (0b1100_0000_0000_0000, 0b0011_1111_1111_1111));
    for (index, object) in objects[..12].iter().enumerate() {
        let (handle, fingerprint, compressed) = blob(*object);
        assert_eq!(compressed, index < 8, "noise does not shrink");
        let mut to = vec![0xaa; PAGE];
        cache.load(&mut worker, handle, fingerprint, 0, &mut to).unwrap();
        assert_eq!(to, window[index * PAGE..][..PAGE], "page {index}");
    }
    assert_eq!(objects[12..14], [Some(Object::Same(0x0101_0101_0101_0101)); 2]);
    assert_eq!(objects[14..], [None; 2]);
}

#[test]
fn an_unchanged_page_is_not_stored_again_and_a_changed_one_is() {
    let (cache, mut worker, mut window) = cache("lz4");
    let mut objects = [None; WINDOW_PAGES];
    cache.store(&mut worker, &window, 0b1111, WINDOW_PAGES, &NO_PRIORS, &mut objects);
    let (handle, ..) = blob(objects[0]);
    let mut priors = NO_PRIORS;
    for (page, prior) in priors[..4].iter_mut().enumerate() {
        *prior = Some(Prior { handle, page });
    }
    window[2 * PAGE + 77] ^= 1;
    let stored = cache.store(&mut worker, &window, 0b1111, WINDOW_PAGES, &priors, &mut objects);
    assert_eq!(stored, Stored { reused: 0b1011, zero: 0, in_objects: 0b0100 });
    // A prior that names a page which the object does not have says nothing.
    priors[0] = Some(Prior { handle, page: 4 });
    let stored = cache.store(&mut worker, &window, 0b0001, WINDOW_PAGES, &priors, &mut objects);
    assert_eq!((stored.reused, stored.in_objects), (0, 1));
}

#[test]
fn damage_and_another_object_in_its_place_are_errors() {
    let (cache, mut worker, window) = cache("zstd:1");
    let mut objects = [None; 2];
    cache.store(&mut worker, &window, 0b11, 1, &NO_PRIORS, &mut objects);
    let [(one, print, _), (two, ..)] = objects.map(blob);
    let mut to = vec![0; PAGE];
    assert_eq!(cache.load(&mut worker, two, print, 0, &mut to), Err(LoadError::Object));
    let (bytes, mut errors) = (cache.pool().len(one), 0);
    for byte in 0..bytes {
        cache.pool().write(one, |object| object[byte] ^= 0x10);
        // Some bits of a frame's header say nothing about the contents.
        let loaded = cache.load(&mut worker, one, print, 0, &mut to);
        assert!(loaded.is_err() || to == window[..PAGE], "byte {byte} is damaged");
        errors += loaded.is_err() as usize;
        cache.pool().write(one, |object| object[byte] ^= 0x10);
    }
    assert!(errors > bytes - 8, "{errors} errors of {bytes}");
    cache.load(&mut worker, one, print, 0, &mut to).unwrap();
    // Freed, the handle goes to the next object.
    cache.invalidate(one);
    cache.store(&mut worker, &window, 0b100, 1, &NO_PRIORS, &mut objects);
    assert_eq!(blob(objects[0]).0, one);
    assert_eq!(cache.load(&mut worker, one, print, 0, &mut to), Err(LoadError::Object));
}
