//! Faults that were read and not yet served: threads that wait for a page.
//!
//! ```text
//!   message ──> ready ──> served
//!                │ ^ ├──> waiting   no room for fresh memory ──> ready again
//!                │ │ ├──> reading   an object is read from an area ──> ready again
//!                │ │ ├──> starving  the pool has no memory for such an object ──> ready again
//!                │ │ └──> awaiting  a huge page is about to be free, and wanted ──> ready again
//!                v │
//!               parked              the process waits for its turn
//! ```
//!
//! Invariant: while the process does not wait for its turn none is parked.

use crate::bell::Bells;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use vmscan::hunger::Hunger;
use vmscan::readahead::Extent;

/// How long after a fault was served the next one is waited for, before anything else is done: a thread that misses
/// here and there comes back at once.
const BREAK_NS: u64 = 20_000;

/// How long after a fault was served something is done for which the next one might have to wait.
const LONG_NS: u64 = 1_000_000;

/// A thread that waits for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The page.
    pub at: usize,
    /// To write it.
    pub write: bool,
    /// It is there, and another process's too, as far as is known.
    pub protected: bool,
    /// When the message was read, in nanoseconds.
    pub since_ns: u64,
    /// How much is to come in with it, once that was decided: a fault that is looked at again is no second one.
    pub extent: Option<Extent>,
    /// It has waited for a read of an area.
    pub has_read: bool,
}

/// All of them.
#[derive(Debug)]
pub struct FaultQueue {
    /// Oldest first.
    ready: VecDeque<Fault>,
    /// On fresh memory, for which there was no room.
    waiting: Vec<Fault>,
    /// On what is being read from an area.
    reading: Vec<Fault>,
    /// On what is in an area, while the pool has no memory for it.
    starving: Vec<Fault>,
    /// Where a huge page is to come, and one is about to be free.
    awaiting: Vec<Fault>,
    /// Of a process that waits for its turn.
    parked: Vec<Fault>,
    /// It does.
    is_parked: bool,
    /// Whether those that wait for room have done so for long, all in all.
    hunger: Hunger,
    /// When the last fault was served.
    served_ns: u64,
    bells: Bells,
}

impl FaultQueue {
    /// An empty queue, and bells that nobody has touched.
    pub fn new(bells: Bells) -> FaultQueue {
        FaultQueue {
            ready: VecDeque::new(),
            waiting: Vec::new(),
            reading: Vec::new(),
            starving: Vec::new(),
            awaiting: Vec::new(),
            parked: Vec::new(),
            is_parked: false,
            hunger: Hunger::default(),
            served_ns: 0,
            bells,
        }
    }

    /// The bells.
    pub fn bells(&self) -> &Bells {
        &self.bells
    }

    /// The same, to ring and to answer.
    pub fn bells_mut(&mut self) -> &mut Bells {
        &mut self.bells
    }

    /// A message of a fault was read. A thread that a signal takes out of its fault sends it again, and again; and who
    /// serves one has all go on that wait for that page.
    pub fn push(&mut self, fault: Fault) {
        let is_same = |other: &&mut Fault| other.at == fault.at && other.protected == fault.protected;
        match self.ready.iter_mut().find(is_same) {
            Some(other) => other.write |= fault.write,
            None => self.ready.push_back(fault),
        }
    }

    /// The oldest that can be served.
    pub fn pop(&mut self) -> Option<Fault> {
        self.ready.pop_front()
    }

    /// The same, room or not.
    pub fn pop_any(&mut self) -> Option<Fault> {
        self.ready.pop_front().or_else(|| self.waiting.pop()).or_else(|| self.awaiting.pop())
    }

    /// How many can be served.
    pub fn len(&self) -> usize {
        self.ready.len()
    }

    /// None can be served.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// There was no room for one.
    pub fn wait(&mut self, fault: Fault) {
        self.waiting.push(fault);
    }

    /// What one needs is being read.
    pub fn await_read(&mut self, fault: Fault) {
        self.reading.push(fault);
    }

    /// Something was read: all that wait for such a thing are looked at again, oldest first.
    pub fn have_read(&mut self) {
        self.ready.extend(self.reading.drain(..));
    }

    /// The pool has no memory for what one needs.
    pub fn starve(&mut self, fault: Fault) {
        self.starving.push(fault);
    }

    /// It may have some: all that wait for it are looked at again, oldest first.
    pub fn may_have_memory(&mut self) {
        self.ready.extend(self.starving.drain(..));
    }

    /// A huge page is about to be free for one.
    pub fn await_huge(&mut self, fault: Fault) {
        self.awaiting.push(fault);
    }

