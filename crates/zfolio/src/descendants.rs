//! The processes of a run, from /proc: CMD's descendants and the orphans among them, which come to `zfolio run` as
//! their subreaper.
//!
//! Engines and workers are ours and not listed. A look costs some 20 us for each process, and is taken the less often
//! the longer it takes.

use crate::causes::Cause;
use crate::{program, sys};
use std::collections::HashMap;
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often the tree is looked at; less often if it takes more than one part in so many of a processor's time.
const PACE: Duration = Duration::from_millis(100);
const PART: u32 = 50;

/// Bytes of a page.
const PAGE: u64 = base::PAGE as u64;

/// The kernel's mark of a process that has forked and not executed a program since (`PF_FORKNOEXEC`).
const FORKED: u64 = 0x40;

/// The name of engines.
pub const ENGINE: &str = "zfolio-engine";

/// Why a process is not managed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The library is there, and has had no reason to start an engine.
    Small,
    /// The loader has only begun.
    Loading,
    /// The library is not there; why.
    Without(Cause, String),
}

/// A process of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its process id.
    pub pid: u32,
    /// Its process id as it sees it itself, which is another in another namespace.
    pub own_pid: u32,
    /// Its parent's.
    pub parent: u32,
    /// Its name.
    pub name: String,
    /// When it started, in the kernel's ticks.
    pub start: u64,
    /// It has forked off and not executed a program since.
    pub forked: bool,
    /// Private memory, in bytes: each page in full, however many processes have it.
    pub private_bytes: u64,
    /// Pages of files and of shared memory that it has in its page tables, in bytes.
    pub shared_bytes: u64,
}

/// The tree.
pub struct Tree {
    root: u32,
    next: Instant,
    /// Whether the kernel lists children by thread (CONFIG_PROC_CHILDREN).
    lists_children: bool,
    /// Ids as processes see themselves, by id and start.
    own_pids: HashMap<(u32, u64), u32>,
    /// What was found at the last look.
    pub processes: Vec<Process>,
}

impl Tree {
    /// That of the descendants of `root`.
    pub fn new(root: u32) -> Tree {
        let lists_children = Path::new(&format!("/proc/{root}/task/{root}/children")).exists();
        let (own_pids, processes) = (HashMap::new(), Vec::new());
        Tree { root, next: Instant::now(), lists_children, own_pids, processes }
    }

    /// True when it is time to look.
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// Looks.
    pub fn look(&mut self, now: Instant) {
        let began = sys::cpu_time();
        let processes = self.find();
        self.own_pids = processes.iter().map(|p| ((p.pid, p.start), p.own_pid)).collect();
        self.processes = processes;
        self.next = now + PACE.max((sys::cpu_time() - began) * PART);
    }

    /// Who is there now.
    pub fn find(&self) -> Vec<Process> {
        let mut processes = if self.lists_children { self.walk() } else { self.scan() };
        processes.retain(|p| !matches!(p.name.as_str(), ENGINE | "zfolio-worker"));
        for process in &mut processes {
            let known = self.own_pids.get(&(process.pid, process.start));
            process.own_pid = known.copied().unwrap_or_else(|| own_pid(process.pid));
        }
        processes
    }

    /// From parent to children. Those of an engine are its workers.
    fn walk(&self) -> Vec<Process> {
        let (mut open, mut found) = (vec![self.root], Vec::new());
        while let Some(parent) = open.pop() {
            for process in children(parent).into_iter().filter_map(process) {
                if process.name == ENGINE {
                    continue;
                }
                open.push(process.pid);
                found.push(process);
            }
        }
        found
    }

    /// By the parents of all processes of the machine.
    fn scan(&self) -> Vec<Process> {
        let mut all: Vec<Process> = numbers_in("/proc").into_iter().filter_map(process).collect();
        let (mut open, mut found) = (vec![self.root], Vec::new());
        while let Some(parent) = open.pop() {
            let children = all.extract_if(.., |process| process.parent == parent);
            for child in children {
                open.push(child.pid);
                found.push(child);
            }
        }
        found
    }

    /// Those that may share memory with another since a fork: children that have executed nothing, and their parents.
    pub fn is_related(&self, pid: u32) -> bool {
        self.processes.iter().any(|p| p.forked && (p.pid == pid || p.parent == pid))
    }
}

