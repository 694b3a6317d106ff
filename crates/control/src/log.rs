//! The logs of what a family stores once, as they lie in a process: where they are mapped, what is in them, and who may
//! write.
//!
//! The engine writes to the process's own log. A thread of the program that gives up rights ends that ([`seal`]),
//! without waiting for the engine, and without a lock: each of the two says first what it is about to do, and then
//! looks at the other.

use crate::arena;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use uffd::PAGE;
use uffd::sys::{self, Errno, consts::*};

/// How many logs a process can have: its own, and its ancestors'.
pub const LOGS: usize = 8;

/// The first page of a log.
pub struct LogHead {
    /// Where the next record goes, in bytes from the beginning of the log.
    pub len: AtomicU64,
    /// How often it was emptied.
    pub emptied: AtomicU32,
}

/// What comes before the bytes of an object.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LogRecord {
    /// The window that its pages lie in.
    pub window: u64,
    /// The object's pages, by their place in the window.
    pub pages: u16,
    _zeros: u16,
    /// What the object's contents are to be.
    pub fingerprint: u32,
    /// How long it is.
    pub bytes: u32,
    _more: u32,
}

impl LogRecord {
    /// What comes before an object of so many bytes.
    pub fn new(window: usize, pages: u16, fingerprint: u32, bytes: u32) -> LogRecord {
        LogRecord { window: window as u64, pages, _zeros: 0, fingerprint, bytes, _more: 0 }
    }
}

/// A log, as this process reads it. In a child all of it is as it was in its parent.
pub struct Log {
    /// Where it is mapped; 0 for none.
    pub at: AtomicUsize,
    /// How long its mapping is.
    pub size: AtomicUsize,
    /// How often it had been emptied when it was seen last.
    pub emptied: AtomicU32,
    /// How far it was read.
    pub read: AtomicUsize,
}

/// All that this process has.
pub static LOG: [Log; LOGS] = [const { Log::none() }; LOGS];

/// Which of them is this process's own, [`LOGS`] for none; and where it can be written to, 0 for nowhere.
static OWN: AtomicUsize = AtomicUsize::new(LOGS);
static WRITABLE: AtomicUsize = AtomicUsize::new(0);

/// The engine writes to its log, and a thread of the program's wants that to end.
static WRITING: AtomicBool = AtomicBool::new(false);
static SEALED: AtomicBool = AtomicBool::new(false);

/// Where the engine has mapped its log to write to it, address and bytes, address 0 for nowhere; and whether a thread
/// of the program's has closed that, so that its place is all that is left.
static WRITER: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));
static CLOSED: AtomicBool = AtomicBool::new(false);

impl Log {
    const fn none() -> Log {
        Log {
            at: AtomicUsize::new(0),
            size: AtomicUsize::new(0),
            emptied: AtomicU32::new(0),
            read: AtomicUsize::new(0),
        }
    }

    /// Its first page.
    pub fn head(&self) -> Option<&'static LogHead> {
        // SAFETY: mapped for as long as it is listed, which the engine alone changes.
        unsafe { (self.at.load(Acquire) as *const LogHead).as_ref() }
    }

    /// Bytes of it that are in use.
    #[expect(clippy::len_without_is_empty, reason = "its first page is always in use")]
    pub fn len(&self) -> usize {
        let len = self.head().map_or(0, |head| head.len.load(Acquire) as usize);
        len.min(self.size.load(Relaxed))
    }

    /// Where it is mapped.
    pub fn range(&self) -> Range<usize> {
        let at = self.at.load(Acquire);
        at..at + if at == 0 { 0 } else { self.size.load(Relaxed) }
    }

    /// The record at an offset, and its object's bytes; `None` where there is no whole one.
    pub fn record(&self, at: usize) -> Option<(LogRecord, &'static [u8])> {
        let (base, len, object) = (self.at.load(Acquire), self.len(), at + size_of::<LogRecord>());
        if base == 0 || at < PAGE || !at.is_multiple_of(align_of::<LogRecord>()) || object > len {
            return None;
        }
        // SAFETY: within the mapping, written before `len` was, and never changed.
        let record = unsafe { *((base + at) as *const LogRecord) };
        let is_whole =
            record.pages != 0 && record.window % PAGE as u64 == 0 && record.bytes as usize <= len - object;
        if !is_whole {
            return None;
        }
        // SAFETY: as above.
        let bytes =
            unsafe { core::slice::from_raw_parts((base + object) as *const u8, record.bytes as usize) };
        Some((record, bytes))
    }

    /// For the engine: adds a record, and what it is about, to its own log; false where there is no room.
    ///
    /// # Safety
    /// The log must be mapped at `at`, to be written to.
    pub unsafe fn append(&self, at: usize, record: LogRecord, object: &[u8]) -> bool {
        let (len, size) = (self.len(), self.size.load(Relaxed));
        let stride = stride(object.len());
        if len < PAGE || stride > size - len {
            return false;
        }
        // SAFETY: within the mapping, where nobody reads before `len` says so; it is aligned.
        unsafe {
            ((at + len) as *mut LogRecord).write(record);
            ((at + len + size_of::<LogRecord>()) as *mut u8)
                .copy_from_nonoverlapping(object.as_ptr(), object.len());
            (*(at as *const LogHead)).len.store((len + stride) as u64, Release);
        }
        true
    }

    /// For the engine: gives it up.
    pub fn drop_it(&self) {
        let range = self.range();
        self.at.store(0, Release);
        if !range.is_empty() {
            // SAFETY: nobody reads it any more.
            unsafe { arena::unmap(range.start, range.len()) };
        }
    }
}

