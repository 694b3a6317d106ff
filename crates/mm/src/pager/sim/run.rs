//! One run from a seed: turns of the pager while the program lives, then everything is read, unmapped, and must be
//! gone.

use super::advice;
use super::area::{self, SimArea};
use super::bugs::Bugs;
use super::counts::counts_of_area;
use super::fork::fork;
use super::huge::HUGE;
use super::kernel::SimKernel;
use super::memory::{Content, Memory, Task, Vma};
use super::own;
use super::program::{self, Habit, Program};
use super::shadow::Shadow;
use super::store::{Record, Shelves, SimStore};
use super::{Shared, World};
use crate::inactive::Use;
use crate::pager::{Config, Pager};
use crate::ranges::RangeSet;
use crate::shared_store::Unlogged;
use base::{PageMask, Random};
use memcg::{Counts, Stat};
use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use vmscan::watermark::Watermarks;
use vmscan::{PAGE, WINDOW};

/// Where the engine's memory lies.
const INACTIVE: usize = 0x70_0000_0000;
const BOUNCE: usize = 0x71_0000_0000;
const FRESH: usize = 0x72_0000_0000;
pub const DOORBELL: usize = 0x73_0000_0000;

const FRESH_BYTES: usize = 3 * WINDOW;

/// Turns after which a thread that still waits is taken to wait for ever.
const PATIENCE: usize = 400;

/// What a run is like.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Steps of the program's threads.
    pub steps: usize,
    pub threads: usize,
    /// Pages of the program's address space.
    pub pages: usize,
    pub habit: Habit,
    /// Threads get signals.
    pub signals: bool,
    /// Windows of the inactive list.
    pub inactive_windows: usize,
    /// Everything goes out all the time; otherwise watermarks decide.
    pub evict_all: bool,
    /// Where watermarks decide, there is room for all of it; now and then somebody has most of it go out.
    pub roomy: bool,
    /// Windows that stay on the inactive list as second chance, where everything goes out all the time.
    pub inactive: usize,
    /// Everything is brought home once in so many turns; 0: never.
    pub retire: usize,
    /// The process forks once in so many turns; 0: never.
    pub fork: usize,
    /// Of so many turns the process has to wait for its own in a third; 0: it never does.
    pub park: usize,
    /// One object in so many is damaged; 0: none.
    pub damage: usize,
    /// The pool is full now and then.
    pub tight: bool,
    /// The machine swaps what it likes of the program and the engine.
    pub swaps: bool,
    /// The kernel makes huge pages.
    pub huge: bool,
    /// There is a swap area, of whose writes and reads one in so many fails; 0: none.
    pub area: Option<usize>,
    /// Where there is one: how large the pool may be, in bytes.
    pub pool: usize,
    /// The program advises something now and then.
    pub advice: bool,
    /// The kernel tells which pages are touched.
    pub touches: bool,
    pub bugs: Bugs,
}

impl Plan {
    /// A plan chosen by the seed.
    pub fn any(seed: u64) -> Plan {
        let mut random = Random(!seed);
        Plan {
            steps: 2000,
            threads: 1 + random.below(4),
            pages: 64 + random.below(400),
            habit: *random.pick(&[Habit::None, Habit::None, Habit::Discards, Habit::Remaps, Habit::Forks]),
            signals: random.one_in(2),
            inactive_windows: 8 + random.below(48),
            evict_all: random.one_in(2),
            roomy: false,
            inactive: random.below(4),
            retire: 0,
            fork: 0,
            park: 0,
            damage: 0,
            tight: false,
            swaps: false,
            huge: false,
            area: None,
            pool: 0,
            advice: false,
            touches: false,
            bugs: Bugs::default(),
        }
    }
}

