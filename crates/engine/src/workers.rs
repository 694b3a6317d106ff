//! The workers: how they are started, and whether they live.

use crate::board::{Board, WORKERS_MAX};
use crate::maker::Maker;
use crate::processes::{self, Kept, WorkerPlace};
use crate::worker::{self, Lookout, WorkerStart};
use alloc::vec::Vec;
use memcg::{Memcg, Slot};
use uffd::sys::{self, CpuSet, Errno, consts::*};
use uffd::{Fd, Memory};

/// What all workers are started with.
pub struct Workers {
    /// The run's page.
    pub memcg: &'static Memcg,
    /// Where jobs are.
    pub board: Board,
    /// What makes objects as they begin.
    pub maker: Maker,
    /// What keys their hashes.
    pub seed: u64,
    /// The user's dictionary.
    pub file: &'static [u8],
    /// The process's slot.
    pub slot: &'static Slot,
    /// The engine's process, which is the calling one.
    pub engine: u32,
    /// The program's process.
    pub program: u32,
}

/// How long a worker may take until it is ready, in looks of so many nanoseconds.
const READY_LOOKS: usize = 1000;
const READY_LOOK_NS: u64 = 10_000_000;

/// Where there are so many processes for each CPU, one worker is enough for each of them: more would share the CPUs,
/// and each has half a MiB.
const CROWD: usize = 3;

impl Workers {
    /// Starts the workers: each apart, or here where that is refused. Meanwhile the caller sees to it that what is
    /// registered stays out of children, and nobody is served; `memory` is the program's.
    pub fn start(&self, memory: &Memory) -> Result<Vec<u32>, (&'static str, Errno)> {
        let is_crowded = self.memcg.division.processes_per_cpu() >= CROWD;
        let most = if is_crowded { 1 } else { WORKERS_MAX };
        let count = CpuSet::of_this_thread().count().clamp(1, most);
        let start = |number| {
            let apart = self.start_one(memory, number, WorkerPlace::Apart);
            apart.or_else(|_| self.start_one(memory, number, WorkerPlace::Here))
        };
        (0..count).map(start).collect()
    }

    /// Starts one, and waits until it is ready.
    fn start_one(
        &self,
        memory: &Memory,
        number: usize,
        place: WorkerPlace,
    ) -> Result<u32, (&'static str, Errno)> {
        let &Workers { memcg, board, maker, seed, file, slot, engine, program } = self;
        // One is enough to look out.
        let lookout = (number == 0).then(Lookout::open).and_then(Result::ok);
        let start = WorkerStart {
            memcg,
            board,
            number,
            kept: (place == WorkerPlace::Apart).then(|| Kept::new(board.range().start, memcg, slot)),
            memory: memory.share(),
            maker,
            seed,
            file,
            slot,
            engine,
            program,
            lookout,
        };
        // SAFETY: `worker::main` is made to run beside the program, and takes that over. A child of the program's
        // that comes meanwhile may get the stack and the board too, and uses neither.
        let pid = unsafe { processes::worker(worker::main, place, board.range(), start) };
        let pid = pid.map_err(|e| ("clone", e))?;
        for _ in 0..READY_LOOKS {
            if board.await_ready(number as u32 + 1, READY_LOOK_NS) {
                return Ok(pid);
            }
            if has_ended(pid) {
                return Err(("a worker", Errno::ECHILD));
            }
        }
        let _ = sys::kill(pid, SIGKILL);
        while !has_ended(pid) {
            sys::sched_yield();
        }
        Err(("a worker", Errno::ETIMEDOUT))
    }
}

impl Lookout {
    /// For the calling process.
    fn open() -> Result<Lookout, Errno> {
        let statm: Fd = sys::open(b"/proc/self/statm\0", O_RDONLY)?;
        Ok(Lookout { statm, cpus: CpuSet::of_this_thread() })
    }
}

/// What is said then.
pub const DEATH: &str = "a worker has died, and with it what it was about to store; the program was stopped";

/// True when this child has ended.
fn has_ended(pid: u32) -> bool {
    let mut status = 0;
    sys::wait4(pid, &mut status, __WALL | WNOHANG) != Ok(0)
}

/// True when one of the workers has ended: what it had begun is lost.
pub fn one_has_died() -> bool {
    has_ended(ANY)
}

/// What wait4 takes for any child.
const ANY: u32 = u32::MAX;

/// Waits for the end of all children.
pub fn await_end() {
    let mut status = 0;
    while sys::wait4(ANY, &mut status, __WALL) != Err(Errno::ECHILD) {}
}
