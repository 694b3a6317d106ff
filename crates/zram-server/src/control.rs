//! What is asked at a device's control socket: a line of JSON each.
//!
//! ```text
//!   {"do":"list"}                                          one line: an object with its figures
//!   {"do":"show","name":"mm_stat"}                         the attribute's text; without name all of them
//!   {"do":"set","values":[["mem_limit","1G"],["compact","1"]]}
//!   {"do":"reset"}  {"do":"hot_remove"}                    refused while a client has the device open, as set of reset
//! ```
//!
//! Attributes are set in their order, up to the first that is refused. That may take as long as all blocks are
//! recompressed: a thread does it, and the socket answers others meanwhile.

use crate::server::Server;
use crate::signals;
use ask::{Act, Answer, Work};
use serde_json::{Value, json};
use std::os::unix::net::UnixListener;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};
use zram::{ATTRIBUTES, Access, Error};

/// Exit status: it cannot be done now.
pub(crate) const REFUSED: u8 = 1;

/// Exit status: what was asked for is wrong.
const WRONG: u8 = 2;

/// An attribute that has as many lines as the device has blocks: it is shown by its name alone.
const LONG: &str = "block_state";

/// The attribute that forgets all: it is refused as a kernel's device refuses it.
const RESET: &str = "reset";

/// How long an answer may take to its client before the process ends.
const TOLD: Duration = Duration::from_millis(200);

/// What a thread is at.
struct Setting(Receiver<Answer>);

impl Work for Setting {
    fn look(&mut self, _: Instant) -> Option<Answer> {
        match self.0.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(failed()),
        }
    }
}

/// Serves without an end.
pub(crate) fn serve(server: &'static Server, listener: UnixListener) {
    let owner = rustix::process::geteuid().as_raw();
    ask::Server::new(listener, owner, |line| act(server, line)).serve()
}

/// What a line is answered, once all is done that it asks for: for who asks without a socket.
pub fn answer(server: &'static Server, line: &[u8]) -> Answer {
    match act(server, line) {
        Act::Done(answer) => answer,
        Act::Begun(Setting(receiver)) => receiver.recv().unwrap_or_else(|_| failed()),
    }
}

fn failed() -> Answer {
    Answer::error(REFUSED, "it failed: see the server's output")
}

fn act(server: &'static Server, line: &[u8]) -> Act<Setting> {
    let Ok(value) = serde_json::from_slice::<Value>(line) else {
        return Act::Done(Answer::error(WRONG, "this is no JSON"));
    };
    match value.get("do").and_then(Value::as_str) {
        Some("list") => Act::Done(Answer::lines(vec![list(server).to_string()])),
        Some("show") => Act::Done(show(server, value.get("name").and_then(Value::as_str))),
        Some("set") => match pairs(value.get("values")) {
            Some(values) => in_thread(move || set(server, &values)),
            None => Act::Done(Answer::error(WRONG, "values is missing, or no list of pairs")),
        },
        Some("reset") => in_thread(move || set(server, &[(RESET.into(), "1".into())])),
        Some("hot_remove") => in_thread(move || unless_open(server, || hot_remove(server))),
        _ => Act::Done(Answer::error(WRONG, "do is none of list, show, set, reset and hot_remove")),
    }
}

/// The names and values of a request.
fn pairs(values: Option<&Value>) -> Option<Vec<(String, String)>> {
    let pair = |pair: &Value| {
        let [name, value] = pair.as_array()?.as_slice() else { return None };
        Some((name.as_str()?.to_string(), value.as_str()?.to_string()))
    };
    values?.as_array()?.iter().map(pair).collect()
}

fn in_thread(work: impl FnOnce() -> Answer + Send + 'static) -> Act<Setting> {
    let (sender, receiver) = channel();
    let run = move || drop(sender.send(work()));
    match thread::Builder::new().name("zram-set".into()).spawn(run) {
        Ok(_) => Act::Begun(Setting(receiver)),
        Err(error) => Act::Done(Answer::error(REFUSED, format!("no thread: {error}"))),
    }
}

/// As the kernel has it: a device that is open stays.
fn unless_open(server: &Server, act: impl FnOnce() -> Answer) -> Answer {
    let busy = |who: &str| Answer::error(REFUSED, format!("zram{} is busy: {who} it open", server.number()));
    match server.alone(act) {
        Ok(answer) => answer,
        Err(1) => busy(&server.disk_path().map_or("a client has".into(), |path| format!("{path} has"))),
        Err(clients) => busy(&format!("{clients} clients have")),
    }
}

