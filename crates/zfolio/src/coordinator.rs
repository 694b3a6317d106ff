//! The coordinator: divides the limit of the run among its processes, tick by tick, by what they need
//! (vmscan/share.rs).
//!
//! ```text
//!   shared page: footprints, refaults, waits ──┐
//!                                              ├──> vmscan::share::divide ──> shares, pot ──> shared page
//!   /proc: who is there, what is not managed ──┘
//! ```
//!
//! Between two ticks engines take from the pot by themselves, so that a tick may come late without harm: nobody gets
//! more than there is, only what one process has given up reaches the others later. What is counted with relatives, and
//! what the dead leave, is in excess.rs.

mod excess;
mod findings;

use crate::cpus;
use crate::descendants::{self, Process, Tree};
use crate::families::{self, Families, Kin};
use crate::file_room::FileRoom;
use crate::growth::Growth;
use crate::shared::Shared;
use crate::sys;
use crate::told::{Group, Told};
use crate::turns::Turns;
use crate::unevictable::Unevictable;
use crate::unmanaged::{Register, Unmanaged};
use memcg::{Memcg, SLOTS, Slot, State};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};
use vmscan::share::{Member, Past, TOO_LITTLE, URGENT_MS, divide};
use vmscan::watermark::Watermarks;

/// How often the limit is divided while little of it is in the pot, and else.
const PRESSED: Duration = Duration::from_millis(10);
const RELAXED: Duration = Duration::from_millis(100);

/// How often it is looked which CPUs there are.
const CPUS: Duration = Duration::from_secs(1);

/// A thread that waits for room for longer shows that its family should store what it shares.
const PRESSED_MS: u64 = 10;

/// What goes out shrinks if it comes to less than so much of what it was.
const SHRINKS: [u64; 2] = [3, 4];

/// So much of the limit is left to managed processes, one part of it, however much nobody can take out: the limit is
/// passed then, and they are not to stand still for it.
const LEFT: u64 = 10;

/// What is kept for what nobody counts: one part in so many of the limit.
pub const RESERVE: u64 = 256;

/// What is remembered of a slot.
#[derive(Clone, Copy, Default)]
struct Known {
    pid: u32,
    near: u64,
    distance: u64,
    misses: u64,
    past: Past,
    /// Which of all walks of page tables its last one was; 0 before the first.
    walked: u64,
    /// So much less of it is counted with its relatives than it knows, in bytes (excess.rs).
    recounted: u64,
}

/// Who divides.
pub struct Coordinator {
    memcg: &'static Memcg,
    /// The directory of the run.
    dir: PathBuf,
    /// The limit at the last tick, in bytes.
    max_bytes: u64,
    /// When it is looked again which CPUs there are.
    cpus_due: Instant,
    known: Vec<Known>,
    tree: Tree,
    families: Families,
    turns: Turns,
    /// Where the run is in a control group that has a limit.
    file_room: Option<FileRoom>,
    divided: Instant,
    next: Instant,
    unmanaged: Register,
    shared: Shared,
    shared_peak_bytes: u64,
    unevictable: Unevictable,
    told: Told,
    /// What is due to be said.
    lines: Vec<String>,
    /// The most that processes were seen with whose engines could not begin, by their numbers, in bytes.
    refused_peaks: HashMap<u32, u64>,
    /// Who had no slot at the last look, and what each held, in bytes; and this process with the files of the run.
    strangers: Vec<(u32, u64)>,
    /// Page tables of related processes are not walked before; and how often they were.
    walk: Instant,
    walks: u64,
    /// Until then the family whose turn it is waits for one that is starting.
    postponed: Option<Instant>,
    /// Who was there at the last tick; and who has ended since, until the engine is gone, and it is known what is left
    /// to relatives.
    present: Vec<Tenant>,
    departed: Vec<Tenant>,
    /// Until then those that hold more than they know wait for these.
    waits: Option<(Instant, Vec<Publisher>)>,
    /// Who has grown past the hooks, and gets an engine from outside.
    pub growth: Growth,
}

/// A process that is to publish that it holds less: its slot and number, and how often it had published.
type Publisher = (usize, u32, u64);

