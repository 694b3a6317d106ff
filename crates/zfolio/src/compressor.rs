//! What a run's objects are made by: what it has begun with, or what was set since.

use crate::library;
use acomp::Kind;
use memcg::Memcg;
use std::fmt;
use std::fs::File;
use std::sync::atomic::Ordering::*;
use zswap::Choice;

/// What makes new objects in a run; `None` where its page says nothing that is known.
pub fn now(memcg: &Memcg) -> Option<Choice> {
    Choice::now(memcg.settings.compressor.as_str(), memcg.tunables.compressor.load(Acquire))
}

/// Has the run's library have what runs where this word is [set]. The error is one line.
pub fn prepare(memcg: &Memcg, library: &File, word: u64) -> Result<(), String> {
    let choice = Choice::now(memcg.settings.compressor.as_str(), word);
    let prepared = choice.map_or(Ok(()), |choice| library::complete(library, choice));
    prepared.map_err(|e| format!("compressor: its code cannot be written: {e}"))
}

/// Has new objects made by what this word says, which is [`Choice::word`]'s, or 0: what the run has begun with.
pub fn set(memcg: &Memcg, word: u64) {
    let choices = [now(memcg), Choice::now(memcg.settings.compressor.as_str(), word)];
    let bits = choices.iter().flatten().flat_map(Choice::kinds).fold(0, |bits, kind| bits | kind.bit());
    memcg.tunables.compressors.fetch_or(bits, Release);
    memcg.tunables.compressor.store(word, Release);
}

/// What makes objects, and what has made them before; it prints as one phrase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compressors {
    /// What makes new ones, in the notation of the command line.
    pub now: String,
    /// The names of what has made others before.
    pub before: Vec<&'static str>,
}

impl Compressors {
    /// Reads a run's page.
    pub fn read(memcg: &Memcg) -> Compressors {
        let choice = now(memcg);
        let kinds: Vec<Kind> = choice.iter().flat_map(Choice::kinds).collect();
        let all = Kind::all_of(memcg.tunables.compressors.load(Acquire));
        let mut before: Vec<_> = all.filter(|kind| !kinds.contains(kind)).map(Kind::name).collect();
        before.sort_unstable();
        before.dedup();
        let first = || memcg.settings.compressor.as_str().to_string();
        Compressors { now: choice.map_or_else(first, |choice| choice.to_string()), before }
    }
}

impl fmt::Display for Compressors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.now)?;
        if self.before.is_empty() { Ok(()) } else { write!(f, ", before with {}", self.before.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memcg::{Settings, Text};

    #[test]
    fn what_is_set_is_told_with_what_was_there_before() {
        // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
        let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
        let compressor = Text::new("zstd:1").unwrap();
        memcg.init(1 << 30, Settings { compressor, ..Settings::default() });
        let said = |memcg: &Memcg| Compressors::read(memcg).to_string();
        assert_eq!(said(&memcg), "zstd:1");
        for (text, expected) in [
            ("zstd:9", "zstd:9"),
            ("lz4", "lz4:1, before with zstd"),
            ("lz4:3,zstd:9", "lz4:3,zstd:9"),
            ("lzo", "lzo, before with lz4, zstd"),
        ] {
            set(&memcg, Choice::parse(text).unwrap().word().unwrap());
            assert_eq!(said(&memcg), expected);
        }
        set(&memcg, 0);
        assert_eq!(
            Compressors::read(&memcg),
            Compressors { now: "zstd:1".into(), before: vec!["lz4", "lzo"] }
        );
    }
}
