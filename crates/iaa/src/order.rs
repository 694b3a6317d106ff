//! Sorting that takes little room: core's sorts are fast, and ten kilobytes of code for each type and key.

/// Sorts by a key; elements with the same key come in any order. Shell's sort: with gaps of Ciura's, some 12 steps for
/// each of 286 elements.
pub(crate) fn sort_by_key<T, K: Ord>(elements: &mut [T], key: impl Fn(&T) -> K) {
    for gap in [701, 301, 132, 57, 23, 10, 4, 1] {
        for end in gap..elements.len() {
            let mut at = end;
            while at >= gap && key(&elements[at]) < key(&elements[at - gap]) {
                elements.swap(at, at - gap);
                at -= gap;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Random;

    #[test]
    fn what_is_sorted_is_in_order() {
        let mut random = Random(1);
        for len in (0..20).chain([100, 286, 2000]) {
            let mut numbers: Vec<u64> = (0..len)
                .map(|_| {
                    let word = random.word();
                    word >> (word >> 59)
                })
                .collect();
            let mut expected = numbers.clone();
            expected.sort_by_key(|number| !number);
            sort_by_key(&mut numbers, |number| !number);
            assert_eq!(numbers, expected);
        }
    }
}