/// Who has a slot, as it was last seen.
#[derive(Clone, Copy)]
struct Tenant {
    index: usize,
    pid: u32,
    engine: u32,
    /// What it had to itself, and its part of what it shared, in bytes.
    bytes: u64,
    has_relatives: bool,
}

/// What is known at the end of a run.
pub struct Ended {
    /// How many processes stayed small.
    pub small: u64,
    /// Who else was not managed.
    pub unmanaged: Vec<Unmanaged>,
    /// The most of the limit that was left to file pages, in bytes.
    pub file_room_peak_bytes: u64,
    /// The most shared memory, in bytes.
    pub shared_peak_bytes: u64,
    /// What could not go out and was told.
    pub unevictable: Vec<Group>,
    /// Programs that size themselves by the memory that they see.
    pub askers: Vec<&'static str>,
    /// The most that processes were seen with whose engines could not begin, by their numbers, in bytes.
    pub refused_peaks: HashMap<u32, u64>,
}

impl Coordinator {
    /// Makes the run known to its engines, with all of the limit in the pot. `library` is the path of libzfolio.so.
    pub fn new(memcg: &'static Memcg, library: PathBuf, file_room: Option<FileRoom>) -> Coordinator {
        let (own, now) = (std::process::id(), Instant::now());
        let division = &memcg.division;
        division.start.store(descendants::start(own).unwrap_or(0), Relaxed);
        division.pid.store(own.into(), Release);
        let max_bytes = memcg.max_bytes.load(Relaxed);
        cpus::begin(division);
        let mut coordinator = Coordinator {
            memcg,
            dir: library.parent().map(PathBuf::from).unwrap_or_default(),
            max_bytes,
            cpus_due: now,
            known: vec![Known::default(); SLOTS],
            tree: Tree::new(own),
            families: Families::default(),
            turns: Turns::new(memcg),
            file_room,
            divided: now,
            next: now,
            growth: Growth::new(max_bytes, library.clone()),
            unmanaged: Register::new(library),
            shared: Shared::new(max_bytes),
            shared_peak_bytes: 0,
            unevictable: Unevictable::default(),
            told: Told::new(max_bytes),
            lines: Vec::new(),
            refused_peaks: HashMap::new(),
            strangers: Vec::new(),
            walk: now,
            walks: 0,
            postponed: None,
            present: Vec::new(),
            departed: Vec::new(),
            waits: None,
        };
        coordinator.tick(&HashMap::new());
        coordinator
    }

    /// How long it is until the next tick.
    pub fn pause(&self) -> Duration {
        self.next.min(self.growth.due()).saturating_duration_since(Instant::now())
    }

    /// Divides, if it is time to. The engines of `refused` have said themselves why they do not manage them; who has
    /// ended has no slot any more.
    pub fn tick(&mut self, refused: &HashMap<u32, String>) {
        let now = Instant::now();
        if now >= self.growth.due() {
            let (room, managed) = (self.memcg.division.pot_bytes(), self.managed());
            self.growth
                .tick(now, &self.tree, room, |pid| managed.contains(&pid) || refused.contains_key(&pid));
        }
        if now < self.next {
            return;
        }
        self.follow_limit();
        if now >= self.cpus_due {
            self.cpus_due = now + CPUS;
            cpus::publish(&self.memcg.division);
        }
        self.memcg.division.swaps.store(sys::is_swapping().into(), Relaxed);
        if self.tree.is_due(now) {
            // Who ends while the tree is looked at is in it, and has given its slot back.
            let managed = self.managed();
            self.tree.look(now);
            self.growth.note(now, &self.tree, |pid| managed.contains(&pid) || refused.contains_key(&pid));
            let board = |(_, slot): (usize, &Slot)| {
                (slot.pid.load(Relaxed), slot.share.board_bytes.load(Relaxed).min(BOARD_MOST))
            };
            self.shared.look(&self.tree.processes, &self.taken().map(board).collect(), now);
            self.count_unmanaged(managed, refused, now);
            self.end_stopped();
        }
        self.sum_strangers();
        self.note_departed();
        self.learn_excess(now, &mut descendants::shared_bytes);
        let files = self.room_for_files(now);
        let usable = self.usable().saturating_sub(files);
        self.divide(usable, now);
        self.next = now + if self.memcg.is_short() { PRESSED } else { RELAXED };
    }

