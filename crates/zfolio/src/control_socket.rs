//! The socket by which a run is changed while it goes on: `zfolio set`, `zfolio reclaim`.
//!
//! ```text
//!   zfolio set ── connect ──> DIR/control ── SO_PEERCRED: the owner or root? ── a line ──> tunables, requests to engines
//!        <── a line ───────────────────────────────────────────────────────────────────────── run page
//! ```
//!
//! - [`request`]: the lines; [`subject`]: of whom they are
//! - [`tunables`]: what can be set; [`shrink`]: memory that is reclaimed
//! - the crate `ask`: the socket, and the thread behind it
//!
//! The thread writes atomics of the run page, which coordinator and engines read at their next look, and before that
//! the code of a compressor that is set (library.rs). Nobody waits for it. It takes no lock, and blocks all signals, as
//! it inherits them.
//!
//! Nobody but the owner and root changes what is the run's. This is safe because
//! 1. nobody else is served (crate `ask`);
//! 2. tunables of the run lie in the part of the page that its processes cannot write. What is one process's lies in
//!    its slot, which any process of the run can write: it bounds memory, and is no right.

pub mod request;
mod shrink;
pub mod subject;
pub mod tunables;

use crate::cgroup::Memory;
use crate::library;
use crate::lines::printable;
use crate::size::Bytes;
use crate::sys;
use ask::{Answer, Server};
use memcg::{CONTROL_FILE, Memcg};
use request::{Request, Task};
use shrink::Shrink;
use std::fs::{self, File};
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;
use subject::Subject;
use tunables::{Run, Scope, TUNABLES, Tunable};

/// Bytes of the thread's stack.
const STACK: usize = 256 << 10;

/// The longest time for which engines may be at it.
const LONGEST: Duration = Duration::from_secs(86_400);

/// Exit status: what was asked for is wrong.
const WRONG: u8 = 2;

/// Exit status: it cannot be had.
const CANNOT: u8 = 1;

/// What came of a request: engines may work for it.
type Act = ask::Act<Shrink>;

/// The socket of a run; its name goes when this is dropped.
pub struct ControlSocket {
    path: PathBuf,
    /// Until it is served.
    waiting: Option<UnixListener>,
}

impl ControlSocket {
    /// Makes the socket in the directory of the run. Who connects waits until it is served.
    pub fn new(dir: &Path) -> io::Result<ControlSocket> {
        let path = dir.join(CONTROL_FILE);
        // The directory cannot be listed, and nobody has its name yet.
        let listener = ask::listen(&path)?;
        Ok(ControlSocket { path, waiting: Some(listener) })
    }

    /// Serves from now on, in a thread of its own, until the process ends.
    pub fn serve(&mut self, memcg: &'static Memcg, memory: Memory) -> io::Result<()> {
        let Some(listener) = self.waiting.take() else { return Ok(()) };
        let library = library::open(self.path.parent().unwrap_or(Path::new("")))?;
        let serve = move || {
            Server::new(listener, sys::effective_user(), |line| act(memcg, &memory, &library, line)).serve()
        };
        thread::Builder::new().name("zfolio-control".into()).stack_size(STACK).spawn(serve).map(drop)
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Does what a line asks for, of the run whose processes load this library.
fn act(memcg: &'static Memcg, memory: &Memory, library: &File, line: &[u8]) -> Act {
    let Request { task, pid, start } = match Request::parse(line) {
        Ok(request) => request,
        Err(why) => return Act::Done(Answer::error(WRONG, why)),
    };
    let subject = Subject::find(memcg, pid, start);
    let run = Run { memcg, memory, library, subject };
    match task {
        Task::List => Act::Done(list(&run)),
        Task::Set(values) => Act::Done(set(&run, &values)),
        Task::Reclaim { bytes, timeout_ms } => {
            let timeout = Duration::from_millis(timeout_ms).min(LONGEST);
            Shrink::begin(memcg, subject, bytes, timeout).map_or_else(Act::Done, Act::Begun)
        }
    }
}

/// All tunables: value, range, and what it is.
fn list(run: &Run) -> Answer {
    let line = |tunable: &'static Tunable| {
        let Tunable { name, scope, needs_areas, text, .. } = tunable;
        let value = match (run.subject, scope) {
            (Subject::WithoutEngine(_), Scope::Process) => "-".to_string(),
            _ => run.value(tunable),
        };
        let is_idle = *needs_areas && !run.memcg.has_areas();
        let range = if is_idle { "only with --backing".to_string() } else { run.range(tunable) };
        [format!("{name}={value:<width$}  {range}", width = 31 - name.len()), format!("    {text}")]
    };
    Answer::lines(TUNABLES.iter().flat_map(line).collect())
}

/// Checks all, then sets all.
fn set(run: &Run, values: &[(String, String)]) -> Answer {
    let mut changes = Vec::new();
    for (at, (name, text)) in values.iter().enumerate() {
        if values[..at].iter().any(|(other, _)| other == name) {
            return Answer::error(WRONG, format!("{} is set twice", printable(name)));
        }
        match run.check(name, text) {
            Ok(change) => changes.push(change),
            Err(why) => return Answer::error(WRONG, printable(&why)),
        }
    }
    if let Err(why) = changes.iter().try_for_each(|change| run.prepare(change)) {
        return Answer::error(CANNOT, why);
    }
    changes.iter().for_each(|change| run.apply(change));
    let line = |change: &tunables::Change| {
        let tunable = change.tunable();
        format!("{}={}", tunable.name, run.value(tunable))
    };
    let (limit, group) = (run.memcg.max_bytes.load(Relaxed), run.memory.cgroup.as_ref());
    let is_limit = |change: &tunables::Change| change.tunable().name == tunables::MEMORY;
    let above = group.filter(|group| changes.iter().any(is_limit) && group.bytes < limit);
    let warning = above
        .map(|group| format!("warning: it is above the control group's own limit of {}", Bytes(group.bytes)));
    Answer { status: 0, lines: changes.iter().map(line).collect(), error: warning }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memcg::Settings;
    use std::os::unix::fs::PermissionsExt;

    fn memcg() -> &'static Memcg {
        // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
        let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
        memcg.init(1 << 30, Settings::default());
        Box::leak(memcg)
    }

