//! A request, cut where groups end.

use crate::BLOCK;
use crate::error::Error;
use crate::group::GROUP;
use base::PageMask;
use std::ops::Range;

/// The part of a request that is in one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The group.
    pub group: u64,
    /// Which of its bytes.
    pub bytes: Range<usize>,
    /// Where the part begins in the request, in bytes.
    pub at: usize,
}

impl Part {
    /// The blocks that it touches.
    pub fn blocks(&self) -> PageMask {
        PageMask::range(self.bytes.start / BLOCK..self.bytes.end.div_ceil(BLOCK))
    }

    /// The blocks of which it has all bytes.
    pub fn whole_blocks(&self) -> PageMask {
        let (start, end) = (self.bytes.start.div_ceil(BLOCK), self.bytes.end / BLOCK);
        if start < end { PageMask::range(start..end) } else { PageMask::NONE }
    }

    /// True if it has all bytes of a group.
    pub fn is_whole(&self) -> bool {
        self.bytes.len() == GROUP
    }
}

/// The parts of a request of `len_bytes` at `offset`, which is within the device.
pub fn parts(offset: u64, len_bytes: u64) -> impl Iterator<Item = Part> {
    let end = offset + len_bytes;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let (group, start) = (at / GROUP as u64, (at % GROUP as u64) as usize);
        let len = (GROUP - start).min(usize::try_from(end - at).unwrap_or(usize::MAX));
        let part = Part { group, bytes: start..start + len, at: (at - offset) as usize };
        at += len as u64;
        Some(part)
    })
}

/// Refuses a range that is not within the device.
///
/// # Errors
///
/// [`Error::Outside`].
pub fn expect_within(offset: u64, len_bytes: u64, disksize_bytes: u64) -> Result<(), Error> {
    match offset.checked_add(len_bytes) {
        Some(end) if end <= disksize_bytes => Ok(()),
        _ => Err(Error::Outside { offset, len_bytes, disksize_bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_request() {
        const G: u64 = GROUP as u64;
        assert_eq!(parts(5, 0).next(), None);
        let cut: Vec<Part> = parts(G - 1, G + 2).collect();
        let expected = [(0, GROUP - 1..GROUP, 0), (1, 0..GROUP, 1), (2, 0..1, GROUP + 1)];
        assert_eq!(cut, expected.map(|(group, bytes, at)| Part { group, bytes, at }));
        assert_eq!(cut.iter().map(Part::is_whole).collect::<Vec<_>>(), [false, true, false]);
    }

    #[test]
    fn blocks_at_the_ends_are_not_whole() {
        let part = |bytes| Part { group: 0, bytes, at: 0 };
        for (bytes, blocks, whole) in [
            (0..4096, 0..1, 0..1),
            (1..4096, 0..1, 0..0),
            (100..200, 0..1, 0..0),
            (4095..12_289, 0..4, 1..3),
            (4096..8191, 1..2, 0..0),
        ] {
            let part = part(bytes);
            assert_eq!(part.blocks(), PageMask::range(blocks), "{part:?}");
            assert_eq!(part.whole_blocks().iter().collect::<Vec<_>>(), whole.collect::<Vec<_>>(), "{part:?}");
        }
    }

    #[test]
    fn what_is_outside_is_refused() {
        assert!(expect_within(4096, 4096, 8192).is_ok() && expect_within(8192, 0, 8192).is_ok());
        for (offset, len_bytes) in [(8192, 1), (0, 8193), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(matches!(expect_within(offset, len_bytes, 8192), Err(Error::Outside { .. })));
        }
    }
}
