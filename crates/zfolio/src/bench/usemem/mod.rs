//! `zfolio bench usemem`: the experiment by which the kernel's compressed swap is measured, for this machine.
//!
//! Processes write anonymous memory, each from its first byte to its last, of which half has room. Each keeps it until
//! all have written theirs, as vm-scalability's `usemem --init-time -w -O -n N -s SECONDS` does. Then each reads its
//! own and compares, which usemem does not.
//!
//! ```text
//!   side ──> machine ──> crew ──> writer, N times
//!   zfolio,  settings,   starts   writes, waits, compares
//!   zswap,   undone at   them
//!   zram     the end       └────> figures ──> table ──> text, JSON
//! ```
//!
//! - [`side`]: under what the processes run, as a user names it
//! - [`machine`]: what is set in the kernel for that, and put back
//! - [`mod@crew`], [`writer`]: the processes
//! - [`figures`]: what one run has come to
//! - [`table`]: text and JSON

mod crew;
mod figures;
mod machine;
mod side;
mod table;
mod writer;

pub use crew::run as crew;
pub use writer::run as write;

use super::choice;
use super::table::unit_name;
use crate::args::BenchUsemem;
use crate::out;
use crate::size::{Bytes, Size};
use crate::sys;
use figures::{Figures, Follower};
use machine::Changes;
use side::Side;
use table::{Block, Report};

/// An error: the exit status, and a line for the user.
pub type Failure = (u8, String);

/// The least that a process writes.
const LEAST_BYTES: u64 = 1 << 20;

/// What is written, by how many, and in how much memory.
#[derive(Clone, Debug)]
pub struct Load {
    /// How many processes.
    pub processes: u64,
    /// What each writes, in bytes.
    pub bytes: u64,
    /// What they may hold together, with their pool, in bytes.
    pub memory_bytes: u64,
    /// What they write: [`writer::MADE_UP`], [`writer::NUMBERS`], or a file.
    pub contents: String,
}

/// `zfolio bench usemem`; an error is its status, and a line for the user.
pub fn run(args: &BenchUsemem) -> Result<(), Failure> {
    let usage = |line| (super::USAGE, line);
    let sides = Side::parse_all(&args.sides).map_err(usage)?;
    let folios = choice::units(&args.folios).map_err(|line| usage(line.replace("--unit", "--folios")))?;
    let load = load(args).map_err(usage)?;
    let _inherited = sys::take_over_signals();
    let mut report = Report { load, rounds: args.rounds.into(), blocks: Vec::new(), notes: Vec::new() };
    let mut failed = 0;
    for folio_bytes in folios {
        failed += measure(&mut report, folio_bytes as u64, &sides)?;
    }
    if report.blocks.iter().all(|block| block.columns.is_empty()) {
        return Err((1, report.notes.join("; ")));
    }
    let text = if args.json { format!("{:#}\n", report.json()) } else { report.text() };
    out::show(&text).map_err(|line| (1, line))?;
    if failed == 0 { Ok(()) } else { Err((1, format!("{failed} runs have failed"))) }
}

fn load(args: &BenchUsemem) -> Result<Load, String> {
    let amount = |name: &str, text: &str| match Size::parse(text) {
        Ok(Size::Bytes(bytes)) if bytes >= LEAST_BYTES => Ok(bytes),
        _ => Err(format!("{name} {text}: expected a size such as 64M, at least {}", Bytes(LEAST_BYTES))),
    };
    let (processes, bytes) = (args.processes.into(), amount("--bytes", &args.bytes)?);
    let memory = args.memory.as_deref().map(|text| amount("--memory", text)).transpose()?;
    let memory_bytes = memory.unwrap_or(processes * bytes / 2);
    if memory_bytes < crate::size::LEAST_BYTES {
        let least = Bytes(crate::size::LEAST_BYTES);
        return Err(format!("--memory: {} is less than {least}, the least", Bytes(memory_bytes)));
    }
    let file = args.file.as_ref().map(|path| path.display().to_string());
    let made_up = if args.numbers { writer::NUMBERS } else { writer::MADE_UP };
    let contents = file.unwrap_or_else(|| made_up.to_string());
    Ok(Load { processes, bytes, memory_bytes, contents })
}

/// Measures all sides at a size of folios, in turn. What cannot be had here is noted and left out. How many runs have
/// failed of what can.
fn measure(report: &mut Report, folio_bytes: u64, sides: &[Side]) -> Result<usize, Failure> {
    let mut changes = Changes::default();
    if let Err(why) = machine::choose_folios(&mut changes, folio_bytes) {
        report.notes.push(format!("{} folios are left out: {why}", unit_name(folio_bytes as usize)));
        return Ok(0);
    }
    let mut block = Block { folio_bytes, columns: Vec::new() };
    let mut limits = Vec::new();
    for side in sides {
        match limit(&report.load, folio_bytes, side)? {
            Ok(limit_bytes) => {
                limits.push(limit_bytes);
                block.columns.push((side.clone(), Vec::new()));
            }
            Err(why) => report.notes.push(format!("{side} is left out: {why}")),
        }
    }
    let mut failed = 0;
    for _ in 0..report.rounds {
        for ((side, rounds), limit_bytes) in block.columns.iter_mut().zip(&limits) {
            match once(&report.load, folio_bytes, side, *limit_bytes)? {
                Ok(figures) => rounds.push(figures),
                Err(why) => {
                    failed += 1;
                    report.notes.push(format!("{side}: a run has failed: {why}"));
                }
            }
        }
    }
    report.blocks.push(block);
    report_failures(changes.undo())?;
    Ok(failed)
}

/// The limit with which a side comes to what there is, with its pool: found by a run that does not count. The inner
/// error is why the side cannot be had here.
fn limit(load: &Load, folio_bytes: u64, side: &Side) -> Result<Result<u64, String>, Failure> {
    let tried = match once(load, folio_bytes, side, load.memory_bytes)? {
        Ok(figures) => figures,
        Err(why) => return Ok(Err(why)),
    };
    let pool = tried.uncharged_bytes.min(load.memory_bytes / 2) as u128;
    // The pool is in proportion to what is out, which is the more the lower the limit is.
    let wanted = (load.processes * load.bytes) as u128;
    let out = wanted.saturating_sub(load.memory_bytes.into()).max(1);
    let limit = (load.memory_bytes as u128 * out).saturating_sub(pool * wanted) / (out - pool.min(out - 1));
    Ok(Ok((limit as u64).clamp(load.memory_bytes / 4, load.memory_bytes)))
}

/// One run of a side. The inner error is why it cannot be had here, or did not work.
fn once(
    load: &Load,
    folio_bytes: u64,
    side: &Side,
    limit_bytes: u64,
) -> Result<Result<Figures, String>, Failure> {
    let mut changes = Changes::default();
    let seen = side.set_up(&mut changes, load, limit_bytes).map(|place| {
        let follower = Follower::new(load, folio_bytes, limit_bytes, &place);
        follower.run(&crew::command(load))
    });
    let failures = changes.undo();
    let seen = match seen {
        Ok(seen) => seen?,
        Err(why) => Err(why),
    };
    report_failures(failures)?;
    Ok(seen)
}

fn report_failures(failures: Vec<String>) -> Result<(), Failure> {
    if failures.is_empty() { Ok(()) } else { Err((1, format!("not put back: {}", failures.join("; ")))) }
}
