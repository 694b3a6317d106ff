//! Pages of a window, as bits.

/// A mask of `count` bits from `first` on.
pub fn bits(first: usize, count: usize) -> u16 {
    (((1u32 << count) - 1) << first) as u16
}

/// The runs of set bits: first and count.
pub fn runs(mask: u16) -> impl Iterator<Item = (usize, usize)> {
    let mut rest = mask as u32;
    core::iter::from_fn(move || {
        (rest != 0).then(|| {
            let first = rest.trailing_zeros() as usize;
            let count = (rest >> first).trailing_ones() as usize;
            rest &= !(((1 << count) - 1) << first);
            (first, count)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn runs_of_a_mask() {
        assert_eq!(runs(0b1011_0000_0000_1110).collect::<Vec<_>>(), [(1, 3), (12, 2), (15, 1)]);
        assert_eq!(runs(u16::MAX).collect::<Vec<_>>(), [(0, 16)]);
        assert_eq!(runs(0).count(), 0);
        assert_eq!((bits(0, 16), bits(15, 1), bits(3, 2)), (u16::MAX, 1 << 15, 0b11000));
    }
}
