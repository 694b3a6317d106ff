//! Test mode: requests of areas that end as a seed says. The engine's thread goes on while one is late.
//!
//! ```text
//!   begin ──> the request, or a part of it, goes to the queue ──> end ──> told at once, or late
//!        └──> nothing is read or written, and it has ended  ───────^
//! ```

use alloc::vec::Vec;
use swap::fate::{Dice, End, Fate};
use uffd::sys::Errno;

/// What a request has come to: its token, and the result.
pub type Ending = (u64, Result<(), Errno>);

/// What is told when it is due.
struct Late {
    due_ns: u64,
    ending: Ending,
}

/// The fates of requests, by their tokens. Without faults it knows of none.
#[derive(Default)]
pub struct Fates {
    dice: Option<Dice>,
    /// Of requests that are with the queue.
    begun: Vec<(u64, Fate)>,
    /// Ended and not told.
    late: Vec<Late>,
}

impl Fates {
    /// Those of requests that end as these say.
    pub fn new(dice: Dice) -> Fates {
        Fates { dice: Some(dice), ..Fates::default() }
    }

    /// A read is about to be made. How many of its bytes are to be read; 0: none, and it has ended.
    pub fn begin_read(&mut self, token: u64, bytes: usize, align: usize, now_ns: u64) -> usize {
        let Some(dice) = &mut self.dice else { return bytes };
        let fate = dice.read(bytes, align);
        self.begin(token, fate, bytes, now_ns)
    }

    /// The same of a write.
    pub fn begin_write(&mut self, token: u64, bytes: usize, align: usize, now_ns: u64) -> usize {
        let Some(dice) = &mut self.dice else { return bytes };
        let fate = dice.write(bytes, align);
        self.begin(token, fate, bytes, now_ns)
    }

    fn begin(&mut self, token: u64, fate: Fate, bytes: usize, now_ns: u64) -> usize {
        let result = match fate.end {
            End::Lost => Ok(()),
            End::Error(errno) => Err(errno),
            End::Part(0) => Err(Errno::EIO),
            End::Part(part) => {
                self.begun.push((token, fate));
                return part;
            }
            End::Whole | End::Wrong(_) => {
                self.begun.push((token, fate));
                return bytes;
            }
        };
        self.late.push(Late { due_ns: now_ns + fate.late_ns, ending: (token, result) });
        0
    }

    /// Which bit of a request's bytes is to be the other one, if any is: of a write that is about to be made, or of a
    /// read that has been.
    pub fn wrong_bit(&self, token: u64) -> Option<usize> {
        let (_, fate) = self.begun.iter().find(|(begun, _)| *begun == token)?;
        if let End::Wrong(bit) = fate.end { Some(bit) } else { None }
    }

    /// A request has ended. `None`: it is told later.
    pub fn end(&mut self, ending: Ending, now_ns: u64) -> Option<Ending> {
        let (token, mut result) = ending;
        let Some(at) = self.begun.iter().position(|(begun, _)| *begun == token) else { return Some(ending) };
        let (_, Fate { late_ns, end }) = self.begun.swap_remove(at);
        if let End::Part(_) = end {
            result = Err(Errno::EIO);
        }
        if late_ns == 0 {
            return Some((token, result));
        }
        self.late.push(Late { due_ns: now_ns + late_ns, ending: (token, result) });
        None
    }

    /// One that is due by now.
    pub fn next(&mut self, now_ns: u64) -> Option<Ending> {
        let at = self.late.iter().position(|late| late.due_ns <= now_ns)?;
        Some(self.late.remove(at).ending)
    }

    /// When the next one is due; `None` where none is late.
    pub fn due_ns(&self) -> Option<u64> {
        self.late.iter().map(|late| late.due_ns).min()
    }

    /// How many have ended and were not told; and how many of them are not due by now.
    pub fn untold(&self, now_ns: u64) -> (usize, usize) {
        (self.late.len(), self.late.iter().filter(|late| late.due_ns > now_ns).count())
    }

    /// Nobody is to be told any more.
    pub fn forget(&mut self) {
        (self.begun, self.late) = (Vec::new(), Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swap::fate::Faults;

    fn fates(faults: Faults) -> Fates {
        Fates::new(Dice::new(3, faults))
    }

    #[test]
    fn without_faults_all_goes_to_the_queue_and_is_told_at_once() {
        let mut fates = Fates::default();
        assert_eq!((fates.begin_read(1, 512, 1, 0), fates.begin_write(2, 512, 1, 0)), (512, 512));
        for ending in [(1, Ok(())), (2, Err(Errno::EIO))] {
            assert_eq!(fates.end(ending, 0), Some(ending));
        }
        assert_eq!((fates.due_ns(), fates.untold(0)), (None, (0, 0)));
    }

    #[test]
    fn what_is_late_is_told_when_it_is_due_and_not_before() {
        let mut fates = fates(Faults { slow: 1, ..Faults::default() });
        assert_eq!(fates.begin_read(5, 512, 1, 100), 512);
        assert_eq!(fates.end((5, Ok(())), 1000), None);
        let due = fates.due_ns().unwrap();
        assert!(due > 1000);
        assert_eq!((fates.next(due - 1), fates.untold(due - 1)), (None, (1, 1)));
        assert_eq!(fates.untold(due), (1, 0));
        assert_eq!((fates.next(due), fates.untold(due)), (Some((5, Ok(()))), (0, 0)));
    }

    /// What is told of a request that the queue does in full; of how many bytes it is asked, and whether one is wrong.
    fn all(faults: Faults, is_read: bool) -> (Result<(), Errno>, usize, bool) {
        let mut fates = fates(faults);
        let asked = match is_read {
            true => fates.begin_read(9, 8192, 4096, 0),
            false => fates.begin_write(9, 8192, 4096, 0),
        };
        let is_wrong = fates.wrong_bit(9).is_some();
        let told = if asked == 0 { fates.next(0) } else { fates.end((9, Ok(())), 0) };
        (told.unwrap().1, asked, is_wrong)
    }

    #[test]
    fn each_fault_reaches_whoever_asked_or_the_bytes() {
        let (none, eio) = (Faults::default(), Err(Errno::EIO));
        assert_eq!(all(Faults { read_errors: 1, ..none }, true), (eio, 0, false));
        assert_eq!(all(Faults { write_errors: 1, ..none }, false), (eio, 0, false));
        assert_eq!(all(Faults { full: 1, ..none }, false), (Err(Errno::ENOSPC), 0, false));
        assert_eq!(all(Faults { lost_writes: 1, ..none }, false), (Ok(()), 0, false));
        assert_eq!(all(Faults { wrong_reads: 1, ..none }, true), (Ok(()), 8192, true));
        assert_eq!(all(Faults { wrong_writes: 1, ..none }, false), (Ok(()), 8192, true));
        for (faults, is_read) in
            [(Faults { short_reads: 1, ..none }, true), (Faults { short_writes: 1, ..none }, false)]
        {
            let (told, asked, is_wrong) = all(faults, is_read);
            assert!(told == eio && asked < 8192 && !is_wrong, "{faults:?}: {told:?} {asked}");
        }
    }
}
