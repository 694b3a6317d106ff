//! Scripted scenes, one for each bug that the simulator found in the pager: nothing happens by itself or by chance.

use super::Shared;
use super::memory::{Access, Content, Marker, Task};
use super::program::{BASE, Habit};
use super::run::{self, DOORBELL, Plan, Simulated};
use super::store::WORKERS;
use crate::index::Kind;
use crate::kernel::{Kernel, Message, WINDOW_PAGES};
use crate::stage::Use;
use memcg::Stat;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use vmscan::heat::Heat;
use vmscan::{PAGE, WINDOW};

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
        let plan = Plan {
            threads: 0,
            pages,
            habit: Habit::None,
            evict_all: true,
            inactive: 0,
            stage: 32,
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
            let entry = self.pager.index.get(at);
            assert_eq!(entry.kind(), Kind::Stored, "{at:#x}");
            entry.id()
        });
        ids.collect::<BTreeSet<u32>>().len()
    }

    pub fn kind(&self, at: usize) -> Kind {
        self.pager.index.get(at).kind()
    }
}

#[test]
fn a_window_that_has_become_two_mappings_comes_in() {
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    scene.go_on();
    assert_eq!(scene.kind(BASE), Kind::Stored);
    scene.world.borrow_mut().memory.change(pages(7..128), |vma| vma.writable = false);
    scene.reads_back(pages(0..16), 0);
}

#[test]
fn fresh_memory_beside_another_mapping_is_filled() {
    let mut scene = Scene::new();
    scene.write(pages(0..2));
    scene.go_on();
    scene.world.borrow_mut().memory.change(pages(20..24), |vma| vma.locked = true);
    for at in pages(16..32).step_by(PAGE) {
        assert!(scene.touch(at, (at / PAGE).is_multiple_of(2).then_some(7)).is_done());
    }
}

#[test]
fn read_ahead_leaves_guards_where_they_are() {
    let mut scene = Scene::new();
    scene.write(pages(0..2));
    scene.go_on();
    let guards = [pages(37..38).start, pages(52..53).start, pages(70..71).start];
    for guard in guards {
        scene.world.borrow_mut().memory.markers.insert(guard, Marker::Guard);
    }
    for at in pages(16..96).step_by(PAGE).filter(|at| !guards.contains(at)) {
        assert!(scene.touch(at, Some(7)).is_done());
    }
    for guard in guards {
        assert_eq!(scene.touch(guard, None), Access::Segv);
    }
}

#[test]
fn a_page_that_the_kernel_took_back_from_the_stage_reads_as_zeros() {
    let mut scene = Scene::new();
    scene.write(pages(0..4));
    scene.turn();
    assert_eq!(scene.kind(BASE), Kind::Staged);
    let slot = scene.pager.index.get(BASE).id() / 16;
    let gone = scene.pager.stage.at(slot) + 2 * PAGE;
    scene.world.borrow_mut().memory.remove(gone).expect("it was there");
    scene.reads_back(pages(0..2), 0);
    assert_eq!(scene.touch(pages(2..3).start, None), Access::Done(0));
    scene.reads_back(pages(3..4), 0);
}

#[test]
fn a_page_that_vanishes_under_a_worker_is_zeros() {
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    scene.turn();
    scene.turn();
    let slot = scene.pager.index.get(BASE).id() / 16;
    assert_eq!(scene.pager.stage.slot(slot).used, Use::InFlight);
    let gone = scene.pager.stage.at(slot) + 5 * PAGE;
    scene.world.borrow_mut().memory.remove(gone).expect("it was there");
    assert_eq!(scene.world.borrow_mut().memory.access(SOMEBODY, BASE, None), Access::Fault);
    for worker in (0..WORKERS).cycle().take(20) {
        scene.world.borrow_mut().step_worker(worker);
    }
    scene.turn();
    assert!(!scene.world.borrow().memory.blocked.contains(&SOMEBODY));
    scene.reads_back(pages(0..5), 0);
    assert_eq!(scene.touch(pages(5..6).start, None), Access::Done(0));
}

