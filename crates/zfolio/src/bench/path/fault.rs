//! A thread that waits for a page, and one that serves it: how long until the one hears of it, and until the other goes
//! on. On one CPU, where an engine sits beside who misses, and on two.

use super::ground::{BYTES, Ground};
use super::way::median;
use base::PAGE;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use uffd::Message;
use uffd::sys::{self, CpuSet};

/// How many pages are waited for in a round.
const FAULTS: usize = 512;

/// In microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Both are on one CPU.
    pub is_beside: bool,
    /// From the touch until the message is read.
    pub wake: f64,
    /// To copy the page there.
    pub copy: f64,
    /// From then until the thread goes on.
    pub resume: f64,
}

/// Both ways, or one where there is one CPU.
pub fn measure(ground: &Ground, rounds: usize) -> Result<Vec<Fault>, String> {
    ground.register().map_err(|errno| format!("memory cannot be registered: {errno}"))?;
    let allowed = CpuSet::of_this_thread();
    let mut cpus = (0..8192).filter(|cpu| allowed.contains(*cpu));
    let (first, second) = (cpus.next().unwrap_or(0), cpus.next());
    let mut all = Vec::new();
    for other in [Some(first), second].into_iter().flatten() {
        let (mut wakes, mut copies, mut returns) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            copies.push(copy_alone(ground)?);
            round(ground, first, other, &mut wakes, &mut returns)?;
        }
        let (wake, copy) = (median(wakes), median(copies));
        all.push(Fault { is_beside: other == first, wake, copy, resume: (median(returns) - copy).max(0.0) });
    }
    // As it was; where that is refused, it is no worse.
    let _ = sys::sched_setaffinity(0, &allowed);
    Ok(all)
}

/// How long it takes to copy a page for which nobody waits, in microseconds.
fn copy_alone(ground: &Ground) -> Result<f64, String> {
    let source = vec![7u8; PAGE];
    empty(ground);
    let begun_ns = sys::now_ns();
    for page in 0..FAULTS {
        copy(ground, ground.program + page * PAGE, &source)?;
    }
    Ok(us_between(begun_ns, sys::now_ns()) / FAULTS as f64)
}

fn copy(ground: &Ground, at: usize, source: &[u8]) -> Result<(), String> {
    // SAFETY: a hole of the ground's mapping.
    let moved = unsafe { ground.userfault.copy(at, source.as_ptr().expose_provenance(), PAGE) };
    moved.stop.map_or(Ok(()), |errno| Err(format!("UFFDIO_COPY: {errno}")))
}

fn empty(ground: &Ground) {
    // SAFETY: the ground's mapping, which nobody has yet.
    let _ = unsafe { sys::madvise(ground.program, BYTES, sys::consts::MADV_DONTNEED) };
}

/// Serves a thread on another CPU, or on the same: for each of its faults how long until it was heard, and from the
/// copy's begin until it went on, in microseconds.
fn round(
    ground: &Ground,
    own: usize,
    other: usize,
    wakes: &mut Vec<f64>,
    returns: &mut Vec<f64>,
) -> Result<(), String> {
    let refused = |errno| format!("a thread cannot be bound to a CPU: {errno}");
    sys::sched_setaffinity(0, &CpuSet::only(own)).map_err(refused)?;
    empty(ground);
    let source = vec![7u8; PAGE];
    let [began_ns, went_on_ns] = [const { AtomicU64::new(0) }; 2];
    thread::scope(|scope| {
        let touches = scope.spawn(|| {
            let bound = sys::sched_setaffinity(0, &CpuSet::only(other));
            for page in 0..FAULTS {
                began_ns.store(sys::now_ns(), Relaxed);
                // SAFETY: inside the mapping; the read waits until the page is there.
                unsafe { ((ground.program + page * PAGE) as *const u8).read_volatile() };
                went_on_ns.store(sys::now_ns(), Relaxed);
            }
            bound
        });
        let (mut copied_ns, mut served, mut result) = (None, 0, Ok(()));
        while served < FAULTS && result.is_ok() {
            if sys::poll([ground.userfault.fd()], 1_000_000_000) != Ok([true]) {
                continue;
            }
            let heard_ns = sys::now_ns();
            let Some(Message::Fault { at, .. }) = ground.userfault.next() else { continue };
            // It went on before it came here again.
            returns.extend(copied_ns.map(|copied_ns| us_between(copied_ns, went_on_ns.load(Relaxed))));
            wakes.push(us_between(began_ns.load(Relaxed), heard_ns));
            copied_ns = Some(sys::now_ns());
            (served, result) = (served + 1, copy(ground, at, &source));
        }
        if result.is_err() {
            // Who waits goes on: the kernel serves it.
            let _ = ground.userfault.unregister(ground.program..ground.program + BYTES);
            return result;
        }
        touches.join().map_err(|_| "a thread failed".to_string())?.map_err(refused)
    })
}

/// 0 where the clocks of two CPUs say that it was the other way round.
fn us_between(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e3
}
