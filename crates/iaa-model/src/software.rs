//! Deflate on the CPU, by another hand: zlib-rs.

use iaa::Software;
use zlib_rs::{DeflateConfig, InflateConfig, ReturnCode, compress_slice, decompress_slice};

/// Raw deflate of zlib-rs.
#[derive(Clone, Copy, Debug)]
pub struct Zlib {
    /// How far matches reach back: 2 to the power of it. 12 is what the device reads.
    pub window_bits: u8,
    /// zlib's level, 0 to 9.
    pub level: i32,
}

impl Default for Zlib {
    fn default() -> Self {
        Zlib { window_bits: 12, level: 1 }
    }
}

impl Software for Zlib {
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let window_bits = -i32::from(self.window_bits);
        let config = DeflateConfig { window_bits, level: self.level, ..DeflateConfig::default() };
        let (out, code) = compress_slice(dst, src, config);
        (code == ReturnCode::Ok).then_some(out.len())
    }

    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        // Zlib cannot be given no room at all.
        let (out, code) = decompress_slice(dst, src, InflateConfig { window_bits: -15 });
        (code == ReturnCode::Ok).then_some(out.len())
    }
}
