//! A process begins without an engine, and most end without one: it is started when the process has grown to what the
//! name of the run's page says. Until then nothing of ours runs but the hooks at libc's system calls (patch.rs), which
//! count the private memory that is mapped.
//!
//! ```text
//!   mmap, mremap, brk ── count ──> grown? ── statm ──> really? ── map the run's page, start the engine
//!                                                      no: count on from there
//! ```
//!
//! The hooks run wherever the program calls them: inside malloc with its lock held, in a signal handler, in a child of
//! vfork. So nothing here calls libc, waits for another thread, or leaves a trace in the program's descriptors.
//!
//! What is unmapped is not subtracted, since nobody knows what it was; instead the kernel is asked when the sum reaches
//! the mark. What is mapped without access (stacks of threads, the reserve of malloc's arenas) is not in the kernel's
//! figure and can be used later without our being told: it counts for good. What a library's own data takes, or a
//! mapping that libc did not make, is noticed at the next look, or by `zfolio run` (attach.rs).

use crate::bell;
use crate::loaded::Executable;
use crate::own::{self, is_own_memory};
use crate::page::{self, PATH_BYTES};
use crate::patch;
use crate::relocate;
use crate::relro;
use crate::start;
use control::footprint;
use control::hooked;
use control::run;
use control::{CONTROL, EngineState, Request};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::*};
use uffd::PAGE;
use uffd::sites::Site;
use uffd::sys::{self, consts::*};

/// A process that can write to so many bytes of its own gets an engine.
#[unsafe(link_section = ".data.zfolio")]
static GROWN: AtomicUsize = AtomicUsize::new(0);

/// After a look that found less, the next one comes when at least one part in so many of that was mapped besides.
const LOOK_PART: usize = 4;

/// The calls that are hooked in every process: each costs a page of libc, 7 us. The others are when a process has a
/// mapping of its own that realloc could enlarge ([`LARGE_BYTES`]), or calls mremap itself, or has [`SOME_BYTES`] in
/// all; and before it has a second thread, beside which libc's code must not be changed: when it maps a stack.
const FIRST: [Site; 2] = [Site::Mmap, Site::Brk];

/// See [`FIRST`]: malloc gives what has 128 KiB a mapping of its own, unless it was told otherwise, and small programs
/// map buffers and a handler's stack of 16.
const LARGE_BYTES: usize = 32 << 10;

/// See [`FIRST`]: more than a process of some milliseconds has.
const SOME_BYTES: usize = 1 << 20;

/// The calls of [`FIRST`] are not the only ones any more, or cannot be joined by others.
#[unsafe(link_section = ".data.zfolio")]
static HOOKED_ALL: AtomicBool = AtomicBool::new(false);

/// The library's constructor has run. Until then the loader may be at work, which has grown by what it relocates.
#[unsafe(link_section = ".data.zfolio")]
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// True while the process counts, and has no engine yet.
#[unsafe(link_section = ".data.zfolio")]
static WATCHING: AtomicBool = AtomicBool::new(false);

/// True where the run's page could not be mapped: there will be no engine.
#[unsafe(link_section = ".data.zfolio")]
static HAS_NO_PAGE: AtomicBool = AtomicBool::new(false);

/// What was mapped, and what of it without access.
#[unsafe(link_section = ".data.zfolio")]
static MAPPED: AtomicUsize = AtomicUsize::new(0);
#[unsafe(link_section = ".data.zfolio")]
static RESERVED: AtomicUsize = AtomicUsize::new(0);

/// Where the heap of brk ends; 0 before the first call.
#[unsafe(link_section = ".data.zfolio")]
static HEAP_END: AtomicUsize = AtomicUsize::new(0);

/// The path of the run's page, with NUL; with a longer one there is an engine from the start. The program may overwrite
/// its environment, to change what ps shows.
#[unsafe(link_section = ".data.zfolio")]
static PATH: [AtomicU8; PATH_BYTES] = [const { AtomicU8::new(0) }; PATH_BYTES];

/// Start-up: true when the engine is to wait until the process has grown; false when there is to be one now, since it
/// is large enough, or its growth could not be seen. `path` is that of the run's page.
///
/// # Safety
/// `envp` must be the environment as the kernel laid it out.
#[unsafe(link_section = ".text.startup.zfolio")]
pub unsafe fn begin(envp: *const *const u8, path: &[u8]) -> bool {
    let grown = grown_bytes(path);
    let at_once = grown == 0;
    // Also for a process that has an engine: fork passes there.
    patch::install(if at_once { &Site::ALL } else { &FIRST });
    own::begin();
    // SAFETY: the caller's contract.
    let Some(program) = (unsafe { Executable::read(envp) }) else { return false };
    let is_seen = FIRST.into_iter().all(hooked::is_active);
    if !is_seen || program.is_go || program.data_bytes >= grown || path.len() > PATH_BYTES {
        patch::install(&Site::ALL);
        CONTROL.mapped_bytes.store(program.data_bytes, Relaxed);
        relocate::finish();
        relro::make_anonymous(program.constants);
        return false;
    }
    for (cell, byte) in PATH.iter().zip(path) {
        cell.store(*byte, Relaxed);
    }
    GROWN.store(grown, Relaxed);
    MAPPED.store(program.data_bytes, Relaxed);
    WATCHING.store(true, Release);
    true
}

