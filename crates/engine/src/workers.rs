//! The workers: how they are started, and whether they live.

use crate::board::{Board, WORKERS_MAX};
use crate::maker::Maker;
use crate::processes::{self, Kept, WorkerPlace};
use crate::worker::{self, Lookout, WorkerStart};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
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

/// So many there are where there are CPUs for them.
const FEW: usize = 4;

/// And one more for so many bytes of the process's part of the limit: of these a worker has about a hundredth.
const PART_BYTES: u64 = 64 << 20;

/// How many workers an engine has with so many CPUs, as one of so many processes that share them and a limit in bytes.
fn workers(cpus: usize, processes: usize, limit: u64) -> usize {
    if processes >= CROWD * cpus {
        return 1;
    }
    let processes = processes.max(1);
    let most = FEW + (limit / processes as u64 / PART_BYTES) as usize;
    (cpus / processes).max(FEW).min(most).min(cpus).min(WORKERS_MAX)
}

/// How many are started where so many are wanted now. The run may come to have more of the machine's CPUs, and a worker
/// that does not work has a quarter of a MiB. In a crowd, or of several processes on one CPU, each has one.
fn to_start(wanted: usize, online_cpus: usize, processes: usize, limit: u64) -> usize {
    if wanted == 1 && processes > 1 {
        return 1;
    }
    let parts = (limit / processes.max(1) as u64 / PART_BYTES) as usize;
    wanted.max(workers(online_cpus, processes, limit).min(1 + parts))
}

/// Starts so many by `start`, of which the first one must be had. Where no more processes or descriptors may be, those
/// that there are do.
fn start_all<E>(count: usize, mut start: impl FnMut(usize) -> Result<u32, E>) -> Result<Vec<u32>, E> {
    let mut pids = Vec::from([start(0)?]);
    pids.extend((1..count).map_while(|number| start(number).ok()));
    Ok(pids)
}

/// How many workers an engine is to have now that may run on so many CPUs.
pub fn wanted(memcg: &Memcg, cpus: usize) -> usize {
    let division = &memcg.division;
    let [of_run, processes] = [&division.cpus, &division.processes].map(|count| count.load(Relaxed) as usize);
    workers(cpus.clamp(1, of_run.max(1)), processes, memcg.max_bytes.load(Relaxed))
}

impl Workers {
    /// Starts the workers: each apart, or here where that is refused. Meanwhile the caller sees to it that what is
    /// registered stays out of children, and nobody is served; `memory` is the program's.
    pub fn start(&self, memory: &Memory) -> Result<Vec<u32>, (&'static str, Errno)> {
        let Memcg { division, max_bytes, .. } = self.memcg;
        let [online, processes] =
            [&division.online_cpus, &division.processes].map(|count| count.load(Relaxed) as usize);
        let wanted = wanted(self.memcg, CpuSet::of_this_thread().count());
        let start = |number| {
            let apart = self.start_one(memory, number, WorkerPlace::Apart);
            apart.or_else(|_| self.start_one(memory, number, WorkerPlace::Here))
        };
        self.board.want(wanted);
        start_all(to_start(wanted, online, processes, max_bytes.load(Relaxed)), start)
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

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn there_are_as_many_as_cpus_limit_and_other_processes_leave() {
        for (cpus, processes, limit, expected) in [
            (1, 1, 512 * MIB, 1),
            (2, 0, 512 * MIB, 2),
            (4, 1, 16 * MIB, 4),
            (16, 1, 16 * MIB, FEW),
            (16, 1, 128 * MIB, 6),
            (64, 1, 8192 * MIB, WORKERS_MAX),
            (16, 3, 8192 * MIB, 5),
            (64, 4, 256 * MIB, FEW + 1),
            (16, 30, 8192 * MIB, FEW),
            (16, CROWD * 16, 8192 * MIB, 1),
        ] {
            assert_eq!(workers(cpus, processes, limit), expected, "{cpus} CPUs, {processes} processes");
        }
    }

    #[test]
    fn some_are_started_for_cpus_that_may_come_where_the_limit_has_room() {
        for (wanted, online, processes, limit, expected) in [
            (2, 2, 1, 4096 * MIB, 2),
            (1, 64, 1, 63 * MIB, 1),
            (1, 64, 1, 128 * MIB, 3),
            (2, 64, 1, 4096 * MIB, WORKERS_MAX),
            (4, 64, 17, 1024 * MIB, FEW),
            (1, 64, CROWD * 64, 4096 * MIB, 1),
            (1, 64, 30, 4096 * MIB, 1),
            (4, 2, 1, 4096 * MIB, 4),
        ] {
            assert_eq!(to_start(wanted, online, processes, limit), expected, "{wanted} of {online}");
        }
    }

    #[test]
    fn an_engine_has_the_workers_that_can_be_had_and_one_at_least() {
        let start_up_to = |most: usize| {
            start_all(4, |number| if number < most { Ok(number as u32) } else { Err(Errno::EAGAIN) })
        };
        assert_eq!(start_up_to(9), Ok(vec![0, 1, 2, 3]));
        assert_eq!(start_up_to(2), Ok(vec![0, 1]));
        assert_eq!(start_up_to(0), Err(Errno::EAGAIN));
    }
}
