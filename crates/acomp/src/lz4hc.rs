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
use crate::lz4::{Calls, Lz4};
use crate::part::Part;

/// LZ4HC's line in the registry.
pub(crate) static ALGORITHM: Algorithm = Algorithm {
    name: "lz4hc",
    parameter: Some(Parameter { name: "LEVEL", accepted: 3..=12, default: 9, words: &[] }),
    description: "slow to write and the fastest to read, for memory that is read again and again; a larger LEVEL is denser and slower",
    gives_up_early: |_| false,
    open: |level, _| Ok(Box::new(Lz4::open(ALGORITHM.name, CALLS, level)?)),
    part: |_, _| Some(Part::Lz4hc),
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

/// The state is 128 KiB of hash table, 128 KiB of chains, and a few words.
const CALLS: Calls = Calls {
    state_bytes: LZ4_sizeofStateHC,
    init: LZ4_initStreamHC,
    compress: LZ4_compress_HC_extStateHC_fastReset,
};
