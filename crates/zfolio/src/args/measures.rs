//! The command line of what measures.

use super::DEFAULT_COMPRESSOR;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Units that `zfolio bench` tries unless others are named.
pub const DEFAULT_UNITS: &str = "4K,16K,64K,256K,2M";

/// Memory that it tries unless another amount is named.
pub const DEFAULT_SAMPLE: &str = "64M";

/// What `zfolio bench` takes.
#[derive(Args, Debug)]
pub struct Bench {
    /// What to measure.
    #[command(subcommand)]
    pub task: BenchTask,
}

/// What there is to measure.
#[derive(Subcommand, Debug)]
pub enum BenchTask {
    /// Compare compressors and units on the memory of a process, or on files
    ///
    /// Every compressor takes the memory out and back at every unit, and what comes back is compared. The table has the
    /// ratio and the speeds out and in, in bytes of memory for a second of processor time, as medians of several rounds
    /// in turn. A `*` marks the front of each unit: what nothing else there is both denser and faster out than. The
    /// unit is marked apart since it is another choice: larger ones are denser, and a page that is missed costs more.
    /// Of a process its private anonymous memory is read that is present, while it runs on: not what is in swap, nor
    /// what zfolio has out of it. Pages that one word fills are counted and left out.
    #[command(
        override_usage = "zfolio bench compress [OPTIONS] <--pid PID | FILE...>",
        after_help = "\
All compressors at all units on 64 MiB take about a minute.

Exit status:
  0  measured
  1  the memory or a file cannot be read, or a result cannot be written
  2  the command line is wrong

Examples:
  zfolio bench compress --pid $(pidof redis-server)
  zfolio bench compress core.dump --unit 64K --compressor lz4,zstd:1,zstd:3
  zfolio bench compress --pid 1234 --compressor zstd:1,zstd:1,dict=FILE --unit 4K
  zfolio bench compress --pid 1234 --plot front.svg"
    )]
    Compress(Compress),

    /// Say what each stage of a folio's way out and back takes on this machine
    ///
    /// Out: the page tables are scanned, pages moved away, other CPUs told of it (TLB), and the pages read, compressed
    /// and stored. In: the engine wakes up, looks the object up, decompresses it, moves the pages back, and the thread
    /// resumes. For pages of 4K, windows of 64K and 2M, and huge pages. What comes back is compared.
    #[command(after_help = "\
It takes some seconds, and 40 MiB.

Exit status:
  0  measured
  1  userfaultfd is refused, a file cannot be read, or a result cannot be written
  2  the command line is wrong

Examples:
  zfolio bench path
  zfolio bench path core.dump --compressor lz4,zstd:3 --json")]
    Path(BenchPath),

    /// Have many processes write more than there is room for, under zfolio and under the kernel's zswap and zram
    ///
    /// The kernel's compressed swap is measured so, by vm-scalability's `usemem --init-time -w -O -n N -s SECONDS`:
    /// each process writes anonymous memory once, and keeps it until all have written theirs. The throughput is what
    /// each makes by its own clock, added up. Then, which usemem does not, each reads its own and compares. Limit and
    /// pool together come to --memory on each side: where nobody is charged with the pool, a run that does not count
    /// finds the limit. The sides take turns; the figures are medians.
    #[command(after_help = "\
The kernel's sides need root, and a machine without swap of its own. While they run
zswap's settings, those of huge pages, a zram device, swap to it, and a memory control
group are changed; all is put back at the end, and after Ctrl-C. SIGKILL leaves it.
What cannot be had here is left out, and a line says why. Processor time is the whole
machine's: nothing else should run.

Exit status:
  0      measured
  1      nothing could be measured, or a process read what it had not written
  2      the command line is wrong
  128+N  ended by signal N

