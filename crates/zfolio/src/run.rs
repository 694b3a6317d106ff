//! `zfolio run`, from the command line to the exit status.

use crate::accelerator;
use crate::areas::{self, SwapAreas};
use crate::args::Run;
use crate::causes::Cause;
use crate::cgroup::Memory;
use crate::coordinator::{Coordinator, Ended};
use crate::dictionary;
use crate::doctor;
use crate::file_room::FileRoom;
use crate::lines::printable;
use crate::metrics::Metrics;
use crate::program;
use crate::progress::Progress;
use crate::roster::Roster;
use crate::rundir::{self, RunDir};
use crate::size::Bytes;
use crate::summary::Figures;
use crate::supervise::{self, Watcher};
use crate::sys::{self, Pid};
use crate::visible;
use iaa::setup::Setup;
use memcg::tunables::Tunables;
use memcg::{Memcg, Settings, State};
use std::ffi::{CString, OsStr};
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use zswap::Choice;

/// Whoever has not ended by then, stopped by `--strict`, is killed.
const PATIENCE: Duration = Duration::from_secs(2);

/// The command line is wrong.
const USAGE: u8 = 2;
/// zfolio itself cannot do it; env(1), nice(1) and docker use the same.
const CANNOT: u8 = 125;

/// A run that ended before CMD began: its exit status, and what to say.
struct Refusal(u8, String);

impl Refusal {
    fn usage(what: impl Display) -> Refusal {
        Refusal(USAGE, what.to_string())
    }
}

/// Runs CMD; returns the exit status.
pub fn run(args: &Run) -> u8 {
    start(args).unwrap_or_else(|Refusal(status, why)| {
        say(why);
        status
    })
}

/// A line on stderr. One that cannot be written is not worth an end.
fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "zfolio: {line}");
}

/// What is done while CMD runs.
struct Watch<'a> {
    memcg: &'a Memcg,
    dir: &'a mut RunDir,
    roster: Roster<'a>,
    coordinator: Coordinator,
    areas: Option<SwapAreas>,
    progress: Option<Progress>,
    /// What is to be served for Prometheus as soon as CMD has been started, and CMD's name.
    metrics: Option<(Metrics, String)>,
    memory: Memory,
    is_strict: bool,
    /// Since when CMD and its descendants are being stopped for what cannot go out.
    stopping: Option<Instant>,
}

impl<'a> Watch<'a> {
    fn new(
        args: &Run,
        asked: &Asked,
        dir: &'a mut RunDir,
        areas: Option<SwapAreas>,
        is_managed: bool,
    ) -> Watch<'a> {
        let memcg: &'static Memcg = dir.memcg;
        let file_room = asked.memory.cgroup.as_ref().and_then(|limit| FileRoom::new(limit, asked.max_bytes));
        Watch {
            memcg,
            coordinator: Coordinator::new(memcg, dir.library_file(), file_room),
            dir,
            areas,
            roster: Roster::new(memcg),
            progress: if args.progress && is_managed { Progress::new() } else { None },
            metrics: None,
            memory: asked.memory.clone(),
            is_strict: args.strict,
            stopping: None,
        }
    }
}

