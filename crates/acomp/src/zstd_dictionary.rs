//! The dictionaries of a zstd context: copies, and what zstd makes of them, in memory that is taken with the context.
//!
//! A dictionary is raw content, or one as `zstd --train` writes it, which has tables of codes too. zstd tells them apart by four bytes.
//!
//! What is prepared for a dictionary refers to it, is read alone, and is made in place (`ZSTD_initStaticCDict`, `ZSTD_initStaticDDict`), so that
//! malloc is not reached. The tables for compressing are made when they are first wanted: who only reads needs none.

#![allow(unsafe_code)]

use alloc::vec::Vec;
use core::ptr::{null, null_mut};
use core::slice;

use zstd_sys::{
    ZSTD_CDict, ZSTD_DDict, ZSTD_compressionParameters, ZSTD_dictContentType_e, ZSTD_dictLoadMethod_e,
    ZSTD_estimateCCtxSize_usingCParams, ZSTD_estimateCDictSize_advanced, ZSTD_estimateDDictSize,
    ZSTD_getCParams, ZSTD_initStaticCDict, ZSTD_initStaticDDict,
};

use crate::compressor::Source;
use crate::request::Error;
use crate::workspace::Workspace;

const BY_REFERENCE: ZSTD_dictLoadMethod_e = ZSTD_dictLoadMethod_e::ZSTD_dlm_byRef;
const ANY_CONTENT: ZSTD_dictContentType_e = ZSTD_dictContentType_e::ZSTD_dct_auto;

/// For units of this length zstd's parameters are chosen: with longer ones a dictionary gains nothing to speak of.
const UNIT_BYTES: usize = 64 << 10;

/// One place.
struct Place {
    /// The copy, of which `len` bytes are used; 0 where there is no dictionary.
    content: *mut u8,
    len: usize,
    /// Where the tables for compressing go, and the tables once they are made.
    tables: *mut u8,
    compressing: *const ZSTD_CDict,
    /// Where what is made for decompressing goes, and that.
    room: *mut u8,
    decompressing: *const ZSTD_DDict,
    _workspace: Workspace,
}

/// All places of a context.
pub(crate) struct Dictionaries {
    places: Vec<Place>,
    level: i32,
    unit_bytes: usize,
    max_bytes: usize,
}

impl Dictionaries {
    /// Takes memory for what comes of this source.
    pub(crate) fn open(level: i32, unit_max: usize, source: Source) -> Result<Dictionaries, Error> {
        let (count, max_bytes) = source.room();
        let place = || -> Result<Place, Error> {
            let (workspace, [content, tables, room]) = Workspace::new(areas(level, unit_max, max_bytes))?;
            Ok(Place {
                content,
                len: 0,
                tables,
                compressing: null(),
                room,
                decompressing: null(),
                _workspace: workspace,
            })
        };
        let places = (0..count).map(|_| place()).collect::<Result<Vec<Place>, Error>>()?;
        Ok(Dictionaries { places, level, unit_bytes: unit_max.min(UNIT_BYTES), max_bytes })
    }

    /// Bytes of memory that it takes.
    pub(crate) fn bytes(level: i32, unit_max: usize, source: Source) -> usize {
        let (count, max_bytes) = source.room();
        count * Workspace::bytes(areas(level, unit_max, max_bytes))
    }

    /// Bytes of a context that compresses with any of them.
    pub(crate) fn context_bytes(level: i32, unit_max: usize, source: Source) -> usize {
        let (_, max_bytes) = source.room();
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
        lengths(unit_bytes, max_bytes).map(context_bytes).max().unwrap_or(0)
    }