Examples:
  zfolio bench usemem
  zfolio bench usemem --folios 64K --sides zfolio:lz4,zswap:lzo
  zfolio bench usemem --processes 70 --bytes 64M --memory 2G --json
  zfolio bench usemem --file core.dump --rounds 5")]
    Usemem(BenchUsemem),

    /// What `usemem` starts: the processes together.
    #[command(hide = true)]
    UsememCrew {
        /// How many.
        processes: u64,
        /// What each writes.
        bytes: u64,
        /// What with.
        contents: String,
    },

    /// What `usemem` starts: one process.
    #[command(hide = true)]
    UsememWriter {
        /// What it writes.
        bytes: u64,
        /// Which it is.
        number: u64,
        /// What with.
        contents: String,
    },
}

/// What `zfolio bench usemem` takes.
#[derive(Args, Debug)]
pub struct BenchUsemem {
    /// So many processes
    #[arg(long, short = 'n', value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..))]
    pub processes: u16,

    /// What each writes
    #[arg(long, short, value_name = "SIZE", default_value = "16M")]
    pub bytes: String,

    /// What all of them may hold together, with the pool; without, half of what they write
    #[arg(long, short, value_name = "SIZE")]
    pub memory: Option<String>,

    /// Folios in which the kernel gives memory out: 4K, and sizes of its huge pages
    #[arg(long, value_name = "SIZE,...", default_value = "4K,64K,2M")]
    pub folios: String,

    /// Under what: zfolio, zswap and zram, each with a compressor
    #[arg(
        long,
        value_name = "SIDE[:COMPRESSOR],...",
        default_value = "zfolio:lz4,zswap:lzo,zram:lz4,zram:lzo-rle"
    )]
    pub sides: String,

    /// Write the pages of this file, again and again, instead of pointers and small numbers
    #[arg(long, short, value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// Write what usemem writes: each word is its number, which lz4 and lzo hardly compress
    #[arg(long, conflicts_with = "file")]
    pub numbers: bool,

    /// Measure so many times, and take the medians
    #[arg(long, short, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,

    /// Write JSON instead of the tables: with the figures of every round
    #[arg(long)]
    pub json: bool,
}

/// What `zfolio bench path` takes.
#[derive(Args, Debug)]
pub struct BenchPath {
    /// What the memory is filled with: dumps, or any files; without, pointers and small numbers
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// What compresses single pages, and windows; `zfolio run --help` says what there is
    #[arg(long, short, value_name = "FAST[,DENSE]", default_value = DEFAULT_COMPRESSOR, allow_hyphen_values = true)]
    pub compressor: String,

    /// Measure so many times, and take the medians
    #[arg(long, short, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,

    /// Write JSON instead of the table
    #[arg(long)]
    pub json: bool,
}

/// What `zfolio bench compress` takes.
#[derive(Args, Debug)]
pub struct Compress {
    /// Dumps of memory, or any files, taken as one; - is standard input
    #[arg(value_name = "FILE", required_unless_present = "pid", conflicts_with = "pid")]
    pub files: Vec<PathBuf>,

    /// Read the memory of this process
    ///
    /// That takes root, CAP_SYS_PTRACE, or the same user where kernel.yama.ptrace_scope is 0.
    #[arg(long, short, value_name = "PID", allow_hyphen_values = true)]
    pub pid: Option<String>,

    /// Compress so much as one: whole pages, up to 2M
    #[arg(long, short, value_name = "SIZE,...", default_value = DEFAULT_UNITS, allow_hyphen_values = true)]
    pub unit: String,

    /// Try these instead of all; `zfolio run --help` says what there is
    ///
    /// With `zstd:1,dict=FILE` a dictionary is tried. One that was made of the memory that is tried looks better than
    /// it is.
    #[arg(long, short, value_name = "NAME[:LEVEL][,dict=FILE],...", allow_hyphen_values = true)]
    pub compressor: Option<String>,

    /// Try at most so much memory, spread over what there is
    #[arg(long, short, value_name = "SIZE", default_value = DEFAULT_SAMPLE, allow_hyphen_values = true)]
    pub sample: String,

    /// Measure so many times, and take the medians
    #[arg(long, short, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,

    /// Write JSON instead of the table
    #[arg(long)]
    pub json: bool,

    /// Draw ratio over speed out, with the front, into FILE as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}