/// Start-up is over: from here on the process may be given an engine from outside.
#[unsafe(link_section = ".text.startup.zfolio")]
pub fn end_begin() {
    HAS_BEGUN.store(true, Release);
}

/// What the name of the run's page says: its last digit, in MiB. `path` ends with NUL.
#[unsafe(link_section = ".text.startup.zfolio")]
fn grown_bytes(path: &[u8]) -> usize {
    match path {
        [.., digit @ b'0'..=b'9', 0] => ((digit - b'0') as usize) << 20,
        _ => 0,
    }
}

/// How private memory came to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrowthKind {
    /// The heap of brk grew.
    Heap,
    /// A mapping, new or larger.
    Mapping,
    /// A mapping for a thread's stack.
    Stack,
    /// A mapping without access.
    Reserve,
}

/// Private memory has been mapped here.
#[unsafe(link_section = ".text.startup.zfolio")]
pub fn grown(range: Range<usize>, growth: GrowthKind) {
    let bytes = range.len();
    if bytes == 0 {
        return;
    }
    if !WATCHING.load(Relaxed) {
        if growth != GrowthKind::Reserve {
            tell(range, growth);
        }
        return;
    }
    if growth == GrowthKind::Reserve {
        RESERVED.fetch_add(bytes, Relaxed);
    }
    let mapped = MAPPED.fetch_add(bytes, Relaxed).saturating_add(bytes);
    let is_large = match growth {
        GrowthKind::Heap => false,
        GrowthKind::Mapping => bytes >= LARGE_BYTES,
        GrowthKind::Stack | GrowthKind::Reserve => true,
    };
    if is_large || mapped >= SOME_BYTES {
        hook_all();
    }
    if mapped >= GROWN.load(Relaxed) {
        reached();
    }
}

/// Hooks what is not hooked yet. A process in which that is not possible gets its engine now, since its growth would
/// not be seen.
#[cold]
#[unsafe(link_section = ".text.startup.zfolio")]
fn hook_all() {
    if HOOKED_ALL.load(Relaxed) || !is_own_memory() {
        return;
    }
    let mask = sys::signal_mask(!0);
    patch::install(&Site::ALL);
    HOOKED_ALL.store(true, Relaxed);
    if !Site::ALL.into_iter().all(hooked::is_active) {
        relocate::finish();
        start();
    }
    sys::signal_mask(mask);
}

/// The program is about to call mremap: what grows by that is to be seen.
pub fn before_mremap() {
    if WATCHING.load(Relaxed) {
        hook_all();
    }
}

/// The process has an engine, or will never have one: has all memory registered before more has been mapped than there
/// is room for. A thread fills memory at 3 MiB in a millisecond, and the engine may not get a processor for many of
/// those; what is registered faults to it, and can be made to wait.
fn tell(range: Range<usize>, growth: GrowthKind) {
    CONTROL.fresh[(growth != GrowthKind::Heap) as usize].add(&range);
    CONTROL.mapped_bytes.fetch_add(range.len(), Release);
    if !CONTROL.is_ahead() || !is_own_memory() {
        return;
    }
    match CONTROL.state() {
        EngineState::Asleep => CONTROL.rouse(),
        EngineState::Awake => own::with_bell(|| {
            // Another thread may have asked meanwhile.
            if CONTROL.is_ahead() {
                bell::ask(Request::Enroll, 0..0);
            }
        }),
    }
}

/// Something has come to this place, and is not the program's before this returns: see detach.rs, which may be
/// about what was there before.
#[unsafe(link_section = ".text.startup.zfolio")]
pub fn mapped(at: usize, bytes: usize) {
    if !WATCHING.load(Relaxed) && run::is_managed() {
        CONTROL.await_taken(at..at.saturating_add(bytes));
    }
}

/// Moves or grows a mapping by `call`.
#[unsafe(link_section = ".text.startup.zfolio")]
pub fn remap(call: impl FnOnce() -> usize) -> usize {
    // What an engine has that is started meanwhile is registered after the call.
    if WATCHING.load(Relaxed) || !run::is_managed() {
        return call();
    }
    CONTROL.begin_remap();
    let result = call();
    CONTROL.end_remap();
    result
}

/// Fewer bytes are filled by the kernel, at once, as MAP_POPULATE asks: mappings that are as small are not managed.
const FILLED_AT_ONCE: usize = 64 << 10;

