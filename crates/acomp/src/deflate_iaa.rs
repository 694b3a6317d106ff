//! Deflate with a history of 4 KiB, as Intel's In-Memory Analytics Accelerator (IAA) writes and reads it: by the device where a context was
//! [attached](crate::Context::attach) to one, else on the CPU.
//!
//! An object is one raw deflate stream, which `deflate` reads too. On the CPU what `deflate` wrote is read whatever its window; the device leaves
//! to the CPU what reaches farther back than 4 KiB.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::deflate::Inflate;
use crate::pending::Batch;
use crate::registry::Algorithm;
use crate::request::{Error, Outcome};
use crate::stream::Stream;

/// Its line in the registry.
pub(crate) static ALGORITHM: Algorithm = Algorithm {
    name: "deflate-iaa",
    parameter: None,
    description: "deflate as Intel's accelerator does it, many units at a time; without one in software, less dense than deflate and half as fast to write",
    gives_up_early: |_| false,
    workspace_bytes: |_, unit_max| Inflate::workspace_bytes(unit_max),
    open: |_, unit_max| {
        Ok(Box::new(DeflateIaa { cpu: Cpu(Inflate::open(unit_max)?), unit_max, device: None }))
    },
    with_dictionary: None,
};

/// Descriptors of a context: as many as a device has engines.
const DESCRIPTORS: usize = 8;

/// Queues that a process opens: two of each device where there are eight.
pub const QUEUES_MAX: usize = 16;

/// How the device is driven. Codes are made for each unit, which takes two passes and saves a quarter of what fixed codes write. The device
/// checks what it wrote: this driver has never met a real one, and what is wrong in the pool is lost.
const CONFIG: iaa::Config = iaa::Config {
    mode: iaa::Mode::Dynamic,
    verify_compress: true,
    queues_max: QUEUES_MAX,
    ..iaa::Config::DEFAULT
};

/// Opens the machine's devices, for the calling process and its threads: a child of fork must open them anew. None where there is no queue that may be opened.
pub fn open_device() -> Option<Arc<iaa::Driver>> {
    let driver = iaa::Driver::open("", CONFIG).ok()?;
    (driver.queue_count() > 0).then(|| Arc::new(driver))
}

/// What the device does not do.
struct Cpu(Inflate);

impl iaa::Software for Cpu {
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        iaa::deflate::compress_unit(src, dst)
    }

    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        self.0.unit(src, dst).ok().map(|()| dst.len())
    }
}

struct DeflateIaa {
    cpu: Cpu,
    unit_max: usize,
    device: Option<iaa::Context>,
}

impl Stream for DeflateIaa {
    fn compress_unit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<Outcome, Error> {
        Ok(iaa::deflate::compress_unit(src, dst).map_or(Outcome::Incompressible, Outcome::Shrunk))
    }

    fn decompress_unit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), Error> {
        self.cpu.0.unit(src, dst)
    }

    fn decompress_prefix(&mut self, src: &[u8], dst: &mut [u8], full_len: usize) -> Result<(), Error> {
        self.cpu.0.prefix(src, dst, full_len)
    }

    fn submit(&mut self, batch: &mut Batch<'_, '_>) {
        if let Some(device) = &mut self.device {
            device.begin(batch).leave();
        }
    }

    fn poll(&mut self, batch: &mut Batch<'_, '_>) -> usize {
        match &mut self.device {
            Some(device) => {
                let mut flight = device.resume(batch);
                let left = flight.poll();
                flight.leave();
                left
            }
            None => self.poll_units(batch),
        }
    }

    fn wait(&mut self, batch: &mut Batch<'_, '_>) {
        match &mut self.device {
            Some(device) => device.resume(batch).wait(),
            None => while self.poll_units(batch) > 0 {},
        }
    }

    fn abandon(&mut self) {
        if let Some(device) = &mut self.device {
            device.abandon();
        }
    }

    fn attach(&mut self, open: &mut dyn FnMut() -> Option<Arc<iaa::Driver>>) -> bool {
        let Some(driver) = open() else { return false };
        let context = Inflate::open(self.unit_max).and_then(|inflate| {
            let cpu = Box::new(Cpu(inflate));
            iaa::Context::new(driver, cpu, DESCRIPTORS, self.unit_max).map_err(Error::from)
        });
        let Ok(device) = context else { return false };
        self.device = Some(device);
        true
    }
}
