//! A request of the user's that the process shrink now (`zfolio reclaim`), as its engine does it.

use crate::pager::Engine;
use memcg::Slot;
use memcg::reclaim::ReclaimRequest;
use vmscan::asked::{Asked, Progress};

/// The request that is under way, by its number.
#[derive(Default)]
pub struct UnderWay(Option<(u32, Asked)>);

impl UnderWay {
    /// Looks whether there is one, and how far it is. The process holds `own` bytes of its own.
    pub fn tend(&mut self, now: u64, own: usize, slot: &Slot, pager: &mut Engine) {
        let before = self.target();
        let target = self.look(now, own, &slot.reclaim);
        if target != before {
            pager.ask(target);
        }
    }

    fn target(&self) -> Option<usize> {
        self.0.as_ref().map(|(_, asked)| asked.target())
    }

    /// What the footprint is to come down to from now on, if anything.
    fn look(&mut self, now: u64, own: usize, reclaim: &ReclaimRequest) -> Option<usize> {
        let Some((number, bytes)) = reclaim.asked() else {
            self.0 = None;
            return None;
        };
        if self.0.is_none_or(|(known, _)| known != number) {
            self.0 = Some((number, Asked::begin(own, bytes as usize, now)));
        }
        let (_, asked) = self.0.as_mut()?;
        reclaim.got(asked.got(own) as u64);
        // One that was withdrawn asks for nothing.
        if bytes == 0 || asked.look(own, now) != Progress::GoesOn {
            reclaim.end(number);
            self.0 = None;
        }
        self.target()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_request_has_a_target_until_it_is_done_given_up_or_withdrawn() {
        let (reclaim, mut request) = (ReclaimRequest::default(), UnderWay::default());
        assert_eq!(request.look(0, 100 << 20, &reclaim), None);
        let first = reclaim.ask(60 << 20).unwrap();
        assert_eq!(request.look(1, 100 << 20, &reclaim), Some(40 << 20));
        assert_eq!(request.look(2, 70 << 20, &reclaim), Some(40 << 20));
        assert_eq!(reclaim.answer(first), (30 << 20, false));
        assert_eq!(request.look(3, 39 << 20, &reclaim), None);
        assert_eq!(reclaim.answer(first), (61 << 20, true));
        let second = reclaim.ask(20 << 20).unwrap();
        assert_eq!(request.look(4, 39 << 20, &reclaim), Some(19 << 20));
        let looks = (1..=200).map(|look| request.look(4 + look * 10 * MS, 39 << 20, &reclaim));
        assert_eq!(looks.filter(Option::is_some).count(), 99, "nothing goes out");
        assert_eq!(reclaim.answer(second), (0, true));
        let third = reclaim.ask(20 << 20).unwrap();
        assert_eq!(request.look(3000 * MS, 39 << 20, &reclaim), Some(19 << 20));
        reclaim.withdraw(third);
        assert_eq!(request.look(3001 * MS, 30 << 20, &reclaim), None);
        assert_eq!(reclaim.answer(third), (9 << 20, true));
    }
}
