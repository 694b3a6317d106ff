//! Pages to objects.
//!
//! ```text
//!   sort ── unchanged, zeros ──> done
//!     └── the rest, so many pages an object; of a page of one word, that word
//!           └── gather ── plan ── one word in all pages ──> no data
//!                               ├── noise ──> the pages as they are
//!                               └── one batch of requests ──> the compressor, or a device ── write ──> parcel
//! ```
//!
//! One window at a time where the CPU does the work: to have begun more than one gains nothing there, and a thread that
//! wants a page of the last one waits for all. A device gets as many windows as there are for it, since its engines
//! work side by side.

use super::{BATCH_MAX, Codec, New, Packed, Priors};
use crate::choice::Tier;
use crate::layout::{self, Format, prefix};
use crate::noise::{self, Trust};
use crate::page::{self, Hash};
use crate::{PAGE, PageMask, WINDOW_PAGES};
use acomp::{Batch, CompressRequest, Outcome};
use core::mem::take;
use core::slice;

/// A window of which pages become objects.
pub struct Window<'a> {
    /// It. Pages that become one object may be brought together in it.
    pub bytes: &'a mut [u8],
    /// Which of its pages.
    pub pages: PageMask,
    /// How many an object holds at most, by which its tier is known: [`Tier::of`].
    pub unit: usize,
    /// What they were when they were loaded.
    pub priors: &'a Priors,
    /// The pages are kept as they are.
    pub is_plain: bool,
    /// Where the objects go, one after the other: [`PARCEL_MAX_BYTES`](super::PARCEL_MAX_BYTES).
    pub parcel: &'a mut [u8],
    /// What has become of it.
    pub packed: Packed,
}

impl Window<'_> {
    /// That of its objects.
    fn tier(&self) -> Tier {
        Tier::of(self.unit)
    }
}

/// A page that goes into a new object.
#[derive(Clone, Copy, Default)]
struct Fresh {
    /// Page of the window.
    index: usize,
    /// The word that fills it, if one does.
    word: Option<u64>,
    hash: Hash,
}

/// Those of a window, in order.
#[derive(Clone, Copy, Default)]
struct Pages {
    all: [Fresh; WINDOW_PAGES],
    count: usize,
}

impl Pages {
    /// Object by object.
    fn objects(&self, unit: usize) -> impl Iterator<Item = Object<'_>> {
        self.all[..self.count].chunks(unit).map(Object)
    }
}

/// The pages of an object.
#[derive(Clone, Copy)]
struct Object<'a>(&'a [Fresh]);

impl<'a> Object<'a> {
    /// Those that no single word fills.
    fn with_data(self) -> impl Iterator<Item = &'a Fresh> + Clone {
        self.0.iter().filter(|page| page.word.is_none())
    }

    /// Bytes of the object before its payload, and of its data.
    fn lens(self) -> (usize, usize) {
        let data = self.with_data().count();
        (prefix(self.0.len(), self.0.len() - data), data * PAGE)
    }

    /// Where its data is in the window's bytes after [`gather`].
    fn at(self) -> usize {
        self.0[0].index * PAGE
    }

    /// The word that fills all of it, if one does.
    fn word(self) -> Option<u64> {
        let word = self.0[0].word?;
        self.0.iter().all(|page| page.word == Some(word)).then_some(word)
    }
}

/// What an object is to be.
#[derive(Clone, Copy, Default)]
enum Plan {
    /// One word.
    Same(u64),
    /// Its data as it is: it looks like noise, or there is none.
    #[default]
    Plain,
    /// What comes of this request; whether that looks like noise too.
    Compressed(usize, bool),
}

impl Codec {
    /// Makes objects of up to [`BATCH_MAX`] windows. Where a device does the work of a tier it has all windows of that
    /// at once, and guesses at noise do not know what came of those before them. Calls `between` again and again
    /// meanwhile, for what is more urgent.
    pub fn pack(&mut self, windows: &mut [Window<'_>], between: &mut dyn FnMut()) {
        let [fast, dense] = [Tier::Fast, Tier::Dense].map(|tier| self.contexts.is_attached(tier));
        let is_for_device = |window: &Window<'_>| match window.tier() {
            Tier::Fast => fast,
            Tier::Dense => dense,
        };
        if windows.iter().any(is_for_device) {
            self.pack_batch::<BATCH_MAX>(windows, is_for_device, between);
        }
        for window in windows.iter_mut().filter(|window| !is_for_device(window)) {
            self.pack_batch::<1>(slice::from_mut(window), |_| true, between);
        }
    }

