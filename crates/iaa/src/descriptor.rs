//! What the device reads and writes: the descriptor of an operation, and the record of its completion.
//!
//! Sources, named at each item: *uapi*, the kernel's include/uapi/linux/idxd.h; *spec*, Intel's IAA architecture
//! specification (document 721858), where need be as Intel's own query processing library (QPL) spells it. All fields
//! are little endian.

use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{AtomicU8, Ordering};

/// One operation, as it is given to a portal. uapi: `struct iax_hw_desc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Descriptor {
    /// Address space (bits 19:0) and privilege (bit 31). The CPU or the kernel fills them in: 0 here.
    pub pasid_privilege: u32,
    /// Flags (bits 23:0, [`flag`]) and [`Opcode`] (bits 31:24).
    pub flags_opcode: u32,
    /// Where the [`Completion`] is.
    pub completion: u64,
    /// Address of the input.
    pub src: u64,
    /// Address of the output.
    pub dst: u64,
    /// Bytes of input.
    pub src_bytes: u32,
    /// Which interrupt tells of the completion; unused here.
    pub interrupt: u16,
    /// [`compress`], [`decompress`] or [`crc64`] flags.
    pub operation_flags: u16,
    /// Address of the second input: the [`CompressState`](crate::aecs::CompressState).
    pub src2: u64,
    /// Bytes of room at `dst`.
    pub dst_max_bytes: u32,
    /// Bytes of the second input.
    pub src2_bytes: u32,
    /// Filter flags, unused by (de)compression; of CRC-64 the polynomial's lower half.
    pub filter_flags: u32,
    /// Number of elements, unused by (de)compression; of CRC-64 the polynomial's upper half.
    pub inputs: u32,
}

const _: () = assert!(size_of::<Descriptor>() == 64 && align_of::<Descriptor>() == 64);
const _: () = assert!(core::mem::offset_of!(Descriptor, operation_flags) == 38);
const _: () = assert!(core::mem::offset_of!(Descriptor, inputs) == 60);

impl Descriptor {
    /// The operation's number.
    pub fn opcode(&self) -> u8 {
        (self.flags_opcode >> 24) as u8
    }

    /// The flags.
    pub fn flags(&self) -> u32 {
        self.flags_opcode & 0xff_ffff
    }

    /// Sets opcode and flags.
    pub fn set_operation(&mut self, opcode: Opcode, flags: u32) {
        self.flags_opcode = (opcode as u32) << 24 | flags;
    }
}

/// Operations. uapi: `enum iax_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// Nothing, with a completion.
    Noop = 0x00,
    /// Inflates.
    Decompress = 0x42,
    /// Deflates, or counts the symbols that deflating would write.
    Compress = 0x43,
    /// A CRC of 64 bits by any polynomial.
    Crc64 = 0x44,
}

/// Flags of any descriptor. uapi: `IDXD_OP_FLAG_*`.
pub mod flag {
    /// Block on fault: the device waits until a missing page is there. Only where the queue permits it.
    pub const BOF: u32 = 0x02;
    /// The completion's address is valid.
    pub const CRAV: u32 = 0x04;
    /// A completion record is requested.
    pub const RCR: u32 = 0x08;
    /// Cache control: the output goes to the cache, not to memory.
    pub const CC: u32 = 0x100;
    /// The second input is read as the engine's state.
    pub const READ_AECS: u32 = 0x1_0000;
    /// All that this driver ever sets.
    pub const ALL: u32 = BOF | CRAV | RCR | CC | READ_AECS;
}

/// Flags of [`Opcode::Compress`]. spec; QPL: `ADCF_*`.
pub mod compress {
    /// Statistics mode: the output is a [`Histogram`](crate::aecs::Histogram) of the symbols, and nothing is
    /// compressed.
    pub const STATISTICS: u16 = 1 << 0;
    /// The last bits are written out at the end.
    pub const FLUSH_OUTPUT: u16 = 1 << 1;
    /// An end-of-block symbol is written at the end.
    pub const APPEND_EOB: u16 = 1 << 2;
}

