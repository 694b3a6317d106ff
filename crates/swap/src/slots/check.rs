//! The walker: recomputes all that [`Slots`] knows.

use super::Slots;
use super::cluster::Room;
use crate::{CLUSTER, ensure};
use alloc::format;
use alloc::string::String;

impl Slots {
    /// Says what is wrong, if anything is. See the invariants of this module.
    pub fn check(&self) -> Result<(), String> {
        let (mut free, mut used, mut listed) = (0, 0, 0);
        for (number, cluster) in &self.clusters {
            let name = |what: &str| format!("cluster {number}: {what}");
            let sets = [&cluster.reserved, &cluster.used, &cluster.dead];
            let count: u32 = sets.iter().map(|set| set.count()).sum();
            ensure(count == cluster.busy().count(), || name("a slot is in two states"))?;
            ensure(count + cluster.free() == CLUSTER, || name("slots are missing"))?;
            let is_right = |slot: u32| {
                (cluster.objects[slot as usize] != 0) == cluster.used.has(slot)
                    && (!cluster.shared.has(slot) || cluster.used.has(slot))
            };
            ensure((0..CLUSTER).all(is_right), || name("objects, used and shared slots disagree"))?;
            ensure(self.table.has(self.row, *number), || name("the row has no bit"))?;
            let is_idle = cluster.used.is_empty() && cluster.reserved.is_empty() && !cluster.dead.is_empty();
            ensure(!is_idle, || name("only dead slots are left"))?;
            used += cluster.used.count() as u64;
            let entry = (cluster.free(), *number);
            let lists = &self.orders[cluster.order as usize];
            let is_in =
                [self.empty.contains(number), lists.partial.contains(&entry), lists.holes.contains(&entry)];
            let room = if self.is_open(*number) { cluster.room() } else { Room::None };
            let expected = [room == Room::All, room == Room::Run, room == Room::Holes];
            ensure(is_in == expected, || name(&format!("lists {is_in:?}, and {expected:?} is right")))?;
            listed += u32::from(room != Room::None);
            free += if self.is_open(*number) { cluster.free() as u64 } else { 0 };
        }
        let lengths = self.orders.iter().map(|lists| lists.partial.len() + lists.holes.len());
        let length = lengths.sum::<usize>() + self.empty.len();
        ensure(length == listed as usize, || format!("{length} in lists, {listed} have room"))?;
        ensure((free, used) == (self.free, self.used), || format!("counted {free} free and {used} used"))?;
        let bits = (0..self.table.clusters()).filter(|number| self.table.has(self.row, *number)).count();
        ensure(bits == self.clusters.len(), || format!("{bits} bits, {} clusters", self.clusters.len()))
    }
}
