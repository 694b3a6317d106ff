//! How long the pager sleeps where nothing wakes it. Of memory that is registered each miss wakes it, and of mappings
//! larger than what is left of the room it is told (grow.rs); what else comes it has to look for.

/// How long it sleeps at least, in nanoseconds; and at most where all is still, unless there is much room.
pub const LEAST_NS: u64 = 500_000;
const STILL_NS: u64 = 4_000_000;

/// The most at all.
const MOST_NS: u64 = 20_000_000;

/// A process fills no more than so many bytes in a nanosecond.
const PACE: u64 = 4;

/// One sleep after the other.
#[derive(Default)]
pub struct IdleSleep {
    ns: u64,
    own: usize,
    faults: u64,
}

impl IdleSleep {
    /// How long it may sleep now, in nanoseconds: so long that the process, which holds `own` bytes and has missed
    /// `faults` times, could not have filled the `room` that it has left; and twice as long each time as long as it
    /// neither grows nor misses. To look 2,000 times a second costs several percent of a CPU, for each process.
    pub fn next(&mut self, room: u64, own: usize, faults: u64) -> u64 {
        let least = (room / PACE).clamp(LEAST_NS, MOST_NS);
        let is_still = own <= self.own && faults == self.faults;
        let ns = if is_still { (2 * self.ns).clamp(least, least.max(STILL_NS)) } else { least };
        *self = IdleSleep { ns, own, faults };
        ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_are_longer_while_all_is_still_and_short_where_there_is_little_room() {
        let mut idle = IdleSleep::default();
        let mut sleeps = |room, own, faults| [(); 5].map(|_| idle.next(room, own, faults) / 1000);
        assert_eq!(sleeps(1 << 20, 100, 7), [500, 1000, 2000, 4000, 4000]);
        assert_eq!(sleeps(1 << 20, 100, 8)[..2], [500, 1000], "it has missed");
        assert_eq!(sleeps(1 << 20, 101, 8)[..2], [500, 1000], "it has grown");
        assert_eq!(sleeps(40_000_000, 101, 8), [10_000; 5], "there is room for as long");
        assert_eq!(sleeps(1 << 30, 0, 8), [20_000; 5]);
    }
}
