//! Memory that the device writes to: for each descriptor a completion record, a state, and room for the output.
//!
//! The device never writes to memory of the caller's. This is why a unit can be given up at any time, after a time-out
//! or because the caller no longer wants it: the device may write to a lane whenever it likes, and a lane is not used
//! again before its record says that the device is done with it, or its queue is closed. The price is a copy of the
//! result, which costs a fiftieth of what the device takes for a page.
//!
//! ```text
//!   lane:  | completion 64 | state 1568 | histogram 1280 | .. 4096 | output: unit and an eighth, in pages | scratch: the same |
//! ```

use crate::aecs::{CompressState, Histogram};
use crate::descriptor::Completion;
use crate::request::Error;
use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use base::PAGE;
use core::ptr::NonNull;

const STATE_AT: usize = size_of::<Completion>();
const HISTOGRAM_AT: usize = STATE_AT + size_of::<CompressState>();
const _: () =
    assert!(STATE_AT.is_multiple_of(align_of::<CompressState>()) && HISTOGRAM_AT.is_multiple_of(32));
const _: () = assert!(HISTOGRAM_AT + size_of::<Histogram>() <= PAGE);

/// The lanes of a context.
pub(crate) struct Lanes {
    base: NonNull<u8>,
    layout: Layout,
    count: usize,
    /// Bytes of an output.
    pub room: usize,
    stride: usize,
}

// SAFETY: plain memory, which the owner alone reaches (and the device, at addresses).
unsafe impl Send for Lanes {}

impl Lanes {
    /// Takes memory for `count` lanes for units of up to `unit_max` bytes. Pages of it that are never used stay
    /// unbacked.
    pub fn new(count: usize, unit_max: usize) -> Result<Lanes, Error> {
        // What does not shrink grows by an eighth at most with fixed codes, and by some bytes.
        let room = (unit_max + unit_max / 8 + 64).next_multiple_of(PAGE);
        let stride = PAGE + 2 * room;
        let bytes = stride.saturating_mul(count);
        let layout = Layout::from_size_align(bytes, PAGE).map_err(|_| Error::NoMemory { bytes })?;
        if bytes == 0 {
            return Err(Error::NoMemory { bytes });
        }
        // SAFETY: not empty.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(Error::NoMemory { bytes })?;
        let lanes = Lanes { base, layout, count, room, stride };
        for lane in 0..count {
            // SAFETY: within the allocation, aligned, and nobody's yet. Written here, so that the device finds it.
            unsafe {
                let head = lanes.at(lane, 0);
                head.cast::<Completion>().write(Completion::new());
            }
        }
        Ok(lanes)
    }

    /// An address within a lane.
    fn at(&self, lane: usize, offset: usize) -> *mut u8 {
        assert!(lane < self.count && offset < self.stride);
        // SAFETY: within the allocation: asserted.
        unsafe { self.base.as_ptr().add(lane * self.stride + offset) }
    }

    /// Where the device says that it is done.
    pub fn completion(&self, lane: usize) -> &Completion {
        // SAFETY: written by `new`, and as long-lived as `self`.
        unsafe { &*self.at(lane, 0).cast::<Completion>() }
    }

    /// The lane's state, for when no operation is under way in it.
    ///
    /// # Safety
    /// None is.
    pub unsafe fn state_mut(&mut self, lane: usize) -> &mut CompressState {
        // SAFETY: zeros at first, which are a state; aligned; the device is not at it (contract), and nobody else has
        // `&mut self`.
        unsafe { &mut *self.at(lane, STATE_AT).cast::<CompressState>() }
    }

    /// The address of the state.
    pub fn state_address(&self, lane: usize) -> u64 {
        self.at(lane, STATE_AT) as u64
    }

    /// What the device counted, for when no operation is under way.
    ///
    /// # Safety
    /// None is.
    pub unsafe fn histogram(&self, lane: usize) -> &Histogram {
        // SAFETY: initialised by `new`; any bits are counts; the device is not at it (contract).
        unsafe { &*self.at(lane, HISTOGRAM_AT).cast::<Histogram>() }
    }

