//! The memory that an algorithm works in: taken once, never moved, given back with the stream.

use alloc::vec::Vec;
use core::mem::MaybeUninit;

use crate::request::Error;

/// A cache line. Every area begins on one, which is more than any algorithm asks for.
#[repr(C, align(64))]
struct Line(MaybeUninit<[u8; Line::BYTES]>);

impl Line {
    const BYTES: usize = 64;
}

/// Memory in one piece, never initialised by us: pages of it that an algorithm does not touch stay unbacked.
///
/// The areas are reached through the pointers handed out by [`Workspace::new`], which stay good when the
/// workspace is moved and until it is dropped.
pub(crate) struct Workspace {
    /// Always empty; only its capacity is used, and never changed.
    _lines: Vec<Line>,
}

impl Workspace {
    /// Takes memory for areas of these many bytes each and says where they are.
    pub(crate) fn new<const N: usize>(areas: [usize; N]) -> Result<(Workspace, [*mut u8; N]), Error> {
        let bytes = Self::bytes(areas);
        let mut lines = Vec::<Line>::new();
        lines.try_reserve_exact(bytes / Line::BYTES).map_err(|_| Error::NoMemory { bytes })?;
        let mut next = lines.as_mut_ptr().cast::<u8>();
        let pointers = areas.map(|area| {
            let pointer = next;
            next = next.wrapping_add(area.next_multiple_of(Line::BYTES));
            pointer
        });
        Ok((Workspace { _lines: lines }, pointers))
    }

    /// What [`Workspace::new`] takes for these areas, in bytes.
    pub(crate) fn bytes<const N: usize>(areas: [usize; N]) -> usize {
        areas.iter().map(|area| area.next_multiple_of(Line::BYTES)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_aligned_and_follow_each_other() {
        let areas = [1, 64, 65, 4096];
        let (workspace, pointers) = Workspace::new(areas).unwrap();
        let offsets = pointers.map(|pointer| pointer as usize - pointers[0] as usize);
        assert_eq!(offsets, [0, 64, 128, 256]);
        assert_eq!(pointers[0] as usize % 64, 0);
        assert_eq!(Workspace::bytes(areas), 256 + 4096);
        assert_eq!(workspace._lines.capacity() * Line::BYTES, 256 + 4096);
    }

    #[test]
    fn too_much_is_an_error() {
        let bytes = isize::MAX as usize / 2;
        assert!(matches!(Workspace::new([bytes]), Err(Error::NoMemory { .. })));
    }
}