/// Flags of [`Opcode::Decompress`]. spec; QPL: `ADDF_*`. (The kernel's driver has the names of bits 2 and 3 the other
/// way round, and always sets both.)
pub mod decompress {
    /// Inflate at all: without it the operation would be a filter.
    pub const ENABLE: u16 = 1 << 0;
    /// The last bits are written out at the end.
    pub const FLUSH_OUTPUT: u16 = 1 << 1;
    /// Stop at an end of block.
    pub const STOP_ON_EOB: u16 = 1 << 2;
    /// It is an error if the input ends before an end of block.
    pub const CHECK_FOR_EOB: u16 = 1 << 3;
    /// The end of block that the two above mean is that of the last block. The kernel does not set it: its device stops
    /// after the first block and says that all is well, which is right for what it wrote itself, and wrong for anybody
    /// else's stream.
    pub const SELECT_FINAL_EOB: u16 = 1 << 4;
    /// Nothing is written: only the checksums are wanted.
    pub const SUPPRESS_OUTPUT: u16 = 1 << 9;
    /// A whole stream of any number of blocks.
    pub const WHOLE: u16 = ENABLE | FLUSH_OUTPUT | STOP_ON_EOB | CHECK_FOR_EOB | SELECT_FINAL_EOB;
}

/// Flags of [`Opcode::Crc64`]. spec; QPL: `ADC64F_*`.
pub mod crc64 {
    /// Bits are inverted before and after.
    pub const INVERT: u16 = 1 << 14;
    /// The data is seen as big endian: most significant bit first.
    pub const BIG_ENDIAN: u16 = 1 << 15;
}

/// How an operation ended. uapi: `enum iax_completion_status`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u8);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Status = Status($code);)*

            /// The name; "unknown" for what the sources do not list.
            pub fn name(self) -> &'static str {
                match self.code() { $(Status::$name => stringify!($name),)* _ => "unknown" }
            }
        }
    };
}

statuses! {
    /// Not done yet.
    NONE = 0x00;
    /// Done.
    SUCCESS = 0x01;
    /// A page was missing, and the operation stopped there.
    PAGE_FAULT = 0x04;
    /// The data could not be worked on; [`Record::error`] says why.
    ANALYTICS_ERROR = 0x0a;
    /// There was more output than room.
    OUTPUT_OVERFLOW = 0x0b;
    /// No such operation.
    BAD_OPCODE = 0x10;
    /// A flag that the operation does not have; [`Record::invalid_flags`] has it.
    INVALID_FLAGS = 0x11;
    /// A reserved field is not 0.
    NONZERO_RESERVED = 0x12;
    /// A size is 0, or more than the queue permits.
    INVALID_SIZE = 0x13;
    /// Input and output overlap.
    OVERLAPPING_BUFFERS = 0x16;
    /// The completion's address is no multiple of 64.
    COMPLETION_UNALIGNED = 0x1b;
    /// The state's address or size is no multiple of 32.
    MISALIGNED_ADDRESS = 0x1c;
    /// The device failed.
    HARDWARE_ERROR = 0x20;
    /// An address could not be translated.
    TRANSLATION_FAILED = 0x22;
    /// The kernel did not answer a page request in time.
    PAGE_REQUEST_TIMEOUT = 0x23;
    /// The operation took longer than the device's own watchdog permits.
    WATCHDOG = 0x24;
    /// A flag of (de)compression that there is not.
    INVALID_COMPRESS_FLAG = 0x30;
}

impl Status {
    /// Bit 7 of a page fault: it was a write.
    pub const WRITE: u8 = 0x80;

