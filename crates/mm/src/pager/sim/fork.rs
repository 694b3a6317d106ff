//! A simulated fork: what the child finds, and its run, which is played to its end while its parent stands still.

use super::area::SimArea;
use super::kernel::SimKernel;
use super::run::{Plan, Simulated, Tally, agrees, config, live, map_engine, set_up, words};
use super::store::SimStore;
use super::{Shared, World};
use crate::pager::Pager;
use crate::pager::fork::{Handover, Late, Misfit};
use crate::ranges::RangeSet;
use base::Random;
use memcg::Stat;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// The process forks: the parent goes on, and the child's run is played to its end. What has happened in the child.
pub fn fork(world: &Shared, pager: &mut Simulated, plan: &Plan) -> Tally {
    world.borrow_mut().calls = 0;
    pager.quiesce();
    let mark = || world.borrow_mut().memory.mark(|vma| vma.registered && !vma.engine);
    mark();
    if !pager.drain_events() {
        return Tally::default();
    }
    assert!(
        !pager.inactive.holds_any() && pager.inactive.in_flight() == 0,
        "a quiet pager has pages on the inactive list"
    );
    let row = world.borrow_mut().shelves.area.as_mut().map(SimArea::take_row);
    assert!(pager.prepare_child(row));
    if plan.bugs.unshared {
        world.borrow().shelves.area.iter().for_each(SimArea::forget_child);
    }
    let handover = pager.handover();
    // Other threads run on before the clone, and after it.
    let between = || {
        let mut world = world.borrow_mut();
        let steps = world.random.below(30);
        world.run_on(steps);
    };
    between();
    let child = Rc::new(RefCell::new(world.borrow_mut().fork(plan)));
    between();
    world.borrow_mut().calls = 0;
    let mut late = pager.after_clone(true);
    if plan.bugs.uninformed {
        late.clear();
    }
    child.borrow_mut().trace("born", [late.len() as u64, 0, 0]);
    match catch_unwind(AssertUnwindSafe(|| childhood(&child, plan, handover, &late))) {
        Ok(tally) => tally,
        Err(panic) => panic!("in a child, {late:x?}: {}\nits last events:\n{}", words(panic), child.borrow()),
    }
}

fn childhood(world: &Shared, plan: &Plan, handover: Handover, late: &[Late]) -> Tally {
    let stat = Stat::default();
    let (kernel, store) = (SimKernel(world.clone()), SimStore(world.clone()));
    // A child's own children come later, and are fewer.
    let plan = Plan { steps: plan.steps / 4, fork: plan.fork * 2, ..plan.clone() };
    // Its one thread waits for this.
    world.borrow_mut().scripted = true;
    let child = Pager::take_over(kernel, store, &stat, config(&plan), 1 << 30, handover, late);
    world.borrow_mut().scripted = false;
    world.borrow_mut().wiped.clear();
    match child {
        Ok(mut pager) => {
            world.borrow_mut().memory.mark(|_| false);
            set_up(&mut pager, world, &plan);
            agrees(&world.borrow(), &pager);
            let tally = live(world.clone(), &plan, &mut pager);
            Tally { children: tally.children + 1, ..tally }
        }
        Err(Misfit::Unclear(_)) => {
            world.borrow().shelves.area.iter().for_each(SimArea::bury);
            Tally { children: 1, unclear: 1, ..Tally::default() }
        }
        Err(misfit) => panic!("a child does not fit: {misfit}"),
    }
}

impl World {
    /// What a child of one of the threads finds.
    fn fork(&mut self, plan: &Plan) -> World {
        self.trace("clone", [0; 3]);
        let (mut memory, mut shadow) = (self.memory.fork(), self.shadow.fork());
        let mappings: Vec<Range<usize>> = memory.vmas().map(|(range, _)| range).collect();
        let wiped: Vec<_> = mappings.into_iter().filter(|_| self.random.one_in(8)).collect();
        for range in &wiped {
            memory.wipe(range.clone());
            shadow.forget(range.clone());
        }
        map_engine(&mut memory, plan);
        let seed = self.random.below(1 << 40) as u64;
        World {
            random: Random(seed),
            memory,
            shadow,
            program: self.program.fork(1 + self.random.below(plan.threads)),
            shelves: self.shelves.fork(),
            bugs: self.bugs.clone(),
            scripted: false,
            stubborn: false,
            is_taking: false,
            early: Default::default(),
            wiped,
            held: 0..0,
            pinned: RangeSet::default(),
            spared: 0..0,
            bell: Default::default(),
            clock: self.clock,
            calls: 0,
            asked: 0,
            ask_ticks: 0,
            trace: VecDeque::new(),
        }
    }
}
