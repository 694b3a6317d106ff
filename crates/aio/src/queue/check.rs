//! The walker of the queue's invariants.

use super::{Lane, Queue};
use crate::request::Way;

fn ensure(is_right: bool, wrong: impl FnOnce() -> String) -> Result<(), String> {
    if is_right { Ok(()) } else { Err(wrong()) }
}

impl Queue {
    /// Counts everything anew, and says what does not agree.
    pub(super) fn check(&self) -> Result<(), String> {
        let held = self.requests.iter().flatten().count();
        ensure(held + self.free.len() == self.requests.len(), || {
            format!("{held} held, {:?} free", self.free)
        })?;
        ensure(self.pushed.is_empty(), || format!("{:?} left on the submission ring", self.pushed))?;
        ensure(self.under_way() <= self.entries, || format!("{} under way", self.under_way()))?;
        self.check_lane(&self.reads, Way::Read)?;
        self.check_lane(&self.writes, Way::Write)?;
        let most = self.entries.div_ceil(2);
        ensure(self.writes.with_kernel <= most, || format!("{} writes under way", self.writes.with_kernel))
    }

    fn check_lane(&self, lane: &Lane, way: Way) -> Result<(), String> {
        let of_way = || self.requests.iter().flatten().filter(|request| request.way == way);
        let is_of_way =
            |slot: u32| self.requests[slot as usize].as_ref().is_some_and(|request| request.way == way);
        let held = of_way().count();
        let under_way = of_way().filter(|request| request.is_under_way).count();
        let finished = self.finished.iter().filter(|(slot, _)| is_of_way(*slot)).count();
        let waits = |slot: &u32| {
            is_of_way(*slot) && self.requests[*slot as usize].as_ref().is_some_and(|one| !one.is_under_way)
        };
        let counted = (held, under_way, held - under_way - finished);
        let told = (lane.held, lane.with_kernel, lane.waiting.len());
        ensure(counted == told, || format!("{way:?}: held, under way, waiting: {told:?} for {counted:?}"))?;
        ensure(held <= self.entries, || format!("{way:?}: {held} held"))?;
        ensure(lane.waiting.iter().all(waits), || format!("{way:?}: {:?} wait", lane.waiting))
    }
}
