//! Processors and scheduling.

use super::{Result, consts};

/// Lets another thread run.
pub fn sched_yield() {
    // SAFETY: the call takes nothing, and changes no memory.
    let _ = unsafe { call!(__NR_sched_yield) };
}

/// A set of CPUs, up to 8192 of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CpuSet([u64; 128]);

impl CpuSet {
    /// Those that the calling thread may run on; none when the kernel does not say.
    pub fn of_this_thread() -> CpuSet {
        let mut mask = [0u64; 128];
        // SAFETY: the kernel writes to the mask, whose length it is told.
        let _ = unsafe { call!(__NR_sched_getaffinity, 0, size_of_val(&mask), mask.as_mut_ptr()) };
        CpuSet(mask)
    }

    /// Those whose bits are set in words, the first CPU's in the first word.
    pub fn of_words(words: impl IntoIterator<Item = u64>) -> CpuSet {
        let mut mask = [0u64; 128];
        mask.iter_mut().zip(words).for_each(|(word, given)| *word = given);
        CpuSet(mask)
    }

    /// The same words, the last ones of which may be 0.
    pub fn words(&self) -> &[u64] {
        &self.0
    }

    /// One CPU.
    pub fn only(cpu: usize) -> CpuSet {
        let mut mask = [0u64; 128];
        mask[cpu / 64] |= 1 << (cpu % 64);
        CpuSet(mask)
    }

    /// The others.
    pub fn without(mut self, cpu: usize) -> CpuSet {
        self.0[cpu / 64] &= !(1 << (cpu % 64));
        self
    }

    /// True when the CPU is one of them.
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }
}

/// Binds a thread to CPUs; 0 is the calling one.
pub fn sched_setaffinity(tid: u32, cpus: &CpuSet) -> Result<()> {
    // SAFETY: the kernel reads the mask, whose length it is told.
    unsafe { call!(__NR_sched_setaffinity, tid, size_of_val(&cpus.0), cpus.0.as_ptr()) }.map(drop)
}

/// Sets a thread's scheduling policy, with priority 0; 0 is the calling one.
pub fn sched_setscheduler(tid: u32, policy: u32) -> Result<()> {
    let priority = 0u32;
    // SAFETY: the kernel reads the priority.
    unsafe { call!(__NR_sched_setscheduler, tid, policy, &raw const priority) }.map(drop)
}

/// True when a thread like the calling one may become SCHED_IDLE and leave that again. It is tried out, and where it
/// may not the caller stays SCHED_IDLE: a thread that ends soon.
pub fn may_yield() -> bool {
    // SAFETY: the kernel answers by its result, and changes no memory.
    let policy = unsafe { call!(__NR_sched_getscheduler, 0) };
    policy == Ok(consts::SCHED_OTHER as usize)
        && sched_setscheduler(0, consts::SCHED_IDLE).is_ok()
        && sched_setscheduler(0, consts::SCHED_OTHER).is_ok()
}