/// What happened in a run, to see that it was worth its time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub turns: usize,
    pub evicted: u64,
    pub activated: u64,
    pub stored: u64,
    pub loaded: u64,
    pub reused: u64,
    pub ahead: u64,
    pub prefetched: u64,
    pub recompressed: u64,
    pub referenced: u64,
    /// Huge pages that were filled, that went out whole, and that were taken apart on their way.
    pub filled: u64,
    pub huge: u64,
    pub split: u64,
    /// That came back whole, and that were made of what came back in parts.
    pub returned: u64,
    pub collapsed: u64,
    pub events: u64,
    pub lost: usize,
    /// Objects that were written to an area, and read from there.
    pub written: usize,
    pub read: usize,
    pub children: usize,
    /// Children of which it could not be told what they have.
    pub unclear: usize,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.turns += other.turns;
        self.evicted += other.evicted;
        self.activated += other.activated;
        self.stored += other.stored;
        self.loaded += other.loaded;
        self.reused += other.reused;
        self.ahead += other.ahead;
        self.prefetched += other.prefetched;
        self.recompressed += other.recompressed;
        self.referenced += other.referenced;
        self.filled += other.filled;
        self.huge += other.huge;
        self.split += other.split;
        self.returned += other.returned;
        self.collapsed += other.collapsed;
        self.events += other.events;
        self.lost += other.lost;
        self.written += other.written;
        self.read += other.read;
        self.children += other.children;
        self.unclear += other.unclear;
    }
}

/// Runs a plan; the error is what went wrong, with seed and trace.
pub fn run(seed: u64, plan: &Plan) -> Result<Tally, String> {
    let world = Rc::new(RefCell::new(world(seed, plan)));
    let shared = world.clone();
    let stat = Stat::default();
    let play = || {
        let mut pager = pager(&shared, plan, &stat);
        live(shared.clone(), plan, &mut pager)
    };
    catch_unwind(AssertUnwindSafe(play)).map_err(|panic| {
        format!("{}\nseed {seed}, {plan:?}\nthe last events:\n{}", words(panic), world.borrow())
    })
}

/// The world at the beginning of a run.
pub fn world(seed: u64, plan: &Plan) -> World {
    let mut memory = Memory::default();
    memory.keeps_protection = seed.is_multiple_of(2);
    memory.tells_touches = plan.touches;
    map_engine(&mut memory, plan);
    let mut program = Program::new(plan.threads, plan.pages, plan.habit);
    (program.signals, program.swaps, program.huge) = (plan.signals, plan.swaps, plan.huge);
    memory.map(program.space(), program::fresh());
    World {
        random: Random(seed),
        memory,
        shadow: Shadow::default(),
        program,
        shelves: Shelves::new(plan.damage, plan.tight, plan.area.map(SimArea::new)),
        bugs: plan.bugs.clone(),
        scripted: false,
        held: 0..0,
        pinned: RangeSet::default(),
        spared: 0..0,
        bell: Default::default(),
        stubborn: false,
        is_taking: false,
        early: Default::default(),
        wiped: Vec::new(),
        clock: 0,
        calls: 0,
        asked: 0,
        ask_ticks: 0,
        trace: VecDeque::new(),
    }
}

/// The engine's own mappings.
pub fn map_engine(memory: &mut Memory, plan: &Plan) {
    let engine = |registered| Vma { engine: true, registered, ..program::fresh() };
    memory.map(INACTIVE..INACTIVE + plan.inactive_windows * WINDOW, Vma { silent: true, ..engine(true) });
    memory.map(BOUNCE..BOUNCE + WINDOW, engine(false));
    memory.map(FRESH..FRESH + FRESH_BYTES, engine(false));
    memory.map(DOORBELL..DOORBELL + WINDOW, engine(true));
}

/// The marks of a process that holds `pages` pages: more than half of it must be out.
fn marks(pages: usize) -> Watermarks {
    let low = (pages / 3 + 40) * PAGE;
    Watermarks {
        limit: usize::MAX,
        wake: low,
        low,
        high: low + 40 * PAGE,
        max: low + 60 * PAGE,
        clean: pages * PAGE / 32,
        dense: pages * PAGE / 12,
        inactive: 0,
        stock: 2 * WINDOW,
        in_flight: 3 * WINDOW,
    }
}

/// A pager in a simulated world.
pub type Simulated<'a> = Pager<'a, SimKernel, SimStore>;

pub fn config(plan: &Plan) -> Config {
    Config {
        inactive: (INACTIVE, plan.inactive_windows * WINDOW),
        huge_bytes: HUGE,
        bounce: BOUNCE,
        fresh: (FRESH, FRESH_BYTES),
        doorbell: DOORBELL,
        evict_all: plan.evict_all,
    }
}

/// The pager of a run.
pub fn pager<'a>(world: &Shared, plan: &Plan, stat: &'a Stat) -> Simulated<'a> {
    let (kernel, store) = (SimKernel(world.clone()), SimStore(world.clone()));
    let mut pager = Pager::new(kernel, store, stat, config(plan), 1 << 30);
    if let Some(area) = &world.borrow().shelves.area {
        pager.open_areas(area.slots());
    }
    set_up(&mut pager, world, plan);
    pager
}

