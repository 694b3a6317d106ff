//! Calls by which a program starts another, with an environment of its choice: `env -i`, a shell's variables that were
//! unset, a test that runs in an empty one. What the new program needs to be managed is put in again. Where it could
//! not open the library (chroot, another mount namespace), the loader would say so on its stderr: there it is taken
//! out, and the program and its descendants run unmanaged. By which of its two names a program gets the library depends
//! on the file that is to be executed (image.rs).
//!
//! The calls may come from a child of vfork, which has its parent's memory, and from a signal handler: a new
//! environment lies on the stack until the call returns, and nothing is locked. The program's own `environ` stays as it
//! is. (Of posix_spawn's two versions libc's newer one is called: the older, for programs linked before glibc 2.15,
//! gives scripts without `#!` to a shell.)
//!
//! What libc starts by itself (system, popen, wordexp) does not pass here. It uses `environ`, and so it is unmanaged
//! where a program has emptied that.

use crate::environment::{EnvironmentChange, Vector};
use crate::image::Image;
use crate::libc::{Call, real, set_errno};
use crate::loaded;
use control::run::{Name, run};
use core::arch::naked_asm;
use core::ffi::c_void;
use uffd::sys;

const ENOSYS: i32 = 38;

/// Calls with `strings`, or with what they must be for a program that is to be managed, and is this one.
fn with_environment(strings: Vector, image: Image, call: impl FnOnce(Vector) -> i32) -> i32 {
    let Some(run) = run() else { return call(strings) };
    let name = || if image.is_glibcs() { Name::File } else { Name::Platform };
    // SAFETY: an environment, by the contract of every function that calls this; it stays until the call returns.
    match unsafe { EnvironmentChange::new(run, strings, sys::may_read(run.file()).then(name)) } {
        None => call(strings),
        // SAFETY: as much room as the plan asks for, aligned to 16.
        Some(plan) => on_stack(plan.room_bytes(), |room| call(unsafe { plan.write(room) })),
    }
}

/// Calls with so many bytes of the stack, aligned to 16.
fn on_stack<F: FnOnce(*mut u8) -> i32>(bytes: usize, call: F) -> i32 {
    extern "C" fn pass<F: FnOnce(*mut u8) -> i32>(room: *mut u8, call: *mut c_void) -> i32 {
        // SAFETY: the option below, whose type is the same by `F`.
        unsafe { (*call.cast::<Option<F>>()).take() }.map_or(-1, |call| call(room))
    }
    let mut call = Some(call);
    // SAFETY: `pass` takes what it is given here, and is called once.
    unsafe { descend(bytes, pass::<F>, (&raw mut call).cast()) }
}

/// Takes `bytes` of the stack, and calls `call` with them and `with`. Each page is touched on the way down, so that a
/// stack that is too small ends at its guard, and not beyond.
#[unsafe(naked)]
unsafe extern "C" fn descend(
    bytes: usize,
    call: extern "C" fn(*mut u8, *mut c_void) -> i32,
    with: *mut c_void,
) -> i32 {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "2:",
        "cmp rdi, 4096",
        "jb 3f",
        "sub rsp, 4096",
        "sub rdi, 4096",
        "or qword ptr [rsp], 0",
        "jmp 2b",
        "3:",
        "sub rsp, rdi",
        "and rsp, -16",
        "or qword ptr [rsp], 0",
        "mov rax, rsi",
        "mov rdi, rsp",
        "mov rsi, rdx",
        "call rax",
        "leave",
        "ret",
    )
}

/// libc's `environ`, as its own functions read it.
fn environ() -> Vector {
    #[cfg(panic = "abort")]
    {
        let at: *const Vector;
        // SAFETY: reads the address of a weak symbol from the table of addresses: 0 where libc has none.
        unsafe {
            core::arch::asm!(".weak __environ", "mov {}, qword ptr [rip + __environ@GOTPCREL]", out(reg) at)
        };
        // SAFETY: the variable of the C library, whoever defines it.
        if at.is_null() { core::ptr::null() } else { unsafe { at.read_volatile() } }
    }
    #[cfg(not(panic = "abort"))]
    core::ptr::null()
}

/// What a call does that this libc does not have.
fn no_such_call() -> i32 {
    set_errno(ENOSYS);
    -1
}

type Execve = extern "C" fn(*const u8, Vector, Vector) -> i32;
type Fexecve = extern "C" fn(i32, Vector, Vector) -> i32;
type Execveat = extern "C" fn(i32, *const u8, Vector, Vector, i32) -> i32;
type Spawn = extern "C" fn(*mut i32, *const u8, *const c_void, *const c_void, Vector, Vector) -> i32;

/// execve(2).
pub extern "C" fn execve(path: *const u8, arguments: Vector, environment: Vector) -> i32 {
    // SAFETY: the type of execve(2).
    let real = unsafe { real::<Execve>(Call::Execve) };
    let image = Image::At(path);
    with_environment(environment, image, |strings| {
        real.map_or_else(no_such_call, |f| f(path, arguments, strings))
    })
}

/// What execvp and posix_spawnp are to execute.
fn searched_for(file: *const u8) -> Image {
    // SAFETY: the caller's contract is that of these functions.
    unsafe { Image::by_search(file, environ()) }
}

/// execvpe(3).
pub extern "C" fn execvpe(file: *const u8, arguments: Vector, environment: Vector) -> i32 {
    // SAFETY: the type of execvpe(3).
    let real = unsafe { real::<Execve>(Call::Execvpe) };
    with_environment(environment, searched_for(file), |strings| {
        real.map_or_else(no_such_call, |f| f(file, arguments, strings))
    })
}

