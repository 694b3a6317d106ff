//! One descriptor: checked, done, and what is to be written of it.

use crate::inflate::{self, End};
use crate::memory::{Memory, Missing};
use iaa::aecs::{CompressState, Histogram};
use iaa::deflate::{self, Failure};
use iaa::descriptor::{Descriptor, Opcode, Record, Status, compress, crc64, decompress, error, flag};

/// Output and record. Nothing of them is written yet.
#[derive(Clone)]
pub(crate) struct Done {
    pub output: Vec<u8>,
    pub record: Record,
}

impl Done {
    /// A page was missing when half was done; `bits` go into the status.
    pub fn fault_at(&mut self, d: &Descriptor, address: u64, bits: u8) {
        self.record = Record {
            fault_address: address & !0xfff,
            src_done_bytes: d.src_bytes / 2,
            ..refuse(Status(Status::PAGE_FAULT.0 | bits))
        };
        self.output.truncate(self.output.len() / 2);
    }
}

/// Stops an operation with a status.
fn refuse(status: Status) -> Record {
    Record { status, ..Record::EMPTY }
}

impl From<Missing> for Box<Record> {
    fn from(Missing(address): Missing) -> Self {
        Box::new(Record { fault_address: address, ..refuse(Status::PAGE_FAULT) })
    }
}

/// Does a descriptor whose completion address is in order, in a process's memory. `transfer_max_bytes` is the queue's.
pub(crate) fn execute(descriptor: &Descriptor, memory: Memory, transfer_max_bytes: u64) -> Done {
    match run(descriptor, memory, transfer_max_bytes) {
        Ok(done) => done,
        Err(record) => Done { output: Vec::new(), record: *record },
    }
}

fn run(d: &Descriptor, memory: Memory, transfer_max_bytes: u64) -> Result<Done, Box<Record>> {
    let stop = |status| Err(Box::new(refuse(status)));
    let opcode = match d.opcode() {
        o if o == Opcode::Noop as u8 => {
            return Ok(Done { output: Vec::new(), record: refuse(Status::SUCCESS) });
        }
        o if o == Opcode::Compress as u8 => Opcode::Compress,
        o if o == Opcode::Decompress as u8 => Opcode::Decompress,
        o if o == Opcode::Crc64 as u8 => Opcode::Crc64,
        _ => return stop(Status::BAD_OPCODE),
    };
    if d.flags() & !flag::ALL != 0 {
        return Err(Box::new(Record {
            invalid_flags: d.flags() & !flag::ALL,
            ..refuse(Status::INVALID_FLAGS)
        }));
    }
    if d.pasid_privilege & 0x7ff0_0000 != 0
        || opcode != Opcode::Crc64 && (d.filter_flags != 0 || d.inputs != 0)
    {
        return stop(Status::NONZERO_RESERVED);
    }
    if d.src_bytes == 0 || u64::from(d.src_bytes) > transfer_max_bytes {
        return stop(Status::INVALID_SIZE);
    }
    if opcode == Opcode::Crc64 {
        return crc(d, memory);
    }
    if d.dst_max_bytes == 0 || u64::from(d.dst_max_bytes) > transfer_max_bytes {
        return stop(Status::INVALID_SIZE);
    }
    let (src, dst) = (d.src..d.src + u64::from(d.src_bytes), d.dst..d.dst + u64::from(d.dst_max_bytes));
    if src.start < dst.end && dst.start < src.end {
        return stop(Status::OVERLAPPING_BUFFERS);
    }
    if opcode == Opcode::Compress { compress(d, memory) } else { decompress(d, memory) }
}

