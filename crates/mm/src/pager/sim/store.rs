//! The simulated store: objects by value, and workers that go through the inactive list page by page.

use super::area::{AreaWork, Sealed, SimArea};
use super::memory::{Access, Content, Task};
use super::{Shared, World};
use crate::kernel::{Damaged, Done, Fetch, Job, Prior, Spare, Store, Stored, WINDOW_PAGES};
use base::PageMask;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use vmscan::PAGE;
use zswap::objects::{Areas, Batch, Body, Contents, Read};

/// How many workers there are.
pub const WORKERS: usize = 2;

/// What lies in a buffer after a load that failed. Nobody may ever see it.
const GARBAGE: Content = Content::MAX;

/// What one page takes in the pool.
pub const COMPRESSED: usize = PAGE / 4;

fn fingerprint(pages: &[Content]) -> u32 {
    pages.iter().fold(0, |print, &c| print.rotate_left(5) ^ c as u32)
}

/// The pager's view of the world.
pub struct SimStore(pub Shared);

#[derive(Clone, Copy)]
#[expect(clippy::large_enum_variant, reason = "a few of them, and a box would not be copied")]
enum Work {
    /// With what its priors held as it was put up.
    Store(Job, [Option<Content>; WINDOW_PAGES]),
    Fetch(Fetch),
}

impl Work {
    fn slot(&self) -> u32 {
        match self {
            Work::Store(job, _) => job.slot,
            Work::Fetch(fetch) => fetch.slot,
        }
    }
}

/// Work that has begun.
struct Begun {
    work: Work,
    /// The next page.
    page: usize,
    seen: [Content; WINDOW_PAGES],
    reused: PageMask,
}

#[derive(Clone)]
pub struct Object {
    pub pages: Vec<Content>,
    pub damaged: bool,
}

/// What a log says of a window: which pages, and what they hold, in order.
#[derive(Clone, Debug)]
pub struct Record {
    pub window: usize,
    pub pages: PageMask,
    contents: Vec<Content>,
}

/// The store's state.
#[derive(Default)]
pub struct Shelves {
    /// The log of a family.
    log: Rc<RefCell<Vec<Record>>>,
    objects: Vec<Option<Object>>,
    queue: Vec<Work>,
    workers: [Option<Begun>; WORKERS],
    done: Vec<Done>,
    /// The pool has no memory until then.
    full_until: u64,
    /// One in so many objects is damaged; 0: none.
    damage: usize,
    /// The pool is full for a while, now and then.
    tight: bool,
    /// Contents that were in damaged objects.
    pub damaged: BTreeSet<Content>,
    /// Where there is one.
    pub area: Option<SimArea>,
}

impl Shelves {
    pub fn new(damage: usize, tight: bool, area: Option<SimArea>) -> Shelves {
        Shelves { damage, tight, area, ..Shelves::default() }
    }

    /// From now on no object is what it was.
    pub fn damage_all(&mut self) {
        self.objects.iter_mut().flatten().for_each(|object| object.damaged = true);
    }

    fn object(&self, handle: u32) -> &Object {
        self.objects[handle as usize].as_ref().expect("an object that was freed is used")
    }

    fn prior(&self, prior: Prior) -> Content {
        if let Some(hash) = prior.hash {
            return hash as Content;
        }
        match prior.body {
            Body::Blob { handle, .. } => self.object(handle).pages[prior.page],
            Body::Same(word) => word,
            Body::Common { at, .. } => self.log.borrow()[at as usize].contents[prior.page],
            Body::Swapped => panic!("a job names a copy that is in an area"),
            Body::Dropped => panic!("a job names a copy that was given up"),
        }
    }

    /// True when work that has not ended reads the object.
    fn in_use(&self, handle: u32) -> bool {
        let is = |body: &Body| matches!(body, Body::Blob { handle: h, .. } if *h == handle);
        let names = |work: &Work| match work {
            Work::Store(..) => false,
            Work::Fetch(fetch) => is(&fetch.body),
        };
        self.queue.iter().any(names) || self.workers.iter().flatten().any(|b| names(&b.work))
    }