impl Watch<'_> {
    fn clear(&mut self) {
        if let Some(progress) = &mut self.progress {
            progress.clear();
        }
    }

    /// Says what is due to be said while the program runs.
    fn warn(&mut self) {
        for line in self.coordinator.take_lines() {
            self.clear();
            say(format_args!("warning: {line}"));
        }
        if self.memcg.full_warning.compare_exchange(1, 2, Relaxed, Relaxed).is_ok() {
            self.clear();
            say("warning: the limit is full, and nothing more can go out: the program waits");
        }
        self.warn_of_areas();
        for words in self.roster.take_words() {
            self.clear();
            say(printable(&words));
        }
        let memcg = self.memcg;
        memcg.crawls.show(|line| {
            self.clear();
            say(format_args!("warning: {line}"));
        });
        let copied = self.memcg.unseen_copy.load(Relaxed);
        if copied != 0 && copied != memcg::SAID {
            self.memcg.unseen_copy.store(memcg::SAID, Relaxed);
            self.clear();
            say(format_args!(
                "warning: process {copied} has made a copy of itself past libc, by a system call of its own: what was out is not there in the \
                 copy, which is ended by SIGSEGV where it uses that (sanitizers start llvm-symbolizer so: symbolize=0 in their options helps)"
            ));
        }
    }

    /// Says what there is of swap areas, and of pages that cannot be restored.
    fn warn_of_areas(&mut self) {
        let memcg = self.memcg;
        for (number, notice) in memcg.area_refuses.iter().enumerate() {
            notice.show(|line| {
                self.clear();
                let path = self.areas.as_ref().map(|areas| areas.path(number)).unwrap_or_default();
                say(format_args!("warning: --backing {path}: {}", printable(line)));
            });
        }
        memcg.areas_full.show(|line| {
            self.clear();
            say(format_args!("warning: {}", printable(line)));
        });
        memcg.lost.show(|line| {
            self.clear();
            say(printable(line));
        });
    }

    /// Where the run is strict, stops it for what cannot go out. CMD's end ends the run.
    fn enforce(&mut self) {
        let now = Instant::now();
        match self.stopping {
            None if self.is_strict && self.coordinator.is_too_much() => {
                self.clear();
                say("stopped, since more than a sixteenth of the limit cannot go out (--strict)");
                self.stopping = Some(now);
                self.coordinator.signal_all(libc::SIGTERM);
            }
            Some(since) if now >= since + PATIENCE => self.coordinator.signal_all(libc::SIGKILL),
            _ => {}
        }
    }

    /// What there is to tell when all is over, and whether the run was stopped.
    fn finish(mut self, is_managed: bool) -> (Figures, bool) {
        self.roster.tick();
        self.warn();
        let unshown = self.memcg.lost.unshown();
        if unshown > 0 {
            say(format_args!("{unshown} more pages could not be restored"));
        }
        let is_stopped = self.stopping.is_some();
        if is_stopped {
            self.coordinator.signal_all(libc::SIGKILL);
        }
        let Ended {
            small,
            unmanaged,
            file_room_peak_bytes,
            shared_peak_bytes,
            unevictable,
            refused_peaks,
            askers,
        } = self.coordinator.end(self.roster.refused());
        let said = self.roster.said().to_vec();
        let (mut processes, unrecorded) = self.roster.finish();
        let refused = processes.iter_mut().map(|entry| &mut entry.process);
        for process in refused.filter(|process| process.state == State::Unmanaged) {
            let seen = refused_peaks.get(&process.pid).copied().unwrap_or(0);
            process.footprint_peak_bytes = process.footprint_peak_bytes.max(seen);
        }
        let mut figures = Figures::collect(self.memcg, (processes, unrecorded));
        (figures.shared_peak_bytes, figures.unevictable) = (shared_peak_bytes, unevictable);
        (figures.askers, figures.said, figures.file_room_peak_bytes) = (askers, said, file_room_peak_bytes);
        if is_managed {
            figures.small = small;
            unmanaged.into_iter().for_each(|group| figures.add_seen(group));
        }
        self.areas.iter_mut().for_each(SwapAreas::end);
        (figures, is_stopped)
    }
}

impl Watcher for Watch<'_> {
    fn started(&mut self) {
        self.dir.serve(self.areas.as_mut().and_then(SwapAreas::take_files));
        self.dir.listen(self.memory.clone());
        if let Some((metrics, command)) = self.metrics.take() {
            if metrics.is_any {
                say(format_args!("metrics at http://{}/metrics", metrics.address));
            }
            if let Err(e) = metrics.serve(self.dir.memcg, command) {
                say(format_args!("warning: --metrics: {e}"));
            }
        }
    }

    fn tick(&mut self) {
        // Who has ended gives his share back before it is divided.
        self.roster.tick();
        self.coordinator.tick(self.roster.refused());
        if let Some(areas) = &mut self.areas {
            areas.tick(self.roster.take_left_row());
        }
        self.warn();
        self.enforce();
        if let Some(progress) = &mut self.progress {
            progress.tick(self.memcg);
        }
    }

    fn pause(&self) -> Duration {
        self.coordinator.pause()
    }

    fn has_stopped(&mut self, tid: Pid, status: i32) -> bool {
        self.coordinator.growth.has_stopped(tid, status)
    }

    fn has_ended(&mut self, tid: Pid) {
        self.coordinator.growth.has_ended(tid);
    }

    fn stops(&mut self) {
        self.clear();
        self.coordinator.stopped(true);
    }

    fn killed(&mut self, pid: Pid) {
        self.roster.note_killed(pid as u32);
    }

    fn continues(&mut self) {
        self.coordinator.stopped(false);
    }
}

