//! What the engine knows of dictionaries: which one new objects are compressed with, and which others objects still need.

use crate::shelf::Shelf;
use acomp::Source;
use core::sync::atomic::Ordering::Relaxed;
use memcg::Stat;
use zswap::tutor::Sample;
use zswap::{Codec, Name, PLACES, Verdict, With};

/// The dictionaries of one process.
pub struct Lexicon {
    shelf: &'static Shelf,
    source: Source,
    used: With,
    /// The next one's name.
    next: Name,
    /// Those that are trained, by their place on the shelf, which is that in the engine's codec too; and how many objects of the pool need each.
    names: [Name; PLACES],
    objects: [usize; PLACES],
}

impl Lexicon {
    /// Of a process whose dictionaries come from this source.
    pub fn new(source: Source, shelf: &'static Shelf) -> Lexicon {
        let used = if source == Source::File { With::FILE } else { With::default() };
        Lexicon { shelf, source, used, next: 1, names: [0; PLACES], objects: [0; PLACES] }
    }

    /// In a child: what its parent's engine knew, and the dictionaries on the child's own shelf. `codec` was the parent's.
    pub fn take_over(parents: Lexicon, shelf: &'static Shelf, codec: &Codec) -> Lexicon {
        for (place, &name) in parents.names.iter().enumerate() {
            // The lowest free ones are claimed: those in between are given back below.
            let claimed = shelf.claim();
            debug_assert_eq!(claimed, Some(place));
            if let Some(dictionary) = codec.dictionary(place).filter(|_| name != 0) {
                shelf.fill(place, dictionary);
                shelf.name(place, name);
            }
        }
        (0..PLACES).filter(|&place| parents.names[place] == 0).for_each(|place| shelf.free(place));
        Lexicon { shelf, ..parents }
    }

    /// What new objects are compressed with.
    pub fn used(&self) -> With {
        self.used
    }

    /// The same for objects that other processes read.
    pub fn used_in_common(&self) -> With {
        if self.source == Source::File { self.used } else { With::default() }
    }

    /// True when objects of the pool may need one that could be given up.
    pub fn is_counted(&self) -> bool {
        self.names != [0; PLACES]
    }

    /// An object of the pool needs the dictionary of this name, if it is one.
    pub fn note(&mut self, name: Name) {
        if let Some(place) = self.place(name) {
            self.objects[place] += 1;
        }
    }

    /// An object that did is gone.
    pub fn forget(&mut self, name: Name) {
        if let Some(place) = self.place(name) {
            self.objects[place] = self.objects[place].saturating_sub(1);
        }
    }

    fn place(&self, name: Name) -> Option<usize> {
        self.names.iter().position(|own| name != 0 && *own == name)
    }

    /// Hears what the tutor has found out, and gives up what nobody needs any more: neither an object nor a job, of which `is_given` knows.
    pub fn tend(&mut self, codec: &mut Codec, is_given: impl Fn(Name) -> bool, stat: &Stat) {
        match self.shelf.hear() {
            None => {}
            Some(Verdict::Trained { place, sample, uses }) => {
                stat.trained.fetch_add(1, Relaxed);
                count(sample, stat);
                if !uses.is_none() && codec.learn(place, self.next, self.shelf.at(place)) {
                    stat.trained_kept.fetch_add(1, Relaxed);
                    (self.names[place], self.objects[place]) = (self.next, 0);
                    self.shelf.name(place, self.next);
                    self.used = With { name: self.next, uses, ..With::default() };
                    self.next += 1;
                } else {
                    self.shelf.free(place);
                }
            }
            Some(Verdict::Tested { with, sample }) => {
                count(sample, stat);
                if with.name == self.used.name {
                    stat.trained_dropped.fetch_add(with.uses.is_none() as u64, Relaxed);
                    self.used = if with.uses.is_none() { With::default() } else { with };
                }
            }
        }
        for place in 0..PLACES {
            let name = self.names[place];
            if name != 0 && name != self.used.name && self.objects[place] == 0 && !is_given(name) {
                self.names[place] = 0;
                self.shelf.free(place);
            }
        }
    }
}

