//! Why stored pages cannot be restored.

use crate::sys::Errno;
use core::fmt;

/// What is wrong with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damaged {
    /// Its header or its compressed bytes are not what was written.
    Stream,
    /// The pages are not those that were stored.
    Checksum,
    /// It is another object.
    Object,
    /// It is in a swap area that says this instead.
    Unread(Errno),
    /// What the swap area says is not what was sealed there.
    Seal,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Damaged::Stream => "its compressed bytes are damaged",
            Damaged::Checksum => "its checksum does not match",
            Damaged::Object => "another object is in its place",
            Damaged::Unread(errno) => return write!(f, "the swap area says {errno}"),
            Damaged::Seal => "its seal is broken: the swap area returns what was not written there",
        })
    }
}