    /// What a child gets of it, while no work is under way.
    pub fn fork(&self) -> Shelves {
        let idle = self.queue.is_empty()
            && self.workers.iter().all(Option::is_none)
            && self.done.is_empty()
            && self.area.as_ref().is_none_or(|area| area.queue.is_empty());
        assert!(idle, "work is under way as the process forks");
        Shelves {
            log: self.log.clone(),
            objects: self.objects.clone(),
            damage: self.damage,
            tight: self.tight,
            damaged: self.damaged.clone(),
            area: self.area.as_ref().map(SimArea::fork),
            ..Shelves::default()
        }
    }

    /// The pool takes an object in; none where it has no memory until later.
    pub fn take_in(&mut self, object: Object, now: u64) -> Option<u32> {
        if now < self.full_until {
            return None;
        }
        // A handle is used again as soon as it is free.
        let free = self.objects.iter().position(Option::is_none).unwrap_or(self.objects.len());
        if free == self.objects.len() {
            self.objects.push(None);
        }
        self.objects[free] = Some(object);
        Some(free as u32)
    }

    /// A job is done.
    pub fn done(&mut self, done: Done) {
        self.done.push(done);
    }

    /// The pool has no memory until then.
    pub fn fill_up(&mut self, until: u64) {
        self.full_until = until;
    }

    fn pool_bytes(&self) -> usize {
        self.objects.iter().flatten().map(|o| o.pages.len() * COMPRESSED).sum()
    }

    /// The family is told of a window's pages.
    pub fn tell(&mut self, window: usize, pages: PageMask, contents: Vec<Content>) {
        self.log.borrow_mut().push(Record { window, pages, contents });
    }

    /// One of the log's records, if there are any: the last where `choice` is 0.
    pub fn told(&self, choice: usize) -> Option<(Record, Body)> {
        let log = self.log.borrow();
        let at = (log.len().checked_sub(1)? + choice) % log.len();
        let fingerprint = fingerprint(&log[at].contents);
        Some((log[at].clone(), Body::Common { log: 0, at: at as u32, fingerprint }))
    }

    /// How many objects there are.
    pub fn objects(&self) -> usize {
        self.objects.iter().flatten().count()
    }
}

/// True for contents that stand for a page which one word fills.
fn is_word(content: Content) -> bool {
    content < 100
}

impl World {
    /// One step of a worker: it takes work, or goes one page further.
    pub fn step_worker(&mut self, worker: usize) {
        if self.memory.blocked.contains(&Task::Worker(worker)) {
            return;
        }
        let Some(mut begun) = self.shelves.workers[worker].take() else {
            if !self.shelves.queue.is_empty() {
                let work = self.shelves.queue.swap_remove(self.random.below(self.shelves.queue.len()));
                self.shelves.workers[worker] =
                    Some(Begun { work, page: 0, seen: [0; WINDOW_PAGES], reused: PageMask::NONE });
            }
            return;
        };
        let ended = match begun.work {
            Work::Store(job, priors) => self.read_page(worker, &mut begun, job, &priors),
            Work::Fetch(fetch) => self.write_page(worker, &mut begun, fetch),
        };
        match ended {
            Some(done) => self.shelves.done.push(done),
            None => self.shelves.workers[worker] = Some(begun),
        }
    }

    /// Reads one page of a job.
    fn read_page(
        &mut self,
        worker: usize,
        begun: &mut Begun,
        job: Job,
        priors: &[Option<Content>; WINDOW_PAGES],
    ) -> Option<Done> {
        let Some(page) = job.pages.iter().find(|page| *page >= begun.page) else {
            return Some(self.put(begun, job));
        };
        let at = job.at + page * PAGE;
        if let Access::Done(content) = self.memory.access(Task::Worker(worker), at, None) {
            begun.seen[page] = content;
            let same = priors[page] == Some(content);
            if same || self.bugs.credulous && job.priors[page].is_some() {
                begun.reused.insert(page);
            }
            begun.page = page + 1;
        }
        None
    }

