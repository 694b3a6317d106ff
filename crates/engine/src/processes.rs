//! The processes that an engine makes: workers, which share its descriptors and have an address space of their own; and
//! helpers, which share its memory and make one system call.

use crate::heap;
use control::arena;
use control::library::library;
use control::stack::{self, STACK};
use core::mem::ManuallyDrop;
use core::ops::Range;
use memcg::{Memcg, Slot};
use uffd::maps::Maps;
use uffd::sys::{self, Errno, consts::*};

/// A process that shares this one's memory and runs beside it for a moment.
pub struct Helper {
    pid: u32,
    stack_top: usize,
}

/// Starts `entry(argument)` in one. Not in the program, whose child it would be.
///
/// # Safety
/// `entry` must be fit to run beside the program: no libc, no thread-local storage.
pub unsafe fn helper(entry: extern "C" fn(usize) -> !, argument: usize) -> Result<Helper, Errno> {
    let stack_top = stack::map()?;
    // SAFETY: the stack is new, and there until the process has ended; the rest is the caller's contract.
    let made = unsafe { sys::clone(CLONE_VM, stack_top, entry, argument) };
    if made.is_err() {
        // SAFETY: nobody has come to use it.
        unsafe { stack::unmap(stack_top) };
    }
    Ok(Helper { pid: made?, stack_top })
}

impl Helper {
    /// True when it has ended.
    pub fn has_ended(&self) -> bool {
        let mut status = 0;
        sys::wait4(self.pid, &mut status, __WALL | WNOHANG) != Ok(0)
    }

    /// Waits for its end.
    pub fn wait(self) {
        let mut status = 0;
        while sys::wait4(self.pid, &mut status, __WALL) == Err(Errno::EINTR) {}
        // SAFETY: nobody is on that stack any more.
        unsafe { stack::unmap(self.stack_top) };
    }
}

/// Where a worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerPlace {
    /// In an address space of its own: a copy of this one, without all that is kept out of children.
    Apart,
    /// In this one.
    Here,
}

/// Starts `entry` in a process that shares this one's descriptors, and is its child; its argument is the address of
/// `start`, which is never dropped. Who is made apart gets `shared` too, a mapping of the engine's.
///
/// # Safety
/// `entry` must be fit to run beside the program: no libc, no thread-local storage. A child that somebody else makes
/// meanwhile gets the stack and `shared` too.
pub unsafe fn worker<T>(
    entry: extern "C" fn(usize) -> !,
    place: WorkerPlace,
    shared: Range<usize>,
    start: T,
) -> Result<u32, Errno> {
    const { assert!(size_of::<T>() < STACK / 2) };
    // Also where no process comes of it: it names descriptors that others use.
    let start = ManuallyDrop::new(start);
    let stack_top = stack::map()?;
    let (stack, vm) = (stack_top - STACK, if place == WorkerPlace::Here { CLONE_VM } else { 0 });
    let inherited = [stack..stack_top, shared];
    let advise = |advice| {
        let all = inherited.iter().all(|r| sys::madvise_keep(r.start, r.len(), advice).is_ok());
        all.then_some(()).ok_or(Errno::EINVAL)
    };
    // SAFETY: the stack is new, and grows down from its other end; the rest is the caller's contract.
    let made = unsafe {
        (stack as *mut ManuallyDrop<T>).write(start);
        advise(MADV_DOFORK).and_then(|()| sys::clone(vm | CLONE_FILES | CLONE_FS, stack_top, entry, stack))
    };
    // Refused, a child that the program makes has them too, and unmaps them.
    let _ = advise(MADV_DONTFORK);
    if place == WorkerPlace::Apart || made.is_err() {
        // SAFETY: the new process has a copy of it.
        unsafe { stack::unmap(stack_top) };
    }
    made
}

/// What a process that was made apart needs: the mappings that hold these addresses, and the library.
pub struct Kept([usize; 3]);

impl Kept {
    /// The board at `board`, the run's page with `slot` in it, its beginning, and the stack of whoever calls
    /// [`Kept::leave_the_rest`].
    pub fn new(board: usize, memcg: &Memcg, slot: &Slot) -> Kept {
        Kept([board, core::ptr::from_ref(memcg) as usize, core::ptr::from_ref(slot) as usize])
    }

    /// Unmaps everything else but the kernel's own; false when there is no telling what that is.
    ///
    /// # Safety
    /// The calling process must have been made apart, and use nothing else; its heap begins anew.
    pub unsafe fn leave_the_rest(&self) -> bool {
        let Ok(maps) = Maps::open() else { return false };
        let (mut at, library, stack) = (0, library(), &raw const maps as usize);
        while let Ok(Some(m)) = maps.query(at) {
            at = m.range.end;
            let is_kept = self.0.iter().chain([&stack]).any(|kept| m.range.contains(kept))
                || m.range.start < library.end && m.range.end > library.start
                || m.name[0..2] == *b"[v";
            if !is_kept {
                // Refused, it is sealed (mseal): a copy of what nobody can change, and costs addresses.
                // SAFETY: the caller's contract.
                let _ = unsafe { sys::munmap(m.range.start, m.range.len()) };
            }
        }
        // SAFETY: this process has one thread, and none of the old heap.
        unsafe {
            arena::forget();
            heap::reset();
        }
        true
    }
}
