//! Who asks a device for something.

use crate::client::show;
use ask::Answer;
use serde_json::Value;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;
use zram_server::place;

/// Exit status: there is no such device, or it does not answer.
const NONE: u8 = 1;

/// The longest answer, in bytes: `block_state` of a device of 1 TiB has a line for each block.
const ANSWER_BYTES: usize = 16 << 30;

/// How long a device may take: as long as it compresses all its blocks again.
const ANSWERS: Duration = Duration::from_secs(86_400);

/// Asks the device of this number, and shows what it answers; the exit status.
pub fn run(number: u32, request: Value) -> u8 {
    let answer = match place::of(number) {
        Some(socket) => ask(number, &socket, &request, ANSWERS),
        None => Err(none(number)),
    };
    show(&answer.unwrap_or_else(|why| Answer::error(NONE, why)))
}

/// Asks a device. An error is one line for the user.
pub fn ask(number: u32, socket: &Path, request: &Value, time: Duration) -> Result<Answer, String> {
    let answer = ask::exchange(socket, &format!("{request}\n"), time, ANSWER_BYTES);
    let answer = answer.map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => none(number),
        ErrorKind::PermissionDenied => format!("zram{number} is another user's"),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("zram{number} does not answer: it may be stopped")
        }
        _ => format!("zram{number} cannot be asked: {error}"),
    })?;
    Answer::parse(&answer)
        .ok_or_else(|| format!("zram{number} has ended, or has too many to answer: try again"))
}

fn none(number: u32) -> String {
    format!("there is no zram{number} (`zfolio zram list` lists devices)")
}
