//! What a thread that forks, its engine, and the child's engine tell each other: a shared page for each fork. See
//! fork.rs.

use crate::CONTROL;
use crate::arena;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering::*};
use uffd::PAGE;
use uffd::sys::{self, consts::*};

/// How long a child waits for its parent's engine to tell what was late, at most: it does nothing else meanwhile.
const TOLD_NS: u64 = 20_000_000_000;

/// How often the engine looks whether a thread has rung.
const SERVE_NS: u64 = 100_000;

/// How often those who wait look whether what they wait for can still come.
pub const LOOK_NS: u64 = 20_000_000;

/// Where a fork stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ForkStage {
    /// The thread has asked, and may still touch the doorbell.
    Asked = 0,
    /// It waits, and the engine prepares.
    Waiting = 1,
    /// The engine stands still: the thread may clone.
    Ready = 2,
    /// It cannot: the memory is to be brought home.
    Refused = 3,
    /// There is a child.
    Cloned = 4,
    /// There is none.
    Failed = 5,
    /// The parent's engine has told what was late.
    Told = 6,
    /// It could not tell all.
    Untold = 7,
}

/// What a parent and one child of its have in common: a shared page.
pub struct ForkChannel {
    /// A [`ForkStage`].
    stage: AtomicU32,
    len: AtomicU32,
    payload: UnsafeCell<[usize; PAYLOAD_BYTES / size_of::<usize>()]>,
}

// SAFETY: the payload is written by the parent's engine before the stage is `Told`, and read by the child's after it.
unsafe impl Sync for ForkChannel {}

const _: () = assert!(size_of::<ForkChannel>() <= PAGE);

/// Bytes of its mapping.
pub const CHANNEL_BYTES: usize = PAGE;

/// Bytes of what the parent's engine tells the child's.
pub const PAYLOAD_BYTES: usize = PAGE - 2 * size_of::<u64>();

impl ForkChannel {
    /// For the engine: a new one; `None` without memory. In the parent it goes when both thread and engine have left
    /// it, in the child with the engine.
    pub fn map() -> Option<&'static ForkChannel> {
        let left = CONTROL.left_channel.swap(0, Relaxed);
        if left != 0 {
            // SAFETY: its thread has left it before it gave the bell to the next one.
            unsafe { arena::unmap(left, CHANNEL_BYTES) };
        }
        let at = arena::map_shared(CHANNEL_BYTES)?;
        // The child must have it.
        sys::madvise_keep(at, CHANNEL_BYTES, MADV_DOFORK).ok()?;
        CONTROL.channel_users.store(2, Relaxed);
        // SAFETY: new, zeroed, and large enough; of zeros all of it is a value, or is not read before it is written.
        Some(unsafe { &*(at as *const ForkChannel) })
    }

    /// The thread is through with it. The engine unmaps it: of engine memory there is a table, with a lock that no
    /// thread of the program's takes.
    pub fn leave(&'static self) {
        CONTROL.channel_users.fetch_sub(1, AcqRel);
    }

    /// The engine is through with it, and unmaps it now or, where the thread has not left it yet, before the next one.
    fn give_up(&'static self) {
        if CONTROL.channel_users.fetch_sub(1, AcqRel) == 1 {
            // SAFETY: nobody of this process uses it any more.
            unsafe { arena::unmap(self.at(), CHANNEL_BYTES) }
        } else {
            CONTROL.left_channel.store(self.at(), Relaxed);
        }
    }

    /// Its address.
    pub fn at(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }

    /// How far it is: a [`ForkStage`].
    pub fn stage(&self) -> u32 {
        self.stage.load(Acquire)
    }

    /// It is as far as that.
    pub fn reach(&self, stage: ForkStage) {
        self.stage.store(stage as u32, Release);
        sys::futex_wake(self.stage.as_ptr(), u32::MAX >> 1, true);
    }

    /// For the thread, and its copy in the child: it is behind the clone. The other of the two may have said so
    /// already, and the engine have gone on.
    pub fn pass(&self, stage: ForkStage) {
        let _ = self.stage.compare_exchange(ForkStage::Ready as u32, stage as u32, AcqRel, Relaxed);
        sys::futex_wake(self.stage.as_ptr(), u32::MAX >> 1, true);
    }

    /// Waits while the stage is one of `stages`, and `look` says that there is something to wait for.
    pub fn wait_while(&self, stages: &[ForkStage], mut look: impl FnMut() -> bool) {
        loop {
            let now = self.stage();
            if !stages.iter().any(|&s| s as u32 == now) || !look() {
                return;
            }
            let _ = sys::futex_wait(self.stage.as_ptr(), now, Some(LOOK_NS), true);
        }
    }

    /// For the engine: serves the thread by `serve` until it waits here; false when it is gone.
    pub fn await_thread(&self, is_gone: impl Fn() -> bool, mut serve: impl FnMut()) -> bool {
        while self.stage() == ForkStage::Asked as u32 {
            if is_gone() {
                return false;
            }
            serve();
            let _ = sys::futex_wait(self.stage.as_ptr(), ForkStage::Asked as u32, Some(SERVE_NS), true);
        }
        true
    }

    /// For the engine: the thread may clone; returns when it has, or has not, or is gone. True when there may be a
    /// child.
    pub fn await_clone(&self, is_gone: impl Fn() -> bool) -> bool {
        self.reach(ForkStage::Ready);
        self.wait_while(&[ForkStage::Ready], || !is_gone());
        self.stage() != ForkStage::Failed as u32
    }

    /// For the engine: there can be no clone, and it is through with it.
    pub fn refuse(&'static self) {
        self.reach(ForkStage::Refused);
        self.give_up();
    }

    /// Where the parent's engine writes what was late, and the child's reads it.
    pub fn payload(&self) -> *mut u8 {
        self.payload.get().cast()
    }

    /// For the engine, which has written so many events to the payload: tells the child, and is through with it.
    /// `None`: they are too many.
    pub fn tell(&'static self, len: Option<usize>) {
        self.len.store(len.unwrap_or(0) as u32, Relaxed);
        self.reach(if len.is_some() { ForkStage::Told } else { ForkStage::Untold });
        self.give_up();
    }

    /// For the child's engine: calls `read` with how many events there are in the payload, and is through with the
    /// channel. `None` when it will never know.
    pub fn told<R>(&'static self, read: impl FnOnce(usize) -> R) -> Option<R> {
        let began = sys::now_ns();
        self.wait_while(&[ForkStage::Ready, ForkStage::Cloned], || sys::now_ns() - began < TOLD_NS);
        let told = (self.stage() == ForkStage::Told as u32).then(|| read(self.len.load(Relaxed) as usize));
        self.give_up();
        told
    }
}

/// The channel of the fork under way, in parent and child.
pub fn channel() -> Option<&'static ForkChannel> {
    let at = CONTROL.channel.load(Acquire);
    // SAFETY: mapped for this fork, and unmapped by whoever asks here when it is through with it.
    (at != 0).then(|| unsafe { &*(at as *const ForkChannel) })
}
