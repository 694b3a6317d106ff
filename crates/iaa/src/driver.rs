//! The queues of a process: opened, given out to CPUs, and closed as they go.

use crate::aecs::CompressState;
use crate::cpu::Features;
use crate::order;
use crate::portal::{self, Portal};
use crate::queue::{Queue, Spec};
use crate::queues::{Member, Policy, QUEUES_MAX, Table};
use crate::request::Operation;
use crate::stats::{CpuCounters, QueueStats, ReasonCounters, Stats};
use crate::sysfs::{self, Device, WorkQueue};
use crate::topology::Topology;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use base::{Errno, Mutex};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// By which codes the device compresses. Ratio of 4 KiB pages, as measured with Intel's library in software: fixed 2.8,
/// canned 3.1, dynamic 3.8.
#[derive(Clone, Debug, Default)]
pub enum Mode {
    /// The fixed ones: one pass.
    #[default]
    Fixed,
    /// Made for each unit: two passes, the first of which counts.
    Dynamic,
    /// Made beforehand ([`CompressState::canned`]): one pass.
    Canned(Box<CompressState>),
}

/// Settings of a driver.
#[derive(Clone, Debug)]
pub struct Config {
    /// By which codes the device compresses.
    pub mode: Mode,
    /// Have the device decompress what it compressed and compare that with what it was given: twice the work, for
    /// devices that are not trusted.
    pub verify_compress: bool,
    /// How long a descriptor may take before the CPU does its work, in nanoseconds. A full queue of 128 units of 2 MiB
    /// takes a device some 30 ms.
    pub timeout_ns: u64,
    /// How often queues that are full are asked again before the CPU does the work, while nothing else is under way.
    pub retries_max: u8,
    /// After so many time-outs in a row a queue is closed.
    pub strikes_max: u32,
    /// When so many descriptors at a time were not done in time, and have not been done since, their queue is closed,
    /// whatever else it does: each of them keeps a lane of a context's, of which there are not many.
    pub lost_max: u32,
    /// Which queue serves which CPU.
    pub policy: Policy,
    /// How many queues are opened, at most: the first one of each device, then the second ones; where some are for
    /// compressing alone, those and the others in turn. Each is a file descriptor.
    pub queues_max: usize,
}

impl Config {
    /// What is usual.
    pub const DEFAULT: Config = Config {
        mode: Mode::Fixed,
        verify_compress: false,
        timeout_ns: 100_000_000,
        retries_max: 32,
        strikes_max: 3,
        lost_max: 4,
        policy: Policy::DEFAULT,
        queues_max: QUEUES_MAX,
    };
}

impl Default for Config {
    fn default() -> Self {
        Config::DEFAULT
    }
}

/// What only changes when queues come and go.
struct Book {
    topology: Topology,
    /// Open queues, by device and number.
    members: Vec<Member>,
    /// What closed queues had done: all together, and each.
    closed: QueueStats,
    gone: Vec<(u32, u32, QueueStats)>,
    /// Usable queues that could not be opened: somebody else's, or not to be opened yet.
    waiting: Vec<Wanted>,
    /// Queues that stopped answering, and have not been disabled since.
    barred: Vec<(u32, u32)>,
    /// The states of devices, queues and CPUs when all of it was read last; `None` if it is to be read again.
    seen: Option<u64>,
}

impl Book {
    /// Sets which queue of a device is the first for compressing alone.
    fn know(&mut self, device: u32, first_comp: Option<u32>) {
        let members = self.members.iter_mut().filter(|member| member.device == device);
        members.for_each(|member| member.first_comp = first_comp);
    }
}

/// A queue that is to be opened.
struct Wanted {
    spec: Spec,
    /// As [`Member`]'s.
    first_comp: Option<u32>,
}

/// Opens a queue whose file is at a path that ends with NUL.
pub type Opener = Box<dyn Fn(&[u8], &Spec) -> Result<Box<dyn Portal>, Errno> + Send + Sync>;

/// Where queues come from.
struct Source {
    root: String,
    open: Opener,
}

/// Why a queue is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The caller, or sysfs, says so.
    Removed,
    /// It said that it takes nothing any more. It may have come back since.
    Gone,
    /// It does not answer. It is not opened again until it has been disabled.
    Silent,
}

/// How often it is looked whether queues have come.
const LOOK_NS: u64 = 1_000_000_000;

