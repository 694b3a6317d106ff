//! What stores bytes at an offset: a file, a block device, or what a test puts in their place.

use base::Errno;
use base::sys::DataFile;

/// Storage of a fixed size. Each call does all of what it is asked for, or says why it did not; what a call that fails
/// has written is unknown. Calls may be made by several threads at once.
pub trait Area {
    /// Its size in bytes.
    fn bytes(&self) -> u64;

    /// Bytes of which offsets, lengths and addresses of buffers must be multiples. What else is asked for is EINVAL.
    fn align(&self) -> usize;

    /// Reads `to.len()` bytes from the offset `at`. EIO: the storage cannot give them.
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Errno>;

    /// Writes all of `from` at the offset `at`. EIO: the storage cannot take them. ENOSPC: it is full.
    fn write(&self, at: u64, from: &[u8]) -> Result<(), Errno>;

    /// Says that nobody needs these bytes any more. EOPNOTSUPP: the storage does not want to know; nothing is wrong.
    fn discard(&self, at: u64, bytes: u64) -> Result<(), Errno>;
}

impl<A: Area + ?Sized> Area for &A {
    fn bytes(&self) -> u64 {
        (**self).bytes()
    }

    fn align(&self) -> usize {
        (**self).align()
    }

    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Errno> {
        (**self).read(at, to)
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), Errno> {
        (**self).write(at, from)
    }

    fn discard(&self, at: u64, bytes: u64) -> Result<(), Errno> {
        (**self).discard(at, bytes)
    }
}

/// A file or a block device.
#[derive(Debug)]
pub struct FileArea {
    file: DataFile,
    bytes: u64,
}

impl FileArea {
    /// The first `bytes` of a file, which may be shorter so far.
    pub fn new(file: DataFile, bytes: u64) -> FileArea {
        FileArea { file, bytes }
    }

    /// The file.
    pub fn file(&self) -> &DataFile {
        &self.file
    }

    fn expect_within(&self, at: u64, bytes: u64) -> Result<(), Errno> {
        let is_within = at.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        if is_within { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

impl Area for FileArea {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn align(&self) -> usize {
        self.file.align()
    }

    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Errno> {
        self.expect_within(at, to.len() as u64)?;
        whole(to.len(), |done| self.file.read_at(&mut to[done..], at + done as u64))
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), Errno> {
        self.expect_within(at, from.len() as u64)?;
        whole(from.len(), |done| self.file.write_at(&from[done..], at + done as u64))
    }

    fn discard(&self, at: u64, bytes: u64) -> Result<(), Errno> {
        self.expect_within(at, bytes)?;
        self.file.discard(at, bytes)
    }
}

/// Makes a call again for the rest of what it did not do. `call` is told how many bytes are done, and says how many
/// more are.
fn whole(bytes: usize, mut call: impl FnMut(usize) -> Result<usize, Errno>) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes {
        match call(done) {
            Ok(0) => return Err(Errno::EIO),
            Ok(more) => done += more,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use base::sys;

    /// An area in a file that has no name.
    pub fn area(bytes: u64) -> FileArea {
        let fd = sys::memfd(c"area").unwrap();
        sys::ftruncate(&fd, bytes as usize).unwrap();
        FileArea::new(DataFile::new(fd).unwrap(), bytes)
    }

    #[test]
    fn bytes_are_written_read_and_forgotten() {
        let area = area(1 << 20);
        assert_eq!((area.bytes(), area.align()), (1 << 20, 1));
        area.write(5000, &[3; 9000]).unwrap();
        area.discard(8192, 4096).unwrap();
        let mut read = [9; 9000];
        area.read(5000, &mut read).unwrap();
        let expected = |n: usize| if (8192..12288).contains(&(n + 5000)) { 0 } else { 3 };
        assert!(read.iter().enumerate().all(|(n, byte)| *byte == expected(n)));
        for (at, bytes) in [((1 << 20) - 1, 2), (u64::MAX, 1), (1 << 20, 1)] {
            assert_eq!(area.read(at, &mut vec![0; bytes]), Err(Errno::EINVAL));
            assert_eq!(area.write(at, &vec![0; bytes]), Err(Errno::EINVAL));
            assert_eq!(area.discard(at, bytes as u64), Err(Errno::EINVAL));
        }
    }

    #[test]
    fn a_file_that_has_become_shorter_is_an_error() {
        let area = area(1 << 20);
        sys::ftruncate(area.file().fd(), 4096).unwrap();
        assert_eq!(area.read(0, &mut [0; 4096]), Ok(()));
        assert_eq!(area.read(0, &mut [0; 4097]), Err(Errno::EIO));
    }

    #[test]
    fn short_calls_are_made_again_for_the_rest() {
        let answers = [Ok(3), Err(Errno::EINTR), Ok(1), Ok(6)];
        let (mut made, mut seen) = (answers.iter(), Vec::new());
        let all = whole(10, |done| {
            seen.push(done);
            *made.next().unwrap()
        });
        assert_eq!((all, &seen[..]), (Ok(()), &[0, 3, 3, 4][..]));
        let mut answers = [Ok(3), Ok(0)].into_iter();
        assert_eq!(whole(10, |_| answers.next().unwrap()), Err(Errno::EIO));
        let mut answers = [Ok(3), Err(Errno::ENOSPC)].into_iter();
        assert_eq!(whole(10, |_| answers.next().unwrap()), Err(Errno::ENOSPC));
        assert_eq!(whole(0, |_| panic!("nothing to do")), Ok(()));
    }
}
