//! Shares: how the limit of a run is divided among its processes.
//!
//! ```text
//!   wants less than its equal part ──> has what it uses, and room to grow
//!   wants more, or is quiet        ──> competes for the rest: who has the *stronger claim* gets a step from who *resists* least
//! ```
//!
//! The measure of need is the *gain*: how often one more page of memory would be used again. A process whose near
//! refaults (those of pages that went out not long ago, heat.rs) come `r` in a second, each after `d` others had gone
//! out, would with `d` more pages have none of them: `r / d` for a page. So a scan of more than there is, which
//! refaults much, but far, gains little; a working set that misses a little of what it needs gains much; fresh memory
//! gains nothing, because whatever goes out for it is not asked for again, and idle memory gains nothing either. Nobody
//! knows what a process that faults on nothing does with its memory: a step is taken from it, and if that comes back as
//! refaults, their gain is its *shield*, which lasts for some seconds. So it is asked again and again, ever so little.
//!
//! Invariants of [`divide`], where `held` is the larger of share and footprint:
//! 1. The sum of `held` and of the pot is no more than what is usable, unless it was before: then it does not grow.
//!    (Who has not even the least, a process that has just begun, gets that at once.)
//! 2. No share falls below the floor, nor by more than a step below the footprint: the engine must be able to follow.
//! 3. A share grows only by memory that others have given up already.
//! 4. All that nobody is to have is in the pot, from which whoever grows may take at once.
//! 5. Claims and resistance are compared by their magnitude in powers of two, and one must be two above the other: what
//!    is about equal stays as it is.

use crate::PAGE;
use alloc::vec;
use alloc::vec::Vec;

#[cfg(test)]
mod sim;

/// No process that is not quiet has less, if it wants as much and there is enough for all to have twice that; in bytes.
pub const FLOOR: u64 = 8 << 20;

/// Nor less than this, however many there are.
const LEAST_FLOOR: u64 = 1 << 20;

/// What a process needs that waits for its turn, or is quiet, besides what is out: its engine's own, and some room.
const PARKED_FLOOR: u64 = 2 << 20;

/// From so little that is out nothing can be said of how it shrinks; in bytes.
pub const TOO_LITTLE: u64 = 4 << 20;

/// How much a process has beyond its footprint, at least, so that it may grow between two looks; else an eighth of it.
const ROOM: u64 = 4 << 20;

/// How far a share may be below the footprint, so that the engine has something to do and can do it until the next
/// look; else a part in so many of it.
const LAG: u64 = 4 << 20;
const LAG_PART: u64 = 32;

/// A distance is counted as no less, in pages: a step is not smaller.
const LEAST_DISTANCE: u64 = 256;

/// Gains are averaged over so many milliseconds.
const AVERAGE_MS: u64 = 200;

/// A shield lasts so many milliseconds: after each of them a third of it is left.
const SHIELD_MS: u64 = 8000;

/// How long it takes to move all that there is from one process to another, in milliseconds: when the claim is two
/// magnitudes above, and when it is more, or of one that has less than its equal part.
const MOVE_MS: u64 = 6400;
const MOVE_FAST_MS: u64 = 800;

/// No more is moved at a look than in so many milliseconds.
const LONGEST_MS: u64 = 1000;

/// How long a thread may wait for room before nothing else is more urgent, in milliseconds.
pub const URGENT_MS: u64 = 500;

/// Who has used nothing that it had not got for so many milliseconds is quiet.
const QUIET_MS: u64 = 500;

/// So many of those with the strongest claims get something at a look.
const TAKERS: usize = 8;

/// Magnitudes of claims that are no gains. In uses of a page in 1,000 seconds: of a process that grows, or faults on
/// what went out long ago: 10.
const GROWING: u32 = 4;
/// Of such a process that has less than its equal part: 100.
const ENTITLED: u32 = 7;
/// Of one whose threads wait and wait.
const URGENT: u32 = 64;

/// Who has so little less than its equal part, one part in so many, has it.
const NEAR_FAIR: u64 = 16;

/// How much larger a claim must be than what it is made against.
const HYSTERESIS: u32 = 2;