#[test]
fn who_misses_alone_gets_a_page_of_stock() {
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    scene.go_on();
    let opened = |scene: &Scene| {
        let slots = (0..scene.pager.stage.slots() as u32).map(|slot| scene.pager.stage.slot(slot));
        slots.filter(|s| s.used == Use::Opened).map(|s| s.present.count_ones()).collect::<Vec<_>>()
    };
    scene.reads_back(pages(3..4), 0);
    assert_eq!(opened(&scene), [], "others may run: a copy");
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    scene.go_on();
    scene.pager.set_alone(true);
    scene.reads_back(pages(3..4), 0);
    assert_eq!(opened(&scene), [15]);
    scene.reads_back(pages(0..16), 0);
}

#[test]
fn pages_that_could_not_be_discarded_are_tried_again() {
    let mut scene = Scene::new();
    scene.write(pages(0..5));
    scene.world.borrow_mut().stubborn = true;
    scene.go_on();
    let slots = 0..scene.pager.stage.slots() as u32;
    let used =
        |scene: &Scene| slots.clone().filter(|&s| scene.pager.stage.slot(s).used == Use::Waste).count();
    assert_eq!(used(&scene), 1);
    scene.world.borrow_mut().stubborn = false;
    scene.go_on();
    assert_eq!(used(&scene), 0);
    scene.reads_back(pages(0..5), 0);
}

#[test]
fn a_full_pool_is_tried_again() {
    let mut scene = Scene::new();
    scene.write(pages(0..40));
    scene.world.borrow_mut().shelves.fill_up(u64::MAX);
    scene.go_on();
    assert_eq!(scene.pager.stored_bytes(), 0);
    scene.world.borrow_mut().shelves.fill_up(0);
    scene.go_on();
    assert_eq!(scene.pager.stored_bytes(), 40 * PAGE);
    scene.reads_back(pages(0..40), 0);
}

#[test]
fn who_waited_for_room_where_nothing_is_any_more_is_not_hungry_later() {
    let mut scene = Scene::new();
    let limit = 16 << 20;
    *scene.pager.limit.marks_mut() = vmscan::watermark::Watermarks::new(limit, 1, vmscan::watermark::UNKNOWN);
    for second in [1, 50] {
        scene.world.borrow_mut().clock = second * 1_000_000;
        scene.pager.faults.wait(crate::fault_queue::Fault {
            at: BASE,
            write: true,
            protected: false,
            since_ns: 0,
        });
        scene.pager.turn(2 * limit);
        assert!(scene.pager.faults.has_waiting(), "there is room");
        let now = scene.pager.kernel.now_ns();
        assert!(scene.pager.hungry_ns(now) < 1_000_000_000, "{second}");
        assert!(scene.pager.faults.forget(&pages(0..1)));
        scene.pager.turn(0);
    }
}

#[test]
fn who_has_to_wait_for_its_turn_waits_until_then_and_is_counted() {
    let mut scene = Scene::new();
    scene.write(pages(0..4));
    scene.go_on();
    assert!(scene.pager.stored_bytes() > 0);
    scene.pager.park(true);
    let access = scene.world.borrow_mut().memory.access(SOMEBODY, BASE, None);
    assert_eq!(access, Access::Fault);
    scene.go_on();
    assert!(scene.world.borrow().memory.blocked.contains(&SOMEBODY), "it is served before its turn");
    assert_eq!((scene.pager.waiting_since_ns(), scene.pager.wants_results()), (None, 0), "it lacks no room");
    scene.world.borrow_mut().clock += 1000;
    scene.pager.park(false);
    scene.turn();
    assert!(!scene.world.borrow().memory.blocked.contains(&SOMEBODY));
    assert!(scene.pager.stat.parked_ns.load(std::sync::atomic::Ordering::Relaxed) > 0);
    scene.reads_back(pages(0..4), 0);
    // Not those that retire: all comes home.
    scene.go_on();
    scene.pager.park(true);
    scene.world.borrow_mut().memory.access(SOMEBODY, BASE, None);
    scene.turn();
    scene.pager.retire();
    assert!(!scene.world.borrow().memory.blocked.contains(&SOMEBODY));
}

/// A signal has interrupted it in its fault, say, and another thread has unmapped the page.
#[test]
fn a_fault_that_waits_for_its_turn_is_forgotten_with_its_mapping() {
    let mut scene = Scene::new();
    scene.write(pages(0..4));
    scene.go_on();
    scene.pager.park(true);
    scene.world.borrow_mut().memory.access(SOMEBODY, BASE, None);
    scene.turn();
    scene.world.borrow_mut().memory.unmap(pages(0..4));
    scene.raise(Message::Unmap(pages(0..4)));
    scene.turn();
    assert!(!scene.world.borrow().memory.blocked.contains(&SOMEBODY), "it is not let go on");
    scene.pager.park(false);
    assert!(scene.pager.faults.is_empty());
}

