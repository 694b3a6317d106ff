//! Several windows, or objects, at a time: all that is to be compressed of them, or decompressed, is one batch, so that a device has as much of it as it can
//! work on.

use super::{Codec, Fresh, LoadError, New, Packed, Priors, look};
use crate::chooser::Way;
use crate::noise;
use crate::object::{self, Format, prefix};
use crate::{PAGE, WINDOW_PAGES};
use acomp::{Batch, CompressRequest, DecompressRequest, Outcome};
use core::mem::{swap, take};

/// The most windows that are packed together, or objects that are unpacked.
pub const BATCH_MAX: usize = 8;

/// A window that is packed together with others.
pub struct Window<'a> {
    /// It. Pages that become one object may be brought together in it.
    pub bytes: &'a mut [u8],
    /// Which of its pages, by bit.
    pub pages: u16,
    /// How many an object holds at most.
    pub unit: usize,
    /// What they were when they were loaded.
    pub priors: &'a Priors,
    /// Where the objects go: [`PARCEL_MAX_BYTES`](super::PARCEL_MAX_BYTES).
    pub parcel: &'a mut [u8],
    /// What has become of it.
    pub packed: Packed,
}

/// An object of which pages are restored together with those of others.
pub struct Load<'a> {
    /// It.
    pub object: &'a [u8],
    /// What it is known by.
    pub fingerprint: u32,
    /// The first page that is wanted.
    pub first: usize,
    /// Where the pages go, as many as are wanted.
    pub to: &'a mut [u8],
    /// What came of it.
    pub result: Result<(), LoadError>,
}

/// What an object is to be.
#[derive(Clone, Copy, Default)]
enum Plan {
    /// One word.
    Same(u64),
    /// Its pages as they are: they look like noise.
    #[default]
    Plain,
    /// What comes of this request; whether that looks like noise too.
    Compressed(usize, bool),
}

