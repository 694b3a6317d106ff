//! A line of text that no allocation is needed for: messages, and paths in /proc.

use core::fmt::{self, Write};

/// A line of text without an allocation; what is too long is cut.
#[derive(Clone, Debug)]
pub struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Line { bytes: [0; 512], len: 0 }
    }
}

impl Line {
    /// The text so far.
    pub fn as_str(&self) -> &str {
        match core::str::from_utf8(&self.bytes[..self.len]) {
            Ok(text) => text,
            Err(e) => core::str::from_utf8(&self.bytes[..e.valid_up_to()]).unwrap_or(""),
        }
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let take = text.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + take].copy_from_slice(&text.as_bytes()[..take]);
        self.len += take;
        Ok(())
    }
}
