//! What one thread serves a device with.

use crate::disk::Disk;
use crate::scratch::Scratch;
use std::sync::Arc;
use zsmalloc::{Anonymous, Backing};

/// Compressors' contexts and buffers for one thread, up to 2 MiB. [`Device::worker`](crate::Device::worker) makes one.
///
/// The contexts are made with the first request after the device gets its disksize. A worker keeps the table of a
/// device that was reset until its next request.
pub struct Worker<B: Backing = Anonymous> {
    serves: Option<Serves<B>>,
}

/// A disk, its number, and what it takes to serve it.
pub(crate) struct Serves<B: Backing> {
    pub(crate) number: u64,
    pub(crate) disk: Arc<Disk<B>>,
    pub(crate) scratch: Scratch,
}

impl<B: Backing> Worker<B> {
    /// One that serves nothing yet.
    pub(crate) fn new() -> Worker<B> {
        Worker { serves: None }
    }

    /// What it serves, if that is the disk of this number; else what `now` says that it is to serve.
    pub(crate) fn serves(
        &mut self,
        number: u64,
        now: impl FnOnce() -> Option<(u64, Arc<Disk<B>>)>,
    ) -> Option<&mut Serves<B>> {
        if self.serves.as_ref().is_none_or(|serves| serves.number != number) {
            self.serves = now().map(|(number, disk)| {
                let scratch = disk.scratch();
                Serves { number, disk, scratch }
            });
        }
        self.serves.as_mut()
    }
}
