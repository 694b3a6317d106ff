//! Shared memory of the tree, each page once: what its processes have mapped (MAP_SHARED without a file, memfd, SysV,
//! files of a tmpfs), have open without having it mapped, or have left in a tmpfs.
//!
//! ```text
//!   every look       status: RssShmem of each process, /proc/meminfo: Shmem       has something grown?
//!   where it has     /proc/PID/maps ──> objects (device, inode) ──> stat: blocks     what is there, without a walk of page tables
//!                    /proc/PID/smaps: Pss, where no object may be asked for
//!   where nobody     /proc/PID/fd ──> objects that are open and not mapped
//!   has it mapped
//! ```
//!
//! An object is asked for its size by /proc/PID/map_files (CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE), or by its path.
//! What was in an object before the run began is somebody else's. Between two looks at the objects what processes have
//! gained counts too, but never more than the machine has: ten processes that touch the same pages gain them ten times,
//! and the machine once.

use crate::descendants::Process;
use crate::smaps::{self, Mapping};
use crate::sys;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// Objects are looked at for at most one part in so many of the time.
const PART: u32 = 50;
/// And again after this, where there are some: their size may change without anybody's page tables.
const AGAIN: Duration = Duration::from_secs(1);

/// A process with less shared memory has only the library's, and the run's page.
const LEAST: u64 = 2 << 20;
/// RssShmem is read again when the shared pages of a process, files among them, have changed by so much.
const STEP: u64 = 256 << 10;
/// What the machine's shared memory has gained and nobody has mapped is looked for among open files where it is this
/// part of the limit.
const UNEXPLAINED_PART: u64 = 64;

/// What the names of memfds begin with that the engine maps into its program: they are counted with its pool.
const ENGINES: &str = "/memfd:zfolio-";

/// Who has an object: the first of the tree's processes that was found with it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Its process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

impl Holder {
    fn of(process: &Process) -> Holder {
        Holder { pid: process.pid, name: process.name.clone() }
    }
}

/// An object in memory.
struct Object {
    holder: Holder,
    /// Where it can be asked for its size, and its own path if it has one: that is there when nobody has it open any
    /// more.
    at: Vec<PathBuf>,
    /// What there is of it.
    bytes: u64,
    /// How much of that there was before the run.
    before_bytes: u64,
    /// Parts of it that page tables have, where it may not be asked.
    pss_bytes: u64,
}

impl Object {
    fn own_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.before_bytes).max(self.pss_bytes)
    }

    /// Asks for the size again; false when the object is not there any more.
    fn ask(&mut self, key: smaps::Object) -> bool {
        let there =
            self.at.iter().filter_map(|at| fs::metadata(at).ok()).find(|found| self::key(found) == key);
        let Some(found) = there else { return false };
        self.bytes = blocks(&found);
        true
    }
}

/// What is known of a process.
#[derive(Default)]
struct Seen {
    /// Its shared pages, files included, when RssShmem was read; and that.
    shared_bytes: u64,
    shmem_bytes: u64,
    /// RssShmem when objects were looked at last.
    looked_bytes: u64,
    /// What of it is its engine's, and counted with its pool.
    engine_bytes: u64,
}

impl Seen {
    fn has_some(&self) -> bool {
        self.shmem_bytes >= LEAST + self.engine_bytes
    }

    fn gained_bytes(&self) -> u64 {
        self.shmem_bytes.saturating_sub(self.looked_bytes.max(LEAST))
    }
}

/// The shared memory of a run.
pub struct Shared {
    began: SystemTime,
    max_bytes: u64,
    /// The device of memfds and of what is shared without a file.
    internal: Option<(u64, u64)>,
    objects: HashMap<smaps::Object, Object>,
    seen: HashMap<(u32, u64), Seen>,
    /// What of the objects is engines'.
    engine_bytes: u64,
    /// The machine's shared memory when mapped objects were looked at last; and, when open files were, what of it was
    /// not ours.
    machine_bytes: u64,
    others_bytes: u64,
    growth_bytes: u64,
    looked: Instant,
    next: Instant,
}

impl Shared {
    /// For a run that begins now, with this limit.
    pub fn new(max_bytes: u64) -> Shared {
        let (now, machine) = (Instant::now(), machine_bytes());
        Shared {
            began: SystemTime::now(),
            max_bytes,
            internal: sys::memfd_device(),
            objects: HashMap::new(),
            seen: HashMap::new(),
            engine_bytes: 0,
            machine_bytes: machine,
            others_bytes: machine,
            growth_bytes: 0,
            looked: now,
            next: now,
        }
    }

