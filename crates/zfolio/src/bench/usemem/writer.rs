//! One process of the experiment: writes anonymous memory, says how long that took, waits until all have, and compares.

use super::Failure;
use base::{PAGE, Random};
use std::fs;
use std::io::{self, BufRead, Write};
use std::time::Instant;

const WORDS: usize = PAGE / size_of::<u64>();

/// So many pages lie between the beginnings of two processes' contents, where those are of a file.
const STEP_PAGES: usize = 97;

/// Writes `bytes` as the process of this number, and compares them; an error is its status, and a line for the user.
pub fn run(bytes: u64, number: u64, contents: &str) -> Result<(), Failure> {
    let contents = Contents::open(contents, number).map_err(|line| (1, line))?;
    let count = bytes as usize / size_of::<u64>();
    let began = Instant::now();
    // Fresh memory, mapped and not yet there.
    let mut words = vec![0u64; count];
    for (index, word) in words.iter_mut().enumerate() {
        *word = contents.word(index);
    }
    say("written", began)?;
    // The others may still be at it.
    let _ = io::stdin().lock().read_line(&mut String::new());
    let began = Instant::now();
    let wrong = words.iter().enumerate().position(|(index, word)| *word != contents.word(index));
    if let Some(index) = wrong {
        return Err((1, format!("page {} of process {number} is not what was written", index / WORDS)));
    }
    say("read", began)
}

/// One line: what is done, and how many nanoseconds it took.
fn say(done: &str, began: Instant) -> Result<(), Failure> {
    let mut stdout = io::stdout();
    let written = writeln!(stdout, "{done} {}", began.elapsed().as_nanos()).and_then(|()| stdout.flush());
    written.map_err(|error| (1, format!("standard output: {error}")))
}

/// The names of what is written, where that is no file.
pub const MADE_UP: &str = "pointers and small numbers";
/// See [`MADE_UP`].
pub const NUMBERS: &str = "numbers";

/// What is written.
enum Contents {
    /// A pointer, a small number and two words of zero, again and again; others in each process.
    MadeUp(u64),
    /// Each word is its number, as usemem has it.
    Numbers,
    /// The pages of a file, again and again, from one of them on.
    Pages(Vec<u64>, usize),
}

impl Contents {
    fn open(name: &str, number: u64) -> Result<Contents, String> {
        match name {
            MADE_UP => return Ok(Contents::MadeUp(number)),
            NUMBERS => return Ok(Contents::Numbers),
            _ => {}
        }
        let bytes = fs::read(name).map_err(|error| format!("{name}: {error}"))?;
        let (words, _) = bytes.as_chunks();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let pages = words.len() / WORDS;
        if pages == 0 {
            return Err(format!("{name}: expected a page or more"));
        }
        let first = number as usize * STEP_PAGES % pages * WORDS;
        Ok(Contents::Pages(words[..pages * WORDS].to_vec(), first))
    }

    fn word(&self, index: usize) -> u64 {
        match self {
            Contents::MadeUp(number) => match index % 4 {
                0 => 0x7f00_0000_0000 | Random(index as u64 + (number << 32)).word() >> 50 << 4,
                1 => index as u64 / 4 % 32,
                _ => 0,
            },
            Contents::Numbers => index as u64,
            Contents::Pages(words, first) => words[(first + index) % words.len()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_pages_are_written_again_and_again_from_another_one_on_in_each_process() {
        let path = std::env::temp_dir().join(format!("zfolio-writer-{}", std::process::id()));
        let words: Vec<u64> = (0..3 * WORDS as u64 + 5).collect();
        fs::write(&path, words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
        let name = path.to_str().unwrap();
        let at = |number, index| Contents::open(name, number).unwrap().word(index);
        assert_eq!([at(0, 0), at(0, 3 * WORDS), at(0, 3 * WORDS - 1)], [0, 0, 3 * WORDS as u64 - 1]);
        assert_eq!(at(1, 0), (STEP_PAGES % 3 * WORDS) as u64);
        fs::write(&path, [1; 100]).unwrap();
        assert!(Contents::open(name, 0).is_err(), "it is no page");
        fs::remove_file(&path).unwrap();
        assert_eq!(Contents::open(NUMBERS, 7).unwrap().word(12), 12);
        let made_up = |number| Contents::open(MADE_UP, number).unwrap();
        assert!(made_up(1).word(4) != made_up(2).word(4) && made_up(1).word(133) == 1);
    }
}
