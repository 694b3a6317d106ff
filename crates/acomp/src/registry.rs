//! The list of algorithms.

use crate::algorithm::Algorithm;
use crate::{deflate, deflate_iaa, lz4, lz4hc, lzo, nx842, zstd};

/// Every algorithm there is, in the order in which help lists them.
pub static ALGORITHMS: &[&Algorithm] = &[
    &lz4::ALGORITHM,
    &lz4hc::ALGORITHM,
    &zstd::ALGORITHM,
    &deflate::ALGORITHM,
    &deflate_iaa::ALGORITHM,
    &lzo::ALGORITHM,
    &lzo::ALGORITHM_RLE,
    &nx842::ALGORITHM,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_defaults_are_in_range() {
        for (index, algorithm) in ALGORITHMS.iter().enumerate() {
            assert!(ALGORITHMS[..index].iter().all(|other| other.name != algorithm.name));
            assert!(
                algorithm.parameter.as_ref().is_none_or(|p| p.accepted.contains(&p.default)),
                "{algorithm}"
            );
            assert!(!algorithm.description.contains('\n'));
            for parameter in algorithm.parameter.iter().filter(|parameter| !parameter.words.is_empty()) {
                assert_eq!(parameter.accepted, 0..=parameter.words.len() as i32 - 1);
            }
        }
    }
}
