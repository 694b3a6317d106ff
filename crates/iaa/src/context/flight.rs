//! A batch on its way through the device. See [`context`](crate::context) for the drawing.

use crate::aecs::CompressState;
use crate::context::Context;
use crate::cpu::Wait;
use crate::descriptor::{Record, Status, error};
use crate::request::{At, Batch, Error, Operation, Outcome, Reason};
use base::sys;
use core::sync::atomic::Ordering::Relaxed;

/// What a descriptor of the context is used for.
#[derive(Clone, Copy)]
pub(crate) enum Slot {
    /// Nothing.
    Idle,
    /// To be submitted.
    Ready(Ready),
    /// The device has it.
    Flying(Flying),
    /// The device has it, and nobody waits for it any more.
    Lost(Lost),
}

#[derive(Clone, Copy)]
pub(crate) struct Lost {
    pub queue: usize,
    pub generation: u32,
    pub since_ns: u64,
    /// It was not done in time, and its queue knows.
    pub is_late: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Ready {
    pub request: usize,
    pub pass: Pass,
    /// Times that it stopped at a page fault.
    faults: u8,
    /// Times that a queue was full while nothing else was under way.
    pub refusals: u16,
    /// The queue whose turn it is, within [`Flight::launch`].
    pub queue: Option<usize>,
}

impl Ready {
    pub fn new(request: usize, pass: Pass) -> Ready {
        Ready { request, pass, faults: 0, refusals: 0, queue: None }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Flying {
    pub ready: Ready,
    pub queue: usize,
    pub generation: u32,
    pub since_ns: u64,
}

impl Flying {
    pub fn lost(self, is_late: bool) -> Lost {
        let Flying { queue, generation, since_ns, .. } = self;
        Lost { queue, generation, since_ns, is_late }
    }
}

/// What a descriptor is for.
#[derive(Clone, Copy)]
pub(crate) enum Pass {
    /// Counts the symbols.
    Count,
    /// Does the work.
    Work,
    /// Decompresses what was compressed, to be compared with what was given.
    Verify { bytes: usize, crc32: u32 },
}

/// So often a unit is given to the device again after a page fault. All its pages are touched each time: a second fault
/// means that they went away at once, a fifth that something is wrong.
const FAULTS_MAX: u8 = 4;

/// A batch that was begun. Dropped, it leaves what is not done undone ([`Error::NotRun`]).
///
/// What was decompressed is not checked here: whoever stored it has a checksum of his own.
pub struct Flight<'c, B: Batch> {
    pub(crate) context: &'c mut Context,
    pub(crate) operation: Operation,
    pub(crate) batch: B,
    /// Requests without a result.
    left: usize,
    /// Something happened since it was last asked.
    pub(crate) moved: bool,
}

impl<'c, B: Batch> Flight<'c, B> {
    pub(crate) fn new(context: &'c mut Context, mut batch: B) -> Self {
        let left = (0..batch.count()).filter(|&at| batch.unit(at).stage.0 != At::Done).count();
        Flight { context, operation: batch.operation(), batch, left, moved: false }
    }

    pub(crate) fn take_off(&mut self) {
        self.context.recover();
        self.admit();
        self.launch();
    }

    /// Lets go of the batch, which stays under way until [`Context::resume`] goes on with it.
    pub fn leave(self) {
        core::mem::forget(self);
    }

    /// Collects what is done, in the order in which that happens, submits what has room now, and does at most one unit
    /// in software. Returns how many requests have no result yet. It never waits.
    pub fn poll(&mut self) -> usize {
        self.collect();
        self.take_off();
        self.one_in_software();
        self.left
    }

    /// Polls until all requests have their result.
    pub fn wait(self) {
        self.wait_with(|| {});
    }

    /// The same, and calls `between` again and again meanwhile.
    pub fn wait_with(mut self, mut between: impl FnMut()) {
        let mut wait = Wait::new(self.context.driver.features);
        while self.poll() > 0 {
            between();
            if core::mem::take(&mut self.moved) {
                wait.reset();
                continue;
            }
            let context = &*self.context;
            let oldest = context.slots.iter().position(|slot| matches!(slot, Slot::Flying(_)));
            wait.relax(oldest.map(|lane| context.lanes.completion(lane)));
        }
    }

    /// How many requests a device has at the moment.
    pub fn in_flight(&self) -> usize {
        self.context.slots.iter().filter(|slot| matches!(slot, Slot::Flying(_))).count()
    }

