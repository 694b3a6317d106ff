//! Memory by address, as a device sees it: what is not there is a page fault, not a crash.

use uffd::sys;

/// Where memory was missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing(pub u64);

fn pid() -> u32 {
    sys::getpid().expect("a process has a number") as u32
}

/// Reads, through the kernel, which checks every page.
pub(crate) fn read(address: u64, bytes: usize) -> Result<Vec<u8>, Missing> {
    let mut buffer = vec![0; bytes];
    let mut done = 0;
    while done < bytes {
        match sys::peek(pid(), address as usize + done, &mut buffer[done..]) {
            Ok(got) if got > 0 => done += got,
            _ => return Err(Missing(address + done as u64)),
        }
    }
    Ok(buffer)
}

/// Writes, through the kernel.
///
/// # Safety
/// The memory is for the device to write: a descriptor that is under way says so.
pub(crate) unsafe fn write(address: u64, bytes: &[u8]) -> Result<(), Missing> {
    let mut done = 0;
    while done < bytes.len() {
        // SAFETY: the contract.
        match unsafe { sys::poke(pid(), address as usize + done, &bytes[done..]) } {
            Ok(got) if got > 0 => done += got,
            _ => return Err(Missing(address + done as u64)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_memory_is_told() {
        let mut here = [1u8, 2, 3];
        assert_eq!(read(here.as_ptr() as u64, 3), Ok(vec![1, 2, 3]));
        assert_eq!(read(16, 3), Err(Missing(16)));
        // SAFETY: ours.
        unsafe {
            assert_eq!(write(here.as_mut_ptr() as u64, &[9]), Ok(()));
            assert_eq!(write(16, &[9]), Err(Missing(16)));
        }
        assert_eq!(here[0], 9);
    }
}