fn start(args: &Run) -> Result<u8, Refusal> {
    let mut asked = Asked::read(args)?;
    let json = args.json.as_deref().map(create_json).transpose()?;
    let metrics = args.metrics.as_deref().map(Metrics::bind).transpose().map_err(Refusal::usage)?;
    let cmd = Cmd::look(args, asked.visible_bytes)?;
    let is_managed = cmd.obstacle.is_none();
    if is_managed
        && !args.quiet
        && let Some(device) = asked.choice.device()
        && let Some(why) = accelerator::shortfall(device, || Setup::look(&args.iaa_root))
    {
        say(why);
    }

    let areas = swap_areas(args, &mut asked.settings)?;

    // From here on no signal ends this process, so that the directory goes with the run.
    let inherited = sys::take_over_signals();
    let library = visible::library(asked.visible_bytes);
    let mut dir = RunDir::create(&library, asked.max_bytes, asked.settings, &asked.dictionary)
        .map_err(|e| Refusal(CANNOT, format!("{e:#}")))?;
    tune(args, &dir.memcg.tunables);
    if areas.is_some() && !dir.has_handover() {
        let parent = dir.parent().display();
        return Err(Refusal(
            CANNOT,
            format!("--backing: no socket can be made in {parent} to hand areas over"),
        ));
    }
    let environment = cmd.environment(&dir, &asked.settings);
    let arguments: Vec<CString> = args.command.iter().map(|word| c_string(word)).collect();
    let (began_ns, memcg) = (uffd::sys::now_ns(), dir.memcg);
    let mut watch = Watch::new(args, &asked, &mut dir, areas, is_managed);
    watch.metrics = metrics.map(|metrics| (metrics, base_name(&cmd.file)));
    let ended = supervise::run(&cmd.file, &arguments, &environment, &inherited, memcg, &mut watch);
    watch.clear();
    let ended = ended.map_err(|e| not_started(cmd.name, &e))?;
    if ended.descendants && is_managed {
        watch.dir.keep();
    }

    for pid in &ended.stuck {
        say(format_args!("warning: the engine of process {pid} did not end with it, and was killed"));
    }
    let (mut figures, is_stopped) = watch.finish(is_managed);
    figures.command = args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    figures.exit_status = if is_stopped { CANNOT } else { ended.status };
    figures.visible_bytes = asked.visible_bytes;
    figures.began_ns = began_ns;
    figures.elapsed_ns = uffd::sys::now_ns() - began_ns;
    tell(&mut figures, is_managed && !args.quiet, cmd);
    if let Some((path, file)) = json
        && let Err(e) = write_json(file, &figures)
    {
        say(format_args!("--json {}: {e}", path.display()));
    }
    Ok(figures.exit_status)
}

/// What the user asks for, as far as it can be looked at without CMD.
struct Asked {
    memory: Memory,
    max_bytes: u64,
    visible_bytes: Option<u64>,
    choice: Choice,
    dictionary: Vec<u8>,
    settings: Settings,
}

impl Asked {
    fn read(args: &Run) -> Result<Asked, Refusal> {
        let memory = Memory::of_this_process();
        let max_bytes = args.memory_bytes(&memory).map_err(Refusal::usage)?;
        let visible_bytes = args.visible_bytes(&memory, max_bytes).map_err(Refusal::usage)?;
        let choice = compressor(args)?;
        let dictionary =
            dictionary::read(&args.compressor.to_string_lossy(), choice).map_err(Refusal::usage)?;
        let settings = crate::settings::settings(args, choice).map_err(Refusal::usage)?;
        if let Some(limit) = memory.cgroup.as_ref().filter(|limit| limit.bytes < max_bytes) {
            let (mine, its) = (Bytes(max_bytes), Bytes(limit.bytes));
            say(format_args!(
                "warning: the limit of {mine} is above the control group's own ({its}, {})",
                limit.file.display()
            ));
        }
        Ok(Asked { memory, max_bytes, visible_bytes, choice, dictionary, settings })
    }
}

/// CMD, before it runs.
struct Cmd<'a> {
    name: &'a OsStr,
    file: PathBuf,
    /// Why it cannot be managed, if it cannot.
    obstacle: Option<(Cause, String)>,
}

