//! The groups of a device, made in pieces as they are first written to.

use crate::error::Error;
use crate::group::Group;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Groups that are made together: 16 MiB of the device.
const PIECE: usize = 256;

type Piece = Box<[RwLock<Group>]>;

/// The groups by number. A group that nobody has written to may not be there: it is all holes.
#[derive(Debug)]
pub struct Table {
    pieces: Box<[OnceLock<Piece>]>,
    made: AtomicUsize,
}

impl Table {
    /// A table of so many groups.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`].
    pub fn new(groups: u64) -> Result<Table, Error> {
        let count = usize::try_from(groups.div_ceil(PIECE as u64)).map_err(|_| Error::NoMemory)?;
        let pieces = boxed(count, OnceLock::new)?;
        Ok(Table { pieces, made: AtomicUsize::new(0) })
    }

    /// A group; `None` where it is not there, and so all holes.
    pub fn get(&self, group: u64) -> Option<&RwLock<Group>> {
        let piece = self.pieces[(group / PIECE as u64) as usize].get()?;
        Some(&piece[(group % PIECE as u64) as usize])
    }

    /// A group, which is made if it is not there.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`].
    pub fn get_or_make(&self, group: u64) -> Result<&RwLock<Group>, Error> {
        if let Some(group) = self.get(group) {
            return Ok(group);
        }
        let piece = boxed(PIECE, RwLock::default)?;
        // Of two threads that come here, one drops its piece.
        if self.pieces[(group / PIECE as u64) as usize].set(piece).is_ok() {
            self.made.fetch_add(1, Relaxed);
        }
        Ok(self.get(group).expect("one thread has set it"))
    }

    /// The groups that are there, with their numbers, from `first` on.
    pub fn iter_from(&self, first: u64) -> impl Iterator<Item = (u64, &RwLock<Group>)> {
        let from = (first / PIECE as u64) as usize;
        let pieces = self.pieces.iter().enumerate().skip(from);
        let groups = pieces.filter_map(|(at, piece)| piece.get().map(|piece| (at * PIECE, piece)));
        groups.flat_map(|(at, piece)| (at as u64..).zip(piece)).skip_while(move |(number, _)| *number < first)
    }

    /// Memory of the table, in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.pieces[..]) + self.made.load(Relaxed) * PIECE * size_of::<RwLock<Group>>()
    }
}

/// A slice of so many; [`Error::NoMemory`] instead of an abort.
fn boxed<T>(count: usize, make: impl Fn() -> T) -> Result<Box<[T]>, Error> {
    let mut all = Vec::new();
    all.try_reserve_exact(count).map_err(|_| Error::NoMemory)?;
    all.extend((0..count).map(|_| make()));
    Ok(all.into_boxed_slice())
}

/// The group, shared with other readers. A thread that has panicked leaves whole entries behind.
pub fn shared(group: &RwLock<Group>) -> RwLockReadGuard<'_, Group> {
    group.read().unwrap_or_else(PoisonError::into_inner)
}

/// The group, for this thread alone.
pub fn alone(group: &RwLock<Group>) -> RwLockWriteGuard<'_, Group> {
    group.write().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_made_in_pieces_and_found_in_order() {
        let table = Table::new(1000).unwrap();
        let empty = table.bytes();
        assert!(table.get(999).is_none() && table.iter_from(0).next().is_none());
        table.get_or_make(999).unwrap();
        table.get_or_make(300).unwrap();
        assert!(table.get(999).is_some() && table.get(0).is_none() && table.get(511).is_some());
        assert!(table.bytes() > empty + 2 * PIECE * size_of::<Group>());
        let numbers: Vec<u64> = table.iter_from(500).map(|(number, _)| number).collect();
        assert_eq!((numbers[0], numbers.len()), (500, 12 + 256));
        assert!(numbers.is_sorted());
    }

    #[test]
    fn what_no_memory_holds_is_an_error() {
        assert!(matches!(Table::new(u64::MAX), Err(Error::NoMemory)));
    }
}
