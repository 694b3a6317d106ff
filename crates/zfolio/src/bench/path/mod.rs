//! `zfolio bench path`: what each stage of a folio's way out and back takes on this machine.
//!
//! ```text
//!   out   scan ── move ── TLB ── read ── compress ── store
//!   in    wake ── look up ── decompress ── move ── resume
//! ```
//!
//! Each stage is what an engine and its workers call, on memory of this process: the page tables are asked, UFFDIO_MOVE
//! takes pages away and brings them back, a worker's codec makes objects, the pool keeps them. Two threads are the
//! program and the engine where a thread waits for a page.
//!
//! - [`ground`]: the memory that is taken out and brought back
//! - [`way`]: the stages of a size, one round
//! - [`fault`]: a thread that waits, and one that serves it
//! - [`table`]: text and JSON

mod fault;
mod ground;
mod table;
mod way;

use super::of_files;
use super::table::unit_name;
use crate::args::BenchPath;
use crate::out;
use base::PAGE;
use fault::Fault;
use ground::Ground;
use table::{Report, Row};
use vmscan::{HUGE, WINDOW};
use way::{Size, Stages, Tools};
use zswap::Choice;

/// What is measured.
const SIZES: [Size; 4] = [
    Size { bytes: PAGE, is_huge: false },
    Size { bytes: WINDOW, is_huge: false },
    Size { bytes: HUGE, is_huge: false },
    Size { bytes: HUGE, is_huge: true },
];

/// `zfolio bench path`; an error is its status, and a line for the user.
pub fn run(args: &BenchPath) -> Result<(), (u8, String)> {
    let choice = Choice::parse(&args.compressor)
        .map_err(|error| (super::USAGE, format!("--compressor {}: {error}", args.compressor)))?;
    if choice.device().is_some() || choice.with_dictionary().is_some() {
        let line = format!("--compressor {}: expected none with a device or a dictionary", args.compressor);
        return Err((super::USAGE, line));
    }
    let (source, memory) = memory(args).map_err(|line| (1, line))?;
    let rows = measure(choice, &memory, args.rounds.into()).map_err(|line| (1, line))?;
    let report = Report { source, choice, rounds: args.rounds.into(), rows: rows.0, faults: rows.1 };
    let text = if args.json { format!("{:#}\n", report.json()) } else { report.text() };
    out::show(&text).map_err(|line| (1, line))
}

/// What goes out: as much of the files as there is room for, or made up.
fn memory(args: &BenchPath) -> Result<(String, Vec<u8>), String> {
    if args.files.is_empty() {
        return Ok(("made up: pointers and small numbers".to_string(), ground::made_up()));
    }
    let (source, sample) = of_files(&args.files, ground::BYTES as u64)?;
    let pages: Vec<u8> = sample.pieces.concat();
    let whole = &pages[..pages.len() / PAGE * PAGE];
    if whole.is_empty() {
        return Err(format!("{source}: there is no whole page that more than one word fills"));
    }
    Ok((source, whole.iter().copied().cycle().take(ground::BYTES).collect()))
}

fn measure(choice: Choice, memory: &[u8], rounds: usize) -> Result<(Vec<Row>, Vec<Fault>), String> {
    let tools = || Tools::new(choice).map_err(|error| format!("no memory for a compressor: {error}"));
    let ground = || {
        Ground::new().map_err(|errno| {
            format!("userfaultfd or memory for it is refused: {errno} (`zfolio doctor` says what helps)")
        })
    };
    let mut rows = Vec::new();
    for size in SIZES {
        let (mut tools, mut all) = (tools()?, Vec::new());
        for _ in 0..rounds {
            all.push(way::round(&ground()?, &mut tools, memory, size)?);
        }
        let name = unit_name(size.bytes) + if size.is_huge { " huge" } else { "" };
        rows.push(Row { name, bytes: size.bytes, stages: Stages::medians(&all) });
    }
    let faults = fault::measure(&ground()?, rounds)?;
    Ok((rows, faults))
}
