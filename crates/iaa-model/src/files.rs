//! A model's queues as files, for other processes: what /dev/iax/wqX.Y is where the driver idxd is loaded. It is a file
//! system in user space (FUSE), by the kernel's protocol (linux/fuse.h), since no pipe says who writes to it, and none
//! says that it is full.
//!
//! ```text
//!   another process                      this one
//!   open  ROOT/dev/iax/wq1.0  ─ FUSE ──> a portal, for the memory of who opened: EBUSY if it is dedicated and somebody has it
//!   write descriptors         ─────────> the device's queue: how many it took, EAGAIN if none, ENXIO if it is gone, EPERM for anybody else
//!   close                     ─────────> the portal is dropped: nothing more is written to that process
//!   mmap                      ──X        refused, so that there is no need of the CPU's instructions
//! ```
//!
//! It takes the right to mount, and the one to write to other processes' memory: root's.

use crate::device::{Device, ModelPortal};
use crate::{Model, Tree};
use base::Errno;
use base::sys;
use iaa::Portal;
use iaa::descriptor::Descriptor;
use std::collections::HashMap;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::JoinHandle;

/// System calls by their numbers.
const NR_MOUNT: u32 = 165;
const NR_UMOUNT2: u32 = 166;
const MNT_DETACH: usize = 2;

/// Requests, as the kernel numbers them.
mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const OPEN: u32 = 14;
    pub const WRITE: u32 = 16;
    pub const RELEASE: u32 = 18;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
}

/// `struct fuse_in_header` and `struct fuse_write_in`, in bytes.
const HEADER_BYTES: usize = 40;
const WRITE_BYTES: usize = 40;
/// The most bytes of one write.
const WRITE_MAX_BYTES: u32 = 64 << 10;
/// FOPEN_DIRECT_IO: each write comes as it is, and nothing is mapped.
const DIRECT: u32 = 1;

const DIRECTORY: u32 = 0o040_755;
const DEVICE_FILE: u32 = 0o100_666;
/// The directory's number; the queues' follow.
const ROOT: u64 = 1;

/// Queues that are there as files, until this is dropped.
pub struct Files {
    at: CString,
    server: Option<JoinHandle<()>>,
}

impl Files {
    /// Sets up sysfs in a tree as it is with the model's devices, and their queues as files beside it.
    ///
    /// # Errors
    /// What opening /dev/fuse or mount(2) said: it takes root.
    pub fn new(model: &Model, tree: &Tree) -> io::Result<Files> {
        let mut queues = Vec::new();
        for device in model.devices() {
            let config = device.config();
            tree.device(config.id, 0);
            for (id, size) in config.queues.iter().enumerate() {
                let mode = if config.dedicated { "dedicated" } else { "shared" };
                tree.queue(config.id, id as u32, mode, *size);
                // It answers instead.
                tree.set(config.id, &format!("wq{}.{id}/block_on_fault", config.id), "0");
                tree.set(
                    config.id,
                    &format!("wq{}.{id}/max_transfer_size", config.id),
                    &config.transfer_max_bytes.to_string(),
                );
                queues.push((format!("wq{}.{id}", config.id), device.clone(), id));
            }
        }
        let at = CString::new(format!("{}/dev/iax", tree.root())).expect("no NUL");
        let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other\0", fuse.as_raw_fd());
        let kind = c"fuse".as_ptr() as usize;
        let arguments =
            [c"iaa-model".as_ptr() as usize, at.as_ptr() as usize, kind, 0, options.as_ptr() as usize, 0];
        // SAFETY: the kernel reads texts that end with NUL.
        unsafe { sys::syscall(NR_MOUNT, arguments) }.map_err(error)?;
        let server = Server { fuse, queues, open: HashMap::new(), opened: 0 };
        let server = std::thread::spawn(move || server.serve());
        Ok(Files { at, server: Some(server) })
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // SAFETY: the kernel reads a text that ends with NUL.
        let _ = unsafe { sys::syscall(NR_UMOUNT2, [self.at.as_ptr() as usize, MNT_DETACH, 0, 0, 0, 0]) };
        // Who has one open still keeps the server busy: it ends with this process.
        let server = self.server.take().filter(JoinHandle::is_finished);
        drop(server.map(JoinHandle::join));
    }
}

fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0 as i32)
}

fn is_passing(error: &io::Error) -> bool {
    let passing = [Errno::ENOENT, Errno::EINTR, Errno::EAGAIN];
    passing.iter().any(|errno| error.raw_os_error() == Some(errno.0 as i32))
}

/// A file that somebody has open.
struct Open {
    pid: u32,
    queue: usize,
    portal: ModelPortal,
}

struct Server {
    fuse: File,
    /// Names, devices, and numbers there.
    queues: Vec<(String, Arc<Device>, usize)>,
    open: HashMap<u64, Open>,
    opened: u64,
}

