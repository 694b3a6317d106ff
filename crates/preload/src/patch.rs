//! The system calls inside libc that pass us: in `mov $NN,%eax; syscall` (uffd/sites.rs) the first instruction becomes a jump to a stub
//! here, which makes the system call, does what is to be done around it, and goes on behind the seven bytes.
//!
//! ```text
//!   libc                              a stub                                 Rust
//!   mov $9,%eax; syscall  -- jmp -->  saves what a system call preserves --> on_mmap(arguments): the system call
//!   cmp ...               <-- jmp --  restores it; rax is the result     <--
//! ```
//!
//! A stub leaves the red zone below the stack pointer alone, and all registers but rax, rcx, and r11, as a system call does; the
//! upper halves of the vector registers are nobody's here, since the library is compiled for the first x86-64. A child that clone makes in
//! the same place of the same stack, copied, comes back through the stub like its parent.
//!
//! What runs in every process lies together (`.text.startup`, `.data.zfolio`): most of what a start costs is page faults.

use crate::advice;
use crate::clone::Clone;
use crate::control::CONTROL;
use crate::fork;
use crate::grow::{self, Growth};
use crate::hooked::{BACK, is_active};
use crate::loaded::{self, Object};
use crate::relocate;
use core::sync::atomic::Ordering::*;
use uffd::PAGE;
use uffd::sites::{self, SITE_BYTES, Site};
use uffd::sys::{self, consts::*};

/// The arguments of a system call, in their order.
#[repr(C)]
pub struct Arguments([usize; 6]);

impl Arguments {
    /// The argument of this number, from 0.
    pub fn get(&self, index: usize) -> usize {
        self.0[index]
    }
}

/// A jump has five bytes: as many as the first of the two instructions.
const JUMP_BYTES: usize = 5;

/// No function of libc that has a site is longer.
const LONGEST: usize = 4096;

/// Patches those of `sites` that are found in libc and are not patched yet. Where it cannot be done nothing is changed, and [`is_active`]
/// says so. The library is mapped beside libc, as the loader does it, so that a jump reaches; elsewhere the site stays as it is. A signal
/// handler that returns between the two instructions finds the second one there.
#[unsafe(link_section = ".text.startup.zfolio")]
pub fn install(sites: &[Site]) {
    let Some(libc) = Object::libc() else { return };
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
    // Executable all the time, for the length of a few copies: where a security policy forbids what follows, it forbids this, before
    // anything has changed. Writable first and executable again after it could be refused at its second half, with libc in pieces.
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
    let _ = protect(PROT_READ | PROT_EXEC);
}

/// `jmp distance`.
fn jump(distance: i32) -> [u8; JUMP_BYTES] {
    let [a, b, c, d] = distance.to_le_bytes();
    [0xe9, a, b, c, d]
}

/// The address of a site, if its stub can be reached from there.
#[unsafe(link_section = ".text.startup.zfolio")]
fn locate(libc: &Object, site: Site) -> Option<usize> {
    let (function, bytes) = site.symbols().find_map(|name| libc.symbol(name))?;
    // SAFETY: a function of libc, as long as its symbol says.
    let code = unsafe { core::slice::from_raw_parts(function as *const u8, bytes.min(LONGEST)) };
    let at = function + sites::find(code, site.number())?;
    let distance = stub(site).wrapping_sub(at + JUMP_BYTES) as isize;
    i32::try_from(distance).is_ok().then_some(at)
}

/// Where the stub of a site begins, by the number of the site: written by the loader, and so beside what else is written in every process.
#[unsafe(link_section = ".data.zfolio")]
static STUBS: [extern "C" fn(); Site::ALL.len()] = [stub_clone, stub_mmap, stub_mremap, stub_brk];

fn stub(site: Site) -> usize {
    STUBS[site as usize] as *const () as usize
}

/// Makes a system call with the program's arguments; what the kernel returns, errors included.
fn call(site: Site, arguments: &Arguments) -> usize {
    // SAFETY: the program's own call.
    match unsafe { sys::syscall(site.number(), arguments.0) } {
        Ok(value) => value,
        Err(errno) => (errno.0 as usize).wrapping_neg(),
    }
}

/// What a system call returns for an error lies here and above.
const ERRORS: usize = 4095usize.wrapping_neg();

/// fork, and all that forks inside libc. Returns in the child too.
#[unsafe(link_section = ".text.startup.zfolio")]
extern "C" fn on_clone(arguments: &Arguments) -> usize {
    relocate::finish();
    fork::pass(&Clone::of_libc(arguments.0)) as usize
}

