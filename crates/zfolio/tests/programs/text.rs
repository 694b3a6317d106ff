//! Text as programs hold it: sentences of common words, numbers, dates, from a seed.

use base::Random;

const WORDS: [&str; 32] = [
    "paid",
    "late",
    "order",
    "parcel",
    "returned",
    "address",
    "checked",
    "twice",
    "customer",
    "called",
    "back",
    "about",
    "the",
    "missing",
    "invoice",
    "gift",
    "wrapped",
    "deliver",
    "after",
    "five",
    "leave",
    "at",
    "door",
    "neighbour",
    "signed",
    "for",
    "it",
    "refund",
    "pending",
    "and",
    "not",
    "seen",
];

/// A stream of text and numbers; the same seed gives the same stream everywhere.
pub struct Text(Random);

impl Text {
    /// `seed` may be any number.
    pub fn new(seed: u64) -> Text {
        Text(Random(seed))
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.within(0..bound)
    }

    /// `count` words with a space between two.
    pub fn sentence(&mut self, count: usize) -> String {
        let words: Vec<_> = (0..count).map(|_| WORDS[self.below(WORDS.len() as u64) as usize]).collect();
        words.join(" ")
    }
}
