//! LZ4, over the C library: the fastest out and the fastest back, at the lowest ratio.
//!
//! An object is one bare LZ4 block: no header, no checksum, no length. [`lz4hc`](crate::lz4hc) writes them by other
//! functions of the C library, and has the same stream.

#![allow(unsafe_code)]

use alloc::boxed::Box;
use core::ffi::{c_char, c_int, c_void};

// The crate is wanted for the C library that it builds. Its bindings lack what needs no malloc.
use lz4_sys as _;

use crate::algorithm::{Algorithm, Parameter};
use crate::request::{Error, Outcome};
use crate::stream::Stream;
use crate::workspace::Workspace;

/// LZ4's line in the registry.
pub(crate) static ALGORITHM: Algorithm = Algorithm {
    name: "lz4",
    parameter: Some(Parameter { name: "ACCELERATION", accepted: 1..=65537, default: 1, words: &[] }),
    description: "fastest, for memory that is needed again soon; a larger ACCELERATION is faster and less dense",
    // 2.4 µs for 64 KiB of noise, and 75 for a heap.
    gives_up_early: |_| true,
    open: |acceleration, _| Ok(Box::new(Lz4::open(ALGORITHM.name, CALLS, acceleration)?)),
    part: |_, _| None,
    takes_device: false,
    with_dictionary: None,
};

// As in lz4.h of the version that lz4-sys carries. The variant of `LZ4_compress_fast_extState` that does not clear the
// table is slower by 2 to 3 % for units below 64 KiB of memory that shrinks: with what is left in the table it has to
// ask of each match whether that is older than the unit.
unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_initStream(buffer: *mut c_void, size: usize) -> *mut c_void;
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe(
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        dst_capacity: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe_partial(
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        target_size: c_int,
        dst_capacity: c_int,
    ) -> c_int;
}

/// The functions of the C library that a compressor is made of.
#[derive(Clone, Copy)]
pub(crate) struct Calls {
    /// Bytes of its state.
    pub state_bytes: unsafe extern "C" fn() -> c_int,
    /// Makes a state in so many bytes.
    pub init: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    /// Compresses, from a state that anything was compressed with before: state, source, destination, their lengths,
    /// and the parameter. Keeps within these lengths.
    pub compress: unsafe extern "C" fn(*mut c_void, *const c_char, *mut c_char, c_int, c_int, c_int) -> c_int,
}

/// The state is 16 KiB of hash table and a few words.
const CALLS: Calls =
    Calls { state_bytes: LZ4_sizeofState, init: LZ4_initStream, compress: LZ4_compress_fast_extState };

/// The compressor's tables; decompression needs no state.
pub(crate) struct Lz4 {
    /// What `calls.init` has made in `_workspace`.
    state: *mut c_void,
    calls: Calls,
    parameter: c_int,
    _workspace: Workspace,
}

// SAFETY: `state` points into memory that this value owns, and LZ4 keeps nothing anywhere else.
unsafe impl Send for Lz4 {}

impl Lz4 {
    pub(crate) fn open(name: &'static str, calls: Calls, parameter: i32) -> Result<Lz4, Error> {
        // SAFETY: it returns a constant.
        let state_bytes = usize::try_from(unsafe { (calls.state_bytes)() }).unwrap_or(0);
        let (workspace, [area]) = Workspace::new([state_bytes])?;
        // SAFETY: the area is as long as LZ4 says that its state is, aligned to 64, and ours alone.
        let state = unsafe { (calls.init)(area.cast(), state_bytes) };
        if state.is_null() {
            return Err(Error::Algorithm { name, code: 0 });
        }
        Ok(Lz4 { state, calls, parameter, _workspace: workspace })
    }
}

impl Stream for Lz4 {
    fn compress_unit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<Outcome, Error> {
        let src_size = c_int::try_from(src.len()).unwrap_or(c_int::MAX);
        let dst_capacity = c_int::try_from(dst.len()).unwrap_or(c_int::MAX);
        // SAFETY: `state` was initialised by `open` and is used by LZ4 alone, through `&mut self`; after a failure
        // `compress` itself initialises it anew. The other lengths are those of the slices, or less.
        let bytes = unsafe {
            (self.calls.compress)(
                self.state,
                src.as_ptr().cast(),
                dst.as_mut_ptr().cast(),
                src_size,
                dst_capacity,
                self.parameter,
            )
        };
        // 0 is LZ4's only failure for a unit of this length, and means that `dst` is too short.
        match usize::try_from(bytes) {
            Ok(bytes @ 1..) => Ok(Outcome::Shrunk(bytes)),
            _ => Ok(Outcome::Incompressible),
        }
    }

    fn decompress_unit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), Error> {
        decompress(src, dst)
    }

    fn decompress_prefix(&mut self, src: &[u8], dst: &mut [u8], _full_len: usize) -> Result<(), Error> {
        decompress_prefix(src, dst)
    }
}

/// Decompresses a block, which must hold exactly `dst.len()` bytes.
fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), Error> {
    let (src_size, dst_size) = sizes(src, dst)?;
    // SAFETY: the lengths are those of the slices, and LZ4_decompress_safe keeps within them whatever `src` holds.
    let bytes =
        unsafe { LZ4_decompress_safe(src.as_ptr().cast(), dst.as_mut_ptr().cast(), src_size, dst_size) };
    if bytes == dst_size { Ok(()) } else { Err(Error::Damaged) }
}

/// Decompresses the first `dst.len()` bytes of a block that holds more.
fn decompress_prefix(src: &[u8], dst: &mut [u8]) -> Result<(), Error> {
    let (src_size, dst_size) = sizes(src, dst)?;
    // SAFETY: as in `decompress`; the target is the whole of `dst`.
    let bytes = unsafe {
        LZ4_decompress_safe_partial(
            src.as_ptr().cast(),
            dst.as_mut_ptr().cast(),
            src_size,
            dst_size,
            dst_size,
        )
    };
    if bytes == dst_size { Ok(()) } else { Err(Error::Damaged) }
}

/// The lengths as LZ4 takes them. No object of ours is longer than that.
fn sizes(src: &[u8], dst: &[u8]) -> Result<(c_int, c_int), Error> {
    match (c_int::try_from(src.len()), c_int::try_from(dst.len())) {
        (Ok(src_size), Ok(dst_size)) => Ok((src_size, dst_size)),
        _ => Err(Error::Damaged),
    }
}