#[test]
fn what_mremap_added_to_a_mapping_is_unregistered_too() {
    let mut scene = Scene::new();
    scene.world.borrow_mut().memory.unmap(pages(32..128));
    scene.write(pages(0..4));
    scene.go_on();
    scene.pager.pause(true);
    // Moved and grown; the event names the old length alone, and then the old part goes.
    scene.world.borrow_mut().memory.remap(pages(16..20), pages(64..65).start, 8 * PAGE, false);
    scene.raise(Message::Remap { from: pages(16..20), to: pages(64..65).start });
    scene.turn();
    scene.raise(Message::Unmap(pages(16..20)));
    scene.turn();
    scene.world.borrow_mut().memory.unmap(pages(64..68));
    scene.raise(Message::Unmap(pages(64..68)));
    scene.turn();
    scene.pager.retire();
    let world = scene.world.borrow();
    assert!(world.memory.vmas().all(|(_, vma)| vma.engine || !vma.registered));
}

/// mremap grows a locked mapping: it fills page 100, for which a thread waits here, before the event comes that stops everything else.
fn mremap_fills_first(scene: &mut Scene) {
    let at = pages(100..101).start;
    assert_eq!(scene.world.borrow_mut().memory.access(SOMEBODY, at, Some(1)), Access::Fault);
    let memory = &mut scene.world.borrow_mut().memory;
    memory.changing += 1;
    memory.fills_first = Some(at);
}

#[test]
fn guards_where_a_mapping_has_left_do_not_empty_it_where_it_went() {
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    scene.go_on();
    {
        let memory = &mut scene.world.borrow_mut().memory;
        memory.unmap(pages(64..80));
        memory.remap(pages(0..16), pages(64..65).start, 16 * PAGE, false);
    }
    mremap_fills_first(&mut scene);
    // Its event is not read yet when another thread, which has the place now, asks that it be forgotten.
    scene.raise(Message::Remap { from: pages(0..16), to: pages(64..65).start });
    scene.pager.disown(pages(0..16));
    scene.reads_back(pages(64..80), 64 * PAGE as isize);
}

#[test]
fn the_doorbell_is_answered_while_mremap_waits_for_its_own_fill() {
    let mut scene = Scene::new();
    scene.write(pages(0..2));
    scene.go_on();
    assert_eq!(scene.world.borrow_mut().memory.access(SOMEBODY, DOORBELL, None), Access::Fault);
    scene.pager.settle();
    mremap_fills_first(&mut scene);
    scene.pager.answer();
    assert_eq!(scene.world.borrow().memory.changing, 0);
}

/// Who is woken may come to its read of the bell much later.
#[test]
fn a_bell_stays_full_for_who_has_rung_and_is_empty_for_the_next() {
    let mut scene = Scene::new();
    for ring in 0..3 * WINDOW_PAGES {
        let bell = |ring: usize| DOORBELL + ring % WINDOW_PAGES * PAGE;
        let touch =
            |scene: &mut Scene, ring| scene.world.borrow_mut().memory.access(SOMEBODY, bell(ring), None);
        assert_eq!(touch(&mut scene, ring), Access::Fault);
        scene.pager.settle();
        assert!(scene.pager.has_rung());
        scene.pager.answer();
        assert!(!scene.pager.has_rung());
        for late in ring - ring.min(3)..=ring {
            assert_eq!(touch(&mut scene, late), Access::Done(0), "ring {late} at ring {ring}");
        }
    }
}

#[test]
fn a_range_that_is_let_go_is_home_and_empty_of_us() {
    let mut scene = Scene::new();
    scene.write(pages(0..32));
    scene.go_on();
    scene.write(pages(40..44));
    scene.turn();
    mremap_fills_first(&mut scene);
    let range = pages(8..42);
    scene.pager.let_go(range.clone());
    assert_eq!(scene.pager.check(), Ok(()));
    let mut world = scene.world.borrow_mut();
    for at in pages(8..32).chain(pages(40..42)).step_by(PAGE) {
        assert_eq!(world.memory.access(SOMEBODY, at, None), Access::Done(at as Content), "{at:#x}");
    }
    assert!(world.memory.vmas_in(range).iter().all(|(found, vma)| {
        !vma.registered || found.end <= pages(8..42).start || found.start >= pages(8..42).end
    }));
    drop(world);
    scene.reads_back(pages(0..32), 0);
}