    /// Looks at each completion record.
    fn collect(&mut self) {
        let mut now = None;
        for lane in 0..self.context.slots.len() {
            let Slot::Flying(flying) = self.context.slots[lane] else { continue };
            let queue = self.context.driver.queue(flying.queue);
            // The record first: what is done is done, whatever became of the queue and however late it is.
            if let Some(record) = self.context.lanes.completion(lane).read() {
                queue.release(flying.generation, 1);
                queue.answered();
                self.context.slots[lane] = Slot::Idle;
                self.completed(lane, flying, record);
            } else if !queue.is_open(flying.generation) {
                self.give_up(lane, flying, Reason::Gone);
            } else {
                let now = *now.get_or_insert_with(sys::now_ns);
                if now.saturating_sub(flying.since_ns) > self.context.driver.config.timeout_ns {
                    self.context.driver.late(flying.queue, flying.generation);
                    self.give_up(lane, flying, Reason::Timeout);
                }
            }
        }
    }

    /// The CPU does what the device may or may not do yet: it writes to its lane alone.
    fn give_up(&mut self, lane: usize, flying: Flying, reason: Reason) {
        self.context.slots[lane] = Slot::Lost(flying.lost(reason == Reason::Timeout));
        self.leave_to_software(flying.ready.request, reason);
    }

    pub(crate) fn leave_to_software(&mut self, request: usize, reason: Reason) {
        self.batch.unit(request).stage.0 = At::Software(reason);
        self.moved = true;
    }

    /// A descriptor is done, well or not. The lane is idle: nothing is under way in it.
    fn completed(&mut self, lane: usize, flying: Flying, record: Record) {
        self.moved = true;
        let Ready { request, pass, .. } = flying.ready;
        let counters = &self.context.driver.queue(flying.queue).counters;
        let compressing = self.operation == Operation::Compress;
        match record.status.code() {
            Status::SUCCESS => return self.succeeded(lane, flying, record),
            Status::PAGE_FAULT => {
                counters.page_faults.fetch_add(1, Relaxed);
                return self.faulted(lane, flying.ready, record);
            }
            Status::ANALYTICS_ERROR if record.error == error::UNRECOVERABLE_OVERFLOW && compressing => {
                if let Pass::Work = pass {
                    return self.finish(flying, Outcome::Incompressible);
                }
            }
            Status::OUTPUT_OVERFLOW if compressing => {
                if let Pass::Work = pass {
                    return self.finish(flying, Outcome::Incompressible);
                }
            }
            _ => {}
        }
        counters.errors.fetch_add(1, Relaxed);
        let reason = match (record.status.code(), pass) {
            (_, Pass::Verify { .. }) => Reason::Verify,
            (Status::ANALYTICS_ERROR | Status::OUTPUT_OVERFLOW, _) => Reason::Data,
            _ => Reason::Status,
        };
        self.leave_to_software(request, reason);
    }

    fn succeeded(&mut self, lane: usize, flying: Flying, record: Record) {
        let Ready { request, pass, .. } = flying.ready;
        let next = |pass| Slot::Ready(Ready::new(request, pass));
        let bytes = record.dst_bytes as usize;
        match pass {
            Pass::Count => {
                // SAFETY: the operation is done, and the next one not begun.
                unsafe {
                    let counts = self.context.lanes.histogram(lane).clone();
                    self.context.lanes.state_mut(lane).set_dynamic(&counts);
                }
                self.context.slots[lane] = next(Pass::Work);
            }
            Pass::Work if matches!(self.operation, Operation::Crc64(_)) => {
                self.finish(flying, Outcome::Checksum(record.crc64()));
            }
            // No result is empty, and none is longer than was permitted.
            Pass::Work if bytes == 0 || bytes > self.room(request) => {
                self.leave_to_software(request, Reason::Status)
            }
            // Whoever knows how long it must be has it from the CPU otherwise.
            Pass::Work
                if self.operation == Operation::Decompress
                    && self.batch.is_exact()
                    && bytes != self.batch.unit(request).dst.len() =>
            {
                self.leave_to_software(request, Reason::Verify)
            }
            Pass::Work
                if self.operation == Operation::Compress && self.context.driver.config.verify_compress =>
            {
                self.context.slots[lane] = next(Pass::Verify { bytes, crc32: record.crc32 });
            }
            Pass::Work => self.deliver(lane, flying, bytes),
            // All of the output was read, and came to what was given: not to what the device says that it was given.
            Pass::Verify { bytes: compressed, crc32 } => {
                let src = self.batch.unit(request).src;
                // SAFETY: the device is done.
                let is_same = || unsafe { self.context.lanes.scratch_is(lane, src) };
                let is_whole = bytes == src.len() && record.src_done_bytes as usize == compressed;
                if is_whole && record.crc32 == crc32 && is_same() {
                    self.deliver(lane, flying, compressed);
                } else {
                    self.leave_to_software(request, Reason::Verify);
                }
            }
        }
    }

