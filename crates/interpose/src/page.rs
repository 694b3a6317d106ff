//! The run's page in the program's memory.

use crate::aside;
use control::arena;
use control::handover;
use core::ffi::CStr;
use linux_raw_sys::general as g;
use memcg::Memcg;
use uffd::sys::{self, Errno, Fd, consts::*};

/// The longest path of the page that is remembered, its NUL included.
pub const PATH_BYTES: usize = memcg::PATH_BYTES;

/// Maps the page in `path`, which ends with NUL, with a descriptor of this process's; its address.
pub fn map_here(path: &[u8]) -> Result<usize, Errno> {
    let mut room = [0; PATH_BYTES];
    let dir = path.iter().rposition(|&byte| byte == b'/').map_or(&[][..], |slash| &path[..=slash]);
    let len = dir.len() + memcg::FIXED_FILE.len();
    room.get_mut(..dir.len()).ok_or(Errno::EINVAL)?.copy_from_slice(dir);
    room.get_mut(dir.len()..len).ok_or(Errno::EINVAL)?.copy_from_slice(memcg::FIXED_FILE.as_bytes());
    let settings = room.get(..len + 1).ok_or(Errno::EINVAL)?;
    map(&sys::open(path, O_RDWR)?, &sys::open(settings, O_RDONLY)?)
}

/// Maps the page, and over its beginning what is only to be read.
fn map(file: &Fd, settings: &Fd) -> Result<usize, Errno> {
    let lock = [file.raw() as usize, (g::LOCK_SH | g::LOCK_NB) as usize, 0, 0, 0, 0];
    // The mapping has this lock for as long as it is there, and so keeps the run's directory. Another run may be
    // looking at that just now, and have the lock: it finds this process by its environment. SAFETY: it touches no
    // memory.
    let _ = unsafe { sys::syscall(g::__NR_flock, lock) };
    let at = arena::map_for_all(size_of::<Memcg>(), PROT_READ | PROT_WRITE, file)?;
    // SAFETY: the mapping is new and longer than that, and nobody knows of it.
    unsafe { sys::mmap_at(at, memcg::FIXED_BYTES, PROT_READ, MAP_SHARED | MAP_FIXED, Some(settings)) }?;
    Ok(at)
}

/// What `mapper` is to do.
struct MapOrder {
    path: [u8; PATH_BYTES],
    page: Result<usize, Errno>,
}

/// Maps the page with descriptors of its own: the program may have none left, and counts on which one it gets next.
extern "C" fn mapper(order: usize) -> ! {
    // SAFETY: `map_aside` keeps it until this process has ended.
    let order = unsafe { &mut *(order as *mut MapOrder) };
    sys::close_all();
    sys::want_descriptors(8);
    if let Ok(path) = CStr::from_bytes_until_nul(&order.path) {
        order.page = map_here(path.to_bytes_with_nul())
            // Another user than that of `zfolio run`.
            .or_else(|refused| {
                let handed = handover::ask(handover::NEED_NS).map_err(|_| refused)?;
                map(&handed.page, &handed.settings)
            });
    }
    sys::exit(0)
}

/// Maps the page in `path`, which has a NUL, without a descriptor of this process's, also where it may not open it. All
/// signals must be blocked.
pub fn map_aside(path: [u8; PATH_BYTES]) -> Result<usize, Errno> {
    let mut order = MapOrder { path, page: Err(Errno::ENOENT) };
    // SAFETY: it uses nothing but system calls, and the order lives until it has ended.
    if unsafe { aside::aside(mapper, &raw mut order as usize) }.is_err() {
        // A filter of the program's: there will be no engine either, which can only be said on the page.
        return map_here(
            CStr::from_bytes_until_nul(&order.path).map_err(|_| Errno::ENOENT)?.to_bytes_with_nul(),
        );
    }
    order.page
}
