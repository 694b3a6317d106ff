//! The pager's store: objects in the pool of the engine's own memory, made and loaded ahead by the workers.
//!
//! The pool is the engine's alone. Workers get addresses and give bytes, and hold nothing that could be left locked.

use crate::areas::SwapAreas;
use crate::board::{Board, Reply, Work};
use crate::maker::Maker;
use crate::pool::{Mover, PoolMemory};
use crate::workers::Workers;
use crate::{shared_store, workers};
use acomp::Kind;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use control::messages;
use core::mem;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use memcg::{Memcg, Stat};
use mm::kernel::{Damaged, Done, Fetch, Job, Prior, Spare, Store, Stored, WINDOW_PAGES};
use uffd::sys;
use vmscan::PAGE;
use zsmalloc::Handle;
use zswap::layout::plain_bytes;
use zswap::objects::{Areas, Batch, Body, Came, Contents, Piece, Read};
use zswap::{Cache, Codec, New, Packed, PageMask, Priors, Tier};

/// How much compaction moves at a time, in bytes: somebody may fault meanwhile.
const COMPACT_BYTES: usize = 64 << 10;

/// How often the pager asks in vain before it is looked whether the workers live.
const LOOK_EVERY: u32 = 1000;

/// A job given to the board.
#[derive(Clone, Copy)]
struct Given {
    slot: u32,
    /// What it loads, if it does: pinned, since a worker has its address.
    loads: Option<Handle>,
}

/// The pool, and the jobs that workers have.
pub struct PageStore {
    board: Board,
    cache: Cache<PoolMemory>,
    /// For what the pager loads itself.
    codec: Codec,
    memcg: &'static Memcg,
    /// What makes new objects: [`Maker::word`].
    made_by: u64,
    stat: &'static Stat,
    /// In the order in which they were given.
    given: VecDeque<Given>,
    /// How often in a row nothing was done.
    in_vain: u32,
    /// Test mode: the last of so many objects is damaged; 0 is never.
    damage_every: u32,
    stored: u32,
    /// Since the last fork another process has what was in the pool then.
    pub is_frozen: bool,
    /// The run's swap areas, if it has any.
    areas: Option<SwapAreas>,
    /// Where objects are made of pages that were read there.
    raw: Vec<u8>,
}

impl PageStore {
    /// An empty store, whose pool moves pages by this `mover`; `None` where there is no memory for it.
    pub fn new(
        mover: Option<Mover>,
        workers: &Workers,
        memcg: &'static Memcg,
        areas: Option<SwapAreas>,
    ) -> Option<PageStore> {
        let &Workers { board, seed, file, .. } = workers;
        let Maker { word, choice } = Maker::now(memcg)?;
        let mut codec = Codec::new(choice, seed, file).ok()?;
        // What relatives have made before.
        let mut others = Kind::all_of(memcg.tunables.compressors.load(Relaxed));
        others.try_for_each(|kind| codec.prepare(kind)).ok()?;
        Some(PageStore {
            board,
            cache: Cache::new(PoolMemory::new(mover)),
            codec,
            memcg,
            made_by: word,
            stat: &workers.slot.stat,
            given: VecDeque::new(),
            in_vain: 0,
            damage_every: memcg.settings.damage_every,
            stored: 0,
            is_frozen: false,
            areas,
            raw: Vec::new(),
        })
    }

    /// In a child: what its parent's store held, without the jobs, of which there were none.
    ///
    /// # Safety
    /// `parents` must be the copy of a store that the parent's engine had when it stood still for the fork, and never
    /// be used again.
    pub unsafe fn take_over(
        parents: *const PageStore,
        mover: Option<Mover>,
        board: Board,
        stat: &'static Stat,
        areas: Option<SwapAreas>,
    ) -> PageStore {
        let PageStore {
            cache,
            codec,
            memcg,
            made_by,
            damage_every,
            stored,
            areas: parents_areas,
            ..
            // SAFETY: the caller's contract; the copy's own fields are never dropped.
        } = unsafe { parents.read() };
        // Its descriptors are of other files here, and its rings are not mapped.
        mem::forget(parents_areas);
        cache.pool().backing().reopen(mover);
        let (given, in_vain, is_frozen) = (VecDeque::new(), 0, false);
        PageStore {
            board,
            cache,
            codec,
            memcg,
            made_by,
            stat,
            given,
            in_vain,
            damage_every,
            stored,
            is_frozen,
            areas,
            raw: Vec::new(),
        }
    }

