//! `zfolio bench`: figures of this machine, on the user's own memory.
//!
//! ```text
//!   choice ──> process, or a file ──> sample ──> candidate ──> measure ──> table ──> text, JSON
//!   what is    /proc/PID/mem          pieces     dictionaries  rows        front     plot: SVG
//!   asked
//! ```
//!
//! - [`choice`]: units, compressors and amounts as a user names them
//! - [`process`], [`sample`]: memory to try them on
//! - [`candidate`]: who is tried, with its dictionary
//! - [`mod@measure`]: out, back, compared, timed
//! - [`mod@front`], [`table`], [`plot`]: what is best, and how it is shown
//!
//! And by themselves: [`path`], what each stage of a folio's way out and back takes, and [`usemem`], many processes
//! under zfolio and under the kernel.

mod candidate;
mod choice;
mod front;
mod measure;
mod path;
mod plot;
mod process;
mod sample;
mod table;
mod usemem;

use crate::accelerator;
use crate::args::{Bench, BenchTask, Compress};
use crate::lines::Count;
use crate::out;
use crate::size::Bytes;
use crate::sys;
use candidate::Candidate;
use iaa::setup::Setup;
use measure::{Step, measure};
use process::Process;
use sample::{Sample, divide};
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use table::Report;

/// The exit status for a command line that is wrong.
const USAGE: u8 = 2;

/// `zfolio bench`; returns the exit status.
pub fn run(bench: &Bench) -> u8 {
    let done = match &bench.task {
        BenchTask::Compress(args) => compress(args),
        BenchTask::Path(args) => path::run(args),
        BenchTask::Usemem(args) => usemem::run(args),
        BenchTask::UsememCrew { processes, bytes, contents } => usemem::crew(*processes, *bytes, contents),
        BenchTask::UsememWriter { bytes, number, contents } => usemem::write(*bytes, *number, contents),
    };
    match done {
        Ok(()) => 0,
        Err((status, line)) => {
            eprintln!("zfolio: {line}");
            status
        }
    }
}

fn compress(args: &Compress) -> Result<(), (u8, String)> {
    let usage = |line| (USAGE, line);
    let failed = |line| (1, line);
    let units = choice::units(&args.unit).map_err(usage)?;
    let candidates = choice::compressors(args.compressor.as_deref()).map_err(usage)?;
    let most_bytes = choice::sample(&args.sample).map_err(usage)?;
    let pid = args.pid.as_deref().map(choice::pid).transpose().map_err(usage)?;
    // Where the drawing cannot be written nobody wants to wait for it.
    if let Some(path) = &args.plot {
        writable(path).map_err(|error| usage(format!("--plot {}: {error}", path.display())))?;
    }

    let mut notes = Vec::new();
    let (source, sample) = match pid {
        Some(pid) => of_process(pid, most_bytes, &mut notes),
        None => of_files(&args.files, most_bytes),
    }
    .map_err(failed)?;
    if sample.pieces.is_empty() {
        let pages = Count(sample.same_filled);
        return Err(failed(format!(
            "{source}: one word fills each of its {pages} pages: none is ever compressed"
        )));
    }
    let compressors: Vec<Rc<Candidate>> = candidates.into_iter().map(Rc::new).collect();
    if compressors.iter().any(|candidate| candidate.compressor.is_for_device()) {
        notes.extend(accelerator::unmeasured(&Setup::look("")));
    }
    let mut progress = Progress::new();
    let rows = measure(&sample.pieces, &units, &compressors, args.rounds.into(), |step| progress.show(&step));
    progress.clear();
    let report = Report::new(source, sample, notes, args.rounds.into(), rows.map_err(failed)?);

    if let Some(path) = &args.plot {
        fs::write(path, plot::svg(&report))
            .map_err(|error| failed(format!("--plot {}: {error}", path.display())))?;
    }
    let stdout = io::stdout();
    let text = if args.json {
        format!("{:#}\n", report.json())
    } else {
        let colour =
            stdout.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        report.text(if colour { ["\x1b[1m", "\x1b[0m"] } else { ["", ""] })
    };
    out::show(&text).map_err(failed)
}

/// Whether a file can be written. One that was not there is not there afterwards.
fn writable(path: &Path) -> io::Result<()> {
    let existed = path.exists();
    File::options().append(true).create(true).open(path)?;
    if existed { Ok(()) } else { fs::remove_file(path) }
}

fn of_process(pid: u32, most_bytes: u64, notes: &mut Vec<String>) -> Result<(String, Sample), String> {
    let process = Process::open(pid)?;
    let mut sample = Sample::default();
    process.sample(&mut sample, most_bytes)?;
    if process.swapped > 0 {
        notes.push(format!("{} in swap were not looked at", Bytes(process.swapped * sample::PAGE)));
    }
    if process.is_managed {
        notes.push("without what zfolio has out of this process, which no other can see".to_string());
    }
    Ok((process.to_string(), sample))
}

/// Files are taken as one, each with an equal part of the sample as far as it has so much.
fn of_files(files: &[PathBuf], most_bytes: u64) -> Result<(String, Sample), String> {
    let tell = |path: &Path, error: io::Error| match path.to_str() {
        Some("-") => format!("standard input: {error}"),
        _ => format!("{}: {error}", path.display()),
    };
    let mut opened = Vec::new();
    for path in files {
        let file = match path.to_str() {
            Some("-") if io::stdin().is_terminal() => {
                return Err("standard input is a terminal: give a file, a pipe or --pid".to_string());
            }
            Some("-") => io::stdin().as_fd().try_clone_to_owned().map(File::from),
            _ => File::open(path),
        };
        let file = file.map_err(|error| tell(path, error))?;
        let meta = file.metadata().map_err(|error| tell(path, error))?;
        opened.push((path, file, (meta.is_file() && meta.len() > 0).then_some(meta.len())));
    }
    let lengths: Vec<_> = opened.iter().map(|(_, _, length)| *length).collect();
    let mut sample = Sample::default();
    for ((path, file, _), part) in opened.iter().zip(divide(&lengths, most_bytes)) {
        let before = sample.there_are_bytes;
        sample.add_file(file, part).map_err(|error| tell(path, error))?;
        if sample.there_are_bytes == before {
            return Err(tell(path, io::Error::other("it is empty")));
        }
    }
    let names: Vec<_> =
        files.iter().map(|path| path.to_string_lossy().replace(char::is_control, "?")).collect();
    Ok((names.join(", "), sample))
}

/// A line on a terminal that says how far it is.
struct Progress {
    is_terminal: bool,
    is_shown: bool,
}

impl Progress {
    fn new() -> Progress {
        let can = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
        Progress { is_terminal: can && io::stderr().is_terminal(), is_shown: false }
    }

    fn show(&mut self, step: &Step) {
        // Not from the background, and not where it would have to wait.
        if self.is_terminal && sys::takes_output(io::stderr()) {
            let Step { round, rounds, row, percent } = step;
            let (unit, name) = (table::unit_name(row.unit_bytes), &row.compressor);
            let _ = write!(
                io::stderr(),
                "\r\x1b[Kround {round} of {rounds}, {percent} %: {name} in units of {unit}"
            );
            self.is_shown = true;
        }
    }

    /// Takes the line away.
    fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) && sys::takes_output(io::stderr()) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