#[unsafe(link_section = ".text.startup.zfolio")]
extern "C" fn on_mmap(arguments: &Arguments) -> usize {
    const OWN: usize = (MAP_PRIVATE | MAP_ANONYMOUS) as usize;
    // Neither locked memory, which stays, nor huge pages of hugetlbfs.
    const POPULATE: usize = MAP_POPULATE as usize;
    const OTHERS: usize = (MAP_LOCKED | MAP_HUGETLB | MAP_NONBLOCK) as usize;
    let (bytes, flags) = (arguments.get(1), arguments.get(3));
    let populates = flags & (OWN | POPULATE | OTHERS) == OWN | POPULATE && grow::fills_later(bytes);
    let at = match arguments {
        &Arguments([to, _, protection, _, fd, offset]) if populates => {
            call(Site::Mmap, &Arguments([to, bytes, protection, flags & !POPULATE, fd, offset]))
        }
        _ => call(Site::Mmap, arguments),
    };
    if at < ERRORS {
        grow::mapped(at, bytes);
    }
    let is_private = flags & MAP_PRIVATE as usize != 0;
    // Pages of a private mapping of a file become the process's own as they are written to.
    let becomes_own = flags & MAP_ANONYMOUS as usize != 0 || arguments.get(2) & PROT_WRITE as usize != 0;
    if at < ERRORS && is_private && becomes_own {
        let growth = match arguments {
            _ if arguments.get(2) == PROT_NONE as usize => Growth::Reserve,
            _ if arguments.get(3) & MAP_STACK as usize != 0 => Growth::Stack,
            _ => Growth::Mapping,
        };
        grow::grown(at..at.saturating_add(bytes), growth);
    }
    if at < ERRORS && populates {
        grow::populate(at, bytes, arguments.get(2) as u32);
    }
    at
}

#[unsafe(link_section = ".text.startup.zfolio")]
extern "C" fn on_mremap(arguments: &Arguments) -> usize {
    let at = grow::remap(|| call(Site::Mremap, arguments));
    if at < ERRORS {
        grow::mapped(at, arguments.get(2));
        let (before, after) = (arguments.get(1), arguments.get(2));
        // What was there before is registered, or was mapped before.
        grow::grown(at + before.min(after)..at + after, Growth::Mapping);
        if CONTROL.may_keep_out() {
            relocate::finish();
            advice::has_moved(at, before, after);
        }
    }
    at
}

#[unsafe(link_section = ".text.startup.zfolio")]
extern "C" fn on_brk(arguments: &Arguments) -> usize {
    let end = call(Site::Brk, arguments);
    grow::heap_ends(end);
    end
}

/// The stub of a site. `jmp` has not touched the stack, and so nothing of libc's there has moved.
macro_rules! stub {
    ($name:ident, $hook:ident, $site:expr) => {
        #[unsafe(naked)]
        #[unsafe(link_section = ".text.startup.zfolio")]
        extern "C" fn $name() {
            core::arch::naked_asm!(
                // The red zone.
                "lea rsp, [rsp - 128]",
                "push r9",
                "push r8",
                "push r10",
                "push rdx",
                "push rsi",
                "push rdi",
                "mov rdi, rsp",
                "push rbp",
                "mov rbp, rsp",
                "and rsp, -16",
                "sub rsp, 256",
                "movaps [rsp], xmm0",
                "movaps [rsp + 16], xmm1",
                "movaps [rsp + 32], xmm2",
                "movaps [rsp + 48], xmm3",
                "movaps [rsp + 64], xmm4",
                "movaps [rsp + 80], xmm5",
                "movaps [rsp + 96], xmm6",
                "movaps [rsp + 112], xmm7",
                "movaps [rsp + 128], xmm8",
                "movaps [rsp + 144], xmm9",
                "movaps [rsp + 160], xmm10",
                "movaps [rsp + 176], xmm11",
                "movaps [rsp + 192], xmm12",
                "movaps [rsp + 208], xmm13",
                "movaps [rsp + 224], xmm14",
                "movaps [rsp + 240], xmm15",
                "call {hook}",
                "movaps xmm0, [rsp]",
                "movaps xmm1, [rsp + 16]",
                "movaps xmm2, [rsp + 32]",
                "movaps xmm3, [rsp + 48]",
                "movaps xmm4, [rsp + 64]",
                "movaps xmm5, [rsp + 80]",
                "movaps xmm6, [rsp + 96]",
                "movaps xmm7, [rsp + 112]",
                "movaps xmm8, [rsp + 128]",
                "movaps xmm9, [rsp + 144]",
                "movaps xmm10, [rsp + 160]",
                "movaps xmm11, [rsp + 176]",
                "movaps xmm12, [rsp + 192]",
                "movaps xmm13, [rsp + 208]",
                "movaps xmm14, [rsp + 224]",
                "movaps xmm15, [rsp + 240]",
                "mov rsp, rbp",
                "pop rbp",
                "pop rdi",
                "pop rsi",
                "pop rdx",
                "pop r10",
                "pop r8",
                "pop r9",
                "lea rsp, [rsp + 128]",
                "jmp qword ptr [rip + {back} + {offset}]",
                hook = sym $hook,
                back = sym BACK,
                offset = const $site as usize * size_of::<usize>(),
            )
        }
    };
}

stub!(stub_clone, on_clone, Site::Clone);
stub!(stub_mmap, on_mmap, Site::Mmap);
stub!(stub_mremap, on_mremap, Site::Mremap);
stub!(stub_brk, on_brk, Site::Brk);
