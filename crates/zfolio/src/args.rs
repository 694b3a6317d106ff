//! The command line. What looks at runs that go on is in looks.rs, what changes them in acts.rs, what measures in
//! measures.rs, and block devices in zram.rs.

mod acts;
mod help;
mod looks;
mod measures;
mod zram;

pub use self::zram::{Serve, Zram, ZramTask};
pub use acts::{Reclaim, Set};
pub use looks::Stat;
pub use measures::{Bench, BenchPath, BenchTask, BenchUsemem, Compress, DEFAULT_SAMPLE, DEFAULT_UNITS};

use crate::size::{self, Size};
use clap::{Args, CommandFactory, Parser, Subcommand};
use help::{compressors, counters};
use std::ffi::OsString;
use std::path::PathBuf;

/// The compressor of a run that names none: at 64 KiB a folio it is twice as dense as lz4, and the pool's density
/// decides how much of a program stays in memory.
pub const DEFAULT_COMPRESSOR: &str = "zstd:1";

/// How long a program waits at a full limit, without any progress, before it is stopped.
const FULL_TIMEOUT_MS: u32 = 10_000;

/// `--visible` takes the value of `--memory` by this name.
const LIMIT: &str = "limit";

/// Runs a program in less memory than it needs.
///
/// Cold memory of the program is compressed into a pool inside the program's own limit, and comes back on the first
/// touch. No swap device, no kernel module, no change to the program.
#[derive(Parser, Debug)]
#[command(
    name = "zfolio",
    version,
    max_term_width = 90,
    arg_required_else_help = true,
    after_help = "\
Examples:
  zfolio doctor                                  can this machine do it?
  zfolio run --memory 512M -- python3 job.py     run in 512 MiB
  zfolio run --memory 50% -- redis-server        run in half of the memory there is
  zfolio stat --watch                            how is it going?
  zfolio set 1234 memory=1G                      give a run more
  zfolio bench compress --pid 1234               which compressor suits this process?
  zfolio zram serve --disksize 4G --nbd tcp:10809  a compressed block device"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub task: Task,
}

/// The things that zfolio does.
#[derive(Subcommand, Debug)]
pub enum Task {
    /// Run a program within a limit of memory
    ///
    /// The program is any dynamically linked one for this machine. Its output, its exit status and its signals are as
    /// without zfolio; a program that was killed by signal N gives 128+N. When it has ended, a summary is written to
    /// stderr.
    #[command(
        override_usage = "zfolio run [OPTIONS] [--] CMD [ARG]...",
        after_help = "\
Exit status:
  that of CMD, or
    2  the command line is wrong
  125  zfolio cannot manage CMD, or this machine cannot do it (see `zfolio doctor`), or --strict stopped CMD
  126  CMD is not executable
  127  CMD was not found

Examples:
  zfolio run sort -S 4G big.txt
  zfolio run --memory 256M -- python3 job.py
  zfolio run --memory 256M --backing /var/tmp,size=4G -- python3 job.py
  zfolio run --memory 1G --compressor lz4 --json run.json -- java -jar app.jar"
    )]
    Run(Run),

    /// List the runs that go on
    ///
    /// Those of this user; all of them for root. Sizes are in binary units: what the run may hold, what it holds, what
    /// it would hold without zfolio, what of that is in the pool, and the pool's memory for it. `managed` is how many
    /// processes have an engine, of those that should have one.
    #[command(after_help = "\
Exit status:
  0  listed, also where there is none
  1  standard output cannot be written
  2  the command line is wrong")]
    Ps,

    /// Show the figures of a run that goes on
    ///
    /// They are read from memory that the run's processes write: none of them is asked, so that it works while they
    /// hang.
    #[command(after_help = looks::STAT_HELP)]
    Stat(Stat),

    /// Change a run that goes on: its limit, how large its pool may be
    ///
    /// All values are checked first. One that is out of its range, or a name that there is not, changes nothing. What
    /// is then is printed, a line each. It holds at once, and ends with the run.
    #[command(after_help = acts::set_help())]
    Set(Set),

    /// Shrink a process now, or a whole run
    ///
    /// What is cold goes into the pool, although the limit does not ask for it, until the footprint is so much lower,
    /// no more goes out, or the process takes it back as fast. Nobody waits for room for its sake, the process keeps
    /// its share, and it may grow again. How much it was is printed. Ctrl-C ends it without a word:
    /// what has gone out is out.
    #[command(after_help = acts::RECLAIM_HELP)]
    Reclaim(Reclaim),

    /// Say whether this machine can do it, and how to get what is missing
    ///
    /// Looks at the kernel, the right to userfaultfd, huge pages and limits. The exit status is 0 when `zfolio run`
    /// works here, else 1.
    Doctor(Doctor),

    /// Measure this machine: which compressor suits your memory, and what a page's way takes
    #[command(arg_required_else_help = true)]
    Bench(Bench),

    /// Serve compressed block devices, by NBD and to virtual machines
    ///
    /// What zram does, without a module or root, for clients of NBD and for virtual machines.
    #[command(arg_required_else_help = true)]
    Zram(Zram),
}

