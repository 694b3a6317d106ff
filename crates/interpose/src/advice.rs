//! What the program advises the kernel about its memory, and where mremap takes that.

use crate::bell::ask;
use crate::grow;
use crate::libc::{Call, NO_SUCH_CALL, real, settle};
use crate::own::{is_own_memory, with_bell};
use control::run;
use control::{CONTROL, EngineState, Request, UNANSWERED};
use core::ops::Range;
use core::sync::atomic::Ordering::*;
use uffd::PAGE;
use uffd::sys::consts::*;

/// madvise(2): what children are to have, or not, is the engine's to see to, since it keeps more out of them; and so
/// are guards, which discard pages without an event, and which a copy of the engine's would overwrite.
pub extern "C" fn madvise(at: usize, bytes: usize, advice: i32) -> i32 {
    const FREE: i32 = 8;
    // SAFETY: the type of madvise(2).
    let real = unsafe { real::<extern "C" fn(usize, usize, i32) -> i32>(Call::Madvise) };
    // To give pages up at once is one of the two things that MADV_FREE allows, and the one that is seen at once: memory
    // that is given up later would have to be watched until then.
    let effective = if advice == FREE && run::is_managed() { MADV_DONTNEED as i32 } else { advice };
    let call = || real.map_or(NO_SUCH_CALL, |f| f(at, bytes, effective));
    let end = bytes.checked_next_multiple_of(PAGE).and_then(|bytes| at.checked_add(bytes));
    let range = at..end.unwrap_or(at);
    let request = match advice as u32 {
        MADV_DONTFORK => Request::KeepOut,
        MADV_DOFORK => Request::LetIn,
        MADV_GUARD_INSTALL if run::is_in_run() => Request::Guard,
        _ => return call(),
    };
    // What is no range the kernel refuses before it looks at the advice.
    if at.is_multiple_of(PAGE) && !range.is_empty() { advise(request, range, call) } else { call() }
}

/// Advice that an engine which is awake gives for the program (dontfork.rs, guards.rs).
fn advise(request: Request, range: Range<usize>, call: impl Fn() -> i32) -> i32 {
    is_own_memory();
    if CONTROL.state() == EngineState::Asleep {
        match request {
            Request::KeepOut => CONTROL.early_advice.store(1, SeqCst),
            Request::Guard => CONTROL.guards.store(1, SeqCst),
            _ => {}
        }
        let result = call();
        // If it has awoken meanwhile it may not know of this.
        if CONTROL.state() == EngineState::Asleep {
            return result;
        }
    }
    let outcome = with_bell(|| {
        CONTROL.outcome.store(UNANSWERED, SeqCst);
        ask(request, range);
        CONTROL.outcome.load(SeqCst)
    });
    match outcome {
        // The engine can manage nothing after all.
        UNANSWERED => call(),
        errno => settle(-(errno as isize)) as i32,
    }
}

/// mremap has made a mapping of `before` bytes one of `after` bytes, at `at`: what was advised on it goes along, which
/// events tell in part only (dontfork.rs).
pub fn has_moved(at: usize, before: usize, after: usize) {
    let [before, after] = [before, after].map(|bytes| bytes.next_multiple_of(PAGE));
    if CONTROL.state() == EngineState::Awake {
        let has_grown = before > 0 && before < after;
        let (request, from) = if has_grown { (Request::Grow, before) } else { (Request::Move, 0) };
        with_bell(|| ask(request, at + from..at + after));
    }
}

/// mremap(2), where the program itself calls it: of a process with small mappings libc's own call is not hooked yet.
pub extern "C" fn mremap(at: usize, bytes: usize, new_bytes: usize, flags: i32, to: usize) -> usize {
    grow::before_mremap();
    // SAFETY: the type of mremap(2), whose last argument is there or not.
    let real = unsafe { real::<extern "C" fn(usize, usize, usize, i32, usize) -> usize>(Call::Mremap) };
    real.map_or(usize::MAX, |f| f(at, bytes, new_bytes, flags, to))
}
