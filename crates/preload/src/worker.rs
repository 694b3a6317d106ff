//! A worker's process: takes jobs from the board until the engine ends, and sees to it that the engine's death is not silent.
//!
//! Workers share the engine's descriptors. While one of them lives the userfaultfd stays open, and memory that is out cannot turn into zeros: if
//! the engine dies before the program, a worker stops the program with a message.

use crate::board::Board;
use crate::footprint::footprint;
use core::sync::atomic::Ordering::*;
use memcg::Slot;
use uffd::Fd;
use uffd::sys::{self, CpuSet, consts::*};
use zswap::Worker;

/// What a worker is started with; it takes it over.
pub struct Duty {
    /// Where jobs are.
    pub board: &'static Board,
    /// Its compressor.
    pub state: Worker,
    /// The process's slot.
    pub slot: &'static Slot,
    /// The engine's process.
    pub engine: u32,
    /// The program's process.
    pub program: u32,
    /// For the worker that looks out for the footprint while the engine may not run.
    pub lookout: Option<Lookout>,
}

/// What that takes.
pub struct Lookout {
    /// /proc/PID/statm.
    pub statm: Fd,
    /// Where the engine may run when it is called.
    pub cpus: CpuSet,
}

/// How long a worker sleeps before it looks whether the engine is alive.
const LOOK_NS: u64 = 100_000_000;

/// How often the one that looks out does so.
const LOOK_OUT_NS: u64 = 500_000;

/// How long the engine may go on after the program has ended.
const GRACE_NS: u64 = 3_000_000_000;

/// True when the first call with this `since` was more than `ns` ago.
fn now_after(since: &mut Option<u64>, ns: u64) -> bool {
    let now = sys::now_ns();
    now - *since.get_or_insert(now) > ns
}

/// A worker's first instruction; `duty` is a boxed [`Duty`].
pub extern "C" fn main(duty: usize) -> ! {
    // SAFETY: the engine has boxed the duty and given it up.
    let duty = unsafe { &mut *(duty as *mut Duty) };
    let _ = sys::set_name(PR_SET_NAME, c"zfolio-worker".as_ptr().cast());
    let board = duty.board;
    let (engine, program) = (sys::pidfd_open(duty.engine), sys::pidfd_open(duty.program));
    let (mut cpu_ns, mut gone_since) = (0, None);
    while board.stop.load(SeqCst) == 0 {
        if board.serve(&mut duty.state) {
            continue;
        }
        if board.tidy() {
            continue;
        }
        let now = sys::process_cpu_ns();
        duty.slot.stat.engine_cpu_ns.fetch_add(now - cpu_ns, Relaxed);
        cpu_ns = now;
        if let (Ok(engine), Ok(program)) = (&engine, &program)
            && sys::poll([engine], 0) == Ok([true])
            && board.stop.load(SeqCst) == 0
        {
            duty.slot
                .say("the engine has died; the program was stopped, since its memory cannot be restored");
            duty.slot.state.store(memcg::State::Stopped as u32, Release);
            let _ = sys::pidfd_send_signal(program, SIGKILL);
            break;
        }
        // The engine ends with the program; one that does not is ended, since it would hold the memory for ever.
        if let Ok(program) = &program
            && sys::poll([program], 0) == Ok([true])
            && now_after(&mut gone_since, GRACE_NS)
        {
            let _ = sys::kill(duty.engine, SIGKILL);
            break;
        }
        let alarm = board.alarm.load(Relaxed);
        match &duty.lookout {
            Some(lookout) if alarm > 0 => {
                if footprint(&lookout.statm) > alarm && board.called.swap(1, AcqRel) == 0 {
                    let _ = sys::sched_setscheduler(duty.engine, SCHED_OTHER);
                    let _ = sys::sched_setaffinity(duty.engine, &lookout.cpus);
                    board.wake_pager();
                }
                board.wait(LOOK_OUT_NS);
            }
            _ => board.wait(LOOK_NS),
        }
    }
    let now = sys::process_cpu_ns();
    duty.slot.stat.engine_cpu_ns.fetch_add(now - cpu_ns, Relaxed);
    sys::exit(0)
}
