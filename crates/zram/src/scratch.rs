//! What one thread works with: compressors' contexts, and buffers.

use crate::BLOCK;
use crate::accelerator::Accelerator;
use crate::error::Error;
use crate::group::GROUP;
use crate::settings::{ALGORITHMS, Settings};
use std::sync::Arc;
use zswap::{BATCH_MAX, Codec, PARCEL_MAX_BYTES};

/// Contexts and buffers of one thread. Buffers cost nothing until they are touched.
pub struct Scratch {
    /// The contexts.
    pub codecs: Codecs,
    /// Groups as they are to be packed. Compressors may bring pages together in it.
    pub windows: Vec<u8>,
    /// The objects that they have become.
    pub parcels: Vec<u8>,
    /// A block of which a part is wanted.
    pub block: Vec<u8>,
}

impl Scratch {
    /// For a device whose hashes are keyed with `seed`.
    pub fn new(seed: u64, accelerator: Arc<Accelerator>) -> Scratch {
        Scratch {
            codecs: Codecs {
                all: [const { None }; ALGORITHMS],
                seed,
                accelerator,
                sealed: Aligned::new(PARCEL_MAX_BYTES.next_multiple_of(BLOCK)),
            },
            windows: vec![0; BATCH_MAX * GROUP],
            parcels: vec![0; BATCH_MAX * PARCEL_MAX_BYTES],
            block: vec![0; BLOCK],
        }
    }
}

/// Contexts by the priority of their algorithm, made when they are first wanted.
pub struct Codecs {
    all: [Option<Codec>; ALGORITHMS],
    seed: u64,
    accelerator: Arc<Accelerator>,
    /// What comes from the backing device, or goes there.
    pub sealed: Aligned,
}

impl Codecs {
    /// The codec of a priority.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`], also where there is no such algorithm.
    pub fn codec(&mut self, priority: u8, settings: &Settings) -> Result<&mut Codec, Error> {
        Ok(self.with_sealed(priority, settings)?.0)
    }

    /// The same, and the buffer for what comes from the backing device.
    ///
    /// # Errors
    ///
    /// As for [`Codecs::codec`].
    pub fn with_sealed(
        &mut self,
        priority: u8,
        settings: &Settings,
    ) -> Result<(&mut Codec, &mut Aligned), Error> {
        let slot = self.all.get_mut(priority as usize).ok_or(Error::NoMemory)?;
        if slot.is_none() {
            let algorithm = settings.algorithm(priority as usize).ok_or(Error::NoMemory)?;
            let mut codec = algorithm.open(self.seed)?;
            self.accelerator.attach(&mut codec, algorithm.compressor);
            *slot = Some(codec);
        }
        Ok((slot.as_mut().expect("it was made"), &mut self.sealed))
    }
}

/// A buffer whose address is a multiple of 4 KiB, as areas may ask for.
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// Of so many bytes.
    pub fn new(len: usize) -> Aligned {
        let bytes = vec![0; len + BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        Aligned { bytes, start, len }
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}