impl Source {
    /// What changes when there is something else to be read.
    fn states(&self) -> u64 {
        let mut states = sysfs::Sum(sysfs::states(&self.root));
        states.add(&Topology::online(&self.root));
        states.0
    }
}

/// All queues of a process. Shared by its threads; each has a [`Context`](crate::Context). A child of fork must not use
/// it: the queues work in the address space that opened them, and the kernel does not map their portals into another
/// one.
pub struct Driver {
    pub(crate) config: Config,
    pub(crate) features: Features,
    pub(crate) reasons: ReasonCounters,
    queues: Box<[Queue]>,
    /// What compressions in one pass start from. After the queues, which may read it until they are closed.
    pub(crate) state: Box<CompressState>,
    table: Table,
    /// A queue was closed of which the portal may still be there.
    unreaped: AtomicBool,
    /// Held while queues are opened and closed, never while work is submitted.
    book: Mutex<Book>,
    source: Option<Source>,
    looked_ns: AtomicU64,
}

impl Driver {
    /// A driver without queues.
    pub fn new(config: Config, topology: Topology) -> Driver {
        let state = match &config.mode {
            Mode::Canned(state) => state.clone(),
            _ => Box::new(CompressState::FIXED),
        };
        Driver {
            config,
            features: Features::of_this_cpu(),
            state,
            reasons: ReasonCounters::default(),
            queues: (0..QUEUES_MAX).map(|_| Queue::EMPTY()).collect(),
            table: Table::new(topology.cpus.len()),
            unreaped: AtomicBool::new(false),
            book: Mutex::new(Book {
                topology,
                members: Vec::with_capacity(QUEUES_MAX),
                closed: QueueStats::default(),
                gone: Vec::with_capacity(QUEUES_MAX),
                waiting: Vec::new(),
                barred: Vec::with_capacity(QUEUES_MAX),
                seen: None,
            }),
            source: None,
            looked_ns: AtomicU64::new(0),
        }
    }

    /// A driver with all queues that this process may use. Without any it is a driver all the same: all work is done in
    /// software.
    ///
    /// # Errors
    /// What opening the list of devices said.
    pub fn open(root: &str, config: Config) -> Result<Driver, Errno> {
        let features = Features::of_this_cpu();
        Driver::open_by(
            root,
            config,
            Box::new(move |path, spec| portal::open(path, spec.dedicated, features)),
        )
    }

    /// The same where a queue's file is opened by `open`.
    ///
    /// # Errors
    /// As for [`Driver::open`].
    pub fn open_by(root: &str, config: Config, open: Opener) -> Result<Driver, Errno> {
        let has_devices = !sysfs::discover(root)?.is_empty();
        // A file for each CPU: not to be read where nobody wants to know.
        let topology = if has_devices { Topology::read(root) } else { Topology::default() };
        let source = Some(Source { root: root.into(), open });
        let driver = Driver { source, ..Driver::new(config, topology) };
        driver.refresh()?;
        Ok(driver)
    }

    /// Looks, at most once a second, whether anything has changed in sysfs: then as [`refresh`](Driver::refresh),
    /// without waiting for any device; and tries again to open what could not be opened. For between batches. False if
    /// it is not time yet.
    pub fn look(&self, now_ns: u64) -> bool {
        let (Some(source), looked_ns) = (&self.source, self.looked_ns.load(Relaxed)) else { return false };
        if now_ns.saturating_sub(looked_ns) < LOOK_NS
            || self.looked_ns.compare_exchange(looked_ns, now_ns, Relaxed, Relaxed).is_err()
        {
            return false;
        }
        let states = source.states();
        if self.book.lock().seen != Some(states) {
            // Nothing is changed where that fails.
            let _ = self.reread();
        } else {
            let waiting = core::mem::take(&mut self.book.lock().waiting);
            waiting.into_iter().for_each(|wanted| self.open_queue(source, wanted));
        }
        true
    }

    /// Reads sysfs again: opens queues that have come, closes those that have gone, and gives them out to the CPUs that
    /// there are now. Returns how many are open.
    ///
    /// # Errors
    /// What opening the list of devices said; nothing is changed then.
    pub fn refresh(&self) -> Result<usize, Errno> {
        let count = self.reread();
        self.reap();
        count
    }

