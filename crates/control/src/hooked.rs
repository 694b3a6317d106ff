//! Which of the system calls inside libc pass the library (patch.rs): the program's threads go by it, and so does the
//! engine.

use core::sync::atomic::{AtomicUsize, Ordering::*};
use uffd::sites::Site;

/// Where libc goes on, for each site; 0 where it is not patched.
#[unsafe(link_section = ".data.zfolio")]
pub static BACK: [AtomicUsize; Site::ALL.len()] = [const { AtomicUsize::new(0) }; Site::ALL.len()];

/// True when a site is patched.
pub fn is_active(site: Site) -> bool {
    BACK[site as usize].load(Relaxed) != 0
}
