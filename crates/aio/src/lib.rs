//! A queue of reads and writes of one thread, for swap areas: io_uring where the kernel permits it, else pread and
//! pwrite.
//!
//! ```text
//!   read, write ──> wait in the queue ──submit──> with the kernel ──> result ──reap──> token, bytes or an error
//!                     ^   reads first, at most `entries` there            │
//!                     └────────── the rest of a short result ─────────────┘
//!
//!   bell (an eventfd) <── rung by the kernel for each result
//! ```
//!
//! A thread that serves others clears the bell, calls [`Queue::reap`] until nothing comes, puts up requests, submits
//! them, calls `reap` again until nothing comes, and waits for the bell. After that last `reap` either all requests
//! are reaped, or the kernel has one and rings. The bell may also ring for what is reaped already.
//!
//! - queue.rs: [`Queue`]: which request is where
//! - request.rs: one request; what the result of a part of it means
//! - ring.rs: the memory that io_uring shares with the kernel, and its three system calls
//!
//! # System calls
//!
//! [`Queue::open`] makes io_uring_setup, io_uring_register, mmap, madvise and close. **After that a queue makes
//! io_uring_enter only**, and where that is refused, sched_yield as it is dropped; then munmap and close. A queue of
//! [`Queue::open_blocking`] makes pread64 and pwrite64.
//!
//! The ring executes reads and writes and nothing else (IORING_REGISTER_RESTRICTIONS): a filter of system calls does
//! not see what a ring executes. A thread that may write to the ring's memory gains what pread64 and pwrite64 give.
//!
//! For a file that cannot be read without waiting, the kernel makes threads of its own (`iou-wrk`) in the process of
//! the queue. They make no system call. With O_DIRECT there are none as a rule.
//!
//! # Safety
//!
//! This is safe because:
//!
//! 1. The kernel reads and writes the buffer of a request until the request is reaped. That the buffer stays is the
//!    contract of [`Queue::read`] and [`Queue::write`].
//! 2. Dropping the queue waits until the kernel has given a result for each request that it has. Closing the ring alone
//!    would not: the kernel then cancels late, and from another thread. Drop does not return before, whatever
//!    io_uring_enter says.
//! 3. Requests that the kernel has not are forgotten by the drop. They are not executed.
//! 4. A queue that is forgotten ([`core::mem::forget`]) reaps nothing: its buffers stay borrowed for ever.
//! 5. The completion ring cannot overflow: the kernel has at most `entries` requests, each has one result, and the ring
//!    has twice as many places.
//! 6. The rings are mappings of the ring's descriptor that have MADV_DONTFORK: a child of fork has a hole there. The
//!    thread that opened a queue is the only one that uses it (it is not [`Send`]). A copy of the value in a child is
//!    not the child's to use, nor to drop.
//! 7. What the rings hold is checked before it is an index: a number that no request under way has is ignored.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod queue;
mod request;
mod ring;
#[cfg(test)]
#[path = "../../zfolio/tests/skip/mod.rs"]
mod skip;

pub use queue::{Full, Queue};
pub use ring::Room;