fn compress(d: &Descriptor, memory: Memory) -> Result<Done, Box<Record>> {
    let stop = |status| Err(Box::new(refuse(status)));
    let flags = d.operation_flags;
    if flags & !(compress::STATISTICS | compress::FLUSH_OUTPUT | compress::APPEND_EOB) != 0 {
        return stop(Status::INVALID_COMPRESS_FLAG);
    }
    let reads_state = d.flags() & flag::READ_AECS != 0;
    if flags & compress::STATISTICS != 0 {
        if (d.dst_max_bytes as usize) < size_of::<Histogram>() || reads_state {
            return stop(Status::INVALID_SIZE);
        }
        let data = memory.read(d.src, d.src_bytes as usize)?;
        let counts = deflate::count(&data);
        let words = counts.literals_lengths.iter().chain(&counts.reserved0);
        let words = words.chain(&counts.distances).chain(&counts.reserved1);
        return Ok(done(words.flat_map(|word| word.to_le_bytes()).collect(), 0, &data, data.len()));
    }
    if !reads_state {
        return stop(Status::INVALID_FLAGS);
    }
    if !d.src2.is_multiple_of(32) || !d.src2_bytes.is_multiple_of(32) {
        return stop(Status::MISALIGNED_ADDRESS);
    }
    if d.src2_bytes as usize != size_of::<CompressState>() {
        return stop(Status::INVALID_SIZE);
    }
    let state = memory.read(d.src2, d.src2_bytes as usize)?;
    // SAFETY: as many bytes as a state has, of which every value is one.
    let state = unsafe { state.as_ptr().cast::<CompressState>().read_unaligned() };
    let data = memory.read(d.src, d.src_bytes as usize)?;
    let mut output = vec![0; d.dst_max_bytes as usize];
    match deflate::compress(&data, &state, flags & compress::APPEND_EOB != 0, &mut output) {
        Ok((bytes, bits)) => {
            output.truncate(bytes);
            Ok(done(output, bits, &data, data.len()))
        }
        Err(failure) => {
            let error = match failure {
                Failure::Overflow => error::UNRECOVERABLE_OVERFLOW,
                Failure::NoCode => error::INVALID_HUFFMAN_CODE,
                Failure::BadState => error::BAD_AECS,
            };
            Err(Box::new(Record { error, ..refuse(Status::ANALYTICS_ERROR) }))
        }
    }
}

fn decompress(d: &Descriptor, memory: Memory) -> Result<Done, Box<Record>> {
    let flags = d.operation_flags;
    if flags & !(decompress::WHOLE | decompress::SUPPRESS_OUTPUT) != 0 || flags & decompress::ENABLE == 0 {
        return Err(Box::new(refuse(Status::INVALID_COMPRESS_FLAG)));
    }
    let data = memory.read(d.src, d.src_bytes as usize)?;
    let to_final = flags & decompress::SELECT_FINAL_EOB != 0;
    let inflated = inflate::inflate(&data, d.dst_max_bytes as usize, to_final);
    let mut result = done(inflated.bytes.clone(), 0, &inflated.bytes, inflated.used);
    match inflated.end {
        End::EndOfBlock => {}
        End::Overflow => result.record.status = Status::OUTPUT_OVERFLOW,
        // Without the check the end of the input is as good as any.
        End::Error(error::BAD_EOF) if flags & decompress::CHECK_FOR_EOB == 0 => {}
        End::Error(error) => {
            result.record =
                Record { error, src_done_bytes: inflated.used as u32, ..refuse(Status::ANALYTICS_ERROR) };
        }
    }
    if flags & decompress::SUPPRESS_OUTPUT != 0 {
        result.output.clear();
    }
    Ok(result)
}

/// A success, with the checksums of the plain bytes.
fn done(output: Vec<u8>, dst_bits: u8, plain: &[u8], used: usize) -> Done {
    let xor =
        plain.chunks(2).fold(0, |xor, two| xor ^ u16::from_le_bytes([two[0], *two.get(1).unwrap_or(&0)]));
    let record = Record {
        src_done_bytes: used as u32,
        dst_bytes: output.len() as u32,
        dst_bits,
        xor_checksum: xor,
        crc32: zlib_rs::crc32::crc32(0, plain),
        ..refuse(Status::SUCCESS)
    };
    Done { output, record }
}

