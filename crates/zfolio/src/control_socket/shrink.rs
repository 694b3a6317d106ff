//! `zfolio reclaim`, as the run's side does it: engines are asked, round by round, until enough is out or none of them
//! brings more.
//!
//! ```text
//!   what is left to reclaim ── in proportion to what each holds beside its pool ──> requests to engines
//!        ^                                                                               │
//!        +──── those that have brought all that they were asked for are asked again <────+
//! ```

use super::subject::{Subject, has_engine};
use super::tunables::MOST;
use crate::size::Bytes;
use ask::{Answer, Work};
use memcg::{Memcg, Slot};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// A process is asked for no less, in bytes: its engine takes windows.
const LEAST: u64 = 64 << 10;

/// A request to an engine.
struct Asked {
    slot: &'static Slot,
    /// The process that has the slot, or had.
    pid: u32,
    number: u32,
    bytes: u64,
    /// How much it has brought, in bytes, when it is done.
    brought: Option<u64>,
}

/// What is under way for one who has asked. Dropped, it withdraws what it has asked for.
pub struct Shrink {
    wanted: u64,
    /// What earlier rounds have brought, in bytes.
    got: u64,
    until: Instant,
    asked: Vec<Asked>,
}

impl Shrink {
    /// Begins. An answer where there is nothing to begin with.
    pub fn begin(
        memcg: &'static Memcg,
        subject: Subject<'static>,
        bytes: u64,
        timeout: Duration,
    ) -> Result<Shrink, Answer> {
        let refused = |why: &str| Err(Answer::error(1, why));
        subject.check().map_err(|why| Answer::error(1, why))?;
        if !memcg.lets_out() {
            return refused("nothing new goes into the pool (enabled=N), and there is no swap area");
        }
        if memcg.settings.evict_all != 0 {
            return refused("everything goes out all the time in this run, which is a test");
        }
        let slots: Vec<&'static Slot> = match subject {
            Subject::Process(slot) => vec![slot],
            _ => memcg.used().iter().filter(|slot| has_engine(slot)).collect(),
        };
        if slots.is_empty() {
            return refused("no process of this run has an engine: they are small, or cannot be managed");
        }
        let until = Instant::now() + timeout;
        let mut shrink = Shrink { wanted: bytes, got: 0, until, asked: Vec::new() };
        if bytes > 0 && !shrink.ask(&slots) {
            return refused("it is shrinking already, for another zfolio reclaim");
        }
        Ok(shrink)
    }

    /// Asks each for its part of what is left. False where none could be asked.
    fn ask(&mut self, slots: &[&'static Slot]) -> bool {
        let left = self.wanted.saturating_sub(self.got);
        let weights: Vec<u64> = slots.iter().map(|slot| weight(slot)).collect();
        let all: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
        self.asked = slots
            .iter()
            .zip(weights)
            .filter_map(|(&slot, weight)| {
                let part = (u128::from(left) * u128::from(weight)).div_ceil(all.max(1)) as u64;
                // One alone is asked for exactly that.
                let bytes = if slots.len() > 1 { part.max(LEAST) } else { left };
                let number = slot.reclaim.ask(bytes)?;
                Some(Asked { slot, pid: slot.pid.load(Acquire), number, bytes, brought: None })
            })
            .collect();
        !self.asked.is_empty()
    }

    fn answer(&self, is_late: bool) -> Answer {
        let (got, wanted) = (Bytes(self.got), Bytes(self.wanted));
        if self.got >= self.wanted {
            return Answer::lines(vec![format!("reclaimed {got}")]);
        }
        let why = if is_late { "the time is over" } else { "no more goes out, or it comes back as fast" };
        let lines = vec![format!("reclaimed {got} of {wanted}")];
        Answer { status: 1, lines, error: Some(why.into()) }
    }

    fn withdraw(&mut self) {
        for asked in self.asked.drain(..) {
            asked.slot.reclaim.withdraw(asked.number);
        }
    }
}

impl Work for Shrink {
    fn look(&mut self, now: Instant) -> Option<Answer> {
        for asked in self.asked.iter_mut().filter(|asked| asked.brought.is_none()) {
            let (bytes, is_done) = answered(asked);
            let lives = asked.slot.pid.load(Acquire) == asked.pid && has_engine(asked.slot);
            if is_done || !lives {
                asked.brought = Some(if lives { bytes } else { 0 });
            }
        }
        let is_late = now >= self.until;
        if !is_late && self.asked.iter().any(|asked| asked.brought.is_none()) {
            return None;
        }
        let brought = |asked: &Asked| asked.brought.unwrap_or_else(|| answered(asked).0);
        self.got = self.asked.iter().map(brought).fold(self.got, u64::saturating_add);
        let has_more = |asked: &&Asked| asked.brought.is_some_and(|bytes| bytes >= asked.bytes);
        let more: Vec<&'static Slot> = self.asked.iter().filter(has_more).map(|asked| asked.slot).collect();
        self.withdraw();
        if self.got < self.wanted && !is_late && !more.is_empty() && self.ask(&more) {
            return None;
        }
        Some(self.answer(is_late))
    }
}

