//! libc's own functions: those that the library stands before, and a few more that it calls.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// The functions and their names.
macro_rules! functions {
    (
        frequent { $($frequent:tt)* }
        visible { $($visible:tt)* }
        answers { $($answers:tt)* }
        hooks { $($module:ident { $($hook:ident $(=> $call:ident)?;)* })* }
        unhooked { $($other:ident => $other_call:ident;)* }
    ) => {
        /// A function of libc's.
        #[allow(missing_docs, reason = "their names say it")]
        #[derive(Clone, Copy)]
        pub enum Call {
            $($($($call,)?)*)*
            $($other_call),*
        }

        /// Their names, with NUL, by [`Call`].
        const NAMES: &[&str] = &[
            $($($({
                let _ = Call::$call;
                concat!(stringify!($hook), "\0")
            },)?)*)*
            $(concat!(stringify!($other), "\0")),*
        ];
    };
}

include!("functions.in");

/// Where they are; 0 for what was not looked for yet, or is not there.
#[unsafe(link_section = ".data.zfolio")]
static REAL: [AtomicUsize; NAMES.len()] = [const { AtomicUsize::new(0) }; NAMES.len()];

/// What a call returns that this libc does not have.
pub const NO_SUCH_CALL: i32 = -1;

/// The function that the program would have called without us; 0 where there is none. `name` ends with NUL.
fn next_symbol(name: &[u8]) -> usize {
    #[cfg(panic = "abort")]
    {
        // Without the loader's help if it can be: a hook may be called where dlsym may not.
        if let Some(address) =
            crate::loaded::symbol_after(control::library::library().start, &name[..name.len() - 1])
        {
            return address;
        }
        const RTLD_NEXT: usize = usize::MAX;
        let dlsym: usize;
        // SAFETY: reads the address of a weak symbol from the table of addresses: 0 where libc has none.
        unsafe {
            core::arch::asm!(".weak dlsym", "mov {}, qword ptr [rip + dlsym@GOTPCREL]", out(reg) dlsym)
        };
        if dlsym == 0 {
            return 0;
        }
        // SAFETY: dlsym(3) has this signature.
        let dlsym = unsafe { core::mem::transmute::<usize, extern "C" fn(usize, *const u8) -> usize>(dlsym) };
        dlsym(RTLD_NEXT, name.as_ptr())
    }
    #[cfg(not(panic = "abort"))]
    {
        let _ = name;
        0
    }
}

/// libc's own function, as the function type `F`.
///
/// # Safety
/// `F` must be the type of a pointer to that function.
pub unsafe fn real<F: Copy>(call: Call) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    let address = find(call);
    // SAFETY: the address of a function is a function pointer; the type is the caller's contract.
    (address != 0).then(|| unsafe { core::mem::transmute_copy(&address) })
}

/// The address of libc's own function, 0 for none. It is looked for when it is called first: most programs call none of
/// them.
fn find(call: Call) -> usize {
    match REAL[call as usize].load(Relaxed) {
        0 => {
            let found = next_symbol(NAMES[call as usize].as_bytes());
            REAL[call as usize].store(found, Relaxed);
            found
        }
        known => known,
    }
}

/// What a child calls first is found by its parent, once, and not by each child anew.
pub fn find_for_child() {
    find(Call::Execve);
    find(Call::Execvpe);
}

/// Where the calling thread has its errno; null where that cannot be told.
pub fn errno() -> *mut i32 {
    // SAFETY: the type of libc's function, which returns the address of the thread's own.
    unsafe { real::<extern "C" fn() -> *mut i32>(Call::ErrnoLocation) }.map_or(null_mut(), |f| f())
}

/// Sets it.
pub fn set_errno(value: i32) {
    // SAFETY: null, or the thread's own.
    if let Some(errno) = unsafe { errno().as_mut() } {
        *errno = value;
    }
}

/// What libc returns for a system call's result: -1 for an error, which is in errno.
pub fn settle(result: isize) -> isize {
    if result >= 0 {
        return result;
    }
    set_errno(-result as i32);
    NO_SUCH_CALL as isize
}
