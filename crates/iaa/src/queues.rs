//! Which queue serves which CPU. The policy is that of the kernel's driver, by its names.
//!
//! ```text
//!                     the CPU's group           a row: the queues in turn
//!   CPU 0  ---------> package 0   ----------->  wq1.0 wq3.0 wq5.0 wq7.0           shared by the package's CPUs (distribute_*)
//!   CPU 1  ---------> package 0                 each CPU goes round on its own, from another place
//!
//!   CPU 0  ---------> device 1    ----------->  wq1.0                             divided among them
//!   CPU 1  ---------> device 3    ----------->  wq3.0
//! ```
//!
//! A look-up reads three words and takes no lock. Rebalancing writes the rows in place, and a look-up meanwhile may see
//! a part of the old row and a part of the new one. This is safe because a row holds numbers of places for queues, of
//! which each is a queue that takes work, or one that is closed and says so; and no place ceases to exist.

use crate::request::Operation;
use crate::stats::CpuCounters;
use crate::topology::Topology;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::*};

/// Queues that a driver can have open: 16 devices with 8 queues each.
pub const QUEUES_MAX: usize = 128;
/// Queues in a row; a package with more does without the others.
const ROW_MAX: usize = 64;
/// Groups of CPUs: packages, or devices.
const GROUPS_MAX: usize = 64;

/// How queues are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How many queues of each device, its last ones, are for compressing alone; its others then are for decompressing
    /// alone. 0, or as many as the device has: all queues are for both.
    pub g_comp_wqs_per_iaa: usize,
    /// Compressions of a CPU go round all devices of its package; else to the one device that is its own.
    pub distribute_comps: bool,
    /// The same for decompressions.
    pub distribute_decomps: bool,
}

impl Policy {
    /// All queues for both, all devices in turn.
    pub const DEFAULT: Policy =
        Policy { g_comp_wqs_per_iaa: 0, distribute_comps: true, distribute_decomps: true };
}

impl Default for Policy {
    fn default() -> Self {
        Policy::DEFAULT
    }
}

impl Policy {
    /// How many of a device's queues, its first ones, are for decompressing alone; 0 if all are for both.
    fn for_decompressing(&self, count: usize) -> usize {
        if self.g_comp_wqs_per_iaa == 0 { 0 } else { count.saturating_sub(self.g_comp_wqs_per_iaa) }
    }

    /// In which order a device's queues are opened, where not all can be: one of each kind in turn. For each by its
    /// number the place in that order; and the place of the first that is for compressing alone, if there is one.
    pub(crate) fn turns(&self, count: usize) -> (impl Iterator<Item = usize>, Option<usize>) {
        let first = self.for_decompressing(count);
        let turn = move |at: usize| match at.checked_sub(first) {
            _ if first == 0 => at,
            None => at + at.min(count - first),
            Some(nth) => nth + first.min(nth + 1),
        };
        ((0..count).map(turn), (first > 0).then_some(first))
    }
}

/// An open queue, as the policy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub device: u32,
    pub id: u32,
    /// The number of the first of its device's queues, open or not, that is for compressing alone. Unknown, it goes by
    /// those that are open.
    pub first_comp: Option<u32>,
    pub package: Option<u8>,
    /// Its place.
    pub place: u8,
}

/// Which rows there are.
#[derive(Clone, Copy)]
enum For {
    /// To compress.
    Compressing,
    /// For what is soon done: to decompress, and for CRCs, which are not to stand behind compressions.
    Decompressing,
}

impl From<Operation> for For {
    fn from(operation: Operation) -> For {
        match operation {
            Operation::Compress => For::Compressing,
            Operation::Decompress | Operation::Crc64(_) => For::Decompressing,
        }
    }
}

struct Row {
    len: AtomicU8,
    places: [AtomicU8; ROW_MAX],
}

impl Row {
    fn new() -> Row {
        Row { len: AtomicU8::new(0), places: [const { AtomicU8::new(0) }; ROW_MAX] }
    }

    fn set(&self, places: &[u8]) {
        for (own, place) in self.places.iter().zip(places) {
            own.store(*place, Relaxed);
        }
        self.len.store(places.len() as u8, Release);
    }
}

/// What there is for a CPU. A cache line of its own: it changes with every descriptor.
#[repr(align(64))]
struct Cpu {
    groups: [AtomicU8; 2],
    next: [AtomicU32; 2],
    counters: CpuCounters,
}

