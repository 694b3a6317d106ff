//! What the program advises the kernel about its memory, and where mremap takes that.

use crate::bell::{ask, ring};
use crate::grow;
use crate::libc::{Call, NO_SUCH_CALL, errno, real, settle};
use crate::own::{is_own_memory, with_bell};
use control::run;
use control::{CONTROL, EngineState, Request, UNANSWERED};
use core::ops::Range;
use core::sync::atomic::Ordering::*;
use linux_raw_sys::general as g;
use uffd::sys::{self, consts::*};
use uffd::{Advice, Errno, PAGE};

/// madvise(2): what children are to have, or not, is the engine's to see to, since it keeps more out of them; and so
/// are guards, which discard pages without an event, and which a copy of the engine's would overwrite.
pub extern "C" fn madvise(at: usize, bytes: usize, advice: i32) -> i32 {
    // SAFETY: the type of madvise(2).
    let real = unsafe { real::<extern "C" fn(usize, usize, i32) -> i32>(Call::Madvise) };
    let for_kernel = for_kernel(advice as u32) as i32;
    let call = || real.map_or(NO_SUCH_CALL, |f| f(at, bytes, for_kernel));
    let end = bytes.checked_next_multiple_of(PAGE).and_then(|bytes| at.checked_add(bytes));
    let range = at..end.unwrap_or(at);
    let request = match advice as u32 {
        MADV_DONTFORK => Request::KeepOut,
        MADV_DOFORK => Request::LetIn,
        MADV_GUARD_INSTALL if run::is_in_run() => Request::Guard,
        advice => {
            if matches!(advice, MADV_HUGEPAGE | MADV_NOHUGEPAGE) {
                let result = call();
                CONTROL.huge_advice.fetch_add(1, Relaxed);
                return result;
            }
            let result = call();
            if let Some(advice) = Advice::of(advice)
                && (result == 0 || is_errno(Errno::ENOMEM))
            {
                hand_on(advice, range);
            }
            return result;
        }
    };
    // What is no range the kernel refuses before it looks at the advice.
    if at.is_multiple_of(PAGE) && !range.is_empty() { advise(request, range, call) } else { call() }
}

/// What the kernel is advised where the program gives this advice.
fn for_kernel(advice: u32) -> u32 {
    match advice {
        // To give pages up at once is one of the two things that MADV_FREE allows, and the one that is seen at once:
        // memory that is given up later would have to be watched until then.
        MADV_FREE if run::is_managed() => MADV_DONTNEED,
        // With swap on the machine the kernel would take the pages beneath the engine, to where they count as before.
        // It refuses the one as it does the other. Whether there is swap is not asked: filters may forbid it.
        MADV_PAGEOUT if run::is_managed() => MADV_COLD,
        _ => advice,
    }
}

/// True when the last call of this thread has failed so.
fn is_errno(expected: Errno) -> bool {
    // SAFETY: null, or the thread's own.
    unsafe { errno().as_ref() }.is_some_and(|&errno| errno == expected.0.into())
}

/// Hands on to the engine what the kernel was advised too, of whole pages: without a lock, and without waiting for what
/// comes of it. (The kernel says ENOMEM where parts of the range are not mapped, and has advised the others.)
fn hand_on(advice: Advice, range: Range<usize>) {
    is_own_memory();
    let is_asleep = CONTROL.state() == EngineState::Asleep;
    // While the engine sleeps nothing is out.
    if range.is_empty() || !CONTROL.has_engine() || is_asleep && advice == Advice::WillNeed {
        return;
    }
    let put = || CONTROL.advice.put(advice, &range);
    if put() {
        // One that sleeps would look in half a second.
        if is_asleep && advice == Advice::PageOut {
            CONTROL.call();
        }
        return;
    }
    // The engine takes what waits before it answers.
    ring();
    // SAFETY: null, or of static life.
    let slot = unsafe { CONTROL.slot.load(Acquire).as_ref() };
    if !put()
        && let Some(slot) = slot
    {
        slot.stat.advice_dropped.fetch_add(1, Relaxed);
    }
}

/// process_madvise(2): advice for this process is the same as by madvise.
pub extern "C" fn process_madvise(pidfd: i32, ranges: usize, count: usize, advice: i32, flags: u32) -> isize {
    let known = Advice::of(advice as u32).filter(|_| run::is_managed() && is_own_process(pidfd));
    let for_kernel = if known.is_some() { for_kernel(advice as u32) as i32 } else { advice };
    let arguments = [pidfd as usize, ranges, count, for_kernel as usize, flags as usize, 0];
    // Not by libc's own, which older ones do not have. SAFETY: the program's own call, whose advice discards nothing.
    let done = match unsafe { sys::syscall(g::__NR_process_madvise, arguments) } {
        Ok(done) => done,
        Err(errno) => return settle(-(errno.0 as isize)),
    };
    if let Some(advice) = known {
        hand_on_each(advice, ranges, count, done);
    }
    done as isize
}

/// Hands on what the kernel was advised of an array of `count` ranges (struct iovec), up to so many bytes.
fn hand_on_each(advice: Advice, ranges: usize, count: usize, done: usize) {
    const ENTRY: usize = size_of::<[usize; 2]>();
    let (pid, mut left) = (sys::getpid().unwrap_or(0) as u32, done);
    for at in (ranges..).step_by(ENTRY).take(count) {
        let mut words = [[0; size_of::<usize>()]; 2];
        if left == 0 || sys::peek(pid, at, words.as_flattened_mut()) != Ok(ENTRY) {
            return;
        }
        let [start, bytes] = words.map(usize::from_ne_bytes);
        let bytes = bytes.next_multiple_of(PAGE).min(left.next_multiple_of(PAGE));
        left = left.saturating_sub(bytes);
        hand_on(advice, start..start.saturating_add(bytes));
    }
}

/// True for a descriptor that stands for this process. Kernels before 6.13 do not say.
fn is_own_process(pidfd: i32) -> bool {
    // PIDFD_SELF_THREAD_GROUP, PIDFD_SELF_THREAD.
    if matches!(pidfd, -10001..=-10000) {
        return true;
    }
    // _IOWR(0xff, 11, struct pidfd_info), and PIDFD_INFO_PID.
    const PIDFD_GET_INFO: usize = 0xc040_ff0b;
    let mut info = [1u64, 0, 0, 0, 0, 0, 0, 0];
    let arguments = [pidfd as usize, PIDFD_GET_INFO, info.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the kernel writes the structure, which is so long.
    let told = unsafe { sys::syscall(g::__NR_ioctl, arguments) };
    // The third word is the process's number, and that of its first thread.
    told.is_ok() && sys::getpid() == Ok((info[2] >> 32) as usize)
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
