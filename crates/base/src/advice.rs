//! Advice of a program on its memory that pages follow.

/// What a program says of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Advice {
    /// It is not needed for a while, and is to go out now (MADV_PAGEOUT).
    PageOut = 1,
}

impl Advice {
    /// All there are.
    pub const ALL: [Advice; 1] = [Advice::PageOut];

    /// What an argument of madvise(2) is; `None` for advice that no page follows.
    pub fn of(argument: u32) -> Option<Advice> {
        match argument {
            linux_raw_sys::general::MADV_PAGEOUT => Some(Advice::PageOut),
            _ => None,
        }
    }
}
