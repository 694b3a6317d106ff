//! The front end of this machine's own kernel: /dev/ublkbN, by libublk.
//!
//! ```text
//!   zram-ublk             makes the disk, waits until its queues have ended, and takes it away
//!   a thread a queue      takes requests, serves them, and answers
//! ```
//!
//! The kernel has a cache of the disk. At the end the disk is stopped first, which writes that cache back; only then
//! the server closes.

use crate::server::{Disk, Refusal, Server};
use libublk::ctrl::{UblkCtrl, UblkCtrlBuilder};
use libublk::helpers::IoBuf;
use libublk::io::{BufDescList, UblkDev, UblkQueue};
use libublk::{BufDesc, UblkError, UblkFlags, UblkIORes, sys};
use std::io;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Where the driver is asked for disks.
const CONTROL: &str = "/dev/ublk-control";

/// The most queues. Each has a thread.
const QUEUES_MAX: usize = 16;

/// Requests of a queue at a time.
const DEPTH: u16 = 64;

/// The most data of a request, in bytes. Each request of a queue has a buffer of so many, of which only what was needed
/// once is memory.
const DATA_MAX: u32 = 256 << 10;

/// The most that is forgotten or made zeros by one request, in sectors: 2 GiB.
const RANGE_MAX: u32 = 1 << 22;

/// Bits of a sector, the unit of the protocol.
const SECTOR_SHIFT: u8 = 9;

/// Bits of a block of the device.
const BLOCK_SHIFT: u8 = zram::BLOCK.trailing_zeros() as u8;

/// Makes a disk, which has the device open for as long as it is there. An error is one line for the user.
pub(crate) fn add(server: &'static Server) -> Result<Disk, String> {
    let disksize_bytes = server.device().disksize_bytes();
    if disksize_bytes == 0 {
        return Err("--ublk: the device has no size (--disksize)".into());
    }
    if !Path::new(CONTROL).exists() {
        return Err(format!(
            "--ublk: there is no {CONTROL}: it takes Linux 6.0 with ublk_drv (`modprobe ublk_drv`)"
        ));
    }
    let (tells, told) = channel();
    let run = move || {
        let _client = server.open();
        let tells_number = tells.clone();
        if let Err(error) = run(server, disksize_bytes, tells_number) {
            // Nobody listens any more where it had begun.
            let _ = tells.send(Err(format!("--ublk: {}", reason(&error))));
        }
    };
    let spawned = thread::Builder::new().name("zram-ublk".into()).spawn(run);
    let thread = Mutex::new(Some(spawned.map_err(|error| format!("no thread: {error}"))?));
    let number = told.recv().map_err(|_| "--ublk: the disk's thread has ended".to_string())??;
    Ok(Disk { path: path(number), remove: Box::new(move || remove(number, &thread)) })
}

fn path(number: u32) -> String {
    format!("/dev/ublkb{number}")
}

/// Takes a disk away, once. What the kernel's cache of it has is written before.
fn remove(number: u32, thread: &Mutex<Option<JoinHandle<()>>>) {
    let Some(thread) = thread.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    // The disk's own commands are its thread's, which does not end where the disk cannot be stopped.
    match UblkCtrl::new_simple(number as i32).and_then(|control| control.kill_dev()) {
        Ok(_) => drop(thread.join()),
        Err(error) => eprintln!("zfolio: {} is not stopped: {}", path(number), reason(&error)),
    }
}

/// Makes the disk, says which it is, and serves it until it is stopped.
fn run(
    server: &'static Server,
    disksize_bytes: u64,
    tells: Sender<Result<u32, String>>,
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
    let told = move |control: &UblkCtrl| drop(tells.send(Ok(control.dev_info().dev_id)));
    control.run_target(begin, move |queue, disk| serve(server, queue, disk), told).map(drop)
}

/// What the kernel is told of the disk. It keeps nothing that a flush would have to write.
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

/// Serves a queue until the disk is stopped. Where it cannot begin, who has made the disk is told so by libublk.
fn serve(server: &'static Server, queue: u16, disk: &UblkDev) {
    let buffers = disk.alloc_queue_io_bufs();
    let begun = UblkQueue::new(queue, disk)
        .and_then(|queue| queue.submit_fetch_commands_unified(BufDescList::Slices(Some(&buffers))));
    let Ok(queue) = begun else { return };
    queue.wait_and_handle_io(|queue, tag, _| {
        let request = queue.get_iod(tag);
        let buffer = &buffers[usize::from(tag)];
        let offset = request.start_sector << SECTOR_SHIFT;
        let bytes = u64::from(request.nr_sectors) << SECTOR_SHIFT;
        // SAFETY: the driver has filled a buffer before it hands the request over, and looks at it again when that is
        // answered. One request has it at a time, and this thread serves it.
        let data = unsafe { data(buffer) };
        let result = answer(server, request.op_flags & 0xff, offset, bytes, data);
        // An error says that the queue has ended, which the next wait says too.
        let _ = queue.complete_io_cmd_unified(
            tag,
            BufDesc::Slice(buffer.as_slice()),
            Ok(UblkIORes::Result(result)),
        );
    });
}

/// A request's buffer.
///
/// # Safety
///
/// Nobody else reads or writes it for as long as it is used.
#[allow(clippy::mut_from_ref, reason = "libublk lends buffers to be written to in this way")]
unsafe fn data(buffer: &IoBuf<u8>) -> &mut [u8] {
    // SAFETY: it is so long, and the caller's.
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

/// What libublk says, in the system's words.
fn reason(error: &UblkError) -> String {
    match error {
        UblkError::UringIOError(number) | UblkError::OtherError(number) => {
            io::Error::from_raw_os_error(-number).to_string()
        }
        UblkError::IOError(error) => error.to_string(),
        error => error.to_string(),
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
    fn a_device_without_a_size_is_no_disk() {
        let server = crate::start(Options::default()).unwrap();
        assert!(add(server).err().unwrap().contains("--disksize"));
        assert_eq!(server.end(), 0);
    }
}