/// What is known of a process, and what it is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Bytes that it holds.
    pub footprint: u64,
    /// Bytes that it would hold alone.
    pub wanted: u64,
    /// Bytes of what is out, uncompressed.
    pub stored: u64,
    /// Bytes of what is out, compressed, that can go nowhere else, and count in the footprint.
    pub pool: u64,
    /// Bytes that its engine keeps free below a limit that is just enough for it
    /// ([`kept_free`](crate::watermark::Watermarks::kept_free)).
    pub kept_free: u64,
    /// Bytes that it may hold; what [`divide`] changes.
    pub share: u64,
    /// Near refaults since the last look, in pages, and the sum of their distances, in pages.
    pub near: u64,
    /// See `near`.
    pub distance: u64,
    /// Faults of any kind since the last look.
    pub misses: u64,
    /// How long one of its threads has been waiting for room.
    pub waiting_ms: u64,
    /// It waits for its turn (load.rs), and needs nothing meanwhile: others may have what it has.
    pub is_parked: bool,
    /// What is remembered from look to look.
    pub past: Past,
}

/// What is remembered of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// Uses of one more page in 1,000 seconds, averaged.
    gain: u64,
    /// The highest gain of late.
    shield: u64,
    footprint: u64,
    /// For how many milliseconds it has not been busy.
    quiet_ms: u64,
}

/// How large a gain is, as a power of two.
fn magnitude(gain: u64) -> u32 {
    u64::BITS - gain.leading_zeros()
}

impl Member {
    /// What counts as its.
    fn held(&self) -> u64 {
        self.share.max(self.footprint)
    }

    fn room(&self) -> u64 {
        (self.footprint / 8).max(ROOM)
    }

    /// All that it could use by the next look.
    fn demand(&self) -> u64 {
        self.footprint + self.room()
    }

    /// It has not been busy for long: what it has it may not need.
    fn is_quiet(&self) -> bool {
        self.past.quiet_ms >= QUIET_MS
    }

    /// What it could use by the next look where there is not enough for all.
    fn need(&self) -> u64 {
        if self.is_busy() { self.demand() } else { self.footprint + self.kept_free }
    }

    /// How far its share may fall now.
    fn bottom(&self, floor: u64) -> u64 {
        self.footprint.saturating_sub((self.footprint / LAG_PART).max(LAG)).max(floor)
    }

    /// With less it could not keep what is out and go on.
    fn kept(&self, floor: u64) -> u64 {
        (self.pool + self.pool / 8).saturating_add(floor)
    }

    /// What is left of it once all that it has is out, which shrinks as much as all of `stored` bytes shrink to `pool`.
    pub fn least(&self, stored: u64, pool: u64) -> u64 {
        let pool = if stored < TOO_LITTLE {
            self.wanted / 2
        } else {
            (self.wanted as u128 * pool as u128 / stored as u128) as u64
        };
        PARKED_FLOOR + pool
    }

    fn floor(&self, usable: u64, count: u64) -> u64 {
        if self.is_parked || self.is_quiet() {
            return PARKED_FLOOR;
        }
        let wanted = self.need().max(self.wanted + self.kept_free);
        wanted.min(FLOOR).min(usable / (2 * count)).max(LEAST_FLOOR)
    }

    /// Takes note of what has happened in `ms`, when it could come to have no more than `most` bytes.
    fn learn(&mut self, ms: u64, most: u64) {
        if self.is_parked {
            (self.past.gain, self.past.shield, self.past.quiet_ms) = (0, 0, 0);
            return;
        }
        self.past.quiet_ms = if self.is_busy() { 0 } else { self.past.quiet_ms + ms };
        // Without one there is no distance either.
        let distance = self.distance.checked_div(self.near).unwrap_or(0).max(LEAST_DISTANCE);
        let mut gain = self.near.saturating_mul(1_000_000) / ms.saturating_mul(distance);
        // With all that it could have it would still not fit.
        if self.share.saturating_add(distance.saturating_mul(PAGE as u64)) > most {
            gain /= 8;
        }
        let part = ms.min(AVERAGE_MS);
        self.past.gain = (gain * part + self.past.gain * (AVERAGE_MS - part)) / AVERAGE_MS;
        let decay = (self.past.shield * ms.min(SHIELD_MS)).div_ceil(SHIELD_MS);
        self.past.shield = (self.past.shield - decay).max(self.past.gain);
    }

    /// It uses memory that it has not got: fresh, or out.
    fn is_busy(&self) -> bool {
        !self.is_parked && (self.misses > 0 || self.waiting_ms > 0 || self.footprint > self.past.footprint)
    }

