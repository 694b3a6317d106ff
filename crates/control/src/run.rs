//! The run that a process belongs to: the directory that `zfolio run` has made for it, with the run's page and the
//! library.
//!
//! The library has two names. The shorter one is for programs of which it is known that glibc's 64-bit loader starts
//! them. The other one does for all, and costs that loader some 30 µs: it asks /proc for the program's own path before
//! it puts something in the place of `$PLATFORM`.

use crate::log;
use core::cell::UnsafeCell;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};
use memcg::Memcg;
use uffd::PAGE;

/// Room for the longest of the texts.
const TEXT_BYTES: usize = memcg::PATH_BYTES + 64;

/// A text with its NUL.
#[derive(Clone, Copy)]
struct FixedText {
    bytes: [u8; TEXT_BYTES],
    len: usize,
}

impl FixedText {
    const EMPTY: FixedText = FixedText { bytes: [0; TEXT_BYTES], len: 0 };

    /// The parts in a row; none where they are too long.
    fn of(parts: &[&[u8]]) -> Option<FixedText> {
        let mut text = FixedText::EMPTY;
        for part in parts {
            // One byte is left for NUL.
            text.bytes[..TEXT_BYTES - 1].get_mut(text.len..text.len + part.len())?.copy_from_slice(part);
            text.len += part.len();
        }
        Some(text)
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A name of the library in LD_PRELOAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// `DIR/libzfolio.so`: for glibc's 64-bit loader.
    File,
    /// `DIR/$PLATFORM/libzfolio.so`: for any.
    Platform,
}

/// The run that this process belongs to.
#[derive(Clone, Copy)]
pub struct RunFiles {
    /// `ZFOLIO_MEMCG=DIR/memcg`.
    variable: FixedText,
    /// [`Name::Platform`].
    platform: FixedText,
    /// [`Name::File`].
    file: FixedText,
}

impl RunFiles {
    /// No run.
    pub const NONE: RunFiles =
        RunFiles { variable: FixedText::EMPTY, platform: FixedText::EMPTY, file: FixedText::EMPTY };

    /// The run whose page has this path. None where that is no path of a page, or too long.
    pub fn new(page: &[u8]) -> Option<RunFiles> {
        let name = memcg::PAGE_FILE_GROWN.as_bytes();
        let dir = page.strip_suffix(&[*page.last()?])?.strip_suffix(name)?.strip_suffix(b"/")?;
        let (platform, file) = (memcg::PLATFORM.as_bytes(), memcg::LIBRARY_FILE.as_bytes());
        Some(RunFiles {
            variable: FixedText::of(&[memcg::ENV.as_bytes(), b"=", page])?,
            platform: FixedText::of(&[dir, b"/", platform, b"/", file])?,
            file: FixedText::of(&[dir, b"/", file])?,
        })
    }

    /// The library's path, with its NUL. The page is in the same directory.
    pub fn file(&self) -> &[u8] {
        &self.file.bytes[..self.file.len + 1]
    }

    /// Its variable in an environment, with the NUL.
    pub fn variable(&self) -> &[u8] {
        &self.variable.bytes[..self.variable.len + 1]
    }

    /// This name of the library.
    pub fn name(&self, name: Name) -> &[u8] {
        match name {
            Name::File => self.file.as_bytes(),
            Name::Platform => self.platform.as_bytes(),
        }
    }

    /// True for an entry of LD_PRELOAD that is our library, by whatever name.
    pub fn is_library(&self, entry: &[u8]) -> bool {
        entry == self.name(Name::File) || entry == self.name(Name::Platform)
    }
}

/// The run, written once before the program runs.
struct OneRun(UnsafeCell<RunFiles>, AtomicBool);

// SAFETY: `enter` is the only one to write, and is called once, by the constructor; others read when the flag says
// so.
unsafe impl Sync for OneRun {}

#[unsafe(link_section = ".data.zfolio")]
static RUN: OneRun = OneRun(UnsafeCell::new(RunFiles::NONE), AtomicBool::new(false));

/// Notes that this process belongs to a run, and the path of its page, which may end with NUL: what this process starts
/// gets it too. For the constructor.
pub fn enter(page: &[u8]) {
    IN_RUN.store(true, Relaxed);
    if let Some(run) = RunFiles::new(page.strip_suffix(b"\0").unwrap_or(page)) {
        // SAFETY: the process has one thread, and nobody reads yet.
        unsafe { RUN.0.get().write(run) };
        RUN.1.store(true, Release);
    }
}

/// The run; none where this process belongs to none.
pub fn run() -> Option<&'static RunFiles> {
    // SAFETY: written before the flag was set, and never again.
    RUN.1.load(Acquire).then(|| unsafe { &*RUN.0.get() })
}

/// The path, with NUL, of a file in the directory of the run's library. None without a run, or where there is no room
/// for it.
pub fn beside_library<'a>(name: &str, room: &'a mut [u8]) -> Option<&'a [u8]> {
    let library = run()?.file();
    let dir = &library[..library.iter().rposition(|&byte| byte == b'/')? + 1];
    let len = dir.len() + name.len();
    room.get_mut(..dir.len())?.copy_from_slice(dir);
    room.get_mut(dir.len()..len)?.copy_from_slice(name.as_bytes());
    *room.get_mut(len)? = 0;
    Some(&room[..len + 1])
}

/// The run's page, once this process has mapped it.
#[unsafe(link_section = ".data.zfolio")]
static MEMCG: AtomicPtr<Memcg> = AtomicPtr::new(core::ptr::null_mut());

/// The process belongs to a run: it has an engine, or may get one any time.
#[unsafe(link_section = ".data.zfolio")]
static IN_RUN: AtomicBool = AtomicBool::new(false);

/// This process has mapped the run's page, and never unmaps it: it has an engine from now on, or tries to.
pub fn set_memcg(page: &'static Memcg) {
    MEMCG.store(core::ptr::from_ref(page).cast_mut(), Release);
}

/// The run's page; none where this process has not mapped it.
pub fn memcg() -> Option<&'static Memcg> {
    // SAFETY: null, or set once and never unmapped.
    unsafe { MEMCG.load(Acquire).as_ref() }
}

/// True when an engine was started for this process, or tried to be. It can become true between any two instructions.
pub fn is_managed() -> bool {
    !MEMCG.load(Relaxed).is_null()
}

/// True when the process has an engine or may get one: what an engine could not undo must not be done before it either.
pub fn is_in_run() -> bool {
    IN_RUN.load(Relaxed)
}

/// What every child has of the engine's memory: the run's page, and logs.
pub fn inherited() -> impl Iterator<Item = Range<usize>> {
    let page = MEMCG.load(Acquire) as usize;
    let page = if page == 0 { 0..0 } else { page..page + size_of::<Memcg>().next_multiple_of(PAGE) };
    log::ranges().chain([page])
}
