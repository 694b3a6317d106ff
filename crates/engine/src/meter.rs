//! What the devices have done for this worker, told to the run's page.

use alloc::sync::Arc;
use alloc::vec::Vec;
use iaa::Driver;
use iaa::stats::{CpuStats, QueueStats, Stats};
use memcg::accelerator::{Accelerator, CPU_COUNTERS, QUEUE_COUNTERS, REASONS};

// The page knows how many there are, and zfolio what they are called.
const _: () = assert!(
    QueueStats::NAMES.len() == QUEUE_COUNTERS
        && CpuStats::NAMES.len() == CPU_COUNTERS
        && iaa::Reason::ALL.len() == REASONS
);

/// A driver, and what of its counters is in the page already.
pub struct Meter {
    driver: Arc<Driver>,
    told: DeviceCounts,
}

/// Counters that only grow.
#[derive(Default)]
struct DeviceCounts {
    queues: Vec<(u32, u32, [u64; QUEUE_COUNTERS])>,
    cpus: Vec<(usize, [u64; CPU_COUNTERS])>,
    reasons: [u64; REASONS],
}

impl DeviceCounts {
    fn new(stats: &Stats) -> DeviceCounts {
        let mut queues: Vec<(u32, u32, [u64; QUEUE_COUNTERS])> = Vec::new();
        // What a queue did before it was closed, and since it is open again.
        for (device, id, counts) in stats.queues.iter().chain(&stats.gone) {
            match queues.iter_mut().find(|known| (known.0, known.1) == (*device, *id)) {
                Some((.., sum)) => sum.iter_mut().zip(counts.values()).for_each(|(sum, more)| *sum += more),
                None => queues.push((*device, *id, counts.values())),
            }
        }
        let cpus = stats.cpus.iter().map(|(cpu, counts)| (*cpu, counts.values())).collect();
        DeviceCounts { queues, cpus, reasons: stats.reasons }
    }

    /// Tells what there is beyond `told`.
    fn tell(&self, told: &DeviceCounts, page: &Accelerator) {
        for &(device, id, counts) in &self.queues {
            let before = told.queues.iter().find(|known| (known.0, known.1) == (device, id));
            page.add_queue(device, id, beyond(counts, before.map(|before| before.2)));
        }
        for &(cpu, counts) in &self.cpus {
            let before = told.cpus.iter().find(|known| known.0 == cpu);
            page.add_cpu(cpu, beyond(counts, before.map(|before| before.1)));
        }
        page.add_reasons(beyond(self.reasons, Some(told.reasons)));
    }
}

fn beyond<const N: usize>(now: [u64; N], before: Option<[u64; N]>) -> [u64; N] {
    let before = before.unwrap_or([0; N]);
    core::array::from_fn(|at| now[at].saturating_sub(before[at]))
}

impl Meter {
    /// For a driver of which nothing was told yet.
    pub fn new(driver: Arc<Driver>) -> Meter {
        Meter { driver, told: DeviceCounts::default() }
    }

    /// Adds what has been done since the last time.
    pub fn tell(&mut self, page: &Accelerator) {
        let now = DeviceCounts::new(&self.driver.stats());
        now.tell(&self.told, page);
        self.told = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(descriptors: u64, errors: u64) -> QueueStats {
        QueueStats { descriptors, errors, ..QueueStats::default() }
    }

    /// However often it is told, also while queues are closed and opened again, what is told sums up to what was done.
    #[test]
    fn differences_sum_up() {
        // SAFETY: every field is an atomic, for which all zeros is a value.
        let page: Box<Accelerator> = unsafe { Box::new_zeroed().assume_init() };
        let cpu = |comp_calls| CpuStats { comp_calls, ..CpuStats::default() };
        let mut reasons = [[0; REASONS]; 4];
        reasons[2][3] = 5;
        reasons[3][3] = 6;
        let moments = [
            Stats { queues: vec![(1, 0, queue(5, 0))], cpus: vec![(3, cpu(4))], ..Stats::default() },
            Stats {
                queues: vec![(1, 0, queue(9, 1)), (3, 0, queue(2, 0))],
                cpus: vec![(1, cpu(1)), (3, cpu(4))],
                ..Stats::default()
            },
            // The first one is closed.
            Stats {
                queues: vec![(3, 0, queue(2, 0))],
                gone: vec![(1, 0, queue(10, 1))],
                cpus: vec![(1, cpu(1)), (3, cpu(9))],
                reasons: reasons[2],
                ..Stats::default()
            },
            // And open again.
            Stats {
                queues: vec![(1, 0, queue(3, 1)), (3, 0, queue(4, 0))],
                gone: vec![(1, 0, queue(10, 1))],
                cpus: vec![(1, cpu(1)), (3, cpu(9))],
                reasons: reasons[3],
                ..Stats::default()
            },
        ];
        // Two workers, of which the other tells once.
        let mut told = DeviceCounts::default();
        for stats in &moments {
            let now = DeviceCounts::new(stats);
            now.tell(&told, &page);
            now.tell(&now, &page);
            told = now;
        }
        DeviceCounts::new(&moments[3]).tell(&DeviceCounts::default(), &page);
        let mut queues: Vec<_> =
            page.queues().map(|(device, id, counts)| (device, id, counts[6], counts[10])).collect();
        queues.sort_unstable();
        assert_eq!((QueueStats::NAMES[6], QueueStats::NAMES[10]), ("descriptors", "errors"));
        assert_eq!(queues, [(1, 0, 26, 4), (3, 0, 8, 0)]);
        assert!(page.cpus().eq([(1, [2, 0, 0, 0, 0, 0]), (3, [18, 0, 0, 0, 0, 0])]));
        assert_eq!(page.reasons(), core::array::from_fn(|at| if at == 3 { 12 } else { 0 }));
    }
}
