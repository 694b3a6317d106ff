//! LZ4 that looks longer for matches, over the C library: denser than `lz4`, much slower out, and the fastest back.
//!
//! An object is a bare LZ4 block, as [`lz4`](crate::lz4) writes it and reads it back.
//!
//! From level 10 on the C library works in 64 KiB beside its state. By default it asks malloc for them;
//! `LZ4HC_HEAPMODE=0`, with which the in-process library is built, and this workspace by `.cargo/config.toml`, takes
//! them from the stack.

#![allow(unsafe_code)]

use alloc::boxed::Box;
use core::ffi::{c_char, c_int, c_void};

use crate::algorithm::{Algorithm, Parameter};
use crate::lz4;
use crate::request::{Error, Outcome};
use crate::stream::Stream;
use crate::workspace::Workspace;

/// LZ4HC's line in the registry.
pub(crate) static ALGORITHM: Algorithm = Algorithm {
    name: "lz4hc",
    parameter: Some(Parameter { name: "LEVEL", accepted: 3..=12, default: 9, words: &[] }),
    description: "slow to write and the fastest to read, for memory that is read again and again; a larger LEVEL is denser and slower",
    gives_up_early: |_| false,
    open: |level, _| Ok(Box::new(Lz4Hc::open(level)?)),
    takes_device: false,
    with_dictionary: None,
};

// As in lz4hc.h of the version that lz4-sys carries, which `lz4` links. `LZ4_compress_HC_extStateHC_fastReset` stands
// in its section for static linking.
unsafe extern "C" {
    fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_initStreamHC(buffer: *mut c_void, size: usize) -> *mut c_void;
    fn LZ4_compress_HC_extStateHC_fastReset(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        dst_capacity: c_int,
        level: c_int,
    ) -> c_int;
}

/// The compressor's tables; decompression needs no state.
struct Lz4Hc {
    /// An initialised `LZ4_streamHC_t` in `_workspace`.
    state: *mut c_void,
    level: c_int,
    _workspace: Workspace,
}

// SAFETY: `state` points into memory that this value owns, and LZ4 keeps nothing anywhere else.
unsafe impl Send for Lz4Hc {}

impl Lz4Hc {
    fn open(level: i32) -> Result<Lz4Hc, Error> {
        let (workspace, [area]) = Workspace::new([state_bytes()])?;
        // SAFETY: the area is as long as LZ4 says that its state is, aligned to 64, and ours alone.
        let state = unsafe { LZ4_initStreamHC(area.cast(), state_bytes()) };
        if state.is_null() {
            return Err(Error::Algorithm { name: ALGORITHM.name, code: 0 });
        }
        Ok(Lz4Hc { state, level, _workspace: workspace })
    }
}

impl Stream for Lz4Hc {
    fn compress_unit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<Outcome, Error> {
        let src_size = c_int::try_from(src.len()).unwrap_or(c_int::MAX);
        let dst_capacity = c_int::try_from(dst.len()).unwrap_or(c_int::MAX);
        // SAFETY: `state` was initialised by `open` and is used by LZ4 alone, through `&mut self`; after a failure it
        // initialises it anew by itself. The other lengths are those of the slices, or less.
        let bytes = unsafe {
            LZ4_compress_HC_extStateHC_fastReset(
                self.state,
                src.as_ptr().cast(),
                dst.as_mut_ptr().cast(),
                src_size,
                dst_capacity,
                self.level,
            )
        };
        // 0 is LZ4's only failure for a unit of this length, and means that `dst` is too short.
        match usize::try_from(bytes) {
            Ok(bytes @ 1..) => Ok(Outcome::Shrunk(bytes)),
            _ => Ok(Outcome::Incompressible),
        }
    }

    fn decompress_unit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), Error> {
        lz4::decompress(src, dst)
    }

    fn decompress_prefix(&mut self, src: &[u8], dst: &mut [u8], _full_len: usize) -> Result<(), Error> {
        lz4::decompress_prefix(src, dst)
    }
}

/// Bytes of an `LZ4_streamHC_t`: 128 KiB of hash table, 128 KiB of chains, and a few words.
fn state_bytes() -> usize {
    // SAFETY: it returns a constant.
    let bytes = unsafe { LZ4_sizeofStateHC() };
    usize::try_from(bytes).unwrap_or(0)
}
