//! Which CPU is in which package, and which device is at which package.
//!
//! Packages, not memory nodes, are what queues are given out by: a package may be cut into several nodes of which only
//! some have a device, and CPUs of the others would all go to one of them, or to none.

use crate::order;
use crate::sysfs::{names_in, read, read_number};
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// CPUs and nodes, by package. Packages are numbered from 0 without gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The package of each CPU that the kernel has a number for; `None` for one that is not there or not running.
    pub cpus: Vec<Option<u8>>,
    /// The package of each memory node.
    pub nodes: Vec<Option<u8>>,
}

/// More packages than any machine with this device has.
const PACKAGES_MAX: usize = 64;
/// As many CPUs as Linux can be built for.
const CPUS_MAX: usize = 8192;

impl Topology {
    /// Reads ROOT/sys/devices/system. Where it says nothing there is one package.
    pub fn read(root: &str) -> Topology {
        let system = [root, "/sys/devices/system"].concat();
        let mut ids: Vec<i64> = Vec::new();
        let mut cpus = Vec::new();
        for name in names_in(&[&system, "/cpu"].concat()).unwrap_or_default() {
            let Some(cpu) = name.strip_prefix("cpu").and_then(|n| n.parse::<usize>().ok()) else { continue };
            let at = [&system, "/cpu/", name.as_str()].concat();
            // A CPU that is switched off has no topology.
            let id = read_number(&[&at, "/topology"].concat(), "physical_package_id", -1);
            if cpu >= CPUS_MAX || id < 0 {
                continue;
            }
            if !ids.contains(&id) && ids.len() < PACKAGES_MAX {
                ids.push(id);
            }
            if cpus.len() <= cpu {
                cpus.resize(cpu + 1, None);
            }
            cpus[cpu] = Some(id);
        }
        // Those that come later have their place from the beginning.
        let possible = last_of(&read(&[&system, "/cpu"].concat(), "possible")).map_or(0, |last| last + 1);
        cpus.resize(cpus.len().max(possible.min(CPUS_MAX)), None);
        // By the kernel's numbers, whatever the order of the directory.
        order::sort_by_key(&mut ids, |&id| id);
        let package = |id: i64| ids.iter().position(|&other| other == id).unwrap_or(0) as u8;
        let cpus: Vec<Option<u8>> = cpus.into_iter().map(|id| id.map(package)).collect();

        let mut nodes = Vec::new();
        for name in names_in(&[&system, "/node"].concat()).unwrap_or_default() {
            let Some(node) = name.strip_prefix("node").and_then(|n| n.parse::<usize>().ok()) else {
                continue;
            };
            let at = [&system, "/node/node", &node.to_string()].concat();
            let found = first_of(&read(&at, "cpulist")).and_then(|cpu| cpus.get(cpu).copied().flatten());
            if node < CPUS_MAX {
                if nodes.len() <= node {
                    nodes.resize(node + 1, None);
                }
                nodes[node] = found;
            }
        }
        Topology { cpus, nodes }
    }

    /// Which CPUs run, as the kernel says it: what is read is another topology when this has changed.
    pub fn online(root: &str) -> String {
        read(&[root, "/sys/devices/system/cpu"].concat(), "online")
    }

    /// How many packages there are, at least one.
    pub fn packages(&self) -> usize {
        self.cpus.iter().flatten().max().map_or(1, |&last| last as usize + 1)
    }

    /// The package that a device at this node is at; `None` where nothing tells.
    pub fn package_of_node(&self, node: Option<u32>) -> Option<u8> {
        self.nodes.get(node? as usize).copied().flatten()
    }
}

/// The last CPU of a list such as `0-13,56-69`.
fn last_of(list: &str) -> Option<usize> {
    list.rsplit([',', '-']).next()?.parse().ok()
}

/// The first CPU of a list such as `0-13,56-69`.
fn first_of(list: &str) -> Option<usize> {
    list.split([',', '-']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_this_cpu() {
        let topology = Topology::read("");
        let cpu = crate::cpu::current();
        assert!(topology.cpus.len() > cpu, "{topology:?}");
        if topology.cpus[cpu].is_none() {
            crate::skip::lacks("sysfs has no topology here");
        }
        assert!((1..=PACKAGES_MAX).contains(&topology.packages()));
    }

    #[test]
    fn nothing_known_is_one_package() {
        let topology = Topology::read("/nonexistent");
        assert_eq!((topology.packages(), topology.package_of_node(Some(0))), (1, None));
        assert_eq!((first_of("0-13,56-69"), first_of("7"), first_of("")), (Some(0), Some(7), None));
        assert_eq!((last_of("0-13,56-69"), last_of("7"), last_of("")), (Some(69), Some(7), None));
    }
}
