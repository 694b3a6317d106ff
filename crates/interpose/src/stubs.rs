//! What is done around the system calls inside libc that pass the library: each site jumps to a stub here (patch.rs).
//!
//! A stub leaves the red zone below the stack pointer alone, and all registers but rax, rcx, and r11, as a system call
//! does; the upper halves of the vector registers are nobody's here, since the library is compiled for the first
//! x86-64. A child that clone makes in the same place of the same stack, copied, comes back through the stub like its
//! parent.

use crate::advice;
use crate::clone::Clone;
use crate::fork;
use crate::grow::{self, GrowthKind};
use crate::patch;
use crate::relocate;
use control::CONTROL;
use control::hooked::BACK;
use uffd::sites::Site;
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
            _ if arguments.get(2) == PROT_NONE as usize => GrowthKind::Reserve,
            _ if arguments.get(3) & MAP_STACK as usize != 0 => GrowthKind::Stack,
            _ => GrowthKind::Mapping,
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
        grow::grown(at + before.min(after)..at + after, GrowthKind::Mapping);
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

/// Has libc's system calls jump to these stubs, where they are patched. For the constructor.
#[unsafe(link_section = ".text.startup.zfolio")]
pub fn set() {
    patch::set_stub(Site::Clone, stub_clone);
    patch::set_stub(Site::Mmap, stub_mmap);
    patch::set_stub(Site::Mremap, stub_mremap);
    patch::set_stub(Site::Brk, stub_brk);
}