/// A file of /proc.
fn read(path: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(512);
    // A part of it, as long as it may be: whoever reads a file asks for its length first, of which these say 0.
    fs::File::open(path).ok()?.take(u64::MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// The children of a process, by the thread that made each.
fn children(pid: u32) -> Vec<u32> {
    let tasks = format!("/proc/{pid}/task");
    // A directory has a link for each one in it, and two of its own.
    let has_one_thread = fs::metadata(&tasks).is_ok_and(|tasks| tasks.nlink() == 3);
    let threads = if has_one_thread { vec![pid] } else { numbers_in(&tasks) };
    let of_thread = |thread| read(&format!("{tasks}/{thread}/children")).unwrap_or_default();
    let list = threads.into_iter().map(of_thread).collect::<Vec<_>>().concat();
    list.split(|byte| *byte == b' ').filter_map(|pid| std::str::from_utf8(pid).ok()?.parse().ok()).collect()
}

/// The processes or threads that a directory of /proc lists.
pub fn numbers_in(path: &str) -> Vec<u32> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// What /proc/PID/stat says: the name, which may hold anything, parentheses and blanks included, and the words after
/// it.
fn stat(pid: u32) -> Option<(String, String)> {
    let stat = read(&format!("/proc/{pid}/stat"))?;
    let (open, close) = (stat.iter().position(|&b| b == b'(')?, stat.iter().rposition(|&b| b == b')')?);
    let name = String::from_utf8_lossy(&stat[open + 1..close]).into_owned();
    Some((name, std::str::from_utf8(stat.get(close + 2..)?).ok()?.to_string()))
}

/// True for the first of these words where a process has ended and was not waited for yet.
fn has_ended(state: &str) -> bool {
    matches!(state, "Z" | "X")
}

/// What /proc/PID/stat and statm say; none of a process that has ended.
pub fn process(pid: u32) -> Option<Process> {
    let (name, text) = stat(pid)?;
    let words: Vec<&str> = text.split(' ').collect();
    let number = |index: usize| words.get(index)?.parse::<u64>().ok();
    if has_ended(words[0]) {
        return None;
    }
    // An engine's memory is its program's.
    let (private_bytes, shared_bytes) = if name == ENGINE { (0, 0) } else { held_bytes(pid)? };
    Some(Process {
        pid,
        own_pid: pid,
        parent: number(1)? as u32,
        name,
        start: number(19)?,
        forked: number(6)? & FORKED != 0,
        private_bytes,
        shared_bytes,
    })
}

/// Private memory of a process, in bytes; none of one that has ended.
pub fn private_bytes(pid: u32) -> Option<u64> {
    held_bytes(pid).map(|(private, _)| private)
}

/// Private and shared pages that a process has in its page tables, in bytes; private ones also where the machine's own
/// swap has them.
fn held_bytes(pid: u32) -> Option<(u64, u64)> {
    let statm = String::from_utf8(read(&format!("/proc/{pid}/statm"))?).ok()?;
    let mut sizes = statm.split(' ').map(|word| word.trim().parse::<u64>().unwrap_or(0));
    let (resident, shared) = (sizes.nth(1)?, sizes.next()?);
    // To write the file takes the kernel half as long as all else of a look.
    let swapped = if sys::is_swapping() { status(pid, "VmSwap:").first().copied().unwrap_or(0) } else { 0 };
    Some((resident.saturating_sub(shared) * PAGE + u64::from(swapped) * 1024, shared * PAGE))
}

/// When a process started, in the kernel's ticks.
pub fn start(pid: u32) -> Option<u64> {
    process(pid).map(|process| process.start)
}

/// The parent of a process, also of one that has ended and was not waited for yet.
pub fn parent(pid: u32) -> Option<u32> {
    stat(pid)?.1.split(' ').nth(1)?.parse().ok()
}

/// True for a process that has not executed anything since it was made: what it has in memory it has from who made it.
pub fn has_not_executed(pid: u32) -> bool {
    let Some((_, text)) = stat(pid) else { return false };
    let mut words = text.split(' ');
    let is_alive = words.next().is_some_and(|state| !has_ended(state));
    let flags = words.nth(5).and_then(|flags| flags.parse::<u64>().ok());
    is_alive && flags.is_some_and(|flags| flags & FORKED != 0)
}

/// True for an engine, until all that it had is the kernel's again. One that is in another namespace has another number
/// here, and counts as gone.
pub fn is_engine(pid: u32) -> bool {
    process(pid).is_some_and(|process| process.name == ENGINE)
}

/// Numbers of a line of /proc/PID/status.
fn status(pid: u32, name: &str) -> Vec<u32> {
    let status = read(&format!("/proc/{pid}/status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// The last of the ids that a process has in its namespace and those around it.
pub fn own_pid(pid: u32) -> u32 {
    status(pid, "NSpid:").last().copied().unwrap_or(pid)
}

/// Private memory of a process, and the same with each page divided by the number of processes that have it, in bytes.
/// Both are of one walk of its page tables: where it grows meanwhile, it does so in both.
pub fn shared_bytes(pid: u32) -> Option<(u64, u64)> {
    let text = String::from_utf8(read(&format!("/proc/{pid}/smaps_rollup"))?).ok()?;
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    // What is swapped is divided in the same way.
    let private = kib("Anonymous:")? + kib("Swap:").unwrap_or(0);
    Some((private * 1024, (kib("Pss_Anon:")? + kib("SwapPss:").unwrap_or(0)) * 1024))
}

/// Why a process is not managed. `library` is that of the run. One that has ended by now is taken for a small one, and
/// so is one of this user's that hides.
pub fn reason(pid: u32, library_path: &Path) -> Reason {
    let exe = format!("/proc/{pid}/exe");
    let unmanageable = program::inspect(Path::new(&exe)).err();
    let library = library_path.as_os_str().as_encoded_bytes();
    let maps = fs::read(format!("/proc/{pid}/maps"));
    let is_refused = maps.as_ref().is_err_and(|e| e.kind() == ErrorKind::PermissionDenied);
    let maps = maps.ok().filter(|maps| is_whole(maps)).unwrap_or_default();
    match unmanageable {
        _ if is_refused && sys::user_of(pid).is_some_and(|user| user != sys::effective_user()) => {
            Reason::Without(Cause::User, "is another user's".to_string())
        }
        _ if maps.is_empty() || holds(&maps, library) => Reason::Small,
        Some(found) => Reason::Without(found.cause, found.why),
        None if is_hidden(pid, library_path) => Reason::Without(Cause::Hidden, hidden(library_path)),
        None if has_libc(&maps) => not_loaded(pid),
        None => Reason::Loading,
    }
}

/// Why a program has not loaded the library, which it could.
fn not_loaded(pid: u32) -> Reason {
    let asks = read(&format!("/proc/{pid}/environ")).is_some_and(|all| holds(&all, memcg::ENV.as_bytes()));
    let (cause, why) = match asks {
        true => (Cause::Hidden, "libzfolio.so cannot be loaded where it runs"),
        false => (Cause::Environment, "its environment does not ask for zfolio"),
    };
    Reason::Without(cause, why.to_string())
}

/// True when the library is there for this process and not for that one, which has another root directory or other
/// mounts. Who may not look says no. One that ends has no root directory any more, before it is gone itself.
fn is_hidden(pid: u32, library: &Path) -> bool {
    let is_missing = |path: &Path| fs::symlink_metadata(path).is_err_and(|e| e.kind() == ErrorKind::NotFound);
    let root = format!("/proc/{pid}/root");
    let there = format!("{root}{}", library.display());
    is_missing(Path::new(&there)) && !is_missing(library) && fs::metadata(root).is_ok()
}

/// What is said of such a process, with what helps.
fn hidden(library: &Path) -> String {
    let place = library.parent().and_then(Path::parent).unwrap_or(library).display();
    format!("{place}, where the library is, is hidden from it by a chroot or a mount")
}

/// False for a list that broke off, since the process ended or executed another program meanwhile: the stack comes
/// last.
fn is_whole(maps: &[u8]) -> bool {
    holds(maps, b"[stack]")
}

/// True when libc is mapped: what is preloaded is so before it.
fn has_libc(maps: &[u8]) -> bool {
    // As it is called since glibc 2.34, and before.
    holds(maps, b"/libc.so.6") || holds(maps, b"/libc-2.")
}

fn holds(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn found(tree: &mut Tree) -> Vec<Process> {
        tree.look(Instant::now());
        tree.processes.clone()
    }

    /// Of a process that ends everything is missing, the root directory first.
    #[test]
    fn to_who_ends_nothing_is_hidden() {
        let here = std::env::current_exe().unwrap();
        let mut child = Command::new("true").spawn().unwrap();
        while !stat(child.id()).is_some_and(|(_, text)| text.split(' ').next().is_some_and(has_ended)) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(Path::new(&format!("/proc/{}", child.id())).exists() && !is_hidden(child.id(), &here));
        child.wait().unwrap();
        assert!(!is_hidden(child.id(), &here) && !is_hidden(std::process::id(), &here));
    }

    #[test]
    fn before_libc_is_mapped_nothing_is_known() {
        let loader = b"7f00-7f01 r-xp 0 0:0 9 /usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2\n";
        assert!(!has_libc(loader));
        for libc in ["libc.so.6", "libc-2.31.so"] {
            let maps = [&loader[..], format!("7e00-7e01 r-xp 0 0:0 8 /lib/{libc}\n").as_bytes()].concat();
            assert!(has_libc(&maps), "{libc}");
        }
        let own = std::process::id();
        assert_eq!(reason(own, Path::new("/no/such/library.so")), not_loaded(own));
        assert_eq!(reason(own, Path::new("/libc.so.6")), Reason::Small);
    }

    #[test]
    fn a_list_that_broke_off_tells_nothing() {
        let maps = fs::read("/proc/self/maps").unwrap();
        assert!(is_whole(&maps));
        let libc = maps.windows(7).rposition(|window| window == b"libc.so").expect("libc is loaded");
        assert!(has_libc(&maps[..libc + 10]) && !is_whole(&maps[..libc + 10]));
    }

    #[test]
    fn descendants_are_found_either_way_and_others_are_not() {
        let own = std::process::id();
        let mut child =
            Command::new("sh").args(["-c", "sleep 100 & echo; wait"]).stdout(Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let mut walked = Tree::new(own);
        let mut scanned = Tree::new(own);
        scanned.lists_children = false;
        for tree in [&mut walked, &mut scanned] {
            let all = found(tree);
            let shell = all.iter().find(|p| p.pid == child.id()).expect("the shell");
            assert_eq!((shell.parent, shell.own_pid, shell.forked), (own, child.id(), false));
            assert!(shell.private_bytes > 0 && shell.start == start(child.id()).unwrap());
            let sleep = all.iter().find(|p| p.parent == child.id()).expect("its child");
            assert!(all.iter().all(|p| p.pid != own && p.pid != 1));
            assert_eq!(tree.is_related(sleep.pid), sleep.forked);
        }
        let sleep = walked.processes.iter().find(|p| p.parent == child.id()).unwrap().pid;
        assert!(!walked.is_due(Instant::now()), "it is too early for another look");
        assert!(
            Command::new("kill")
                .args([&sleep.to_string(), &child.id().to_string()])
                .status()
                .unwrap()
                .success()
        );
        child.wait().unwrap();
        assert!(found(&mut walked).iter().all(|p| p.pid != child.id()), "what has ended is gone");
    }

    #[test]
    fn the_reasons_of_unmanaged_processes() {
        let own = std::process::id();
        assert_eq!(reason(own, Path::new("/no/such/library.so")), not_loaded(own));
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let library = maps.split_whitespace().find(|word| word.contains("libc.so")).expect("libc is loaded");
        assert_eq!(reason(own, Path::new(library)), Reason::Small);
        assert_eq!(reason(u32::MAX / 2, Path::new(library)), Reason::Small, "it has ended");
        assert_eq!((sys::user_of(own), sys::user_of(u32::MAX / 2)), (Some(sys::effective_user()), None));
    }

    #[test]
    fn a_page_that_several_have_is_divided_among_them() {
        let own = std::process::id();
        let (private, proportional) = shared_bytes(own).unwrap();
        assert!(proportional > 0 && proportional <= private, "{proportional} of {private}");
    }
}