    /// A thread waits for that.
    pub fn is_awaiting_huge(&self) -> bool {
        !self.awaiting.is_empty()
    }

    /// There is one, or those go on without that have waited since then or longer.
    pub fn have_huge(&mut self, is_there: bool, since_ns: u64) {
        let may_go_on = |fault: &mut Fault| is_there || fault.since_ns <= since_ns;
        self.ready.extend(self.awaiting.extract_if(.., may_go_on));
    }

    /// A thread waits for memory of the pool.
    pub fn is_starving(&self) -> bool {
        !self.starving.is_empty()
    }

    /// A thread waits for something that is read.
    pub fn has_reading(&self) -> bool {
        !self.reading.is_empty()
    }

    /// A thread waits for room, for fresh memory or in the pool.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || self.is_starving()
    }

    /// While the process waits for its turn: none is ready, and none waits for room.
    pub fn hold_back(&mut self) {
        if self.is_parked {
            let held = self.ready.drain(..).chain(self.waiting.drain(..)).chain(self.starving.drain(..));
            let held = held.chain(self.awaiting.drain(..));
            self.parked.extend(held);
        }
    }

    /// Nobody waits for room at the beginning of a turn.
    pub fn nobody_waits(&mut self) {
        self.hunger.forget();
    }

    /// Somebody does: all that wait for fresh memory go on if there is room.
    pub fn retry(&mut self, now_ns: u64, has_room: bool) {
        self.hunger.begin(now_ns);
        if has_room && !self.waiting.is_empty() {
            self.hunger.feed(now_ns);
            self.ready.extend(self.waiting.drain(..));
        }
    }

    /// From now on the process waits for its turn, or goes on: how long its threads have waited for it, summed, in
    /// nanoseconds.
    pub fn park(&mut self, is_parked: bool, now_ns: u64) -> u64 {
        if is_parked == self.is_parked {
            return 0;
        }
        self.is_parked = is_parked;
        self.hunger.pause(now_ns);
        let mut waited = 0;
        for fault in self.parked.drain(..) {
            waited += now_ns.saturating_sub(fault.since_ns);
            // What it waits for from here on is a page.
            self.ready.push_back(Fault { since_ns: now_ns, ..fault });
        }
        waited
    }

    /// The process waits for its turn.
    pub fn is_parked(&self) -> bool {
        self.is_parked
    }

    /// Faults of this turn were served.
    pub fn served(&mut self, now_ns: u64) {
        self.served_ns = now_ns;
    }

    /// One was served so lately that the next may come at once.
    pub fn is_soon(&self, now_ns: u64) -> bool {
        self.served_ns != 0 && now_ns < self.served_ns + BREAK_NS
    }

    /// None was served for so long that the next may have to wait for something.
    pub fn is_long_ago(&self, now_ns: u64) -> bool {
        self.served_ns == 0 || now_ns >= self.served_ns + LONG_NS
    }

    /// Those that are not ready.
    fn apart(&self) -> [&Vec<Fault>; 5] {
        [&self.waiting, &self.reading, &self.starving, &self.awaiting, &self.parked]
    }

    /// Takes out what waits in a range; false when nothing did.
    pub fn forget(&mut self, range: &Range<usize>) -> bool {
        let count =
            |queue: &Self| queue.ready.len() + queue.apart().iter().map(|faults| faults.len()).sum::<usize>();
        let before = count(self);
        self.ready.retain(|fault| !range.contains(&fault.at));
        let Self { waiting, reading, starving, awaiting, parked, .. } = self;
        for faults in [waiting, reading, starving, awaiting, parked] {
            faults.retain(|fault| !range.contains(&fault.at));
        }
        count(self) < before
    }

    /// The pages of those that wait for something else than room.
    pub fn pages(&self) -> impl Iterator<Item = usize> {
        let apart = self.reading.iter().chain(&self.awaiting).chain(&self.parked);
        self.ready.iter().chain(apart).map(|fault| fault.at)
    }

    /// Since when the longest waiting thread waits for room, in nanoseconds of the kernel's clock.
    pub fn waiting_since_ns(&self) -> Option<u64> {
        self.waiting.iter().chain(&self.starving).map(|fault| fault.since_ns).min()
    }

    /// How long those threads have waited so far, summed, that still wait; in nanoseconds. Who waits for its turn
    /// does not count.
    pub fn waited_ns(&self, now_ns: u64) -> u64 {
        self.ready
            .iter()
            .chain(&self.waiting)
            .chain(&self.reading)
            .chain(&self.starving)
            .chain(&self.awaiting)
            .map(|fault| now_ns.saturating_sub(fault.since_ns))
            .sum()
    }

    /// How long the process has got nowhere for want of room; in nanoseconds.
    pub fn hungry_ns(&self, now_ns: u64) -> u64 {
        self.hunger.so_far(now_ns)
    }

    /// What does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        if !self.is_parked && !self.parked.is_empty() {
            return Err(alloc::format!("the process has its turn, and does not serve {:x?}", self.parked));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(pages: &[usize]) -> FaultQueue {
        let mut queue = FaultQueue::new(Bells::new(0));
        for &at in pages {
            queue.push(Fault {
                at,
                write: false,
                protected: false,
                since_ns: at as u64,
                extent: None,
                has_read: false,
            });
        }
        queue
    }

    fn left(queue: &mut FaultQueue) -> Vec<usize> {
        core::iter::from_fn(|| queue.pop()).map(|fault| fault.at).collect()
    }

    #[test]
    fn who_waits_for_room_goes_on_when_there_is_some() {
        let mut queue = queue(&[1, 2, 3]);
        let first = queue.pop().unwrap();
        queue.wait(first);
        assert_eq!((queue.len(), queue.waiting_since_ns()), (2, Some(1)));
        queue.retry(10, false);
        assert_eq!((queue.waited_ns(10), queue.hungry_ns(15)), (9 + 8 + 7, 5));
        queue.retry(20, true);
        assert!(!queue.has_waiting());
        assert_eq!(left(&mut queue), [2, 3, 1]);
    }

    #[test]
    fn who_waits_for_memory_of_the_pool_is_hungry_and_not_fed_by_room_for_others() {
        let mut queue = queue(&[1, 2]);
        let first = queue.pop().unwrap();
        queue.starve(first);
        assert_eq!((queue.has_waiting(), queue.waiting_since_ns()), (true, Some(1)));
        queue.retry(10, true);
        queue.retry(4_000_000_010, true);
        assert_eq!((queue.is_starving(), queue.hungry_ns(4_000_000_010)), (true, 4_000_000_000));
        queue.may_have_memory();
        assert!(!queue.has_waiting());
        assert_eq!(left(&mut queue), [2, 1]);
    }

    #[test]
    fn while_the_process_is_parked_nothing_is_ready_and_then_all_is() {
        let mut queue = queue(&[1, 2]);
        let first = queue.pop().unwrap();
        queue.wait(first);
        assert_eq!(queue.park(true, 5), 0);
        queue.hold_back();
        assert!(queue.is_empty() && !queue.has_waiting());
        assert_eq!(queue.pages().count(), 2);
        assert_eq!(queue.check(), Ok(()));
        assert_eq!(queue.park(false, 10), 9 + 8);
        assert_eq!((queue.check(), queue.waited_ns(10)), (Ok(()), 0), "they wait for a page from here on");
        assert_eq!(left(&mut queue), [2, 1]);
    }

    #[test]
    fn faults_of_a_range_that_is_gone_are_taken_out_wherever_they_are() {
        let mut queue = queue(&[1, 2, 3, 4]);
        let first = queue.pop().unwrap();
        queue.wait(first);
        assert!(!queue.forget(&(5..9)));
        assert!(queue.forget(&(1..3)));
        assert_eq!((queue.has_waiting(), left(&mut queue)), (false, Vec::from([3, 4])));
        queue.push(Fault {
            at: 7,
            write: false,
            protected: false,
            since_ns: 0,
            extent: None,
            has_read: false,
        });
        queue.park(true, 0);
        queue.hold_back();
        assert!(queue.forget(&(7..8)));
        queue.park(false, 0);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_fault_that_is_sent_again_is_queued_once_and_who_writes_counts() {
        let mut queue = queue(&[1, 2, 1]);
        let fault = *queue.ready.front().expect("there are two");
        queue.push(Fault { write: true, ..fault });
        queue.push(Fault { protected: true, ..fault });
        let kept: Vec<(usize, bool, bool)> = core::iter::from_fn(|| queue.pop())
            .map(|fault| (fault.at, fault.write, fault.protected))
            .collect();
        assert_eq!(kept, [(1, true, false), (2, false, false), (1, false, true)]);
    }

    #[test]
    fn who_waits_for_a_huge_page_waits_no_longer_than_it_is_worth() {
        let mut queue = queue(&[1, 2, 3]);
        while let Some(fault) = queue.pop() {
            queue.await_huge(fault);
        }
        assert!(queue.is_awaiting_huge() && !queue.has_waiting());
        queue.have_huge(false, 2);
        assert_eq!((left(&mut queue), queue.is_awaiting_huge()), (Vec::from([1, 2]), true));
        queue.have_huge(true, 0);
        assert_eq!((left(&mut queue), queue.is_awaiting_huge()), (Vec::from([3]), false));
    }
}