/// What `zfolio run` takes.
#[derive(Args, Debug)]
pub struct Run {
    /// Keep CMD within this much memory: 512M, 1.5GiB, 268435456 or 50%
    ///
    /// The limit holds for the whole process tree, and for all that zfolio needs itself: the compressed pool counts.
    /// Units are binary. A percentage is one of the container's limit if it has one, else of RAM. Without this option
    /// it is 90 % of the container's limit, else half of RAM.
    #[arg(long, short, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: Option<OsString>,

    // Help lists what there is, from the table that the parser has.
    #[arg(long, short, value_name = "FAST[,DENSE]", default_value = DEFAULT_COMPRESSOR, allow_hyphen_values = true,
          help = compressors(false), long_help = compressors(true))]
    pub compressor: OsString,

    /// Show CMD so much memory when it asks how much there is: a size as for --memory, or limit
    ///
    /// Programs that size their heaps and caches by that (java, node, duckdb, sort) see all of the machine's memory
    /// otherwise, whatever --memory says, and take more than they need to. `limit` is the value of --memory. Less
    /// leaves room for what such a program takes beside its heap, and more lets it have what compresses well. What the
    /// machine or its control group has is not exceeded. It holds for all processes of CMD, but not for those that ask
    /// the kernel past libc (Go).
    #[arg(long, value_name = "SIZE|limit", allow_hyphen_values = true)]
    pub visible: Option<OsString>,

    /// Swap to a directory, a file or a block device when the pool is full; up to 8 of them
    ///
    /// `PATH[,size=SIZE][,prio=N][,encrypt=yes][,force]`. In a directory it is a file without a name, which is gone
    /// with the run: half of what is free there, at most four times RAM, unless size says otherwise. prio is 0 to
    /// 32767; areas of higher ones are used first. All that leaves RAM is encrypted, under a key that the run has in
    /// memory alone. A file or device that holds anything is refused, unless force says that it may be lost.
    #[arg(long, value_name = "PATH[,size=SIZE]", allow_hyphen_values = true)]
    pub backing: Vec<String>,

    /// Let the pool take at most so many percent of the limit, with --backing: 0 (a plain swap file) to 100
    ///
    /// Without it the pool takes what pays: misses are weighed, and it shrinks where resident pages save more time than
    /// what the areas would be read for.
    #[arg(long, value_name = "N", requires = "backing", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub max_pool_percent: Option<u32>,

    /// Let a pool that was full take more when it has come down to so many percent of its most: 1 to 100, by default 90
    #[arg(long, value_name = "N", requires = "backing", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub accept_threshold_percent: Option<u32>,

    /// Write the figures of the run to FILE as JSON when CMD has ended
    #[arg(long, value_name = "FILE", long_help = counters())]
    pub json: Option<PathBuf>,

    /// Show how the run goes: a line below CMD's own output, once a second
    ///
    /// What is in memory, what is saved, faults, and processes. Only on a terminal that is in its usual mode, and after
    /// the first two seconds; nothing is written where stderr is a pipe or a file.
    #[arg(long)]
    pub progress: bool,

    /// Serve the figures for Prometheus, at /metrics of ADDR: 127.0.0.1:9464, or a port alone
    ///
    /// A port alone is one of 127.0.0.1, which this machine alone can reach; port 0 is any free one, and a line says
    /// which. An address of IPv6 stands in brackets. Whoever can reach ADDR can read names of processes and how much
    /// memory they use. The counters are those of --json, for the run and for each process; docs/grafana/zfolio.json is
    /// a dashboard of them. `zfolio run` serves them, and no process of CMD's.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,

    /// Write no summary; warnings and errors stay
    #[arg(long, short)]
    pub quiet: bool,

    /// Let all processes of CMD miss at the same time, however many they are
    ///
    /// Else, where more of them are busy than there are CPUs, and each takes from the others what they work on, the
    /// youngest wait for their turn whenever they miss, about two seconds at a time. All are done sooner by that; but
    /// where each of them has to answer at once, it is too long.
    #[arg(long)]
    pub no_turns: bool,

    /// Stop CMD when it takes FACTOR times as long as with enough memory, or more
    ///
    /// That is found out from the last ten seconds: how long threads of a process have waited for pages, and how much
    /// processor time they gained. With 20 a process is stopped that gets on for half a second of them, and the exit
    /// status is that of a process that was killed. Without this option a line says once that CMD waits for memory for
    /// most of its time, and it goes on.
    #[arg(long, value_name = "FACTOR", value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub stop_when_slow: Option<u32>,

    /// Run CMD also when it cannot be managed, without any limit, and say so
    #[arg(long)]
    pub unmanaged_ok: bool,

    /// Stop CMD where more than a sixteenth of the limit cannot go out, instead of only saying so
    ///
    /// Processes that cannot be managed count, and memory that stays for whatever reason: shared, locked and so on. The
    /// exit status is 125.
    #[arg(long, conflicts_with = "unmanaged_ok")]
    pub strict: bool,

    /// Test mode: move everything out all the time, whatever the limit
    #[arg(long, hide = true)]
    pub evict_all: bool,

    /// Test mode: the seed of its choices
    #[arg(long, hide = true, value_name = "N", default_value_t = 0)]
    pub seed: u32,

    /// Test mode: damage every Nth object that is stored
    #[arg(long, hide = true, value_name = "N", default_value_t = 0)]
    pub damage: u32,

    /// Test mode: let reads and writes of swap areas fail once in so many times, as in slow=20,full=50,read_errors=100
    #[arg(long, hide = true, value_name = "NAME=N,...", default_value = "", requires = "backing")]
    pub area_faults: String,

    /// Test mode: stop CMD after so many milliseconds at a full limit without any progress
    #[arg(long, hide = true, value_name = "MS", default_value_t = FULL_TIMEOUT_MS)]
    pub full_timeout_ms: u32,

    /// Test mode: look for accelerators under DIR instead of /
    #[arg(long, hide = true, value_name = "DIR", default_value = "")]
    pub iaa_root: String,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// What `zfolio doctor` takes.