pub fn set_up(pager: &mut Simulated, world: &Shared, plan: &Plan) {
    pager.set_alone(world.borrow().random.0.is_multiple_of(2));
    pager.set_limit(1 << 30, 1, vmscan::watermark::UNKNOWN);
    let marks = match plan.evict_all {
        true => {
            let dense = plan.pages * PAGE / 12;
            Watermarks { inactive: plan.inactive * WINDOW, dense, ..*pager.marks() }
        }
        false => {
            let inactive = if plan.huge { 2 * HUGE } else { 2 * WINDOW };
            Watermarks { inactive, ..marks(if plan.roomy { 12 * plan.pages } else { plan.pages }) }
        }
    };
    *pager.limit.marks_mut() = marks;
    pager.set_pool_limit(plan.pool, 90);
    pager.set_shrinker(world.borrow().random.0.is_multiple_of(3));
}

/// Some of what relatives have too is told to the family, which is not always right; some of what was told is
/// heeded. With no relative left what is in the log comes home.
fn tell(world: &Shared, pager: &mut Simulated) {
    if !pager.shares() {
        if world.borrow_mut().chance(4) {
            pager.bring_logs_home();
        }
        return;
    }
    if world.borrow_mut().chance(2)
        && let Unlogged::Pages(window, pages) = pager.unlogged()
    {
        let mut world = world.borrow_mut();
        let mut contents = Vec::new();
        let mut told = PageMask::NONE;
        for page in pages.iter() {
            if let Some(content) = world.memory.page(window + page * PAGE).map(|page| page.content) {
                let is_wrong = world.random.one_in(20);
                contents.push(if is_wrong { Content::MAX } else { content });
                told.insert(page);
            }
        }
        if !told.is_empty() {
            world.shelves.tell(window, told, contents);
        }
    }
    let choice = {
        let mut world = world.borrow_mut();
        if world.random.one_in(2) { 0 } else { world.random.below(1000) }
    };
    let told = world.borrow().shelves.told(choice);
    if let Some((Record { window, pages, .. }, body)) = told {
        let borrowed = world.borrow_mut().random.one_in(2);
        pager.note_record(window, pages, body, borrowed);
    }
}

pub fn words(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(words) => *words,
        Err(panic) => panic.downcast_ref::<&str>().map(|s| s.to_string()).unwrap_or_default(),
    }
}

pub fn live(world: Shared, plan: &Plan, pager: &mut Simulated) -> Tally {
    let stat = pager.stat;
    let mut born = Tally::default();
    let mut turns = 0;
    let mut turn = |pager: &mut Simulated| {
        turns += 1;
        pager.park(plan.park > 0 && turns % plan.park < plan.park / 3);
        // Somebody asks for memory now and then, and says at times that none is to go to areas.
        let (often, long, part) = if plan.roomy { (200, 40, 16) } else { (50, 10, 4) };
        pager.ask((turns % often < long).then_some(plan.pages * PAGE / part));
        pager.set_writeback(turns % 40 >= 10);
        pager.close_pool(plan.pool == 0 && turns % 60 < 40);
        if plan.advice {
            advice::advise(&world, pager, turns);
        }
        take_turn(&world, pager, turns);
        turns
    };
    while world.borrow().program.steps < plan.steps {
        let turns = turn(pager);
        if plan.retire > 0 && turns % plan.retire == 0 {
            world.borrow_mut().calls = 0;
            pager.retire();
            retired(&world, pager);
            pager.pause(true);
            for _ in 0..20 {
                turn(pager);
            }
            pager.pause(false);
        }
        // Who forks has the bell for it.
        if plan.fork > 0 && turns % plan.fork == 0 && world.borrow().bell.is_free() {
            born += fork(&world, pager, plan);
        }
        if plan.fork > 0 {
            tell(&world, pager);
            if world.borrow_mut().chance(50) {
                pager.thaw();
            }
        }
        if turns % 16 == 0 {
            pager.give_back_slots();
        }
    }
    world.borrow_mut().program.closing = true;
    while !world.borrow().program.is_idle() {
        turn(pager);
    }
    let space = world.borrow().program.space();
    let now = world.borrow().memory.turn;
    world.borrow_mut().program.read_all(space, now);
    while !world.borrow().program.is_idle() {
        turn(pager);
    }
    world.borrow_mut().program.bury();
    world.borrow_mut().unmap_all();
    for _ in 0..PATIENCE {
        turn(pager);
    }
    ended(&world, pager);
    area::ended(&world, pager);
    counts_of_area(&world, pager);
    let counts = Counts::from(stat);
    let own = Tally {
        turns,
        evicted: counts.pgdeactivate,
        activated: counts.pgactivate,
        stored: counts.zswpout,
        loaded: counts.zswpin,
        reused: counts.clean_reused,
        ahead: counts.readahead,
        prefetched: counts.prefetched,
        recompressed: counts.packed,
        referenced: counts.referenced,
        filled: counts.thp_fault_alloc,
        huge: counts.thp_swpout,
        split: counts.thp_swpout_fallback,
        returned: counts.thp_swpin,
        collapsed: counts.thp_collapse_alloc,
        events: counts.events,
        lost: world.borrow().program.lost.len(),
        written: world.borrow().shelves.area.as_ref().map_or(0, |area| area.written),
        read: world.borrow().shelves.area.as_ref().map_or(0, |area| area.read),
        ..Tally::default()
    };
    born += own;
    born
}