/// How long a record is, with what it is filled up with.
pub fn stride(bytes: usize) -> usize {
    (size_of::<LogRecord>() + bytes).next_multiple_of(align_of::<LogRecord>())
}

/// Where the logs are that this process reads, and its children after it.
pub fn ranges() -> impl Iterator<Item = Range<usize>> {
    LOG.iter().map(Log::range)
}

/// Which log is this process's own; [`LOGS`] for none.
pub fn own() -> usize {
    OWN.load(SeqCst)
}

/// For the engine: this process has no log of its own any more, and which it was.
pub fn take_own() -> usize {
    OWN.swap(LOGS, Relaxed)
}

/// For the engine, as it starts: nothing is written to yet.
pub fn begin() {
    OWN.store(LOGS, Relaxed);
    WRITABLE.store(0, Relaxed);
    WRITER.0.store(0, Relaxed);
    CLOSED.store(false, Relaxed);
    WRITING.store(false, Relaxed);
}

/// True when this process has a log that it may write to.
pub fn is_writable() -> bool {
    WRITABLE.load(SeqCst) != 0
}

/// Where the engine has mapped its log to write to it, closed or not; nothing for nowhere.
pub fn writer() -> Range<usize> {
    let at = WRITER.0.load(SeqCst);
    at..at + if at == 0 { 0 } else { WRITER.1.load(SeqCst) }
}

/// For the engine, before it makes a log: who gives up rights from now on closes that.
pub fn unseal() {
    SEALED.store(false, SeqCst);
}

/// For the engine: the log at `place` is this process's own, and is written to at `write`.
pub fn open(place: usize, write: Range<usize>) {
    OWN.store(place, SeqCst);
    WRITER.1.store(write.len(), SeqCst);
    WRITER.0.store(write.start, SeqCst);
    WRITABLE.store(write.start, SeqCst);
    // A thread may give up rights this moment.
    if SEALED.load(SeqCst) {
        close();
    }
}

/// For a thread of the process `pid` that is about to give up rights: what children can read is not written to any
/// more. In a child of vfork, which has its parent's memory, nothing is done.
pub fn seal(pid: u32) {
    if sys::getpid() != Ok(pid as usize) {
        return;
    }
    SEALED.store(true, SeqCst);
    while WRITING.load(SeqCst) {
        sys::sched_yield();
    }
    close();
}

/// Nothing can be written to the log any more. Its addresses stay reserved, and the engine gives them back: its table,
/// which has them, has a lock that no thread of the program's may
/// take.
fn close() {
    let (at, bytes) = (WRITABLE.swap(0, SeqCst), WRITER.1.load(SeqCst));
    if at != 0 {
        // SAFETY: the engine writes only where it has found it not sealed, and has said so before.
        if unsafe { replace(at, bytes) }.is_ok() {
            CLOSED.store(true, SeqCst);
        } else {
            // Then there will be no other log.
            // SAFETY: as above.
            let _ = unsafe { sys::munmap(at, bytes) };
        }
    }
}

/// Puts an empty mapping in another's place, by a call that hardly a filter of system calls refuses. (A child that
/// inherits it has an empty mapping more.)
///
/// # Safety
/// As for unmapping it.
unsafe fn replace(at: usize, bytes: usize) -> Result<(), Errno> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    // SAFETY: the caller's contract.
    unsafe { sys::mmap_at(at, bytes, PROT_NONE, flags, None) }
}

/// For the engine: gives back the place of a log that was closed. False where there is one that was not, or not quite.
pub fn forget_writer() -> bool {
    let at = WRITER.0.load(SeqCst);
    if at != 0 && !CLOSED.swap(false, SeqCst) {
        return false;
    }
    WRITER.0.store(0, SeqCst);
    if at != 0 {
        // SAFETY: nothing is there.
        unsafe { arena::unmap(at, WRITER.1.load(SeqCst)) };
    }
    true
}

/// Calls `write` with the address of this process's log, and its list entry; `None` where it has none that it may write
/// to.
pub fn writing<T>(write: impl FnOnce(usize, &'static Log) -> T) -> Option<T> {
    WRITING.store(true, SeqCst);
    let (at, place) = (WRITABLE.load(SeqCst), OWN.load(SeqCst));
    let done = (at != 0 && place < LOGS && !SEALED.load(SeqCst)).then(|| write(at, &LOG[place]));
    WRITING.store(false, SeqCst);
    done
}
