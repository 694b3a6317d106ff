//! What libc tells debuggers of its threads: where it lists them, and how a control block is laid out.

use crate::loaded::SharedObject;
use control::blocks::BlockLayout;
use core::sync::atomic::Ordering::*;
use uffd::{PAGE, sys};

/// For a thread of the program's: finds out, by its own block.
pub fn learn(layout: &BlockLayout) {
    if layout.head.load(Relaxed) == 0 {
        let _ = ask_libc(layout);
    }
}

fn ask_libc(layout: &BlockLayout) -> Option<()> {
    let libc = SharedObject::libc()?;
    // Its size in bits, how many of them, and where in the structure.
    let offset = |name: &[u8]| {
        let (at, bytes) = libc.symbol(name)?;
        // SAFETY: libc's constant of this many bytes.
        (bytes == 12).then(|| unsafe { (*(at as *const [u32; 3]))[2] as usize })
    };
    let (loader, _) = libc.symbol(b"__nptl_rtld_global")?;
    // SAFETY: libc's pointer to the loader's data.
    let loader = unsafe { *(loader as *const usize) };
    let lists = [
        loader + offset(b"_thread_db_rtld_global__dl_stack_used")?,
        loader + offset(b"_thread_db_rtld_global__dl_stack_user")?,
    ];
    let (list, tid) = (offset(b"_thread_db_pthread_list")?, offset(b"_thread_db_pthread_tid")?);
    let block: usize;
    // SAFETY: the third word of a control block is its own address, in every program of this architecture.
    unsafe { core::arch::asm!("mov {}, fs:[16]", out(reg) block, options(nostack, readonly)) };
    let number = sys::gettid().ok()?;
    let head = sys::robust_list(number as u32).ok()?.wrapping_sub(block);
    // SAFETY: the calling thread's own.
    let is_known = list.max(tid) + 16 <= PAGE
        && head < PAGE
        && unsafe { *((block + tid) as *const u32) } as usize == number;
    if !is_known {
        return None;
    }
    for (to, at) in layout.lists.iter().zip(lists) {
        to.store(at, Relaxed);
    }
    layout.list.store(list, Relaxed);
    layout.tid.store(tid, Relaxed);
    layout.head.store(head, Release);
    Some(())
}