    /// Copies a result out of its lane.
    fn deliver(&mut self, lane: usize, flying: Flying, bytes: usize) {
        let to = &mut self.batch.unit(flying.ready.request).dst[..bytes];
        // SAFETY: the device is done, and said that it wrote as many.
        unsafe { self.context.lanes.copy_output(lane, to) };
        self.finish(flying, Outcome::Written(bytes));
    }

    /// The device answered.
    fn finish(&mut self, flying: Flying, outcome: Outcome) {
        let src_bytes = self.batch.unit(flying.ready.request).src.len();
        let driver = &self.context.driver;
        let counters = &driver.queue(flying.queue).counters;
        let (calls, bytes, count) = match (self.operation, outcome) {
            (Operation::Compress, Outcome::Written(bytes)) => {
                (&counters.comp_calls, &counters.comp_bytes_out, bytes)
            }
            (Operation::Compress, _) => (&counters.comp_calls, &counters.comp_bytes_out, 0),
            (Operation::Decompress, _) => (&counters.decomp_calls, &counters.decomp_bytes_in, src_bytes),
            (Operation::Crc64(_), _) => (&counters.crc_calls, &counters.crc_bytes_in, src_bytes),
        };
        calls.fetch_add(1, Relaxed);
        bytes.fetch_add(count as u64, Relaxed);
        driver.cpu_counters(self.context.cpu).count(self.operation, true);
        self.done(flying.ready.request, Ok(outcome));
    }

    fn done(&mut self, request: usize, result: Result<Outcome, Error>) {
        let stage = self.batch.unit(request).stage;
        debug_assert!(stage.0 != At::Done);
        stage.0 = At::Done;
        self.batch.finish(request, result);
        self.left -= 1;
        self.moved = true;
    }

    /// The device missed a page. It is brought by touching it, with all others of the unit, and the operation begins
    /// again: what it wrote so far is in the lane alone.
    fn faulted(&mut self, lane: usize, ready: Ready, record: Record) {
        let room = self.room(ready.request);
        let src = self.batch.unit(ready.request).src;
        let of_src =
            (src.as_ptr_range().start as u64 & !(base::PAGE as u64 - 1))..src.as_ptr_range().end as u64;
        let state: *const CompressState = &*self.context.driver.state;
        let of_state =
            (state as u64 & !(base::PAGE as u64 - 1))..state as u64 + size_of::<CompressState>() as u64;
        let page = record.fault_address;
        let is_ours =
            of_src.contains(&page) || of_state.contains(&page) || self.context.lanes.contains(lane, page);
        if ready.faults >= FAULTS_MAX || !is_ours {
            return self.leave_to_software(ready.request, Reason::PageFault);
        }
        for offset in (0..src.len()).step_by(base::PAGE).chain(src.len().checked_sub(1)) {
            // SAFETY: within the slice. Volatile, because it is read for the effect alone.
            unsafe { src.as_ptr().add(offset).read_volatile() };
        }
        // While it verifies, what it compressed is in the lane, and must stay.
        let output = !matches!(ready.pass, Pass::Verify { .. });
        // SAFETY: the operation is over, and its output, if it was to write there, worth nothing. The state is the
        // driver's, and read for the effect too: its first and its last byte are in all pages that it can be in.
        unsafe {
            if !matches!(self.operation, Operation::Crc64(_)) {
                self.context.lanes.touch(lane, room.max(src.len()), output);
            }
            state.cast::<u8>().read_volatile();
            state.cast::<u8>().add(size_of::<CompressState>() - 1).read_volatile();
        }
        self.context.slots[lane] = Slot::Ready(Ready { faults: ready.faults + 1, queue: None, ..ready });
    }

    /// How much output a request may have.
    pub(crate) fn room(&mut self, request: usize) -> usize {
        self.batch.unit(request).dst.len().min(self.context.lanes.room)
    }

    /// Does one unit on the CPU, if one is to be.
    fn one_in_software(&mut self) {
        let found = (0..self.batch.count()).find_map(|at| match self.batch.unit(at).stage.0 {
            At::Software(reason) => Some((at, reason)),
            _ => None,
        });
        let Some((at, reason)) = found else { return };
        let driver = &self.context.driver;
        driver.reasons.count(reason);
        driver.cpu_counters(self.context.cpu).count(self.operation, false);
        let unit = self.batch.unit(at);
        let software = &mut self.context.software;
        let result = match self.operation {
            Operation::Compress => {
                Ok(software.compress(unit.src, unit.dst).map_or(Outcome::Incompressible, Outcome::Written))
            }
            Operation::Decompress => {
                software.decompress(unit.src, unit.dst).map(Outcome::Written).ok_or(Error::Damaged)
            }
            Operation::Crc64(crc) => Ok(Outcome::Checksum(software.crc64(unit.src, crc))),
        };
        self.done(at, result);
    }
}

impl<B: Batch> Drop for Flight<'_, B> {
    fn drop(&mut self) {
        self.context.abandon();
    }
}