    /// Takes a copy in, as [`Context::learn`](crate::Context::learn) says.
    pub(crate) fn learn(&mut self, place: usize, dictionary: &[u8]) -> Result<(), Error> {
        let place = self.places.get_mut(place).ok_or(Error::NoDictionary)?;
        (place.len, place.compressing, place.decompressing) = (0, null(), null());
        if dictionary.is_empty() || dictionary.len() > self.max_bytes {
            return Err(Error::NoDictionary);
        }
        // SAFETY: the areas are ours alone and as long as `areas` says; what was made of the dictionary that lay here is forgotten. zstd says
        // null of tables that are damaged.
        place.decompressing = unsafe {
            place.content.copy_from_nonoverlapping(dictionary.as_ptr(), dictionary.len());
            ZSTD_initStaticDDict(
                place.room.cast(),
                room_bytes(),
                place.content.cast(),
                dictionary.len(),
                BY_REFERENCE,
                ANY_CONTENT,
            )
        };
        if place.decompressing.is_null() {
            return Err(Error::NoDictionary);
        }
        place.len = dictionary.len();
        Ok(())
    }

    /// The dictionary at a place.
    pub(crate) fn content(&self, place: usize) -> Option<&[u8]> {
        let place = self.places.get(place).filter(|place| place.len > 0)?;
        // SAFETY: so many bytes were copied there, and are not written to while `self` is borrowed.
        Some(unsafe { slice::from_raw_parts(place.content, place.len) })
    }

    /// For compressing; null without one.
    pub(crate) fn compressing(&mut self, place: Option<usize>) -> Result<*const ZSTD_CDict, Error> {
        let Some(place) = place else { return Ok(null()) };
        let place = self.places.get_mut(place).filter(|place| place.len > 0).ok_or(Error::NoDictionary)?;
        if place.compressing.is_null() {
            let parameters = parameters(self.level, self.unit_bytes, place.len);
            let bytes = tables_bytes(self.level, self.unit_bytes, self.max_bytes);
            // SAFETY: as in `learn`.
            place.compressing = unsafe {
                ZSTD_initStaticCDict(
                    place.tables.cast(),
                    bytes,
                    place.content.cast(),
                    place.len,
                    BY_REFERENCE,
                    ANY_CONTENT,
                    parameters,
                )
            };
        }
        if place.compressing.is_null() { Err(Error::NoDictionary) } else { Ok(place.compressing) }
    }

    /// For decompressing; null without one.
    pub(crate) fn decompressing(&self, place: Option<usize>) -> Result<*const ZSTD_DDict, Error> {
        let Some(place) = place else { return Ok(null_mut()) };
        let made = self.places.get(place).map_or(null(), |place| place.decompressing);
        if made.is_null() { Err(Error::NoDictionary) } else { Ok(made) }
    }
}

/// Bytes of the copy, of the tables for compressing, and of what is made for decompressing.
fn areas(level: i32, unit_max: usize, max_bytes: usize) -> [usize; 3] {
    [max_bytes, tables_bytes(level, unit_max.min(UNIT_BYTES), max_bytes), room_bytes()]
}

fn parameters(level: i32, unit_bytes: usize, len: usize) -> ZSTD_compressionParameters {
    // SAFETY: it computes from its arguments alone.
    unsafe { ZSTD_getCParams(level, unit_bytes.max(1) as u64, len) }
}

/// Lengths of dictionaries among which the one is that takes most memory: parameters go by the length of unit and dictionary together, in tiers, and
/// within a tier the longest takes most.
fn lengths(unit_bytes: usize, max_bytes: usize) -> impl Iterator<Item = usize> {
    const TIERS_BYTES: [usize; 4] = [16 << 10, 128 << 10, 256 << 10, usize::MAX];
    TIERS_BYTES.into_iter().map(move |tier| tier.saturating_sub(unit_bytes).max(1).min(max_bytes))
}

fn tables_bytes(level: i32, unit_bytes: usize, max_bytes: usize) -> usize {
    // SAFETY: it computes from its arguments alone.
    let bytes = |len| unsafe {
        ZSTD_estimateCDictSize_advanced(len, parameters(level, unit_bytes, len), BY_REFERENCE)
    };
    lengths(unit_bytes, max_bytes).map(bytes).max().unwrap_or(0)
}

fn room_bytes() -> usize {
    // SAFETY: it returns a constant where the dictionary is not copied.
    unsafe { ZSTD_estimateDDictSize(0, BY_REFERENCE) }
}
