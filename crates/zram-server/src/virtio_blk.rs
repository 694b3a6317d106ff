//! Requests of virtio-blk: the virtio standard, section "Block Device".
//!
//! ```text
//!   readable:  header (type, sector), then data to be written, or ranges to be discarded
//!   writable:  data to be read, then one byte of status
//! ```
//!
//! Data go through a buffer of ours: the machine may change its memory while it is being compressed.

use crate::server::{Refusal, Server};
use std::io::{self, ErrorKind, Read, Write};
use std::mem::offset_of;
use std::ops::Deref;
use virtio_bindings::virtio_blk::*;
use virtio_queue::{DescriptorChain, Reader, Writer};
use vm_memory::GuestMemoryMmap;

/// Bytes of the configuration space.
pub(crate) const CONFIG_BYTES: usize = size_of::<virtio_blk_config>();

/// Bytes of a sector, the unit of the protocol.
const SECTOR: u64 = 512;

/// Bytes of a block of the device.
const BLOCK: u32 = zram::BLOCK as u32;

/// Entries of the shortest queue that a machine may have: what QEMU and cloud-hypervisor give it unasked.
const QUEUE_ENTRIES_MIN: u32 = 128;

/// Segments of a request, which with its header and its status fit into such a queue. Linux waits without an end for
/// room for one that does not fit. A request in a table of its own (VIRTIO_RING_F_INDIRECT_DESC) would fit, but a
/// machine that swaps may have no memory for one.
const SEGMENTS_MAX: u32 = QUEUE_ENTRIES_MIN - 2;

/// The most data of a segment, in bytes.
const SEGMENT_MAX: u32 = 128 << 10;

/// The most data of a request, in bytes.
const DATA_MAX: usize = (SEGMENTS_MAX * SEGMENT_MAX) as usize;

/// Ranges of a request that discards or makes zeros.
const RANGES_MAX: u32 = 64;

/// Bytes of a header, and of a range.
const HEADER: usize = 16;

/// What is offered.
pub(crate) fn features() -> u64 {
    let bits = [
        VIRTIO_BLK_F_SIZE_MAX,
        VIRTIO_BLK_F_SEG_MAX,
        VIRTIO_BLK_F_BLK_SIZE,
        VIRTIO_BLK_F_FLUSH,
        VIRTIO_BLK_F_MQ,
        VIRTIO_BLK_F_DISCARD,
        VIRTIO_BLK_F_WRITE_ZEROES,
    ];
    bits.iter().fold(0, |features, bit| features | 1 << bit)
}

/// The configuration space of a disk of this size.
pub(crate) fn config(disksize_bytes: u64, queues: u16) -> [u8; CONFIG_BYTES] {
    let mut config = [0; CONFIG_BYTES];
    let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
    put(offset_of!(virtio_blk_config, capacity), &(disksize_bytes / SECTOR).to_le_bytes());
    put(offset_of!(virtio_blk_config, size_max), &SEGMENT_MAX.to_le_bytes());
    put(offset_of!(virtio_blk_config, seg_max), &SEGMENTS_MAX.to_le_bytes());
    put(offset_of!(virtio_blk_config, blk_size), &BLOCK.to_le_bytes());
    put(offset_of!(virtio_blk_config, num_queues), &queues.to_le_bytes());
    put(offset_of!(virtio_blk_config, max_discard_sectors), &u32::MAX.to_le_bytes());
    put(offset_of!(virtio_blk_config, max_discard_seg), &RANGES_MAX.to_le_bytes());
    put(offset_of!(virtio_blk_config, discard_sector_alignment), &(BLOCK / SECTOR as u32).to_le_bytes());
    put(offset_of!(virtio_blk_config, max_write_zeroes_sectors), &u32::MAX.to_le_bytes());
    put(offset_of!(virtio_blk_config, max_write_zeroes_seg), &RANGES_MAX.to_le_bytes());
    put(offset_of!(virtio_blk_config, write_zeroes_may_unmap), &[1]);
    config
}

/// Why a request does not succeed.
enum Failure {
    /// The device refuses it, or it is none.
    Refused,
    /// There is no such request here.
    Unknown,
}

impl From<Refusal> for Failure {
    fn from(_: Refusal) -> Failure {
        Failure::Refused
    }
}

impl From<io::Error> for Failure {
    fn from(_: io::Error) -> Failure {
        Failure::Refused
    }
}