/// Ends it, and the process when that is answered. Where it cannot be saved it stays.
fn hot_remove(server: &Server) -> Answer {
    if let Err(why) = server.end_if_saved() {
        return Answer::error(REFUSED, why);
    }
    let exit = move || {
        thread::sleep(TOLD);
        signals::exit(0)
    };
    if thread::Builder::new().spawn(exit).is_err() {
        signals::exit(0);
    }
    Answer::default()
}

/// The exit status of who asked for it.
pub(crate) fn status(error: &Error) -> u8 {
    if matches!(error, Error::Invalid { .. }) { WRONG } else { REFUSED }
}

fn refusal(error: &Error) -> Answer {
    Answer::error(status(error), error.to_string())
}

/// Sets one after the other; says what they are then, where that can be shown.
fn set(server: &Server, values: &[(String, String)]) -> Answer {
    let mut lines = Vec::new();
    for (name, value) in values {
        let set =
            || server.device().set(name, value).map_or_else(|error| refusal(&error), |()| Answer::default());
        let answer = if name == RESET { unless_open(server, set) } else { set() };
        if answer.error.is_some() {
            return Answer { lines, ..answer };
        }
        let is_shown =
            |attribute: &&zram::Attribute| attribute.name == name && attribute.access == Access::Both;
        if ATTRIBUTES.iter().any(|attribute| is_shown(&attribute)) {
            lines.extend(server.device().show(name).ok().map(|shown| format!("{name}={shown}")));
        }
    }
    Answer::lines(lines)
}

/// One attribute as the kernel shows it; or all, each with its name.
fn show(server: &Server, name: Option<&str>) -> Answer {
    if let Some(name) = name {
        return match server.device().show(name) {
            Ok(text) => Answer::lines(text.lines().map(str::to_string).collect()),
            Err(error) => refusal(&error),
        };
    }
    let shown =
        ATTRIBUTES.iter().filter(|attribute| attribute.access != Access::Set && attribute.name != LONG);
    let lines = shown.flat_map(|attribute| {
        let text = server.device().show(attribute.name).unwrap_or_else(|error| error.to_string());
        let lines: Vec<String> = text.lines().map(str::trim).map(str::to_string).collect();
        lines.into_iter().map(|line| format!("{:<22} {line}", attribute.name))
    });
    Answer::lines(lines.map(|line| line.trim_end().to_string()).collect())
}

/// What `zfolio zram list` shows of it.
fn list(server: &Server) -> Value {
    let stats = server.device().stats();
    let algorithm = server.device().show("comp_algorithm").unwrap_or_default();
    json!({
        "number": server.number(),
        "pid": std::process::id(),
        "algorithm": chosen(&algorithm),
        "disksize_bytes": stats.disksize_bytes,
        "orig_data_bytes": stats.orig_data_bytes,
        "compr_data_bytes": stats.compr_data_bytes,
        "mem_used_bytes": stats.mem_used_bytes,
        "mem_limit_bytes": stats.mem_limit_bytes,
        "mem_used_max_bytes": stats.mem_used_max_bytes,
        "same_pages": stats.same_pages,
        "pages_compacted": stats.pages_compacted,
        "huge_pages": stats.huge_pages,
        "huge_pages_since": stats.huge_pages_since,
        "failed_reads": stats.failed_reads,
        "failed_writes": stats.failed_writes,
        "invalid_io": stats.invalid_io,
        "notify_free": stats.notify_free,
        "bd_count": stats.bd_count,
        "bd_reads": stats.bd_reads,
        "bd_writes": stats.bd_writes,
        "damaged_blocks": stats.damaged_blocks,
        "refused_writes": stats.refused_writes,
        "clients": server.clients(),
        "front_ends": server.front_ends(),
    })
}

/// The one in brackets, as the kernel lists them: `lz4 [zstd] lzo`.
fn chosen(listed: &str) -> &str {
    let within = listed.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    within.map_or(listed.trim(), |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_algorithm_is_the_one_in_brackets() {
        assert_eq!(["lz4 [zstd] lzo", "[lz4]", "lz4", ""].map(chosen), ["zstd", "lz4", "lz4", ""]);
    }

    #[test]
    fn pairs_are_pairs_of_texts() {
        let pairs = |text: &str| super::pairs(serde_json::from_str::<Value>(text).ok().as_ref());
        assert_eq!(pairs(r#"[["a","b"],["c",""]]"#).unwrap().len(), 2);
        for wrong in ["7", r#"[["a"]]"#, r#"[["a",1]]"#, r#"[["a","b","c"]]"#, r#"{"a":"b"}"#, r#"["a"]"#] {
            assert_eq!(pairs(wrong), None, "{wrong}");
        }
        assert_eq!(super::pairs(None), None);
    }
}
