//! libzfolio.so: an engine for the process that loads it.
//!
//! The library is preloaded by `zfolio run`. Its constructor looks for an environment variable with the path of the
//! run's shared page, and hooks libc's own system calls. When the process has grown, that page is mapped and the engine
//! is started: a process of its own that shares the program's memory and nothing else (clone with CLONE_VM alone). The
//! program keeps its threads, descriptors, signals and children as they would be without it. ARCHITECTURE.md tells the
//! life of a page.
//!
//! ```text
//!   program's threads (interpose)             engine process (engine)          worker processes (engine)
//!   start ── clone ───────────────────────> process::main: asleep, awake       worker::main
//!   fork, madvise (hooks) ── doorbell ────> mm::Pager                ────────> compress, decompress
//!                           (control: what they tell each other)
//! ```
//!
//! Who runs a line is told by the crate that it is in. Here is what ties them together: the allocator, which the engine
//! alone calls, what a panic does, and the constructor.
//!
//! Without `panic = "abort"`, as in tests, the crate is an ordinary library: no allocator, no hooks, no constructor.

#![cfg_attr(panic = "abort", no_std)]

extern crate alloc;

#[cfg(panic = "abort")]
mod bare {
    use core::fmt::Write;
    use engine::heap::Heap;

    #[global_allocator]
    static HEAP: Heap = Heap;

    /// A bug of ours: it is said on stderr with its place, and the process that met it dies by a trap.
    #[panic_handler]
    fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
        interpose::relocate::finish();
        let mut line = control::line::Line::default();
        let _ = write!(line, "internal error: {info}");
        control::messages::leave_message(line.as_str());
        // What is out cannot be restored any more: the program must not go on and read zeros there.
        control::messages::stop_program();
        // SAFETY: an undefined instruction ends the process by a signal; nothing runs after it.
        unsafe { core::arch::asm!("ud2", options(noreturn)) }
    }

    /// Runs before the program's own constructors and main.
    #[unsafe(link_section = ".text.startup.zfolio")]
    extern "C" fn constructor(_argc: i32, _argv: *const *const u8, envp: *const *const u8) {
        // SAFETY: the dynamic linker passes a NULL-terminated array of NUL-terminated strings.
        unsafe { interpose::constructor::start(envp, engine::process::main) };
        interpose::grow::end_begin();
    }

    #[used]
    #[unsafe(no_mangle)]
    #[unsafe(link_section = ".init_array")]
    static zfolio_init: extern "C" fn(i32, *const *const u8, *const *const u8) = constructor;
}