fn count(Sample { pages, windows }: Sample, stat: &Stat) {
    let bytes = [pages.without, pages.with, windows.without, windows.with];
    for (counter, bytes) in stat.tested_bytes.iter().zip(bytes) {
        counter.fetch_add(bytes as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zswap::Uses;

    const TRAINED: &[u8] = b"as good as any other";

    fn shelf() -> &'static Shelf {
        // SAFETY: of zeros it is one on which nothing is.
        Box::leak(unsafe { Box::<Shelf>::new_zeroed().assume_init() })
    }

    fn codec() -> Codec {
        Codec::new(acomp::Compressor::parse("zstd:1,dict=auto").unwrap(), 7, &[]).unwrap()
    }

    /// Who trains has made another one.
    fn train(shelf: &Shelf, uses: Uses) -> Option<usize> {
        let place = shelf.claim()?;
        shelf.fill(place, TRAINED);
        shelf.tell(Verdict::Trained { place, sample: Sample::default(), uses });
        Some(place)
    }

    #[test]
    fn one_that_was_replaced_stays_as_long_as_an_object_or_a_job_needs_it() {
        let (shelf, mut codec, stat) = (shelf(), codec(), Stat::default());
        let mut lexicon = Lexicon::new(Source::Auto, shelf);
        let tend =
            |lexicon: &mut Lexicon, codec: &mut Codec, job| lexicon.tend(codec, |name| name == job, &stat);
        for expected in 1..=PLACES as Name {
            assert!(train(shelf, Uses::ALL).is_some() && !shelf.is_heard());
            tend(&mut lexicon, &mut codec, 0);
            assert_eq!(lexicon.used(), With { name: expected, uses: Uses::ALL, ..With::default() });
            assert_eq!(shelf.place(expected).map(|place| shelf.at(place)), Some(TRAINED));
            lexicon.note(expected);
        }
        lexicon.note(1);
        assert_eq!((shelf.claim(), shelf.bytes()), (None, PLACES * acomp::TRAINED_BYTES));
        // The last is used; of the others one is needed by two objects, the other by an object and a job.
        lexicon.forget(1);
        lexicon.forget(2);
        tend(&mut lexicon, &mut codec, 2);
        assert!((1..=3).all(|name| shelf.place(name).is_some()));
        lexicon.forget(1);
        tend(&mut lexicon, &mut codec, 2);
        assert!(shelf.place(1).is_none() && shelf.place(2).is_some() && lexicon.is_counted());
        tend(&mut lexicon, &mut codec, 0);
        assert!(shelf.place(2).is_none() && shelf.place(3).is_some());
        // It is given up, and nobody needs it any more; the next has a new name.
        let with = With { uses: Uses::default(), ..lexicon.used() };
        shelf.tell(Verdict::Tested { with, sample: Sample::default() });
        tend(&mut lexicon, &mut codec, 0);
        assert_eq!((lexicon.used(), shelf.place(3).is_some()), (With::default(), true));
        lexicon.forget(3);
        tend(&mut lexicon, &mut codec, 0);
        assert!(!lexicon.is_counted() && shelf.bytes() == 0);
        train(shelf, Uses { pages: true, windows: false });
        tend(&mut lexicon, &mut codec, 0);
        assert_eq!(lexicon.used().name, 4);
        // One that gains nothing leaves nothing behind.
        train(shelf, Uses::default());
        tend(&mut lexicon, &mut codec, 0);
        assert_eq!((lexicon.used().name, shelf.bytes()), (4, acomp::TRAINED_BYTES));
        let counts = [&stat.trained, &stat.trained_kept, &stat.trained_dropped].map(|c| c.load(Relaxed));
        assert_eq!(counts, [5, 4, 1]);
    }

    #[test]
    fn a_child_has_what_its_parent_had_on_a_shelf_of_its_own() {
        let (parents, mut codec, stat) = (shelf(), codec(), Stat::default());
        let mut lexicon = Lexicon::new(Source::Auto, parents);
        for name in 1..=2 {
            train(parents, Uses::ALL);
            lexicon.tend(&mut codec, |_| false, &stat);
            assert_eq!(lexicon.used().name, name);
        }
        lexicon.note(2);
        // The first has gone, and its place is free.
        assert_eq!((parents.place(1), parents.place(2)), (None, Some(1)));
        let own = shelf();
        let mut child = Lexicon::take_over(lexicon, own, &codec);
        assert_eq!((own.place(2), own.at(1), own.bytes()), (Some(1), TRAINED, acomp::TRAINED_BYTES));
        assert_eq!(child.used().name, 2);
        assert_eq!(train(own, Uses::ALL), Some(0));
        child.tend(&mut codec, |_| false, &stat);
        assert_eq!((child.used().name, own.place(2), own.place(3)), (3, Some(1), Some(0)));
        child.forget(2);
        child.tend(&mut codec, |_| false, &stat);
        assert_eq!((own.place(2), parents.place(2)), (None, Some(1)), "the parent's is its own");
    }

    #[test]
    fn what_the_family_reads_has_the_user_s_dictionary_or_none() {
        let [none, auto, file] = [Source::None, Source::Auto, Source::File].map(|source| {
            let mut lexicon = Lexicon::new(source, shelf());
            if source == Source::Auto {
                train(lexicon.shelf, Uses::ALL);
                lexicon.tend(&mut codec(), |_| false, &Stat::default());
            }
            (lexicon.used(), lexicon.used_in_common())
        });
        assert_eq!((none, file), ((With::default(), With::default()), (With::FILE, With::FILE)));
        assert_eq!((auto.0.name, auto.1), (1, With::default()));
    }
}
