//! The contexts of a codec: those that make objects, and those that read what was made by others before.
//!
//! ```text
//!   make_by(lz4)     contexts:  zstd:1, read only     lz4      <── dense: what makes objects
//!   object ── its header's kind ──^
//! ```
//!
//! There is one of each kind at most: it reads that kind at any level.

use crate::choice::Choice;
use crate::{PAGE, WINDOW_PAGES};
use acomp::{Compressor, Context, Error, Kind};
use alloc::vec::Vec;

const WINDOW: usize = WINDOW_PAGES * PAGE;

/// All of a codec's.
pub(super) struct Contexts {
    all: Vec<Context>,
    /// Which of them makes objects: the one, or the dense one of two.
    dense: usize,
    /// The fast one of two.
    fast: Option<usize>,
    /// The one that has a device.
    attached: Option<usize>,
    /// The user's dictionary.
    file: &'static [u8],
}

impl Contexts {
    /// Those that this choice takes.
    pub(super) fn new(choice: Choice, file: &'static [u8]) -> Result<Contexts, Error> {
        let mut contexts = Contexts { all: Vec::new(), dense: 0, fast: None, attached: None, file };
        contexts.make_by(choice)?;
        Ok(contexts)
    }

    /// From now on objects are made by this. On an error nothing has changed.
    pub(super) fn make_by(&mut self, choice: Choice) -> Result<(), Error> {
        let Choice { compressor, auto } = choice;
        let dense = self.made(compressor)?;
        let fast = auto.map(|auto| self.made(auto.fast)).transpose()?;
        self.make_room(2)?;
        self.dense = self.place(compressor, dense);
        self.fast = fast.zip(auto).map(|(made, auto)| self.place(auto.fast, made));
        self.slim();
        Ok(())
    }

    /// A context of this compressor; `None` where there is one already.
    fn made(&self, compressor: Compressor) -> Result<Option<Context>, Error> {
        let is_there = self.all.iter().any(|context| context.compressor() == compressor);
        if is_there { Ok(None) } else { Context::with_dictionary(compressor, WINDOW, self.file).map(Some) }
    }

    /// Puts what was made in place of another level's; where it is then.
    fn place(&mut self, compressor: Compressor, made: Option<Context>) -> usize {
        let at = self.find(compressor.kind());
        match (at, made) {
            (Some(at), Some(made)) => {
                self.all[at] = made;
                self.attached = self.attached.filter(|attached| *attached != at);
                at
            }
            (Some(at), None) => at,
            (None, made) => {
                self.all.extend(made);
                self.all.len() - 1
            }
        }
    }

    fn find(&self, kind: Kind) -> Option<usize> {
        self.all.iter().position(|context| context.compressor().kind() == kind)
    }

    fn make_room(&mut self, count: usize) -> Result<(), Error> {
        let bytes = count * size_of::<Context>();
        self.all.try_reserve(count).map_err(|_| Error::NoMemory { bytes })
    }

    /// What makes nothing any more gives back what it takes to make objects, as far as there is memory for one that has
    /// not.
    fn slim(&mut self) {
        let Contexts { all, dense, fast, attached, file } = self;
        for (at, context) in all.iter_mut().enumerate() {
            let is_needed = at == *dense || Some(at) == *fast || Some(at) == *attached;
            let reader = context.compressor().kind().reader();
            if !is_needed && let Ok(new) = Context::with_dictionary(reader, WINDOW, file) {
                *context = new;
            }
        }
    }

    /// What reads objects of this kind; makes it where there is none.
    pub(super) fn reader(&mut self, kind: Kind) -> Result<&mut Context, Error> {
        let at = match self.find(kind) {
            Some(at) => at,
            None => {
                self.make_room(1)?;
                self.all.push(Context::with_dictionary(kind.reader(), WINDOW, self.file)?);
                self.all.len() - 1
            }
        };
        Ok(&mut self.all[at])
    }

    /// What makes objects: the one, or the dense one of two.
    pub(super) fn dense(&mut self) -> &mut Context {
        &mut self.all[self.dense]
    }

    /// The fast one of two.
    pub(super) fn fast(&mut self) -> Option<&mut Context> {
        self.fast.map(|at| &mut self.all[at])
    }

    /// All, one after the other.
    pub(super) fn each(&mut self, act: fn(&mut Context)) {
        self.all.iter_mut().for_each(act);
    }

    /// Notes that what makes objects has a device from now on.
    pub(super) fn note_attached(&mut self) {
        self.attached = Some(self.dense);
    }

    /// True where it has.
    pub(super) fn is_attached(&self) -> bool {
        self.attached == Some(self.dense)
    }
}
