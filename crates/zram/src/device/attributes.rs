//! The attributes: their names, which are the kernel's, what they take, and what they show.

use super::{Device, INITIALISED};
use crate::DISKSIZE_MAX_BYTES;
use crate::backing::BackingDevice;
use crate::error::Error;
use crate::settings::Algorithm;
use acomp::Compressor;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use zsmalloc::Backing;

/// What a user may do with an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// [`Device::show`] alone.
    Show,
    /// [`Device::set`] alone.
    Set,
    /// Both.
    Both,
}

/// An attribute, for help texts and lists.
#[derive(Clone, Copy, Debug)]
pub struct Attribute {
    /// The kernel's name of it.
    pub name: &'static str,
    /// What a user may do with it.
    pub access: Access,
    /// What it takes; empty for one that is only shown.
    pub accepted: &'static str,
    /// What it is, in one line.
    pub meaning: &'static str,
}

const fn attribute(
    name: &'static str,
    access: Access,
    accepted: &'static str,
    meaning: &'static str,
) -> Attribute {
    Attribute { name, access, accepted, meaning }
}

const SIZE: &str = "a number of bytes, with K, M, G, T or without";
const DISKSIZE: &str = "a number of bytes up to 16T, with K, M, G, T or without";
const YES_NO: &str = "0 or 1";
const COUNT: &str = "a number of blocks of 4 KiB";
const AGE: &str = "a number of seconds, 0 for never";

/// All attributes, in the order in which help lists them.
pub static ATTRIBUTES: &[Attribute] = &[
    attribute("disksize", Access::Both, DISKSIZE, "size of the device; setting it starts the device"),
    attribute("initstate", Access::Show, "", "1 if the device has a disksize, else 0"),
    attribute("reset", Access::Set, "a positive number", "forgets all data and settings"),
    attribute("comp_algorithm", Access::Both, "NAME or NAME:LEVEL", "the primary compressor"),
    attribute("max_comp_streams", Access::Both, "a positive number", "one a worker, whatever is set"),
    attribute(
        "algorithm_params",
        Access::Set,
        "[algo=NAME | priority=0-3] [level=LEVEL] [dict=PATH]",
        "level and dictionary of a compressor",
    ),
    attribute("recomp_algorithm", Access::Both, "algo=NAME [priority=1-3]", "compressors to recompress with"),
    attribute(
        "recompress",
        Access::Set,
        "[type=idle|huge|huge_idle] [threshold=0-4096] [max_pages=N] [algo=NAME | priority=1-3], \
         where there is a recomp_algorithm",
        "makes objects denser",
    ),
    attribute("idle", Access::Set, "all, or a number of seconds", "marks blocks idle"),
    attribute(
        "backing_dev",
        Access::Both,
        "PATH[,force], or none",
        "a file or block device for what leaves RAM; with force whatever it holds",
    ),
    attribute(
        "writeback",
        Access::Set,
        "[type=]idle|huge|huge_idle|incompressible, or page_index=N or page_indexes=A-B, once or more often",
        "writes blocks to backing_dev",
    ),
    attribute("compressed_writeback", Access::Both, YES_NO, "1: objects are written back compressed"),
    attribute("writeback_limit", Access::Both, COUNT, "how many may still be written back"),
    attribute("writeback_limit_enable", Access::Both, YES_NO, "1: writeback_limit holds"),
    attribute("writeback_batch_size", Access::Both, "a positive number of blocks", "written with one call"),
    attribute("mem_limit", Access::Both, SIZE, "the most memory for objects; 0: no limit"),
    attribute("mem_used_max", Access::Set, "0", "forgets the most that was used"),
    attribute("compact", Access::Set, "a positive number", "gives memory back"),
    attribute("auto_recompress", Access::Both, AGE, "blocks of this age are recompressed by themselves"),
    attribute("auto_writeback", Access::Both, AGE, "blocks of this age are written back by themselves"),
    attribute("auto_max_pages", Access::Both, COUNT, "the most that this works on in a second"),
    attribute("mm_stat", Access::Show, "", "what memory is used for"),
    attribute("io_stat", Access::Show, "", "requests that failed or were odd"),
    attribute("bd_stat", Access::Show, "", "blocks in backing_dev, read from it, written to it"),
    attribute("debug_stat", Access::Show, "", "what helps to find faults"),
    attribute("block_state", Access::Show, "", "block, time of its last request, s w h i r n"),
];