    fn answer(memcg: &'static Memcg, task: Task, pid: u32) -> Answer {
        let memory = Memory { ram_bytes: 8 << 30, cgroup: None, may_swap: false };
        let line = Request { task, pid, start: 1 }.line();
        match act(memcg, &memory, &File::open("/dev/null").unwrap(), line.as_bytes()) {
            Act::Done(answer) => answer,
            Act::Begun(_) => panic!("{line}"),
        }
    }

    fn set_to(memcg: &'static Memcg, values: &[(&str, &str)]) -> Answer {
        let values = values.iter().map(|(name, text)| (name.to_string(), text.to_string()));
        answer(memcg, Task::Set(values.collect()), 0)
    }

    #[test]
    fn all_values_are_set_or_none_is() {
        let memcg = memcg();
        let answer = set_to(memcg, &[("memory", "64M"), ("max_compression_ratio", "0")]);
        assert_eq!(answer, Answer::error(2, "max_compression_ratio=0: expected 1 to 100"));
        let answer = set_to(memcg, &[("memory", "64M"), ("memory", "65M")]);
        assert_eq!(answer, Answer::error(2, "memory is set twice"));
        let answer = set_to(memcg, &[("memory", "64M"), ("compressor", "lz4hc")]);
        assert!(answer.error.is_some_and(|why| why.starts_with("compressor: its code cannot be written: ")));
        assert_eq!(memcg.max_bytes.load(Relaxed), 1 << 30);
        let answer = set_to(memcg, &[("memory", "64M"), ("max_compression_ratio", "50")]);
        assert_eq!(answer, Answer::lines(vec!["memory=64M".into(), "max_compression_ratio=50".into()]));
        assert_eq!(memcg.max_bytes.load(Relaxed), 64 << 20);
        assert_eq!(memcg.tunables.max_compression_ratio.load(Relaxed), 50);
    }

    #[test]
    fn the_list_has_every_tunable_in_eighty_columns() {
        let lines = answer(memcg(), Task::List, 0).lines;
        assert_eq!(lines.len(), 2 * TUNABLES.len());
        assert!(lines.iter().all(|line| line.len() <= 80), "{lines:#?}");
        assert_eq!(lines[0], "memory=1G                         16M to 8G");
    }

    #[test]
    fn the_socket_is_its_owners_alone_and_goes_with_its_value() {
        let dir = std::env::temp_dir().join(format!("zfolio-control-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let socket = ControlSocket::new(&dir).unwrap();
        let path = dir.join(CONTROL_FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(socket);
        assert!(!path.exists());
        fs::remove_dir(dir).unwrap();
    }
}
