//! Objects to pages.

use super::{BATCH_MAX, Codec};
use crate::layout::{Format, View};
use crate::page;
use crate::{Damaged, PAGE};
use acomp::{Batch, DecompressRequest};

/// An object of which pages are restored.
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
    pub result: Result<(), Damaged>,
}

impl Codec {
    /// Restores up to [`BATCH_MAX`] objects as [`unpack`](Codec::unpack) restores each: those of which all is wanted in
    /// one batch. Calls `between` again and again while the compressor works: for loads that have come since.
    pub fn unpack_all(&mut self, loads: &mut [Load<'_>], between: &mut dyn FnMut()) {
        let mut requests: [DecompressRequest<'_>; BATCH_MAX] =
            core::array::from_fn(|_| DecompressRequest::new(&[], &mut []));
        let mut views = [const { None }; BATCH_MAX];
        let mut wanted = 0;
        let together = Format::Of(self.contexts.main_reader().compressor().kind());
        for (load, kept) in loads.iter_mut().zip(&mut views) {
            let Load { object, fingerprint, first, ref mut to, .. } = *load;
            let pages = to.len() / PAGE;
            match look(object, fingerprint, first + pages) {
                Ok(view) if view.format == together && view.pages == pages && view.data_pages() > 0 => {
                    let data = &mut to[..view.data_pages() * PAGE];
                    requests[wanted] = DecompressRequest::new(view.payload, data);
                    *kept = Some((view, wanted));
                    wanted += 1;
                }
                // A part of it, or another compressor's, or it is no work, or damaged: here.
                _ => load.result = self.unpack(object, fingerprint, first, to),
            }
        }
        self.contexts.main_reader().submit(Batch::Decompress(&mut requests[..wanted])).wait_with(between);
        let results = requests.map(|request| request.result);
        for (load, kept) in loads.iter_mut().zip(&views) {
            if let Some((view, request)) = kept {
                let read = results[*request].map_err(|_| Damaged::Stream);
                load.result = read.and_then(|()| self.finish(view, load.first, load.to));
            }
        }
    }

    /// Restores pages `first..` of an object, as many as `to` holds, and checks each, and that it is the object of this
    /// fingerprint.
    pub fn unpack(
        &mut self,
        object: &[u8],
        fingerprint: u32,
        first: usize,
        to: &mut [u8],
    ) -> Result<(), Damaged> {
        let count = to.len() / PAGE;
        let view = look(object, fingerprint, first + count)?;
        // Which of the pages with data are wanted: they are read to the beginning of `to`, and brought to their places.
        let wanted = view.data_of(first..first + count);
        let (start, end) = (wanted.start * PAGE, wanted.end * PAGE);
        let data = &mut to[..end - start];
        let context = match view.format {
            Format::Plain => None,
            Format::Of(_) if data.is_empty() => None,
            Format::Of(kind) => Some(self.contexts.reader(kind).map_err(|_| Damaged::Stream)?),
        };
        match context {
            _ if data.is_empty() => {}
            None => data.copy_from_slice(&view.payload[start..end]),
            Some(context) if wanted.len() == view.data_pages() => {
                let mut batch = [DecompressRequest::new(view.payload, data)];
                context.decompress(&mut batch);
                batch[0].result.map_err(|_| Damaged::Stream)?;
            }
            Some(context) => {
                // Only as far as the last page that is wanted.
                let plain = &mut self.plain[..end];
                let full = view.data_pages() * PAGE;
                let read = context.decompress_prefix(view.payload, plain, full);
                read.map_err(|_| Damaged::Stream)?;
                data.copy_from_slice(&plain[start..]);
            }
        }
        self.finish(&view, first, to)
    }

    /// The pages of an object that are kept as they are, each with data; `None` where it is no such object, or a page
    /// is not what was stored.
    pub fn plain_pages<'a>(&self, object: &'a [u8]) -> Option<&'a [u8]> {
        let view = View::read(object).filter(|view| view.format == Format::Plain)?;
        let mut pages = view.payload.chunks_exact(PAGE).enumerate();
        let is_sound = view.data_pages() == view.pages
            && pages.all(|(index, page)| page::hash(page, self.seed) == view.hash(index));
        is_sound.then_some(view.payload)
    }

    /// Brings pages `first..` of an object to their places, of which the data is at the beginning of `to`, and checks
    /// that they are those that were stored.
    fn finish(&self, view: &View<'_>, first: usize, to: &mut [u8]) -> Result<(), Damaged> {
        view.spread(first, to);
        let mut pages = to.chunks_exact(PAGE).enumerate();
        let is_sound = pages.all(|(i, page)| page::hash(page, self.seed) == view.hash(first + i));
        if is_sound { Ok(()) } else { Err(Damaged::Checksum) }
    }
}

/// An object as far as its header tells of it: that it is the one of this fingerprint, with so many pages at least.
fn look(object: &[u8], fingerprint: u32, pages: usize) -> Result<View<'_>, Damaged> {
    let view = View::read(object).ok_or(Damaged::Stream)?;
    if view.fingerprint() != fingerprint {
        return Err(Damaged::Object);
    }
    if pages > view.pages { Err(Damaged::Stream) } else { Ok(view) }
}
