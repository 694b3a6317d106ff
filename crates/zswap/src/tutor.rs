//! Whether a process's memory profits from a dictionary, and from which: looked after by one of those who compress it, in between.
//!
//! ```text
//!   rest ── so many bytes later ──> gather ──> train ──> test ── better by a margin? ──> kept: Verdict::Trained
//!    ^                                 └── has one ──────> test ── still better? ──────> Verdict::Tested, else gather anew
//!    └───────────── longer each time that it was in vain ──────────┘
//! ```
//!
//! Samples are units as they were compressed: single pages, and windows. Part of them is held out, and a dictionary is judged by what these come to
//! with it and without it, each kind for itself, since single pages gain most. One that is used is tested on new samples now and then: when the data have
//! become others it gains nothing any more, and the search begins anew.
//!
//! Each [`Tutor::turn`] does less than a millisecond's work; whoever calls it says how often. What is gathered is given back after each test.

use crate::codec::{Codec, New, Packed};
use crate::dictionary::{CANDIDATE, Uses, With};
use crate::{PAGE, WINDOW_PAGES};
use acomp::TRAINED_BYTES;
use acomp::train::Trainer;
use alloc::vec::Vec;

/// So much is compressed while samples are gathered, and one part in so many of it is a sample, of which one in so many is held out: 1 MiB to train from.
const GATHER_BYTES: usize = 12 << 20;
const SAMPLE_PART: usize = 8;
const HELD_PART: usize = 3;

/// What is held out of a kind, at most; and less than this says nothing.
const HELD_MAX_BYTES: usize = 512 << 10;
const HELD_MIN_BYTES: usize = 64 << 10;
const TRAIN_MAX_BYTES: usize = 1 << 20;

/// Between two tests, or after a training in vain, so much is compressed; after each further one in vain twice as much, up to this.
const REST_BYTES: usize = 64 << 20;
const REST_MAX_BYTES: usize = 1 << 30;

/// In the test mode it gathers so much, and rests no longer.
const HASTY_BYTES: usize = 1 << 20;

/// A dictionary is kept if the sample is so many hundredths smaller with it, and used as long as it is so many.
const KEPT_PERCENT: usize = 2;
const USED_PERCENT: usize = 1;

/// What a kind of unit in a sample came to, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Of the units as they are.
    pub plain: usize,
    /// Without a dictionary.
    pub without: usize,
    /// With it.
    pub with: usize,
}

impl Weight {
    fn is_better(self, percent: usize) -> bool {
        self.plain >= HELD_MIN_BYTES && self.with * 100 <= self.without * (100 - percent)
    }
}

/// What a test has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Of single pages.
    pub pages: Weight,
    /// Of windows.
    pub windows: Weight,
}

impl Sample {
    /// For which objects the dictionary is better by so many hundredths.
    fn uses(self, percent: usize) -> Uses {
        Uses { pages: self.pages.is_better(percent), windows: self.windows.is_better(percent) }
    }
}

/// What the tutor has found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A dictionary was trained. It lies in the codec at `place`, as [`CANDIDATE`].
    Trained {
        /// Where it lies.
        place: usize,
        /// What it gained.
        sample: Sample,
        /// What it is good for; if that is nothing it is not kept.
        uses: Uses,
    },
    /// The dictionary that is used was tested on new samples.
    Tested {
        /// It, and what it is good for now; if that is nothing it is not used any more.
        with: With,
        /// What it gained.
        sample: Sample,
    },
}

/// Units that are held out.
#[derive(Default)]
struct Held {
    bytes: Vec<u8>,
    /// How many pages each has.
    pages: Vec<usize>,
}

/// What is tested.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Candidate { place: usize },
    Used { with: With, place: usize },
}

enum Stage {
    /// Until so many more bytes were compressed.
    Rest(usize),
    /// Until so many were.
    Gather(usize),
    Train {
        place: usize,
        trainer: Trainer,
    },
    /// The next unit is this one, and what came before it came to this.
    Test {
        subject: Subject,
        next: usize,
        at: usize,
        sample: Sample,
    },
}

