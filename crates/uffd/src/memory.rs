//! A process's memory, read and written from another one.

use crate::sys::{self, Fd, Result, consts::*};

/// The memory of the process that opened it, for those who share its descriptors.
///
/// process_vm_readv copies once, and is refused where the reader may not trace the process (another uid since, not
/// dumpable, a rule of Yama's); /proc/self/mem copies twice and asks when it is opened. So the first is tried first.
/// (Linux 6.18: 9 and 13 us for 64 KiB.)
pub struct Memory {
    pid: u32,
    file: Fd,
}

impl Memory {
    /// The calling process's memory.
    pub fn own() -> Result<Memory> {
        sys::open(b"/proc/self/mem\0", O_RDWR).and_then(Memory::opened)
    }

    /// The same, opened by somebody else.
    pub fn opened(file: Fd) -> Result<Memory> {
        Ok(Memory { pid: sys::getpid()? as u32, file })
    }

    /// The same for whoever has the descriptors and not the value: a process that was cloned with CLONE_FILES. One of
    /// the two must not be dropped, since that closes the file for both.
    pub fn share(&self) -> Memory {
        Memory { pid: self.pid, file: Fd::own(self.file.raw() as usize) }
    }

    /// Reads all of `buffer` from `at`. What is missing and registered with a userfaultfd is waited for.
    pub fn read(&self, at: usize, buffer: &mut [u8]) -> bool {
        sys::peek(self.pid, at, buffer) == Ok(buffer.len())
            || sys::pread(&self.file, buffer, at) == Ok(buffer.len())
    }

    /// Writes all of `bytes` at `at`.
    ///
    /// # Safety
    /// The memory there must be the caller's to write.
    pub unsafe fn write(&self, at: usize, bytes: &[u8]) -> bool {
        // SAFETY: the caller's contract.
        unsafe {
            sys::poke(self.pid, at, bytes) == Ok(bytes.len())
                || sys::pwrite(&self.file, bytes, at) == Ok(bytes.len())
        }
    }

    /// Reads from `at` by the file alone. What is missing and registered with a userfaultfd is an error there, and
    /// nobody waits.
    pub fn glance(&self, at: usize, buffer: &mut [u8]) -> Result<usize> {
        sys::pread(&self.file, buffer, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_either_way() {
        let mut memory = Memory::own().unwrap();
        let mut word = 1u64.to_le_bytes();
        let at = word.as_mut_ptr() as usize;
        // A process that there is not: the file alone is left.
        for pid in [memory.pid, 0] {
            memory.pid = pid;
            let (new, mut got) = (u64::from(pid) + 7, [0; 8]);
            // SAFETY: this test's own word.
            assert!(unsafe { memory.write(at, &new.to_le_bytes()) });
            assert!(memory.read(at, &mut got));
            assert_eq!(u64::from_le_bytes(got), new);
            assert_eq!(memory.glance(at, &mut got), Ok(8));
            assert!(!memory.read(16, &mut got), "nothing is mapped there");
        }
    }
}