fn crc(d: &Descriptor, memory: Memory) -> Result<Done, Box<Record>> {
    let flags = d.operation_flags;
    if flags & !(crc64::INVERT | crc64::BIG_ENDIAN) != 0 {
        return Err(Box::new(refuse(Status::INVALID_COMPRESS_FLAG)));
    }
    let data = memory.read(d.src, d.src_bytes as usize)?;
    let polynomial = u64::from(d.inputs) << 32 | u64::from(d.filter_flags);
    let initial = if flags & crc64::INVERT != 0 { u64::MAX } else { 0 };
    let crc = if flags & crc64::BIG_ENDIAN != 0 {
        data.iter().fold(initial, |crc, &byte| {
            (0..8)
                .fold(crc ^ u64::from(byte) << 56, |c, _| c << 1 ^ if c >> 63 == 1 { polynomial } else { 0 })
        })
    } else {
        let polynomial = polynomial.reverse_bits();
        data.iter().fold(initial, |crc, &byte| {
            (0..8).fold(crc ^ u64::from(byte), |c, _| c >> 1 ^ if c & 1 == 1 { polynomial } else { 0 })
        })
    } ^ initial;
    let record = Record { max: crc as u32, sum: (crc >> 32) as u32, ..refuse(Status::SUCCESS) };
    Ok(Done { output: Vec::new(), record: Record { src_done_bytes: d.src_bytes, ..record } })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 2 << 20;

    fn descriptor(opcode: Opcode, flags: u32, src: &[u8], dst: &mut [u8]) -> Descriptor {
        let mut descriptor = Descriptor {
            src: src.as_ptr() as u64,
            src_bytes: src.len() as u32,
            dst: dst.as_mut_ptr() as u64,
            dst_max_bytes: dst.len() as u32,
            ..Descriptor::default()
        };
        descriptor.set_operation(opcode, flag::CRAV | flag::RCR | flags);
        descriptor
    }

    fn compressing(src: &[u8], dst: &mut [u8], state: &CompressState) -> Descriptor {
        Descriptor {
            operation_flags: compress::FLUSH_OUTPUT | compress::APPEND_EOB,
            src2: &raw const *state as u64,
            src2_bytes: 0x620,
            ..descriptor(Opcode::Compress, flag::READ_AECS, src, dst)
        }
    }

    fn status(descriptor: &Descriptor) -> (Status, u8) {
        let record = execute(descriptor, Memory::own(), MAX).record;
        (record.status, record.error)
    }

    #[test]
    fn what_it_compresses_it_decompresses() {
        let data = b"never a wrong byte, never a hang; never a wrong byte, never a hang".repeat(100);
        let mut room = vec![0; data.len()];
        let state = CompressState::FIXED;
        let packed = execute(&compressing(&data, &mut room, &state), Memory::own(), MAX);
        assert_eq!(
            (packed.record.status, packed.record.dst_bytes as usize),
            (Status::SUCCESS, packed.output.len())
        );
        assert!(packed.output.len() < data.len() / 10, "{}", packed.output.len());
        let mut back = Descriptor {
            operation_flags: decompress::WHOLE,
            ..descriptor(Opcode::Decompress, 0, &packed.output, &mut room)
        };
        let plain = execute(&back, Memory::own(), MAX);
        assert!(plain.output == data);
        assert_eq!(
            (plain.record.crc32, plain.record.xor_checksum),
            (packed.record.crc32, packed.record.xor_checksum)
        );
        assert_eq!(plain.record.src_done_bytes as usize, packed.output.len());
        back.operation_flags |= decompress::SUPPRESS_OUTPUT;
        let checked = execute(&back, Memory::own(), MAX);
        assert_eq!((checked.output.len(), checked.record.crc32), (0, packed.record.crc32));
        assert_eq!(checked.record.dst_bytes as usize, data.len());
    }

    #[test]
    fn the_rules_for_descriptors_hold() {
        let (data, mut room, state) = (vec![7; 5000], vec![0; 6000], CompressState::FIXED);
        let good = compressing(&data, &mut room, &state);
        assert_eq!(status(&good).0, Status::SUCCESS);
        let with = |change: fn(&mut Descriptor)| {
            let mut bad = good;
            change(&mut bad);
            status(&bad).0
        };
        assert_eq!(with(|d| d.flags_opcode = 0x4600_0000), Status::BAD_OPCODE);
        assert_eq!(with(|d| d.flags_opcode |= 1), Status::INVALID_FLAGS);
        assert_eq!(with(|d| d.flags_opcode &= !flag::READ_AECS), Status::INVALID_FLAGS);
        assert_eq!(with(|d| d.inputs = 1), Status::NONZERO_RESERVED);
        assert_eq!(with(|d| d.src_bytes = 0), Status::INVALID_SIZE);
        assert_eq!(with(|d| d.src_bytes = (2 << 20) + 1), Status::INVALID_SIZE);
        assert_eq!(with(|d| d.dst_max_bytes = 0), Status::INVALID_SIZE);
        assert_eq!(with(|d| d.src2_bytes = 0x600), Status::INVALID_SIZE);
        assert_eq!(with(|d| d.src2 += 8), Status::MISALIGNED_ADDRESS);
        assert_eq!(with(|d| d.dst = d.src + 4999), Status::OVERLAPPING_BUFFERS);
        assert_eq!(with(|d| d.operation_flags |= 1 << 5), Status::INVALID_COMPRESS_FLAG);
        assert_eq!(with(|d| d.src = 4096), Status::PAGE_FAULT);
    }

    #[test]
    fn output_is_never_more_than_permitted() {
        let mut word = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (word >> 56) as u8
        })
        .take(4096)
        .collect();
        let state = CompressState::FIXED;
        let mut room = vec![0; 4096];
        let mut bad = CompressState::FIXED;
        assert_eq!(
            status(&compressing(&noise, &mut room, &state)),
            (Status::ANALYTICS_ERROR, error::UNRECOVERABLE_OVERFLOW)
        );
        bad.codes.literals_lengths[noise[0] as usize] = 0;
        assert_eq!(
            status(&compressing(&noise, &mut room, &bad)),
            (Status::ANALYTICS_ERROR, error::INVALID_HUFFMAN_CODE)
        );
        bad.accumulated_bits = 3000;
        assert_eq!(status(&compressing(&noise, &mut room, &bad)), (Status::ANALYTICS_ERROR, error::BAD_AECS));
        let packed = execute(&compressing(&[5; 4096], &mut room, &state), Memory::own(), MAX).output;
        for most in [1, 4095, 4096] {
            let d = Descriptor {
                operation_flags: decompress::WHOLE,
                ..descriptor(Opcode::Decompress, 0, &packed, &mut room[..most])
            };
            let done = execute(&d, Memory::own(), MAX);
            assert_eq!(done.record.status == Status::SUCCESS, most == 4096);
            assert!(done.output.len() == most, "{most}: {}", done.output.len());
        }
    }

    /// The check values of the catalogue of CRCs: CRC-64/XZ and CRC-64/ECMA-182 of "123456789".
    #[test]
    fn crc64_is_that_of_the_catalogue() {
        let mut d = descriptor(Opcode::Crc64, 0, b"123456789", &mut []);
        (d.filter_flags, d.inputs) = (0xa9ea_3693, 0x42f0_e1eb);
        let crc = |d: &Descriptor| {
            let record = execute(d, Memory::own(), MAX).record;
            u64::from(record.sum) << 32 | u64::from(record.max)
        };
        d.operation_flags = crc64::INVERT;
        assert_eq!(crc(&d), 0x995d_c9bb_df19_39fa);
        d.operation_flags = crc64::BIG_ENDIAN;
        assert_eq!(crc(&d), 0x6c40_df5f_0b49_7347);
    }
}
