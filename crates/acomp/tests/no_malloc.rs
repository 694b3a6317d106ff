//! No way through a context reaches malloc, calloc, realloc or free: neither the C libraries' nor Rust's.
//!
//! The program's allocator functions are replaced by ones that count and pass on to glibc. There is
//! one thread and no test harness, so that what is counted is the context's.

mod samples;

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use acomp::Context;
use samples::{Random, Samples, compress, decompress, decompress_prefix, object};

static CALLS: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    fn __libc_malloc(bytes: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, bytes: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, bytes: usize) -> *mut c_void;
    fn __libc_free(old: *mut c_void);
}

#[unsafe(no_mangle)]
extern "C" fn malloc(bytes: usize) -> *mut c_void {
    CALLS.fetch_add(1, Relaxed);
    // SAFETY: any length may be asked for.
    unsafe { __libc_malloc(bytes) }
}

#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    CALLS.fetch_add(1, Relaxed);
    // SAFETY: any length may be asked for.
    unsafe { __libc_calloc(count, bytes) }
}

/// # Safety
///
/// As for free(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(old: *mut c_void, bytes: usize) -> *mut c_void {
    CALLS.fetch_add(1, Relaxed);
    // SAFETY: the caller's promise, and all memory comes from glibc.
    unsafe { __libc_realloc(old, bytes) }
}

/// # Safety
///
/// As for free(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn free(old: *mut c_void) {
    CALLS.fetch_add(1, Relaxed);
    // SAFETY: the caller's promise, and all memory comes from glibc.
    unsafe { __libc_free(old) }
}

/// How often the allocator is called in the course of `work`.
fn calls<R>(work: impl FnOnce() -> R) -> (usize, R) {
    let before = CALLS.load(Relaxed);
    let result = work();
    (CALLS.load(Relaxed) - before, result)
}

fn main() {
    // The count works: for Rust's allocations, and for those that zstd makes where it may.
    assert_eq!(calls(|| drop(std::hint::black_box(Box::new(1)))).0, 2);
    // SAFETY: a context of zstd's own is made and freed.
    let (made, _) = calls(|| unsafe { zstd_sys::ZSTD_freeCCtx(zstd_sys::ZSTD_createCCtx()) });
    assert!(made >= 2, "zstd's own context took {made} calls");

    let mut random = Random(samples::seed());
    for text in [
        "lz4",
        "lz4:9",
        "lz4hc:3",
        "lz4hc:9",
        "lz4hc:10",
        "lz4hc:12",
        "zstd:-7",
        "zstd:-1",
        "zstd:1",
        "zstd:3",
        "zstd:6",
        "zstd:13",
        "zstd:19",
        "zstd:22",
        "zstd:1,dict=FILE",
        "zstd:19,dict=FILE",
        "deflate:1",
        "deflate:6",
        "deflate:10",
        "deflate:12",
        "deflate-iaa",
        "deflate-iaa:canned",
        "lzo",
        "lzo-rle",
        "842",
    ] {
        // One context for all lengths, so that its parameters change from unit to unit.
        let mut context: Context = samples::context(text, 2 << 20);
        for len in [1, 4096, 16 << 10, 64 << 10, 1 << 20, 2 << 20, 4096, 100_000] {
            let unit = random.memory(len);
            let object = object(&mut context, &unit);
            let mut dst = vec![0; unit.len() + 100_000];
            let mut damaged = object.clone();
            damaged[object.len() / 2] ^= 0x55;

            let (count, ()) = calls(|| {
                compress(&mut context, &unit, &mut dst).unwrap();
                let _ = compress(&mut context, &unit, &mut dst[..len.div_ceil(4)]);
                decompress(&mut context, &object, &mut dst[..len]).unwrap();
                decompress_prefix(&mut context, &object, &mut dst[..len.div_ceil(3)], len).unwrap();
                let _ = decompress(&mut context, &damaged, &mut dst[..len]);
                let _ = decompress_prefix(&mut context, &damaged, &mut dst[..len.div_ceil(3)], len);
                decompress(&mut context, &object[..object.len() - 1], &mut dst[..len]).unwrap_err();
            });
            assert_eq!(count, 0, "{text}, a unit of {len} bytes: {count} calls of the allocator");
        }
    }
    println!("no call of the allocator from any context");
}
