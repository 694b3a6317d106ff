//! libzfolio.so: an engine for the process that loads it.
//!
//! The library is preloaded by `zfolio run`. Its constructor looks for an environment variable with the path of the run's shared page, and hooks libc's
//! own system calls. When the process has grown, that page is mapped and the engine is started: a
//! process of its own that shares the program's memory and nothing else (clone with CLONE_VM alone). The program keeps its threads, descriptors,
//! signals and children as they would be without it. ARCHITECTURE.md tells the life of a page.
//!
//! ```text
//!   program's threads            engine process                       worker processes
//!   start ── clone ────────────> engine::main: asleep, awake           worker::main
//!   fork, madvise (hooks) ─ doorbell ─> mm::Pager <── live::Live (userfaultfd)
//!                                          ├──── store::PageStore ───> zswap::Cache (the pool)
//!                                          └──── board::Board <────> compress, decompress (zswap::Codec)
//! ```
//!
//! - [`arena`]: the engine's own memory; [`reservation`]: which addresses it has; [`heap`]: what allocates there
//! - [`live`]: the pager's kernel, [`tasks`]: what it knows of threads, [`heads`]: what of them must stay ([`blocks`], [`libc_threads`]); [`store`]: its store; [`pool`]: its memory; [`board`]: the jobs that workers take
//! - [`meter`]: what devices have done for a worker
//! - [`control`]: what the program's threads and the engine tell each other; [`hull`]: where memory was mapped;
//!   [`line`]: a line of text; [`words`]: what is said to the user
//! - [`crawl`]: whether the program crawls, and what of it cannot go out
//! - [`detach`]: how memory goes out that cannot be written to; [`relro`]: the executable's constants are such memory
//! - [`page`]: how the run's page is mapped; [`handover`]: what `zfolio run` opens for who may not
//! - [`grow`]: when an engine is started; [`attach`]: how it is from outside; [`patch`]: libc's system calls that pass us, by [`stubs`], [`hooked`]: which; [`loaded`]: what the loader has loaded
//! - [`engine`], [`worker`]: the processes; [`watch`]: the program as the engine sees it; [`aside`], [`processes`], [`crew`]: how they are made, on which [`stack`]s; [`seat`]: on which CPU they run; [`nap`]: how long they sleep;
//!   [`share`]: what of the limit is theirs
//! - [`pager`]: the pager as it is in an engine
//! - [`fork`]: how a child takes over, [`engine_fork`]: with its engine, [`fork_channel`]: what they tell each other; [`clone`], [`clone_calls`]: the calls that make one; [`unseen`]: those that nobody saw; [`smaps`]: what it finds empty;
//!   [`heritage`]: what a family stores once, in [`log`]s; [`telling`]: how that comes to be
//! - [`library`]: where the library lies
//! - [`exports`]: the functions of libc that it stands before; [`relocate`]: what is to be done before any of them
//! - [`sanitizer`]: what AddressSanitizer is told
//! - [`constructor`]: what runs first; [`start`]: how an engine is started; [`own`]: in whose memory; [`child`]: what a child of fork begins anew
//! - [`libc`]: its own functions; [`bell`]: what the engine is asked by; [`libc_fork`]: the functions that fork; [`advice`]: those that advise; [`wait`]: those for children; [`dontfork`]: what it keeps out of them;
//!   [`loan`]: what it lends to the kernel; [`ioctl`]: what it has the kernel take or look at; [`looks`]: what it reads of its page tables, [`page_tables`]: what it is told of them; [`rights`]: what it gives up; [`syscall`]: what it asks for by number;
//!   [`visible`]: how much memory it is told that there is
//! - [`exec`]: the calls that start a program; [`image`]: which it is; [`environment`]: what it needs there to be managed;
//!   [`run`]: where the run has its files
//!
//! Without `panic = "abort"`, as in tests, the crate is an ordinary library: no allocator, no hooks, no constructor.

#![cfg_attr(panic = "abort", no_std)]

extern crate alloc;

pub mod answer;
pub mod board;
pub mod crawl;
pub mod creds;
pub mod crew;
pub mod detach;
pub mod dontfork;
pub mod engine;
pub mod engine_fork;
pub mod filter;
pub mod follow;
pub mod heads;
pub mod heap;
pub mod heritage;
pub mod keys;
pub mod live;
pub mod locked;
pub mod meter;
pub mod nap;
pub mod pager;
pub mod pool;
pub mod processes;
pub mod rounds;
pub mod seat;
pub mod share;
pub mod smaps;
pub mod store;
pub mod telling;
pub mod unseen;
pub mod watch;
pub mod worker;

#[cfg(panic = "abort")]
mod bare {
    use crate::heap::Heap;
    use core::fmt::Write;

    #[global_allocator]
    static HEAP: Heap = Heap;

    /// A bug of ours: it is said on stderr with its place, and the process that met it dies by a trap.
    #[panic_handler]
    fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
        interpose::relocate::finish();
        let mut line = control::line::Line::default();
        let _ = write!(line, "internal error: {info}");
        control::words::last_words(line.as_str());
        // What is out cannot be restored any more: the program must not go on and read zeros there.
        control::words::stop_program();
        // SAFETY: an undefined instruction ends the process by a signal; nothing runs after it.
        unsafe { core::arch::asm!("ud2", options(noreturn)) }
    }

    /// Runs before the program's own constructors and main.
    #[unsafe(link_section = ".text.startup.zfolio")]
    extern "C" fn constructor(_argc: i32, _argv: *const *const u8, envp: *const *const u8) {
        // SAFETY: the dynamic linker passes a NULL-terminated array of NUL-terminated strings.
        unsafe { interpose::constructor::start(envp, crate::engine::main) };
        interpose::grow::end_begin();
    }

    #[used]
    #[unsafe(no_mangle)]
    #[unsafe(link_section = ".init_array")]
    static zfolio_init: extern "C" fn(i32, *const *const u8, *const *const u8) = constructor;
}