impl Drop for Shrink {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// By what each is asked: what it holds beside its pool, in bytes.
fn weight(slot: &Slot) -> u64 {
    let (footprint, pool) = (slot.footprint_bytes.load(Relaxed), slot.pool_bytes.load(Relaxed));
    footprint.saturating_sub(pool).clamp(1, 1 << 47)
}

/// What an engine has brought, and whether that is all. Any process of the run can write it: what cannot be is cut off.
fn answered(asked: &Asked) -> (u64, bool) {
    let (bytes, is_done) = asked.slot.reclaim.answer(asked.number);
    (bytes.min(MOST), is_done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memcg::Settings;

    fn memcg() -> &'static Memcg {
        // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
        let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
        memcg.init(1 << 30, Settings::default());
        Box::leak(memcg)
    }

    /// A process with an engine, that holds so many MiB.
    fn process(memcg: &'static Memcg, pid: u32, mib: u64) -> &'static Slot {
        let slot = memcg.claim(pid).unwrap();
        slot.begin(pid, pid + 100);
        memcg.publish(slot, mib << 20, mib << 20, 0, 0);
        slot
    }

    /// Its engine brings so many MiB at most of what it was asked for; what that was, in MiB.
    fn bring(slot: &Slot, most_mib: u64) -> Option<u64> {
        let (number, bytes) = slot.reclaim.asked()?;
        slot.reclaim.got(bytes.min(most_mib << 20));
        slot.reclaim.end(number);
        Some(bytes >> 20)
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn one_process_brings_what_it_can() {
        let memcg = memcg();
        let slot = process(memcg, 7, 100);
        let begin = |mib: u64| Shrink::begin(memcg, Subject::Process(slot), mib << 20, MINUTE);
        let mut shrink = begin(60).ok().unwrap();
        let now = Instant::now();
        assert_eq!(shrink.look(now), None);
        let refused = begin(1).err().unwrap();
        assert_eq!((refused.status, refused.error.unwrap().contains("another zfolio reclaim")), (1, true));
        assert_eq!(bring(slot, 100), Some(60));
        assert_eq!(shrink.look(now), Some(Answer::lines(vec!["reclaimed 60 MiB".into()])));
        let mut shrink = begin(60).ok().unwrap();
        bring(slot, 15);
        let answer = shrink.look(now).unwrap();
        assert_eq!((answer.status, &answer.lines[0][..]), (1, "reclaimed 15 MiB of 60 MiB"));
        assert!(answer.error.unwrap().contains("no more goes out"));
    }

    #[test]
    fn a_run_divides_it_and_asks_those_again_that_have_more() {
        let memcg = memcg();
        let [large, small] = [(7, 300), (8, 100)].map(|(pid, mib)| process(memcg, pid, mib));
        let mut shrink = Shrink::begin(memcg, Subject::Run, 80 << 20, MINUTE).ok().unwrap();
        let now = Instant::now();
        assert_eq!((bring(large, 100), bring(small, 5)), (Some(60), Some(20)));
        assert_eq!(shrink.look(now), None);
        assert_eq!((bring(large, 100), bring(small, 5)), (Some(15), None), "it had brought less");
        assert_eq!(shrink.look(now), Some(Answer::lines(vec!["reclaimed 80 MiB".into()])));
    }

    #[test]
    fn what_is_late_dead_or_left_is_withdrawn() {
        let memcg = memcg();
        let slot = process(memcg, 7, 100);
        let begin = || Shrink::begin(memcg, Subject::Run, 50 << 20, MINUTE).ok().unwrap();
        let mut late = begin();
        slot.reclaim.got(9 << 20);
        let answer = late.look(Instant::now() + MINUTE).unwrap();
        assert_eq!((answer.status, &answer.lines[0][..]), (1, "reclaimed 9 MiB of 50 MiB"));
        assert!(answer.error.unwrap().contains("the time is over"));
        assert_eq!(bring(slot, 100), Some(0), "it is withdrawn");
        drop(begin());
        assert_eq!(bring(slot, 100), Some(0), "who has asked has gone");
        let mut dead = begin();
        memcg.release(slot, 5);
        let answer = dead.look(Instant::now()).unwrap();
        assert_eq!((answer.status, &answer.lines[0][..]), (1, "reclaimed 0 B of 50 MiB"));
        let refused = Shrink::begin(memcg, Subject::Run, 1, MINUTE).err().unwrap();
        assert!(refused.error.unwrap().contains("no process of this run has an engine"));
    }

    #[test]
    fn where_nothing_may_go_out_it_is_said() {
        let memcg = memcg();
        let slot = process(memcg, 7, 100);
        memcg.tunables.enabled.store(0, Relaxed);
        let refused = Shrink::begin(memcg, Subject::Process(slot), 1, MINUTE).err().unwrap();
        assert!(refused.error.unwrap().contains("enabled=N"));
        let refused = Shrink::begin(memcg, Subject::WithoutEngine(9), 1, MINUTE).err().unwrap();
        assert!(refused.error.unwrap().contains("process 9 has no engine"));
    }
}
