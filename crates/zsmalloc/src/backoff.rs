//! What to do between two attempts to change a word that another thread holds for a microsecond.

/// Spins at first, then yields the processor.
#[derive(Default)]
pub struct Backoff(u32);

impl Backoff {
    /// A microsecond or two: as long as most holders take. On a machine with fewer processors than threads, more is
    /// lost.
    const SPINS: u32 = 64;

    /// Waits a moment.
    pub fn wait(&mut self) {
        self.0 += 1;
        if self.0 < Self::SPINS || cfg!(miri) { core::hint::spin_loop() } else { base::sys::sched_yield() }
    }
}
