//! Deflate, over the C library libdeflate: nearly as dense as zstd, and what every other deflate reads and writes.
//!
//! An object is one raw deflate stream (RFC 1951): no header, no checksum, no length.
//!
//! libdeflate asks for a compressor's memory and a decompressor's once each, when they are made, by functions of
//! ours: Rust's global allocator serves it, and nothing is asked for afterwards.

#![allow(unsafe_code)]

use alloc::alloc::{alloc, dealloc};
use alloc::boxed::Box;
use core::alloc::Layout;
use core::ffi::{c_int, c_uint, c_void};
use core::ptr::{NonNull, null_mut};

use crate::algorithm::{Algorithm, Parameter};
use crate::part::Part;
use crate::request::{Error, Outcome};
use crate::stream::Stream;
use crate::workspace::Workspace;

/// Deflate's line in the registry.
pub(crate) static ALGORITHM: Algorithm = Algorithm {
    name: "deflate",
    parameter: Some(Parameter { name: "LEVEL", accepted: 1..=12, default: 1, words: &[] }),
    description: "nearly as dense as zstd and slower, in the format that accelerators write; a larger LEVEL is denser and slower",
    gives_up_early: |_| false,
    open: |level, unit_max| Ok(Box::new(Deflate::open(level, unit_max)?)),
    part: |_, _| Some(Part::Deflate),
    takes_device: false,
    with_dictionary: None,
};

// As in libdeflate.h of the version that libdeflate-sys carries, whose archive build.rs links: its bindings need std.
#[repr(C)]
struct Options {
    sizeof_options: usize,
    malloc_func: Option<unsafe extern "C" fn(usize) -> *mut c_void>,
    free_func: Option<unsafe extern "C" fn(*mut c_void)>,
}

unsafe extern "C" {
    fn libdeflate_alloc_compressor_ex(level: c_int, options: *const Options) -> *mut c_void;
    fn libdeflate_free_compressor(compressor: *mut c_void);
    fn libdeflate_deflate_compress(
        compressor: *mut c_void,
        src: *const c_void,
        src_bytes: usize,
        dst: *mut c_void,
        dst_bytes: usize,
    ) -> usize;
    fn libdeflate_alloc_decompressor_ex(options: *const Options) -> *mut c_void;
    fn libdeflate_free_decompressor(decompressor: *mut c_void);
    fn libdeflate_deflate_decompress_ex(
        decompressor: *mut c_void,
        src: *const c_void,
        src_bytes: usize,
        dst: *mut c_void,
        dst_bytes: usize,
        src_bytes_read: *mut usize,
        dst_bytes_written: *mut usize,
    ) -> c_uint;
}

/// `LIBDEFLATE_SUCCESS`.
const SUCCESS: c_uint = 0;

/// What libdeflate asks for a decompressor, in bytes, with our header.
const DECOMPRESSOR_BYTES: usize = 11584;

/// What libdeflate asks for a compressor, in bytes, with our header. Three kinds of match finder stand behind the
/// levels.
fn compressor_bytes(level: i32) -> usize {
    match level {
        ..=1 => 202_775,
        2..=9 => 668_311,
        _ => 9_011_767,
    }
}

/// A decompressor, and room for a unit of which only a prefix is wanted.
pub(crate) struct Inflate {
    decompressor: NonNull<c_void>,
    /// `scratch_bytes` bytes in `_workspace`, which is as long as the longest unit.
    scratch: *mut u8,
    scratch_bytes: usize,
    _workspace: Workspace,
}

/// Both ways.
struct Deflate {
    compressor: NonNull<c_void>,
    inflate: Inflate,
}

// SAFETY: the pointers lead into memory that this value owns. libdeflate keeps nothing else but which functions suit
// the processor, which it finds out at the first use and stores in one aligned word.
unsafe impl Send for Inflate {}
// SAFETY: as above.
unsafe impl Send for Deflate {}

const OPTIONS: Options =
    Options { sizeof_options: size_of::<Options>(), malloc_func: Some(take), free_func: Some(give_back) };

impl Deflate {
    fn open(level: i32, unit_max: usize) -> Result<Deflate, Error> {
        let inflate = Inflate::open(unit_max)?;
        // SAFETY: `OPTIONS` is as libdeflate.h has it, its functions are an allocator, and the level is one of
        // libdeflate's.
        let compressor = NonNull::new(unsafe { libdeflate_alloc_compressor_ex(level, &OPTIONS) })
            .ok_or(Error::NoMemory { bytes: compressor_bytes(level) })?;
        Ok(Deflate { compressor, inflate })
    }
}

impl Inflate {
    /// For units of up to `unit_max` bytes.
    pub(crate) fn open(unit_max: usize) -> Result<Inflate, Error> {
        let (workspace, [scratch]) = Workspace::new([unit_max])?;
        // SAFETY: `OPTIONS` is as libdeflate.h has it, and its functions are an allocator.
        let decompressor = NonNull::new(unsafe { libdeflate_alloc_decompressor_ex(&OPTIONS) })
            .ok_or(Error::NoMemory { bytes: DECOMPRESSOR_BYTES })?;
        Ok(Inflate { decompressor, scratch, scratch_bytes: unit_max, _workspace: workspace })
    }