    /// The address of the counts.
    pub fn histogram_address(&self, lane: usize) -> u64 {
        self.at(lane, HISTOGRAM_AT) as u64
    }

    /// The address of the output.
    pub fn output_address(&self, lane: usize) -> u64 {
        self.at(lane, PAGE) as u64
    }

    /// Where what was compressed comes out again, to be compared.
    pub fn scratch_address(&self, lane: usize) -> u64 {
        self.at(lane, PAGE + self.room) as u64
    }

    /// Copies the first bytes of the output.
    ///
    /// # Safety
    /// The device said that it wrote them, and no operation is under way.
    pub unsafe fn copy_output(&self, lane: usize, to: &mut [u8]) {
        assert!(to.len() <= self.room);
        // SAFETY: within the lane (asserted), written (contract), and no part of the caller's slice.
        unsafe { to.as_mut_ptr().copy_from_nonoverlapping(self.at(lane, PAGE), to.len()) };
    }

    /// True when the scratch begins with these bytes.
    ///
    /// # Safety
    /// No operation is under way.
    pub unsafe fn scratch_is(&self, lane: usize, expected: &[u8]) -> bool {
        assert!(expected.len() <= self.room);
        // SAFETY: within the lane (asserted), which nobody writes to (contract); zeros where nobody ever has.
        expected == unsafe { core::slice::from_raw_parts(self.at(lane, PAGE + self.room), expected.len()) }
    }

    /// Writes to each page of the first `bytes` of the scratch, and of the output if that is worth nothing, so that
    /// they are there.
    ///
    /// # Safety
    /// No operation is under way.
    pub unsafe fn touch(&self, lane: usize, bytes: usize, output: bool) {
        for offset in (0..bytes.min(self.room)).step_by(PAGE) {
            // SAFETY: within the lane; what is there is nobody's result (contract). Volatile, because it is done for
            // its effect alone.
            unsafe {
                self.at(lane, PAGE + self.room + offset).write_volatile(0);
                if output {
                    self.at(lane, PAGE + offset).write_volatile(0);
                }
            }
        }
    }

    /// True for an address within the lane.
    pub fn contains(&self, lane: usize, address: u64) -> bool {
        let start = self.at(lane, 0) as u64;
        (start..start + self.stride as u64).contains(&address)
    }

    /// Gives up the memory for good, because the device may still write to it.
    pub fn leak(&mut self) {
        self.count = 0;
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        if self.count != 0 {
            // SAFETY: allocated with this layout, and nobody uses it: who cannot know that calls `leak`.
            unsafe { dealloc(self.base.as_ptr(), self.layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_do_not_overlap() {
        let mut lanes = Lanes::new(3, 4096).unwrap();
        assert_eq!(lanes.room, 8192);
        for lane in 0..3 {
            let parts = [
                (lanes.completion(lane).address(), 64),
                (lanes.state_address(lane), 0x620),
                (lanes.histogram_address(lane), 1280),
                (lanes.output_address(lane), 8192),
                (lanes.scratch_address(lane), 8192),
            ];
            assert!(parts.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "{parts:x?}");
            assert!(parts.iter().all(|part| (0..3).all(|l| lanes.contains(l, part.0) == (l == lane))));
            assert_eq!((parts[0].0 % 64, parts[1].0 % 32, parts[3].0 % 4096), (0, 0, 0));
        }
        // SAFETY: there is no device.
        unsafe {
            lanes.touch(1, 5000, true);
            lanes.state_mut(1).clone_from(&CompressState::FIXED);
            assert_eq!(lanes.histogram(1), &Histogram::EMPTY);
            let mut copy = [7; 10];
            lanes.copy_output(1, &mut copy[..1]);
            assert_eq!(copy, [0, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
            lanes.at(1, PAGE).write(9);
            lanes.touch(1, 5000, false);
            assert_eq!(lanes.at(1, PAGE).read(), 9);
        }
        assert!(matches!(Lanes::new(usize::MAX / 2, 4096), Err(Error::NoMemory { .. })));
    }
}
