//! Which ranges of a device hold data.

/// What a range holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Bytes that were written, not all of them zeros.
    Data,
    /// Zeros that were written.
    Zero,
    /// Nothing: it was never written, or was discarded. It reads as zeros.
    Hole,
}

/// A range of a device that holds the same kind of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub len_bytes: u64,
    /// What it holds.
    pub content: Content,
}