/// True when a mapping is to be filled after it was made, where each page is a fault that waits for room like any
/// other, and not by the kernel as it is made (MAP_POPULATE): then nothing of it is registered yet, and all of it
/// comes at once, whatever the limit is.
#[unsafe(link_section = ".text.startup.zfolio")]
pub fn fills_later(bytes: usize) -> bool {
    bytes > FILLED_AT_ONCE && run::is_in_run()
}

/// Fills a new mapping that the engine has been told of ([`grown`]), as MAP_POPULATE does: what cannot be filled is
/// left as it is, and nobody is told.
#[cold]
pub fn populate(at: usize, bytes: usize, protection: u32) {
    let bytes = bytes.next_multiple_of(PAGE);
    // An engine that was started for this, or a moment ago, may not have looked at anything yet, and so was not
    // asked to see to it.
    if run::is_managed() && is_own_memory() {
        CONTROL.await_engine();
        tell(at..at + bytes, GrowthKind::Mapping);
    }
    let how = if protection & PROT_WRITE != 0 { MADV_POPULATE_WRITE } else { MADV_POPULATE_READ };
    let _ = sys::madvise_keep(at, bytes, how);
}

/// brk says that the heap ends here.
#[unsafe(link_section = ".text.startup.zfolio")]
pub fn heap_ends(end: usize) {
    let before = HEAP_END.swap(end, Relaxed);
    if before != 0 {
        mapped(before, end.saturating_sub(before));
        grown(before..end, GrowthKind::Heap);
    }
}

/// The sum says that the process has grown: asks the kernel, and starts the engine.
#[cold]
fn reached() {
    relocate::finish();
    if !is_own_memory() {
        return;
    }
    let mask = sys::signal_mask(!0);
    // What cannot be looked at is taken to be large.
    let grown = GROWN.load(Relaxed);
    let data = sys::open(b"/proc/self/statm\0", O_RDONLY).map_or(grown, |f| footprint::data(&f));
    let reserved = RESERVED.load(Relaxed);
    if data.saturating_add(reserved) >= grown {
        start();
    } else {
        MAPPED.store((data + reserved).min(grown - grown / LOOK_PART), Relaxed);
    }
    sys::signal_mask(mask);
}

/// The program is about to do what an engine could not be started after: gives it one now.
pub fn before_it_cannot() {
    if WATCHING.load(Relaxed) && is_own_memory() {
        let mask = sys::signal_mask(!0);
        start();
        sys::signal_mask(mask);
    }
}

/// What came of a start from outside: known to crates/zfolio/src/attach.rs by these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum StartOutcome {
    /// There is an engine, or it is known that there will be none.
    Settled = 1,
    /// The memory is another process's, as in a child of vfork.
    Foreign = 2,
    /// Somebody forks, or the loader has not come to the library yet.
    Busy = 3,
    /// There will be no engine, since the run's page cannot be mapped, and nobody knows of it.
    NoPage = 4,
}

/// The process has grown past every hook, and `zfolio run` has noticed: gives it an engine now. All signals are blocked
/// (attach.rs).
pub fn start_from_outside() -> StartOutcome {
    // The loader comes to this library late: none of its own addresses is there, and no lock of the loader's may be
    // waited for.
    if !HAS_BEGUN.load(Acquire) {
        return StartOutcome::Busy;
    }
    relocate::finish();
    if !WATCHING.load(Acquire) {
        return settled();
    }
    if !is_own_memory() {
        return StartOutcome::Foreign;
    }
    // All that there may be has not been seen by the engine: where the limit may be passed meanwhile the thread waits
    // for its first look.
    if let Ok(statm) = sys::open(b"/proc/self/statm\0", O_RDONLY) {
        MAPPED.fetch_max(footprint::data(&statm), Relaxed);
    }
    start();
    if WATCHING.load(Acquire) { StartOutcome::Busy } else { settled() }
}

fn settled() -> StartOutcome {
    if HAS_NO_PAGE.load(Relaxed) { StartOutcome::NoPage } else { StartOutcome::Settled }
}

/// Starts the engine, unless somebody does or there is one. All signals must be blocked: a handler would find the gate
/// taken by its own thread.
fn start() {
    if !own::start_begin() {
        return;
    }
    if WATCHING.load(Relaxed) && !run::is_managed() {
        // With an engine a fork is to pass us inside libc, where that is possible.
        patch::install(&Site::ALL);
        if let Some(page) = map_page() {
            CONTROL.mapped_bytes.store(MAPPED.load(Relaxed), Relaxed);
            start::start_with(page);
        } else {
            // It fails again.
            HAS_NO_PAGE.store(true, Relaxed);
        }
        WATCHING.store(false, Release);
    }
    own::start_end();
}

fn map_page() -> Option<usize> {
    page::map_aside(core::array::from_fn(|i| PATH[i].load(Relaxed))).ok()
}
