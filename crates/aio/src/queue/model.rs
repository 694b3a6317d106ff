//! A file and its model, bytes in memory; requests of a file that are under way.

use super::{Full, Queue};
use crate::request::Way;
use base::{Errno, Fd, PAGE, Random};
use linux_raw_sys::general::O_DIRECT;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A page that lies as O_DIRECT wants it.
#[repr(C, align(4096))]
#[derive(Clone)]
pub struct Page(pub [u8; PAGE]);

/// A buffer that the kernel may have: nothing refers to it but its address.
pub struct Buffer {
    at: *mut Page,
    pages: usize,
}

impl Buffer {
    pub fn new(pages: usize) -> Buffer {
        let memory = vec![Page([0xa5; PAGE]); pages].into_boxed_slice();
        Buffer { at: Box::into_raw(memory).cast(), pages }
    }

    pub fn address(&self) -> *mut u8 {
        self.at.cast()
    }

    /// What is in it.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory is the value's own; the kernel has it only while the value's user lets it alone.
        unsafe { std::slice::from_raw_parts_mut(self.address(), self.pages * PAGE) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `new` made it of a boxed slice of as many pages.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.at, self.pages)) });
    }
}

/// A file without a name, opened a second time for a look past the queue.
pub struct Scratch {
    pub fd: Fd,
    /// Of the same file, open to write only.
    pub write_only: Fd,
    pub beside: File,
}

/// How a file is opened: with O_DIRECT where the file system has it.
pub const BUFFERED: u32 = 0;
pub const DIRECT: u32 = O_DIRECT;

impl Scratch {
    pub fn new(bytes: &[u8], flags: u32) -> Scratch {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("aio-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let path: PathBuf = std::env::temp_dir().join(name);
        fs::write(&path, bytes).unwrap();
        let open = |options: &mut OpenOptions| {
            let direct = options.custom_flags(flags as i32).open(&path);
            direct.or_else(|_| options.custom_flags(0).open(&path)).unwrap()
        };
        let fd = open(OpenOptions::new().read(true).write(true));
        let write_only = open(OpenOptions::new().write(true));
        let beside = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        Scratch { fd: own(fd), write_only: own(write_only), beside }
    }

    /// All of the file, past the queue.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.beside.metadata().unwrap().len() as usize];
        self.beside.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }
}

/// The descriptor of a file of std's.
pub fn own(file: impl IntoRawFd) -> Fd {
    Fd::own(file.into_raw_fd() as usize)
}

/// A request of the model's: a run of pages.
struct Run {
    way: Way,
    first: usize,
    pages: usize,
    buffer: Buffer,
}

/// What a queue does to a file, and what it ought to.
pub struct Model {
    queue: Queue,
    file: Scratch,
    bytes: Vec<u8>,
    entries: usize,
    under_way: BTreeMap<u64, Run>,
    next_token: u64,
    random: Random,
}

impl Model {
    /// A file of `pages`, filled by the seed.
    pub fn new(queue: Queue, entries: usize, flags: u32, pages: usize, seed: u64) -> Model {
        let mut random = Random(seed);
        let mut bytes = vec![0; pages * PAGE];
        random.fill(&mut bytes);
        let file = Scratch::new(&bytes, flags);
        Model { queue, file, bytes, entries, under_way: BTreeMap::new(), next_token: 1, random }
    }

    /// Does one thing by chance.
    pub fn step(&mut self) -> Result<(), String> {
        match self.random.below(10) {
            0..4 => self.put_up(Way::Read)?,
            4..6 => self.put_up(Way::Write)?,
            6 => self.queue.submit(),
            7 => self.queue.wait().map_err(|errno| format!("wait: {errno}"))?,
            _ => drop(self.reap()?),
        }
        self.queue.check()?;
        let (told, held) = (self.queue.unreaped(), self.under_way.len());
        if told == held { Ok(()) } else { Err(format!("{told} unreaped for {held}")) }
    }

    /// Reaps everything, and compares the file with the bytes.
    pub fn end(mut self) -> Result<(), String> {
        while self.queue.unreaped() > 0 {
            if !self.reap()? {
                self.queue.wait().map_err(|errno| format!("wait: {errno}"))?;
            }
        }
        if self.file.bytes() == self.bytes { Ok(()) } else { Err("the file has other bytes".to_string()) }
    }

    /// Puts up a request, unless it is for pages that a write under way has, or of a write any.
    fn put_up(&mut self, way: Way) -> Result<(), String> {
        let pages = 1 + self.random.below(16);
        let first = self.random.below(self.bytes.len() / PAGE - pages);
        let is_near = |run: &Run| run.first < first + pages && first < run.first + run.pages;
        let mut others = self.under_way.values().filter(|run| is_near(run));
        if others.any(|run| way == Way::Write || run.way == Way::Write) {
            return Ok(());
        }
        let mut buffer = Buffer::new(pages);
        if way == Way::Write {
            self.random.fill(buffer.bytes());
        }
        let (at, bytes, token) = ((first * PAGE) as u64, pages * PAGE, self.next_token);
        // SAFETY: the buffer is kept until its token is reaped, and so is the file; nothing is forked with buffers
        // that matter there.
        let put_up = unsafe {
            match way {
                Way::Read => self.queue.read(token, &self.file.fd, at, buffer.address(), bytes),
                Way::Write => self.queue.write(token, &self.file.fd, at, buffer.address(), bytes),
            }
        };
        let of_way = self.under_way.values().filter(|run| run.way == way).count();
        match put_up {
            Err(Full) if of_way == self.entries => return Ok(()),
            Ok(()) if of_way < self.entries => {}
            other => return Err(format!("{other:?} with {of_way} of {way:?} there")),
        }
        if way == Way::Write {
            // Nobody changes the buffer any more, but it may be read.
            self.bytes[first * PAGE..][..bytes].copy_from_slice(buffer.bytes());
        }
        self.next_token += 1;
        self.under_way.insert(token, Run { way, first, pages, buffer });
        Ok(())
    }

    /// Reaps one request; false where there is none.
    fn reap(&mut self) -> Result<bool, String> {
        let Some((token, result)) = self.queue.reap() else {
            let will_ring = self.queue.under_way() > 0 || self.queue.unreaped() == 0;
            return match will_ring || !self.queue.is_ring() {
                true => Ok(false),
                false => Err("what waits was left without a place".to_string()),
            };
        };
        let mut run = self.under_way.remove(&token).ok_or(format!("token {token}"))?;
        let expected: Result<usize, Errno> = Ok(run.pages * PAGE);
        if result != expected {
            return Err(format!("{result:?} for {:?} of {} pages", run.way, run.pages));
        }
        let is_same = run.way == Way::Write
            || run.buffer.bytes() == &self.bytes[run.first * PAGE..][..run.pages * PAGE];
        if is_same { Ok(true) } else { Err(format!("wrong bytes from page {}", run.first)) }
    }
}
