//! Signals that end the process: Ctrl-C, SIGTERM, SIGHUP, SIGQUIT.
//!
//! A handler of nbdkit's is replaced: nbdkit would wait until the last client has gone.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::thread;

/// Where the handler writes to.
static EVENT: AtomicI32 = AtomicI32::new(-1);

/// The signals.
const ENDS: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

extern "C" fn note(_signal: libc::c_int) {
    let one = 1u64;
    // SAFETY: write(2) is async-signal-safe, and the number is 8 bytes on our stack.
    unsafe { libc::write(EVENT.load(Relaxed), (&raw const one).cast(), size_of::<u64>()) };
}

/// Has `end` called in a thread of its own at the first of these signals.
pub fn at_end(end: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let event = eventfd(0, EventfdFlags::CLOEXEC)?;
    EVENT.store(event.as_raw_fd(), Relaxed);
    thread::Builder::new().name("zram-signals".into()).spawn(move || {
        wait(&event);
        end();
        // The handler writes to it for as long as the process lives.
        std::mem::forget(event);
    })?;
    // A client that has gone is an error of that write.
    // SAFETY: that no handler is called is safe.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    for signal in ENDS {
        // SAFETY: all zeros is an action without flags, whose mask is empty.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: the handler calls nothing that is not async-signal-safe.
        if unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Ends the process, and runs nothing of nbdkit's: its threads work on.
pub fn exit(status: u8) -> ! {
    // SAFETY: no memory of the process is used any more.
    unsafe { libc::_exit(status.into()) }
}

fn wait(event: &OwnedFd) {
    let mut count = [0; 8];
    while rustix::io::read(event, &mut count).is_err() {}
}
