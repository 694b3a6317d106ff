//! The clock without a system call: clock_gettime of the vDSO, the library that the kernel maps into every process.

use crate::maps::Maps;
use crate::sys::{self, Errno, Result, consts::*};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol};

/// The auxiliary vector's entry for the vDSO's address.
const AT_SYSINFO_EHDR: usize = 33;

/// The address of the vDSO; `None` where there is none.
fn base() -> Result<Option<usize>> {
    let mut words = [[0usize; 2]; 64];
    // SAFETY: plain data, of any value.
    let bytes =
        unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), size_of_val(&words)) };
    sys::read(&sys::open(b"/proc/self/auxv\0", O_RDONLY)?, bytes)?;
    Ok(words.iter().find(|entry| entry[0] == AT_SYSINFO_EHDR).map(|entry| entry[1]))
}

/// Has [`sys::now_ns`] ask the vDSO from now on. ENOENT: there is none, or it has no clock.
///
/// # Safety
/// The vDSO must stay mapped for as long as anybody in the calling process asks for the time.
pub unsafe fn use_clock(maps: &Maps) -> Result<()> {
    let base = base()?.ok_or(Errno::ENOENT)?;
    let mapping = maps.query(base)?.filter(|m| m.range.start == base).ok_or(Errno::ENOENT)?;
    // SAFETY: the mapping is there, and nobody writes to it.
    let image = unsafe { core::slice::from_raw_parts(base as *const u8, mapping.range.len()) };
    let library = ElfFile64::<Endianness>::parse(image).map_err(|_| Errno::ENOENT)?;
    let clock = library
        .dynamic_symbols()
        .find(|symbol| symbol.is_definition() && symbol.name_bytes() == Ok(b"__vdso_clock_gettime"))
        .ok_or(Errno::ENOENT)?;
    // SAFETY: that is the address of a function of this type, in a mapping that stays (the caller's contract).
    unsafe { sys::set_clock(base + clock.address() as usize) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_the_system_call_says() {
        let before = sys::now_ns();
        // SAFETY: nobody unmaps it.
        unsafe { use_clock(&Maps::open().unwrap()) }.unwrap();
        let after = sys::now_ns();
        assert!((before..before + 1_000_000_000).contains(&after), "{before} {after}");
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!((after + 20_000_000..after + 2_000_000_000).contains(&sys::now_ns()));
    }
}