    /// The run's swap areas, if it has any.
    pub fn swap_areas(&mut self) -> Option<&mut SwapAreas> {
        self.areas.as_mut()
    }

    /// When something of the areas is due that nobody rings for, in nanoseconds; `None` but in the test mode.
    pub fn area_due_ns(&self) -> Option<u64> {
        self.areas.as_ref().and_then(SwapAreas::due_ns)
    }

    /// How many writes and reads of areas have not been heard of; and how many of them are still under way.
    fn area_io(&self) -> (usize, usize) {
        self.areas.as_ref().map_or((0, 0), SwapAreas::under_way)
    }

    /// With nothing better to do, compacts the pool a little where holes take a thirty-second of it, or an eighth while
    /// a stream comes in, which leaves many that the next objects fill. False when that was not needed.
    pub fn tidy(&mut self) -> bool {
        let pool = self.cache.pool();
        let (held, stored) = (pool.pool_bytes(), pool.stored_bytes());
        let holes = if self.given.iter().any(|given| given.loads.is_some()) { held / 8 } else { held / 32 };
        if held < stored + holes + (1 << 20) {
            return false;
        }
        let compacted = pool.compact(COMPACT_BYTES);
        self.stat.compacted.fetch_add(compacted.objects_moved as u64, Relaxed);
        compacted.objects_moved > 0
    }

    /// Makes one object, which all of the family can read, at the beginning of `parcel`: of `pages` of the window
    /// `bytes`. Its pages, fingerprint and bytes; `None` where that would save little.
    pub fn pack(
        &mut self,
        bytes: &mut [u8],
        pages: PageMask,
        parcel: &mut [u8],
    ) -> Option<(PageMask, u32, usize)> {
        self.follow();
        let packed = self.codec.pack_one(bytes, pages, WINDOW_PAGES, &Priors::default(), false, parcel);
        match packed.objects[0] {
            Some(New::Blob { fingerprint, bytes, data_pages, compressed: true }) => {
                self.count_made(packed.tier, data_pages);
                Some((packed.in_objects, fingerprint, bytes as usize))
            }
            _ => None,
        }
    }

    /// Has new objects made by what the user wants now. Where there is no memory for that, it is tried again with the
    /// next job. What workers have been given goes on as it was.
    fn follow(&mut self) {
        if self.memcg.tunables.compressor.load(Relaxed) == self.made_by {
            return;
        }
        if let Some(Maker { word, choice }) = Maker::now(self.memcg)
            && self.codec.make_by(choice).is_ok()
        {
            self.made_by = word;
        }
    }

    /// Counts a new object whose `pages` with data a compressor has made smaller; without data nothing was to be made.
    fn count_made(&self, tier: Tier, pages: usize) {
        let stat = self.stat;
        let (objects, in_pages) = match tier {
            Tier::Fast => (&stat.fast_objects, &stat.fast_pages),
            Tier::Dense => (&stat.dense_objects, &stat.dense_pages),
        };
        objects.fetch_add((pages > 0).into(), Relaxed);
        in_pages.fetch_add(pages as u64, Relaxed);
    }

    /// How many jobs were given and their results not fetched.
    pub fn given(&self) -> usize {
        self.given.len() + self.area_io().0
    }

    /// How many of them are not done yet.
    pub fn under_way(&self) -> usize {
        self.given.iter().filter(|given| !self.board.is_done(given.slot)).count() + self.area_io().1
    }

    fn prior(&self, prior: Prior) -> Option<u128> {
        prior.hash.or_else(|| self.hash(prior.body, prior.page))
    }