/// Fields one after the other, as the kernel has them.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn word(mut self, value: u32) -> Fields {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn long(mut self, value: u64) -> Fields {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn zeros(mut self, bytes: usize) -> Fields {
        self.0.resize(self.0.len() + bytes, 0);
        self
    }

    /// `struct fuse_attr`.
    fn attributes(self, node: u64) -> Fields {
        let mode = if node == ROOT { DIRECTORY } else { DEVICE_FILE };
        self.long(node).zeros(40).zeros(12).word(mode).word(1).zeros(20)
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_ne_bytes(word.try_into().expect("four bytes")))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

impl Server {
    /// Answers until it is unmounted and nobody has a file open.
    fn serve(mut self) {
        let mut buffer = vec![0; WRITE_MAX_BYTES as usize + 4096];
        loop {
            let got = match self.fuse.read(&mut buffer) {
                Ok(got) if got >= HEADER_BYTES => got,
                // A request that was taken back.
                Err(e) if is_passing(&e) => continue,
                _ => return,
            };
            let (header, body) = buffer[..got].split_at(HEADER_BYTES);
            let (opcode, unique, node, pid) =
                (word(header, 4), long(header, 8), long(header, 16), word(header, 32));
            if matches!(opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT) {
                continue;
            }
            let (number, fields) = match self.answer(opcode, node, pid, body) {
                Ok(fields) => (0, fields.0),
                Err(errno) => (errno.0 as i32, Vec::new()),
            };
            let answer =
                Fields::default().word((16 + fields.len()) as u32).word((-number) as u32).long(unique);
            // A caller that has ended meanwhile wants none.
            let _ = self.fuse.write(&[answer.0, fields].concat());
            if opcode == opcode::DESTROY {
                return;
            }
        }
    }

    fn answer(&mut self, opcode: u32, node: u64, pid: u32, body: &[u8]) -> Result<Fields, Errno> {
        let none = Fields::default();
        match opcode {
            opcode::INIT => {
                let version = none.word(7).word(31).word(word(body, 8)).word(0);
                Ok(version.word(0).word(WRITE_MAX_BYTES).word(1).zeros(36))
            }
            opcode::LOOKUP => {
                let name = body.split(|&byte| byte == 0).next().unwrap_or_default();
                let at =
                    self.queues.iter().position(|queue| queue.0.as_bytes() == name).ok_or(Errno::ENOENT)?;
                let node = ROOT + 1 + at as u64;
                Ok(none.long(node).zeros(32).attributes(node))
            }
            opcode::GETATTR => Ok(none.zeros(16).attributes(node)),
            opcode::OPEN => self.open(node, pid).map(|file| none.long(file).word(DIRECT).word(0)),
            opcode::WRITE => {
                let data = body.get(WRITE_BYTES..).ok_or(Errno::EINVAL)?;
                let taken =
                    self.write(long(body, 0), pid, &data[..data.len().min(word(body, 16) as usize)])?;
                Ok(none.word(taken as u32).word(0))
            }
            opcode::FLUSH | opcode::RELEASE => {
                let file = long(body, 0);
                // Of a copy of the descriptor nobody else has the use.
                if opcode == opcode::RELEASE || self.open.get(&file).is_some_and(|open| open.pid == pid) {
                    self.open.remove(&file);
                }
                Ok(none)
            }
            opcode::OPENDIR => Ok(none.zeros(16)),
            opcode::READDIR | opcode::RELEASEDIR | opcode::DESTROY => Ok(none),
            _ => Err(Errno::ENOSYS),
        }
    }

    fn open(&mut self, node: u64, pid: u32) -> Result<u64, Errno> {
        let queue = node.checked_sub(ROOT + 1).ok_or(Errno::EINVAL)? as usize;
        let (_, device, id) = self.queues.get(queue).ok_or(Errno::ENOENT)?;
        if device.config().dedicated && self.open.values().any(|open| open.queue == queue) {
            return Err(Errno::EBUSY);
        }
        let portal = ModelPortal::of(device.clone(), *id, pid);
        self.opened += 1;
        self.open.insert(self.opened, Open { pid, queue, portal });
        Ok(self.opened)
    }

    /// How many bytes the queue took.
    fn write(&self, file: u64, pid: u32, data: &[u8]) -> Result<usize, Errno> {
        let Open { portal, .. } = self.open.get(&file).filter(|open| open.pid == pid).ok_or(Errno::EPERM)?;
        let (descriptors, rest) = data.as_chunks::<{ size_of::<Descriptor>() }>();
        if !rest.is_empty() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: as many bytes as a descriptor has, of which every value is one.
        let descriptors: Vec<Descriptor> = descriptors
            .iter()
            .map(|bytes| unsafe { bytes.as_ptr().cast::<Descriptor>().read_unaligned() })
            .collect();
        // SAFETY: that is up to the process that wrote them, in whose memory all of it is.
        match unsafe { portal.submit(&descriptors) } {
            Ok(0) => Err(Errno::EAGAIN),
            Ok(taken) => Ok(taken * size_of::<Descriptor>()),
            Err(_) => Err(Errno::ENXIO),
        }
    }
}