    /// A job has seen all its pages.
    fn put(&mut self, begun: &Begun, job: Job) -> Done {
        let reused = if begun.reused.count() < job.fewest { PageMask::NONE } else { begun.reused };
        let zero = job.pages.iter().filter(|&page| begun.seen[page] == 0).collect::<PageMask>() - reused;
        let in_bodies = job.pages - reused - zero;
        let pages: Vec<Content> = in_bodies.iter().map(|page| begun.seen[page]).collect();
        let filled = in_bodies.iter().filter(|page| is_word(begun.seen[*page])).collect();
        let mut bodies = [None; WINDOW_PAGES];
        for (body, pages) in bodies.iter_mut().zip(pages.chunks(job.unit)) {
            *body = self.put_object(pages.to_vec());
        }
        self.trace(
            "stored: slot, reused, in objects",
            [job.slot.into(), reused.to_u16().into(), in_bodies.to_u16().into()],
        );
        Done::Stored(Stored { slot: job.slot, reused, zero, in_bodies, filled, bodies })
    }

    /// A new object; none when the pool is full.
    fn put_object(&mut self, pages: Vec<Content>) -> Option<Body> {
        match pages[0] {
            word if is_word(word) && pages.iter().all(|&c| c == word) => Some(Body::Same(word)),
            _ if self.clock < self.shelves.full_until => None,
            _ => {
                let damaged = self.shelves.damage > 0 && self.random.one_in(self.shelves.damage);
                if damaged {
                    self.shelves.damaged.extend(&pages);
                }
                let (bytes, fingerprint) = ((pages.len() * COMPRESSED) as u32, fingerprint(&pages));
                let handle = self.shelves.take_in(Object { pages, damaged }, self.clock)?;
                Some(Body::Blob { handle, fingerprint, bytes })
            }
        }
    }

    /// Writes one page of a window that is loaded ahead.
    fn write_page(&mut self, worker: usize, begun: &mut Begun, fetch: Fetch) -> Option<Done> {
        let Body::Blob { handle, .. } = fetch.body else { panic!("only a blob is worth a worker") };
        let object = self.shelves.object(handle);
        let damaged = object.damaged;
        if begun.page == fetch.pages {
            return Some(Done::Fetched { slot: fetch.slot, sound: !damaged });
        }
        let content = if damaged { GARBAGE } else { object.pages[fetch.first + begun.page] };
        let at = fetch.at + begun.page * PAGE;
        if let Access::Done(_) = self.memory.access(Task::Worker(worker), at, Some(content)) {
            begun.page += 1;
        }
        None
    }
}

impl Store for SimStore {
    fn submit(&mut self, job: Job) {
        let mut world = self.0.borrow_mut();
        world.enter();
        assert!(!job.pages.is_empty(), "a job without pages");
        world.trace("submit", [job.slot.into(), job.pages.to_u16().into(), 0]);
        let priors = job.priors.map(|prior| prior.map(|prior| world.shelves.prior(prior)));
        world.shelves.queue.push(Work::Store(job, priors));
    }

    fn fetch(&mut self, fetch: Fetch) {
        let mut world = self.0.borrow_mut();
        world.enter();
        world.trace("fetch", [fetch.slot as u64, fetch.first as u64, fetch.pages as u64]);
        world.shelves.queue.push(Work::Fetch(fetch));
    }

    fn withdraw(&mut self, slot: u32) -> bool {
        let mut world = self.0.borrow_mut();
        world.enter();
        let found = world.shelves.queue.iter().position(|w| w.slot() == slot);
        match found {
            Some(index) if !world.chance(4) => {
                world.shelves.queue.swap_remove(index);
                world.trace("withdraw", [slot as u64, 0, 0]);
                true
            }
            _ => false,
        }
    }

    fn complete(&mut self, spare: &mut Spare) -> Option<Done> {
        let mut world = self.0.borrow_mut();
        world.enter();
        let done = &world.shelves.done;
        if done.is_empty() || world.chance(4) {
            return None;
        }
        let count = world.shelves.done.len();
        let index = world.random.below(count);
        let done = world.shelves.done.swap_remove(index);
        if world.bugs.drops_reads && matches!(done, Done::Read { .. }) && world.random.one_in(2) {
            return None;
        }
        if let Done::Stored(_) = done {
            // The pool grows by some of it.
            let taken = world.random.below(spare.pages + 1);
            for page in (spare.at..spare.at + taken * PAGE).step_by(PAGE) {
                let gone = world.memory.remove(page);
                assert!(gone.is_none_or(|p| p.pins == 0), "somebody uses a spare page");
            }
            spare.take(taken);
        }
        Some(done)
    }

