//! A userfaultfd of the program's own: memory is given to it and taken back, and UFFDIO_MOVE moves pages there,
//! past any fault. The hooks ask the engine before each call, and it answers between two turns: one thread at a
//! time, since there is one bell.

use super::program::Doing;
use super::run::Simulated;
use super::{Shared, World};
use std::ops::Range;
use vmscan::PAGE;

/// How much comes home at a time, at most.
const HELD_BYTES: usize = 24 * PAGE;

/// What a thread wants to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// UFFDIO_REGISTER with the program's own descriptor.
    Own,
    /// UFFDIO_MOVE out of the range, to here.
    Move(usize),
}

/// A thread that asks the engine for something.
#[derive(Clone, Debug)]
pub struct Asking {
    wish: Wish,
    range: Range<usize>,
}

/// The bell, and who has it.
#[derive(Default)]
pub struct Bell {
    /// What is asked for, and the range that nobody else changes meanwhile.
    asking: Option<Asking>,
    /// The answer: the end of what is home.
    upto: Option<usize>,
}

impl Bell {
    /// No thread has it.
    pub fn is_free(&self) -> bool {
        self.asking.is_none()
    }

    /// What must stay as it is mapped until the call is over.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let of = |asking: &Asking| {
            let to = match asking.wish {
                Wish::Own => 0..0,
                Wish::Move(to) => to..to + asking.range.len(),
            };
            [asking.range.clone(), to]
        };
        self.asking.as_ref().map(of).into_iter().flatten()
    }
}

impl World {
    /// A thread gives memory to the program's userfaultfd, takes it back, or moves pages to it.
    pub fn begin_own(&mut self, range: Range<usize>) -> Doing {
        let Some((whole, vma)) = self.memory.vma(range.start) else { return Doing::Nothing };
        let is_plain = vma.writable && !vma.locked;
        let range = range.start..range.end.min(whole.end);
        if vma.owned {
            self.trace("UFFDIO_UNREGISTER", [range.start as u64, range.end as u64, 0]);
            self.memory.change(range, |vma| vma.owned = false);
            return Doing::Nothing;
        }
        if !self.bell.is_free() || !is_plain {
            return Doing::Nothing;
        }
        let space = self.program.space();
        let owned: Vec<Range<usize>> =
            self.memory.vmas_in(space).into_iter().filter(|(_, vma)| vma.owned).map(|(r, _)| r).collect();
        let wish = if owned.is_empty() || self.random.one_in(3) {
            Wish::Own
        } else {
            Wish::Move(self.random.pick(&owned).start)
        };
        let range = match wish {
            Wish::Own => range,
            Wish::Move(to) if self.held(&(to..to + PAGE)) => return Doing::Nothing,
            Wish::Move(to) => {
                let end = owned.iter().find(|r| r.contains(&to)).expect("picked").end;
                range.start..range.end.min(range.start + end - to)
            }
        };
        let asking = Asking { wish, range: range.clone() };
        let what = if wish == Wish::Own { "asks to let go" } else { "asks to hold" };
        self.trace(what, [range.start as u64, range.end as u64, 0]);
        match wish {
            Wish::Own => self.spared = range,
            Wish::Move(_) => self.held = range,
        }
        self.bell.asking = Some(asking.clone());
        Doing::Asking(asking)
    }

    /// Waits for the answer, and makes the call.
    pub fn ask(&mut self, asking: Asking) -> Doing {
        let Some(upto) = self.bell.upto.take() else { return Doing::Asking(asking) };
        let range = asking.range.start..upto;
        match asking.wish {
            Wish::Own => {
                self.trace("UFFDIO_REGISTER", [range.start as u64, range.end as u64, 0]);
                for (found, vma) in self.memory.vmas_in(range.clone()) {
                    assert!(!vma.registered, "{found:x?} was let go, and is registered");
                }
                for at in range.clone().step_by(PAGE) {
                    let is_lost = self.memory.page(at).is_none() && !self.shadow.may(at).contains(&0);
                    assert!(!is_lost, "the page at {at:#x} was let go, and is not home");
                }
                self.memory.change(range, |vma| vma.owned = true);
            }
            Wish::Move(to) => self.move_owned(range, to),
        }
        (self.held, self.spared, self.bell) = (0..0, 0..0, Bell::default());
        Doing::Nothing
    }

    /// UFFDIO_MOVE, holes left out; what cannot be moved stays.
    fn move_owned(&mut self, range: Range<usize>, to: usize) {
        self.trace("UFFDIO_MOVE", [range.start as u64, range.end as u64, to as u64]);
        for at in range.clone().step_by(PAGE) {
            let target = to + at - range.start;
            let Some(&page) = self.memory.page(at) else {
                let may = self.shadow.may(at);
                assert!(may.contains(&0), "UFFDIO_MOVE finds a hole at {at:#x}, where there is {may:x?}");
                continue;
            };
            let is_movable = page.exclusive && !page.bound && page.pins == 0 || page.zero;
            let is_hole = self.memory.page(target).is_none() && !self.memory.markers.contains_key(&target);
            if !is_movable || !is_hole || self.program.lives_in(&(at..at + PAGE)) {
                continue;
            }
            self.memory.move_page(at, target);
            self.shadow.rename(at..at + PAGE, target, |at| self.program.is_discarded(at));
        }
    }
}

/// The engine answers, if a thread has rung.
pub fn answer(world: &Shared, pager: &mut Simulated) {
    let asking = world.borrow().bell.asking.clone();
    let Some(asking) = asking.filter(|_| world.borrow().bell.upto.is_none()) else { return };
    let upto = match asking.wish {
        Wish::Own => {
            pager.let_go(asking.range.clone());
            asking.range.end
        }
        Wish::Move(_) => {
            let upto = pager.hold(asking.range.clone(), HELD_BYTES);
            world.borrow_mut().held.end = upto;
            upto
        }
    };
    world.borrow_mut().bell.upto = Some(upto);
}
