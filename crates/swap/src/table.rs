//! What all processes of a run share: which clusters are in use, and which process may refer to which.
//!
//! ```text
//!   words[cluster]   31          10 9          0      one AtomicU32 a cluster
//!                   | generation   | row + 1  |      row + 1 is 0: free. The generation is new with each change.
//!
//!   holders[row]    whose the row is: a process, by a word of the caller's; 0: nobody's
//!   buriers[row]    who clears the row of a process that has died; 0: nobody
//!   serials[row]    how many objects have been sealed with the row's subkey
//!   bits[row]       one bit a cluster: the holder may refer to something in it
//! ```
//!
//! Memory of zeros is a table without rows, in which each cluster is free. Any process may die at any instruction.
//! There is no count of free clusters that could be wrong: [`Table::free_clusters`] counts the words.
//!
//! The rules:
//! - A process refers to a cluster only while its row has the bit. It sets the bit before it claims the word.
//! - A process clears its bit when it refers to nothing in the cluster any more. Then it releases the cluster, if no
//!   row has the bit.
//! - A fork copies the row before the child may run ([`Table::copy_row`]), and counts the copy after that.
//! - The row of a dead process is buried: its bits are cleared, and each cluster that no row has is released.
//!
//! This is safe because:
//! 1. A cluster is claimed by one process: the word changes from free by compare-and-swap, and no value comes again
//!    before 2^22 changes of the same word. A process would have to stand still between two instructions for 8 TiB of
//!    writes to one cluster, and then meet one value of four million.
//! 2. A cluster is released only where no row had the bit at one moment after the word was read. A row that had the bit
//!    when the scan began, and has none when the scan comes to it, has been cleared in between. If it was copied
//!    before, the copy is counted before the bit is cleared, by the process or by who buries it. The scan sees another
//!    count and begins anew.
//! 3. A bit set during a scan, and by no copy, is that of a claim. The claim has not won while the word is what it was,
//!    and wins no more after it: the word has changed.
//! 4. The last one releases: each clears its own bit before it scans, so that of two the later one sees no bit.
//! 5. What a process leaves that dies between clearing a bit and changing the word is a word in use without a bit. Such
//!    a word is released by whoever buries the process, who looks at all words. It cannot be a claim under way, because
//!    a claim sets its bit first.
//! 6. A row is cleared by one burier at a time: the burier's name is taken by compare-and-swap, and passes on only when
//!    the burier is dead. The holder's word becomes 0 at the end, so that a burial that was cut short is done again.
//! 7. A claim that loses may have kept another process from a release by the bit it had set. It therefore clears the
//!    bit as one who had the cluster does, and releases what nobody has.

mod rows;
#[cfg(test)]
mod scenes;
#[cfg(test)]
pub(crate) mod tests;

pub use rows::Burial;

use crate::CLUSTERS_MAX;
use crate::step::step;
use core::ops::Range;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Processes that can be in a run at a time.
pub const ROWS: usize = 512;

/// Where the bytes of a table's file are that processes lock, one a row: far behind the file's end. Each process that
/// has a row has a shared lock of its byte, for as long as it lives: see [`Row::lock_at`].
const LOCKS: u64 = 1 << 40;

/// Bits of a word that name its row, or are 0.
const ROW_BITS: u32 = 10;
const ROW_MASK: u32 = (1 << ROW_BITS) - 1;

/// Where things are in the shared words: first three counts, with a cache line of their own, then the rows.
const COPIES: usize = 0;
const RELEASES: usize = 1;
const USED_ROWS: usize = 2;
const HOLDERS: usize = 8;
const BURIERS: usize = HOLDERS + ROWS;
const SERIALS: usize = BURIERS + ROWS;
const BITS: usize = SERIALS + ROWS;

/// A row of the table, which is one process's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row(u16);

impl Row {
    /// Its number, below [`ROWS`], by which a subkey is named.
    pub fn number(self) -> u16 {
        self.0
    }

    /// Which byte of the table's file the holder of the row of this number has a shared lock of. It locks the byte
    /// before it takes the row: a row that is held and not locked is that of a dead process.
    pub fn lock_at(number: u16) -> u64 {
        LOCKS | number as u64
    }
}

/// The shared table. A value is two references, and may be copied freely.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    words: &'static [AtomicU32],
    shared: &'static [AtomicU64],
}

impl Table {
    /// How many 64-bit words a table of so many clusters has beside those of the clusters. Most of them are bits of
    /// rows that nobody has, and need no memory if it is mapped and never touched.
    pub fn shared_len(clusters: usize) -> usize {
        BITS + ROWS * clusters.div_ceil(64)
    }

    /// Where the shared words begin in a file of a table, in bytes, behind the words of the clusters.
    pub fn shared_at(clusters: usize) -> usize {
        (clusters * size_of::<AtomicU32>()).next_multiple_of(size_of::<AtomicU64>())
    }

    /// How long a file of a table of so many clusters is, in bytes. A file of zeros is a table without rows.
    pub fn file_len(clusters: usize) -> usize {
        Table::shared_at(clusters) + Table::shared_len(clusters) * size_of::<AtomicU64>()
    }