    /// Decompresses `src`, which must hold exactly `dst.len()` bytes.
    pub(crate) fn unit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), Error> {
        // SAFETY: `dst` is a slice.
        unsafe { self.decompress_to(src, dst.as_mut_ptr(), dst.len()) }
    }

    /// Decompresses the first `dst.len()` of the `full_len` bytes that `src` holds: libdeflate cannot stop before the
    /// end.
    pub(crate) fn prefix(&mut self, src: &[u8], dst: &mut [u8], full_len: usize) -> Result<(), Error> {
        assert!(dst.len() <= full_len && full_len <= self.scratch_bytes, "the context checks it");
        // SAFETY: the scratch area is long enough for any unit.
        unsafe { self.decompress_to(src, self.scratch, full_len)? };
        // SAFETY: the first `full_len >= dst.len()` bytes of the scratch area were written, and no slice given to
        // us lies in our workspace.
        unsafe { dst.as_mut_ptr().copy_from_nonoverlapping(self.scratch, dst.len()) };
        Ok(())
    }

    /// Decompresses `src` to `dst`, and is pleased only if all of `src` makes exactly `bytes`.
    ///
    /// # Safety
    ///
    /// `dst` is the address of `bytes` bytes that may be written.
    unsafe fn decompress_to(&mut self, src: &[u8], dst: *mut u8, bytes: usize) -> Result<(), Error> {
        let mut read = 0;
        // SAFETY: the decompressor is ours, used through `&mut self` alone; libdeflate keeps within the lengths, which
        // are `src`'s and by the caller's promise `dst`'s, whatever `src` holds. Without a pointer for the length
        // written it must come to exactly `bytes`.
        let result = unsafe {
            libdeflate_deflate_decompress_ex(
                self.decompressor.as_ptr(),
                src.as_ptr().cast(),
                src.len(),
                dst.cast(),
                bytes,
                &mut read,
                null_mut(),
            )
        };
        if result == SUCCESS && read == src.len() { Ok(()) } else { Err(Error::Damaged) }
    }
}

impl Drop for Inflate {
    fn drop(&mut self) {
        // SAFETY: libdeflate made it, and it is used no more.
        unsafe { libdeflate_free_decompressor(self.decompressor.as_ptr()) };
    }
}

impl Drop for Deflate {
    fn drop(&mut self) {
        // SAFETY: libdeflate made it, and it is used no more.
        unsafe { libdeflate_free_compressor(self.compressor.as_ptr()) };
    }
}

impl Stream for Deflate {
    fn compress_unit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<Outcome, Error> {
        // SAFETY: the compressor is ours, used through `&mut self` alone; the lengths are those of the slices.
        let bytes = unsafe {
            libdeflate_deflate_compress(
                self.compressor.as_ptr(),
                src.as_ptr().cast(),
                src.len(),
                dst.as_mut_ptr().cast(),
                dst.len(),
            )
        };
        // 0 is libdeflate's only failure, and means that `dst` is too short.
        if bytes > 0 { Ok(Outcome::Shrunk(bytes)) } else { Ok(Outcome::Incompressible) }
    }

    fn decompress_unit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), Error> {
        self.inflate.unit(src, dst)
    }

    fn decompress_prefix(&mut self, src: &[u8], dst: &mut [u8], full_len: usize) -> Result<(), Error> {
        self.inflate.prefix(src, dst, full_len)
    }
}

/// Room before each piece of memory for its length, which Rust's allocator wants to hear again; a multiple of
/// [`ALIGN`].
const HEADER_BYTES: usize = 16;
/// What malloc promises.
const ALIGN: usize = 16;

/// malloc, over Rust's allocator.
unsafe extern "C" fn take(bytes: usize) -> *mut c_void {
    let Some(all) = bytes.checked_add(HEADER_BYTES) else { return null_mut() };
    let Ok(layout) = Layout::from_size_align(all, ALIGN) else { return null_mut() };
    // SAFETY: the layout has a length.
    let start = unsafe { alloc(layout) };
    if start.is_null() {
        return null_mut();
    }
    // SAFETY: `start` begins HEADER_BYTES and more of memory, aligned to 16.
    unsafe {
        start.cast::<usize>().write(all);
        start.add(HEADER_BYTES).cast()
    }
}

/// free, over Rust's allocator.
unsafe extern "C" fn give_back(memory: *mut c_void) {
    if memory.is_null() {
        return;
    }
    // SAFETY: libdeflate gives back what it had from `take`, which has written the length there and made a
    // layout of it before.
    unsafe {
        let start = memory.cast::<u8>().sub(HEADER_BYTES);
        let all = start.cast::<usize>().read();
        dealloc(start, Layout::from_size_align_unchecked(all, ALIGN));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    static ASKED_BYTES: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn refuse(bytes: usize) -> *mut c_void {
        ASKED_BYTES.store(bytes + HEADER_BYTES, Relaxed);
        null_mut()
    }

    /// One test, because of the one counter.
    #[test]
    fn workspace_is_what_libdeflate_asks_for() {
        let options = Options {
            sizeof_options: size_of::<Options>(),
            malloc_func: Some(refuse),
            free_func: Some(give_back),
        };
        // SAFETY: `options` is as libdeflate.h has it; an allocator may refuse.
        assert!(unsafe { libdeflate_alloc_decompressor_ex(&options) }.is_null());
        assert_eq!(ASKED_BYTES.load(Relaxed), DECOMPRESSOR_BYTES);
        for level in 1..=12 {
            // SAFETY: as above.
            assert!(unsafe { libdeflate_alloc_compressor_ex(level, &options) }.is_null());
            assert_eq!(ASKED_BYTES.load(Relaxed), compressor_bytes(level), "level {level}");
        }
    }
}
