//! What the program's threads run: how a process gets an engine, the calls that pass the library, and a fork's side in
//! the program.
//!
//! Any of it may run inside malloc with its lock held, in a signal handler, or in a child of vfork. So nothing here
//! allocates: the crate has no `alloc`, nor has any that it uses. Nothing touches thread-local storage, and no lock is
//! taken that the engine may want.
//!
//! - [`constructor`]: what runs first; [`relocate`]: what is to be done before anything else; [`loaded`]: what the
//!   loader has loaded
//! - [`grow`]: when an engine is started; [`attach`]: how it is from outside; [`start`]: how it is; [`aside`]: by which
//!   processes; [`page`]: how the run's page is mapped; [`libc_threads`]: what the engine is told of libc's threads
//! - [`own`]: in whose memory a thread is; [`child`]: what a child of fork begins anew
//! - [`bell`]: what the engine is asked by
//! - [`patch`]: libc's system calls that pass the library, by [`stubs`]; [`relro`]: the executable's constants
//! - [`exports`]: the functions of libc that the library stands before; [`libc`]: libc's own
//! - [`fork`]: how a child takes over; [`clone`], [`clone_calls`]: the calls that make one; [`libc_fork`]: where memory
//!   must come home before
//! - [`wait`]: calls for children; [`advice`]: those that advise; [`loan`]: those that lend to the kernel; [`ioctl`]:
//!   those that have it take or look at memory; [`pagemap_reads`]: those that read of page tables; [`rights`]: those
//!   that give rights up; [`syscall`]: any by its number; [`visible`]: those that tell how much memory there is
//! - [`exec`]: the calls that start a program; [`image`]: which it is; [`environment`]: what it needs to be managed
//! - [`sanitizer`]: what AddressSanitizer is told

#![cfg_attr(not(test), no_std)]

pub mod advice;
pub mod api;
pub mod aside;
pub mod attach;
pub mod bell;
pub mod child;
pub mod clone;
pub mod clone_calls;
pub mod constructor;
pub mod environment;
pub mod exec;
pub mod exports;
pub mod fork;
pub mod grow;
pub mod image;
pub mod ioctl;
pub mod libc;
pub mod libc_fork;
pub mod libc_threads;
pub mod loaded;
pub mod loan;
pub mod own;
pub mod page;
pub mod pagemap_reads;
pub mod patch;
pub mod relocate;
pub mod relro;
pub mod rights;
pub mod sanitizer;
pub mod start;
pub mod stubs;
pub mod syscall;
pub mod visible;
pub mod wait;
