//! A thread's context: descriptors and memory for a batch, and how a batch goes through the device.
//!
//! ```text
//!             a lane is idle             the queue took it           record: done
//!   Waiting ----------------> Ready ---------------------> Flying ----------------> result
//!      |                        |  ^                        |  |
//!      |                        |  +---- the next pass -----+  +--> given up: Lost, until the record is written after all, or
//!      |  no queue, no lane     |        (count, compress,     |       the queue closed, which has lost too many, and reaped
//!      +------> software <------+         verify; page fault)  |  time-out, queue gone, bad status
//!                   ^----------------------------------------- +
//! ```
//!
//! Nothing here waits for a lock, and nothing waits without a bound: what the queues do not take after so many tries,
//! and what is not done in time, the CPU does.

pub mod flight;
mod launch;

use crate::cpu;
use crate::crc::Crc64;
use crate::descriptor::Descriptor;
use crate::driver::Driver;
use crate::lanes::Lanes;
use crate::request::{At, Batch, Error, Operation, Outcome, Reason, Request, Requests, Software};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use base::sys;
use flight::{Flight, Lost, Slot};

/// A thread's own part of the driver.
pub struct Context {
    pub(crate) driver: Arc<Driver>,
    pub(crate) software: Box<dyn Software + Send>,
    pub(crate) lanes: Lanes,
    pub(crate) slots: Vec<Slot>,
    /// Descriptors on their way to one queue, in a row as write(2) wants them.
    pub(crate) staged: Vec<Descriptor>,
    pub(crate) unit_max: usize,
    /// The CPU that this batch began on.
    pub(crate) cpu: usize,
}

impl Context {
    /// Makes a context with `descriptors` descriptors, for plain units of up to `unit_max` bytes. `software` does what
    /// the device does not. All memory is taken here; batches allocate nothing.
    ///
    /// # Errors
    /// [`Error::NoMemory`], also if there are to be no descriptors.
    pub fn new(
        driver: Arc<Driver>,
        software: Box<dyn Software + Send>,
        descriptors: usize,
        unit_max: usize,
    ) -> Result<Context, Error> {
        let lanes = Lanes::new(descriptors, unit_max)?;
        let slots = (0..descriptors).map(|_| Slot::Idle).collect();
        let staged = Vec::with_capacity(descriptors);
        Ok(Context { driver, software, lanes, slots, staged, unit_max, cpu: 0 })
    }

    /// How many requests are under way at a time: a good size for a batch. Others are served as well.
    pub fn batch_size(&self) -> usize {
        self.slots.len()
    }

    /// The driver.
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Begins a batch and submits as much of it as there are descriptors. The rest of the work is done by
    /// [`Flight::poll`].
    pub fn begin<B: Batch>(&mut self, mut batch: B) -> Flight<'_, B> {
        // A flight that was forgotten left its slots behind.
        self.abandon();
        self.cpu = cpu::current();
        let operation = batch.operation();
        for at in 0..batch.count() {
            let unit = batch.unit(at);
            let plain = match operation {
                Operation::Compress => unit.src.len(),
                Operation::Decompress => unit.dst.len(),
                // No lane has to hold it.
                Operation::Crc64(_) => 0,
            };
            let is_empty = unit.src.is_empty() || unit.dst.is_empty();
            // A descriptor's lengths have 32 bits.
            let is_long = unit.src.len() > u32::MAX as usize;
            let result = match operation {
                _ if plain > self.unit_max => {
                    Err(Error::UnitTooLong { bytes: plain, unit_max: self.unit_max })
                }
                Operation::Compress if is_empty => Ok(Outcome::Incompressible),
                Operation::Decompress if is_empty => Err(Error::Damaged),
                // A device takes no empty input.
                Operation::Crc64(crc) if unit.src.is_empty() => Ok(Outcome::Checksum(crc.of(&[]))),
                _ => Err(Error::NotRun),
            };
            unit.stage.0 = match result {
                Err(Error::NotRun) if is_long => At::Software(Reason::TooLong),
                Err(Error::NotRun) => At::Waiting,
                _ => At::Done,
            };
            batch.finish(at, result);
        }
        let mut flight = Flight::new(self, batch);
        flight.take_off();
        flight
    }

    /// Goes on with the batch that was begun and [left](Flight::leave), which must be this one.
    pub fn resume<B: Batch>(&mut self, batch: B) -> Flight<'_, B> {
        Flight::new(self, batch)
    }

    /// Compresses each request's `src` into its `dst`.
    pub fn compress(&mut self, batch: &mut [Request<'_>]) {
        self.begin(Requests(Operation::Compress, batch)).wait();
    }

    /// Decompresses each request's `src` into its `dst`.
    pub fn decompress(&mut self, batch: &mut [Request<'_>]) {
        self.begin(Requests(Operation::Decompress, batch)).wait();
    }

    /// Computes the CRC of each request's `src`.
    pub fn crc64(&mut self, crc: Crc64, batch: &mut [Request<'_>]) {
        self.begin(Requests(Operation::Crc64(crc), batch)).wait();
    }

    /// Lets go of whatever is under way.
    pub fn abandon(&mut self) {
        for slot in &mut self.slots {
            *slot = match *slot {
                Slot::Flying(flying) => Slot::Lost(flying.lost(false)),
                Slot::Ready(_) => Slot::Idle,
                other => other,
            };
        }
    }

    /// Takes back the lanes that the device is done with after all: it said so, or the queue is closed and drained. Of
    /// what was given up before its time was over nobody else finds out that it is.
    pub(crate) fn recover(&mut self) {
        let mut now = None;
        for lane in 0..self.slots.len() {
            let Slot::Lost(lost) = self.slots[lane] else { continue };
            let queue = self.driver.queue(lost.queue);
            if self.lanes.completion(lane).read().is_some() || queue.is_drained(lost.generation) {
                queue.release(lost.generation, 1);
                if lost.is_late {
                    queue.found(lost.generation);
                }
                self.slots[lane] = Slot::Idle;
            } else if !lost.is_late {
                let now = *now.get_or_insert_with(sys::now_ns);
                if now.saturating_sub(lost.since_ns) > self.driver.config.timeout_ns {
                    self.slots[lane] = Slot::Lost(Lost { is_late: true, ..lost });
                    self.driver.late(lost.queue, lost.generation);
                }
            }
        }
    }

    /// For who has nothing urgent to do: lets go of queues that were closed, which may take as long as their device
    /// does, and takes back the lanes that they had; and [looks](Context::look).
    pub fn rest(&mut self) {
        self.let_go();
        self.look();
    }

    /// Between batches: looks once a second for queues and CPUs that have come or gone ([`Driver::look`]).
    pub fn look(&mut self) {
        self.driver.look(sys::now_ns());
    }

    fn let_go(&mut self) {
        self.driver.reap();
        self.recover();
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.abandon();
        self.let_go();
        if self.slots.iter().any(|slot| !matches!(slot, Slot::Idle)) {
            self.lanes.leak();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_go_to_their_threads_and_drivers_are_shared() {
        fn is_send<T: Send>() {}
        fn is_sync<T: Send + Sync>() {}
        is_send::<Context>();
        is_sync::<Driver>();
    }
}
