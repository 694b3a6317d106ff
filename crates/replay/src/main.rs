//! Records which pages a program touches, and plays policies on that: what memory costs, without a machine's noise.
//!
//! ```text
//!   replay record --out F -- CMD ──> record ──> trace ──> replay run F ──> policies ──> a table
//!                                    (perf, zfolio)                        memory
//! ```
//!
//! - [`mod@trace`]: what a trace holds, and its file
//! - [`mod@record`]: how one is made
//! - [`mod@memory`]: where pages are, and what touches of them have cost
//! - [`mod@policies`]: who decides which page goes where
//! - [`mod@price`], [`mod@hazard`] and [`mod@beside`]: the rule of one of them, which the pager goes without
//!   (docs/decisions/082-the-price-stays-a-measure.md)

mod beside;
mod hazard;
mod memory;
mod policies;
mod price;
mod record;
mod trace;

use crate::price::{Costs, TIERS, Tier};
use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand};
use memory::Figures;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use trace::{Event, Trace};

/// Record which pages a program touches, and play policies on that
#[derive(Parser)]
#[command(name = "replay", disable_help_subcommand = true)]
struct Args {
    #[command(subcommand)]
    command: Do,
}

#[derive(Subcommand)]
enum Do {
    /// Run a program twice, and write which pages it touched (needs root, and perf)
    Record {
        /// Where the trace goes
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// The zfolio that takes its pages out
        #[arg(long, value_name = "FILE", default_value = "target/release/zfolio")]
        zfolio: PathBuf,
        /// The program and its arguments
        #[arg(last = true, required = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Say what is in traces
    Show {
        #[arg(required = true, value_name = "TRACE")]
        traces: Vec<PathBuf>,
    },
    /// Play policies on traces, and print what each would cost
    #[command(after_help = policies::help())]
    Run {
        /// Limits, in percent of each trace's footprint
        #[arg(long, value_delimiter = ',', default_value = "75,50", value_parser = clap::value_parser!(u8).range(1..=100))]
        percent: Vec<u8>,
        /// These policies alone
        #[arg(long, value_delimiter = ',', default_values_t = policies::NAMES.map(|(name, _)| name.to_owned()))]
        policies: Vec<String>,
        /// What a touch costs on the inactive list, compressed alone, densely, and in the area, in microseconds
        #[arg(long, value_delimiter = ',', default_value = "7,12,30,110", value_name = "US,US,US,US")]
        costs: Vec<f32>,
        #[arg(required = true, value_name = "TRACE")]
        traces: Vec<PathBuf>,
    },
}

/// What a page takes that comes beside another: it is decompressed, and mapped in one go with the others.
const BRING_US: f32 = 2.0;

/// What it takes of an engine's time to bring a page to each tier, as far as it counts beside stall: where a CPU is
/// idle it costs nobody a wait.
const WORK_US: [f32; TIERS] = [0.0, 0.5, 1.0, 3.0, 3.0];

fn main() -> ExitCode {
    let text = match Args::parse().command {
        Do::Record { out, zfolio, command } => record(&out, &zfolio, &command),
        Do::Show { traces } => traces.iter().map(|path| show(path)).collect(),
        Do::Run { percent, policies, costs, traces } => run(&percent, &policies, &costs, &traces),
    };
    // Who closes the pipe has read enough.
    let said = text.map(|text| io::stdout().write_all(text.as_bytes()).or_else(unless_closed));
    match said.and_then(|written| Ok(written?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("replay: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn unless_closed(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) }
}

fn record(out: &Path, zfolio: &Path, command: &[OsString]) -> Result<String> {
    let zfolio = zfolio.canonicalize().with_context(|| format!("there is no {}", zfolio.display()))?;
    let trace = record::record(&zfolio, command)?;
    trace.write(out)?;
    show(out)
}

fn show(path: &Path) -> Result<String> {
    let trace = Trace::read(path)?;
    let (mut touches, mut discarded) = (0, 0);
    for event in &trace.events {
        match *event {
            Event::Touch { .. } => touches += 1,
            Event::Discard { count, .. } => discarded += u64::from(count),
            Event::Ran { .. } => {}
        }
    }
    let pages = trace.pages.len();
    let mean = |of: fn(&trace::Page) -> u32| {
        trace.pages.iter().map(|page| u64::from(of(page))).sum::<u64>() / pages as u64
    };
    let (alone, dense) = (mean(|page| page.alone_bytes), mean(|page| page.dense_bytes));
    Ok(format!(
        "{}: {touches} touches of {pages} pages in {} ms\n  at most {} pages at a time; {discarded} discarded\n  \
         a page takes {alone} bytes alone, {dense} in its window\n",
        name(path),
        trace.ran_us() / 1000,
        trace.footprint_pages(),
    ))
}

fn run(percent: &[u8], names: &[String], costs: &[f32], traces: &[PathBuf]) -> Result<String> {
    ensure!(costs.len() == 4, "--costs takes four numbers, as 7,12,30,110");
    let mut touch_us = [0.0; TIERS];
    touch_us[1..].copy_from_slice(costs);
    let costs = Costs { touch_us, bring_us: BRING_US, work_us: WORK_US };
    let (mut text, mut ratios) = (String::new(), vec![Vec::new(); names.len()]);
    for path in traces {
        let trace = Trace::read(path)?;
        let time_us = |figures: &Figures| trace.ran_us() as f64 + figures.stall_us;
        for percent in percent {
            writeln!(text, "{} at {percent} %", name(path))?;
            writeln!(
                text,
                "  policy                  misses      soft   brought      vain  stall ms   to fast  to dense   to area"
            )?;
            let played = names.iter().map(|name| policies::play(&trace, name, costs, usize::from(*percent)));
            let played = played.collect::<Result<Vec<_>>>()?;
            let fixed = names.iter().zip(&played).filter(|(name, _)| policies::is_fixed(name));
            let best =
                fixed.filter_map(|(_, figures)| figures.as_ref().map(time_us)).fold(f64::INFINITY, f64::min);
            for ((name, figures), ratios) in names.iter().zip(&played).zip(&mut ratios) {
                writeln!(text, "  {name:18} {}", figures.as_ref().map_or("   does not fit".to_owned(), row))?;
                ratios.extend(
                    figures.as_ref().map(|figures| time_us(figures) / best).filter(|_| best.is_finite()),
                );
            }
        }
    }
    let fixed = policies::fixed().collect::<Vec<_>>().join(", ");
    writeln!(text, "time of the program with its waits, as times the least of {fixed}:")?;
    writeln!(text, "  policy                mean  largest  rows")?;
    for (name, ratios) in names.iter().zip(&ratios) {
        writeln!(text, "  {name:18} {}", summary(ratios))?;
    }
    Ok(text)
}

/// The geometric mean, the largest, and how many there are.
fn summary(ratios: &[f64]) -> String {
    if ratios.is_empty() {
        return "   none fits".to_owned();
    }
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let largest = ratios.iter().copied().fold(f64::NAN, f64::max);
    format!("{mean:>7.2} {largest:>8.2} {:>5}", ratios.len())
}

fn row(figures: &Figures) -> String {
    let [_, _, fast, dense, area] = figures.moves;
    let (misses, soft, stall_ms) =
        (figures.misses(), figures.touches[Tier::Inactive as usize], figures.stall_us / 1e3);
    let [brought, vain] = [figures.brought, figures.vain];
    format!("{misses:>11} {soft:>9} {brought:>9} {vain:>9} {stall_ms:>9.1} {fast:>9} {dense:>9} {area:>9}")
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