/// See the head of the file.
pub struct Tutor {
    stage: Stage,
    rest_bytes: usize,
    /// What new objects are compressed with, as it was seen last.
    used: With,
    train: Vec<u8>,
    held: Held,
    /// Bytes of single pages and of windows, of which no sample was taken yet; and how many were.
    unsampled: [usize; 2],
    samples: usize,
    is_hasty: bool,
}

impl Default for Tutor {
    fn default() -> Tutor {
        Tutor {
            stage: Stage::Gather(GATHER_BYTES),
            rest_bytes: REST_BYTES,
            used: With::default(),
            train: Vec::new(),
            held: Held::default(),
            unsampled: [0; 2],
            samples: 0,
            is_hasty: false,
        }
    }
}

impl Tutor {
    /// For a test mode: whatever is trained is kept, and given up at the next test, so that there are always new ones.
    pub fn hasty() -> Tutor {
        Tutor { stage: Stage::Gather(HASTY_BYTES), is_hasty: true, ..Tutor::default() }
    }

    /// Is told of what was packed: `packed`, in objects of up to `unit` pages, from `window`.
    pub fn see(&mut self, window: &[u8], unit: usize, packed: &Packed, with: With) {
        if self.is_busy() {
            return;
        }
        if with.name != self.used.name {
            // Samples are gathered for another purpose from now on.
            self.rest(if with.name == 0 { 0 } else { REST_BYTES });
        }
        self.used = with;
        let mut pages = (0..WINDOW_PAGES).filter(|page| packed.in_objects & 1 << page != 0);
        let mut left = packed.in_objects.count_ones() as usize;
        for new in packed.objects.iter().flatten() {
            let count = left.min(unit);
            left -= count;
            let mut own = [0; WINDOW_PAGES];
            own[..count].iter_mut().for_each(|page| *page = pages.next().unwrap_or(0));
            if matches!(new, New::Blob { compressed: true, .. }) {
                self.see_unit(window, &own[..count]);
            }
        }
    }

    fn see_unit(&mut self, window: &[u8], pages: &[usize]) {
        let bytes = pages.len() * PAGE;
        match &mut self.stage {
            Stage::Rest(left) if *left > bytes => *left -= bytes,
            Stage::Rest(_) => {
                self.stage = Stage::Gather(if self.is_hasty { HASTY_BYTES } else { GATHER_BYTES });
            }
            Stage::Gather(left) => {
                *left = left.saturating_sub(bytes);
                let unsampled = &mut self.unsampled[(pages.len() > 1) as usize];
                *unsampled += bytes;
                if *unsampled >= bytes * SAMPLE_PART {
                    *unsampled = 0;
                    self.take(window, pages);
                }
            }
            Stage::Train { .. } | Stage::Test { .. } => {}
        }
    }

    /// Takes a sample, if there is room and memory.
    fn take(&mut self, window: &[u8], pages: &[usize]) {
        let bytes = pages.len() * PAGE;
        self.samples += 1;
        let is_held = self.used.name != 0 || self.samples.is_multiple_of(HELD_PART);
        let (to, most) = match is_held {
            true => (&mut self.held.bytes, 2 * HELD_MAX_BYTES),
            false => (&mut self.train, TRAIN_MAX_BYTES),
        };
        // In one piece, which is given back in one piece.
        let has_room = to.capacity() > 0 || to.try_reserve_exact(most).is_ok();
        if !has_room || to.len() + bytes > most {
            return;
        }
        pages.iter().for_each(|page| to.extend_from_slice(&window[page * PAGE..][..PAGE]));
        if is_held {
            self.held.pages.push(pages.len());
        }
    }

    /// True when there is something to be done.
    pub fn is_busy(&self) -> bool {
        !matches!(self.stage, Stage::Rest(_) | Stage::Gather(1..))
    }

