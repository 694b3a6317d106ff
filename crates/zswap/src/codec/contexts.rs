//! The contexts of a codec: those that make objects, and those that read what was made by others before.
//!
//! ```text
//!   make_by(lz4,zstd:3)     contexts:  842, read only     lz4 <── fast objects     zstd:3 <── dense objects
//!   object ── its header's kind ────────^
//! ```
//!
//! What makes objects reads them too, of any level. Of every other kind there is one context at most, which only reads.

use crate::choice::{Choice, Tier};
use crate::{PAGE, WINDOW_PAGES};
use acomp::{Compressor, Context, Error, Kind};
use alloc::vec::Vec;

const WINDOW: usize = WINDOW_PAGES * PAGE;

/// All of a codec's.
pub(super) struct Contexts {
    all: Vec<Context>,
    /// Which of them make objects.
    choice: Choice,
    /// The one that has a device.
    attached: Option<Compressor>,
    /// The user's dictionary.
    file: &'static [u8],
}

impl Contexts {
    /// Those that this choice takes.
    pub(super) fn new(choice: Choice, file: &'static [u8]) -> Result<Contexts, Error> {
        let mut contexts = Contexts { all: Vec::new(), choice, attached: None, file };
        contexts.make_by(choice)?;
        Ok(contexts)
    }

    /// From now on objects are made by this. On an error nothing has changed.
    pub(super) fn make_by(&mut self, choice: Choice) -> Result<(), Error> {
        let Choice { fast, dense } = choice;
        let made_fast = self.made(fast)?;
        let made_dense = if dense == fast { None } else { self.made(dense)? };
        self.make_room(2)?;
        self.all.extend(made_fast.into_iter().chain(made_dense));
        self.choice = choice;
        self.slim();
        Ok(())
    }

    /// A context of this compressor; `None` where there is one already.
    fn made(&self, compressor: Compressor) -> Result<Option<Context>, Error> {
        let is_there = self.all.iter().any(|context| context.compressor() == compressor);
        if is_there { Ok(None) } else { Context::with_dictionary(compressor, WINDOW, self.file).map(Some) }
    }

    fn make_room(&mut self, count: usize) -> Result<(), Error> {
        let bytes = count * size_of::<Context>();
        self.all.try_reserve(count).map_err(|_| Error::NoMemory { bytes })
    }

    /// Of what makes nothing any more one of each kind stays, unless others read that kind. It gives back what it takes
    /// to make objects, as far as there is memory for one that has not.
    fn slim(&mut self) {
        let Contexts { all, choice, attached, file } = self;
        let needed = [Some(choice.fast), Some(choice.dense), *attached];
        let mut read = needed.iter().flatten().fold(0, |bits, compressor| bits | compressor.kind().bit());
        all.retain_mut(|context| {
            let (compressor, kind) = (context.compressor(), context.compressor().kind());
            if needed.contains(&Some(compressor)) {
                return true;
            }
            let is_read = read & kind.bit() != 0;
            read |= kind.bit();
            if !is_read && let Ok(new) = Context::with_dictionary(kind.reader(), WINDOW, file) {
                *context = new;
            }
            !is_read
        });
    }

    /// What reads objects of this kind; makes it where there is none.
    pub(super) fn reader(&mut self, kind: Kind) -> Result<&mut Context, Error> {
        let at = match self.all.iter().position(|context| context.compressor().kind() == kind) {
            Some(at) => at,
            None => {
                self.make_room(1)?;
                self.all.push(Context::with_dictionary(kind.reader(), WINDOW, self.file)?);
                self.all.len() - 1
            }
        };
        Ok(&mut self.all[at])
    }

    /// What makes the objects of this tier.
    pub(super) fn maker(&mut self, tier: Tier) -> &mut Context {
        self.get(self.choice.of(tier))
    }

    /// What reads most: with a device, or else what makes dense objects.
    pub(super) fn main_reader(&mut self) -> &mut Context {
        self.get(self.attached.unwrap_or(self.choice.dense))
    }

    /// What a device may be attached to: what is for one, or else what makes dense objects.
    pub(super) fn attachable(&mut self) -> &mut Context {
        self.get(self.choice.device().unwrap_or(self.choice.dense))
    }

    fn get(&mut self, compressor: Compressor) -> &mut Context {
        let context = self.all.iter_mut().find(|context| context.compressor() == compressor);
        context.expect("it is there as long as it makes objects or has a device")
    }

    /// All, one after the other.
    pub(super) fn each(&mut self, act: fn(&mut Context)) {
        self.all.iter_mut().for_each(act);
    }

    /// Notes that [`Contexts::attachable`] has a device from now on.
    pub(super) fn note_attached(&mut self) {
        self.attached = Some(self.attachable().compressor());
    }

    /// True where a device makes the objects of this tier.
    pub(super) fn is_attached(&self, tier: Tier) -> bool {
        self.attached == Some(self.choice.of(tier))
    }
}
