//! `zfolio reclaim`: shrinks a process, or a run, now.

use crate::args;
use crate::client::{self, ANSWERS};
use crate::control_socket::request::Task;
use crate::runs;
use crate::size::Size;
use ask::Answer;
use std::time::Duration;

/// The command line is wrong.
const USAGE: u8 = 2;
/// Less was reclaimed, or nothing could be asked for it.
const LESS: u8 = 1;

/// Does it; the exit status.
pub fn run(args: &args::Reclaim) -> u8 {
    client::show(&answer(args).unwrap_or_else(|error| error))
}

fn answer(args: &args::Reclaim) -> Result<Answer, Answer> {
    let text = args.size.to_string_lossy();
    let bytes = match Size::parse(&text) {
        Ok(Size::Bytes(bytes @ 1..)) => bytes,
        _ => {
            let why = format!("{text}: expected a size such as 64M, 1.5GiB or 67108864 (bytes)");
            return Err(Answer::error(USAGE, crate::lines::printable(&why)));
        }
    };
    let run = runs::of(args.pid).map_err(|why| Answer::error(LESS, why))?;
    let timeout = Duration::from_secs(args.timeout.into());
    let task = Task::Reclaim { bytes, timeout_ms: timeout.as_millis() as u64 };
    client::ask(&run, args.pid, task, timeout + ANSWERS).map_err(|why| Answer::error(LESS, why))
}