/// The rows, and where each CPU is.
pub(crate) struct Table {
    rows: Box<[[Row; GROUPS_MAX]; 2]>,
    cpus: Vec<Cpu>,
}

impl Table {
    /// A table without queues.
    pub fn new(cpus: usize) -> Table {
        let rows = || core::array::from_fn(|_| Row::new());
        let cpu =
            || Cpu { groups: Default::default(), next: Default::default(), counters: Default::default() };
        Table { rows: Box::new([rows(), rows()]), cpus: (0..cpus.max(1)).map(|_| cpu()).collect() }
    }

    fn cpu(&self, cpu: usize) -> &Cpu {
        &self.cpus[cpu % self.cpus.len()]
    }

    /// The place of the queue whose turn it is; `None` where there is no queue.
    pub fn next(&self, cpu: usize, operation: Operation) -> Option<usize> {
        let (cpu, which) = (self.cpu(cpu), For::from(operation) as usize);
        let group = cpu.groups[which].load(Relaxed) as usize;
        let row = &self.rows[which][group];
        let len = u32::from(row.len.load(Acquire));
        if len == 0 {
            return None;
        }
        let turn = cpu.next[which].fetch_add(1, Relaxed) % len;
        Some(row.places[turn as usize].load(Relaxed) as usize)
    }

    /// A CPU's counters.
    pub fn counters(&self, cpu: usize) -> &CpuCounters {
        &self.cpu(cpu).counters
    }

    /// All CPUs' counters.
    pub fn all_counters(&self) -> impl Iterator<Item = (usize, &CpuCounters)> {
        self.cpus.iter().map(|cpu| &cpu.counters).enumerate()
    }

    /// Gives the queues out anew. `members` are in the order of their names. One caller at a time; it allocates
    /// nothing.
    pub fn rebalance(&self, members: &[Member], topology: &Topology, policy: Policy) {
        let mut all = [0u32; GROUPS_MAX];
        let mut count = 0;
        for member in members {
            if count < GROUPS_MAX && !all[..count].contains(&member.device) {
                all[count] = member.device;
                count += 1;
            }
        }
        let all = Devices(&all[..count], members);
        let is_known = topology.cpus.iter().any(Option::is_some);

        for which in [For::Compressing, For::Decompressing] {
            let rows = &self.rows[which as usize];
            let is_shared = match which {
                For::Compressing => policy.distribute_comps,
                For::Decompressing => policy.distribute_decomps,
            };
            if is_shared {
                for (package, row) in rows.iter().enumerate().take(topology.packages()) {
                    all.fill(row, which, policy, &|device| all.serves(device, package));
                }
            } else {
                for (at, row) in rows.iter().enumerate().take(all.0.len().max(1)) {
                    let own = all.0.get(at);
                    all.fill(row, which, policy, &|device| own == Some(&device));
                }
            }
            for package in 0..topology.packages() {
                let runs = |cpu: usize| match topology.cpus.get(cpu).copied().flatten() {
                    None if !is_known => Some(0),
                    package => package,
                };
                let is_at = |cpu: usize| runs(cpu).map(usize::from) == Some(package);
                let cores = (0..self.cpus.len()).filter(|&cpu| is_at(cpu)).count();
                let devices = all.0.iter().filter(|&&device| all.serves(device, package)).count();
                // Those that do not run take no part in the division. Who runs on one before that is known has what the
                // first package's have.
                let mine = (0..self.cpus.len()).filter(|&cpu| usize::from(runs(cpu).unwrap_or(0)) == package);
                let (mut running, mut others) = (0.., 0..);
                for cpu in mine {
                    let core = if runs(cpu).is_some() { running.next() } else { others.next() };
                    // Cores in a row have the same device: hyperthreads apart, they are what works together.
                    let own = core.unwrap_or(0) % cores.max(1) * devices / cores.max(1);
                    let cpu = &self.cpus[cpu];
                    let group = if is_shared { package } else { all.nth_serving(own, package) };
                    cpu.groups[which as usize].store(group.min(GROUPS_MAX - 1) as u8, Relaxed);
                    cpu.next[which as usize].store(own as u32, Relaxed);
                }
            }
        }
    }
}

