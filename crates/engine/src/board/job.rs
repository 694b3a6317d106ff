//! A job on the board: what a worker is asked for, and what it says.

use zswap::{BATCH_MAX, Packed, PageMask, Priors};

/// What a worker is asked for. Addresses are the program's.
#[derive(Clone, Copy)]
#[expect(
    clippy::large_enum_variant,
    reason = "it lies in its cell from the start: a box would be an allocation for each job"
)]
pub enum Work {
    /// To make objects of a slot's pages.
    Pack {
        /// Where the slot is.
        at: usize,
        /// Which of its pages.
        pages: PageMask,
        /// How many an object holds at most.
        unit: usize,
        /// What they were when they were loaded.
        priors: Priors,
        /// By what ([`Maker::word`](crate::maker::Maker)).
        made_by: u64,
        /// They are kept as they are.
        is_plain: bool,
    },
    /// To load pages of an object.
    Unpack {
        /// Where it is; it stays there until the job is done.
        object: usize,
        /// Its length.
        bytes: usize,
        /// Of its contents.
        fingerprint: u32,
        /// First page within it.
        first: usize,
        /// How many.
        pages: usize,
        /// Where they go.
        to: usize,
    },
}

/// What a worker says, in a job's cell.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    /// The objects lie in this parcel.
    Packed { parcel: u32 },
    /// The pages are there, if this is true; else the object is damaged.
    Unpacked(bool),
}

/// A worker's own: how many jobs it takes at a time, and the parcel that it has for the next.
pub struct Hand {
    pub(super) most: usize,
    pub(super) parcel: Option<u32>,
}

impl Hand {
    /// For up to `most` jobs at a time.
    pub fn new(most: usize) -> Hand {
        Hand { most: most.clamp(1, BATCH_MAX), parcel: None }
    }

    /// From now on it takes up to so many at a time.
    pub fn take_up_to(&mut self, most: usize) {
        self.most = most.clamp(1, BATCH_MAX);
    }
}

/// A job that a worker has begun.
pub struct Task<'a> {
    /// What is asked for.
    pub work: &'a Work,
    /// Where objects go: [`PARCEL_MAX_BYTES`](zswap::PARCEL_MAX_BYTES) at least.
    pub parcel: &'a mut [u8],
    /// What has come of it: to be set.
    pub reply: Reply,
    pub(super) slot: u32,
    pub(super) own: u32,
}

/// What a worker has made of a job.
#[expect(clippy::large_enum_variant, reason = "it is copied into the parcel at once")]
pub enum Reply {
    /// Objects, in the job's parcel.
    Packed(Packed),
    /// Pages, or the object is damaged.
    Unpacked(bool),
}