    /// Does a little of it. `free` is a place where no dictionary is needed, if there is one.
    pub fn turn(&mut self, codec: &mut Codec, free: impl FnOnce() -> Option<usize>) -> Option<Verdict> {
        match &mut self.stage {
            Stage::Rest(_) | Stage::Gather(1..) => {}
            Stage::Gather(0) => self.begin(codec, free),
            Stage::Train { place, trainer } => {
                let place = *place;
                if !trainer.step() {
                    return self.trained(codec, place);
                }
            }
            Stage::Test { .. } => return self.test(codec),
        }
        None
    }

    /// Has gathered enough: trains, or tests what is used.
    fn begin(&mut self, codec: &mut Codec, free: impl FnOnce() -> Option<usize>) {
        if let Some(place) = codec.place(self.used.name) {
            let subject = Subject::Used { with: self.used, place };
            self.stage = Stage::Test { subject, next: 0, at: 0, sample: Sample::default() };
            return;
        }
        let train = core::mem::take(&mut self.train);
        let trainer = Trainer::new(train, PAGE, TRAINED_BYTES);
        match trainer.and_then(|trainer| Some((trainer, free()?))) {
            Some((trainer, place)) => self.stage = Stage::Train { place, trainer },
            None => self.rest_longer(),
        }
    }

    /// Tests what was trained, if it is anything.
    fn trained(&mut self, codec: &mut Codec, place: usize) -> Option<Verdict> {
        let Stage::Train { trainer, .. } = core::mem::replace(&mut self.stage, Stage::Rest(REST_BYTES))
        else {
            return None;
        };
        let (dictionary, _) = trainer.finish();
        if codec.learn(place, CANDIDATE, &dictionary) {
            let subject = Subject::Candidate { place };
            self.stage = Stage::Test { subject, next: 0, at: 0, sample: Sample::default() };
            return None;
        }
        self.rest_longer();
        Some(Verdict::Trained { place, sample: Sample::default(), uses: Uses::default() })
    }

    /// Tests one unit, and says what has come of it after the last.
    fn test(&mut self, codec: &mut Codec) -> Option<Verdict> {
        let Stage::Test { subject, next, at, sample } = &mut self.stage else { return None };
        let (Subject::Candidate { place } | Subject::Used { place, .. }) = *subject;
        if let Some(&pages) = self.held.pages.get(*next) {
            let unit = &self.held.bytes[*at..][..pages * PAGE];
            let weight = if pages == 1 { &mut sample.pages } else { &mut sample.windows };
            weight.plain += unit.len();
            weight.without += codec.weigh(unit, None);
            weight.with += codec.weigh(unit, Some(place));
            (*next, *at) = (*next + 1, *at + unit.len());
            return None;
        }
        let (subject, sample) = (*subject, *sample);
        Some(match subject {
            Subject::Candidate { place } => {
                let uses = if self.is_hasty { Uses::ALL } else { sample.uses(KEPT_PERCENT) };
                if uses.is_none() {
                    self.rest_longer()
                } else {
                    self.rest(REST_BYTES)
                }
                Verdict::Trained { place, sample, uses }
            }
            Subject::Used { with, .. } => {
                let uses = if self.is_hasty { Uses::default() } else { sample.uses(USED_PERCENT) };
                self.rest(if uses.is_none() { 0 } else { REST_BYTES });
                Verdict::Tested { with: With { uses, ..with }, sample }
            }
        })
    }

    fn rest_longer(&mut self) {
        self.rest(self.rest_bytes);
        self.rest_bytes = (2 * self.rest_bytes).min(REST_MAX_BYTES);
    }

    /// Gives back what was gathered.
    fn rest(&mut self, bytes: usize) {
        let bytes = if self.is_hasty { bytes.min(HASTY_BYTES) } else { bytes };
        let Tutor { rest_bytes, used, is_hasty, .. } = *self;
        *self = Tutor { stage: Stage::Rest(bytes), rest_bytes, used, is_hasty, ..Tutor::default() };
    }
}