/// The refusal of a value.
pub(super) fn invalid(attribute: &str, value: &str, why: impl fmt::Display) -> Error {
    let why = if value.is_empty() { format!("\"\": {why}") } else { format!("{value}: {why}") };
    Error::Invalid { attribute: attribute.to_string(), why }
}

/// The refusal of an attribute, whatever its value is.
fn refusal(attribute: &str, why: &str) -> Error {
    Error::Invalid { attribute: attribute.to_string(), why: why.to_string() }
}

/// The attribute of a name.
fn find(name: &str) -> Result<&'static Attribute, Error> {
    let found = ATTRIBUTES.iter().find(|attribute| attribute.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = ATTRIBUTES.iter().map(|attribute| attribute.name).collect();
        refusal(name, &format!("no such attribute: accepted are {}", names.join(", ")))
    })
}

/// A size in bytes, as the kernel reads it.
fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn yes_no(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// Blanks between, and no line end.
fn columns<const N: usize>(numbers: [u64; N]) -> String {
    numbers.map(|number| format!("{number:>8}")).join(" ")
}

/// Opens what `PATH[,force]` names: nothing for none. A path may have commas.
fn open_backing(value: &str, refused: &dyn Fn() -> Error) -> Result<Option<BackingDevice>, Error> {
    let (path, is_forced) = value.strip_suffix(",force").map_or((value, false), |path| (path, true));
    match (path, is_forced) {
        ("none" | "", false) => Ok(None),
        ("", true) => Err(refused()),
        _ => BackingDevice::open(path, is_forced).map(Some),
    }
}

/// The algorithms, with the chosen one in brackets.
fn choice(chosen: &Algorithm) -> String {
    let name = |name: &str| {
        if name == chosen.compressor.name() { format!("[{name}]") } else { name.to_string() }
    };
    Compressor::ALL.iter().map(|algorithm| name(algorithm.name)).collect::<Vec<_>>().join(" ")
}

impl<B: Backing> Device<B> {
    pub(super) fn set_attribute(&self, name: &str, value: &str) -> Result<(), Error> {
        let attribute = find(name)?;
        let refused = || invalid(name, value, format_args!("accepted is {}", attribute.accepted));
        let positive = || value.parse::<u64>().ok().filter(|number| *number > 0).ok_or_else(refused);
        let of = &self.tunables;
        match name {
            "disksize" => {
                let bytes = size(value).filter(|bytes| (1..=DISKSIZE_MAX_BYTES).contains(bytes));
                let bytes = bytes.ok_or_else(refused)?;
                self.initialise(bytes.next_multiple_of(crate::BLOCK as u64))?;
            }
            "reset" => {
                positive()?;
                self.reset();
            }
            "comp_algorithm" => self.set_algorithm(0, value)?,
            "max_comp_streams" => drop(positive()?),
            "algorithm_params" => self.set_params(value, &refused)?,
            "recomp_algorithm" => self.set_recomp_algorithm(value, &refused)?,
            "recompress" => self.recompress(value, &refused)?,
            "idle" => {
                let age_s = if value == "all" { None } else { Some(value.parse().map_err(|_| refused())?) };
                self.keep(|disk, _, _| {
                    disk.mark_idle(age_s);
                    Ok(())
                })?;
            }
            "backing_dev" => self.replace_backing(|| open_backing(value, &refused))?,
            "writeback" => self.write_back(value, &refused)?,
            "compressed_writeback" => {
                of.is_writeback_compressed.store(yes_no(value).ok_or_else(refused)?, Relaxed);
            }
            "writeback_limit" => of.writeback_limit.store(value.parse().map_err(|_| refused())?, Relaxed),
            "writeback_limit_enable" => {
                of.is_writeback_limited.store(yes_no(value).ok_or_else(refused)?, Relaxed);
            }
            "writeback_batch_size" => {
                of.writeback_batch.store(positive()?.try_into().map_err(|_| refused())?, Relaxed);
            }
            "mem_limit" => of.mem_limit_bytes.store(size(value).ok_or_else(refused)?, Relaxed),
            "mem_used_max" if value == "0" => self.with_disk(|disk| disk.reset_mem_used_max())?,
            "compact" => {
                positive()?;
                self.with_disk(|disk| disk.compact(usize::MAX))?;
            }
            "auto_recompress" => of.auto_recompress_s.store(value.parse().map_err(|_| refused())?, Relaxed),
            "auto_writeback" => of.auto_writeback_s.store(value.parse().map_err(|_| refused())?, Relaxed),
            "auto_max_pages" => of.auto_max_pages.store(value.parse().map_err(|_| refused())?, Relaxed),
            _ if attribute.access == Access::Show => {
                return Err(refusal(name, "it can only be shown"));
            }
            _ => return Err(refused()),
        }
        Ok(())
    }

    pub(super) fn show_attribute(&self, name: &str) -> Result<String, Error> {
        if find(name)?.access == Access::Set {
            return Err(refusal(name, "it can only be set"));
        }
        let (of, stats) = (&self.tunables, self.stats());
        Ok(match name {
            "disksize" => stats.disksize_bytes.to_string(),
            "initstate" => u8::from(stats.disksize_bytes > 0).to_string(),
            "comp_algorithm" => choice(&self.settings().algorithm(0).expect("there is a primary one")),
            "max_comp_streams" => std::thread::available_parallelism().map_or(1, usize::from).to_string(),
            "recomp_algorithm" => {
                let settings = self.settings();
                let lines =
                    settings.secondary().map(|(at, algorithm)| format!("#{at}: {}", choice(&algorithm)));
                lines.collect::<Vec<_>>().join("\n")
            }
            "backing_dev" => self.backing_path(),
            "compressed_writeback" => u8::from(of.is_writeback_compressed.load(Relaxed)).to_string(),
            "writeback_limit" => of.writeback_limit.load(Relaxed).to_string(),
            "writeback_limit_enable" => u8::from(of.is_writeback_limited.load(Relaxed)).to_string(),
            "writeback_batch_size" => of.writeback_batch.load(Relaxed).to_string(),
            "mem_limit" => of.mem_limit_bytes.load(Relaxed).to_string(),
            "auto_recompress" => of.auto_recompress_s.load(Relaxed).to_string(),
            "auto_writeback" => of.auto_writeback_s.load(Relaxed).to_string(),
            "auto_max_pages" => of.auto_max_pages.load(Relaxed).to_string(),
            "mm_stat" => columns([
                stats.orig_data_bytes,
                stats.compr_data_bytes,
                stats.mem_used_bytes,
                stats.mem_limit_bytes,
                stats.mem_used_max_bytes,
                stats.same_pages,
                stats.pages_compacted,
                stats.huge_pages,
                stats.huge_pages_since,
            ]),
            "io_stat" => {
                columns([stats.failed_reads, stats.failed_writes, stats.invalid_io, stats.notify_free])
            }
            "bd_stat" => columns([stats.bd_count, stats.bd_reads, stats.bd_writes]),
            "debug_stat" => self.debug_stat(),
            "block_state" => self.with_disk(|disk| disk.block_state())?.trim_end().to_string(),
            _ => return Err(refusal(name, "it cannot be shown")),
        })
    }

    fn debug_stat(&self) -> String {
        let counters = self.with_disk(|disk| {
            let of = disk.counters();
            let named = [
                ("damaged_blocks", of.damaged_blocks.load(Relaxed)),
                ("refused_writes", of.refused_writes.load(Relaxed)),
                ("write_retries", of.write_retries.load(Relaxed)),
                ("repacked", of.repacked.load(Relaxed)),
                ("recompressed", of.recompressed.load(Relaxed)),
                ("table_bytes", disk.table_bytes() as u64),
            ];
            named.map(|(name, count)| format!("\n{name}: {count}")).concat()
        });
        format!("version: 1{}", counters.unwrap_or_default())
    }

    /// Sets an algorithm as long as there is no disk.
    pub(super) fn set_algorithm(&self, priority: usize, text: &str) -> Result<(), Error> {
        let name = if priority == 0 { "comp_algorithm" } else { "recomp_algorithm" };
        let algorithm = Algorithm::parse(text).map_err(|error| invalid(name, text, error))?;
        let mut control = self.control();
        if control.disk.is_some() {
            return Err(INITIALISED);
        }
        control.settings.set(priority, algorithm);
        Ok(())
    }
}
