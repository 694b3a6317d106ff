//! How a process gets its engine: a slot of the run's page, what the engine is to know, and a process of its own.

use crate::aside::{self, EngineProcess};
use crate::libc_threads;
use control::messages;
use control::run;
use control::{CONTROL, Order};
use core::sync::atomic::{AtomicUsize, Ordering::*};
use memcg::{Memcg, Slot};
use uffd::sys::{self, Errno};

/// The first function of an engine; its argument is not used.
pub type EngineEntry = extern "C" fn(usize) -> !;

/// Where it is; 0 where there is none.
#[unsafe(link_section = ".data.zfolio")]
static ENGINE: AtomicUsize = AtomicUsize::new(0);

/// Engines of this process begin there. For the constructor.
pub fn set_engine(entry: EngineEntry) {
    ENGINE.store(entry as usize, Relaxed);
}

/// Makes the engine's process. All signals must be blocked.
pub fn make_engine() -> Result<EngineProcess, Errno> {
    let entry = ENGINE.load(Relaxed);
    if entry == 0 {
        return Err(Errno::ENOSYS);
    }
    // SAFETY: it was stored as such a function.
    let entry = unsafe { core::mem::transmute::<usize, EngineEntry>(entry) };
    // SAFETY: it is made to run beside the program.
    unsafe { aside::detached(entry, &raw const CONTROL as usize) }
}

/// Starts an engine for this process, which has none, with the run's page at this address.
pub fn start_with(page: usize) {
    let shared = page as *mut Memcg;
    // SAFETY: the mapping is as large as the structure, and all of it is atomics and plain integers; it is never
    // unmapped.
    if unsafe { (*shared).magic.load(Acquire) } == memcg::MAGIC {
        // SAFETY: as above.
        run::set_memcg(unsafe { &*shared });
        start_engine(None, None);
    }
}

/// Starts an engine for this process, whose parent had the slot `parent` if it is a fork of it that has taken nothing
/// over, and whose main thread has this exit word, where that is known.
pub fn start_engine(parent: Option<&Slot>, word: Option<(usize, u32)>) {
    let Some(memcg) = run::memcg() else { return };
    let pid = sys::getpid().unwrap_or(0) as u32;
    let Some(slot) = claim(memcg, pid) else {
        memcg.unmanaged.fetch_add(1, Relaxed);
        return;
    };
    // It may have ended, and the slot be another's.
    let lives = |parent: &&Slot| sys::getppid() == Ok(parent.pid.load(Relaxed) as usize);
    if let Some(parent) = parent.filter(lives) {
        memcg.join_family(parent, slot);
    }
    libc_threads::learn(&CONTROL.blocks);
    let order = Order { memcg, slot, pid, main_thread: word.or_else(|| exit_word(pid)) };
    CONTROL.begin(&order);
    memcg.managed.fetch_add(1, Relaxed);
    // Every signal is blocked while the engine is made, so that it begins with all of them blocked.
    let mask = sys::signal_mask(!0);
    let made = make_engine();
    sys::signal_mask(mask);
    match made {
        Ok(engine) => {
            // The engine itself says who it is, as long as the slot is its own.
            CONTROL.may_yield.store(engine.may_yield as u32, Relaxed);
            // What the process grows by until its engine looks is nobody's to have.
            if memcg.may_run_short(CONTROL.unseen_bytes() as u64) {
                CONTROL.await_look();
            }
        }
        Err(errno) => {
            messages::unmanaged(&order, format_args!("the engine could not be started: clone says {errno}"));
            messages::leave(&order);
        }
    }
}

/// Takes a slot for this process, and says there who it is.
fn claim(memcg: &'static Memcg, pid: u32) -> Option<&'static Slot> {
    let slot = memcg.claim(pid)?;
    introduce(slot);
    Some(slot)
}

/// Says in a slot who this process is.
pub fn introduce(slot: &Slot) {
    let name = sys::name().unwrap_or_default();
    slot.introduce(sys::getppid().unwrap_or(0) as u32, &name, sys::now_ns());
}

/// How far glibc's exit word lies before the robust list head, before 2.43; and how far it may lie from there at all,
/// in one control block.
const EXIT_WORD: usize = 16;
const EXIT_WORD_FARTHEST: isize = 0x700;

/// The word that the kernel clears and wakes as the main thread ends or the process executes another program. `None`
/// where it is not found. The main thread's number is the process's.
fn exit_word(tid: u32) -> Option<(usize, u32)> {
    let head = |tid| sys::robust_list(tid).ok().filter(|head| *head != 0);
    // The kernel tells each thread its own, and glibc keeps it at one place of every control block.
    let told = || {
        let offset = sys::tid_address().ok()?.wrapping_sub(head(sys::gettid().ok()? as u32)?) as isize;
        (-EXIT_WORD_FARTHEST..EXIT_WORD_FARTHEST).contains(&offset).then_some(offset)
    };
    let offset = told().or_else(|| CONTROL.blocks.tid_from_head()).unwrap_or(-(EXIT_WORD as isize));
    let word = head(tid)?.wrapping_add_signed(offset);
    // SAFETY: the thread's control block, which stays mapped when it has ended.
    (unsafe { (word as *const u32).read_volatile() } == tid).then_some((word, tid))
}
