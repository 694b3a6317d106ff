//! Zstandard, over the C library: about half as dense again as LZ4, at half to two thirds of its speed out.
//!
//! An object is one frame without magic number and checksum, and with the content's size: 3 to 6 bytes
//! before the first block. Both contexts are static ones, in memory of ours:
//!
//! 1. `ZSTD_initStaticCCtx` and `ZSTD_initStaticDCtx` mark a context as static, and where a context would
//!    grow, zstd fails for a static one (`memory_allocation`) instead of calling malloc.
//! 2. What would need more than the context (worker threads, dictionaries loaded by copy, buffers of the
//!    streaming interface) is not used here. A dictionary is prepared in memory of ours too (`dictionary`).
//! 3. So malloc is not reached, and if our estimate of the context's size were short, a test would see an error.

#![allow(unsafe_code)]

mod dictionary;

use alloc::boxed::Box;
use core::mem::MaybeUninit;
use core::ptr::null;

use zstd_sys::{
    ZSTD_CCtx, ZSTD_CCtx_refCDict, ZSTD_CCtx_reset, ZSTD_CCtx_setParameter, ZSTD_DCtx, ZSTD_DCtx_refDDict,
    ZSTD_DCtx_setParameter, ZSTD_DDict, ZSTD_ErrorCode, ZSTD_FrameHeader, ZSTD_ResetDirective,
    ZSTD_cParameter, ZSTD_compress2, ZSTD_dParameter, ZSTD_decompressBegin_usingDDict,
    ZSTD_decompressContinue, ZSTD_decompressDCtx, ZSTD_estimateCCtxSize_usingCParams, ZSTD_estimateDCtxSize,
    ZSTD_format_e, ZSTD_getCParams, ZSTD_getErrorCode, ZSTD_getFrameHeader_advanced, ZSTD_initStaticCCtx,
    ZSTD_initStaticDCtx, ZSTD_isError, ZSTD_nextSrcSizeToDecompress, ZSTD_strategy,
};

use crate::algorithm::{Algorithm, Parameter, WithDictionary};
use crate::part::Part;
use crate::request::{Error, Outcome};
use crate::stream::Stream;
use crate::workspace::Workspace;
use dictionary::Dictionary;

/// Zstandard's line in the registry.
pub(crate) static ALGORITHM: Algorithm = Algorithm {
    name: "zstd",
    parameter: Some(Parameter { name: "LEVEL", accepted: -7..=22, default: 1, words: &[] }),
    description: "dense, for memory that stays out; a larger LEVEL is denser and slower, a negative one faster, 0 is zstd's own choice",
    // 2.6 µs for 64 KiB of noise at -1, 5.0 at 1, 7.7 at 3, 20 at 9; and up to 40 for what was compressed already, but
    // for negative levels.
    gives_up_early: |level| level < 0,
    open: |level, unit_max| Ok(Box::new(Zstd::open(level, unit_max, None)?)),
    part: |level, has_dictionary| (has_dictionary || !is_fast(level)).then_some(Part::ZstdSearch),
    takes_device: false,
    with_dictionary: Some(WithDictionary {
        open: |level, unit_max, dictionary| {
            let dictionary = Dictionary::open(level, unit_max, dictionary)?;
            Ok(Box::new(Zstd::open(level, unit_max, Some(dictionary))?))
        },
    }),
};

/// The most plain bytes that one block holds (ZSTD_BLOCKSIZE_MAX), which is what zstd's encoder aims at.
///
/// Blocks of 16 KiB (ZSTD_c_maxBlockSize) would give the first page of a 64 KiB unit three times as fast, and on a
/// Python heap 2 % more ratio at level 1, but compress 23 % and decompress 18 % slower.
const BLOCK_MAX_BYTES: usize = 128 << 10;

/// Lengths up to which zstd takes other parameters for the same level; above the last, the same for all.
const TIERS_BYTES: [usize; 4] = [16 << 10, 128 << 10, 256 << 10, usize::MAX];

/// Frames without the four magic bytes: ours are never mistaken for anything else.
const MAGICLESS: ZSTD_format_e = ZSTD_format_e::ZSTD_f_zstd1_magicless;
/// `ZSTD_c_format`; zstd.h gives it the bindings' name until it is stable.
const C_FORMAT: ZSTD_cParameter = ZSTD_cParameter::ZSTD_c_experimentalParam2;
/// `ZSTD_d_format`.
const D_FORMAT: ZSTD_dParameter = ZSTD_dParameter::ZSTD_d_experimentalParam1;

