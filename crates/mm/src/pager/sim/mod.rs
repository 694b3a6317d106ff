//! A simulator that drives the pager: a kernel, a store and a program whose threads run between any two calls of
//! the engine, all from one seed.
//!
//! ```text
//!   run ──> Pager ──> kernel::SimKernel ──┐                 ┌── program   threads, system calls
//!              └────> store::SimStore ────┴──> World ───────┼── memory    mappings, page tables, userfaultfd
//!                       (each call lets the                 ├── shelves   objects, workers (store.rs)
//!                        world run on a while)              └── shadow    what a page may read
//! ```
//!
//! - [`memory`], [`kernel`], [`admission`], [`scan`]: the simulated kernel; [`store`]: the simulated pool and its
//!   workers; [`area`]: the simulated swap area
//! - [`huge`]: huge pages; [`touches`]: what is touched, where that is told
//! - [`unwritable`]: how pages leave memory that cannot be written to
//! - [`advice`]: what it advises; [`own`]: a userfaultfd of the program's own; [`swap`]: the machine's own swap
//! - [`program`]: the threads, [`syscall`]: what they call; [`shadow`]: what they must read
//! - [`run`]: one run from a seed, and what is checked; [`fork`]: a child's; [`clean`]: runs that must pass
//! - [`scene`]: how short plays are set, one for each bug that was found: [`incoming`], [`outgoing`], [`waiting`],
//!   [`moves`], [`look`], [`many`], [`whole`]
//! - [`bugs`]: planted bugs, each of which a run must find

mod admission;
mod advice;
mod area;
mod bugs;
mod clean;
mod counts;
mod fork;
mod huge;
mod incoming;
mod kernel;
mod look;
mod many;
mod memory;
mod moves;
mod outgoing;
mod own;
mod prefetch;
mod program;
mod run;
mod scan;
mod scene;
mod shadow;
mod store;
mod swap;
mod syscall;
mod touches;
mod unwritable;
mod waiting;
mod whole;

use crate::kernel::Message;
use crate::ranges::RangeSet;
use base::Random;
use bugs::Bugs;
use memory::Memory;
use program::Program;
use shadow::Shadow;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use store::Shelves;

/// Everything outside the pager.
pub struct World {
    random: Random,
    memory: Memory,
    shadow: Shadow,
    program: Program,
    shelves: Shelves,
    bugs: Bugs,
    /// Nothing happens by itself or by chance.
    scripted: bool,
    /// No page of the engine's can be discarded.
    stubborn: bool,
    /// Pages are just being taken that cannot be written to, and the hooks of mremap wait for that.
    is_taking: bool,
    /// Messages that were read while the engine was about something else.
    early: VecDeque<Message>,
    /// In a child: what it finds empty.
    wiped: Vec<Range<usize>>,
    /// What must not leave the program, and what the engine must not register.
    held: Range<usize>,
    spared: Range<usize>,
    /// What the program has pinned.
    pinned: RangeSet,
    /// How a thread of the program asks for that.
    bell: own::Bell,
    /// Scheduling points so far.
    clock: u64,
    /// Calls of the engine in this turn.
    calls: usize,
    /// Mappings that it has asked about, ever.
    asked: usize,
    /// How many scheduling points it takes to ask about one.
    ask_ticks: u64,
    /// The last events.
    trace: VecDeque<(u64, Trace)>,
}

/// The kernel and the store are two views of one world.
type Shared = Rc<RefCell<World>>;

/// One line of the trace, made into words only if the run fails.
type Trace = (&'static str, [u64; 3]);

/// Scheduling points of a millisecond.
const TICKS_PER_MS: u64 = 20;

/// How many events are shown when a run fails.
const TRACED: usize = 60;
/// Calls in one turn after which the engine is taken to go round in circles.
const ENDLESS: usize = 60_000;

impl World {
    /// Notes an event.
    fn trace(&mut self, what: &'static str, args: [u64; 3]) {
        if self.trace.len() == TRACED {
            self.trace.pop_front();
        }
        self.trace.push_back((self.clock, (what, args)));
    }

    /// A call of the engine begins: the world runs on by a few steps first.
    fn enter(&mut self) {
        self.calls += 1;
        assert!(self.calls < ENDLESS, "the engine goes round in circles: {ENDLESS} calls in one turn");
        if !self.scripted {
            let steps = *self.random.pick(&[0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 5, 12]);
            self.run_on(steps);
        }
    }

    /// Once in `n` times true; never in a scripted scene.
    fn chance(&mut self, n: usize) -> bool {
        !self.scripted && self.random.one_in(n)
    }

    /// The world runs on by `steps` steps.
    fn run_on(&mut self, steps: usize) {
        for _ in 0..steps {
            self.clock += 1;
            let threads = self.program.threads();
            match self.random.below(threads + store::WORKERS + 1) {
                n if n < threads => self.step_thread(n),
                n if n < threads + store::WORKERS => self.step_worker(n - threads),
                _ => self.step_elsewhere(),
            }
        }
    }

    /// What happens without the program: memory that was given up lazily is taken back, devices write, threads
    /// exit, signals come.
    fn step_elsewhere(&mut self) {
        if self.program.huge && self.random.one_in(3) {
            return self.make_huge();
        }
        match self.random.below(8) {
            0 if self.random.one_in(8) => {
                for at in self.memory.lazy_pages() {
                    if self.random.one_in(2) {
                        self.memory.remove(at);
                        self.trace("the kernel takes back", [at as u64, 0, 0]);
                    }
                }
            }
            1 => self.step_device(),
            2 => self.step_exit(),
            4 if self.program.swaps => self.swap_out(),
            5..=7 if self.shelves.area.is_some() => self.step_area(),
            3 if self.program.signals => {
                let thread = self.random.below(self.program.threads());
                self.memory.interrupt(memory::Task::Thread(thread));
            }
            _ => {}
        }
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (clock, (what, [a, b, c])) in &self.trace {
            writeln!(f, "  {clock:>8}  {what} {a:#x} {b:#x} {c:#x}")?;
        }
        Ok(())
    }
}