    /// The same for some `pages` of one window, and nothing else to be done meanwhile.
    pub fn pack_one(
        &mut self,
        bytes: &mut [u8],
        pages: PageMask,
        unit: usize,
        priors: &Priors,
        is_plain: bool,
        parcel: &mut [u8],
    ) -> Packed {
        let packed = Packed::default();
        let mut windows = [Window { bytes, pages, unit, priors, is_plain, parcel, packed }];
        self.pack(&mut windows, &mut || {});
        windows[0].packed
    }

    /// The same for the windows that are in the batch, at most `N`: one compressor makes all of their objects.
    fn pack_batch<const N: usize>(
        &mut self,
        windows: &mut [Window<'_>],
        is_in_batch: impl Fn(&Window<'_>) -> bool,
        between: &mut dyn FnMut(),
    ) {
        let mut fresh = [Pages::default(); N];
        for (window, fresh) in windows.iter_mut().filter(|window| is_in_batch(window)).zip(&mut fresh) {
            (window.packed, *fresh) = self.sort(window);
            for object in fresh.objects(window.unit) {
                gather(window.bytes, object);
            }
        }
        self.make::<N>(windows, is_in_batch, &fresh, between);
    }

    /// Tells what has to be made of a window's pages, and which of them go into new objects.
    fn sort(&self, window: &Window<'_>) -> (Packed, Pages) {
        let (mut packed, mut fresh) = (Packed { tier: window.tier(), ..Packed::default() }, Pages::default());
        let mut hashes = [(None, 0); WINDOW_PAGES];
        for index in window.pages.iter() {
            let bytes = &window.bytes[index * PAGE..][..PAGE];
            let word = page::same_filled(bytes);
            if word == Some(0) {
                packed.zero.insert(index);
                continue;
            }
            let hash = page::hash(bytes, self.seed);
            if window.priors.is(index, hash) {
                packed.reused.insert(index);
            }
            hashes[index] = (word, hash);
        }
        if packed.reused.count() < window.priors.fewest {
            packed.reused = PageMask::NONE;
        }
        packed.in_objects = window.pages - packed.zero - packed.reused;
        for index in packed.in_objects.iter() {
            let (word, hash) = hashes[index];
            fresh.all[fresh.count] = Fresh { index, word, hash };
            fresh.count += 1;
            if word.is_some() {
                packed.filled.insert(index);
            }
        }
        (packed, fresh)
    }

    /// Makes the objects of the batch's windows, whose pages are gathered.
    fn make<const N: usize>(
        &mut self,
        windows: &mut [Window<'_>],
        is_in_batch: impl Fn(&Window<'_>) -> bool,
        fresh: &[Pages; N],
        between: &mut dyn FnMut(),
    ) {
        let Codec { contexts, trust, most_percent, .. } = self;
        let Some(tier) = windows.iter().find(|window| is_in_batch(window)).map(Window::tier) else { return };
        let context = contexts.maker(tier);
        let mut trust = Some(trust).filter(|_| !context.compressor().gives_up_early());
        let shrunk_format = Format::Of(context.compressor().kind());
        let mut plans = [[Plan::default(); WINDOW_PAGES]; N];
        let mut requests: [[CompressRequest<'_>; WINDOW_PAGES]; N] =
            core::array::from_fn(|_| core::array::from_fn(|_| CompressRequest::new(&[], &mut [])));
        let requests = requests.as_flattened_mut();
        let mut wanted = 0;
        let batch = windows.iter_mut().filter(|window| is_in_batch(window));
        for ((window, fresh), plans) in batch.zip(fresh).zip(&mut plans) {
            plan(window, fresh, plans, trust.as_deref_mut(), *most_percent, requests, &mut wanted);
        }
        context.submit(Batch::Compress(&mut requests[..wanted])).wait_with(between);
        let mut results = [[None; WINDOW_PAGES]; N];
        let mut failed = [[false; WINDOW_PAGES]; N];
        let both = results.as_flattened_mut().iter_mut().zip(failed.as_flattened_mut());
        for ((result, failed), request) in both.zip(&requests[..wanted]) {
            *failed = request.result.is_err();
            *result = match request.result {
                Ok(Outcome::Shrunk(bytes)) => Some(bytes),
                Ok(Outcome::Incompressible) | Err(_) => None,
            };
        }
        let batch = windows.iter_mut().filter(|window| is_in_batch(window));
        for ((window, fresh), plans) in batch.zip(fresh).zip(&plans) {
            let shrunk = |request: usize| results.as_flattened()[request];
            let failed = |plan: &&Plan| matches!(plan, Plan::Compressed(at, _) if failed.as_flattened()[*at]);
            window.packed.failed = plans.iter().filter(failed).count() as u8;
            write(window, fresh, plans, trust.as_deref_mut(), shrunk, shrunk_format);
        }
    }
}

/// Decides what each object of a window is to be, and writes a request for those that are to be compressed to
/// `most_percent` at most: the next of `requests`, of which `wanted` are taken.
fn plan<'a>(
    window: &'a mut Window<'_>,
    fresh: &Pages,
    plans: &mut [Plan; WINDOW_PAGES],
    mut trust: Option<&mut Trust>,
    most_percent: usize,
    requests: &mut [CompressRequest<'a>],
    wanted: &mut usize,
) {
    let Window { bytes, unit, parcel, packed, is_plain, .. } = window;
    let (bytes, mut parcel) = (&**bytes, &mut **parcel);
    for (plan, object) in plans.iter_mut().zip(fresh.objects(*unit)) {
        if let Some(word) = object.word() {
            *plan = Plan::Same(word);
            continue;
        }
        let (head, len) = object.lens();
        let plain = &bytes[object.at()..][..len];
        let (room, rest) = take(&mut parcel).split_at_mut(head + len);
        parcel = rest;
        if *is_plain || plain.is_empty() {
            continue;
        }
        let guess = trust.as_deref_mut().filter(|_| {
            noise::looks_like_noise(plain) && !noise::any_twice(object.with_data().map(|page| page.hash))
        });
        let is_noise = guess.is_some();
        if guess.is_some_and(|trust| trust.believes()) {
            packed.guesses.believed += 1;
            continue;
        }
        // As long as that saves a thirty-second: less is not worth a decompression.
        let most = (len - len / 32).min(len * most_percent / 100);
        let room = &mut room[head..][..most];
        requests[*wanted] = CompressRequest::new(plain, room);
        *plan = Plan::Compressed(*wanted, is_noise);
        *wanted += 1;
    }
}

/// Writes the objects of a window one after the other into its parcel. `shrunk` says to how many bytes a request has
/// come.
fn write(
    window: &mut Window<'_>,
    fresh: &Pages,
    plans: &[Plan; WINDOW_PAGES],
    mut trust: Option<&mut Trust>,
    shrunk: impl Fn(usize) -> Option<usize>,
    shrunk_format: Format,
) {
    let Window { bytes, unit, parcel, packed, .. } = window;
    // Where the next object goes, and where the room for it begins.
    let (mut to, mut from) = (0, 0);
    for ((made, plan), object) in packed.objects.iter_mut().zip(plans).zip(fresh.objects(*unit)) {
        let (head, len) = object.lens();
        let shrunk = match *plan {
            Plan::Same(word) => {
                *made = Some(New::Same(word));
                continue;
            }
            Plan::Plain => None,
            Plan::Compressed(request, is_noise) => {
                let shrunk = shrunk(request);
                if is_noise && let Some(trust) = trust.as_deref_mut() {
                    trust.tried(shrunk.is_none());
                    packed.guesses.tried += 1;
                    packed.guesses.wrong += shrunk.is_some() as u8;
                }
                shrunk
            }
        };
        // Never behind its own room, so that what comes later is not touched.
        let (format, payload) = match shrunk {
            Some(payload) => {
                if from != to {
                    parcel.copy_within(from + head..from + head + payload, to + head);
                }
                (shrunk_format, payload)
            }
            None => {
                parcel[to + head..][..len].copy_from_slice(&bytes[object.at()..][..len]);
                (Format::Plain, len)
            }
        };
        let pages = object.0.iter();
        layout::write(&mut parcel[to..], format, pages.clone().map(|page| (page.hash, page.word)));
        *made = Some(New::Blob {
            fingerprint: layout::fingerprint(pages.map(|page| page.hash)),
            bytes: (head + payload) as u32,
            data_pages: len / PAGE,
            compressed: format != Format::Plain || len == 0,
        });
        to += head + payload;
        from += head + len;
    }
}

impl Codec {
    /// Makes an object of pages that are kept as they are, at the beginning of `object`: its fingerprint.
    ///
    /// # Panics
    /// If there is no room for [`plain_bytes`](layout::plain_bytes), or no page, or more than a window of them.
    pub fn pack_plain(&self, pages: &[u8], object: &mut [u8]) -> u32 {
        let count = pages.len() / PAGE;
        assert!((1..=WINDOW_PAGES).contains(&count) && pages.len() == count * PAGE);
        let hashes = pages.chunks_exact(PAGE).map(|page| page::hash(page, self.seed));
        layout::write(object, Format::Plain, hashes.clone().map(|hash| (hash, None)));
        object[prefix(count, 0)..][..pages.len()].copy_from_slice(pages);
        layout::fingerprint(hashes)
    }
}

/// Brings the pages of an object that have data together, from the place of its first page on. They are in order, so
/// that none is overwritten before it has moved, nor one of another object's.
fn gather(window: &mut [u8], object: Object<'_>) {
    for (page, place) in object.with_data().zip(object.0[0].index..) {
        if page.index != place {
            window.copy_within(page.index * PAGE..(page.index + 1) * PAGE, place * PAGE);
        }
    }
}