/// A compressing and a decompressing context, and room for the blocks of which only a prefix is wanted.
struct Zstd {
    /// A static context in `_workspace`, its parameters set for good.
    cctx: *mut ZSTD_CCtx,
    /// A static context in `_workspace`.
    dctx: *mut ZSTD_DCtx,
    /// `scratch_bytes` bytes in `_workspace`, which is as long as the longest unit.
    scratch: *mut u8,
    scratch_bytes: usize,
    dictionary: Option<Dictionary>,
    _workspace: Workspace,
}

// SAFETY: the pointers lead into memory that this value owns, and zstd keeps nothing of a context anywhere else.
unsafe impl Send for Zstd {}

impl Zstd {
    fn open(level: i32, unit_max: usize, dictionary: Option<Dictionary>) -> Result<Zstd, Error> {
        let areas @ [cctx_bytes, dctx_bytes, scratch_bytes] = areas(level, unit_max, dictionary.is_some());
        let (workspace, [cctx, dctx, scratch]) = Workspace::new(areas)?;
        // SAFETY: the areas are ours alone, as long as stated, aligned to 64 where zstd wants 8, and stay
        // where they are for as long as `workspace` lives.
        let (cctx, dctx) = unsafe {
            (ZSTD_initStaticCCtx(cctx.cast(), cctx_bytes), ZSTD_initStaticDCtx(dctx.cast(), dctx_bytes))
        };
        if cctx.is_null() || dctx.is_null() {
            return Err(Error::NoMemory { bytes: Workspace::bytes(areas) });
        }
        for (parameter, value) in [
            (ZSTD_cParameter::ZSTD_c_compressionLevel, level),
            (ZSTD_cParameter::ZSTD_c_contentSizeFlag, 1),
            (ZSTD_cParameter::ZSTD_c_checksumFlag, 0),
            (ZSTD_cParameter::ZSTD_c_dictIDFlag, 0),
            (C_FORMAT, MAGICLESS as i32),
        ] {
            // SAFETY: `cctx` is a context that zstd has just made.
            check(unsafe { ZSTD_CCtx_setParameter(cctx, parameter, value) })?;
        }
        // SAFETY: `dctx` is a context that zstd has just made.
        check(unsafe { ZSTD_DCtx_setParameter(dctx, D_FORMAT, MAGICLESS as i32) })?;
        Ok(Zstd { cctx, dctx, scratch, scratch_bytes, dictionary, _workspace: workspace })
    }

    /// For decompressing; null where there is none.
    fn decompressing(&self) -> *const ZSTD_DDict {
        self.dictionary.as_ref().map_or(null(), Dictionary::decompressing)
    }
}

impl Stream for Zstd {
    fn compress_unit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<Outcome, Error> {
        let dictionary = self.dictionary.as_mut().map_or(Ok(null()), Dictionary::compressing)?;
        // SAFETY: `cctx` is a context of ours, used through `&mut self` alone; the lengths are those of the slices; the
        // dictionary stays as it is.
        let bytes = unsafe {
            // After a unit that did not shrink the context is in the middle of it.
            check(ZSTD_CCtx_reset(self.cctx, ZSTD_ResetDirective::ZSTD_reset_session_only))?;
            check(ZSTD_CCtx_refCDict(self.cctx, dictionary))?;
            ZSTD_compress2(self.cctx, dst.as_mut_ptr().cast(), dst.len(), src.as_ptr().cast(), src.len())
        };
        match check(bytes) {
            Ok(bytes) => Ok(Outcome::Shrunk(bytes)),
            Err(Error::Algorithm { code, .. })
                if code == ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall as i32 =>
            {
                Ok(Outcome::Incompressible)
            }
            Err(error) => Err(error),
        }
    }

