//! Attributes that take several words: `NAME=VALUE`, in any order.

use super::attributes::invalid;
use super::{Device, INITIALISED};
use crate::disk::{Disk, Recompress, Which, Writeback};
use crate::error::Error;
use crate::settings::{ALGORITHMS, Settings, read_dictionary};
use std::ops::RangeInclusive;
use zsmalloc::Backing;

/// Makes the refusal of a value.
type Refuse<'a> = &'a dyn Fn() -> Error;

/// The words of a value, each `NAME=VALUE`, or `("type", WORD)`.
fn words(value: &str) -> impl Iterator<Item = (&str, &str)> {
    value.split_ascii_whitespace().map(|word| word.split_once('=').unwrap_or(("type", word)))
}

fn which(text: &str) -> Option<Which> {
    Some(match text {
        "idle" => Which::Idle,
        "huge" => Which::Huge,
        "huge_idle" => Which::HugeIdle,
        "incompressible" => Which::Incompressible,
        _ => return None,
    })
}

/// A priority, of those in the range.
fn priority(text: &str, within: std::ops::Range<usize>) -> Option<usize> {
    text.parse().ok().filter(|priority| within.contains(priority))
}

/// `A-B`, with A at most B.
fn pages(text: &str) -> Option<RangeInclusive<u64>> {
    let (first, last) = text.split_once('-')?;
    let range = first.parse().ok()?..=last.parse().ok()?;
    (!range.is_empty()).then_some(range)
}

impl<B: Backing> Device<B> {
    pub(super) fn settings(&self) -> Settings {
        self.control().settings.clone()
    }

    pub(super) fn backing_path(&self) -> String {
        let control = self.control();
        let of_disk = control.disk.as_ref().and_then(|disk| disk.backing());
        let backing = of_disk.or(control.backing.as_ref());
        backing.map_or_else(|| "none".to_string(), |backing| backing.path().to_string())
    }

    pub(super) fn with_disk<T>(&self, look: impl FnOnce(&Disk<B>) -> T) -> Result<T, Error> {
        let disk = self.control().disk.clone().ok_or(Error::NotInitialised)?;
        Ok(look(&disk))
    }

    /// `[algo=NAME | priority=N] [level=LEVEL] [dict=PATH]`
    pub(super) fn set_params(&self, value: &str, refused: Refuse<'_>) -> Result<(), Error> {
        let (mut at, mut level, mut dictionary) = (Some(0), None, None);
        let settings = self.settings();
        for (name, value) in words(value) {
            match name {
                "algo" => at = settings.named(value),
                "priority" => at = priority(value, 0..ALGORITHMS),
                "level" => level = Some(value),
                "dict" => dictionary = Some(read_dictionary(value)?),
                _ => return Err(refused()),
            }
        }
        let at = at.ok_or_else(refused)?;
        let mut algorithm = settings.algorithm(at).ok_or_else(refused)?;
        let named = |error: String| invalid("algorithm_params", value, error);
        if let Some(level) = level {
            algorithm = algorithm.at_level(level).map_err(named)?;
        }
        if let Some(dictionary) = dictionary {
            algorithm = algorithm.with_dictionary(&dictionary).map_err(named)?;
        }
        if algorithm.open(0).is_err() {
            return Err(named("accepted is a dictionary that the algorithm reads".to_string()));
        }
        let mut control = self.control();
        if control.disk.is_some() {
            return Err(INITIALISED);
        }
        control.settings.set(at, algorithm);
        Ok(())
    }

    /// `algo=NAME [priority=N]`
    pub(super) fn set_recomp_algorithm(&self, value: &str, refused: Refuse<'_>) -> Result<(), Error> {
        let (mut algorithm, mut at) = (None, Some(1));
        for (name, value) in words(value) {
            match name {
                "algo" => algorithm = Some(value),
                "priority" => at = priority(value, 1..ALGORITHMS),
                _ => return Err(refused()),
            }
        }
        self.set_algorithm(at.ok_or_else(refused)?, algorithm.ok_or_else(refused)?)
    }

    /// `[type=KIND] [threshold=BYTES] [max_pages=N] [algo=NAME | priority=N]`
    pub(super) fn recompress(&self, value: &str, refused: Refuse<'_>) -> Result<(), Error> {
        let mut how =
            Recompress { which: Which::All, threshold_bytes: 0, max_pages: u64::MAX, priority: None };
        let settings = self.settings();
        for (name, value) in words(value) {
            match name {
                "type" => {
                    let kind = which(value).filter(|kind| *kind != Which::Incompressible);
                    how.which = kind.ok_or_else(refused)?;
                }
                "threshold" => {
                    let bytes = value.parse().ok().filter(|bytes| *bytes <= crate::BLOCK);
                    how.threshold_bytes = bytes.ok_or_else(refused)?;
                }
                "max_pages" => how.max_pages = value.parse().map_err(|_| refused())?,
                "algo" => {
                    let mut all = settings.secondary();
                    let found = all.find(|(_, algorithm)| algorithm.compressor.name() == value);
                    how.priority = Some(found.ok_or_else(refused)?.0);
                }
                "priority" => how.priority = Some(priority(value, 1..ALGORITHMS).ok_or_else(refused)?),
                _ => return Err(refused()),
            }
        }
        let has_one = settings.secondary().any(|(at, _)| how.priority.is_none_or(|only| only == at));
        if !has_one {
            return Err(refused());
        }
        self.keep(|disk, scratch, _| disk.recompress(scratch, &how))
    }

    /// `KIND`, or `page_index=N` or `page_indexes=A-B` once or more often
    pub(super) fn write_back(&self, value: &str, refused: Refuse<'_>) -> Result<(), Error> {
        let (mut kind, mut ranges) = (None, Vec::new());
        for (name, value) in words(value) {
            match name {
                "type" if kind.is_none() => kind = Some(which(value).ok_or_else(refused)?),
                "page_index" => {
                    let page = value.parse().map_err(|_| refused())?;
                    ranges.push(page..=page);
                }
                "page_indexes" => ranges.push(pages(value).ok_or_else(refused)?),
                _ => return Err(refused()),
            }
        }
        let blocks = self.disksize_bytes() / crate::BLOCK as u64;
        let what = match kind {
            Some(kind) if ranges.is_empty() => Writeback::Kind(kind),
            None if !ranges.is_empty() && ranges.iter().all(|range| *range.end() < blocks) => {
                Writeback::Pages(ranges)
            }
            _ if blocks == 0 => return Err(Error::NotInitialised),
            _ => return Err(refused()),
        };
        self.keep(|disk, scratch, _| disk.write_back(scratch, &what))
    }
}
