//! Scripted scenes: nothing happens by itself or by chance.

use super::Shared;
use super::memory::{Access, Content, Task};
use super::program::{BASE, Habit};
use super::run::{self, Plan, Simulated};
use super::store::WORKERS;
use crate::kernel::Message;
use crate::swap_map::Kind;
use memcg::Stat;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use vmscan::PAGE;

/// A thread that is not simulated otherwise.
pub const SOMEBODY: Task = Task::Thread(99);

pub struct Scene {
    pub world: Shared,
    pub pager: Simulated<'static>,
}

/// Pages by number, from the beginning of the program's memory.
pub fn pages(range: Range<usize>) -> Range<usize> {
    BASE + range.start * PAGE..BASE + range.end * PAGE
}

impl Scene {
    pub fn new() -> Scene {
        Scene::of(128)
    }

    /// One with so many pages.
    pub fn of(pages: usize) -> Scene {
        Scene::with(pages, None)
    }

    /// One whose objects all go to a swap area that does not fail.
    pub fn with_area() -> Scene {
        Scene::with(128, Some(0))
    }

    fn with(pages: usize, area: Option<usize>) -> Scene {
        let plan = Plan {
            area,
            threads: 0,
            pages,
            habit: Habit::None,
            evict_all: true,
            inactive: 0,
            inactive_windows: 32,
            ..Plan::any(1)
        };
        let world = Rc::new(RefCell::new(run::world(1, &plan)));
        world.borrow_mut().scripted = true;
        let pager = run::pager(&world, &plan, Box::leak(Box::new(Stat::default())));
        Scene { world, pager }
    }

    pub fn turn(&mut self) {
        let footprint = {
            let mut world = self.world.borrow_mut();
            world.calls = 0;
            world.footprint()
        };
        self.pager.turn(footprint);
        assert_eq!(self.pager.check(), Ok(()));
    }

    /// The pager goes on while the workers do; enough of both for all that is wanted here.
    pub fn go_on(&mut self) {
        for _ in 0..40 {
            self.turn();
            for worker in (0..WORKERS).cycle().take(20) {
                self.world.borrow_mut().step_worker(worker);
            }
            self.world.borrow_mut().step_area();
        }
    }

    /// A thread touches a page, and the pager serves it.
    pub fn touch(&mut self, at: usize, write: Option<Content>) -> Access {
        for _ in 0..40 {
            let access = self.world.borrow_mut().memory.access(SOMEBODY, at, write);
            if access != Access::Fault {
                return access;
            }
            self.pager.pause(true);
            while self.world.borrow().memory.blocked.contains(&SOMEBODY) {
                self.turn();
            }
            self.pager.pause(false);
        }
        panic!("the thread at {at:#x} comes no further");
    }

    pub fn write(&mut self, range: Range<usize>) {
        for at in range.step_by(PAGE) {
            assert_eq!(self.touch(at, Some(at as Content)), Access::Done(at as Content));
        }
    }

    /// Every page reads as what `write` wrote.
    pub fn reads_back(&mut self, range: Range<usize>, moved: isize) {
        for at in range.step_by(PAGE) {
            assert_eq!(self.touch(at, None), Access::Done((at as isize - moved) as Content), "{at:#x}");
        }
    }

    /// An event of a call that has changed the mappings already.
    pub fn raise(&mut self, message: Message) {
        self.world.borrow_mut().memory.raise(SOMEBODY, message);
    }

    /// In how many objects a range lies that is out.
    pub fn objects_of(&self, range: Range<usize>) -> usize {
        let ids = range.step_by(PAGE).map(|at| {
            let entry = self.pager.map.get(at);
            assert_eq!(entry.kind(), Kind::Stored, "{at:#x}");
            entry.id()
        });
        ids.collect::<BTreeSet<u32>>().len()
    }

    pub fn kind(&self, at: usize) -> Kind {
        self.pager.map.get(at).kind()
    }
}
