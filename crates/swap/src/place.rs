//! Where an object lies.

use crate::SLOT;
use core::ops::Range;

/// Where a sealed object lies, and what it takes to open it. The fields are those of a swap entry, so there are as many
/// values as objects: 20 bytes, without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(Rust, packed(4))]
pub struct Place {
    /// The slot where it begins, numbered through all areas.
    pub slot: u32,
    /// Where in this slot, in bytes: below 4096.
    pub offset: u16,
    /// Which subkey it is sealed with: the number of the row of the process that wrote it.
    pub key: u16,
    /// Its length in bytes.
    pub bytes: u32,
    /// Which object it is of those that were sealed with the subkey. No two have the same.
    pub serial: u64,
}

impl Place {
    /// The slots that the object has a byte in.
    pub fn slots(&self) -> Range<u32> {
        let end = self.offset as u64 + self.bytes as u64;
        self.slot..self.slot + end.div_ceil(SLOT as u64) as u32
    }

    /// Where it begins, in bytes from the first slot of all.
    pub fn at(&self) -> u64 {
        self.slot as u64 * SLOT as u64 + self.offset as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_has_the_slots_that_its_bytes_are_in() {
        assert_eq!(size_of::<Place>(), 20);
        let place = |offset, bytes| Place { slot: 7, offset, bytes, key: 0, serial: 0 };
        for (offset, bytes, slots) in [
            (0, 1, 7..8),
            (0, 4096, 7..8),
            (0, 4097, 7..9),
            (4095, 1, 7..8),
            (4095, 2, 7..9),
            (1, 8192, 7..10),
        ] {
            assert_eq!(place(offset, bytes).slots(), slots, "{offset} {bytes}");
        }
        assert_eq!(Place { slot: u32::MAX - 1, ..place(100, 1) }.at(), ((1 << 32) - 2) * 4096 + 100);
    }
}
