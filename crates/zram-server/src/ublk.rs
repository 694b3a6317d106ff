//! The front end of this machine's own kernel: /dev/ublkbN, by libublk.
//!
//! ```text
//!   zram-ublk             makes the disk, waits until its queues have ended, and takes it away
//!   a thread a queue      takes requests, serves them, and answers
//! ```
//!
//! The kernel has a cache of the disk. At the end the disk is stopped first, which writes that cache back; only then
//! the server closes. A file system may still be mounted then: its disk refuses all requests, and goes when it is
//! unmounted.

use crate::server::{Client, Disk, Refusal, Server, lock};
use libublk::ctrl::{UblkCtrl, UblkCtrlBuilder};
use libublk::helpers::IoBuf;
use libublk::io::{BufDescList, UblkDev, UblkIOCtx, UblkQueue};
use libublk::{BufDesc, UblkError, UblkFlags, UblkIORes, sys};
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Where the driver is asked for disks.
const CONTROL: &str = "/dev/ublk-control";

/// The most queues. Each has a thread.
const QUEUES_MAX: usize = 16;

/// Requests of a queue at a time. Each has a buffer: 4 MiB a queue.
const DEPTH: u16 = 32;

/// The most data of a request, in bytes.
const DATA_MAX: u32 = 128 << 10;

/// The most that is forgotten or made zeros by one request, in sectors: 2 GiB.
const RANGE_MAX: u32 = 1 << 22;

/// Bits of a sector, the unit of the protocol.
const SECTOR_SHIFT: u8 = 9;

/// Bits of a block of the device.
const BLOCK_SHIFT: u8 = zram::BLOCK.trailing_zeros() as u8;

/// How often a disk is told to stop that goes on, and the pause between.
const STOPS: usize = 50;
const STOP_PAUSE: Duration = Duration::from_millis(100);

/// How long a disk that is stopped is waited for. Where it is mounted it stays until that ends.
const GOES: Duration = Duration::from_secs(1);

/// What a disk's threads and its owner tell each other.
#[derive(Default)]
struct Shared {
    is_to_stop: AtomicBool,
    is_gone: AtomicBool,
    /// Why a queue could not begin, or go on.
    failure: Mutex<Option<UblkError>>,
}

/// A disk of this machine.
struct Block {
    number: u32,
    shared: Arc<Shared>,
    /// The one that takes it away. It is locked while the disk is being stopped.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Disk for Block {
    fn path(&self) -> Option<String> {
        (!self.shared.is_gone.load(Relaxed)).then(|| path(self.number))
    }

