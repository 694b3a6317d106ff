//! What the devices of deflate-iaa have done for a run: counters that all workers of all processes add to.

use crate::find_room;
use core::array::from_fn;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Queues that are told apart, of all devices together; a run that uses more has the others counted nowhere.
pub const QUEUES: usize = 128;
/// CPUs that are told apart: as many as Linux can be built for.
pub const CPUS: usize = 8192;
/// Counters of a queue, of a CPU, and of reasons to do without; what they are is the driver's to say (the crate iaa).
pub const QUEUE_COUNTERS: usize = 11;
/// See [`QUEUE_COUNTERS`].
pub const CPU_COUNTERS: usize = 6;
/// See [`QUEUE_COUNTERS`].
pub const REASONS: usize = 10;

/// What became of a worker that was to have a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Attached {
    /// It has queues.
    Yes = 0,
    /// It could open none.
    NoQueue = 1,
    /// It shares the program's address space, and so must not have any.
    NotApart = 2,
}

/// A queue's counters.
#[repr(C)]
struct Queue {
    /// Device and number, and 1 more than these: 0 is nobody's.
    name: AtomicU64,
    counters: [AtomicU64; QUEUE_COUNTERS],
}

/// How much of [`Accelerator`] has room in the file before the first process begins: all but the counters of CPUs,
/// which get theirs as they are needed.
pub(crate) const ROOM_BYTES: usize = offset_of!(Accelerator, cpus);

/// Counters of a run. All only grow.
#[repr(C)]
pub struct Accelerator {
    /// Workers, by what [became](Attached) of them.
    workers: [AtomicU64; 3],
    reasons: [AtomicU64; REASONS],
    queues: [Queue; QUEUES],
    /// From here on no CPU's counters were ever touched.
    cpus_end: AtomicU32,
    cpus: [[AtomicU64; CPU_COUNTERS]; CPUS],
}

fn add<const N: usize>(counters: &[AtomicU64; N], more: [u64; N]) {
    for (counter, more) in counters.iter().zip(more).filter(|(_, more)| *more != 0) {
        counter.fetch_add(more, Relaxed);
    }
}

fn read<const N: usize>(counters: &[AtomicU64; N]) -> [u64; N] {
    from_fn(|at| counters[at].load(Relaxed))
}

impl Accelerator {
    /// Counts a worker.
    pub fn count_worker(&self, attached: Attached) {
        self.workers[attached as usize].fetch_add(1, Relaxed);
    }

    /// How many workers became what, by [`Attached`].
    pub fn workers(&self) -> [u64; 3] {
        read(&self.workers)
    }

    /// Adds to a queue's counters: that of device `device` with the number `id`.
    pub fn add_queue(&self, device: u32, id: u32, more: [u64; QUEUE_COUNTERS]) {
        let name = (u64::from(device) << 32 | u64::from(id)) + 1;
        for queue in &self.queues {
            // Whoever comes first has the place.
            let was = queue.name.compare_exchange(0, name, Relaxed, Relaxed).unwrap_or_else(|was| was);
            if was == 0 || was == name {
                return add(&queue.counters, more);
            }
        }
    }

    /// All queues that did anything: device, number, counters; in no order.
    pub fn queues(&self) -> impl Iterator<Item = (u32, u32, [u64; QUEUE_COUNTERS])> {
        let named =
            self.queues.iter().filter_map(|queue| Some((queue.name.load(Relaxed).checked_sub(1)?, queue)));
        named.map(|(name, queue)| ((name >> 32) as u32, name as u32, read(&queue.counters)))
    }

    /// Adds to a CPU's counters, where there is room for them in the file.
    pub fn add_cpu(&self, cpu: usize, more: [u64; CPU_COUNTERS]) {
        let cpu = cpu % CPUS;
        if self.has_room(cpu) {
            add(&self.cpus[cpu], more);
        }
    }

    /// True where a CPU's counters can be touched, and those before them.
    fn has_room(&self, cpu: usize) -> bool {
        let from = (self.cpus_end.load(Acquire) as usize).min(CPUS);
        if cpu < from {
            return true;
        }
        let is_there = find_room(&self.cpus[from..=cpu]);
        if is_there {
            self.cpus_end.fetch_max(cpu as u32 + 1, Release);
        }
        is_there
    }

    /// All CPUs that asked for anything, and their counters.
    pub fn cpus(&self) -> impl Iterator<Item = (usize, [u64; CPU_COUNTERS])> {
        let touched = &self.cpus[..(self.cpus_end.load(Acquire) as usize).min(CPUS)];
        touched.iter().map(read).enumerate().filter(|(_, counts)| counts.iter().any(|&count| count > 0))
    }

    /// Adds to the reasons.
    pub fn add_reasons(&self, more: [u64; REASONS]) {
        add(&self.reasons, more);
    }

    /// Units that software did, by the reason.
    pub fn reasons(&self) -> [u64; REASONS] {
        read(&self.reasons)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_workers_add_is_the_sum() {
        // SAFETY: every field is an atomic, for which all zeros is a value.
        let page: Box<Accelerator> = unsafe { Box::new_zeroed().assume_init() };
        assert_eq!((page.queues().count(), page.cpus().count(), page.workers()), (0, 0, [0; 3]));
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let page = &page;
                scope.spawn(move || {
                    page.count_worker([Attached::Yes, Attached::NoQueue][worker % 2]);
                    for round in 0..1000 {
                        page.add_queue(0, 0, [1; QUEUE_COUNTERS]);
                        page.add_queue(1 + round % 9, worker as u32, from_fn(|at| at as u64));
                        page.add_cpu(worker, [1, 0, 2, 0, 0, 0]);
                        page.add_reasons(from_fn(|at| u64::from(at == worker)));
                    }
                });
            }
        });
        assert_eq!(page.workers(), [2, 2, 0]);
        let mut queues: Vec<_> = page.queues().collect();
        queues.sort_unstable();
        assert_eq!((queues.len(), queues[0]), (1 + 9 * 4, (0, 0, [4000; QUEUE_COUNTERS])));
        let last: u64 = queues[1..].iter().map(|(.., counts)| counts[8]).sum();
        assert_eq!(last, 4 * 1000 * 8);
        assert!(page.cpus().eq((0..4).map(|cpu| (cpu, [1000, 0, 2000, 0, 0, 0]))));
        assert_eq!(page.reasons()[..5], [1000, 1000, 1000, 1000, 0]);
    }

    #[test]
    fn more_queues_than_there_is_room_for_do_no_harm() {
        // SAFETY: as above.
        let page: Box<Accelerator> = unsafe { Box::new_zeroed().assume_init() };
        (0..=QUEUES as u32).for_each(|id| page.add_queue(1, id, [1; QUEUE_COUNTERS]));
        assert_eq!(page.queues().count(), QUEUES);
        page.add_cpu(CPUS + 1, [1; CPU_COUNTERS]);
        assert_eq!(page.cpus().next(), Some((1, [1; CPU_COUNTERS])));
    }
}
