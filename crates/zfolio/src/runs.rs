//! The runs on this machine, found from outside.
//!
//! ```text
//!   /proc/PID/fd/N -> .../zfolio-PID-xxxxxxxx     the directory of a run, open in `zfolio run` for its lock
//!   /proc/PID/fd/N/{settings, memcg}              the run's page, in whatever mount namespace the directory is
//! ```
//!
//! The kernel shows the descriptors to the same user and to root, and opens the files for the same. Nobody is asked, so
//! that a run is found whose processes hang. What a page says is believed where its coordinator is the process that has
//! the directory open. The page is read and never mapped: its owner could cut the file off.

use crate::args::{self, Cli, Task};
use crate::lines::printable;
use crate::rundir::PREFIX;
use crate::{descendants, sys};
use clap::Parser;
use memcg::{CONTROL_FILE, FIXED_BYTES, FIXED_FILE, LIBRARY_FILE, MAGIC, Memcg, PAGE_FILE};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

/// The bits of [`MAGIC`] that say which layout it is of.
const LAYOUT: u64 = 0xffff;

/// A run that goes on.
pub struct Run {
    /// Process id of `zfolio run`, in this process's namespace.
    pub pid: u32,
    /// When that started, in the kernel's ticks since the machine did.
    start: u64,
    /// The path of its library, as its processes have it mapped.
    pub library: PathBuf,
    /// The link to its directory, in /proc.
    directory: PathBuf,
    page: Page,
}

/// What there is of its page.
enum Page {
    /// The files.
    Open([File; 2]),
    /// It is laid out as another version of zfolio does it.
    Other(u64),
}

impl Run {
    /// The run of which this process is `zfolio run`.
    fn at(pid: u32) -> Option<Run> {
        let directories = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().map(|entry| entry.path());
        directories.into_iter().find_map(|link| {
            let path = fs::read_link(&link).ok()?;
            path.file_name().filter(|name| name.as_bytes().starts_with(PREFIX.as_bytes()))?;
            Run::in_directory(pid, &link, path.join(LIBRARY_FILE)).filter(Run::is_its_own)
        })
    }

    fn in_directory(pid: u32, link: &Path, library: PathBuf) -> Option<Run> {
        let (settings, page) = (open(&link.join(FIXED_FILE)).ok()?, open(&link.join(PAGE_FILE)).ok()?);
        let mut magic = [0; 8];
        settings.read_exact_at(&mut magic, 0).ok()?;
        let page = match u64::from_ne_bytes(magic) {
            MAGIC => Page::Open([page, settings]),
            other if other & !LAYOUT == MAGIC & !LAYOUT => Page::Other(other & LAYOUT),
            _ => return None,
        };
        Some(Run { pid, start: descendants::start(pid)?, library, directory: link.to_path_buf(), page })
    }

    /// True where its page says that this process is the coordinator, by the number that it has for itself. A child
    /// that is about to become CMD has the same descriptors for a moment.
    fn is_its_own(&self) -> bool {
        match self.page {
            Page::Other(_) => true,
            Page::Open(_) => self.read().is_ok_and(|memcg| {
                memcg.division.pid.load(Relaxed) == u64::from(descendants::own_pid(self.pid))
            }),
        }
    }

    /// A copy of its page. An error says of the run what is wrong, in a line for the user.
    pub fn read(&self) -> Result<Box<Memcg>, String> {
        let [page, settings] = match &self.page {
            Page::Open(files) => files,
            Page::Other(layout) => {
                let own = MAGIC & LAYOUT;
                return Err(format!(
                    "is of another version of zfolio (layout {layout}, this one reads {own})"
                ));
            }
        };
        // SAFETY: a `Memcg` consists of integers and atomics alone, and has more than `FIXED_BYTES`.
        unsafe { sys::read_shared::<Memcg>(page, settings, FIXED_BYTES) }
            .map_err(|error| format!("cannot be read: {error}"))
    }

    /// The socket by which it is changed: by a short name, in whatever mount namespace.
    pub fn socket(&self) -> PathBuf {
        self.directory.join(CONTROL_FILE)
    }

    /// True while `zfolio run` lives.
    pub fn goes_on(&self) -> bool {
        descendants::start(self.pid) == Some(self.start)
    }

    /// CMD and its arguments. Where they are no longer known, the command line of `zfolio run`.
    pub fn command(&self) -> Vec<String> {
        let text = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let text = text.strip_suffix(&[0]).unwrap_or(&text);
        let words: Vec<_> = text.split(|byte| *byte == 0).map(std::ffi::OsStr::from_bytes).collect();
        let asked = Cli::try_parse_from(&words).ok().map(|cli| cli.task);
        let text = |word: &std::ffi::OsStr| word.to_string_lossy().into_owned();
        match asked {
            Some(Task::Run(args::Run { command, .. })) => command.iter().map(|word| text(word)).collect(),
            _ => words.into_iter().map(text).collect(),
        }
    }

    /// The same in a line for people.
    pub fn command_line(&self) -> String {
        printable(&self.command().join(" "))
    }

    /// For how long it has been going on, in nanoseconds.
    pub fn elapsed_ns(&self) -> u64 {
        let began_ns = self.start.saturating_mul(1_000_000_000 / sys::ticks_per_second());
        sys::since_boot_ns().saturating_sub(began_ns)
    }
}

/// Opens a file that is one: somebody could have put a pipe there, which waits.
fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// All runs that this user may see, by their numbers.
pub fn all() -> Vec<Run> {
    let mut runs: Vec<Run> = descendants::numbers_in("/proc").into_iter().filter_map(Run::at).collect();
    runs.sort_by_key(|run| run.pid);
    runs
}

/// The run of a process: of `zfolio run` itself, or the innermost one that the process is a descendant of. An error is
/// one line for the user.
pub fn of(pid: u32) -> Result<Run, String> {
    let mut next = Some(pid).filter(|_| Path::new(&format!("/proc/{pid}")).exists());
    if next.is_none() {
        return Err(format!("there is no process {pid}"));
    }
    while let Some(candidate) = next.filter(|candidate| *candidate != 0) {
        if let Some(run) = Run::at(candidate) {
            return Ok(run);
        }
        next = descendants::parent(candidate);
    }
    Err(format!("process {pid} is of no run of zfolio{}", seen()))
}

/// The only run that there is. An error is one line for the user.
pub fn only() -> Result<Run, String> {
    let mut runs = all();
    match runs.len() {
        0 => Err(format!("there is no run of zfolio{}", seen())),
        1 => Ok(runs.remove(0)),
        _ => {
            let pids: Vec<_> = runs.iter().map(|run| run.pid.to_string()).collect();
            Err(format!(
                "there are several runs: say which one of {} (`zfolio ps` lists them)",
                pids.join(", ")
            ))
        }
    }
}

/// What is said after "no run" where there may be others.
fn seen() -> &'static str {
    if sys::effective_user() == 0 { "" } else { " that this user may see" }
}
