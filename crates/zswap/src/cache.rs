//! The objects of one process, in its pool.

use crate::Damaged;
use crate::codec::Codec;
use crate::layout::View;
use crate::page::Hash;
use zsmalloc::{Backing, Handle, Pool};

/// The hash of page `page` of an object when it was made; `None` where the object does not say.
pub fn hash_in(object: &[u8], page: usize) -> Option<Hash> {
    View::read(object).filter(|v| page < v.pages).map(|v| v.hash(page))
}

/// The cache of one process: whole objects by handle.
pub struct Cache<B: Backing> {
    pool: Pool<B>,
}

impl<B: Backing> Cache<B> {
    /// An empty cache.
    pub fn new(backing: B) -> Self {
        Cache { pool: Pool::new(backing) }
    }

    /// The pool, for statistics and compaction.
    pub fn pool(&self) -> &Pool<B> {
        &self.pool
    }

    /// Takes an object in; `None` when the pool has no memory for it.
    pub fn store(&self, object: &[u8]) -> Option<Handle> {
        let handle = self.pool.alloc(object.len())?;
        self.pool.write(handle, |place| place.copy_from_slice(object));
        Some(handle)
    }

    /// The hash of page `page` of an object when it was stored; `None` where the object does not say.
    pub fn hash(&self, handle: Handle, page: usize) -> Option<Hash> {
        hash_in(&self.pool.read(handle), page)
    }

    /// Restores pages of an object, as [`Codec::unpack`] does.
    pub fn load(
        &self,
        codec: &mut Codec,
        handle: Handle,
        fingerprint: u32,
        first: usize,
        to: &mut [u8],
    ) -> Result<(), Damaged> {
        codec.unpack(&self.pool.read(handle), fingerprint, first, to)
    }

    /// Gives an object's memory back.
    pub fn invalidate(&self, handle: Handle) {
        self.pool.free(handle);
    }
}
