//! What is asked of a run: a line of JSON.
//!
//! ```text
//!   {"do":"list","pid":7,"start":1234}
//!   {"do":"set","pid":0,"start":0,"values":[["memory","64M"],["enabled","Y"]]}
//!   {"do":"reclaim","pid":7,"start":1234,"bytes":1048576,"timeout_ms":60000}
//! ```
//!
//! `pid` is the number that a process has for itself, with its `start` as /proc/PID/stat has it; 0 is the run.

use serde_json::{Value, json};

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Say what the tunables are.
    List,
    /// Change them.
    Set(Vec<(String, String)>),
    /// Shrink.
    Reclaim {
        /// By so many bytes.
        bytes: u64,
        /// In so many milliseconds at most.
        timeout_ms: u64,
    },
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is to be done.
    pub task: Task,
    /// Of which process; 0: of the run.
    pub pid: u32,
    /// When that started.
    pub start: u64,
}

impl Request {
    /// As a line, with its end.
    pub fn line(&self) -> String {
        let Request { task, pid, start } = self;
        let mut value = json!({ "do": "list", "pid": pid, "start": start });
        match task {
            Task::List => {}
            Task::Set(values) => {
                value["do"] = "set".into();
                value["values"] = json!(values);
            }
            Task::Reclaim { bytes, timeout_ms } => {
                value["do"] = "reclaim".into();
                value["bytes"] = json!(bytes);
                value["timeout_ms"] = json!(timeout_ms);
            }
        }
        format!("{value}\n")
    }

    /// Reads a line. An error is one for who has sent it.
    pub fn parse(line: &[u8]) -> Result<Request, String> {
        let value: Value = serde_json::from_slice(line).map_err(|_| "this is no JSON".to_string())?;
        let number = |name: &str| {
            value.get(name).and_then(Value::as_u64).ok_or_else(|| format!("{name} is missing, or no number"))
        };
        let pair = |pair: &Value| {
            let [name, value] = pair.as_array()?.as_slice() else { return None };
            Some((name.as_str()?.to_string(), value.as_str()?.to_string()))
        };
        let task = match value.get("do").and_then(Value::as_str) {
            Some("list") => Task::List,
            Some("set") => {
                let values = value.get("values").and_then(Value::as_array);
                let values = values.and_then(|values| values.iter().map(pair).collect::<Option<Vec<_>>>());
                Task::Set(values.ok_or("values is missing, or no list of pairs")?)
            }
            Some("reclaim") => Task::Reclaim { bytes: number("bytes")?, timeout_ms: number("timeout_ms")? },
            _ => return Err("do is none of list, set and reclaim".into()),
        };
        let pid = u32::try_from(number("pid")?).map_err(|_| "pid is too large".to_string())?;
        Ok(Request { task, pid, start: number("start")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Random;

    #[test]
    fn what_is_written_is_read() {
        for task in [
            Task::List,
            Task::Set(vec![]),
            Task::Set(vec![("memory".into(), "64M".into()), ("\"\n=é".into(), String::new())]),
            Task::Reclaim { bytes: u64::MAX, timeout_ms: 0 },
        ] {
            let request = Request { task, pid: 7, start: u64::MAX };
            let line = request.line();
            assert_eq!(line.matches('\n').count(), 1);
            assert_eq!(Request::parse(line.as_bytes()), Ok(request));
        }
    }

    /// From a seed: any bytes are no request, or one; a line that is cut or has a byte changed is no surprise either.
    #[test]
    fn nonsense_is_refused_with_a_reason() {
        for (line, reason) in [
            ("", "no JSON"),
            ("nonsense", "no JSON"),
            ("7", "do is none"),
            (r#"{"do":"stop","pid":0,"start":0}"#, "do is none"),
            (r#"{"do":"list","pid":-1,"start":0}"#, "pid is missing"),
            (r#"{"do":"list","pid":4294967296,"start":0}"#, "pid is too large"),
            (r#"{"do":"set","pid":0,"start":0}"#, "values is missing"),
            (r#"{"do":"set","pid":0,"start":0,"values":[["a"]]}"#, "no list of pairs"),
            (r#"{"do":"reclaim","pid":0,"start":0,"bytes":1.5,"timeout_ms":1}"#, "bytes is missing"),
        ] {
            let error = Request::parse(line.as_bytes()).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
        for seed in 0..2000 {
            let mut random = Random(seed);
            let task = Task::Set(vec![("memory".into(), "64M".into())]);
            let mut line = Request { task, pid: 7, start: 1 }.line().into_bytes();
            line.truncate(random.below(line.len() + 1));
            if !line.is_empty() {
                let at = random.below(line.len());
                line[at] = random.word() as u8;
            }
            if let Ok(request) = Request::parse(&line) {
                assert_eq!(Request::parse(request.line().as_bytes()), Ok(request), "seed {seed}");
            }
        }
    }
}