#[test]
fn a_page_of_zeros_that_is_let_go_is_not_a_hole() {
    let mut scene = Scene::new();
    for at in pages(0..4).step_by(PAGE) {
        assert!(scene.touch(at, Some(0)).is_done());
    }
    scene.go_on();
    assert_eq!(scene.kind(BASE), Kind::Zero);
    scene.pager.let_go(pages(0..4));
    for at in pages(0..4).step_by(PAGE) {
        assert!(scene.world.borrow().memory.page(at).is_some(), "{at:#x}");
    }
}

#[test]
fn an_empty_mapping_is_not_registered_by_the_hand() {
    let mut scene = Scene::new();
    scene.world.borrow_mut().memory.unmap(pages(64..80));
    scene.write(pages(0..4));
    scene.go_on();
    let world = scene.world.borrow();
    assert!(world.memory.vma(pages(0..1).start).is_some_and(|(_, vma)| vma.registered));
    assert!(world.memory.vma(pages(80..81).start).is_some_and(|(_, vma)| !vma.registered));
}

/// Faults elsewhere until the last ones are forgotten, so that the next is alone in its window.
fn wander(scene: &mut Scene) {
    for window in 1..8 {
        for page in 0..5 {
            scene.pager.ahead.fault(BASE + (window * 64 + page * 1024) * PAGE);
        }
    }
}

#[test]
fn an_object_whose_pages_are_picked_one_by_one_is_split() {
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    scene.go_on();
    assert_eq!((scene.pager.stored_bytes(), scene.world.borrow().shelves.objects()), (16 * PAGE, 1));
    for page in [3, 9] {
        wander(&mut scene);
        scene.reads_back(pages(page..page + 1), 0);
    }
    let kinds = |scene: &Scene, kind| (0..16).filter(|&p| scene.kind(BASE + p * PAGE) == kind).count();
    // Those that were not asked for are on the stage, and the object that nobody depends on is gone.
    assert_eq!((kinds(&scene, Kind::Staged), kinds(&scene, Kind::Stored)), (14, 0));
    assert_eq!(scene.world.borrow().shelves.objects(), 0);
    scene.go_on();
    assert_eq!((scene.pager.stored_bytes(), scene.world.borrow().shelves.objects()), (16 * PAGE, 16));
    scene.reads_back(pages(0..16), 0);
}

#[test]
fn where_most_are_split_the_first_page_splits() {
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    scene.go_on();
    scene.pager.swapin.loads_of_single_pages(10_000);
    scene.reads_back(pages(3..4), 0);
    scene.go_on();
    assert_eq!((scene.pager.stored_bytes(), scene.world.borrow().shelves.objects()), (16 * PAGE, 16));
    scene.reads_back(pages(0..16), 0);
}

#[test]
fn pages_from_here_and_there_share_a_slot_and_become_objects_of_their_own() {
    let mut scene = Scene::new();
    for page in [2, 21, 40, 41, 77] {
        scene.write(pages(page..page + 1));
    }
    scene.pager.pause(false);
    scene.turn();
    let slots: std::collections::BTreeSet<u32> =
        [2, 21, 40, 41, 77].map(|p| scene.pager.index.get(BASE + p * PAGE).stage_page().0).into();
    assert_eq!(slots.len(), 1, "{slots:?}");
    scene.go_on();
    assert_eq!((scene.pager.stored_bytes(), scene.world.borrow().shelves.objects()), (5 * PAGE, 5));
    for page in [77, 2, 40, 41, 21] {
        scene.reads_back(pages(page..page + 1), 0);
    }
}

/// Pages that went out one by one lie in an object each. Once nobody has asked for them in a long time, and the pool is most of the memory, they
/// are one object, like a window that went out whole.
#[test]
fn a_window_in_pieces_becomes_one_object_when_it_is_cold() {
    let mut scene = Scene::new();
    scene.pager.limit.marks_mut().dense = usize::MAX;
    for page in 0..16 {
        scene.write(pages(page..page + 1));
        scene.go_on();
    }
    assert_eq!(scene.objects_of(pages(0..16)), 16);
    scene.pager.limit.marks_mut().dense = 0;
    scene.go_on();
    assert_eq!(scene.objects_of(pages(0..16)), 16, "they went out a short time ago");
    for _ in 0..8 {
        scene.write(pages(32..64));
        scene.go_on();
    }
    assert_eq!(scene.objects_of(pages(0..16)), 1);
    scene.reads_back(pages(0..16), 0);
}