    fn load(&mut self, body: Body, first: usize, pages: usize, to: usize) -> Result<(), Damaged> {
        let mut world = self.0.borrow_mut();
        world.enter();
        let mut damaged = false;
        for page in 0..pages {
            let content = match body {
                Body::Blob { handle, fingerprint: expected, .. } => {
                    let object = world.shelves.object(handle);
                    assert_eq!(fingerprint(&object.pages), expected, "another object is loaded");
                    damaged |= object.damaged;
                    if damaged { GARBAGE } else { object.pages[first + page] }
                }
                Body::Same(word) => word,
                Body::Common { at, fingerprint: expected, .. } => {
                    let record = world.shelves.log.borrow()[at as usize].clone();
                    assert_eq!(fingerprint(&record.contents), expected, "another record is loaded");
                    record.contents[first + page]
                }
                Body::Swapped => panic!("a copy is loaded that is in an area"),
                Body::Dropped => panic!("a copy that was given up is loaded"),
            };
            world.memory.engine_writes(to + page * PAGE, content);
        }
        if damaged { Err(Damaged::Checksum) } else { Ok(()) }
    }
}

impl Contents for SimStore {
    fn hash(&self, body: Body, page: usize) -> Option<u128> {
        let world = self.0.borrow();
        let Body::Blob { handle, .. } = body else { panic!("{body:?} has no hashes that leave the pool") };
        let object = world.shelves.object(handle);
        (!object.damaged).then(|| object.pages[page] as u128)
    }

    fn free(&mut self, body: Body) {
        let mut world = self.0.borrow_mut();
        world.enter();
        if let Body::Blob { handle, .. } = body {
            assert!(!world.shelves.in_use(handle), "object {handle} is freed under a job that names it");
            world.trace("free", [handle as u64, 0, 0]);
            world.shelves.objects[handle as usize].take().expect("an object is freed once");
        }
    }

    fn thaw(&mut self) {
        let mut world = self.0.borrow_mut();
        world.enter();
        world.trace("thaw", [0; 3]);
    }

    fn freeze(&mut self) {
        let mut world = self.0.borrow_mut();
        world.enter();
        world.trace("freeze", [0; 3]);
    }

    fn pool_bytes(&self) -> usize {
        self.0.borrow().shelves.pool_bytes()
    }

    fn areas(&mut self) -> Option<&mut dyn Areas> {
        Some(self)
    }
}

impl Areas for SimStore {
    fn write(&mut self, number: usize, batch: &mut Batch) {
        let mut world = self.0.borrow_mut();
        world.enter();
        world.trace(
            "write: batch, slot, objects",
            [number as u64, batch.run.slot.into(), batch.pieces.len() as u64],
        );
        let sealed = batch.pieces.iter().map(|piece| {
            let Body::Blob { handle, fingerprint, .. } = piece.body else { panic!("only a blob is written") };
            (piece.place, Sealed { object: world.shelves.object(handle).clone(), fingerprint })
        });
        let write = AreaWork::Write { number, sealed: sealed.collect() };
        world.shelves.area.as_mut().expect("there is an area").queue.push(write);
        if world.bugs.hasty_write {
            world.shelves.done(Done::Written { number, is_written: true });
        }
    }

    fn read(&mut self, read: Read) {
        let mut world = self.0.borrow_mut();
        world.enter();
        world.trace("read: object, slot", [read.id.into(), read.place.slot.into(), 0]);
        world.shelves.area.as_mut().expect("there is an area").queue.push(AreaWork::Read(read));
    }

    fn submit(&mut self) {
        self.0.borrow_mut().enter();
    }

    fn discard(&mut self, slots: std::ops::Range<u32>) {
        let world = self.0.borrow();
        world.shelves.area.as_ref().expect("there is an area").discard(slots);
    }

    fn find(&self, slot: u32) -> Option<(usize, u64)> {
        Some((0, slot as u64 * PAGE as u64))
    }
}

impl World {
    /// Now and then the pool is full for a while.
    pub fn season(&mut self) {
        if self.shelves.tight && self.clock > self.shelves.full_until + 1500 && self.random.one_in(20) {
            self.shelves.full_until = self.clock + 1500;
        }
    }

    /// What the process holds.
    pub fn footprint(&self) -> usize {
        self.memory.resident() * PAGE + self.shelves.pool_bytes()
    }
}
