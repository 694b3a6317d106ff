//! A process's memory by address, as a device sees it: what is not there is a page fault, not a crash.

use base::sys;

/// Where memory was missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing(pub u64);

/// The memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Memory {
    pub pid: u32,
    /// What is read from this address on has a wrong bit.
    pub wrong_at: Option<u64>,
}

impl Memory {
    /// That of the calling process.
    pub fn own() -> Memory {
        Memory { pid: sys::getpid().expect("a process has a number") as u32, wrong_at: None }
    }

    /// Reads, through the kernel, which checks every page.
    pub fn read(self, address: u64, bytes: usize) -> Result<Vec<u8>, Missing> {
        let mut buffer = vec![0; bytes];
        let mut done = 0;
        while done < bytes {
            match sys::peek(self.pid, address as usize + done, &mut buffer[done..]) {
                Ok(got) if got > 0 => done += got,
                _ => return Err(Missing(address + done as u64)),
            }
        }
        if self.wrong_at == Some(address) {
            buffer.iter_mut().take(1).for_each(|byte| *byte ^= 1);
        }
        Ok(buffer)
    }

    /// Writes, through the kernel.
    ///
    /// # Safety
    /// The memory is for the device to write: a descriptor that is under way says so.
    pub unsafe fn write(self, address: u64, bytes: &[u8]) -> Result<(), Missing> {
        let mut done = 0;
        while done < bytes.len() {
            // SAFETY: the contract.
            match unsafe { sys::poke(self.pid, address as usize + done, &bytes[done..]) } {
                Ok(got) if got > 0 => done += got,
                _ => return Err(Missing(address + done as u64)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_memory_is_told() {
        let mut here = [1u8, 2, 3];
        let memory = Memory::own();
        assert_eq!(memory.read(here.as_ptr() as u64, 3), Ok(vec![1, 2, 3]));
        assert_eq!(memory.read(16, 3), Err(Missing(16)));
        // SAFETY: ours.
        unsafe {
            assert_eq!(memory.write(here.as_mut_ptr() as u64, &[9]), Ok(()));
            assert_eq!(memory.write(16, &[9]), Err(Missing(16)));
        }
        assert_eq!(here[0], 9);
        let wrong = Memory { wrong_at: Some(here.as_ptr() as u64), ..memory };
        assert_eq!(wrong.read(here.as_ptr() as u64, 2), Ok(vec![8, 2]));
        assert_eq!(wrong.read(here.as_ptr() as u64 + 1, 2), Ok(vec![2, 3]));
    }
}