    /// How strongly it claims more, where `target` is what it is to have and `fair` its equal part.
    fn claim(&self, target: u64, fair: u64) -> u32 {
        let base = match (self.is_busy(), target < fair - fair / NEAR_FAIR) {
            _ if self.waiting_ms >= URGENT_MS && !self.is_parked => URGENT,
            (true, true) => ENTITLED,
            (true, false) => GROWING,
            _ => 0,
        };
        base.max(magnitude(self.past.gain))
    }

    /// How strongly it resists to have less.
    fn resistance(&self, target: u64, fair: u64) -> u32 {
        self.claim(target, fair).max(magnitude(self.past.shield))
    }
}

/// Divides `usable` bytes: changes the members' shares. Returns how much is left for whoever grows. `ms` have passed
/// since the last look.
pub fn divide(usable: u64, ms: u64, members: &mut [Member]) -> u64 {
    if members.is_empty() {
        return usable;
    }
    let ms = ms.max(1);
    let count = members.len() as u64;
    let floors: Vec<u64> = members.iter().map(|m| m.floor(usable, count)).collect();
    let all_floors: u64 = floors.iter().sum();
    for (member, floor) in members.iter_mut().zip(&floors) {
        member.learn(ms, usable.saturating_sub(all_floors - floor));
    }
    // After a long pause nobody gets everything at once.
    let targets = targets(usable, ms.min(LONGEST_MS), members, &floors);
    let pot = approach(usable, members, &floors, &targets);
    for member in members {
        member.past.footprint = member.footprint;
    }
    pot
}

/// What each is to have in the end.
fn targets(usable: u64, ms: u64, members: &[Member], floors: &[u64]) -> Vec<u64> {
    // What each would use: if that is there, all have it.
    let mut targets: Vec<u64> = members.iter().zip(floors).map(|(m, floor)| m.demand().max(*floor)).collect();
    if targets.iter().sum::<u64>() <= usable {
        return targets;
    }
    // The equal part of those who want more than it. Of the others only what is quiet can be spared.
    let wish = |m: &Member| if m.is_parked { 0 } else { m.demand().max(m.wanted + m.room()) };
    let wishes: Vec<u64> = members.iter().map(wish).collect();
    let fair = level(&wishes, &vec![0; wishes.len()], usable);
    let small: Vec<bool> =
        members.iter().zip(&wishes).map(|(m, wish)| *wish <= fair && !m.is_parked).collect();
    let mut elastic = Vec::new();
    for (i, member) in members.iter().enumerate() {
        if small[i] {
            targets[i] = member.need().max(floors[i]);
        }
        if !small[i] || member.is_quiet() {
            elastic.push(i);
        }
    }
    let most = targets.clone();
    for &i in &elastic {
        targets[i] = members[i].share.clamp(floors[i], targets[i]);
    }
    let contest = Contest { members, floors, small, most, elastic, fair };
    let sum: u64 = targets.iter().sum();
    if sum > usable {
        let kept: Vec<u64> = members.iter().zip(floors).map(|(m, floor)| m.kept(*floor)).collect();
        let left = contest.cut(&mut targets, &kept, sum - usable);
        // Where pools take it all somebody will be stopped at a full limit, but not those who only have their floor.
        contest.cut(&mut targets, floors, left);
    } else {
        contest.hand_out(&mut targets, usable - sum);
    }
    contest.shift(&mut targets, usable, ms);
    targets
}

/// The level at which `wishes`, each cut off there but not below its floor, come to no more than `usable`; `u64::MAX`
/// if that is all of them.
fn level(wishes: &[u64], floors: &[u64], usable: u64) -> u64 {
    let sum = |level: u64| -> u64 {
        wishes.iter().zip(floors).map(|(w, f)| (*w).min(level).max((*f).min(*w))).sum()
    };
    if sum(u64::MAX) <= usable {
        return u64::MAX;
    }
    let (mut low, mut high) = (0, usable);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if sum(middle) <= usable { low = middle } else { high = middle - 1 }
    }
    low
}

/// Those who want more than their equal part, or are quiet.
struct Contest<'a> {
    members: &'a [Member],
    floors: &'a [u64],
    /// Whether each wants less than its equal part.
    small: Vec<bool>,
    /// What each can use by the next look.
    most: Vec<u64>,
    elastic: Vec<usize>,
    fair: u64,
}

