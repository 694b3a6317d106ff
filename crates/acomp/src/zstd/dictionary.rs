//! The dictionary of a zstd context: a copy, and what zstd makes of it, in memory that is taken with the context.
//!
//! A dictionary is raw content, or one as `zstd --train` writes it, which has tables of codes too. zstd tells them
//! apart by four bytes.
//!
//! What is prepared for a dictionary refers to it, is read alone, and is made in place (`ZSTD_initStaticCDict`,
//! `ZSTD_initStaticDDict`), so that malloc is not reached. The tables for compressing are made when they are first
//! wanted: who only reads needs none.

#![allow(unsafe_code)]

use core::ptr::null;

use zstd_sys::{
    ZSTD_CDict, ZSTD_DDict, ZSTD_compressionParameters, ZSTD_dictContentType_e, ZSTD_dictLoadMethod_e,
    ZSTD_estimateCCtxSize_usingCParams, ZSTD_estimateCDictSize_advanced, ZSTD_estimateDDictSize,
    ZSTD_getCParams, ZSTD_initStaticCDict, ZSTD_initStaticDDict,
};

use crate::algorithm::FILE_MAX_BYTES;
use crate::request::Error;
use crate::workspace::Workspace;

const BY_REFERENCE: ZSTD_dictLoadMethod_e = ZSTD_dictLoadMethod_e::ZSTD_dlm_byRef;
const ANY_CONTENT: ZSTD_dictContentType_e = ZSTD_dictContentType_e::ZSTD_dct_auto;

/// For units of this length zstd's parameters are chosen: with longer ones a dictionary gains nothing to speak of.
const UNIT_BYTES: usize = 64 << 10;

/// See the head of the file.
pub(crate) struct Dictionary {
    /// The copy.
    content: *const u8,
    len: usize,
    /// Where the tables for compressing go, and the tables once they are made.
    tables: *mut u8,
    compressing: *const ZSTD_CDict,
    /// What is made for decompressing.
    decompressing: *const ZSTD_DDict,
    level: i32,
    unit_bytes: usize,
    _workspace: Workspace,
}

impl Dictionary {
    /// Takes a copy of `dictionary`.
    ///
    /// # Errors
    ///
    /// [`Error::NoDictionary`] if it is empty, longer than [`FILE_MAX_BYTES`], or has tables of codes that are damaged;
    /// [`Error::NoMemory`].
    pub(crate) fn open(level: i32, unit_max: usize, dictionary: &[u8]) -> Result<Dictionary, Error> {
        let len = dictionary.len();
        if !(1..=FILE_MAX_BYTES).contains(&len) {
            return Err(Error::NoDictionary);
        }
        let (workspace, [content, tables, room]) = Workspace::new(areas(level, unit_max))?;
        // SAFETY: the areas are ours alone and as long as `areas` says. zstd says null of tables that are damaged.
        let decompressing = unsafe {
            content.copy_from_nonoverlapping(dictionary.as_ptr(), len);
            ZSTD_initStaticDDict(room.cast(), room_bytes(), content.cast(), len, BY_REFERENCE, ANY_CONTENT)
        };
        if decompressing.is_null() {
            return Err(Error::NoDictionary);
        }
        Ok(Dictionary {
            content,
            len,
            tables,
            compressing: null(),
            decompressing,
            level,
            unit_bytes: unit_max.min(UNIT_BYTES),
            _workspace: workspace,
        })
    }

    /// Bytes of a context that compresses with one.
    pub(crate) fn context_bytes(level: i32, unit_max: usize) -> usize {
        let unit_bytes = unit_max.min(UNIT_BYTES);
        let context_bytes = |len| {
            let mut parameters = parameters(level, unit_bytes, len);
            // What a context's blocks take goes by the unit that it has before it, and zstd's own level.
            // SAFETY: both compute from their arguments alone.
            unsafe {
                let of_unit = ZSTD_getCParams(0, unit_max.max(1) as u64, len);
                parameters.windowLog = parameters.windowLog.max(of_unit.windowLog);
                ZSTD_estimateCCtxSize_usingCParams(parameters)
            }
        };
        lengths(unit_bytes).map(context_bytes).max().unwrap_or(0)
    }

    /// For compressing.
    pub(crate) fn compressing(&mut self) -> Result<*const ZSTD_CDict, Error> {
        if self.compressing.is_null() {
            let parameters = parameters(self.level, self.unit_bytes, self.len);
            // SAFETY: the copy stays as it is, and the area is ours alone and as long as `areas` says.
            self.compressing = unsafe {
                ZSTD_initStaticCDict(
                    self.tables.cast(),
                    tables_bytes(self.level, self.unit_bytes),
                    self.content.cast(),
                    self.len,
                    BY_REFERENCE,
                    ANY_CONTENT,
                    parameters,
                )
            };
        }
        if self.compressing.is_null() { Err(Error::NoDictionary) } else { Ok(self.compressing) }
    }

    /// For decompressing.
    pub(crate) fn decompressing(&self) -> *const ZSTD_DDict {
        self.decompressing
    }
}

/// Bytes of the copy, of the tables for compressing, and of what is made for decompressing.
fn areas(level: i32, unit_max: usize) -> [usize; 3] {
    [FILE_MAX_BYTES, tables_bytes(level, unit_max.min(UNIT_BYTES)), room_bytes()]
}

fn parameters(level: i32, unit_bytes: usize, len: usize) -> ZSTD_compressionParameters {
    // SAFETY: it computes from its arguments alone.
    unsafe { ZSTD_getCParams(level, unit_bytes.max(1) as u64, len) }
}

/// Lengths of dictionaries among which the one is that takes most memory: parameters go by the length of unit and
/// dictionary together, in tiers, and within a tier the longest takes most.
fn lengths(unit_bytes: usize) -> impl Iterator<Item = usize> {
    const TIERS_BYTES: [usize; 4] = [16 << 10, 128 << 10, 256 << 10, usize::MAX];
    TIERS_BYTES.into_iter().map(move |tier| tier.saturating_sub(unit_bytes).clamp(1, FILE_MAX_BYTES))
}

fn tables_bytes(level: i32, unit_bytes: usize) -> usize {
    // SAFETY: it computes from its arguments alone.
    let bytes = |len| unsafe {
        ZSTD_estimateCDictSize_advanced(len, parameters(level, unit_bytes, len), BY_REFERENCE)
    };
    lengths(unit_bytes).map(bytes).max().unwrap_or(0)
}

fn room_bytes() -> usize {
    // SAFETY: it returns a constant where the dictionary is not copied.
    unsafe { ZSTD_estimateDDictSize(0, BY_REFERENCE) }
}
