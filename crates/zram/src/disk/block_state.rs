//! The state of each block in the kernel's words.
//!
//! ```text
//!   300    75.000000 .wh...      block, time of the last request, s w h i r n
//! ```

use super::Disk;
use crate::group::{BLOCKS, Entry, Group};
use crate::table::shared;
use std::fmt::Write;
use zsmalloc::Backing;

impl<B: Backing> Disk<B> {
    /// A line for each block that is no hole.
    pub fn block_state(&self) -> String {
        let mut text = String::new();
        for (number, group) in self.table.iter_from(0) {
            let group = shared(group);
            for block in group.having(|entry| *entry != Entry::Hole).iter().filter(|block| *block < BLOCKS) {
                let index = Self::block_number(number, block);
                let time = group.accessed_s(block);
                let state = state(&group, block);
                writeln!(text, "{index:12} {time:12}.000000 {state}").expect("a text takes all");
            }
        }
        text
    }
}

/// s: same-filled, w: written back, h: huge, i: idle, r: recompressed, n: incompressible.
fn state(group: &Group, block: usize) -> String {
    let entry = &group.entries()[block];
    let made = entry.made().unwrap_or_default();
    let flags = [
        ('s', matches!(entry, Entry::Same(_))),
        ('w', matches!(entry, Entry::Written { .. })),
        ('h', made.is_huge),
        ('i', group.idle().contains(block)),
        ('r', made.priority > 0),
        ('n', made.is_incompressible),
    ];
    flags.iter().map(|(letter, is_so)| if *is_so { *letter } else { '.' }).collect()
}