/// execv(3).
pub extern "C" fn execv(path: *const u8, arguments: Vector) -> i32 {
    execve(path, arguments, environ())
}

/// execvp(3).
pub extern "C" fn execvp(file: *const u8, arguments: Vector) -> i32 {
    execvpe(file, arguments, environ())
}

/// fexecve(3).
pub extern "C" fn fexecve(fd: i32, arguments: Vector, environment: Vector) -> i32 {
    // SAFETY: the type of fexecve(3).
    let real = unsafe { real::<Fexecve>(Call::Fexecve) };
    with_environment(environment, Image::Unknown, |strings| {
        real.map_or_else(no_such_call, |f| f(fd, arguments, strings))
    })
}

/// execveat(2).
pub extern "C" fn execveat(
    dir: i32,
    path: *const u8,
    arguments: Vector,
    environment: Vector,
    flags: i32,
) -> i32 {
    // SAFETY: the type of execveat(2).
    let real = unsafe { real::<Execveat>(Call::Execveat) };
    with_environment(environment, Image::Unknown, |strings| {
        real.map_or_else(no_such_call, |f| f(dir, path, arguments, strings, flags))
    })
}

/// What posix_spawn is to execute.
fn spawned(which: Call, path: *const u8, actions: *const c_void) -> Image {
    // This process goes on: another thread may count on the number of the descriptor that it gets next, or make a child
    // that has ours.
    if !loaded::says_one_thread() {
        return Image::Unknown;
    }
    let image = match which {
        Call::PosixSpawn | Call::PidfdSpawn => Image::At(path),
        _ => searched_for(path),
    };
    // One of the actions may be to change the directory. SAFETY: the caller's contract is that of posix_spawn(3).
    if actions.is_null() { image } else { unsafe { image.from_anywhere() } }
}

/// posix_spawn, posix_spawnp, pidfd_spawn or pidfd_spawnp: they return an error number.
fn spawn(
    which: Call,
    child: *mut i32,
    path: *const u8,
    (actions, attributes): (*const c_void, *const c_void),
    arguments: Vector,
    environment: Vector,
) -> i32 {
    // SAFETY: the type of all four.
    let real = unsafe { real::<Spawn>(which) };
    let image = spawned(which, path, actions);
    // No handler comes between, which could make a child. posix_spawn does the same.
    let mask = sys::signal_mask(!0);
    // The child has executed the program, or failed to, when the call returns.
    with_environment(environment, image, |strings| {
        sys::signal_mask(mask);
        real.map_or(ENOSYS, |f| f(child, path, actions, attributes, arguments, strings))
    })
}

macro_rules! spawns {
    ($($(#[$doc:meta])* $name:ident, $call:ident;)*) => {$(
        $(#[$doc])*
        pub extern "C" fn $name(
            child: *mut i32,
            path: *const u8,
            actions: *const c_void,
            attributes: *const c_void,
            arguments: Vector,
            environment: Vector,
        ) -> i32 {
            spawn(Call::$call, child, path, (actions, attributes), arguments, environment)
        }
    )*};
}

spawns! {
    /// posix_spawn(3).
    posix_spawn, PosixSpawn;
    /// posix_spawnp(3).
    posix_spawnp, PosixSpawnp;
    /// pidfd_spawn, of glibc 2.39 and newer.
    pidfd_spawn, PidfdSpawn;
    /// pidfd_spawnp, of glibc 2.39 and newer.
    pidfd_spawnp, PidfdSpawnp;
}

/// execle(3), with its list as an array: behind NULL is the environment.
extern "C" fn execle_of_array(path: *const u8, list: Vector) -> i32 {
    let mut end = list;
    // SAFETY: the caller's list ends with NULL and is followed by an environment.
    let environment = unsafe {
        while !(*end).is_null() {
            end = end.add(1);
        }
        *end.add(1).cast::<Vector>()
    };
    execve(path, list, environment)
}

/// Functions whose arguments are a list: the registers that it begins in are put on the stack right before where it
/// goes on, and it is an array.
macro_rules! lists {
    ($($(#[$doc:meta])* $name:ident, $of_array:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the function in C; there are more arguments than are named here.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(path: *const u8, first: *const u8) -> i32 {
            naked_asm!(
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                // The return address, by which the stack is aligned again.
                "push rax",
                "call {of_array}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                "ret",
                of_array = sym $of_array,
            )
        }
    )*};
}

lists! {
    /// execl(3).
    execl, execv;
    /// execlp(3).
    execlp, execvp;
    /// execle(3).
    execle, execle_of_array;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_on_the_stack_is_aligned_and_ours_to_write() {
        for bytes in [0usize, 1, 15, 16, 4095, 4096, 4097, 100_000] {
            let result = on_stack(bytes, |room| {
                assert_eq!(room as usize % 16, 0);
                // SAFETY: as many bytes as were asked for.
                let room = unsafe { core::slice::from_raw_parts_mut(room, bytes) };
                room.fill(0xa5);
                // What is called below may not reach up into it.
                assert_eq!(std::hint::black_box([0u8; 512]).len() + std::env::args().count().min(1), 513);
                assert!(room.iter().all(|byte| *byte == 0xa5));
                bytes as i32
            });
            assert_eq!(result, bytes as i32);
        }
    }
}