    /// Tells those who go by the limit where it was changed.
    fn follow_limit(&mut self) {
        let max_bytes = self.memcg.max_bytes.load(Relaxed);
        if std::mem::replace(&mut self.max_bytes, max_bytes) == max_bytes {
            return;
        }
        self.shared.set_limit(max_bytes);
        self.told.set_limit(max_bytes);
        self.growth.set_limit(max_bytes);
        self.file_room.iter_mut().for_each(|room| room.set_limit(max_bytes));
    }

    /// Says so while this process and CMD are stopped.
    pub fn stopped(&self, is: bool) {
        self.memcg.division.stopped.store(is as u32, Release);
    }

    /// Leaves each process its share for good.
    pub fn end(mut self, refused: &HashMap<u32, String>) -> Ended {
        self.next = Instant::now();
        self.tick(refused);
        self.memcg.closed.store(1, SeqCst);
        let (small, unmanaged) = self.unmanaged.finish();
        let file_room_peak_bytes = self.file_room.map_or(0, |room| room.peak_bytes());
        let (unevictable, askers) = (self.told.finish(), self.unevictable.askers());
        let (shared_peak_bytes, refused_peaks) = (self.shared_peak_bytes, self.refused_peaks);
        Ended {
            small,
            unmanaged,
            file_room_peak_bytes,
            shared_peak_bytes,
            unevictable,
            refused_peaks,
            askers,
        }
    }

    /// Slots that are somebody's, with their numbers.
    fn taken(&self) -> impl Iterator<Item = (usize, &'static Slot)> + use<> {
        let is_taken = |slot: &Slot| !matches!(slot.state(), State::Free | State::Unmanaged | State::Ended);
        self.memcg.used().iter().enumerate().filter(move |(_, slot)| is_taken(slot))
    }

    /// How much of the limit is left to files, in bytes.
    fn room_for_files(&mut self, now: Instant) -> u64 {
        let can_give = self.file_room.is_some() && self.can_give();
        self.file_room.as_mut().map_or(0, |room| room.look(now, can_give))
    }

    /// True where files can be given some of the programs' memory: nobody waits for more than there is, and what goes
    /// out shrinks.
    fn can_give(&self) -> bool {
        let (mut stored, mut pool) = (0, 0);
        for (_, slot) in self.taken() {
            if slot.share.waiting_ms.load(Relaxed) >= URGENT_MS {
                return false;
            }
            stored += slot.stored_bytes.load(Relaxed).min(MOST);
            pool += slot.pool_bytes.load(Relaxed).min(MOST);
        }
        stored < TOO_LITTLE || pool < stored / SHRINKS[1] * SHRINKS[0]
    }

    /// What there is for managed processes, the living.
    fn usable(&self) -> u64 {
        let max = self.memcg.max_bytes.load(Relaxed);
        let departed = self.departed.iter().map(|tenant| tenant.bytes).sum::<u64>();
        let apart = self.memcg.division.unmanaged_bytes.load(Relaxed) + self.log_bytes();
        max.saturating_sub(apart + departed + max / RESERVE).max(max / LEFT)
    }

    /// What families have stored in common, which is in no process's footprint.
    fn log_bytes(&self) -> u64 {
        families::log_bytes(self.taken().map(|(_, slot)| slot)).min(self.memcg.max_bytes.load(Relaxed))
    }

