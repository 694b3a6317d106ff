//! What runs before the program's own constructors and main: is this process part of a run, and is it to have an engine
//! at once?

use crate::grow;
use crate::page;
use crate::relocate;
use crate::start::{self, EngineEntry};
use crate::stubs;
use control::run;
use uffd::Errno;
use uffd::sys;

/// Runs as the library's constructor; engines begin at `engine`.
///
/// # Safety
/// `envp` must be the environment as the dynamic linker passes it.
#[unsafe(link_section = ".text.startup.zfolio")]
pub unsafe fn start(envp: *const *const u8, engine: EngineEntry) {
    // SAFETY: the caller's contract.
    let Some(path) = (unsafe { variable(envp, memcg::ENV.as_bytes()) }) else { return };
    run::enter(path);
    start::set_engine(engine);
    stubs::set();
    // SAFETY: as above.
    let waits = unsafe { grow::begin(envp, path) };
    if waits {
        return;
    }
    relocate::finish();
    if let Ok(page) = page::map_here(path).or_else(|refused| map_aside(path, refused)) {
        start::start_with(page);
    }
}

/// Where the page could not be opened.
fn map_aside(path: &[u8], refused: Errno) -> Result<usize, Errno> {
    let mut text = [0; page::PATH_BYTES];
    text.get_mut(..path.len()).ok_or(refused)?.copy_from_slice(path);
    let mask = sys::signal_mask(!0);
    let page = page::map_aside(text);
    sys::signal_mask(mask);
    page
}

/// The value of a variable, with its NUL.
///
/// # Safety
/// As for [`start`].
#[unsafe(link_section = ".text.startup.zfolio")]
unsafe fn variable<'a>(envp: *const *const u8, name: &[u8]) -> Option<&'a [u8]> {
    for index in 0.. {
        // SAFETY: the array ends with NULL, each string with NUL.
        let entry = unsafe { *envp.add(index) };
        if entry.is_null() {
            return None;
        }
        // SAFETY: as above.
        let text = unsafe { core::ffi::CStr::from_ptr(entry.cast()) }.to_bytes_with_nul();
        if text.len() > name.len() && text.starts_with(name) && text[name.len()] == b'=' {
            return Some(&text[name.len() + 1..]);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::null;
    use std::vec::Vec;

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let texts = [c"ZFOLIO=1", c"ZFOLIO_MEMCG=/x", c"A=b"];
        let mut envp: Vec<*const u8> = texts.iter().map(|t| t.as_ptr().cast()).collect();
        envp.push(null());
        // SAFETY: an environment as the function expects it.
        unsafe {
            assert_eq!(variable(envp.as_ptr(), b"ZFOLIO_MEMCG"), Some(&b"/x\0"[..]));
            assert_eq!(variable(envp.as_ptr(), b"ZFOLIO_MEM"), None);
        }
    }
}
