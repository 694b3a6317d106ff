//! One object: what it holds, who needs it, and what may be done with it.

use crate::Damaged;
use crate::layout::plain_bytes;
use crate::objects::swapped::PlaceId;

/// What an object holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Bytes in the pool.
    Blob {
        /// The store's name for it, which another object may have once this one is freed.
        handle: u32,
        /// Of the contents: what lies under the handle must have the same, or it is another object.
        fingerprint: u32,
        /// How many bytes of the pool it takes.
        bytes: u32,
    },
    /// A record of a log that relatives read too: what they all have is stored there once, in nobody's pool.
    Common {
        /// Which log, by the place where this process and its children list it.
        log: u32,
        /// Where in it, as the store counts.
        at: u32,
        /// Of the contents.
        fingerprint: u32,
    },
    /// Pages filled with one repeated word; nothing in the pool.
    Same(u64),
    /// Nothing in the pool: sealed in an area.
    Swapped,
    /// A clean copy that was given up: nothing can be loaded from it.
    Dropped,
}

impl Body {
    /// How many bytes of the pool it takes.
    pub fn bytes(&self) -> usize {
        if let Body::Blob { bytes, .. } = self { *bytes as usize } else { 0 }
    }
}

/// What is under way with an object's copy in an area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// Nothing.
    #[default]
    None,
    /// It is being written.
    Out,
    /// It is being read.
    In,
    /// It was read just now: who waits for it is to find it.
    Back,
    /// It is damaged in the pool, and does not go from there.
    Stays,
    /// It was read in vain: what it holds is lost.
    Lost(Damaged),
}

/// One object.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// What it holds.
    pub body: Body,
    /// How many name it: its pages, and jobs under way.
    pub refs: u16,
    /// How many of them have no other copy.
    pub stored: u16,
    /// Nobody depends on it any more.
    pub clean: bool,
    /// How many pages it was made of.
    pub pages: u8,
    /// How often one of them was asked for alone.
    pub picked: u8,
    /// Its pages are objects of their own by now; what it still holds is not to be depended on anew.
    pub split: bool,
    /// It was in the pool when the process forked: another has it too.
    pub(super) frozen: bool,
    /// It is a relative's record.
    pub(super) borrowed: bool,
    pub(super) queued: bool,
    /// Its bytes in the pool are being read.
    pub(super) pins: u8,
    /// One of its pages was loaded since it became one of the oldest, and others depend on it still.
    pub(super) is_hot: bool,
    /// It was read before anybody asked for it, and nobody has since.
    pub(super) is_ahead: bool,
    /// What is under way with its copy in an area.
    pub(super) io: Io,
    /// Where that is, if there is one.
    pub(super) place: Option<PlaceId>,
    /// The hashes of its pages are kept beside that, while it is not in the pool.
    pub(super) is_hashed: bool,
    /// When nobody depended on it any more, by `Entries::clock`; of what lies in an area alone, when it left the pool,
    /// by `Entries::left`.
    pub(super) since: u32,
    /// When it was stored, in milliseconds of the kernel's clock, which begins anew every 49 days.
    pub born_ms: u32,
}

// There is one for each page of a plain swap: what it takes, the program lacks.
const _: () = assert!(size_of::<Object>() == 48);

impl Object {
    /// How long ago it was stored, in milliseconds.
    pub fn age_ms(&self, now_ms: u64) -> u64 {
        (now_ms as u32).wrapping_sub(self.born_ms) as u64
    }

    /// True when a page may be found to be still as it is here, and depend on it again.
    pub fn is_sound(&self) -> bool {
        let has_hashes = match self.body {
            Body::Dropped => false,
            Body::Swapped => self.is_hashed,
            Body::Blob { .. } | Body::Common { .. } | Body::Same(_) => true,
        };
        has_hashes && !self.split && !self.is_lost()
    }

    /// True where it must be read from an area before anything can be loaded.
    pub fn is_swapped(&self) -> bool {
        self.body == Body::Swapped
    }

    /// True where its area does not give it back.
    pub fn is_lost(&self) -> bool {
        matches!(self.io, Io::Lost(_))
    }

    /// True where it was read before anybody asked for it, and nobody has since.
    pub fn is_ahead(&self) -> bool {
        self.is_ahead
    }

    /// What is under way with its copy in an area.
    pub fn io(&self) -> Io {
        self.io
    }

    /// True when writing it to an area would free memory: of what relatives have too, once they all have done so.
    pub(super) fn may_go(&self) -> bool {
        let is_free = self.pins == 0 && self.io == Io::None;
        is_free && self.stored > 0 && matches!(self.body, Body::Blob { .. })
    }

    /// True where it holds its pages as they are, each with data.
    pub fn is_raw(&self) -> bool {
        matches!(self.body, Body::Blob { bytes, .. } if bytes as usize == plain_bytes(self.pages as usize))
    }

    /// True where another process has it too: to give it up would free nothing, and to make anew what it holds
    /// would make a second one.
    pub fn is_shared(&self) -> bool {
        self.frozen || matches!(self.body, Body::Common { .. })
    }

    /// True for a relative's record.
    pub fn is_borrowed(&self) -> bool {
        self.borrowed
    }

    /// True when less than half of its pages may ever depend on it again.
    pub fn is_forlorn(&self) -> bool {
        !self.is_shared() && 2 * self.refs < self.pages as u16
    }

    /// How many more pages must depend on it so that at least half of it is needed.
    pub fn wanting(&self) -> usize {
        if self.is_shared() {
            return 0;
        }
        usize::from(self.pages.div_ceil(2)).saturating_sub(self.stored.into())
    }

    /// Memory that nobody depends on.
    pub(super) fn is_copy(&self) -> bool {
        self.clean && !self.frozen && matches!(self.body, Body::Blob { .. })
    }

    /// What would be freed with it.
    pub(super) fn bytes(&self) -> usize {
        if self.frozen { 0 } else { self.body.bytes() }
    }
}
