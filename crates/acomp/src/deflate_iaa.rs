//! Deflate with a history of 4 KiB, as Intel's In-Memory Analytics Accelerator (IAA) writes and reads it: by the device
//! where a context was [attached](crate::Context::attach) to one, else on the CPU.
//!
//! An object is one raw deflate stream, whatever the mode, which `deflate` reads too. On the CPU what `deflate` wrote
//! is read whatever its window; the device leaves to the CPU what reaches farther back than 4 KiB.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::algorithm::{Algorithm, Parameter};
use crate::deflate::Inflate;
use crate::part::Part;
use crate::request::Batch;
use crate::request::{Error, Outcome};
use crate::stream::Stream;

/// Its line in the registry.
pub(crate) static ALGORITHM: Algorithm = Algorithm {
    name: "deflate-iaa",
    parameter: Some(Parameter {
        name: "MODE",
        accepted: DYNAMIC..=CANNED,
        default: DYNAMIC,
        words: &["dynamic", "fixed", "canned"],
    }),
    description: "deflate as Intel's accelerator does it, many units at a time; without one in software, less dense than deflate and half as fast to write. \
                  MODE dynamic makes codes for each unit; fixed and canned have the same ones for all, less dense and in half of the device's time",
    gives_up_early: |_| false,
    open: |mode, unit_max| {
        Ok(Box::new(DeflateIaa { cpu: Cpu(Inflate::open(unit_max)?, mode), unit_max, device: None }))
    },
    part: |_, _| Some(Part::Deflate),
    takes_device: true,
    with_dictionary: None,
};

/// Codes are made for each unit: two passes.
const DYNAMIC: i32 = 0;
/// The codes are deflate's own: one pass.
const FIXED: i32 = 1;
/// The codes are the same for all units, made beforehand of what memory holds; their header of 59 bytes stands in front
/// of each object.
const CANNED: i32 = 2;

/// Opens the machine's devices for the calling process and its threads: a child of fork must open them anew. None where
/// there is no queue that may be opened. `root` is what the paths begin with: nothing, but in tests.
pub fn open_device(root: &str, config: iaa::Config) -> Option<Arc<iaa::Driver>> {
    let driver = iaa::Driver::open(root, config).ok()?;
    (driver.queue_count() > 0).then(|| Arc::new(driver))
}

/// What the device does not do, in its mode.
struct Cpu(Inflate, i32);

impl iaa::Software for Cpu {
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let mut by = |codes| iaa::deflate::compress(src, codes, true, dst).ok().map(|(bytes, _)| bytes);
        match self.1 {
            FIXED => by(&iaa::aecs::CompressState::FIXED),
            CANNED => by(&iaa::aecs::CompressState::CANNED),
            _ => iaa::deflate::compress_unit(src, dst),
        }
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
        Ok(iaa::Software::compress(&mut self.cpu, src, dst).map_or(Outcome::Incompressible, Outcome::Shrunk))
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

    fn wait(&mut self, batch: &mut Batch<'_, '_>, between: &mut dyn FnMut()) {
        match &mut self.device {
            Some(device) => device.resume(batch).wait_with(between),
            None => {
                while self.poll_units(batch) > 0 {
                    between();
                }
            }
        }
    }

    fn abandon(&mut self) {
        if let Some(device) = &mut self.device {
            device.abandon();
        }
    }

    fn rest(&mut self) {
        if let Some(device) = &mut self.device {
            device.rest();
        }
    }

    fn look(&mut self) {
        if let Some(device) = &mut self.device {
            device.look();
        }
    }

    fn attach(
        &mut self,
        open: &mut dyn FnMut(iaa::Mode) -> Option<Arc<iaa::Driver>>,
        descriptors: usize,
    ) -> bool {
        let mode = self.cpu.1;
        let codes = match mode {
            FIXED => iaa::Mode::Fixed,
            CANNED => iaa::Mode::Canned(Box::new(iaa::aecs::CompressState::CANNED)),
            _ => iaa::Mode::Dynamic,
        };
        let Some(driver) = open(codes) else { return false };
        let context = Inflate::open(self.unit_max).and_then(|inflate| {
            let cpu = Box::new(Cpu(inflate, mode));
            iaa::Context::new(driver, cpu, descriptors, self.unit_max).map_err(Error::from)
        });
        let Ok(device) = context else { return false };
        self.device = Some(device);
        true
    }
}
