//! What the kernel lets this process do, tried on scratch pages of its own.

use linux_raw_sys::{general as g, ioctl as n};
use uffd::sys::consts::{MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE};
use uffd::sys::{self, Errno, Fd};
use uffd::{Features, PAGE, Userfault};

/// How a userfaultfd is to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// userfaultfd(2): root, CAP_SYS_PTRACE or vm.unprivileged_userfaultfd=1.
    SystemCall,
    /// USERFAULTFD_IOC_NEW on /dev/userfaultfd (Linux 6.1): whoever may open it.
    Device,
}

/// Why neither way works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// userfaultfd(2)'s error.
    pub system_call: Errno,
    /// Opening the device, or its ioctl.
    pub device: Errno,
}

/// Tries both ways; returns the one that works and the kernel's features (`UFFD_FEATURE_*`).
pub fn userfaultfd() -> Result<(Way, u64), Refused> {
    let flags = (g::O_CLOEXEC | g::O_NONBLOCK) as usize;
    // SAFETY: a new descriptor changes no memory.
    let by_call = unsafe { sys::syscall(g::__NR_userfaultfd, [flags, 0, 0, 0, 0, 0]) };
    let (way, fd) = match by_call {
        Ok(fd) => (Way::SystemCall, Fd::own(fd)),
        Err(system_call) => match device(flags) {
            Ok(fd) => (Way::Device, fd),
            Err(device) => return Err(Refused { system_call, device }),
        },
    };
    // Asked for nothing, the handshake tells all that there is.
    let mut api = g::uffdio_api { api: 0xaa, features: 0, ioctls: 0 };
    // SAFETY: the handshake writes the structure only.
    match unsafe { sys::ioctl(&fd, n::UFFDIO_API, &mut api) } {
        Ok(_) => Ok((way, api.features)),
        Err(errno) => Err(Refused { system_call: errno, device: errno }),
    }
}

fn device(flags: usize) -> Result<Fd, Errno> {
    const USERFAULTFD_IOC_NEW: usize = 0xaa00;
    let device = sys::open(b"/dev/userfaultfd\0", g::O_RDWR | g::O_CLOEXEC)?;
    // SAFETY: the ioctl takes its flags by value and changes no memory.
    unsafe { sys::syscall(g::__NR_ioctl, [device.raw() as usize, USERFAULTFD_IOC_NEW, flags, 0, 0, 0]) }
        .map(Fd::own)
}

/// Two scratch pages, the first one written.
struct Scratch(usize);

impl Scratch {
    fn map() -> Result<Scratch, Errno> {
        let at = sys::mmap(2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, None)?;
        // SAFETY: inside the mapping.
        unsafe { (at as *mut u64).write_volatile(1) };
        Ok(Scratch(at))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and used by nobody else.
        let _ = unsafe { sys::munmap(self.0, 2 * PAGE) };
    }
}

/// Moves a page with UFFDIO_MOVE (Linux 6.8) on a descriptor that takes all the events that zfolio needs.
pub fn moves_pages() -> Result<(), Errno> {
    // Locals go in reverse order: the descriptor is closed before the pages are unmapped. With it open the unmapping
    // would be an event, and wait for somebody to read it.
    let (source, target) = (Scratch::map()?, Scratch::map()?);
    let pagemap = uffd::pagemap::Pagemap::open()?;
    let userfault = Userfault::open(Features::Events)?;
    userfault.register(target.0 + PAGE..target.0 + 2 * PAGE)?;
    // SAFETY: both mappings are this function's.
    match unsafe { userfault.move_pages(&pagemap, target.0 + PAGE, source.0, PAGE) }.stop {
        None => Ok(()),
        Some(errno) => Err(errno),
    }
}

/// True where it is told which pages are touched (UFFDIO_REGISTER_MODE_RWP, Linux 7.3).
pub fn tells_touches() -> Result<bool, Errno> {
    let scratch = Scratch::map()?;
    let pages = scratch.0..scratch.0 + 2 * PAGE;
    // SAFETY: inside the mapping.
    unsafe { ((pages.start + PAGE) as *mut u64).write_volatile(1) };
    let (pagemap, memory) = (uffd::pagemap::Pagemap::open()?, uffd::Memory::own()?);
    Ok(Userfault::open(Features::Events)?.tell_touches(&pagemap, &memory, pages))
}

/// Finds a written page with PAGEMAP_SCAN (Linux 6.7).
pub fn scans_pagemap() -> Result<(), Errno> {
    let scratch = Scratch::map()?;
    let pagemap = uffd::pagemap::Pagemap::open()?;
    pagemap.present(scratch.0..scratch.0 + 2 * PAGE, 2, &mut [Default::default(); 2]).map(drop)
}

/// Finds a mapping with PROCMAP_QUERY (Linux 6.11).
pub fn queries_mappings() -> Result<(), Errno> {
    uffd::maps::Maps::open()?.query(0).map(drop)
}
