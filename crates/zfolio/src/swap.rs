//! The machine's own swap, beneath everything: what there is of it, and whether this process can be swapped at all.

use crate::size::Bytes;
use std::fs;

/// What the machine swaps to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swap {
    /// Files and devices, with their sizes in bytes.
    areas: Vec<(String, u64)>,
    /// The compressor of zswap, where it is on.
    zswap: Option<String>,
}

impl Swap {
    /// Looks at this machine.
    pub fn of_this_machine() -> Swap {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let parameter = |name| read(&format!("/sys/module/zswap/parameters/{name}")).trim().to_string();
        let zswap = (parameter("enabled") == "Y").then(|| parameter("compressor"));
        Swap { areas: areas(&read("/proc/swaps")), zswap }
    }

    /// What a text of /proc/swaps has.
    #[cfg(test)]
    pub fn listed(swaps: &str) -> Swap {
        Swap { areas: areas(swaps), zswap: None }
    }

    /// True where there is any.
    pub fn is_on(&self) -> bool {
        !self.areas.is_empty()
    }

    /// All of it in words: `/swap.img of 2 GiB, zram0 of 8 GiB, behind zswap (zstd)`.
    pub fn words(&self) -> String {
        let area = |(name, bytes): &(String, u64)| format!("{name} of {}", Bytes(*bytes));
        let zswap = self.zswap.iter().map(|compressor| format!("behind zswap ({compressor})"));
        self.areas.iter().map(area).chain(zswap).collect::<Vec<_>>().join(", ")
    }
}

/// Those that /proc/swaps lists: a line of titles, then name, kind, size and more of each.
fn areas(swaps: &str) -> Vec<(String, u64)> {
    let area = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, kib) = (words.next()?, words.nth(1)?.parse::<u64>().ok()?);
        Some((name.strip_prefix("/dev/").unwrap_or(name).to_string(), kib * 1024))
    };
    swaps.lines().skip(1).filter_map(area).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_lists() {
        let swaps = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                     /dev/zram0                              partition\t8388604\t\t1024\t\t100\n\
                     /var/tmp/a\\040file                      file\t\t1966076\t\t394232\t\t-2\n";
        let swap = Swap { areas: areas(swaps), zswap: Some("zstd".into()) };
        assert!(swap.is_on());
        assert_eq!(swap.words(), "zram0 of 8.00 GiB, /var/tmp/a\\040file of 1.87 GiB, behind zswap (zstd)");
        assert!(!Swap { areas: areas("Filename\tType\n"), zswap: None }.is_on());
    }
}