impl Codec {
    /// Packs up to [`BATCH_MAX`] windows as [`pack`](Codec::pack) packs each: one after the other where the CPU does the work, which has nothing of
    /// a batch but what it costs to set one up, else in one batch. There guesses at noise do not know what came of those before them.
    pub fn pack_together(&mut self, windows: &mut [Window<'_>]) {
        self.pack_together_with(windows, &mut || {});
    }

    /// The same, and calls `between` again and again while a device works, and else between two windows: for what is more urgent.
    pub fn pack_together_with(&mut self, windows: &mut [Window<'_>], between: &mut dyn FnMut()) {
        if self.batch > 1 {
            return self.pack_at_once(windows, between);
        }
        for window in windows {
            self.pack_window(window);
            between();
        }
    }

    /// The same, for who has done with a window's objects when `done` returns, and finds nothing in its parcel later. Where the CPU does the work they are given to it
    /// while they are in a near cache, and the next window has the same parcel, which is there too.
    pub fn pack_each(&mut self, windows: &mut [Window<'_>], mut done: impl FnMut(&Window<'_>)) {
        if self.batch > 1 {
            self.pack_at_once(windows, &mut || {});
            return windows.iter().for_each(done);
        }
        let mut parcel: &mut [u8] = &mut [];
        for (at, window) in windows.iter_mut().enumerate() {
            if at > 0 {
                swap(&mut parcel, &mut window.parcel);
            }
            self.pack_window(window);
            done(window);
            swap(&mut parcel, &mut window.parcel);
        }
        if let [first, ..] = windows {
            first.parcel = parcel;
        }
    }

    fn pack_window(&mut self, window: &mut Window<'_>) {
        let Window { bytes, pages, unit, priors, parcel, packed } = window;
        *packed = self.pack_by(bytes, *pages, *unit, priors, Way::Only, parcel);
    }

    fn pack_at_once(&mut self, windows: &mut [Window<'_>], between: &mut dyn FnMut()) {
        let mut fresh = [[Fresh::default(); WINDOW_PAGES]; BATCH_MAX];
        let mut counts = [0; BATCH_MAX];
        let mut plans = [[Plan::default(); WINDOW_PAGES]; BATCH_MAX];
        for ((window, fresh), count) in windows.iter_mut().zip(&mut fresh).zip(&mut counts) {
            (window.packed, *count) = self.sort(window.bytes, window.pages, window.priors, fresh);
            for pages in fresh[..*count].chunks(window.unit) {
                gather(window.bytes, pages);
            }
        }

        let mut requests: [CompressRequest<'_>; BATCH_MAX * WINDOW_PAGES] =
            core::array::from_fn(|_| CompressRequest::new(&[], &mut []));
        let mut wanted = 0;
        for (at, window) in windows.iter_mut().enumerate() {
            let (bytes, mut parcel) = (&*window.bytes, &mut *window.parcel);
            let guesses = &mut window.packed.guesses;
            for (plan, pages) in plans[at].iter_mut().zip(fresh[at][..counts[at]].chunks(window.unit)) {
                let plain = &bytes[pages[0].index * PAGE..][..pages.len() * PAGE];
                if let Some(word) = pages[0].word
                    && pages.iter().all(|page| page.word == Some(word))
                {
                    *plan = Plan::Same(word);
                    continue;
                }
                let (room, rest) = take(&mut parcel).split_at_mut(prefix(pages.len()) + plain.len());
                parcel = rest;
                let guess = self.trust.as_mut().filter(|_| {
                    noise::looks_like_noise(plain) && !noise::any_twice(pages.iter().map(|page| page.hash))
                });
                let is_noise = guess.is_some();
                if guess.is_some_and(|trust| trust.believes()) {
                    guesses.believed += 1;
                    continue;
                }
                // As long as that saves a thirty-second, as in `shrink`.
                let room = &mut room[prefix(pages.len())..][..plain.len() - plain.len() / 32];
                requests[wanted] = CompressRequest::new(plain, room);
                *plan = Plan::Compressed(wanted, is_noise);
                wanted += 1;
            }
        }
        self.context.submit(Batch::Compress(&mut requests[..wanted])).wait_with(between);
        let results = requests.map(|request| match request.result {
            Ok(Outcome::Shrunk(bytes)) => Some(bytes),
            Ok(Outcome::Incompressible) | Err(_) => None,
        });

        for (at, window) in windows.iter_mut().enumerate() {
            // Where the next object goes, and where the room for it begins.
            let (mut to, mut from) = (0, 0);
            for (number, pages) in fresh[at][..counts[at]].chunks(window.unit).enumerate() {
                let (head, len) = (prefix(pages.len()), pages.len() * PAGE);
                let shrunk = match plans[at][number] {
                    Plan::Same(word) => {
                        window.packed.objects[number] = Some(New::Same(word));
                        continue;
                    }
                    Plan::Plain => None,
                    Plan::Compressed(request, is_noise) => {
                        let shrunk = results[request];
                        if is_noise && let Some(trust) = &mut self.trust {
                            trust.tried(shrunk.is_none());
                            window.packed.guesses.tried += 1;
                            window.packed.guesses.wrong += shrunk.is_some() as u8;
                        }
                        shrunk
                    }
                };
                // Never behind its own room, so that what comes later is not touched.
                let (format, bytes) = match shrunk {
                    Some(bytes) => {
                        window.parcel.copy_within(from + head..from + head + bytes, to + head);
                        (Format::Compressed, bytes)
                    }
                    None => {
                        let plain = &window.bytes[pages[0].index * PAGE..][..len];
                        window.parcel[to + head..][..len].copy_from_slice(plain);
                        (Format::Plain, len)
                    }
                };
                object::write(&mut window.parcel[to..], format, pages.iter().map(|page| page.hash));
                window.packed.objects[number] = Some(New::Blob {
                    fingerprint: object::fingerprint(pages.iter().map(|page| page.hash)),
                    bytes: (head + bytes) as u32,
                    compressed: format == Format::Compressed,
                });
                to += head + bytes;
                from += head + len;
            }
        }
    }
}

impl Codec {
    /// Restores up to [`BATCH_MAX`] objects as [`unpack`](Codec::unpack) restores each: those of which all is wanted in one batch.
    pub fn unpack_together(&mut self, loads: &mut [Load<'_>]) {
        self.unpack_together_with(loads, &mut || {});
    }

    /// The same, and calls `between` again and again while the compressor works: for loads that have come since.
    pub fn unpack_together_with(&mut self, loads: &mut [Load<'_>], between: &mut dyn FnMut()) {
        let mut requests: [DecompressRequest<'_>; BATCH_MAX] =
            core::array::from_fn(|_| DecompressRequest::new(&[], &mut []));
        let mut views = [const { None }; BATCH_MAX];
        let mut wanted = 0;
        for (load, kept) in loads.iter_mut().zip(&mut views) {
            let Load { object, fingerprint, first, ref mut to, .. } = *load;
            let pages = to.len() / PAGE;
            match look(object, fingerprint, first + pages) {
                Ok(view) if view.format == Format::Compressed && view.pages == pages => {
                    requests[wanted] = DecompressRequest::new(view.payload, to);
                    *kept = Some((view, wanted));
                    wanted += 1;
                }
                // A part of it, or it is no work, or damaged: here.
                _ => load.result = self.unpack(object, fingerprint, first, to),
            }
        }
        self.context.submit(Batch::Decompress(&mut requests[..wanted])).wait_with(between);
        let results = requests.map(|request| request.result);
        for (load, kept) in loads.iter_mut().zip(&views) {
            if let Some((view, request)) = kept {
                let read = results[*request].map_err(|_| LoadError::Stream);
                load.result = read.and_then(|()| self.check(view, load.first, load.to));
            }
        }
    }
}

/// Brings the pages of an object together behind its first one. They are in order, so that none is overwritten before it has moved, nor one of another
/// object's.
fn gather(window: &mut [u8], pages: &[Fresh]) {
    for (page, place) in pages.iter().zip(pages[0].index..) {
        if page.index != place {
            window.copy_within(page.index * PAGE..(page.index + 1) * PAGE, place * PAGE);
        }
    }
}
