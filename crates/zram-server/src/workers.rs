//! Workers that are lent for a request.
//!
//! A worker has about 1 MiB, and a front end may have hundreds of threads of which few are in the device at a time. So
//! each CPU has a list of idle workers, and a request takes one from its CPU's, or makes one. A lock is held for a push
//! or a pop. Nobody waits for a worker.

use rustix::thread::sched_getcpu;
use std::sync::{Condvar, Mutex, MutexGuard};
use zram::{Device, Worker};

/// Idle workers that a CPU keeps.
const IDLE_MAX: usize = 16;

/// The workers of a device.
pub struct Workers {
    shards: Vec<Shard>,
}

/// Those of a CPU. It has cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Shard {
    list: Mutex<List>,
    /// Told when nothing is lent after the end.
    returned: Condvar,
}

#[derive(Default)]
struct List {
    idle: Vec<Worker>,
    lent: usize,
    is_closed: bool,
}

/// One that is lent; it goes back when this is dropped.
struct Lent<'a> {
    shard: &'a Shard,
    worker: Option<Worker>,
}

impl Workers {
    /// None yet.
    pub fn new() -> Workers {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Workers { shards: (0..cpus).map(|_| Shard::default()).collect() }
    }

    /// Lends a worker for a request. `None` after the end.
    pub fn lend<R>(&self, device: &Device, request: impl FnOnce(&mut Worker) -> R) -> Option<R> {
        let shard = &self.shards[sched_getcpu() % self.shards.len()];
        let worker = {
            let mut list = shard.lock();
            if list.is_closed {
                return None;
            }
            list.lent += 1;
            list.idle.pop()
        };
        let mut lent = Lent { shard, worker };
        Some(request(lent.worker.get_or_insert_with(|| device.worker())))
    }

    /// Ends it: no request begins any more, and none is under way when this returns.
    pub fn close(&self) {
        for shard in &self.shards {
            shard.lock().is_closed = true;
        }
        for shard in &self.shards {
            let list = shard.returned.wait_while(shard.lock(), |list| list.lent > 0);
            drop(list.unwrap_or_else(|poisoned| poisoned.into_inner()));
        }
    }

    /// Begins again after [`Workers::close`].
    pub fn open(&self) {
        self.shards.iter().for_each(|shard| shard.lock().is_closed = false);
    }
}

impl Default for Workers {
    fn default() -> Workers {
        Workers::new()
    }
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut list = self.shard.lock();
        list.lent -= 1;
        if list.idle.len() < IDLE_MAX && !list.is_closed {
            list.idle.extend(self.worker.take());
        }
        if list.is_closed && list.lent == 0 {
            self.shard.returned.notify_all();
        }
    }
}