    /// A page fault without the bits that say what kind of fault it was (QPL: `STATUS_MASK`); any other as it is.
    pub fn code(self) -> Status {
        if self.0 & 0x3f == Status::PAGE_FAULT.0 { Status::PAGE_FAULT } else { self }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (0x{:02x})", self.name(), self.0)
    }
}

/// What [`Record::error`] says of an [`Status::ANALYTICS_ERROR`]. spec; QPL: `AD_ERROR_CODE_*`.
pub mod error {
    /// A block of type 3.
    pub const INVALID_BLOCK_TYPE: u8 = 13;
    /// A stored block whose length and its complement do not agree.
    pub const INVALID_STORED_LENGTH: u8 = 14;
    /// The input ended before the end of block that was asked for.
    pub const BAD_EOF: u8 = 15;
    /// The lengths of a dynamic block's codes are no prefix code, or too few, or too many.
    pub const BAD_CODE_LENGTHS: u8 = 9;
    /// Bits that are no literal or length.
    pub const BAD_LITERAL_LENGTH: u8 = 11;
    /// Bits that are no distance.
    pub const BAD_DISTANCE_CODE: u8 = 12;
    /// A distance of more than the history of 4 KiB.
    pub const BAD_DISTANCE: u8 = 17;
    /// A distance that reaches to before the start.
    pub const REFERENCE_BEFORE_START: u8 = 18;
    /// The engine's state has a value that makes no sense.
    pub const BAD_AECS: u8 = 22;
    /// Compressing: the output does not fit. For us: incompressible.
    pub const UNRECOVERABLE_OVERFLOW: u8 = 25;
    /// Compressing: a symbol without a code was needed.
    pub const INVALID_HUFFMAN_CODE: u8 = 30;
}

/// A completion record, as it was read. uapi: `struct iax_completion_record`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Record {
    /// How it ended.
    pub status: Status,
    /// One of [`error`].
    pub error: u8,
    /// More about a page fault.
    pub fault_info: u8,
    /// Reserved.
    pub reserved0: u8,
    /// How far the input was worked on.
    pub src_done_bytes: u32,
    /// Where the page fault was.
    pub fault_address: u64,
    /// Which flags were not valid.
    pub invalid_flags: u32,
    /// Reserved.
    pub reserved1: u32,
    /// Bytes written.
    pub dst_bytes: u32,
    /// Bits used of the last byte written.
    pub dst_bits: u8,
    /// Reserved.
    pub reserved2: u8,
    /// XOR of the plain data's 16-bit words.
    pub xor_checksum: u16,
    /// CRC-32 of the plain data, as zlib computes it.
    pub crc32: u32,
    /// Least value; not of (de)compression.
    pub min: u32,
    /// Greatest value; of CRC-64 the result's lower half.
    pub max: u32,
    /// Sum; of CRC-64 the result's upper half.
    pub sum: u32,
    /// Reserved.
    pub reserved3: [u64; 2],
}

const _: () = assert!(size_of::<Record>() == 64 && align_of::<Record>() == 64);
const _: () = assert!(core::mem::offset_of!(Record, fault_address) == 8);
const _: () = assert!(core::mem::offset_of!(Record, dst_bytes) == 24);
const _: () = assert!(core::mem::offset_of!(Record, crc32) == 32);
const _: () = assert!(core::mem::offset_of!(Record, sum) == 44);

impl Record {
    /// A record in which nothing is said yet.
    pub const EMPTY: Record = Record {
        status: Status::NONE,
        error: 0,
        fault_info: 0,
        reserved0: 0,
        src_done_bytes: 0,
        fault_address: 0,
        invalid_flags: 0,
        reserved1: 0,
        dst_bytes: 0,
        dst_bits: 0,
        reserved2: 0,
        xor_checksum: 0,
        crc32: 0,
        min: 0,
        max: 0,
        sum: 0,
        reserved3: [0; 2],
    };

    /// Of CRC-64, the result.
    pub fn crc64(&self) -> u64 {
        u64::from(self.sum) << 32 | u64::from(self.max)
    }
}

