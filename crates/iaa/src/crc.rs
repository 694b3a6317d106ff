//! CRCs of 64 bits, by any polynomial: which one is meant, and the same on the CPU.

/// A CRC of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc64 {
    /// The polynomial, most significant bit first, without the highest one.
    pub polynomial: u64,
    /// All bits are inverted before and after.
    pub inverted: bool,
    /// Each byte's most significant bit is first; else its least significant one.
    pub big_endian: bool,
}

const ECMA_POLYNOMIAL: u64 = 0x42f0_e1eb_a9ea_3693;

impl Crc64 {
    /// That of xz: CRC-64/XZ.
    pub const XZ: Crc64 = Crc64 { polynomial: ECMA_POLYNOMIAL, inverted: true, big_endian: false };
    /// CRC-64/ECMA-182.
    pub const ECMA_182: Crc64 = Crc64 { polynomial: ECMA_POLYNOMIAL, inverted: false, big_endian: true };

    /// Computes it, four bits at a time.
    pub fn of(self, bytes: &[u8]) -> u64 {
        let initial = if self.inverted { u64::MAX } else { 0 };
        let crc = if self.big_endian {
            let step = |c: u64| c << 1 ^ if c >> 63 == 1 { self.polynomial } else { 0 };
            let four = table(|n| n << 60, step);
            bytes.iter().fold(initial, |crc, &byte| {
                let crc = crc ^ u64::from(byte) << 56;
                let crc = crc << 4 ^ four[(crc >> 60) as usize];
                crc << 4 ^ four[(crc >> 60) as usize]
            })
        } else {
            let polynomial = self.polynomial.reverse_bits();
            let step = |c: u64| c >> 1 ^ if c & 1 == 1 { polynomial } else { 0 };
            let four = table(|n| n, step);
            bytes.iter().fold(initial, |crc, &byte| {
                let crc = crc ^ u64::from(byte);
                let crc = crc >> 4 ^ four[(crc & 15) as usize];
                crc >> 4 ^ four[(crc & 15) as usize]
            })
        };
        crc ^ initial
    }
}

/// What four steps make of each four bits.
fn table(place: impl Fn(u64) -> u64, step: impl Fn(u64) -> u64) -> [u64; 16] {
    core::array::from_fn(|n| (0..4).fold(place(n as u64), |crc, _| step(crc)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of the catalogue of CRCs (reveng): of "123456789".
    #[test]
    fn they_are_those_of_the_catalogue() {
        let of =
            |polynomial, inverted, big_endian| Crc64 { polynomial, inverted, big_endian }.of(b"123456789");
        assert_eq!(Crc64::XZ.of(b"123456789"), 0x995d_c9bb_df19_39fa);
        assert_eq!(Crc64::ECMA_182.of(b"123456789"), 0x6c40_df5f_0b49_7347);
        // WE, GO-ISO, and REDIS.
        assert_eq!(of(ECMA_POLYNOMIAL, true, true), 0x62ec_59e3_f1a4_f00a);
        assert_eq!(of(0x1b, true, false), 0xb909_56c7_75a4_1001);
        assert_eq!(of(0xad93_d235_94c9_35a9, false, false), 0xe9c6_d914_c4b8_d9ca);
        assert_eq!((Crc64::XZ.of(&[]), Crc64::ECMA_182.of(&[])), (0, 0));
    }
}