    /// The run has another limit, in bytes.
    pub fn set_limit(&mut self, max_bytes: u64) {
        self.max_bytes = max_bytes;
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> u64 {
        self.object_bytes() + self.growth_bytes
    }

    fn object_bytes(&self) -> u64 {
        self.objects.values().map(Object::own_bytes).sum::<u64>().saturating_sub(self.engine_bytes)
    }

    /// How much of it whom has, in bytes. What was gained since the last look at the objects is divided by how much
    /// each has gained.
    pub fn by_holder(&self, processes: &[Process]) -> HashMap<Holder, u64> {
        let gained: u64 = self.seen.values().map(Seen::gained_bytes).sum();
        let part = |bytes: u64| (bytes as u128 * self.growth_bytes as u128 / gained.max(1) as u128) as u64;
        let of =
            |process: &Process| self.seen.get(&(process.pid, process.start)).map_or(0, Seen::gained_bytes);
        let mut holders: HashMap<Holder, u64> =
            processes.iter().map(|process| (Holder::of(process), part(of(process)))).collect();
        for object in self.objects.values() {
            *holders.entry(object.holder.clone()).or_default() += object.own_bytes();
        }
        for process in processes {
            let Some(seen) = self.seen.get(&(process.pid, process.start)).filter(|seen| seen.has_some())
            else {
                continue;
            };
            let bytes = holders.entry(Holder::of(process)).or_default();
            *bytes = bytes.saturating_sub(seen.engine_bytes);
        }
        holders
    }

    /// Looks at the processes of the tree, parents before their children. `engines`: what of their shared memory is
    /// their engines', by the numbers that they see themselves.
    pub fn look(&mut self, processes: &[Process], engines: &HashMap<u32, u64>, now: Instant) {
        let is_changed = self.notice(processes, engines);
        let machine = machine_bytes();
        let gained: u64 = self.seen.values().map(Seen::gained_bytes).sum();
        self.growth_bytes = gained.min(machine.saturating_sub(self.machine_bytes));
        let unexplained = machine.saturating_sub(self.bytes()).saturating_sub(self.others_bytes);
        let is_unexplained = unexplained >= self.least_unexplained();
        let is_due = is_changed || is_unexplained || !self.objects.is_empty() && now - self.looked >= AGAIN;
        if is_due && now >= self.next {
            let began = sys::cpu_time();
            self.find_all(processes, machine);
            (self.looked, self.next) = (now, now + (sys::cpu_time() - began) * PART);
        }
    }

    fn least_unexplained(&self) -> u64 {
        (self.max_bytes / UNEXPLAINED_PART).max(LEAST)
    }

    /// Looks at the objects. The machine had so much shared memory before.
    fn find_all(&mut self, processes: &[Process], machine: u64) {
        let before = self.bytes();
        self.find(processes);
        let others = |shared: &Shared| machine.saturating_sub(shared.object_bytes());
        if others(self).saturating_sub(self.others_bytes) >= self.least_unexplained() {
            self.find_open(processes);
            self.others_bytes = others(self);
        }
        // What others have freed they may take again.
        self.others_bytes = self.others_bytes.min(others(self));
        self.seen.values_mut().for_each(|seen| seen.looked_bytes = seen.shmem_bytes);
        // Of what has come meanwhile some was found, and the rest has been gained since.
        let after = machine_bytes();
        let during = after.saturating_sub(machine);
        self.growth_bytes = (before + during).saturating_sub(self.object_bytes()).min(during);
        self.machine_bytes = after - self.growth_bytes;
    }

    /// Reads RssShmem where it may have changed. True where it has, for somebody.
    fn notice(&mut self, processes: &[Process], engines: &HashMap<u32, u64>) -> bool {
        let mut before = std::mem::take(&mut self.seen);
        let mut is_changed = false;
        for process in processes {
            let key = (process.pid, process.start);
            let mut seen = before.remove(&key).unwrap_or_default();
            if process.shared_bytes.abs_diff(seen.shared_bytes) >= STEP {
                seen.shared_bytes = process.shared_bytes;
                seen.shmem_bytes = if process.shared_bytes < LEAST { 0 } else { shmem_bytes(process.pid) };
            }
            seen.engine_bytes = engines.get(&process.own_pid).copied().unwrap_or(0);
            is_changed |= seen.shmem_bytes.max(LEAST).abs_diff(seen.looked_bytes.max(LEAST)) >= STEP;
            self.seen.insert(key, seen);
        }
        is_changed || before.values().any(|gone| gone.looked_bytes >= LEAST)
    }

    /// Finds what is mapped, and asks about all that is known.
    fn find(&mut self, processes: &[Process]) {
        let (mut found, mut unknown) = (HashSet::new(), HashSet::new());
        self.engine_bytes = 0;
        self.objects.values_mut().for_each(|object| object.pss_bytes = 0);
        for process in processes {
            let seen = &self.seen[&(process.pid, process.start)];
            if seen.has_some() {
                self.engine_bytes += seen.engine_bytes;
                self.find_mapped(process, &mut found, &mut unknown);
            }
        }
        self.objects.retain(|key, object| object.ask(*key) || found.contains(key) || unknown.contains(key));
    }

    /// Finds what a process has mapped: objects that can be asked, and those that cannot.
    fn find_mapped(
        &mut self,
        process: &Process,
        found: &mut HashSet<smaps::Object>,
        unknown: &mut HashSet<smaps::Object>,
    ) {
        let pid = process.pid;
        let devices = self.devices(pid);
        let is_shared = |mapping: &Mapping| {
            devices.contains(&smaps::object(mapping).0) && !mapping.name().starts_with(ENGINES.as_bytes())
        };
        let mut is_to_walk = false;
        // Who has ended has nothing mapped.
        let _ = smaps::maps(pid, |mapping| {
            let key = smaps::object(mapping);
            if !is_shared(mapping) || found.contains(&key) {
                return;
            }
            if unknown.contains(&key) {
                is_to_walk = true;
                return;
            }
            let Range { start, end } = mapping.range;
            let mut at = vec![PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}"))];
            at.extend(
                mapping.name().starts_with(b"/").then(|| PathBuf::from(OsStr::from_bytes(mapping.name()))),
            );
            if self.meet(key, at, process) {
                found.insert(key);
            } else {
                is_to_walk = true;
                unknown.insert(key);
            }
        });
        if !is_to_walk {
            return;
        }
        let _ = smaps::smaps(pid, |mapping| {
            let key = smaps::object(mapping);
            if unknown.contains(&key) {
                let object = self.objects.entry(key).or_insert_with(|| Object::of(process));
                object.pss_bytes += mapping.pss_bytes as u64;
            }
        });
    }

    /// Finds what is open and not mapped.
    fn find_open(&mut self, processes: &[Process]) {
        for process in processes {
            let entries = fs::read_dir(format!("/proc/{}/fd", process.pid)).into_iter().flatten().flatten();
            let mut devices = None;
            for entry in entries {
                let Ok(target) = fs::read_link(entry.path()) else { continue };
                let name = target.to_string_lossy();
                if !name.starts_with('/') || name.starts_with(ENGINES) {
                    continue;
                }
                let Ok(metadata) = fs::metadata(entry.path()) else { continue };
                let devices = devices.get_or_insert_with(|| self.devices(process.pid));
                let key = key(&metadata);
                if metadata.is_file() && devices.contains(&key.0) {
                    self.meet(key, vec![entry.path(), target], process);
                }
            }
        }
    }

    /// Takes note of an object that can be asked for at one of these paths; false where it cannot.
    fn meet(&mut self, key: smaps::Object, at: Vec<PathBuf>, process: &Process) -> bool {
        let mut met = Object { at, ..Object::of(process) };
        if !met.ask(key) {
            return false;
        }
        match self.objects.get_mut(&key) {
            Some(known) => (known.at, known.bytes) = (met.at, met.bytes),
            None => {
                let made = met.at.iter().find_map(|at| fs::metadata(at).ok()?.created().ok());
                if made.is_some_and(|made| made < self.began) {
                    met.before_bytes = met.bytes;
                }
                self.objects.insert(key, met);
            }
        }
        true
    }

    /// The devices whose files are in memory, as a process sees them.
    fn devices(&self, pid: u32) -> HashSet<(u64, u64)> {
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        mounts.lines().filter_map(tmpfs_device).chain(self.internal).collect()
    }
}

impl Object {
    fn of(process: &Process) -> Object {
        Object { holder: Holder::of(process), at: Vec::new(), bytes: 0, before_bytes: 0, pss_bytes: 0 }
    }
}

/// The device of a line of mountinfo, where it is a tmpfs: `36 35 0:25 / /dev/shm rw shared:4 - tmpfs tmpfs rw`.
fn tmpfs_device(line: &str) -> Option<(u64, u64)> {
    let (mount, kind) = line.split_once(" - ")?;
    let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
    kind.starts_with("tmpfs ").then_some((major.parse().ok()?, minor.parse().ok()?))
}

fn key(metadata: &Metadata) -> smaps::Object {
    let device = metadata.dev();
    ((libc::major(device).into(), libc::minor(device).into()), metadata.ino())
}

fn blocks(metadata: &Metadata) -> u64 {
    metadata.blocks() * 512
}

fn shmem_bytes(pid: u32) -> u64 {
    kib(&format!("/proc/{pid}/status"), "RssShmem:")
}

/// Shared memory of the whole machine.
fn machine_bytes() -> u64 {
    kib("/proc/meminfo", "Shmem:")
}

/// A line of a file of /proc, in bytes.
fn kib(path: &str, name: &str) -> u64 {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().strip_suffix(" kB").and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}
