//! What is answered: a line of JSON.
//!
//! ```text
//!   {"status":0,"lines":["memory=64M","enabled=Y"]}
//!   {"status":2,"lines":[],"error":"memory=1M: expected 16M to 8G"}
//! ```

use serde_json::{Value, json};

/// The longest line that is asked, in bytes, without its end.
pub const LINE_BYTES: usize = 4 << 10;

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The exit status.
    pub status: u8,
    /// For standard output.
    pub lines: Vec<String>,
    /// What is wrong, in one line.
    pub error: Option<String>,
}

impl Answer {
    /// These lines.
    pub fn lines(lines: Vec<String>) -> Answer {
        Answer { lines, ..Answer::default() }
    }

    /// What is wrong, with an exit status.
    pub fn error(status: u8, error: impl Into<String>) -> Answer {
        Answer { status, error: Some(error.into()), ..Answer::default() }
    }

    /// As a line, with its end.
    pub fn line(&self) -> String {
        let mut value = json!({ "status": self.status, "lines": self.lines });
        if let Some(error) = &self.error {
            value["error"] = json!(error);
        }
        format!("{value}\n")
    }

    /// Reads a line; `None` where that is none of an answer.
    pub fn parse(line: &[u8]) -> Option<Answer> {
        let value: Value = serde_json::from_slice(line).ok()?;
        let lines = value.get("lines")?.as_array()?.iter();
        Some(Answer {
            status: value.get("status")?.as_u64()?.try_into().ok()?,
            lines: lines.map(|line| line.as_str().map(str::to_string)).collect::<Option<_>>()?,
            error: value.get("error").and_then(Value::as_str).map(str::to_string),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for answer in [
            Answer::lines(vec!["a\tb".into(), String::new()]),
            Answer::error(2, "no\nline"),
            Answer { status: 1, lines: vec!["x".into()], error: Some("y".into()) },
        ] {
            let line = answer.line();
            assert_eq!(line.matches('\n').count(), 1);
            assert_eq!(Answer::parse(line.as_bytes()), Some(answer));
        }
    }
}