#[test]
fn windows_in_pieces_are_packed_where_nothing_else_would_make_room() {
    let mut scene = Scene::new();
    scene.pager.limit.marks_mut().dense = usize::MAX;
    for page in 0..16 {
        scene.write(pages(page..page + 1));
        scene.go_on();
    }
    assert_eq!(scene.objects_of(pages(0..16)), 16);
    scene.pager.limit.evict_by_marks();
    scene.pager.limit.marks_mut().high = 0;
    scene.go_on();
    assert_eq!(scene.objects_of(pages(0..16)), 1);
    scene.reads_back(pages(0..16), 0);
}

#[test]
fn what_is_left_unchanged_of_a_window_keeps_no_object_for_itself() {
    for (changed, objects) in [(1..16, 1), (12..16, 2)] {
        let mut scene = Scene::new();
        scene.pager.limit.marks_mut().dense = usize::MAX;
        scene.write(pages(0..16));
        scene.go_on();
        assert_eq!(scene.objects_of(pages(0..16)), 1);
        // The third fault brings all of it.
        for _ in 0..2 {
            scene.pager.ahead.fault(BASE);
        }
        scene.reads_back(pages(0..16), 0);
        scene.pager.pause(true);
        for at in pages(changed.clone()).step_by(PAGE) {
            assert!(scene.touch(at, Some(1 + at as Content)).is_done());
        }
        scene.pager.pause(false);
        scene.go_on();
        assert_eq!(scene.objects_of(pages(0..16)), objects);
        scene.reads_back(pages(changed), -1);
    }
}

/// What the kernel has swapped counts, and must not keep a limit full for ever.
#[test]
fn what_the_kernel_has_swapped_is_taken_where_there_is_nothing_else() {
    let mut scene = Scene::new();
    scene.pager.limit.evict_by_marks();
    scene.write(pages(0..32));
    for at in pages(0..16).step_by(PAGE) {
        scene.world.borrow_mut().memory.page_mut(at).expect("just written").swapped = true;
    }
    let mut taken = Vec::new();
    for second in 1..20 {
        scene.world.borrow_mut().clock = second * 1_000_000;
        let got = scene.pager.evict(8 * PAGE);
        if got > 0 {
            taken.push(got / PAGE);
        }
        if scene.kind(BASE) == Kind::None {
            let rest = pages(16..32).step_by(PAGE).filter(|&at| scene.kind(at) == Kind::None).count();
            assert!(rest + taken.iter().sum::<usize>() == 16, "what is there goes first: {taken:?}");
        }
    }
    assert_eq!(taken.iter().sum::<usize>(), 32);
    assert!(!scene.pager.kernel.is_swapped());
    assert_eq!(scene.pager.check(), Ok(()));
    scene.reads_back(pages(0..32), 0);
}

/// The kernel refuses to move pages of a large folio whose first page was shared, whoever has them now.
#[test]
fn pages_of_a_large_folio_go_out_once_it_is_split() {
    let mut scene = Scene::new();
    scene.write(pages(0..16));
    for at in pages(0..16).step_by(PAGE) {
        scene.world.borrow_mut().memory.page_mut(at).expect("just written").bound = true;
    }
    for _ in 0..8 {
        scene.pager.evict(16 * PAGE);
    }
    assert!(pages(0..16).step_by(PAGE).all(|at| scene.kind(at) != Kind::None));
    scene.reads_back(pages(0..16), 0);
}

/// The hand remembers where there is nothing to take, and no event tells of a mapping that may be written to from now on.
#[test]
fn what_is_registered_anew_can_be_taken_at_once() {
    let mut scene = Scene::new();
    scene.pager.limit.evict_by_marks();
    scene.write(pages(0..32));
    let protect = |scene: &Scene, writable| {
        scene.world.borrow_mut().memory.change(pages(16..32), |vma| vma.writable = writable);
    };
    protect(&scene, false);
    assert_eq!(scene.pager.evict_occupied(pages(0..32), &mut 0), (16 * PAGE, None));
    protect(&scene, true);
    assert_eq!(scene.pager.evict_occupied(pages(16..32), &mut 0), (0, None), "not asked about again yet");
    assert!(scene.pager.enroll_each());
    assert_eq!(scene.pager.evict_occupied(pages(16..32), &mut 0), (16 * PAGE, None));
    assert_eq!(scene.pager.check(), Ok(()));
    scene.reads_back(pages(0..32), 0);
}

