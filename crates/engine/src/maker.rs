//! What makes new objects: what the user has begun the run with, or set since (`zfolio set PID compressor=NAME`).
//!
//! ```text
//!   the run's page ── with each job ──> engine: what reads it ── Work::Pack { made_by } ──> workers
//! ```
//!
//! The engine is first to follow, so that it reads whatever its workers make. One of them that cannot follow, for want
//! of memory, goes on as it was: each object says what has made it.

use core::sync::atomic::Ordering::Acquire;
use memcg::Memcg;
use zswap::Choice;

/// What makes new objects.
#[derive(Clone, Copy)]
pub struct Maker {
    /// What the page says: [`Choice::now`].
    pub word: u64,
    /// What that means.
    pub choice: Choice,
}

impl Maker {
    /// As the run's page says now; `None` where it says nothing that is known.
    pub fn now(memcg: &Memcg) -> Option<Maker> {
        Maker::of(memcg, memcg.tunables.compressor.load(Acquire))
    }

    /// As it says with this word; with 0 as the run began.
    pub fn of(memcg: &Memcg, word: u64) -> Option<Maker> {
        let choice = Choice::now(memcg.settings.compressor.as_str(), word)?;
        Some(Maker { word, choice })
    }

    /// What a worker begins with: as the run began, where that is for a device, which is opened then or never; else as
    /// it is now.
    pub fn of_worker(memcg: &Memcg) -> Option<Maker> {
        let first = Maker::of(memcg, 0);
        first.filter(|first| first.choice.device().is_some()).or_else(|| Maker::now(memcg))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memcg::{Settings, Text};

    #[test]
    fn workers_begin_with_a_device_and_else_with_what_there_is_now() {
        for (first, begins_with) in [
            ("zstd:3", "lz4:1"),
            ("lz4:2,zstd:3", "lz4:1"),
            ("deflate-iaa:fixed", "deflate-iaa:fixed"),
            ("lz4:1,deflate-iaa:fixed", "lz4:1,deflate-iaa:fixed"),
        ] {
            // SAFETY: every field is an integer or an atomic, for which all zeros is a value.
            let mut memcg: Box<Memcg> = unsafe { Box::new_zeroed().assume_init() };
            let compressor = Text::new(first).unwrap();
            memcg.init(1 << 30, Settings { compressor, ..Settings::default() });
            let printed = |maker: Option<Maker>| maker.unwrap().choice.to_string();
            assert_eq!((printed(Maker::now(&memcg)), Maker::now(&memcg).unwrap().word), (first.into(), 0));
            let word = Choice::parse("lz4").unwrap().word().unwrap();
            memcg.tunables.compressor.store(word, core::sync::atomic::Ordering::Release);
            assert_eq!(printed(Maker::now(&memcg)), "lz4:1");
            assert_eq!(printed(Maker::of_worker(&memcg)), begins_with);
        }
    }
}
