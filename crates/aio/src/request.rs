//! One request, and what the result of a part of it means.

use base::Errno;

/// How often in succession a part is made again that the kernel put off (EINTR, EAGAIN), before that is the result: a
/// file that always says so must not keep the thread.
pub(crate) const TRIES: u32 = 16;

/// The most bytes of a part. The kernel takes no more than 2 GiB less a page at a time (MAX_RW_COUNT); this keeps what
/// follows aligned.
const PART_BYTES: usize = 1 << 30;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Read,
    Write,
}

/// A part of a request, as the kernel is asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub way: Way,
    pub fd: i32,
    pub at: u64,
    pub address: usize,
    pub bytes: u32,
}

/// A request that was put up and is not reaped.
#[derive(Debug)]
pub(crate) struct Request {
    pub token: u64,
    pub way: Way,
    pub fd: i32,
    /// Offset in the file.
    pub at: u64,
    /// Of the buffer.
    pub address: usize,
    pub bytes: usize,
    /// Bytes that are done: `done <= bytes`.
    pub done: usize,
    /// How often the kernel has put off the next part.
    pub tries: u32,
    /// True while the kernel has a part of it, or a result of one lies in the ring.
    pub is_under_way: bool,
}

impl Request {
    /// The result of what needs no kernel: nothing to do, or an offset that no file has. io_uring takes -1 for the
    /// file's own position.
    pub fn foregone(&self) -> Option<Result<usize, Errno>> {
        let end = self.at.checked_add(self.bytes as u64);
        match end.is_none_or(|end| end > i64::MAX as u64) {
            true => Some(Err(Errno::EINVAL)),
            false => (self.bytes == 0).then_some(Ok(0)),
        }
    }

    /// What is to be asked for next.
    pub fn part(&self) -> Part {
        Part {
            way: self.way,
            fd: self.fd,
            at: self.at + self.done as u64,
            address: self.address + self.done,
            bytes: (self.bytes - self.done).min(PART_BYTES) as u32,
        }
    }

    /// Takes the kernel's result for the part. `None`: the request needs another part.
    pub fn settle(&mut self, result: Result<usize, Errno>) -> Option<Result<usize, Errno>> {
        match result {
            Ok(0) => Some(Err(Errno::EIO)),
            Ok(more) => {
                self.tries = 0;
                self.done += more.min(self.bytes - self.done);
                (self.done == self.bytes).then_some(Ok(self.bytes))
            }
            Err(Errno::EINTR | Errno::EAGAIN) if self.tries < TRIES => {
                self.tries += 1;
                None
            }
            // The file ends amid a block, and what is behind that O_DIRECT cannot ask for.
            Err(Errno::EINVAL) if self.done > 0 => Some(Err(Errno::EIO)),
            Err(errno) => Some(Err(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(at: u64, bytes: usize) -> Request {
        let way = Way::Read;
        Request { token: 1, way, fd: 3, at, address: 4096, bytes, done: 0, tries: 0, is_under_way: false }
    }

    #[test]
    fn a_short_part_is_followed_by_the_rest() {
        let mut request = request(100, 10);
        assert_eq!(request.settle(Ok(3)), None);
        assert_eq!(request.part(), Part { way: Way::Read, fd: 3, at: 103, address: 4099, bytes: 7 });
        assert_eq!(request.settle(Err(Errno::EINTR)), None);
        assert_eq!(request.settle(Ok(1)), None);
        assert_eq!((request.part().at, request.part().bytes), (104, 6));
        assert_eq!(request.settle(Ok(6)), Some(Ok(10)));
    }

    #[test]
    fn a_file_that_ends_is_an_error() {
        assert_eq!(request(0, 10).settle(Ok(0)), Some(Err(Errno::EIO)));
        let mut amid = request(0, 8192);
        assert_eq!(amid.settle(Ok(5000)), None);
        assert_eq!(amid.settle(Err(Errno::EINVAL)), Some(Err(Errno::EIO)));
        assert_eq!(request(0, 10).settle(Err(Errno::EINVAL)), Some(Err(Errno::EINVAL)));
    }

    #[test]
    fn what_is_put_off_for_ever_is_an_error_and_progress_begins_the_count_anew() {
        let mut request = request(0, 10);
        for more in [1, 1] {
            for _ in 0..TRIES {
                assert_eq!(request.settle(Err(Errno::EAGAIN)), None);
            }
            assert_eq!(request.settle(Ok(more)), None);
        }
        for _ in 0..TRIES {
            assert_eq!(request.settle(Err(Errno::EAGAIN)), None);
        }
        assert_eq!(request.settle(Err(Errno::EAGAIN)), Some(Err(Errno::EAGAIN)));
    }

    #[test]
    fn the_kernel_is_not_asked_for_what_no_file_has() {
        for (at, bytes) in [(u64::MAX, 1), (i64::MAX as u64, 1), (u64::MAX, 0), (1 << 63, 0)] {
            assert_eq!(request(at, bytes).foregone(), Some(Err(Errno::EINVAL)), "{at} {bytes}");
        }
        assert_eq!(request(5, 0).foregone(), Some(Ok(0)));
        assert_eq!(request(i64::MAX as u64 - 1, 1).foregone(), None);
    }

    #[test]
    fn parts_are_no_longer_than_the_kernel_takes() {
        let mut request = request(0, 5 << 30);
        assert_eq!(request.part().bytes, 1 << 30);
        assert_eq!(request.settle(Ok(1 << 30)), None);
        assert_eq!((request.part().at, request.part().bytes), (1 << 30, 1 << 30));
    }
}