impl Contest<'_> {
    /// Takes `excess` from those who resist least, among equals from those who have most, and from nobody below
    /// `floors`. Returns how much could not be taken.
    fn cut(&self, targets: &mut [u64], floors: &[u64], mut excess: u64) -> u64 {
        let resistance: Vec<u32> =
            (0..targets.len()).map(|i| self.members[i].resistance(targets[i], self.fair)).collect();
        let mut order = self.elastic.clone();
        order.sort_by_key(|&i| resistance[i]);
        for equals in order.chunk_by(|&a, &b| resistance[a] == resistance[b]) {
            let had: Vec<u64> = equals.iter().map(|&i| targets[i]).collect();
            let least: Vec<u64> = equals.iter().map(|&i| floors[i]).collect();
            let sum: u64 = had.iter().sum();
            let level = level(&had, &least, sum.saturating_sub(excess));
            for (&i, had) in equals.iter().zip(&had) {
                targets[i] = (*had).min(level).max(floors[i].min(*had));
            }
            excess = excess.saturating_sub(sum - equals.iter().map(|&i| targets[i]).sum::<u64>());
            if excess == 0 {
                break;
            }
        }
        excess
    }

    /// Gives what nobody has to those with the strongest claims.
    fn hand_out(&self, targets: &mut [u64], mut left: u64) {
        let mut order = self.elastic.clone();
        order.sort_by_key(|&i| {
            core::cmp::Reverse((self.members[i].claim(targets[i], self.fair), u64::MAX - targets[i]))
        });
        for i in order {
            let more = self.most[i].saturating_sub(targets[i]).min(left);
            targets[i] += more;
            left -= more;
        }
    }

    /// Moves a step from those who resist least to those with the strongest claims.
    fn shift(&self, targets: &mut [u64], usable: u64, ms: u64) {
        let mut takers: Vec<(u32, usize)> =
            self.elastic.iter().map(|&i| (self.members[i].claim(targets[i], self.fair), i)).collect();
        takers.sort_by_key(|&(claim, i)| (core::cmp::Reverse(claim), targets[i]));
        for (claim, taker) in takers.into_iter().take(TAKERS) {
            let (mut moved, wanted) = (0, self.most[taker].saturating_sub(targets[taker]));
            while let Some((resistance, giver)) = self.giver(targets, taker)
                && claim >= resistance + HYSTERESIS
            {
                // Of what a small process has no more than this shows whether it is used.
                let fast =
                    (claim > resistance + HYSTERESIS || targets[taker] < self.fair) && !self.small[giver];
                let most = usable * ms / if fast { MOVE_FAST_MS } else { MOVE_MS };
                // Nobody claims more than the equal part for its own sake.
                let most = if claim == ENTITLED {
                    most.min(self.fair.saturating_sub(targets[taker]) + moved)
                } else {
                    most
                };
                let step = wanted.min(most).saturating_sub(moved).min(targets[giver] - self.least(giver));
                if step == 0 {
                    break;
                }
                targets[giver] -= step;
                targets[taker] += step;
                moved += step;
            }
        }
    }

    /// Below this nothing is taken from a process: it has not given up yet what was taken from it, or is full of what
    /// is out.
    fn least(&self, i: usize) -> u64 {
        self.members[i].bottom(self.floors[i]).max(self.members[i].kept(self.floors[i]))
    }

    /// Who resists least of those that have something to give; among equals who has most.
    fn giver(&self, targets: &[u64], taker: usize) -> Option<(u32, usize)> {
        let givers = self.elastic.iter().filter(|&&i| i != taker && targets[i] > self.least(i));
        let weakest = givers
            .map(|&i| (self.members[i].resistance(targets[i], self.fair), core::cmp::Reverse(targets[i]), i));
        weakest.min().map(|(resistance, _, i)| (resistance, i))
    }
}

/// Moves shares towards their targets, as far as it can be done now. Returns what is left.
fn approach(usable: u64, members: &mut [Member], floors: &[u64], targets: &[u64]) -> u64 {
    for ((member, floor), target) in members.iter_mut().zip(floors).zip(targets) {
        member.share = member.bottom(*floor).max(*target).min(member.share);
    }
    let mut free = usable.saturating_sub(members.iter().map(Member::held).sum());
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by_key(|&i| {
        let member = &members[i];
        core::cmp::Reverse((member.share < floors[i], member.claim(targets[i], 0)))
    });
    for i in order {
        let member = &mut members[i];
        // What it holds already is counted as held, and need not be free.
        let counted = member.held() - member.share;
        let more = targets[i].saturating_sub(member.share).min(counted + free);
        free -= more.saturating_sub(counted);
        member.share = (member.share + more).max(LEAST_FLOOR);
    }
    free
}