    /// The same, and what is closed is left to be [reaped](Driver::reap): it waits for no device.
    fn reread(&self) -> Result<usize, Errno> {
        let Some(source) = &self.source else { return Ok(self.queue_count()) };
        // Before the rest: what changes meanwhile is found the next time.
        let states = source.states();
        let devices = sysfs::discover(&source.root)?;
        let usable = |device: u32, id: u32| {
            let device = devices.iter().find(|other| other.id == device)?;
            let queue = device.queues.iter().find(|queue| queue.id == id)?;
            queue.check_usable(device).ok()
        };
        for member in self.members().into_iter().filter(|m| usable(m.device, m.id).is_none()) {
            self.close(Why::Removed, |other| (other.device, other.id) == (member.device, member.id));
        }
        let has_changed = {
            let mut book = self.book.lock();
            book.barred.retain(|&(device, id)| usable(device, id).is_some());
            book.waiting.clear();
            book.seen.replace(states) != Some(states)
        };
        if has_changed && !devices.is_empty() {
            self.follow(Topology::read(&source.root), &devices);
        }
        let mut queues: Vec<(usize, &Device, &WorkQueue, Option<u32>)> = Vec::new();
        for device in &devices {
            let usable = || device.queues.iter().filter(|queue| queue.check_usable(device).is_ok());
            let (turns, first) = self.config.policy.turns(usable().count());
            let first = first.and_then(|first| usable().nth(first)).map(|queue| queue.id);
            self.book.lock().know(device.id, first);
            queues.extend(turns.zip(usable()).map(|(turn, queue)| (turn, device, queue, first)));
        }
        self.rebalance(&self.book.lock());
        order::sort_by_key(&mut queues, |&(turn, device, ..)| (turn, device.id));
        for (_, device, queue, first_comp) in queues {
            let is_barred = self.book.lock().barred.contains(&(device.id, queue.id));
            if !is_barred {
                self.open_queue(source, Wanted { spec: self.spec(device, queue), first_comp });
            }
        }
        Ok(self.queue_count())
    }

    /// Opens a queue, unless it is open or there are enough. One that may not be opened, or is taken, is somebody
    /// else's (`setup` says so), and tried again.
    fn open_queue(&self, source: &Source, wanted: Wanted) {
        let (spec, members) = (&wanted.spec, self.members());
        let is_known = members.iter().any(|m| (m.device, m.id) == (spec.device, spec.id));
        if is_known {
            return;
        }
        if members.len() < self.config.queues_max
            && let Ok(portal) = (source.open)(&sysfs::queue_path(&source.root, spec.device, spec.id), spec)
        {
            self.enter(wanted, portal);
            return;
        }
        self.book.lock().waiting.push(wanted);
    }

    /// Takes in which CPUs there are now, and at which of them the queues are: before these are given out anew.
    fn follow(&self, topology: Topology, devices: &[Device]) {
        let mut book = self.book.lock();
        let Book { topology: own, members, .. } = &mut *book;
        *own = topology;
        for member in members.iter_mut() {
            // Packages are numbered anew.
            let device = devices.iter().find(|device| device.id == member.device);
            member.package = device.and_then(|device| own.package_of_node(device.node));
        }
    }

    fn spec(&self, device: &Device, queue: &WorkQueue) -> Spec {
        Spec {
            device: device.id,
            id: queue.id,
            package: self.book.lock().topology.package_of_node(device.node),
            dedicated: queue.dedicated,
            size: queue.size,
            transfer_max_bytes: usize::try_from(queue.transfer_max_bytes).unwrap_or(usize::MAX),
            block_on_fault: queue.block_on_fault,
        }
    }

    /// Takes a queue into use. False if it is in use already, or there are [`QUEUES_MAX`].
    pub fn add(&self, spec: Spec, portal: Box<dyn Portal>) -> bool {
        self.reap();
        self.enter(Wanted { spec, first_comp: None }, portal)
    }

    fn enter(&self, Wanted { spec, first_comp }: Wanted, portal: Box<dyn Portal>) -> bool {
        let mut book = self.book.lock();
        let is_known = book.members.iter().any(|m| (m.device, m.id) == (spec.device, spec.id));
        let Some(place) = self.queues.iter().position(Queue::is_free).filter(|_| !is_known) else {
            return false;
        };
        // SAFETY: free, and the lock is held.
        unsafe { self.queues[place].open(spec, portal) };
        book.members.push(Member {
            device: spec.device,
            id: spec.id,
            first_comp,
            package: spec.package,
            place: place as u8,
        });
        order::sort_by_key(&mut book.members, |member| (member.device, member.id));
        self.rebalance(&book);
        true
    }