    fn stop(&self) -> Result<(), String> {
        let mut slot = lock(&self.thread);
        // One that has gone by itself may have left its number to another server's.
        let Some(thread) = slot.take().filter(|thread| !thread.is_finished()) else { return Ok(()) };
        self.shared.is_to_stop.store(true, Relaxed);
        stop(self.number)
            .map_err(|error| format!("{} is not stopped: {}", path(self.number), reason(&error)))?;
        let began = Instant::now();
        while !thread.is_finished() && began.elapsed() < GOES {
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

fn path(number: u32) -> String {
    format!("/dev/ublkb{number}")
}

/// Stops a disk: what the kernel's cache of it has is written, and requests fail from then on.
fn stop(number: u32) -> Result<(), UblkError> {
    let control = UblkCtrl::new_simple(number as i32)?;
    for turn in 1.. {
        // What comes back of a command that was interrupted says nothing: the disk's state does.
        let stopped = control.kill_dev();
        match control.read_dev_info() {
            Ok(_) if control.dev_info().state != sys::UBLK_S_DEV_LIVE as u16 => break,
            Err(error) if number_of(&error) == Some(libc::ENODEV) => break,
            _ if turn < STOPS => thread::sleep(STOP_PAUSE),
            seen => return stopped.and(seen).and(Err(UblkError::OtherError(-libc::EBUSY))),
        }
    }
    Ok(())
}

/// Has this process ask for memory, from now on, as one that a disk waits for: such memory is not made by writing to
/// that disk. Threads that begin later do the same.
pub(crate) fn become_flusher() {
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    // SAFETY: it takes numbers alone. Without the right to it nothing is lost but this.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
}

/// Makes a disk, whose client has the device open for as long as it is there. An error is one line for the user.
pub(crate) fn add(server: &'static Server, client: Client) -> Result<Box<dyn Disk>, String> {
    let disksize_bytes = server.device().disksize_bytes();
    if disksize_bytes == 0 {
        return Err("--ublk: the device has no size (--disksize)".into());
    }
    if !Path::new(CONTROL).exists() {
        return Err(format!(
            "--ublk: there is no {CONTROL}: it takes Linux 6.0 with ublk_drv (`modprobe ublk_drv`)"
        ));
    }
    guard(Path::new(&UblkCtrl::run_dir()))?;
    let shared = Arc::new(Shared::default());
    let (tells, told) = channel();
    let of = shared.clone();
    let run = move || {
        let _client = client;
        let ended = run(server, disksize_bytes, tells.clone(), of.clone());
        of.is_gone.store(true, Relaxed);
        let why = lock(&of.failure).take().or(ended.err()).map(|error| reason(&error));
        let had_begun =
            tells.send(Err(format!("--ublk: {}", why.as_deref().unwrap_or("it has ended")))).is_err();
        if had_begun && !of.is_to_stop.load(Relaxed) {
            eprintln!(
                "zfolio: the disk of zram{} has gone: {}",
                server.number(),
                why.as_deref().unwrap_or("somebody has removed it")
            );
        }
    };
    let spawned = thread::Builder::new().name("zram-ublk".into()).spawn(run);
    let thread = Mutex::new(Some(spawned.map_err(|error| format!("no thread: {error}"))?));
    let number = told.recv().map_err(|_| "--ublk: the disk's thread has ended".to_string())??;
    Ok(Box::new(Block { number, shared, thread }))
}

/// Makes the directory in which libublk leaves what it knows of a disk. libublk follows links there, and would let
/// everybody put some.
fn guard(directory: &Path) -> Result<(), String> {
    let named = |error: io::Error| format!("--ublk: {}: {error}", directory.display());
    match DirBuilder::new().mode(0o755).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(named(error)),
        _ => {}
    }
    let of = fs::symlink_metadata(directory).map_err(named)?;
    let owner = rustix::process::geteuid().as_raw();
    if !of.is_dir() || of.uid() != owner || of.mode() & 0o022 != 0 {
        let directory = directory.display();
        return Err(format!("--ublk: others may write to {directory}: `chmod 755` it, or remove it"));
    }
    Ok(())
}

/// Makes the disk, says which it is, and serves it until it is stopped.
fn run(
    server: &'static Server,
    disksize_bytes: u64,
    tells: Sender<Result<u32, String>>,
    shared: Arc<Shared>,
) -> Result<(), UblkError> {
    let queues = thread::available_parallelism().map_or(1, usize::from).min(QUEUES_MAX);
    let control = UblkCtrlBuilder::default()
        .name("zfolio-zram")
        .nr_queues(queues as u16)
        .depth(DEPTH)
        .io_buf_bytes(DATA_MAX)
        .dev_flags(UblkFlags::UBLK_DEV_F_ADD_DEV)
        .build()?;
    let begin = move |disk: &mut UblkDev| {
        disk.tgt.dev_size = disksize_bytes;
        disk.tgt.params = parameters(disksize_bytes);
        Ok(())
    };
    let serve = move |queue, disk: &UblkDev| {
        if let Err(error) = serve(server, queue, disk) {
            lock(&shared.failure).get_or_insert(error);
            // Who makes the disk would wait for this queue without an end. A disk that is there has no use for it.
            disk.notify_buffer_registration_complete(true);
        }
    };
    let told = move |control: &UblkCtrl| drop(tells.send(Ok(control.dev_info().dev_id)));
    control.run_target(begin, serve, told).map(drop)
}

/// What the kernel is told of the disk. The device keeps nothing that a flush would have to write.
fn parameters(disksize_bytes: u64) -> sys::ublk_params {
    sys::ublk_params {
        len: size_of::<sys::ublk_params>() as u32,
        types: sys::UBLK_PARAM_TYPE_BASIC | sys::UBLK_PARAM_TYPE_DISCARD,
        basic: sys::ublk_param_basic {
            logical_bs_shift: BLOCK_SHIFT,
            physical_bs_shift: BLOCK_SHIFT,
            io_min_shift: BLOCK_SHIFT,
            io_opt_shift: DATA_MAX.trailing_zeros() as u8,
            max_sectors: DATA_MAX >> SECTOR_SHIFT,
            dev_sectors: disksize_bytes >> SECTOR_SHIFT,
            ..Default::default()
        },
        discard: sys::ublk_param_discard {
            discard_granularity: 1 << BLOCK_SHIFT,
            max_discard_sectors: RANGE_MAX,
            max_write_zeroes_sectors: RANGE_MAX,
            max_discard_segments: 1,
            ..Default::default()
        },
        ..Default::default()
    }
}

/// Serves a queue until the disk is stopped.
fn serve(server: &'static Server, queue: u16, disk: &UblkDev) -> Result<(), UblkError> {
    let mut buffers = disk.alloc_queue_io_bufs();
    buffers.iter_mut().for_each(IoBuf::zero_buf);
    let queue =
        UblkQueue::new(queue, disk)?.submit_fetch_commands_unified(BufDescList::Slices(Some(&buffers)))?;
    let mut served = Ok(());
    while served.is_ok() {
        let mut serve = |request, result| {
            // Anything else says that the queue ends.
            if result == sys::UBLK_IO_RES_OK as i32 {
                let tag = UblkIOCtx::user_data_to_tag(request) as u16;
                let done = serve_one(server, &queue, tag, &buffers[usize::from(tag)]);
                served = std::mem::replace(&mut served, Ok(())).and(done);
            }
        };
        match queue.flush_and_wake_io_tasks(|request, came, _| serve(request, came.result()), 1) {
            Ok(_) => {}
            Err(UblkError::QueueIsDown) => return Ok(()),
            // The process was stopped for a while, or the machine asleep.
            Err(UblkError::IOError(error)) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    served
}

/// Serves the request of a tag, and asks for that tag's next.
fn serve_one(server: &Server, queue: &UblkQueue, tag: u16, buffer: &IoBuf<u8>) -> Result<(), UblkError> {
    let request = queue.get_iod(tag);
    let offset = request.start_sector << SECTOR_SHIFT;
    let bytes = u64::from(request.nr_sectors) << SECTOR_SHIFT;
    // SAFETY: the driver has filled a buffer before it hands the request over, and looks at it again when that is
    // answered. One request has it at a time, and this thread serves it.
    let data = unsafe { data(buffer) };
    let result = answer(server, request.op_flags & 0xff, offset, bytes, data);
    queue.complete_io_cmd_unified(tag, BufDesc::Slice(buffer.as_slice()), Ok(UblkIORes::Result(result)))
}

/// A request's buffer.
///
/// # Safety
///
/// Nobody else reads or writes it for as long as it is used.
#[allow(clippy::mut_from_ref, reason = "libublk lends buffers to be written to in this way")]
unsafe fn data(buffer: &IoBuf<u8>) -> &mut [u8] {
    // SAFETY: it is so long, it was made zeros when the queue began, and it is the caller's.
    unsafe { std::slice::from_raw_parts_mut(buffer.as_mut_ptr(), buffer.len()) }
}

/// Does a request: the bytes that were read or written, or an error number below 0.
fn answer(server: &Server, operation: u32, offset: u64, bytes: u64, data: &mut [u8]) -> i32 {
    let data = data.get_mut(..bytes as usize);
    let moved = |done: Result<(), Refusal>| done.map(|()| bytes as i32);
    let none = |done: Result<(), Refusal>| done.map(|()| 0);
    let done = match (operation, data) {
        (sys::UBLK_IO_OP_READ, Some(data)) => moved(server.read(offset, data)),
        (sys::UBLK_IO_OP_WRITE, Some(data)) => moved(server.write(offset, data)),
        (sys::UBLK_IO_OP_FLUSH, _) => none(server.flush()),
        (sys::UBLK_IO_OP_DISCARD, _) => none(server.discard(offset, bytes)),
        (sys::UBLK_IO_OP_WRITE_ZEROES, _) => none(server.write_zeroes(offset, bytes)),
        _ => return -libc::EOPNOTSUPP,
    };
    done.unwrap_or_else(|refusal| -refusal.errno())
}

/// The system's error number, where libublk has one.
fn number_of(error: &UblkError) -> Option<i32> {
    match error {
        UblkError::UringIOError(number) | UblkError::OtherError(number) => Some(-number),
        UblkError::IOError(error) => error.raw_os_error(),
        _ => None,
    }
}

/// What libublk says, in the system's words.
fn reason(error: &UblkError) -> String {
    match number_of(error) {
        Some(libc::EPERM | libc::EACCES) => format!("{CONTROL} or io_uring is not permitted: it takes root"),
        Some(number) => io::Error::from_raw_os_error(number).to_string(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    #[test]
    fn requests_of_the_kernel_are_answered_as_it_asks_for() {
        let mut options = Options::default();
        options.add("disksize", "1M");
        let server = crate::start(options).unwrap();
        let mut data = vec![7; 8192];
        data[4096..].fill(9);
        assert_eq!(answer(server, sys::UBLK_IO_OP_WRITE, 4096, 8192, &mut data), 8192);
        assert_eq!(answer(server, sys::UBLK_IO_OP_FLUSH, 0, 0, &mut []), 0);
        let read = |offset, bytes| {
            let mut found = vec![1; 16384];
            (answer(server, sys::UBLK_IO_OP_READ, offset, bytes, &mut found), found)
        };
        assert_eq!(read(0, 16384).1, [vec![0; 4096], data.clone(), vec![0; 4096]].concat());
        assert_eq!(answer(server, sys::UBLK_IO_OP_DISCARD, 4096, 4096, &mut []), 0);
        assert_eq!(answer(server, sys::UBLK_IO_OP_WRITE_ZEROES, 8192, 512, &mut []), 0);
        assert_eq!(read(4096, 8192).1[..8192], [vec![0; 4608], vec![9; 3584]].concat());

        // Outside of it, more than the buffer has, and what there is not.
        assert_eq!(read(1 << 20, 4096).0, -libc::EINVAL);
        assert_eq!(read(u64::MAX - 4095, 4096).0, -libc::EINVAL);
        assert_eq!(read(0, 16896).0, -libc::EOPNOTSUPP);
        assert_eq!(answer(server, sys::UBLK_IO_OP_ZONE_RESET, 0, 4096, &mut []), -libc::EOPNOTSUPP);
        assert_eq!(server.end(), 0);
        assert_eq!(answer(server, sys::UBLK_IO_OP_FLUSH, 0, 0, &mut []), -libc::ESHUTDOWN);
    }

    #[test]
    fn what_the_kernel_is_told_is_what_drivers_of_all_versions_take() {
        let told = parameters(1 << 30);
        assert_eq!(told.basic.dev_sectors, 1 << 21);
        assert_eq!([told.basic.logical_bs_shift, told.basic.physical_bs_shift], [12, 12]);
        // Linux 6.0 refuses any others.
        assert_eq!(told.discard.max_discard_segments, 1);
        assert_eq!(told.discard.max_discard_sectors, told.discard.max_write_zeroes_sectors);
    }

    #[test]
    fn nobody_else_may_write_where_libublk_does() {
        let directory = std::env::temp_dir().join(format!("zfolio-ublk-{}", std::process::id()));
        guard(&directory).unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o022, 0);
        guard(&directory).unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(&directory, open).unwrap();
        assert!(guard(&directory).unwrap_err().contains("chmod 755"));
        fs::remove_dir(&directory).unwrap();
        std::os::unix::fs::symlink(std::env::temp_dir(), &directory).unwrap();
        assert!(guard(&directory).unwrap_err().contains("remove it"));
        fs::remove_file(&directory).unwrap();
    }

    #[test]
    fn a_device_without_a_size_is_no_disk() {
        let server = crate::start(Options::default()).unwrap();
        assert!(add(server, server.open()).err().unwrap().contains("--disksize"));
        assert_eq!(server.end(), 0);
    }
}
