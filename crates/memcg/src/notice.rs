//! A line for the user, in the run's page: written by one process, read by `zfolio run`.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// The most bytes of a line.
pub const LINE_BYTES: usize = 512;

/// Words that hold a line.
pub(crate) type Words = [AtomicU64; LINE_BYTES / 8];

/// Keeps a text, cut at [`LINE_BYTES`]; how many bytes it was.
pub(crate) fn keep(words: &Words, text: &str) -> usize {
    let bytes = &text.as_bytes()[..text.len().min(LINE_BYTES)];
    for (cell, chunk) in words.iter().zip(bytes.chunks(8)) {
        let mut word = [0u8; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        cell.store(u64::from_le_bytes(word), Relaxed);
    }
    bytes.len()
}

/// Copies what was kept in `len` bytes into `buffer`, and returns it.
pub(crate) fn kept<'a>(words: &Words, len: usize, buffer: &'a mut [u8; LINE_BYTES]) -> &'a str {
    for (cell, chunk) in words.iter().zip(buffer.chunks_mut(8)) {
        chunk.copy_from_slice(&cell.load(Relaxed).to_le_bytes());
    }
    let bytes = &buffer[..len.min(LINE_BYTES)];
    match core::str::from_utf8(bytes) {
        Ok(text) => text,
        // A cut in the middle of a character: what comes before it is sound.
        Err(e) => core::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or(""),
    }
}

/// A line that is said once in a run, by whichever process has it to say first.
#[repr(C)]
pub struct Notice {
    /// One of the states below.
    state: AtomicU32,
    len: AtomicU32,
    words: Words,
}

const NONE: u32 = 0;
const BEGUN: u32 = 1;
const DUE: u32 = 2;
const SAID: u32 = 3;

impl Notice {
    /// True while nobody has said it.
    pub fn is_open(&self) -> bool {
        self.state.load(Relaxed) == NONE
    }

    /// Says it, unless another one has.
    pub fn say(&self, text: &str) {
        if self.state.compare_exchange(NONE, BEGUN, AcqRel, Relaxed).is_ok() {
            self.len.store(keep(&self.words, text) as u32, Relaxed);
            self.state.store(DUE, Release);
        }
    }

    /// For `zfolio run`: shows the line, once.
    pub fn show(&self, show: impl FnOnce(&str)) {
        if self.state.compare_exchange(DUE, SAID, AcqRel, Relaxed).is_ok() {
            show(kept(&self.words, self.len.load(Relaxed) as usize, &mut [0; LINE_BYTES]));
        }
    }
}

/// How many of [`Notices`] are shown: as many as a user reads, and a part of a screen.
pub const SHOWN: usize = 16;

/// Lines of one kind that processes say, of which the first [`SHOWN`] are shown and the others counted.
#[repr(C)]
pub struct Notices {
    said: AtomicU32,
    _reserved: AtomicU32,
    lines: [Notice; SHOWN],
}

impl Notices {
    /// Says one.
    pub fn say(&self, text: &str) {
        if let Some(line) = self.lines.get(self.said.fetch_add(1, Relaxed) as usize) {
            line.say(text);
        }
    }

    /// For `zfolio run`: shows those that were not shown before.
    pub fn show(&self, mut show: impl FnMut(&str)) {
        self.lines.iter().for_each(|line| line.show(&mut show));
    }

    /// How many were said that are not shown.
    pub fn unshown(&self) -> u32 {
        self.said.load(Relaxed).saturating_sub(SHOWN as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice() -> Notice {
        let words = [const { AtomicU64::new(0) }; LINE_BYTES / 8];
        Notice { state: AtomicU32::new(0), len: AtomicU32::new(0), words }
    }

    #[test]
    fn of_many_lines_the_first_are_shown_once_and_the_others_counted() {
        let lines = core::array::from_fn(|_| notice());
        let notices = Notices { said: AtomicU32::new(0), _reserved: AtomicU32::new(0), lines };
        let mut shown = Vec::new();
        for n in 0..SHOWN + 3 {
            notices.say(&n.to_string());
            notices.show(|line| shown.push(line.to_string()));
        }
        assert_eq!(shown, (0..SHOWN).map(|n| n.to_string()).collect::<Vec<_>>());
        assert_eq!(notices.unshown(), 3);
    }

    #[test]
    fn it_is_said_once_and_shown_once() {
        let notice = notice();
        let mut shown = Vec::new();
        notice.show(|line| shown.push(line.to_string()));
        assert!(notice.is_open());
        notice.say("first");
        notice.say("second");
        assert!(!notice.is_open());
        (0..2).for_each(|_| notice.show(|line| shown.push(line.to_string())));
        assert_eq!(shown, ["first"]);
        notice.say("third");
        notice.show(|line| shown.push(line.to_string()));
        assert_eq!(shown, ["first"]);
    }

    #[test]
    fn a_line_is_cut_before_what_is_no_whole_character() {
        let words = [const { AtomicU64::new(0) }; LINE_BYTES / 8];
        let text = "x".repeat(LINE_BYTES - 1) + "é";
        assert_eq!(keep(&words, &text), LINE_BYTES);
        assert_eq!(kept(&words, LINE_BYTES, &mut [0; LINE_BYTES]), &text[..LINE_BYTES - 1]);
    }
}
