//! What a process of the run cannot open by itself is handed to it.
//!
//! ```text
//!   descendant of another user ── connect ──> DIR/handover ── SO_PEERCRED, SO_PEERPIDFD: one of the tree? ── SCM_RIGHTS ──> descriptors, or the end
//!
//!   the run's page, and its settings to be read alone   which only the user of `zfolio run` may open
//!   /dev/userfaultfd                                    by which any user's process makes a userfaultfd
//!   its own /proc/PID/pagemap and mem                   where it has given up root without executing anything, and the kernel keeps them from it
//!   swap's table, the run's key, and each area          where the run has swap areas (areas.rs)
//! ```
//!
//! Any user may connect. Who is not a descendant of this process is sent nothing. This is safe because
//! 1. the kernel says which process has connected, by a pidfd, and that process is found alive after the look at its
//!    ancestors: its number was its own all the while;
//! 2. its ancestors are looked up twice, and are the same both times. A process's parent changes only to one of its
//!    ancestors, and never back: so each of them was there between the two looks, and no number had come round to
//!    another process. Where an ancestor ends meanwhile, as the process that has made an engine does, both looks are
//!    repeated;
//! 3. nothing is read from who has connected, and nothing that is sent can wait, so that nobody can hold up the others.
//!
//! Who is handed its own memory cannot have another's by it: a process could connect, and then execute a program that
//! has more rights than itself, while somebody else reads from the socket. This is safe because
//! 1. it has not executed anything since it was made, which is looked at when the files are open: the memory is what
//!    its maker had or has;
//! 2. it has been alive all the while (above), so that the files are its own;
//! 3. this thread has no CAP_SYS_ADMIN: the page tables do not say where in the machine's memory a page is.

use crate::descendants;
use crate::sys::{self, Peer};
use base::Fd;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// More ancestors than any process has.
const MOST_ANCESTORS: usize = 10_000;

/// The pause after who was sent nothing: a stranger who connects all the time takes next to nothing of a processor.
const PAUSE: Duration = Duration::from_millis(1);

/// How often it is looked whether a process is one of the tree, of which ancestors end meanwhile.
const TRIES: usize = 4;

/// Bytes of the thread's stack: it calls little.
const STACK: usize = 128 << 10;

/// What the run's swap areas take.
pub struct AreaFiles {
    table: OwnedFd,
    /// To be read alone.
    key: File,
    areas: Vec<OwnedFd>,
}

impl AreaFiles {
    /// The files of swap's table, of the run's key and of each area. This value has descriptors of its own.
    pub fn new(table: &Fd, key: &Fd, areas: &[&Fd]) -> io::Result<AreaFiles> {
        let key = File::open(format!("/proc/self/fd/{}", key.raw()))?;
        let areas = areas.iter().map(|area| sys::duplicate(area)).collect::<io::Result<_>>()?;
        Ok(AreaFiles { table: sys::duplicate(table)?, key, areas })
    }

    /// The table by a file description that nobody else has, so that locks by it are those of who is handed it.
    fn open_table(&self) -> io::Result<File> {
        let path = format!("/proc/self/fd/{}", self.table.as_raw_fd());
        OpenOptions::new().read(true).write(true).open(path)
    }

    fn others(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.key.as_fd()).chain(self.areas.iter().map(|area| area.as_fd()))
    }
}

/// The socket of a run; its name goes when this is dropped.
pub struct Handover {
    path: PathBuf,
    /// Until it is served.
    waiting: Option<(UnixListener, [File; 2])>,
}

impl Handover {
    /// Makes the socket in the directory of the run, which has its page. Who connects waits until it is served.
    pub fn new(dir: &Path) -> io::Result<Handover> {
        let path = dir.join(memcg::HANDOVER_FILE);
        // Not the descriptor that has the run's lock: whoever is handed that would hold the lock, too.
        let page = OpenOptions::new().read(true).write(true).open(dir.join(memcg::PAGE_FILE))?;
        let settings = File::open(dir.join(memcg::FIXED_FILE))?;
        let listener = UnixListener::bind(&path)?;
        let handover = Handover { path, waiting: Some((listener, [page, settings])) };
        fs::set_permissions(&handover.path, Permissions::from_mode(0o666))?;
        Ok(handover)
    }

