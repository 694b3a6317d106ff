//! The system calls inside libc that pass us: in `mov $NN,%eax; syscall` (uffd/sites.rs) the first instruction becomes
//! a jump to a stub (stubs.rs), which makes the system call, does what is to be done around it, and goes on behind the
//! seven bytes.
//!
//! ```text
//!   libc                              a stub                                 Rust
//!   mov $9,%eax; syscall  -- jmp -->  saves what a system call preserves --> on_mmap(arguments): the system call
//!   cmp ...               <-- jmp --  restores it; rax is the result     <--
//! ```
//!
//! What runs in every process lies together (`.text.startup`, `.data.zfolio`): most of what a start costs is page
//! faults.

use crate::loaded::{self, SharedObject};
use control::hooked::{BACK, is_active};
use core::sync::atomic::{AtomicUsize, Ordering::*};
use uffd::PAGE;
use uffd::sites::{self, SITE_BYTES, Site};
use uffd::sys::{self, consts::*};

/// A jump has five bytes: as many as the first of the two instructions.
const JUMP_BYTES: usize = 5;

/// No function of libc that has a site is longer.
const LONGEST: usize = 4096;

/// Patches those of `sites` that are found in libc and are not patched yet. Where it cannot be done nothing is changed,
/// and [`is_active`] says so. The library is mapped beside libc, as the loader does it, so that a jump reaches;
/// elsewhere the site stays as it is. A signal handler that returns between the two instructions finds the second one
/// there.
#[unsafe(link_section = ".text.startup.zfolio")]
pub fn install(sites: &[Site]) {
    let Some(libc) = SharedObject::libc() else { return };
    let mut found = [None; Site::ALL.len()];
    for site in sites.iter().filter(|site| !is_active(**site)) {
        found[*site as usize] = locate(&libc, *site);
    }
    let first = found.iter().flatten().min().map_or(0, |at| at & !(PAGE - 1));
    let last = found.iter().flatten().max().map_or(0, |at| (at + SITE_BYTES).next_multiple_of(PAGE));
    // A thread could be between the two instructions, or in the pages while they are not as they should be.
    if first == last || !loaded::has_one_thread() {
        return;
    }
    // Executable all the time, for the length of a few copies: where a security policy forbids what follows, it forbids
    // this, before anything has changed. Writable first and executable again after it could be refused at its second
    // half, with libc in pieces.
    let protect = |prot| {
        // SAFETY: libc's code, which is read and executed as before.
        unsafe { sys::mprotect(first, last - first, prot) }
    };
    if protect(PROT_READ | PROT_WRITE | PROT_EXEC).is_err() {
        return;
    }
    for (site, at) in Site::ALL.into_iter().zip(found) {
        let Some(at) = at else { continue };
        let distance = stub(site).wrapping_sub(at + JUMP_BYTES) as isize as i32;
        BACK[site as usize].store(at + SITE_BYTES, Relaxed);
        // SAFETY: these bytes are a site, on pages that were made writable, and nobody is executing them.
        unsafe {
            (at as *mut [u8; JUMP_BYTES]).write_volatile(jump(distance));
        }
    }
    // Refused, the pages can be written to, and are executed all the same.
    let _ = protect(PROT_READ | PROT_EXEC);
}

/// `jmp distance`.
fn jump(distance: i32) -> [u8; JUMP_BYTES] {
    let [a, b, c, d] = distance.to_le_bytes();
    [0xe9, a, b, c, d]
}

/// The address of a site, if its stub can be reached from there.
#[unsafe(link_section = ".text.startup.zfolio")]
fn locate(libc: &SharedObject, site: Site) -> Option<usize> {
    let (function, bytes) = site.symbols().find_map(|name| libc.symbol(name))?;
    // SAFETY: a function of libc, as long as its symbol says.
    let code = unsafe { core::slice::from_raw_parts(function as *const u8, bytes.min(LONGEST)) };
    let at = function + sites::find(code, site.number())?;
    let distance = stub(site).wrapping_sub(at + JUMP_BYTES) as isize;
    i32::try_from(distance).is_ok().then_some(at)
}

/// Where the stub of a site begins, by the number of the site: written beside what else is written in every process.
#[unsafe(link_section = ".data.zfolio")]
static STUBS: [AtomicUsize; Site::ALL.len()] = [const { AtomicUsize::new(0) }; Site::ALL.len()];

/// Sets where the stub of a site begins. For the constructor.
#[unsafe(link_section = ".text.startup.zfolio")]
pub fn set_stub(site: Site, stub: extern "C" fn()) {
    STUBS[site as usize].store(stub as usize, Relaxed);
}

fn stub(site: Site) -> usize {
    STUBS[site as usize].load(Relaxed)
}