    /// Takes a queue out of use. What it has under way is done in software. False if it was not in use.
    pub fn remove(&self, device: u32, id: u32) -> bool {
        let is_closed = self.close(Why::Removed, |member| (member.device, member.id) == (device, id));
        self.reap();
        is_closed
    }

    /// Lets go of the portals of queues that were closed while work was submitted. The kernel may let that wait until
    /// the device has done what it was given, or has been reset: for who has nothing urgent to do. Until then the lanes
    /// that those queues have stay theirs.
    pub fn reap(&self) {
        if self.unreaped.swap(false, AcqRel) && self.queues.iter().any(|queue| !queue.reap()) {
            // Somebody is still on his way out.
            self.unreaped.store(true, Release);
        }
    }

    /// Closes the queue at a place, if it still is the one that the caller knows. Its portal stays until somebody
    /// [reaps](Driver::reap).
    pub(crate) fn retire(&self, place: usize, generation: u32) {
        self.retire_for(Why::Gone, place, generation);
    }

    fn retire_for(&self, why: Why, place: usize, generation: u32) {
        self.close(why, |member| member.place as usize == place && self.queues[place].is_open(generation));
    }

    /// A descriptor of the queue at a place was not done in time. Too many, in a row or in all, and it is closed.
    pub(crate) fn late(&self, place: usize, generation: u32) {
        let queue = &self.queues[place];
        if !queue.is_open(generation) {
            return;
        }
        queue.counters.timeouts.fetch_add(1, Relaxed);
        let (in_a_row, in_all) = queue.strike();
        if in_a_row >= self.config.strikes_max || in_all >= self.config.lost_max {
            self.retire_for(Why::Silent, place, generation);
        }
    }

    fn close(&self, why: Why, which: impl Fn(&Member) -> bool) -> bool {
        let mut book = self.book.lock();
        let Some(at) = book.members.iter().position(which) else { return false };
        let member = book.members.remove(at);
        match why {
            Why::Removed => {}
            Why::Gone => book.seen = None,
            // Never more than there are places: no memory is taken here.
            Why::Silent if book.barred.len() < QUEUES_MAX => book.barred.push((member.device, member.id)),
            Why::Silent => {}
        }
        self.rebalance(&book);
        let queue = &self.queues[member.place as usize];
        // What comes in from now on, from who is still inside, is lost to the sum: a few at most.
        let counts = queue.counters.take();
        book.closed.add(&counts);
        let name = (member.device, member.id);
        match book.gone.iter_mut().find(|(device, id, _)| (*device, *id) == name) {
            Some((.., sum)) => sum.add(&counts),
            None => book.gone.push((name.0, name.1, counts)),
        }
        drop(book);
        let is_closed = queue.close();
        self.unreaped.store(true, Release);
        is_closed
    }

    fn rebalance(&self, book: &Book) {
        self.table.rebalance(&book.members, &book.topology, self.config.policy);
    }

    fn members(&self) -> Vec<Member> {
        self.book.lock().members.clone()
    }

    /// The queue whose turn it is.
    pub(crate) fn next(&self, cpu: usize, operation: Operation) -> Option<usize> {
        self.table.next(cpu, operation)
    }

    /// The queue at a place.
    pub(crate) fn queue(&self, place: usize) -> &Queue {
        &self.queues[place]
    }

    pub(crate) fn cpu_counters(&self, cpu: usize) -> &CpuCounters {
        self.table.counters(cpu)
    }

    /// How many queues are open.
    pub fn queue_count(&self) -> usize {
        self.book.lock().members.len()
    }

    /// All counters.
    pub fn stats(&self) -> Stats {
        let book = self.book.lock();
        let read = |member: &Member| self.queues[member.place as usize].counters.read();
        Stats {
            queues: book.members.iter().map(|m| (m.device, m.id, read(m))).collect(),
            closed: book.closed,
            gone: book.gone.clone(),
            cpus: self
                .table
                .all_counters()
                .map(|(cpu, counters)| (cpu, counters.read()))
                .filter(|(_, stats)| *stats != Default::default())
                .collect(),
            reasons: self.reasons.read(),
        }
    }
}
