//! Advice of a program on its memory that pages follow.

use linux_raw_sys::general as g;

/// What a program says of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Advice {
    /// It is not needed for a while, and is to go out now (MADV_PAGEOUT).
    PageOut = 1,
    /// It is needed soon, and is to come in (MADV_WILLNEED).
    WillNeed = 2,
    /// It is needed less than anything else, and goes first where memory must go (MADV_COLD).
    Cold = 3,
}

impl Advice {
    /// All there are.
    pub const ALL: [Advice; 3] = [Advice::PageOut, Advice::WillNeed, Advice::Cold];

    /// What an argument of madvise(2) is; `None` for advice that no page follows.
    pub fn of(argument: u32) -> Option<Advice> {
        match argument {
            g::MADV_PAGEOUT => Some(Advice::PageOut),
            g::MADV_COLD => Some(Advice::Cold),
            g::MADV_WILLNEED => Some(Advice::WillNeed),
            _ => None,
        }
    }
}
