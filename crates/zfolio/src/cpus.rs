//! The CPUs of a run, which may come and go while it lasts: this process's affinity, its control group's quota, and
//! CPUs that are plugged in.

use memcg::division::Division;
use std::fs;
use std::sync::atomic::Ordering::*;
use uffd::sys::CpuSet;

/// Tells the engines what there is, and what there may be.
pub fn publish(division: &Division) {
    let usable = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let list = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    division.possible_cpus.store(count(list.trim()).max(usable), Relaxed);
    let affinity = CpuSet::of_this_thread();
    for (word, now) in division.affinity.iter().zip(affinity.words()) {
        word.store(*now, Relaxed);
    }
    division.cpus.store(usable, Release);
}

/// How many CPUs a list as `0-3,8` has; 0 where it is none.
fn count(list: &str) -> u64 {
    let one = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((last.parse::<u64>().ok()? + 1).saturating_sub(first.parse().ok()?))
    };
    list.split(',').filter_map(one).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cpus_is_counted() {
        for (list, expected) in [("0-1", 2), ("0", 1), ("0-3,8,10-11", 7), ("", 0), ("none", 0)] {
            assert_eq!(count(list), expected, "{list}");
        }
    }

    #[test]
    fn engines_are_told_of_this_process_s_cpus() {
        let division = Division::default();
        publish(&division);
        let own = CpuSet::of_this_thread();
        assert!(own == CpuSet::of_words(division.affinity.iter().map(|word| word.load(Relaxed))));
        let [usable, possible] = [&division.cpus, &division.possible_cpus].map(|count| count.load(Relaxed));
        assert!(usable > 0 && usable <= own.count() as u64 && possible >= usable, "{usable} of {possible}");
    }
}
