//! What an area holds before it is one: file systems, partition tables and other data are not to be lost unasked.

use crate::Area;
use alloc::vec;
use base::Errno;

/// How much of what has been there before is looked at: the beginning and the end, where file systems, partition tables
/// and swap areas have their marks.
const LOOKED_AT: (u64, u64) = (1 << 20, 64 << 10);

/// Marks of what is often found, with the offset of each.
const MARKS: [(&str, usize, &[u8]); 10] = [
    ("a swap area", 4096 - 10, b"SWAPSPACE2"),
    ("an ext2, ext3 or ext4 file system", 1024 + 56, &[0x53, 0xef]),
    ("an XFS file system", 0, b"XFSB"),
    ("a btrfs file system", 0x10040, b"_BHRfS_M"),
    ("an f2fs file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("a squashfs file system", 0, b"hsqs"),
    ("an encrypted LUKS volume", 0, b"LUKS\xba\xbe"),
    ("an LVM volume", 512, b"LABELONE"),
    ("a partition table", 512, b"EFI PART"),
    ("a partition table or boot sector", 510, &[0x55, 0xaa]),
];

/// The ranges of an area that are looked at: offset and length in bytes.
fn looked_at(bytes: u64) -> [(u64, usize); 2] {
    let (first, last) = (LOOKED_AT.0.min(bytes), LOOKED_AT.1.min(bytes));
    [(0, first as usize), (bytes - last, last as usize)]
}

/// What a file or device of so many bytes holds; `None` where it is zeros at the beginning and at the end. `read` fills
/// a buffer from an offset on.
///
/// # Errors
///
/// Those of `read`.
pub fn contents<E>(
    bytes: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<Option<&'static str>, E> {
    let mut parts = looked_at(bytes).map(|(at, len)| (at, vec![0; len]));
    parts.iter_mut().try_for_each(|(at, part)| read(*at, part))?;
    let [(_, first), (_, last)] = &parts;
    let is_marked = |of: &&(&str, usize, &[u8])| first.get(of.1..).is_some_and(|rest| rest.starts_with(of.2));
    let mark = MARKS.iter().find(is_marked).map(|of| of.0);
    let has_data = first.iter().chain(last).any(|byte| *byte != 0);
    Ok(mark.or(has_data.then_some("data")))
}

/// Empties the first `written` bytes of an area, which needs no alignment, so that [`contents`] finds nothing there.
/// The storage forgets them where it can; what it keeps of them where [`contents`] looks is made zeros.
///
/// # Errors
///
/// Those of reads and writes.
pub fn empty(area: &dyn Area, written: u64) -> Result<(), Errno> {
    debug_assert_eq!(area.align(), 1);
    // Storage that cannot forget keeps the rest, which is noise without its key.
    let _ = area.discard(0, written);
    for (at, len) in looked_at(area.bytes()) {
        let mut part = vec![0; (written.saturating_sub(at) as usize).min(len)];
        area.read(at, &mut part)?;
        if part.iter().any(|byte| *byte != 0) {
            part.fill(0);
            area.write(at, &part)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area::tests::area;
    use crate::{FileArea, SLOT};

    fn found(area: &dyn Area) -> Option<&'static str> {
        contents(area.bytes(), |at, to| area.read(at, to)).unwrap()
    }

    /// Storage that forgets nothing.
    struct Keeping(FileArea);

    impl Area for Keeping {
        fn bytes(&self) -> u64 {
            self.0.bytes()
        }

        fn align(&self) -> usize {
            self.0.align()
        }

        fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Errno> {
            self.0.read(at, to)
        }

        fn write(&self, at: u64, from: &[u8]) -> Result<(), Errno> {
            self.0.write(at, from)
        }

        fn discard(&self, _: u64, _: u64) -> Result<(), Errno> {
            Err(Errno::EOPNOTSUPP)
        }
    }

    #[test]
    fn marks_and_data_are_found_where_they_lie_and_nowhere_in_a_small_or_empty_area() {
        for (bytes, at, data, expected) in [
            (4 << 20, 4086, &b"SWAPSPACE2"[..], Some("a swap area")),
            (4 << 20, 510, &[0x55, 0xaa], Some("a partition table or boot sector")),
            (4 << 20, (1 << 20) - 1, b"x", Some("data")),
            (4 << 20, 2 << 20, b"x", None),
            (4 << 20, (4 << 20) - 1, b"x", Some("data")),
            (4 << 20, 0, &[0; 9], None),
            (SLOT as u64, SLOT as u64 - 1, b"x", Some("data")),
            (0, 0, b"", None),
        ] {
            let area = area(bytes);
            area.write(at, data).unwrap();
            assert_eq!(found(&area), expected, "{bytes} {at}");
        }
    }

    #[test]
    fn what_was_written_is_emptied_and_no_more_also_where_storage_forgets_nothing() {
        let forgetting = area(4 << 20);
        forgetting.write(2 << 20, &[1; SLOT]).unwrap();
        forgetting.write(3 << 20, &[1; SLOT]).unwrap();
        empty(&forgetting, 3 << 20).unwrap();
        let mut slot = [9; SLOT];
        forgetting.read(2 << 20, &mut slot).unwrap();
        assert_eq!(slot, [0; SLOT]);
        forgetting.read(3 << 20, &mut slot).unwrap();
        assert_eq!(slot, [1; SLOT], "what lies behind is not ours");
        for bytes in [4 << 20, SLOT as u64] {
            let keeping = Keeping(area(bytes));
            keeping.write(0, &[1; SLOT]).unwrap();
            keeping.write(bytes - 100, &[1; 100]).unwrap();
            empty(&keeping, bytes).unwrap();
            assert_eq!(found(&keeping), None);
        }
    }
}
