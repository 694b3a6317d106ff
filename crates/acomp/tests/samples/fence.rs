//! Memory between fences, and objects that are damaged on purpose.

use std::ptr::null_mut;
use std::sync::OnceLock;

use acomp::{Context, Error, Outcome};
use base::PAGE;

use super::{Random, compress, context, decompress, decompress_prefix, grown_bytes};

mod sys {
    use std::ffi::c_void;
    pub const READ_WRITE: i32 = 3;
    pub const PRIVATE_ANONYMOUS: i32 = 0x22;
    unsafe extern "C" {
        pub fn mmap(
            at: *mut c_void,
            bytes: usize,
            access: i32,
            flags: i32,
            fd: i32,
            offset: i64,
        ) -> *mut c_void;
        pub fn mprotect(at: *mut c_void, bytes: usize, access: i32) -> i32;
    }
}

/// Told of each part of a buffer that nobody is to touch from now on (true), or may again: by a sanitizer, where there
/// is one.
pub static HIDE: OnceLock<fn(&[u8], bool)> = OnceLock::new();

/// Memory between two inaccessible pages, kept until the test ends.
pub struct Fenced {
    memory: &'static mut [u8],
}

impl Fenced {
    /// Room for `bytes` bytes.
    pub fn new(bytes: usize) -> Fenced {
        let bytes = bytes.next_multiple_of(PAGE);
        // SAFETY: a new mapping, which nobody else knows, is fenced and then used as plain bytes.
        let memory = unsafe {
            let all = bytes + 2 * PAGE;
            let start =
                sys::mmap(null_mut(), all, sys::READ_WRITE, sys::PRIVATE_ANONYMOUS, -1, 0).cast::<u8>();
            assert_ne!(start as isize, -1);
            assert_eq!(sys::mprotect(start.cast(), PAGE, 0), 0);
            assert_eq!(sys::mprotect(start.add(PAGE + bytes).cast(), PAGE, 0), 0);
            std::slice::from_raw_parts_mut(start.add(PAGE), bytes)
        };
        Fenced { memory }
    }

    /// The last `len` bytes, right before the fence.
    pub fn back(&mut self, len: usize) -> &mut [u8] {
        let (hidden, used) = self.memory.split_at_mut(self.memory.len() - len);
        hide(hidden, used);
        used
    }

    /// The first `len` bytes, right behind the other fence.
    pub fn front(&mut self, len: usize) -> &mut [u8] {
        let (used, hidden) = self.memory.split_at_mut(len);
        hide(hidden, used);
        used
    }
}

fn hide(hidden: &[u8], used: &[u8]) {
    if let Some(hide) = HIDE.get() {
        hide(hidden, true);
        hide(used, false);
    }
}

/// A context, and fenced buffers for what it reads and writes.
pub struct Bench {
    /// What is tried.
    pub context: Context,
    src: Fenced,
    dst: Fenced,
    /// The beginning of what the whole object came to.
    expected: Vec<u8>,
}

impl Bench {
    /// Of the compressor `text`, for units of up to `unit_max` bytes.
    pub fn new(text: &str, unit_max: usize) -> Bench {
        let bytes = grown_bytes(unit_max) + 4096;
        let (src, dst) = (Fenced::new(bytes), Fenced::new(bytes));
        Bench { context: context(text, unit_max), src, dst, expected: Vec::with_capacity(unit_max) }
    }

    /// Decompresses an object that may be anything, wholly and in part. It may come to any bytes, but
    /// only within `dst`, of which the bytes before it are watched and those behind it are fenced.
    pub fn survive(&mut self, object: &[u8], len: usize, prefix: usize) -> Result<(), Error> {
        const WATCHED: usize = 64;
        let src = self.src.back(object.len());
        src.copy_from_slice(object);
        let dst = self.dst.back(len + WATCHED);
        dst[..WATCHED].fill(0xc3);
        let result = decompress(&mut self.context, src, &mut dst[WATCHED..]);
        assert_eq!(dst[..WATCHED], [0xc3; WATCHED], "written before dst");
        self.expected.clear();
        self.expected.extend_from_slice(&dst[WATCHED..][..prefix]);

        let src = self.src.front(object.len());
        src.copy_from_slice(object);
        let dst = self.dst.front(prefix + WATCHED);
        dst[prefix..].fill(0xc3);
        let in_part = decompress_prefix(&mut self.context, src, &mut dst[..prefix], len);
        assert_eq!(dst[prefix..], [0xc3; WATCHED], "written behind dst");
        // A copy from distance 0, which lz4 does not refuse, leaves what was in `dst` before.
        let is_exact = !self.context.compressor().name().starts_with("lz4");
        if is_exact && result.is_ok() && in_part.is_ok() {
            assert!(dst[..prefix] == self.expected, "the beginning is another than that of the whole");
        }
        result
    }

    /// Compresses a unit into `room` bytes, and reads back what came of it.
    pub fn round_trip(&mut self, unit: &[u8], room: usize) {
        let src = self.src.back(unit.len());
        src.copy_from_slice(unit);
        let dst = self.dst.back(room);
        match compress(&mut self.context, src, dst) {
            Ok(Outcome::Shrunk(bytes)) => {
                let object = dst[..bytes].to_vec();
                self.is_well(&object, unit);
            }
            Ok(Outcome::Incompressible) => assert!(room < grown_bytes(unit.len()), "there was room enough"),
            Err(error) => panic!("{error}"),
        }
    }

    /// The context still reads what is whole.
    pub fn is_well(&mut self, object: &[u8], unit: &[u8]) {
        let dst = self.dst.back(unit.len());
        decompress(&mut self.context, object, dst).unwrap();
        assert!(dst == unit);
        let dst = self.dst.back(unit.len().div_ceil(2));
        decompress_prefix(&mut self.context, object, dst, unit.len()).unwrap();
        assert!(*dst == unit[..dst.len()]);
    }
}

/// Changes an object in one of the ways in which memory goes bad, or as somebody would who means harm.
pub fn mutate(random: &mut Random, object: &[u8], other: &[u8]) -> Vec<u8> {
    let mut object = object.to_vec();
    for _ in 0..1 + random.below(3) {
        if object.is_empty() {
            break;
        }
        let at = if random.below(3) == 0 {
            random.below(object.len().min(24))
        } else {
            random.below(object.len())
        };
        match random.below(8) {
            0 => object[at] ^= 1 << random.below(8),
            1 => object[at] = random.word() as u8,
            2 => object[at] = [0, 0xff, 0x80, 0x7f][random.below(4)],
            3 => object.truncate(at),
            4 => drop(object.remove(at)),
            5 => object.insert(at, random.word() as u8),
            6 => {
                let piece = random.below(64).min(object.len() - at).min(other.len());
                object[at..at + piece].copy_from_slice(&other[..piece]);
            }
            _ => {
                let piece = random.below(200).min(object.len() - at);
                object[at..at + piece].fill(0xff);
            }
        }
    }
    object
}
