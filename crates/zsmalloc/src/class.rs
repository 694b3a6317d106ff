//! Size classes: which there are, and how each cuts its zspages.
//!
//! ```text
//!   class   0   1   2  ..  62 |   63  ..  126 |  127  ..  190 | .. |   447   ..   510
//!   size   32  48  64  .. 1024| 1040  .. 2048 | 2080  .. 4096 | .. | 66,560 .. 131,072
//!   step         16           |      16       |      32       | .. |       1024
//! ```
//!
//! The last octave is for folios of 64 KiB that did not shrink: with a header they are a little longer than they were.

use crate::PAGE;
use crate::arena::UNIT;
use crate::fullness::Zspages;
use base::Mutex;

/// The longest object that shares a zspage, in bytes.
pub const CLASS_MAX_BYTES: usize = 128 << 10;
/// How many classes there are.
pub const CLASSES: usize = SMALL + STEPS * OCTAVES;

const MIN_BYTES: usize = 32;
const STEP_BYTES: usize = 16;
/// Up to here every `STEP_BYTES`; above, `STEPS` to the octave.
const SMALL_MAX_BYTES: usize = STEP_BYTES * STEPS;
const SMALL: usize = (SMALL_MAX_BYTES - MIN_BYTES) / STEP_BYTES + 1;
const STEPS: usize = 64;
const OCTAVES: usize = (CLASS_MAX_BYTES / SMALL_MAX_BYTES).ilog2() as usize;

/// The class of objects of `len` bytes, 1 to `CLASS_MAX_BYTES`: the smallest that holds them.
pub fn class_of(len: usize) -> usize {
    if len <= SMALL_MAX_BYTES {
        return (len.max(MIN_BYTES) - MIN_BYTES).div_ceil(STEP_BYTES);
    }
    let octave = ((len - 1) / SMALL_MAX_BYTES).ilog2() as usize;
    SMALL + STEPS * octave + len.div_ceil(STEP_BYTES << octave) - STEPS - 1
}

/// Bytes of a slot in class `class`.
pub fn size_of(class: usize) -> usize {
    match class.checked_sub(SMALL) {
        None => MIN_BYTES + STEP_BYTES * class,
        Some(large) => (STEPS + 1 + large % STEPS) * (STEP_BYTES << (large / STEPS)),
    }
}

/// A class, and its zspages behind its lock.
pub struct Class {
    /// Bytes of a slot, a multiple of 16.
    pub size: usize,
    /// Slots of a zspage.
    pub slots: usize,
    /// Units of address space that a zspage takes: 1, 2, 4 or 8.
    pub units: usize,
    /// Its zspages.
    pub zspages: Mutex<Zspages>,
}

impl Class {
    /// Class number `class`, without zspages.
    pub fn new(class: usize) -> Self {
        let size = size_of(class);
        let (units, slots) = cut(size);
        Class { size, slots, units, zspages: Mutex::new(Zspages::default()) }
    }
}

/// Units and slots of a zspage for slots of `size` bytes. Small zspages are emptied sooner, and so the fewest units in
/// which the waste at the end is below 1/256 are best; if there are none, those with least waste. At least half of the
/// address space is used.
fn cut(size: usize) -> (usize, usize) {
    let mut best = (usize::MAX, 0, 0);
    for units in [1, 2, 4, 8] {
        let room = units * UNIT / size;
        for slots in (room.div_ceil(2).max(1)..=room).rev() {
            let bytes = slots * size;
            let waste = (bytes.next_multiple_of(PAGE) - bytes) * (1 << 20) / bytes;
            if waste < best.0 {
                best = (waste, units, slots);
            }
        }
        if best.0 < (1 << 20) / 256 {
            break;
        }
    }
    (best.1, best.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length, and under Miri, which is slow, every so many.
    const STEP: usize = if cfg!(miri) { 997 } else { 1 };

    #[test]
    fn the_class_of_a_length_is_the_smallest_that_holds_it() {
        for len in (1..=CLASS_MAX_BYTES).step_by(STEP) {
            let class = class_of(len);
            assert!(len <= size_of(class), "{len} in class {class} of {}", size_of(class));
            assert!(class == 0 || len > size_of(class - 1), "{len} fits into the class before {class}");
        }
        assert_eq!(class_of(CLASS_MAX_BYTES), CLASSES - 1);
        assert_eq!((size_of(0), size_of(CLASSES - 1)), (32, CLASS_MAX_BYTES));
    }

    #[test]
    fn rounding_is_what_the_crate_promises() {
        let (mut sum, mut lens) = (0.0, 0);
        for len in (1025..=CLASS_MAX_BYTES).step_by(STEP) {
            let waste = (size_of(class_of(len)) - len) as f64 / len as f64;
            assert!(waste < 0.016, "{len}: {waste}");
            (sum, lens) = (sum + waste, lens + 1);
        }
        assert!(sum / (lens as f64) < 0.006, "{}", sum / lens as f64);
        for len in 17..=1024usize {
            assert!(size_of(class_of(len)) - len < 16);
        }
    }

    #[test]
    fn the_end_of_a_zspage_is_small() {
        for class in 0..CLASSES {
            let c = Class::new(class);
            let bytes = c.slots * c.size;
            assert!(bytes <= c.units * UNIT && c.slots <= 2048, "{} {} {}", c.size, c.slots, c.units);
            let waste = (bytes.next_multiple_of(PAGE) - bytes) as f64 / bytes as f64;
            assert!(waste <= 0.005, "class of {}: {} slots, {} units, {waste}", c.size, c.slots, c.units);
        }
    }
}