    /// Takes new objects into the pool.
    fn take_in(&mut self, given: Given, packed: &Packed, parcel: &mut [u8]) -> Done {
        let (mut bodies, mut at) = ([None; WINDOW_PAGES], 0);
        for (body, new) in bodies.iter_mut().zip(packed.objects.into_iter().flatten()) {
            *body = match new {
                New::Same(word) => Some(Body::Same(word)),
                New::Blob { fingerprint, bytes, data_pages, compressed } => {
                    let object = &mut parcel[at..][..bytes as usize];
                    at += bytes as usize;
                    self.damage(object);
                    self.cache.store(object).map(|handle| {
                        self.stat.compressed_in_bytes.fetch_add((data_pages * PAGE) as u64, Relaxed);
                        self.stat.compressed_out_bytes.fetch_add(bytes as u64, Relaxed);
                        self.stat.incompressible.fetch_add(!compressed as u64, Relaxed);
                        if compressed {
                            self.count_made(packed.tier, data_pages);
                        }
                        Body::Blob { handle: handle.into_raw(), fingerprint, bytes }
                    })
                }
            };
        }
        let Packed { reused, zero, in_objects, filled, guesses, failed, .. } = *packed;
        let is_plain = |new: &&New| matches!(new, New::Blob { compressed: false, .. });
        let plain = packed.objects.iter().flatten().filter(is_plain).count();
        let poor = plain.saturating_sub(usize::from(guesses.believed) + usize::from(failed));
        self.stat.reject_compress_poor.fetch_add(poor as u64, Relaxed);
        self.stat.reject_compress_fail.fetch_add(failed.into(), Relaxed);
        self.stat.believed_noise.fetch_add(guesses.believed.into(), Relaxed);
        self.stat.tried_noise.fetch_add(guesses.tried.into(), Relaxed);
        self.stat.wrong_noise.fetch_add(guesses.wrong.into(), Relaxed);
        Done::Stored(Stored { slot: given.slot, reused, zero, in_bodies: in_objects, filled, bodies })
    }

    /// Test mode: turns a bit of every so many objects, in the middle of its data.
    fn damage(&mut self, object: &mut [u8]) {
        self.stored += 1;
        if self.damage_every != 0 && self.stored.is_multiple_of(self.damage_every) {
            object[(object.len() / 2).max(object.len().min(300) - 1)] ^= 1;
        }
    }

    fn put_up(&mut self, given: Given, work: Work) {
        self.given.push_back(given);
        self.board.post(given.slot, work);
    }

    /// A job is nobody's any more.
    fn take_off(&mut self, at: usize) -> Option<Given> {
        let given = self.given.remove(at)?;
        if let Some(handle) = given.loads {
            self.cache.pool().unpin(handle);
        }
        Some(given)
    }
}

/// Takes an object into the pool that was read from an area, or is made in `raw` of its pages, which were.
fn take_back(cache: &Cache<PoolMemory>, codec: &Codec, raw: &mut Vec<u8>, read: &Read, bytes: &[u8]) -> Came {
    let fingerprint = read.fingerprint;
    let object = if read.is_raw {
        raw.resize(plain_bytes(bytes.len() / PAGE), 0);
        if codec.pack_plain(bytes, raw) != fingerprint {
            return Came::Lost(Damaged::Object);
        }
        raw
    } else {
        bytes
    };
    let bytes = object.len() as u32;
    let blob = |handle: Handle| Body::Blob { handle: handle.into_raw(), fingerprint, bytes };
    cache.store(object).map_or(Came::Not, |handle| Came::Here(blob(handle)))
}

/// Copies what is written of an object to an area; false where that is damaged.
fn copy_out(codec: &Codec, object: &[u8], piece: &Piece, room: &mut [u8]) -> bool {
    let bytes = if piece.is_raw { codec.plain_pages(object) } else { Some(object) };
    let bytes = bytes.filter(|bytes| bytes.len() == room.len());
    bytes.inspect(|bytes| room.copy_from_slice(bytes)).is_some()
}

impl Store for PageStore {
    fn submit(&mut self, job: Job) {
        let mut priors = Priors::default();
        for (page, prior) in job.priors.iter().enumerate() {
            if let Some(hash) = prior.and_then(|prior| self.prior(prior)) {
                priors.set(page, hash);
            }
        }
        let Job { slot, at, pages, unit, is_plain, fewest, .. } = job;
        priors.want(fewest);
        self.follow();
        let made_by = self.made_by;
        self.put_up(Given { slot, loads: None }, Work::Pack { at, pages, unit, priors, made_by, is_plain });
    }

    fn fetch(&mut self, fetch: Fetch) {
        let Fetch { slot, at: to, first, pages, body } = fetch;
        let (loads, fingerprint) = match body {
            Body::Blob { handle, fingerprint, .. } => (Handle::from_raw(handle), fingerprint),
            // Of no bytes: it will be said to be damaged, and loaded by whoever asks for it.
            Body::Common { .. } | Body::Same(_) | Body::Swapped | Body::Dropped => (None, 0),
        };
        let pinned = loads.map(|handle| self.cache.pool().pin(handle));
        let (object, bytes) = pinned.map_or((0, 0), |(at, bytes)| (at.addr().get(), bytes));
        let work = Work::Unpack { object, bytes, fingerprint, first, pages, to };
        self.put_up(Given { slot, loads }, work);
    }

