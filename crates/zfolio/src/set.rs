//! `zfolio set`: changes a run that goes on, or says what can be changed.

use crate::args;
use crate::client::{self, ANSWERS};
use crate::control_socket::request::Task;
use crate::control_socket::tunables;
use crate::lines::{WIDTH, cut, printable};
use crate::runs;
use ask::Answer;

/// The command line is wrong.
const USAGE: u8 = 2;
/// There is no such run, or it does not answer.
const NONE: u8 = 1;

/// Does it; the exit status.
pub fn run(args: &args::Set) -> u8 {
    client::show(&answer(args).unwrap_or_else(|error| error))
}

fn answer(args: &args::Set) -> Result<Answer, Answer> {
    let none = |why: String| Answer::error(NONE, why);
    let values = args.values.iter().map(|text| pair(text)).collect::<Result<Vec<_>, _>>();
    let values = values.map_err(|why| Answer::error(USAGE, why))?;
    let run = runs::of(args.pid).map_err(none)?;
    if !values.is_empty() {
        return client::ask(&run, args.pid, Task::Set(values), ANSWERS).map_err(none);
    }
    let mut answer = client::ask(&run, args.pid, Task::List, ANSWERS).map_err(none)?;
    let whose = if args.pid == run.pid { String::new() } else { format!(", process {}", args.pid) };
    let title = format!("zfolio run {}{whose}: {}", run.pid, run.command_line());
    answer.lines.insert(0, cut(&title, WIDTH));
    Ok(answer)
}

/// A name that there is, and a value.
fn pair(text: &str) -> Result<(String, String), String> {
    let Some((name, value)) = text.split_once('=') else {
        return Err(format!("{}: expected NAME=VALUE, such as memory=512M", printable(text)));
    };
    tunables::find(name).map_err(|why| printable(&why))?;
    Ok((name.into(), value.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_has_a_name_that_there_is() {
        assert_eq!(pair("memory=64M"), Ok(("memory".into(), "64M".into())));
        assert_eq!(pair("zswap.max=a=b"), Ok(("zswap.max".into(), "a=b".into())));
        assert!(pair("memory").unwrap_err().contains("NAME=VALUE"));
        assert!(pair("memroy=1").unwrap_err().contains("memory is meant?"));
        assert!(!pair("a\n\u{1b}[2J=1").unwrap_err().contains(['\n', '\u{1b}']));
    }
}