#[derive(Args, Debug)]
pub struct Doctor {
    /// Write the findings to FILE as JSON, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Look into this libc.so.6 instead of the machine's
    #[arg(long, value_name = "FILE")]
    pub libc: Option<PathBuf>,
}

impl Run {
    /// The limit in bytes; an error is one line for the user.
    pub fn memory_bytes(&self, memory: &crate::cgroup::Memory) -> Result<u64, String> {
        let Some(text) = &self.memory else { return Ok(memory.default_bytes().max(size::LEAST_BYTES)) };
        let text = text.to_string_lossy();
        Size::parse(&text)
            .and_then(|size| size.bytes(memory.base_bytes(), memory.ram_bytes))
            .map_err(|bad| format!("--memory {text}: {bad}"))
    }

    /// How much memory programs are to see, in whole pages, where the limit is `max_bytes`; `None` for all that there
    /// is. An error is one line for the user.
    pub fn visible_bytes(
        &self,
        memory: &crate::cgroup::Memory,
        max_bytes: u64,
    ) -> Result<Option<u64>, String> {
        let Some(text) = &self.visible else { return Ok(None) };
        let bytes = if text == LIMIT {
            max_bytes
        } else {
            let text = text.to_string_lossy();
            Size::parse(&text)
                .and_then(|size| size.bytes(memory.base_bytes(), memory.ram_bytes))
                .map_err(|bad| format!("--visible {text}: {bad}; or {LIMIT}"))?
        };
        Ok(Some(bytes.min(memory.base_bytes()) / uffd::PAGE as u64 * uffd::PAGE as u64))
    }
}

/// Reads the command line. When it is wrong, or asks for help, this writes the answer and returns the exit status.
pub fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Cli, u8> {
    let arguments: Vec<_> = arguments.collect();
    Cli::try_parse_from(&arguments).map_err(|error| {
        let _ = error.print();
        if let Some(hint) = forgotten_run(&error, &arguments) {
            eprintln!("\n  tip: to run a program: {hint}");
        }
        error.exit_code() as u8
    })
}