    /// One division.
    fn divide(&mut self, usable: u64, now: Instant) {
        let ms = (now - self.divided).as_millis() as u64;
        self.divided = now;
        let division = &self.memcg.division;
        // The coordinator lives, whatever an engine thought.
        division.orphaned.store(0, SeqCst);
        division.begin();
        let slots: Vec<(usize, &'static Slot)> = self.taken().collect();
        let mut members: Vec<Member> = slots.iter().map(|&(index, slot)| self.member(index, slot)).collect();
        let held: Vec<u64> = members.iter().map(|member| member.share).collect();
        let kin = |(&(index, slot), member): (&(usize, &'static Slot), &Member)| Kin {
            index,
            slot,
            is_pressed: member.near > 0 || member.waiting_ms > PRESSED_MS,
        };
        self.families.ask(&slots.iter().zip(&members).map(kin).collect::<Vec<_>>(), now);
        let pot = divide(usable, ms, &mut members);
        for ((&(index, slot), member), held) in slots.iter().zip(&members).zip(held) {
            self.known[index].past = member.past;
            // Relative to what was read: a claim may be added to it this moment.
            if member.share >= held {
                slot.share.bytes.fetch_add(member.share - held, SeqCst);
            } else {
                let less = |bytes: u64| Some(bytes.saturating_sub(held - member.share));
                let _ = slot.share.bytes.fetch_update(SeqCst, SeqCst, less);
            }
        }
        division.takers.store(division.cpus.load(Relaxed).min(slots.len() as u64), Relaxed);
        division.processes.store(slots.len() as u64, Relaxed);
        division.end(pot);
        // It takes some system calls, and so not while the pot is closed.
        self.turns.take(ms, usable, self.memcg, &slots, &members, &self.tree.processes);
        division.divided_ns.store(uffd::sys::now_ns(), Release);
        let unmanaged = division.unmanaged_bytes.load(Relaxed);
        let current = &self.memcg.current;
        // What the dead shared is their relatives' by now.
        let departed = self.departed.iter().filter(|tenant| !tenant.has_relatives).map(|tenant| tenant.bytes);
        let held = current.footprint() + unmanaged + self.log_bytes() + departed.sum::<u64>();
        self.memcg.peak_bytes.fetch_max(held, Relaxed);
        self.memcg.wanted_peak_bytes.fetch_max(current.wanted() + unmanaged, Relaxed);
    }

    /// What a slot says, since the last tick where it counts.
    fn member(&mut self, index: usize, slot: &Slot) -> Member {
        let per_cpu = self.memcg.division.processes_per_cpu();
        let is_parked = self.turns.waits(index, slot);
        let known = self.known(index, slot);
        let stat = &slot.stat;
        // Any process of the run can write the page: what cannot be is cut off.
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed).min(MOST);
        let misses = load(&stat.faults) + load(&stat.fresh_faults);
        let since = |now: u64, before: &mut u64| now.saturating_sub(std::mem::replace(before, now));
        let footprint = load(&slot.footprint_bytes) + known.recounted;
        let most_kept_free = Watermarks::kept_free(footprint as usize, per_cpu) as u64;
        let kept_free = load(&slot.share.kept_free_bytes).min(most_kept_free);
        Member {
            footprint,
            wanted: load(&slot.wanted_bytes),
            stored: load(&slot.stored_bytes),
            pool: load(&slot.pool_bytes)
                .saturating_sub(load(&slot.share.log_bytes) + load(&slot.share.goes_bytes)),
            kept_free: if kept_free > 0 { kept_free } else { most_kept_free },
            share: slot.share.held().min(MOST) + known.recounted,
            near: since(load(&stat.near_refaults), &mut known.near),
            distance: since(load(&stat.near_distance), &mut known.distance),
            misses: since(misses, &mut known.misses),
            waiting_ms: load(&slot.share.waiting_ms),
            is_parked,
            past: known.past,
        }
    }

    /// What is remembered of the process that has a slot now.
    fn known(&mut self, index: usize, slot: &Slot) -> &mut Known {
        let pid = slot.pid.load(Relaxed);
        let known = &mut self.known[index];
        if known.pid != pid {
            *known = Known { pid, ..Known::default() };
        }
        known
    }

    /// Who has a slot, by the numbers that they see themselves.
    fn managed(&self) -> HashSet<u32> {
        self.taken().map(|(_, slot)| slot.pid.load(Relaxed)).collect()
    }

    /// Finds out who has no slot, and had none (those of `managed`) before the tree was looked at.
    fn count_unmanaged(&mut self, mut managed: HashSet<u32>, refused: &HashMap<u32, String>, now: Instant) {
        managed.extend(self.managed());
        let others = self.tree.processes.iter().filter(|process| !managed.contains(&process.own_pid));
        let others: Vec<(&Process, u64)> = others.map(|process| (process, self.bytes_of(process))).collect();
        self.strangers = others.iter().map(|&(process, bytes)| (process.own_pid, bytes)).collect();
        let own = descendants::private_bytes(std::process::id()).unwrap_or(0);
        self.strangers.push((0, own + self.files_bytes()));
        // Of some it is known already, and others' engines are still to hand it in.
        let is_refused = |slot: &&Slot| slot.state() == State::Unmanaged;
        let words = |slot: &Slot| slot.said(&mut [0; 512]).unwrap_or_default().to_string();
        let late =
            self.memcg.used().iter().filter(is_refused).map(|slot| (slot.pid.load(Relaxed), words(slot)));
        let refused: HashMap<u32, String> = refused.clone().into_iter().chain(late).collect();
        self.unmanaged.look(&others, &managed, &refused.keys().copied().collect());
        for (key, cause, why) in self.growth.refusals() {
            self.unmanaged.explain(key, cause, why);
        }
        let refused = others
            .iter()
            .filter_map(|(process, bytes)| Some((*process, *bytes, refused.get(&process.own_pid)?.clone())));
        let refused =
            refused.map(|(process, bytes, words)| (process.clone(), bytes, words)).collect::<Vec<_>>();
        self.find(&refused, now);
    }

    /// What the files of the run take, which is memory where they are in a tmpfs.
    fn files_bytes(&self) -> u64 {
        let files = [memcg::LIBRARY_FILE, memcg::PAGE_FILE, memcg::FIXED_FILE];
        files.iter().map(|name| sys::allocated_bytes(&self.dir.join(name))).sum()
    }

    /// Adds up what strangers hold, and shared memory. Whoever has got a slot since the look, and has published in it,
    /// counts there.
    fn sum_strangers(&self) {
        let has_published = |(_, slot): &(usize, &Slot)| slot.footprint_bytes.load(Relaxed) > 0;
        let known: HashSet<u32> =
            self.taken().filter(has_published).map(|(_, slot)| slot.pid.load(Relaxed)).collect();
        let strangers = self.strangers.iter().filter(|(pid, _)| !known.contains(pid));
        let sum: u64 = strangers.map(|(_, bytes)| bytes).sum();
        self.memcg.division.unmanaged_bytes.store(sum + self.shared.bytes(), Relaxed);
    }

    /// Ends programs that their engines have stopped and that go on: the first process of a PID namespace heeds no
    /// signal from inside of it.
    fn end_stopped(&self) {
        for (_, slot) in self.taken().filter(|(_, slot)| slot.state() == State::Stopped) {
            let stopped = (slot.pid.load(Relaxed), slot.start.load(Relaxed));
            let is_it = |process: &&Process| {
                process.own_pid == 1 && process.pid != 1 && (process.own_pid, process.start) == stopped
            };
            for process in self.tree.processes.iter().filter(is_it) {
                sys::kill(process.pid as sys::Pid, libc::SIGKILL);
            }
        }
    }

    /// Private memory of a process without a slot, each page once where several have it.
    fn bytes_of(&self, process: &Process) -> u64 {
        let mut listed_bytes = process.private_bytes;
        if process.forked {
            // A child of vfork, or of clone with CLONE_VM, has its parent's memory, which counts there.
            if uffd::sys::same_vm(process.pid, process.parent) == Ok(true) {
                return 0;
            }
            // That is not to be told of one that has ended, or executed a program, since it was listed with it.
            let now = descendants::process(process.pid).filter(|now| now.forked);
            listed_bytes = now.map_or(0, |now| now.private_bytes.min(listed_bytes));
        }
        if listed_bytes < self.large_bytes() || !self.tree.is_related(process.pid) {
            return listed_bytes;
        }
        // One that has just been forked off has its parent's pages, and will soon have a slot or execute a program.
        if process.forked && !self.unmanaged.knows(process) {
            return 0;
        }
        let known = descendants::shared_bytes(process.pid);
        known.map_or(listed_bytes, |(private, proportional)| private.min(proportional))
    }

    /// Processes with less are counted in full: of a small limit that is less too, as dozens of them would take all of
    /// it.
    fn large_bytes(&self) -> u64 {
        (self.memcg.max_bytes.load(Relaxed) / LARGE_PART).min(LARGE)
    }
}

/// No process holds more: all of its address space, in bytes.
const MOST: u64 = 1 << 47;

/// No engine shares more with its workers, in bytes: any process of the run can write the page.
const BOARD_MOST: u64 = 16 << 20;

/// See [`Coordinator::large_bytes`]: at most, and one part in so many of the limit.
const LARGE: u64 = 4 << 20;
const LARGE_PART: u64 = 64;

#[cfg(test)]
mod tests;
