//! Pages in an order, from which any can be taken.

use crate::trace::PageId;
use std::collections::{BTreeMap, HashMap};

/// Pages by a key; the first is the one with the smallest.
#[derive(Default)]
pub struct Ordered<K> {
    by_key: BTreeMap<(K, PageId), ()>,
    keys: HashMap<PageId, K>,
}

impl<K: Ord + Copy> Ordered<K> {
    /// Adds a page, or changes its key.
    pub fn set(&mut self, page: PageId, key: K) {
        self.remove(page);
        self.by_key.insert((key, page), ());
        self.keys.insert(page, key);
    }

    /// Takes a page out. True where it was there.
    pub fn remove(&mut self, page: PageId) -> bool {
        let key = self.keys.remove(&page);
        key.is_some_and(|key| self.by_key.remove(&(key, page)).is_some())
    }

    /// The first.
    pub fn first(&self) -> Option<(K, PageId)> {
        self.by_key.first_key_value().map(|(&first, ())| first)
    }

    /// Takes the first.
    pub fn pop(&mut self) -> Option<PageId> {
        let (_, page) = self.first()?;
        self.remove(page);
        Some(page)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }
}