/// A request in the memory of a machine.
pub(crate) struct Request<'a> {
    readable: Reader<'a>,
    /// All that is writable but the status.
    writable: Writer<'a>,
    status: Writer<'a>,
}

impl<'a> Request<'a> {
    /// Finds its parts.
    ///
    /// # Errors
    ///
    /// It lies outside of the machine's memory, or has no place for its status.
    pub(crate) fn read<M>(chain: DescriptorChain<M>, memory: &'a GuestMemoryMmap) -> io::Result<Request<'a>>
    where
        M: Deref<Target = GuestMemoryMmap> + Clone,
    {
        let readable = chain.clone().reader(memory).map_err(io::Error::other)?;
        let mut writable = chain.writer(memory).map_err(io::Error::other)?;
        let data = writable.available_bytes().checked_sub(1).ok_or(ErrorKind::InvalidData)?;
        let status = writable.split_at(data).map_err(io::Error::other)?;
        Ok(Request { readable, writable, status })
    }

    /// Does it, and says how it went; how many bytes were written to the machine's memory.
    pub(crate) fn serve(mut self, server: &Server, buffer: &mut Vec<u8>) -> io::Result<u32> {
        let status = match self.act(server, buffer) {
            Ok(()) => VIRTIO_BLK_S_OK,
            Err(Failure::Refused) => VIRTIO_BLK_S_IOERR,
            Err(Failure::Unknown) => VIRTIO_BLK_S_UNSUPP,
        };
        self.status.write_all(&[status as u8])?;
        Ok((self.writable.bytes_written() + 1) as u32)
    }

    fn act(&mut self, server: &Server, buffer: &mut Vec<u8>) -> Result<(), Failure> {
        let mut header = [0; HEADER];
        self.readable.read_exact(&mut header)?;
        let kind = u32_at(&header, offset_of!(virtio_blk_outhdr, type_));
        let sector = u64_at(&header, offset_of!(virtio_blk_outhdr, sector));
        let offset = sector.checked_mul(SECTOR).ok_or(Failure::Refused)?;
        match kind {
            VIRTIO_BLK_T_IN => {
                let data = sized(buffer, self.writable.available_bytes())?;
                server.read(offset, data)?;
                self.writable.write_all(data)?;
            }
            VIRTIO_BLK_T_OUT => {
                let data = sized(buffer, self.readable.available_bytes())?;
                self.readable.read_exact(data)?;
                server.write(offset, data)?;
            }
            VIRTIO_BLK_T_FLUSH => server.flush()?,
            VIRTIO_BLK_T_DISCARD => self.each_range(|offset, bytes| server.discard(offset, bytes))?,
            VIRTIO_BLK_T_WRITE_ZEROES => {
                self.each_range(|offset, bytes| server.write_zeroes(offset, bytes))?
            }
            VIRTIO_BLK_T_GET_ID => {
                let mut id = [0; VIRTIO_BLK_ID_BYTES as usize];
                let name = format!("zfolio-zram{}", server.number());
                id[..name.len()].copy_from_slice(name.as_bytes());
                let len = id.len().min(self.writable.available_bytes());
                self.writable.write_all(&id[..len])?;
            }
            _ => return Err(Failure::Unknown),
        }
        Ok(())
    }

    /// The ranges of a request that discards or makes zeros, in bytes.
    fn each_range(&mut self, act: impl Fn(u64, u64) -> Result<(), Refusal>) -> Result<(), Failure> {
        if self.readable.available_bytes() > HEADER * RANGES_MAX as usize {
            return Err(Failure::Refused);
        }
        while self.readable.available_bytes() > 0 {
            let mut range = [0; HEADER];
            self.readable.read_exact(&mut range)?;
            let sector = u64_at(&range, offset_of!(virtio_blk_discard_write_zeroes, sector));
            let sectors = u32_at(&range, offset_of!(virtio_blk_discard_write_zeroes, num_sectors));
            let offset = sector.checked_mul(SECTOR).ok_or(Failure::Refused)?;
            act(offset, u64::from(sectors) * SECTOR)?;
        }
        Ok(())
    }
}

/// So much of a buffer, which grows to it.
fn sized(buffer: &mut Vec<u8>, bytes: usize) -> Result<&mut [u8], Failure> {
    if bytes > DATA_MAX {
        return Err(Failure::Refused);
    }
    if buffer.len() < bytes {
        buffer.resize(bytes, 0);
    }
    Ok(&mut buffer[..bytes])
}

fn u32_at(bytes: &[u8; HEADER], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8; HEADER], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests;