    fn withdraw(&mut self, slot: u32) -> bool {
        let withdrawn = self.board.withdraw(slot);
        if withdrawn && let Some(at) = self.given.iter().position(|g| g.slot == slot) {
            self.take_off(at);
        }
        withdrawn
    }

    fn complete(&mut self, spare: &mut Spare) -> Option<Done> {
        let PageStore { areas, cache, codec, raw, .. } = self;
        let take_back = |read: &Read, bytes: &[u8]| take_back(cache, codec, raw, read, bytes);
        if let Some(done) = areas.as_mut().and_then(|areas| areas.next_done(take_back)) {
            return Some(done);
        }
        // Workers finish out of order, but not by much; loads overtake stores.
        let board = self.board;
        let Some(at) = self.given.iter().position(|g| board.is_done(g.slot)) else {
            self.in_vain = self.in_vain.wrapping_add(1);
            // The pager may wait for this very job, and look at nothing else meanwhile.
            if self.in_vain.is_multiple_of(LOOK_EVERY) && !self.given.is_empty() && workers::one_has_died() {
                messages::leave_message(workers::DEATH);
                messages::stop_program();
                sys::exit(1);
            }
            return None;
        };
        self.in_vain = 0;
        let given = self.take_off(at)?;
        self.cache.pool().backing().lend(*spare);
        let done = board.answer(given.slot, |answer, parcel| match answer {
            Reply::Packed(packed) => self.take_in(given, packed, parcel),
            Reply::Unpacked(sound) => Done::Fetched { slot: given.slot, sound: *sound },
        });
        *spare = self.cache.pool().backing().lend(Spare::default());
        Some(done)
    }

    fn load(&mut self, body: Body, first: usize, pages: usize, to: usize) -> Result<(), Damaged> {
        // SAFETY: the pager owns the engine memory at `to`, all pages present or to be had by touching them.
        let to = unsafe { core::slice::from_raw_parts_mut(to as *mut u8, pages * PAGE) };
        match body {
            Body::Same(word) => {
                zswap::page::fill(to, word);
                Ok(())
            }
            Body::Blob { handle, fingerprint, .. } => {
                let handle = Handle::from_raw(handle).ok_or(Damaged::Stream)?;
                self.cache.load(&mut self.codec, handle, fingerprint, first, to)
            }
            Body::Common { log, at, fingerprint } => {
                let object = shared_store::object(log, at).ok_or(Damaged::Object)?;
                self.codec.unpack(object, fingerprint, first, to)
            }
            Body::Swapped | Body::Dropped => Err(Damaged::Stream),
        }
    }
}

impl Contents for PageStore {
    fn free(&mut self, body: Body) {
        if let Body::Blob { handle, .. } = body
            && let Some(handle) = Handle::from_raw(handle)
        {
            self.cache.invalidate(handle);
        }
    }

    fn thaw(&mut self) {
        self.cache.pool().thaw();
        self.is_frozen = false;
    }

    fn freeze(&mut self) {
        self.cache.pool().freeze();
        self.is_frozen = true;
    }

    fn pool_bytes(&self) -> usize {
        self.cache.pool().pool_bytes()
    }

    fn hash(&self, body: Body, page: usize) -> Option<u128> {
        match body {
            Body::Blob { handle, .. } => self.cache.hash(Handle::from_raw(handle)?, page),
            Body::Common { log, at, .. } => zswap::hash_in(shared_store::object(log, at)?, page),
            Body::Same(_) | Body::Swapped | Body::Dropped => None,
        }
    }

    fn areas(&mut self) -> Option<&mut dyn Areas> {
        if self.areas.is_some() { Some(self) } else { None }
    }
}

impl Areas for PageStore {
    fn write(&mut self, number: usize, batch: &mut Batch) {
        let PageStore { areas, cache, codec, .. } = self;
        areas.as_mut().expect("asked before").write(number, batch, |piece, room| match piece.body {
            Body::Blob { handle, .. } => Handle::from_raw(handle)
                .is_some_and(|handle| copy_out(codec, &cache.pool().read(handle), piece, room)),
            _ => false,
        });
    }

    fn read(&mut self, read: Read) {
        self.areas.as_mut().expect("asked before").read(read);
    }

    fn submit(&mut self) {
        self.areas.as_mut().expect("asked before").submit();
    }

    fn discard(&mut self, slots: Range<u32>) {
        self.areas.iter().for_each(|areas| areas.discard(slots.clone()));
    }

    fn find(&self, slot: u32) -> Option<(usize, u64)> {
        self.areas.as_ref()?.find(slot)
    }
}