/// A program that goes through memory in order is not likely to want what it has just left before it has been everywhere else.
#[test]
fn what_a_stream_has_passed_goes_out_first_and_what_is_hot_stays() {
    let mut scene = Scene::new();
    scene.write(pages(0..128));
    scene.go_on();
    // What it learnt as the pages were written is forgotten.
    scene.pager.ahead.forget_streams();
    scene.reads_back(pages(0..64), 0);
    scene.pager.limit.evict_by_marks();
    // The hand is about to take the windows that the stream reads now.
    scene.pager.reclaim.go_on_from(pages(48..49).start);
    // As after a long time, but for one page.
    let hot = pages(21..22).start;
    for at in pages(0..64).step_by(PAGE) {
        let (entry, heat) = (scene.pager.index.get(at), if at == hot { Heat::HOT } else { Heat::COLD });
        scene.pager.index.set(at, entry.with_heat(heat));
    }
    // Of the first window two pages: it was split before it was known for a stream's.
    assert_eq!(scene.pager.evict(32 * PAGE), (2 + 15 + 16) * PAGE);
    assert_eq!(scene.pager.check(), Ok(()));
    for at in pages(16..64).step_by(PAGE) {
        let gone = at < pages(48..49).start && at != hot;
        assert_eq!(scene.kind(at), if gone { Kind::Staged } else { Kind::Clean }, "{at:#x}");
    }
    scene.reads_back(pages(0..128), 0);
}

/// What a reader has caught up with is taken back from the worker, and the slot is stock as before.
#[test]
fn a_fetch_that_is_overtaken_leaves_its_slot_as_stock() {
    let mut scene = Scene::new();
    scene.write(pages(0..128));
    scene.go_on();
    let stock = scene.pager.stage.stock_bytes();
    assert!(stock >= 4 * WINDOW, "{stock}");
    // The third fault brings the first window, the next one a stream, and no worker runs meanwhile.
    for at in [0, 1, 2, 16] {
        scene.reads_back(pages(at..at + 1), 0);
    }
    assert!(!scene.pager.ahead.under_way().is_empty());
    let before = scene.pager.stage.stock_bytes();
    scene.reads_back(pages(32..33), 0);
    assert_eq!(scene.pager.stage.stock_bytes(), before, "one back, one used");
    scene.reads_back(pages(0..128), 0);
}

/// A child knows of nothing that is out, and so has registered nothing: its writes to what its parent has too are told all the same.
#[test]
fn what_is_not_registered_yet_is_protected_too() {
    let mut scene = Scene::new();
    scene.pager.pause(true);
    scene.write(pages(0..32));
    scene.world.borrow_mut().memory.change(pages(0..128), |vma| vma.registered = false);
    scene.pager.regions.unregister(&(0..1 << 47));
    let _child = scene.world.borrow_mut().memory.fork();
    scene.pager.share();
    let world = scene.world.borrow();
    assert!(pages(0..32).step_by(PAGE).all(|at| world.memory.page(at).is_some_and(|page| page.protected)));
}

/// What it holds beyond its limit nobody can take: to look for more at every turn took most of a CPU.
#[test]
fn the_hand_rests_where_there_is_nothing_to_take_until_something_comes_in() {
    const HELD: usize = 64 << 20;
    let mut scene = Scene::new();
    scene.write(pages(0..4));
    scene.go_on();
    scene.pager.limit.evict_by_marks();
    scene.pager.set_limit(HELD / 2, 1, vmscan::watermark::UNKNOWN);
    let turns = |scene: &mut Scene| {
        for _ in 0..20 {
            scene.world.borrow_mut().calls = 0;
            scene.pager.turn(HELD);
        }
        scene.pager.reclaim.rests(scene.pager.kernel.now_ns())
    };
    assert!(turns(&mut scene));
    scene.reads_back(pages(0..1), 0);
    assert!(!scene.pager.reclaim.rests(scene.pager.kernel.now_ns()));
    assert!(turns(&mut scene), "it has gone round again");
    assert_eq!(scene.kind(BASE), Kind::Staged, "and found what came in");
}
