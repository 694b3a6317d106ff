//! Text as programs hold it: sentences of common words, numbers, dates, from a seed.

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
pub struct Text(u64);

impl Text {
    /// `seed` may be any number.
    pub fn new(seed: u64) -> Text {
        Text(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`, by a 64-bit xorshift.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    /// `count` words with a space between two.
    pub fn sentence(&mut self, count: usize) -> String {
        let words: Vec<_> = (0..count).map(|_| WORDS[self.below(WORDS.len() as u64) as usize]).collect();
        words.join(" ")
    }
}
