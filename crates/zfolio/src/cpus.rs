//! The CPUs of a run, which may come and go while it lasts: this process's affinity, its control group's quota, and
//! CPUs that are plugged in.

use memcg::division::Division;
use std::fs;
use std::sync::atomic::Ordering::*;
use uffd::sys::CpuSet;

/// Tells the engines what there is at the run's start.
pub fn begin(division: &Division) {
    publish(division);
    let [first, now] = &division.affinity;
    first.iter().zip(now).for_each(|(first, now)| first.store(now.load(Relaxed), Relaxed));
}

/// Tells the engines what there is now.
pub fn publish(division: &Division) {
    let usable = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    division.online_cpus.store(count(list.trim()).max(usable), Relaxed);
    let [_, now] = &division.affinity;
    let affinity = CpuSet::of_this_thread();
    now.iter().zip(affinity.words()).for_each(|(now, word)| now.store(*word, Relaxed));
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
        begin(&division);
        let own = CpuSet::of_this_thread();
        for affinity in &division.affinity {
            assert!(
                CpuSet::of_words(affinity.iter().map(|word| word.load(Relaxed))).words()[..16]
                    == own.words()[..16]
            );
        }
        let [usable, online] = [&division.cpus, &division.online_cpus].map(|count| count.load(Relaxed));
        assert!(usable > 0 && usable <= own.count() as u64 && online >= usable, "{usable} of {online}");
    }
}