/// Devices by name, and all queues.
#[derive(Clone, Copy)]
struct Devices<'a>(&'a [u32], &'a [Member]);

impl<'a> Devices<'a> {
    fn is_at(self, device: u32, package: usize) -> bool {
        self.1.iter().any(|member| member.device == device && member.package == Some(package as u8))
    }

    /// True for devices that a package's CPUs use: its own, and those of which nothing is known; or all, where there is
    /// none.
    fn serves(self, device: u32, package: usize) -> bool {
        let unknown =
            |device| self.1.iter().any(|member| member.device == device && member.package.is_none());
        self.is_at(device, package)
            || unknown(device)
            || !self.0.iter().any(|&other| self.is_at(other, package) || unknown(other))
    }

    /// The place in the list of the nth device that serves a package.
    fn nth_serving(self, nth: usize, package: usize) -> usize {
        let mut serving = (0..self.0.len()).filter(|&at| self.serves(self.0[at], package));
        serving.nth(nth).unwrap_or(0)
    }

    /// Sets a row to the queues for an operation, of the devices chosen: the first one of each device, then the second
    /// ones, so that each device has its turn before one has another.
    fn fill(self, row: &Row, which: For, policy: Policy, chosen: &dyn Fn(u32) -> bool) {
        let (mut places, mut len) = ([0; ROW_MAX], 0);
        for turn in 0..QUEUES_MAX {
            let mut is_over = true;
            for &device in self.0.iter().filter(|&&device| chosen(device)) {
                let queues = || self.1.iter().filter(|member| member.device == device);
                let count = queues().count();
                let for_decompressing = match queues().find_map(|member| member.first_comp) {
                    Some(first) => queues().filter(|member| member.id < first).count(),
                    None => policy.for_decompressing(count),
                };
                let (first, end) = match which {
                    // What is left of one kind alone has to do both.
                    _ if for_decompressing == 0 || for_decompressing == count => (0, count),
                    For::Compressing => (for_decompressing, count),
                    For::Decompressing => (0, for_decompressing),
                };
                if first + turn < end
                    && len < ROW_MAX
                    && let Some(member) = queues().nth(first + turn)
                {
                    places[len] = member.place;
                    len += 1;
                    is_over = false;
                }
            }
            if is_over {
                break;
            }
        }
        row.set(&places[..len]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Operation::*;

    /// `devices[package]` devices at each package, `queues` each, numbered as the kernel does: iax1, iax3, ...
    fn members(devices: &[usize], queues: u32) -> Vec<Member> {
        let mut members = Vec::new();
        for (package, &count) in devices.iter().enumerate() {
            for _ in 0..count {
                let device = 1 + 2 * (members.len() as u32 / queues);
                for id in 0..queues {
                    let place = 100 - members.len() as u8;
                    members.push(Member {
                        device,
                        id,
                        first_comp: None,
                        package: Some(package as u8),
                        place,
                    });
                }
            }
        }
        members
    }

    fn topology(packages: usize, cores: usize) -> Topology {
        let cpus = (0..packages * cores).map(|cpu| Some((cpu / cores) as u8)).collect();
        Topology { cpus, nodes: Vec::new() }
    }

    /// The next `n` queues of a CPU, by name.
    fn turns(table: &Table, members: &[Member], cpu: usize, operation: Operation, n: usize) -> String {
        let name = |place: usize| {
            let member = members.iter().find(|member| member.place as usize == place).unwrap();
            format!("wq{}.{}", member.device, member.id)
        };
        let turns = (0..n).map(|_| table.next(cpu, operation).map_or("none".into(), name));
        turns.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn shared_queues_go_round_the_devices_of_the_package() {
        let members = members(&[2, 2], 2);
        let table = Table::new(8);
        table.rebalance(&members, &topology(2, 4), Policy::default());
        assert_eq!(turns(&table, &members, 0, Compress, 5), "wq1.0 wq3.0 wq1.1 wq3.1 wq1.0");
        assert_eq!(turns(&table, &members, 3, Compress, 3), "wq3.0 wq1.1 wq3.1", "from its own device on");
        assert_eq!(turns(&table, &members, 4, Decompress, 4), "wq5.0 wq7.0 wq5.1 wq7.1");
    }

    /// The kernel compilation of the series: two queues for each device, decompression to wqX.0, compression to wqX.1.
    #[test]
    fn the_last_queues_of_each_device_compress() {
        let members = members(&[4], 2);
        let table = Table::new(4);
        let policy = Policy { g_comp_wqs_per_iaa: 1, ..Policy::default() };
        table.rebalance(&members, &topology(1, 4), policy);
        assert_eq!(turns(&table, &members, 0, Compress, 5), "wq1.1 wq3.1 wq5.1 wq7.1 wq1.1");
        assert_eq!(turns(&table, &members, 0, Decompress, 5), "wq1.0 wq3.0 wq5.0 wq7.0 wq1.0");
        // A device with a single queue needs it for both.
        let single: Vec<Member> = members.iter().copied().filter(|m| m.id == 0 || m.device != 3).collect();
        table.rebalance(&single, &topology(1, 4), policy);
        assert_eq!(turns(&table, &single, 0, Compress, 4), "wq1.1 wq3.0 wq5.1 wq7.1");
        assert_eq!(turns(&table, &single, 0, Decompress, 4), "wq1.0 wq3.0 wq5.0 wq7.0");
    }

    /// Of eight queues of which three compress, four are open: two of each kind, which is known by the numbers of all
    /// eight.
    #[test]
    fn where_not_all_are_open_the_last_of_all_compress() {
        let policy = Policy { g_comp_wqs_per_iaa: 3, ..Policy::default() };
        let (turns, first) = policy.turns(8);
        let turns: Vec<usize> = turns.collect();
        assert_eq!((turns.as_slice(), first), (&[0, 2, 4, 6, 7, 1, 3, 5][..], Some(5)));
        for (of, count) in [(0, 8), (8, 8), (9, 3), (1, 1)] {
            let policy = Policy { g_comp_wqs_per_iaa: of, ..policy };
            let (turns, first) = policy.turns(count);
            assert!(turns.eq(0..count) && first.is_none());
        }
        for (of, count) in [(1, 2), (1, 8), (7, 8), (2, 5)] {
            let mut turns: Vec<usize> = Policy { g_comp_wqs_per_iaa: of, ..policy }.turns(count).0.collect();
            turns.sort_unstable();
            assert!(turns.into_iter().eq(0..count), "{of} of {count}");
        }
        let mut open: Vec<Member> =
            members(&[1], 8).into_iter().filter(|m| turns[m.id as usize] < 4).collect();
        open.iter_mut().for_each(|member| member.first_comp = Some(5));
        let table = Table::new(1);
        table.rebalance(&open, &topology(1, 1), policy);
        assert_eq!(turns_of(&table, &open), ["wq1.5 wq1.6 wq1.5", "wq1.0 wq1.1 wq1.0"]);
        // When one kind is gone the other one does both.
        open.retain(|member| member.id >= 5);
        table.rebalance(&open, &topology(1, 1), policy);
        assert_eq!(turns_of(&table, &open), ["wq1.5 wq1.6 wq1.5", "wq1.5 wq1.6 wq1.5"]);
    }

    fn turns_of(table: &Table, members: &[Member]) -> [String; 2] {
        [Compress, Decompress].map(|operation| turns(table, members, 0, operation, 3))
    }

    #[test]
    fn divided_devices_have_cores_of_their_own() {
        let members = members(&[2, 2], 1);
        let table = Table::new(8);
        let policy = Policy { distribute_comps: false, ..Policy::default() };
        table.rebalance(&members, &topology(2, 4), policy);
        let own: Vec<String> = (0..8).map(|cpu| turns(&table, &members, cpu, Compress, 2)).collect();
        let expected = ["wq1.0 wq1.0", "wq3.0 wq3.0", "wq5.0 wq5.0", "wq7.0 wq7.0"];
        assert_eq!(own, [0, 0, 1, 1, 2, 2, 3, 3].map(|at: usize| expected[at]));
        assert_eq!(turns(&table, &members, 2, Decompress, 2), "wq3.0 wq1.0", "these are shared");
    }

    /// Packages, not nodes: on a machine cut into three nodes a package, of which two have devices, all cores have
    /// their part.
    #[test]
    fn every_device_is_somebodys() {
        for (devices, cores) in [(4, 56), (4, 96), (3, 7), (8, 2)] {
            let members = members(&[devices, devices], 1);
            let table = Table::new(2 * cores);
            let policy = Policy { distribute_comps: false, distribute_decomps: false, ..Policy::default() };
            table.rebalance(&members, &topology(2, cores), policy);
            let mut users = std::collections::BTreeMap::new();
            for cpu in 0..2 * cores {
                *users.entry(table.next(cpu, Compress).unwrap()).or_insert(0) += 1;
            }
            let (least, most) = (users.values().min().unwrap(), users.values().max().unwrap());
            assert!(most - least <= 1, "{users:?}");
            assert_eq!(users.len(), 2 * devices.min(cores));
        }
    }

    #[test]
    fn a_package_without_a_device_uses_all_others() {
        let members = members(&[0, 2], 1);
        let table = Table::new(4);
        table.rebalance(&members, &topology(2, 2), Policy::default());
        assert_eq!(turns(&table, &members, 0, Compress, 3), "wq1.0 wq3.0 wq1.0");
        let policy = Policy { distribute_comps: false, ..Policy::default() };
        table.rebalance(&members, &topology(2, 2), policy);
        assert_eq!(turns(&table, &members, 1, Compress, 2), "wq3.0 wq3.0");
        // Nothing known of where the devices are: everybody has all of them.
        let unknown: Vec<Member> = members.iter().map(|m| Member { package: None, ..*m }).collect();
        table.rebalance(&unknown, &topology(2, 2), Policy::default());
        assert_eq!(turns(&table, &unknown, 2, Compress, 2), "wq1.0 wq3.0");
    }

    #[test]
    fn queues_come_and_go() {
        let mut members = members(&[2], 1);
        let table = Table::new(2);
        assert_eq!(table.next(0, Compress), None);
        table.rebalance(&members, &topology(1, 2), Policy::default());
        assert_eq!(turns(&table, &members, 1, Compress, 2), "wq3.0 wq1.0");
        members.remove(0);
        table.rebalance(&members, &topology(1, 2), Policy::default());
        assert_eq!(turns(&table, &members, 1, Compress, 2), "wq3.0 wq3.0");
        table.rebalance(&[], &topology(1, 2), Policy::default());
        assert_eq!((table.next(0, Compress), table.next(1, Decompress)), (None, None));
    }

    /// A machine with room for more CPUs than there are: those that run divide the devices among them, and so do others
    /// when they come.
    #[test]
    fn cpus_that_do_not_run_take_no_part() {
        let members = members(&[2], 1);
        let table = Table::new(64);
        let policy = Policy { distribute_comps: false, ..Policy::default() };
        let mut cpus = vec![None; 64];
        cpus[..2].fill(Some(0));
        let own = |cpus: &[Option<u8>]| {
            let topology = Topology { cpus: cpus.to_vec(), nodes: Vec::new() };
            table.rebalance(&members, &topology, policy);
            [0, 1, 2, 3, 63].map(|cpu| turns(&table, &members, cpu, Compress, 1))
        };
        assert_eq!(own(&cpus), ["wq1.0", "wq3.0", "wq1.0", "wq3.0", "wq3.0"]);
        cpus[..4].fill(Some(0));
        assert_eq!(own(&cpus)[..4], ["wq1.0", "wq1.0", "wq3.0", "wq3.0"]);
        // The first ones go, and whoever still runs there has a queue all the same.
        cpus[..2].fill(None);
        assert_eq!(own(&cpus)[..4], ["wq1.0", "wq3.0", "wq1.0", "wq3.0"]);
        assert_eq!(own(&[None; 64]), ["wq1.0", "wq1.0", "wq1.0", "wq1.0", "wq3.0"], "nothing is known");
    }

    #[test]
    fn more_queues_than_a_row_holds_do_no_harm() {
        let mut members: Vec<Member> = (0..QUEUES_MAX as u32)
            .map(|n| Member { device: n, id: 0, first_comp: None, package: None, place: n as u8 })
            .collect();
        let table = Table::new(300);
        table.rebalance(&members, &topology(1, 300), Policy::default());
        assert!((0..300).all(|cpu| table.next(cpu, Compress).unwrap() < ROW_MAX));
        members.iter_mut().for_each(|member| member.package = Some(200));
        let policy = Policy { distribute_comps: false, ..Policy::default() };
        table.rebalance(&members, &topology(64, 5), policy);
        assert!((0..300).all(|cpu| table.next(cpu, Compress).is_some()));
    }
}