/// The line that was meant when `run` was left out, or is not the first word: `zfolio python3 x.py`,
/// `zfolio --memory 1G -- x`, `zfolio --memory 1G run x`.
fn forgotten_run(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    use clap::error::ErrorKind::*;
    let first = arguments.get(1)?;
    if !matches!(error.kind(), InvalidSubcommand | UnknownArgument | MissingSubcommand)
        || Cli::command().get_subcommands().any(|task| first == task.get_name())
    {
        return None;
    }
    let mut words: Vec<_> = arguments[1..].iter().map(|word| word.to_string_lossy()).collect();
    let is_behind = words[0].starts_with('-');
    // Behind options, each with a value or not: any other word is the program's.
    let is_option = |at: usize| words[at].starts_with('-') && words[at] != "--";
    let before = (0..words.len()).take_while(|&at| is_option(at) || at > 0 && is_option(at - 1)).count();
    if let Some(at) = (1..=before.min(words.len() - 1)).find(|&at| words[at] == "run") {
        words.remove(at);
    }
    let dashes = if words.iter().any(|word| word == "--") || is_behind { "" } else { "-- " };
    Some(format!("zfolio run {dashes}{}", words.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Memory;

    fn run(line: &str) -> Run {
        match Cli::try_parse_from(line.split(' ')).unwrap().task {
            Task::Run(run) => run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn clap_finds_no_mistake_in_the_definition() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_follows_the_program_is_the_programs_own() {
        for line in [
            "zfolio run -m 1G -- python3 -c x --memory 2G -- y",
            "zfolio run -m 1G python3 -c x --memory 2G -- y",
        ] {
            let run = run(line);
            assert_eq!(run.memory.unwrap(), "1G");
            assert_eq!(run.command, ["python3", "-c", "x", "--memory", "2G", "--", "y"], "{line}");
        }
    }

    #[test]
    fn a_mistyped_option_is_no_program() {
        let error = Cli::try_parse_from(["zfolio", "run", "--memroy", "1G", "--", "true"]).unwrap_err();
        assert!(error.to_string().contains("--memory"), "{error}");
        assert!(Cli::try_parse_from(["zfolio", "run"]).is_err());
    }

    #[test]
    fn a_forgotten_run_is_told() {
        for (line, expected) in [
            ("zfolio python3 x.py", "zfolio run -- python3 x.py"),
            ("zfolio --memory 1G -- x", "zfolio run --memory 1G -- x"),
            ("zfolio --memory 1G run x", "zfolio run --memory 1G x"),
            ("zfolio --quiet run x", "zfolio run --quiet x"),
            ("zfolio --memory 1G -- run x", "zfolio run --memory 1G -- run x"),
            ("zfolio --memory 1G sh -c run", "zfolio run --memory 1G sh -c run"),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let error = Cli::try_parse_from(&words).unwrap_err();
            assert_eq!(forgotten_run(&error, &words).as_deref(), Some(expected));
        }
    }

    #[test]
    fn the_limit_names_its_option_when_it_is_wrong() {
        let memory = Memory { ram_bytes: 8 << 30, cgroup: None, may_swap: true };
        assert_eq!(run("zfolio run true").memory_bytes(&memory), Ok(4 << 30));
        assert_eq!(run("zfolio run -m 256M true").memory_bytes(&memory), Ok(256 << 20));
        for size in ["0", "-1", "12Q", "15M", "9G"] {
            let error = run(&format!("zfolio run --memory {size} true")).memory_bytes(&memory).unwrap_err();
            assert!(
                error.starts_with(&format!("--memory {size}: ")) && error.contains(size::FORMS),
                "{error}"
            );
            assert!(!error.contains('\n'));
        }
    }

    #[test]
    fn what_is_to_be_seen_is_a_size_or_the_limit() {
        let mut memory = Memory { ram_bytes: 8 << 30, cgroup: None, may_swap: false };
        let visible = |line: &str, memory: &Memory| {
            let run = run(line);
            run.visible_bytes(memory, run.memory_bytes(memory).unwrap())
        };
        assert_eq!(visible("zfolio run -m 256M true", &memory), Ok(None));
        assert_eq!(visible("zfolio run -m 256M --visible limit true", &memory), Ok(Some(256 << 20)));
        assert_eq!(visible("zfolio run -m 256M --visible 128M true", &memory), Ok(Some(128 << 20)));
        assert_eq!(visible("zfolio run -m 256M --visible 50% true", &memory), Ok(Some(4 << 30)));
        assert_eq!(visible("zfolio run --visible 16777217 true", &memory), Ok(Some(16 << 20)), "whole pages");
        for size in ["0", "-1", "Limit", "15M", "9G"] {
            let error = visible(&format!("zfolio run --visible {size} true"), &memory).unwrap_err();
            assert!(
                error.starts_with(&format!("--visible {size}: ")) && error.ends_with("; or limit"),
                "{error}"
            );
        }
        memory.cgroup = Some(crate::cgroup::Limit { bytes: 1 << 30, file: PathBuf::new() });
        assert_eq!(
            visible("zfolio run --visible 2G true", &memory),
            Ok(Some(1 << 30)),
            "no more than the group has"
        );
    }
}