/// A turn of the pager, and what must hold after it.
fn take_turn(world: &Shared, pager: &mut Simulated, turn: usize) {
    let footprint = {
        let mut world = world.borrow_mut();
        world.memory.turn = turn;
        world.calls = 0;
        world.season();
        world.footprint()
    };
    pager.turn(footprint);
    own::answer(world, pager);
    if let Err(words) = pager.check() {
        panic!("{words}");
    }
    let mut world = world.borrow_mut();
    for pin in world.program.listed_pins() {
        assert!(world.memory.page(pin).is_some(), "the control block at {pin:#x} stays out");
    }
    if let Some(thread) = world.program.stuck(turn.saturating_sub(PATIENCE)) {
        panic!("thread {thread} waits for {PATIENCE} turns and comes no further");
    }
    if world.memory.changing == 0 {
        agrees(&world, pager);
    }
    let steps = world.random.below(6);
    world.run_on(steps);
}

/// With no event under way, what the swap map says is out is a hole of a registered mapping.
pub fn agrees(world: &World, pager: &Simulated) {
    let mut at = 0;
    while let Some((page, entry)) = pager.map.next_used(at, 1 << 47) {
        at = page + PAGE;
        if !entry.kind().is_out() {
            continue;
        }
        let Some((_, vma)) = world.memory.vma(page) else {
            panic!("the swap map knows of {page:#x} ({entry:?}), which is not mapped");
        };
        assert!(vma.registered, "{page:#x} is out ({entry:?}) and not registered");
        if let Some(found) = world.memory.page(page) {
            panic!("{page:#x} is out ({entry:?}) and no hole: {found:?}");
        }
    }
}

/// Everything is home, and nothing is registered.
fn retired(world: &Shared, pager: &Simulated) {
    if let Err(words) = pager.check() {
        panic!("after retiring: {words}");
    }
    let world = world.borrow();
    assert!(pager.is_idle(), "the pager retires and is not idle");
    if let Some((range, _)) = world.memory.vmas().find(|(_, v)| v.registered && !v.engine) {
        panic!("{range:x?} stays registered, and would be missing in a child");
    }
    assert!(
        !world.memory.blocked.iter().any(|t| matches!(t, Task::Thread(_))) || world.memory.changing > 0,
        "the pager retires and leaves a thread waiting"
    );
}

/// The program has unmapped everything: nothing is left of it.
fn ended(world: &Shared, pager: &Simulated) {
    assert_eq!(pager.map.next_used(0, 1 << 48), None, "an entry is left");
    assert_eq!(pager.objects.iter().count(), 0, "an object is left");
    assert_eq!(pager.stored_bytes(), 0, "stored pages are counted and not there");
    let busy = pager
        .inactive
        .slots()
        .map(|slot| pager.inactive.slot(slot).used)
        .filter(|used| !matches!(used, Use::Free | Use::Stock | Use::Opened | Use::Spent))
        .count();
    assert_eq!(busy, 0, "slots of the inactive list are left");
    assert_eq!(world.borrow().shelves.objects(), 0, "the store keeps an object that nobody names");
}
