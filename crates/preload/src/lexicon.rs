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
                    self.used = With { name: self.next, uses };
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