    /// Hands over from now on, in a thread of its own, until the process ends; also what swap areas take, where there
    /// are some.
    pub fn serve(&mut self, areas: Option<AreaFiles>) -> io::Result<()> {
        let Some((listener, files)) = self.waiting.take() else { return Ok(()) };
        let serve = move || {
            let sees_memory = hide_addresses().is_ok();
            loop {
                let done = listener
                    .accept()
                    .and_then(|(socket, _)| hand(&socket, &files, areas.as_ref(), sees_memory));
                if done.is_err() {
                    // A stranger; or there are no descriptors left.
                    std::thread::sleep(PAUSE);
                }
            }
        };
        std::thread::Builder::new().name("zfolio-handover".into()).stack_size(STACK).spawn(serve).map(drop)
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// From now on page tables that this thread opens do not say where in the machine's memory a page is.
fn hide_addresses() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.effective.remove(CapabilitySet::SYS_ADMIN);
    Ok(set_capabilities(None, sets)?)
}

/// Sends a descendant what it may have. An error where it is none.
fn hand(
    socket: &UnixStream,
    [page, settings]: &[File; 2],
    areas: Option<&AreaFiles>,
    sees_memory: bool,
) -> io::Result<()> {
    let peer = sys::peer(socket)?;
    // Anew each time: who may have it can change.
    let device = OpenOptions::new().read(true).write(true).open("/dev/userfaultfd").ok();
    let own = if sees_memory { own_files(&peer) } else { None };
    let is_descendant = (0..TRIES).any(|_| is_descendant(peer.pid));
    if !is_descendant || !sys::is_running(&peer.process) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let areas = areas.and_then(|areas| Some((areas.open_table().ok()?, areas)));
    let what = device.as_ref().map_or(0, |_| memcg::HANDS_DEVICE)
        | own.as_ref().map_or(0, |_| memcg::HANDS_MEMORY)
        | areas.as_ref().map_or(0, |_| memcg::HANDS_AREAS);
    let files = [page, settings].into_iter().chain(&device).chain(own.iter().flatten());
    let mut all: Vec<BorrowedFd> = files.map(|file| file.as_fd()).collect();
    if let Some((table, others)) = &areas {
        all.push(table.as_fd());
        all.extend(others.others());
    }
    sys::send_descriptors(socket, what, &all)
}

/// Page tables, twice, and memory of a process that may not open them itself; the caller sees to it that it is alive
/// after this.
fn own_files(peer: &Peer) -> Option<[File; 3]> {
    let [pagemap, memory] = ["pagemap", "mem"].map(|name| format!("/proc/{}/{name}", peer.pid));
    if fs::metadata(&pagemap).ok()?.uid() == peer.uid {
        return None;
    }
    let memory = OpenOptions::new().read(true).write(true).open(memory).ok()?;
    let files = [File::open(&pagemap).ok()?, File::open(&pagemap).ok()?, memory];
    descendants::has_not_executed(peer.pid).then_some(files)
}

/// True where the ancestors of a process are the same at two looks, and this process is one of them.
fn is_descendant(pid: u32) -> bool {
    let before = ancestors(pid);
    before.is_some() && before == ancestors(pid)
}

/// The ancestors of a process up to this one; none where this one is not among them.
fn ancestors(pid: u32) -> Option<Vec<u32>> {
    let own = std::process::id();
    let mut all = vec![descendants::parent(pid)?];
    while *all.last()? != own && all.len() < MOST_ANCESTORS {
        all.push(descendants::parent(*all.last()?)?);
    }
    (*all.last()? == own).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::{Child, Command, Stdio};

    #[test]
    fn ancestors_are_those_between_a_process_and_this_one() {
        let own = std::process::id();
        let mut child = Command::new("sh")
            .args(["-c", "sleep 100 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut text = [0; 16];
        let len = child.stdout.as_mut().unwrap().read(&mut text).unwrap();
        let grandchild: u32 = std::str::from_utf8(&text[..len]).unwrap().trim().parse().unwrap();
        assert_eq!(ancestors(child.id()), Some(vec![own]));
        assert_eq!(ancestors(grandchild), Some(vec![child.id(), own]));
        for stranger in [own, std::os::unix::process::parent_id(), 1, 0, u32::MAX / 2] {
            assert_eq!(ancestors(stranger), None, "{stranger}");
        }
        let mut kill =
            Command::new("kill").args([&grandchild.to_string(), &child.id().to_string()]).spawn().unwrap();
        kill.wait().unwrap();
        child.wait().unwrap();
        assert_eq!(ancestors(child.id()), None, "it is gone");
    }

    /// Its parent ends at any moment of the looks at its ancestors, as the process that makes an engine does.
    #[test]
    fn a_descendant_whose_parent_has_just_ended_is_handed_what_it_asks_for() {
        sys::become_subreaper();
        let dir = std::env::temp_dir().join(format!("zfolio-orphans-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        for name in [memcg::PAGE_FILE, memcg::FIXED_FILE] {
            fs::write(dir.join(name), name).unwrap();
        }
        let mut handover = Handover::new(&dir).unwrap();
        handover.serve(None).unwrap();
        let script = "import os, socket, sys, time
for i in range(1000):
    end, mine = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
            os.write(mine, b'handed' if s.recv(8) else b'refused')
            os._exit(0)
        until = time.perf_counter() + i % 100 * 1e-5
        while time.perf_counter() < until: pass
        os._exit(0)
    os.close(mine); os.wait(); print(os.read(end, 8).decode()); os.close(end)";
        let command = Command::new("python3").args(["-c", script]).arg(&handover.path).output();
        let said = String::from_utf8(command.expect("python3 is needed").stdout).unwrap();
        let handed = said.lines().filter(|line| *line == "handed").count();
        drop(handover);
        fs::remove_dir_all(dir).unwrap();
        assert_eq!(handed, 1000);
    }

    /// This process has connected itself, and is no descendant of its own; its child is.
    #[test]
    fn only_a_descendant_that_lives_is_handed_anything() {
        let dir = std::env::temp_dir().join(format!("zfolio-handover-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(memcg::PAGE_FILE), "page").unwrap();
        fs::write(dir.join(memcg::FIXED_FILE), "settings").unwrap();
        let mut handover = Handover::new(&dir).unwrap();
        handover.serve(None).unwrap();
        let path = handover.path.clone();
        let mut own = UnixStream::connect(&path).unwrap();
        assert_eq!(own.read(&mut [0; 8]).unwrap(), 0, "it is sent nothing, and is not kept waiting");
        let ask = || -> Option<Child> {
            let script = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
text, fds, _, _ = socket.recv_fds(s, 8, 4)
import os; print(len(text), *[open(fd, closefd=False).read() for fd in fds[:2]])
os.write(fds[0], b'x')
try: os.write(fds[1], b'x')
except OSError as e: print('to be read' if e.errno == 9 else e)";
            Command::new("python3").args(["-c", script]).arg(&path).stdout(Stdio::piped()).spawn().ok()
        };
        let said = ask().expect("python3 is needed").wait_with_output().unwrap();
        assert_eq!(String::from_utf8(said.stdout).unwrap(), "1 page settings\nto be read\n");
        drop(handover);
        assert!(!path.exists());
        fs::remove_dir_all(dir).unwrap();
    }
    /// One process asks twice: by the table it was handed first it has a lock that the other table cannot have.
    #[test]
    fn areas_come_last_and_each_table_has_locks_of_its_own() {
        let dir = std::env::temp_dir().join(format!("zfolio-handover-areas-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(memcg::PAGE_FILE), "page").unwrap();
        fs::write(dir.join(memcg::FIXED_FILE), "settings").unwrap();
        let file = |name: &str| {
            let file = base::sys::memfd(c"handed").unwrap();
            base::sys::write(&file, name.as_bytes()).unwrap();
            file
        };
        let [table, key, first, second] = ["table", "key", "first", "second"].map(file);
        let areas = AreaFiles::new(&table, &key, &[&first, &second]).unwrap();
        let mut handover = Handover::new(&dir).unwrap();
        handover.serve(Some(areas)).unwrap();
        let script = "import fcntl, os, socket, struct, sys
def ask():
    s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
    text, fds, _, _ = socket.recv_fds(s, 8, 16)
    assert text[0] & 4, text
    return fds[-4:]
a, b = ask(), ask()
print(*[os.pread(fd, 10, 0).decode() for fd in a])
def lock(fd, kind):
    try: fcntl.fcntl(fd, 37, struct.pack('hhqqixxxx', kind, 0, 1 << 40, 1, 0)); return 'locked'
    except BlockingIOError: return 'refused'
print(lock(a[0], fcntl.F_RDLCK), lock(b[0], fcntl.F_RDLCK), lock(b[0], fcntl.F_WRLCK))
os.close(a[0])
print(lock(b[0], fcntl.F_WRLCK))
try: os.write(a[1], b'x')
except OSError as e: print('to be read' if e.errno == 9 else e)";
        let said = Command::new("python3").args(["-c", script]).arg(&handover.path).output();
        let said = said.expect("python3 is needed");
        drop(handover);
        fs::remove_dir_all(dir).unwrap();
        let expected = "table key first second\nlocked locked refused\nlocked\nto be read\n";
        assert_eq!(
            String::from_utf8(said.stdout).unwrap(),
            expected,
            "{said:?}",
            said = said.stderr.escape_ascii().to_string()
        );
    }
}