    /// The table in this memory, which is zeros, or what processes have made of it since. `words` has one word a
    /// cluster.
    ///
    /// # Panics
    /// If there are more clusters than [`CLUSTERS_MAX`], or `shared` is not [`Table::shared_len`] long.
    pub fn new(words: &'static [AtomicU32], shared: &'static [AtomicU64]) -> Table {
        assert!(words.len() <= CLUSTERS_MAX as usize, "{} clusters, at most {CLUSTERS_MAX}", words.len());
        assert_eq!(shared.len(), Table::shared_len(words.len()), "shared words of {} clusters", words.len());
        Table { words, shared }
    }

    /// How many clusters there are.
    pub fn clusters(&self) -> u32 {
        self.words.len() as u32
    }

    /// Counts the free clusters of a range: how many can be had, unless somebody else takes them.
    pub fn free_clusters(&self, range: Range<u32>) -> u32 {
        range.filter(|cluster| is_free(self.word(*cluster))).count() as u32
    }

    /// How often rows have let go of clusters. A process that has found no room need not look again before this
    /// changes.
    pub fn releases(&self) -> u64 {
        self.load(RELEASES)
    }

    /// Takes a free cluster of a range for `row`: the first from `from` on, and else the first of the range.
    pub fn claim(&self, row: Row, range: Range<u32>, from: u32) -> Option<u32> {
        let from = from.clamp(range.start, range.end);
        (from..range.end).chain(range.start..from).find(|cluster| self.claim_this(row, *cluster))
    }

    /// Takes a cluster for `row` if it is free. What it is used for may be written at once.
    pub fn claim_this(&self, row: Row, cluster: u32) -> bool {
        let word = self.word(cluster);
        if !is_free(word) {
            return false;
        }
        debug_assert!(!self.has(row, cluster), "{row:?} has a free cluster, {cluster}");
        self.set(row, cluster);
        let is_won = self.change(cluster, word, row.0 as u32 + 1);
        if !is_won {
            self.release(row, cluster);
        }
        is_won
    }

    /// For a process that refers to nothing in the cluster any more, and has no write to it under way: clears the bit.
    /// True if the cluster has become free by this.
    pub fn release(&self, row: Row, cluster: u32) -> bool {
        let word = self.word(cluster);
        let (at, bit) = bit_of(row, cluster, self.stride());
        step();
        self.shared[at].fetch_and(!bit, SeqCst);
        let is_freed = !is_free(word) && !self.is_referred(cluster, None) && self.change(cluster, word, 0);
        self.count(RELEASES);
        is_freed
    }

    /// For a process that has the bit: true if it is the only one, so that what it does not use of the cluster is free
    /// for it. The cluster is then its own, whoever claimed it.
    pub fn adopt(&self, row: Row, cluster: u32) -> bool {
        let word = self.word(cluster);
        if self.is_referred(cluster, Some(row)) {
            return false;
        }
        let own = row.0 as u32 + 1;
        word & ROW_MASK == own || self.change(cluster, word, own)
    }

    /// True if the row has the cluster's bit.
    pub fn has(&self, row: Row, cluster: u32) -> bool {
        let (at, bit) = bit_of(row, cluster, self.stride());
        self.load(at) & bit != 0
    }

    /// True if a row has the cluster's bit, other than `except`; exact for one moment during the call.
    fn is_referred(&self, cluster: u32, except: Option<Row>) -> bool {
        loop {
            let copies = self.load(COPIES);
            let refers = |row: &Row| self.holder(*row) != 0 && self.has(*row, cluster);
            if self.used_rows().filter(|row| Some(*row) != except).any(|row| refers(&row)) {
                return true;
            }
            if self.load(COPIES) == copies {
                return false;
            }
        }
    }

    /// The rows that have ever been taken. A row that is taken later gets its bits by claims or by a copy.
    fn used_rows(&self) -> impl Iterator<Item = Row> {
        (0..self.load(USED_ROWS) as u16).map(Row)
    }

    /// 64-bit words of a row's bits.
    fn stride(&self) -> usize {
        self.words.len().div_ceil(64)
    }

    fn word(&self, cluster: u32) -> u32 {
        step();
        self.words[cluster as usize].load(SeqCst)
    }

    /// Changes a cluster's word from what was read, to a row's number and 1, or to 0.
    fn change(&self, cluster: u32, from: u32, to: u32) -> bool {
        let to = (from & !ROW_MASK).wrapping_add(1 << ROW_BITS) | to;
        step();
        self.words[cluster as usize].compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }

    fn set(&self, row: Row, cluster: u32) {
        let (at, bit) = bit_of(row, cluster, self.stride());
        step();
        self.shared[at].fetch_or(bit, SeqCst);
    }

    fn load(&self, at: usize) -> u64 {
        step();
        self.shared[at].load(SeqCst)
    }

    fn count(&self, at: usize) {
        step();
        self.shared[at].fetch_add(1, SeqCst);
    }
}

fn is_free(word: u32) -> bool {
    word & ROW_MASK == 0
}

/// Where a cluster's bit of a row is: in which of the shared words, and the bit there.
fn bit_of(row: Row, cluster: u32, stride: usize) -> (usize, u64) {
    (BITS + row.0 as usize * stride + cluster as usize / 64, 1 << (cluster % 64))
}
