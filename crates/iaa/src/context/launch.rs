//! How a batch is submitted: lanes for requests, queues for lanes, descriptors for queues.

use super::flight::{Flight, Flying, Pass, Ready, Slot};
use crate::aecs::{CompressState, Histogram};
use crate::crc::Crc64;
use crate::descriptor::{Descriptor, Opcode, compress, crc64, decompress, flag};
use crate::driver::Mode;
use crate::queue::Spec;
use crate::request::{At, Batch, Operation, Reason};
use base::sys;
use core::sync::atomic::Ordering::Relaxed;

/// True if neither input nor output is longer than the queue takes.
fn fits(descriptor: &Descriptor, transfer_max_bytes: usize) -> bool {
    descriptor.src_bytes.max(descriptor.dst_max_bytes) as usize <= transfer_max_bytes
}

impl<B: Batch> Flight<'_, B> {
    /// Gives requests that wait a lane.
    pub(crate) fn admit(&mut self) {
        let first = match (self.operation, &self.context.driver.config.mode) {
            (Operation::Compress, Mode::Dynamic) => Pass::Count,
            _ => Pass::Work,
        };
        let mut lane = 0;
        for request in 0..self.batch.count() {
            if self.batch.unit(request).stage.0 != At::Waiting {
                continue;
            }
            while lane < self.context.slots.len() && !matches!(self.context.slots[lane], Slot::Idle) {
                lane += 1;
            }
            if lane < self.context.slots.len() {
                self.context.slots[lane] = Slot::Ready(Ready::new(request, first));
                self.batch.unit(request).stage.0 = At::OnDevice;
            } else if self.context.slots.iter().all(|slot| matches!(slot, Slot::Lost(_))) {
                self.leave_to_software(request, Reason::NoDescriptor);
            } else {
                break;
            }
        }
    }

    /// Submits what is ready, the whole of each queue's part at once.
    pub(crate) fn launch(&mut self) {
        let nothing_flies = self.in_flight() == 0;
        for lane in 0..self.context.slots.len() {
            if let Slot::Ready(mut ready) = self.context.slots[lane] {
                let operation = match ready.pass {
                    Pass::Verify { .. } => Operation::Decompress,
                    _ => self.operation,
                };
                ready.queue = self.context.driver.next(self.context.cpu, operation);
                self.context.slots[lane] = Slot::Ready(ready);
                if ready.queue.is_none() {
                    self.context.slots[lane] = Slot::Idle;
                    self.leave_to_software(ready.request, Reason::NoQueue);
                }
            }
        }
        for lane in 0..self.context.slots.len() {
            if let Slot::Ready(Ready { queue: Some(queue), .. }) = self.context.slots[lane] {
                self.launch_to(queue, lane);
            }
        }
        if !nothing_flies {
            return;
        }
        // Whatever is still ready was refused, and nothing of ours is under way whose end would make room: this is
        // counted.
        for lane in 0..self.context.slots.len() {
            let retries_max = self.context.driver.config.retries_max;
            if let Slot::Ready(ready) = &mut self.context.slots[lane] {
                ready.refusals += 1;
                if ready.refusals > retries_max.into() {
                    let request = ready.request;
                    self.context.slots[lane] = Slot::Idle;
                    self.leave_to_software(request, Reason::Full);
                }
            }
        }
    }

    /// Submits all that is ready for one queue, from a lane on.
    fn launch_to(&mut self, place: usize, from: usize) {
        // The driver outlives the loop whatever becomes of the context's other parts.
        let driver = self.context.driver.clone();
        let queue = driver.queue(place);
        let is_for_it =
            |slot: &Slot| matches!(slot, Slot::Ready(Ready { queue: Some(q), .. }) if *q == place);
        let Some(entered) = queue.enter() else {
            // Closed since the look-up. The next one may not be.
            return self.refuse(place);
        };
        for lane in from..self.context.slots.len() {
            if let Slot::Ready(ready) = self.context.slots[lane]
                && is_for_it(&self.context.slots[lane])
                && !fits(&self.descriptor(lane, ready, &entered), entered.transfer_max_bytes)
            {
                self.context.slots[lane] = Slot::Idle;
                self.leave_to_software(ready.request, Reason::TooLong);
            }
        }
        let wanted = self.context.slots[from..].iter().filter(|slot| is_for_it(slot)).count();
        let room = entered.reserve(wanted as u32) as usize;
        self.context.staged.clear();
        for lane in from..self.context.slots.len() {
            if let Slot::Ready(ready) = self.context.slots[lane]
                && is_for_it(&self.context.slots[lane])
                && self.context.staged.len() < room
            {
                let descriptor = self.descriptor(lane, ready, &entered);
                self.context.lanes.completion(lane).clear();
                self.context.staged.push(descriptor);
            }
        }
        let taken = match self.context.staged.len() {
            0 => Ok(0),
            // SAFETY: each descriptor's outputs and record are in a lane that is used for nothing else until its record
            // is written or the portal dropped (Context::recover), and is not freed before (Context's drop).
            _ => unsafe { entered.portal().submit(&self.context.staged) },
        };
        let accepted = taken.unwrap_or(0).min(room);
        queue.release(entered.generation, (room - accepted) as u32);
        queue.counters.descriptors.fetch_add(accepted as u64, Relaxed);
        queue.counters.refused.fetch_add((wanted - accepted) as u64, Relaxed);
        let since_ns = if accepted > 0 { sys::now_ns() } else { 0 };
        let generation = entered.generation;
        drop(entered);
        let ready = self.context.slots[from..].iter_mut().filter(|slot| is_for_it(slot));
        for slot in ready.take(accepted) {
            if let Slot::Ready(ready) = *slot {
                *slot = Slot::Flying(Flying { ready, queue: place, generation, since_ns });
            }
        }
        self.moved |= accepted > 0;
        self.refuse(place);
        if taken.is_err() {
            driver.retire(place, generation);
        }
    }

    /// What a queue did not take stays ready, for another one.
    fn refuse(&mut self, place: usize) {
        for slot in &mut self.context.slots {
            if let Slot::Ready(ready) = slot
                && ready.queue == Some(place)
            {
                ready.queue = None;
            }
        }
    }

    /// The descriptor of a lane's next operation.
    fn descriptor(&mut self, lane: usize, ready: Ready, spec: &Spec) -> Descriptor {
        let room = self.room(ready.request);
        let request = self.batch.unit(ready.request);
        let (lanes, driver) = (&self.context.lanes, &self.context.driver);
        let mut descriptor = Descriptor {
            completion: lanes.completion(lane).address(),
            src: request.src.as_ptr() as u64,
            src_bytes: request.src.len() as u32,
            dst: lanes.output_address(lane),
            dst_max_bytes: room as u32,
            ..Descriptor::default()
        };
        let mut flags = flag::CRAV | flag::RCR | flag::CC;
        if spec.block_on_fault {
            flags |= flag::BOF;
        }
        let opcode = match (self.operation, ready.pass) {
            (_, Pass::Count) => {
                descriptor.operation_flags = compress::STATISTICS;
                descriptor.dst = lanes.histogram_address(lane);
                descriptor.dst_max_bytes = size_of::<Histogram>() as u32;
                Opcode::Compress
            }
            (_, Pass::Verify { bytes, .. }) => {
                descriptor.operation_flags = decompress::WHOLE;
                descriptor.src = lanes.output_address(lane);
                descriptor.src_bytes = bytes as u32;
                descriptor.dst = lanes.scratch_address(lane);
                descriptor.dst_max_bytes = request.src.len() as u32;
                Opcode::Decompress
            }
            (Operation::Compress, Pass::Work) => {
                descriptor.operation_flags = compress::FLUSH_OUTPUT | compress::APPEND_EOB;
                // Less room than there could be is still room: what does not fit is incompressible.
                descriptor.dst_max_bytes =
                    descriptor.dst_max_bytes.min(u32::try_from(spec.transfer_max_bytes).unwrap_or(u32::MAX));
                descriptor.src2 = match driver.config.mode {
                    Mode::Dynamic => lanes.state_address(lane),
                    _ => &raw const *driver.state as u64,
                };
                descriptor.src2_bytes = size_of::<CompressState>() as u32;
                flags |= flag::READ_AECS;
                Opcode::Compress
            }
            (Operation::Decompress, Pass::Work) => {
                descriptor.operation_flags = decompress::WHOLE;
                Opcode::Decompress
            }
            (Operation::Crc64(crc), Pass::Work) => {
                sum(&mut descriptor, crc);
                // There is no output that could go to the cache.
                flags &= !flag::CC;
                Opcode::Crc64
            }
        };
        descriptor.set_operation(opcode, flags);
        descriptor
    }
}

/// Has a descriptor compute a checksum, and write nothing.
fn sum(descriptor: &mut Descriptor, crc: Crc64) {
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    descriptor.operation_flags = flag(crc.inverted, crc64::INVERT) | flag(crc.big_endian, crc64::BIG_ENDIAN);
    (descriptor.filter_flags, descriptor.inputs) = (crc.polynomial as u32, (crc.polynomial >> 32) as u32);
    (descriptor.dst, descriptor.dst_max_bytes) = (0, 0);
}
