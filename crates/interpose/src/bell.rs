//! The doorbell: how a thread of the program asks the engine for something, and waits until that is done. It touches a
//! page that is never there.

use control::{CONTROL, DOORBELL_BYTES, EngineState, Request};
use core::ops::Range;
use core::sync::atomic::Ordering::*;
use uffd::sys;
use uffd::{Mutex, PAGE};

/// One request to the engine at a time.
#[unsafe(link_section = ".data.zfolio")]
static BELL: Mutex<()> = Mutex::new(());

/// Touches the doorbell: returns when the engine has answered, or at once where the bell is still full. Whoever asks
/// looks himself whether it was done.
pub fn ring() {
    let bell = CONTROL.doorbell.load(Acquire);
    if bell != 0 {
        let at = bell + CONTROL.rings.fetch_add(1, Relaxed) * PAGE % DOORBELL_BYTES;
        // SAFETY: the engine's own page, mapped as long as the process lives; the read waits until the engine answers.
        unsafe { (at as *const u8).read_volatile() };
    }
}

/// Holds the doorbell for this thread. Signals are blocked, since a handler might want it too.
pub fn with<R>(act: impl FnOnce() -> R) -> R {
    let mask = sys::signal_mask(!0);
    let bell = BELL.lock();
    let result = act();
    drop(bell);
    sys::signal_mask(mask);
    result
}

/// Asks the engine for something, with the bell held, and returns when it is done.
pub fn ask(request: Request, range: Range<usize>) {
    CONTROL.range.0.store(range.start, Relaxed);
    CONTROL.range.1.store(range.end, Relaxed);
    CONTROL.request.store(request as u32, SeqCst);
    // Another thread's answer may be under way, and the bell found answered: the request itself says when it is done.
    while CONTROL.request.load(Acquire) != 0 && CONTROL.state() == EngineState::Awake {
        ring();
    }
}

/// A fork is counted: returns when everything is home.
pub fn come_home() {
    // The bell may be found answered for another thread's sake: what counts is what the engine says.
    while CONTROL.home.load(SeqCst) == 0 && CONTROL.state() == EngineState::Awake {
        ring();
    }
}

/// In a child of fork: what another thread of the parent's had asked for is not under way here.
///
/// # Safety
/// The caller is the only thread.
pub unsafe fn reset() {
    // Not written where it is so already: the page stays shared with the parent.
    if BELL.is_held() {
        // SAFETY: the caller's contract.
        unsafe { (&raw const BELL).cast_mut().write(Mutex::new(())) };
    }
}