    fn decompress_unit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), Error> {
        let dictionary = self.decompressing();
        // SAFETY: `dctx` is a context of ours, used through `&mut self` alone; the lengths are those of the
        // slices, and zstd keeps within them whatever `src` holds; the dictionary stays as for `compress_unit`.
        let bytes = unsafe {
            check(ZSTD_DCtx_refDDict(self.dctx, dictionary))?;
            ZSTD_decompressDCtx(self.dctx, dst.as_mut_ptr().cast(), dst.len(), src.as_ptr().cast(), src.len())
        };
        if bytes == dst.len() { Ok(()) } else { Err(Error::Damaged) }
    }

    /// Decodes block after block into the scratch area, until the prefix is there. A block's capacity must be given in
    /// full, so that a prefix which ends within one cannot be decoded in place.
    fn decompress_prefix(&mut self, src: &[u8], dst: &mut [u8], full_len: usize) -> Result<(), Error> {
        if content_bytes(src) != Some(full_len) {
            return Err(Error::Damaged);
        }
        let capacity = full_len.min(dst.len() + BLOCK_MAX_BYTES).min(self.scratch_bytes);
        let dictionary = self.decompressing();
        // SAFETY: `dctx` is a context of ours, used through `&mut self` alone, and the dictionary stays.
        check(unsafe { ZSTD_decompressBegin_usingDDict(self.dctx, dictionary) })
            .map_err(|_| Error::Damaged)?;
        let mut rest = src;
        let mut decoded = 0;
        while decoded < dst.len() {
            // SAFETY: as above.
            let wanted = unsafe { ZSTD_nextSrcSizeToDecompress(self.dctx) };
            // Nothing is wanted any more after the last block, and the prefix was not in it.
            let Some((piece, behind)) = rest.split_at_checked(wanted).filter(|_| wanted > 0) else {
                return Err(Error::Damaged);
            };
            // SAFETY: `decoded <= capacity <= scratch_bytes`, because zstd writes no more than the capacity
            // that it is given; earlier blocks, to which this one refers, lie untouched right before it.
            let written = unsafe {
                ZSTD_decompressContinue(
                    self.dctx,
                    self.scratch.add(decoded).cast(),
                    capacity - decoded,
                    piece.as_ptr().cast(),
                    piece.len(),
                )
            };
            decoded += check(written).map_err(|_| Error::Damaged)?;
            rest = behind;
        }
        // SAFETY: the first `decoded >= dst.len()` bytes of the scratch area were written by zstd, and no slice
        // given to us lies in our workspace.
        unsafe { dst.as_mut_ptr().copy_from_nonoverlapping(self.scratch, dst.len()) };
        Ok(())
    }
}

/// Bytes of the compressing context, of the decompressing one, and of the scratch area.
///
/// A context takes the parameters that suit each unit's own length, and the shorter length's may
/// need more memory: so each tier is asked for at its longest.
fn areas(level: i32, unit_max: usize, has_dictionary: bool) -> [usize; 3] {
    let mut cctx_bytes = if has_dictionary { Dictionary::context_bytes(level, unit_max) } else { 0 };
    for tier_bytes in TIERS_BYTES {
        let longest = tier_bytes.min(unit_max.max(1));
        // SAFETY: both compute from their arguments alone.
        let bytes = unsafe { ZSTD_estimateCCtxSize_usingCParams(ZSTD_getCParams(level, longest as u64, 0)) };
        cctx_bytes = cctx_bytes.max(bytes);
    }
    // SAFETY: it returns a constant.
    [cctx_bytes, unsafe { ZSTD_estimateDCtxSize() }, unit_max]
}

/// True for a level at which units of every length are searched by zstd's fast strategy.
fn is_fast(level: i32) -> bool {
    // SAFETY: it computes from its arguments alone.
    let strategy = |bytes: usize| unsafe { ZSTD_getCParams(level, bytes as u64, 0) }.strategy;
    TIERS_BYTES.into_iter().all(|bytes| strategy(bytes) == ZSTD_strategy::ZSTD_fast)
}

/// The content's length that a frame's header states; none if it states none or is no header.
fn content_bytes(src: &[u8]) -> Option<usize> {
    let mut header = MaybeUninit::<ZSTD_FrameHeader>::zeroed();
    // SAFETY: zstd reads at most `src.len()` bytes and fills in `header` when it returns 0; all zeros is a header as
    // well.
    let (missing, header) = unsafe {
        let missing =
            ZSTD_getFrameHeader_advanced(header.as_mut_ptr(), src.as_ptr().cast(), src.len(), MAGICLESS);
        (missing, header.assume_init())
    };
    // An unknown length is stated as one that no object of ours has.
    if missing == 0 { usize::try_from(header.frameContentSize).ok() } else { None }
}

/// A length that zstd returned, or the error that stands in its place.
fn check(result: usize) -> Result<usize, Error> {
    // SAFETY: both compute from their argument alone.
    unsafe {
        match ZSTD_isError(result) {
            0 => Ok(result),
            _ => Err(Error::Algorithm { name: ALGORITHM.name, code: ZSTD_getErrorCode(result) as i32 }),
        }
    }
}