/// The place where the device writes a [`Record`], at a time of its own.
#[repr(C, align(64))]
pub struct Completion(UnsafeCell<Record>);

// SAFETY: the status is read by an atomic load, and the rest only after the status said that the device has done with
// it.
unsafe impl Sync for Completion {}

impl Completion {
    /// A place where nothing is written yet.
    pub const fn new() -> Completion {
        Completion(UnsafeCell::new(Record::EMPTY))
    }

    /// The address for a descriptor.
    pub fn address(&self) -> u64 {
        self.0.get() as u64
    }

    /// The byte that the device writes last.
    pub fn status_byte(&self) -> &AtomicU8 {
        // SAFETY: the status is the first byte of the record, and nobody reads or writes it but by this and the device.
        unsafe { &*self.0.get().cast::<AtomicU8>() }
    }

    /// Makes it ready for the next operation. Nothing that writes here may be under way.
    pub fn clear(&self) {
        self.status_byte().store(0, Ordering::Relaxed);
    }

    /// What the device wrote; `None` as long as it has not.
    pub fn read(&self) -> Option<Record> {
        if self.status_byte().load(Ordering::Acquire) == 0 {
            return None;
        }
        // SAFETY: aligned and readable. The device writes a record once, and the status last: it is done (Acquire keeps
        // this read behind).
        Some(unsafe { self.0.get().read_volatile() })
    }
}

impl Default for Completion {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_has_its_fields_where_the_kernel_has_them() {
        let mut descriptor = Descriptor {
            pasid_privilege: 0,
            flags_opcode: 0,
            completion: 0x0101_0101_0101_0101,
            src: 0x0202_0202_0202_0202,
            dst: 0x0303_0303_0303_0303,
            src_bytes: 0x0404_0404,
            interrupt: 0x0505,
            operation_flags: 0x0606,
            src2: 0x0707_0707_0707_0707,
            dst_max_bytes: 0x0808_0808,
            src2_bytes: 0x0909_0909,
            filter_flags: 0x0a0a_0a0a,
            inputs: 0x0b0b_0b0b,
        };
        descriptor.set_operation(Opcode::Compress, flag::CRAV | flag::RCR | flag::CC | flag::READ_AECS);
        // SAFETY: 64 bytes without padding.
        let bytes: [u8; 64] = unsafe { core::mem::transmute(descriptor) };
        assert_eq!(bytes[..8], [0, 0, 0, 0, 0x0c, 0x01, 0x01, 0x43]);
        let expected = [(8, 8, 1), (16, 8, 2), (24, 8, 3), (32, 4, 4), (36, 2, 5), (38, 2, 6), (40, 8, 7)];
        for (at, len, value) in expected.into_iter().chain([(48, 4, 8), (52, 4, 9), (56, 4, 10), (60, 4, 11)])
        {
            assert!(bytes[at..at + len].iter().all(|&b| b == value), "{at}: {:?}", &bytes[at..at + len]);
        }
        assert_eq!((descriptor.opcode(), descriptor.flags()), (0x43, 0x1_010c));
    }

    #[test]
    fn a_completion_is_read_once_it_is_there() {
        let completion = Completion::new();
        assert_eq!(completion.address() % 64, 0);
        assert_eq!(completion.read(), None);
        completion.status_byte().store(0x84, Ordering::Release);
        let record = completion.read().unwrap();
        assert_eq!(record.status.code(), Status::PAGE_FAULT);
        assert_eq!(format!("{:?}", record.status), "PAGE_FAULT (0x84)");
        completion.clear();
        assert_eq!(completion.read(), None);
    }

    #[test]
    fn whole_streams_are_read_to_their_last_block() {
        assert_eq!(decompress::WHOLE, 0x1f);
        assert_eq!(compress::FLUSH_OUTPUT | compress::APPEND_EOB, 0x06);
    }
}