impl Cmd<'_> {
    /// Finds it, and asks whether it can be managed. If it cannot, that is a warning or a refusal.
    fn look(args: &Run, visible_bytes: Option<u64>) -> Result<Cmd<'_>, Refusal> {
        let (name, path) = (&args.command[0], std::env::var_os("PATH"));
        let file = program::find(name, path.as_deref())
            .map_err(|e| Refusal(e.exit_status(), format!("{}: {e}", name.display())))?;
        let obstacle = match program::inspect(&file) {
            Err(why) => Some((why.cause, format!("cannot manage {}: {why}", name.display()))),
            Ok(()) => doctor::obstacle().map(|why| (Cause::User, why)),
        };
        match &obstacle {
            None => {}
            Some((_, why)) if args.unmanaged_ok => {
                let besides = if visible_bytes.is_some() { ", and CMD sees all of the memory" } else { "" };
                say(format_args!("warning: running without a limit{besides}: {why}"));
            }
            Some((_, why)) => {
                return Err(Refusal(CANNOT, format!("{why}\n  (--unmanaged-ok runs it without a limit)")));
            }
        }
        Ok(Cmd { name, file, obstacle })
    }

    /// Its environment: our own, and what makes its loader load the library.
    fn environment(&self, dir: &RunDir, settings: &Settings) -> Vec<CString> {
        let own = std::env::vars_os();
        // What is tried out in a test is tried out in every process.
        let page = dir.page(settings.evict_all != 0 || settings.damage_every != 0);
        let library = dir.library_for(&c_string(self.file.as_os_str()));
        let is_managed = self.obstacle.is_none();
        let variables = if is_managed { rundir::environment(own, &library, &page) } else { own.collect() };
        variables.iter().map(|(name, value)| variable(name, value)).collect()
    }
}

/// Says on stderr how it went, and enters CMD itself among what was not managed if it was not.
fn tell(figures: &mut Figures, with_summary: bool, cmd: Cmd) {
    let mut text = figures.last_words();
    text += &if with_summary { figures.text() } else { figures.unmanaged_warnings() };
    if let Some((cause, why)) = cmd.obstacle {
        let program = cmd.file.file_name().unwrap_or(cmd.name).to_string_lossy();
        figures.unmanaged += 1;
        figures.add_unmanaged(&program, &why, cause, 0);
    }
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn compressor(args: &Run) -> Result<Choice, Refusal> {
    let text = args.compressor.to_string_lossy();
    Choice::parse(&text).map_err(|e| Refusal::usage(format_args!("--compressor {text}: {e}")))
}

/// What zfolio set may change later, as far as the user says it now.
fn tune(args: &Run, tunables: &Tunables) {
    for (value, cell) in [
        (args.max_pool_percent, &tunables.max_pool_percent),
        (args.accept_threshold_percent, &tunables.accept_threshold_percent),
    ] {
        value.into_iter().for_each(|value| cell.store(value, Relaxed));
    }
}

/// Opens the swap areas, if the user gives some, and enters them among the settings.
fn swap_areas(args: &Run, settings: &mut Settings) -> Result<Option<SwapAreas>, Refusal> {
    let opened = areas::open(&args.backing).map_err(|e| Refusal::usage(format_args!("{e:#}")))?;
    if opened.is_empty() {
        return Ok(None);
    }
    let (areas, refused) = SwapAreas::new(opened).map_err(|e| Refusal(CANNOT, format!("{e:#}")))?;
    if let Some(errno) = refused {
        say(format_args!(
            "warning: the key of the swap areas is not kept in memory (mlock: {errno}): the machine may swap it out"
        ));
    }
    settings.areas = areas.settings();
    Ok(Some(areas))
}

/// Opened before CMD starts: hours of a run must not end in a file that cannot be written.
fn create_json(path: &Path) -> Result<(&Path, File), Refusal> {
    let file =
        File::create(path).map_err(|e| Refusal::usage(format_args!("--json {}: {e}", path.display())))?;
    Ok((path, file))
}

fn write_json(mut file: File, figures: &Figures) -> std::io::Result<()> {
    writeln!(file, "{:#}", figures.json())
}

/// What execve says after all that was looked at before, with a shell's exit statuses.
fn not_started(name: &OsStr, error: &std::io::Error) -> Refusal {
    match error.raw_os_error() {
        Some(libc::ENOENT) => Refusal(127, format!("{}: its interpreter was not found", name.display())),
        _ => Refusal(126, format!("{}: {error}", name.display())),
    }
}

/// A file's name without what it is in.
fn base_name(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn variable(name: &OsStr, value: &OsStr) -> CString {
    let mut text = name.to_os_string();
    text.push("=");
    text.push(value);
    c_string(&text)
}

/// Arguments and variables came to this process as C strings, and what is added holds no NUL.
fn c_string(text: &OsStr) -> CString {
    CString::new(text.as_bytes()).expect("no NUL in an argument")
}
