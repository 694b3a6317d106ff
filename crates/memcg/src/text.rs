//! A text in the shared page.

use core::fmt;

/// At most so many bytes of UTF-8, padded with NUL.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> Text<BYTES> {
    /// `None` if it is too long.
    pub fn new(text: &str) -> Option<Text<BYTES>> {
        let mut bytes = [0; BYTES];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(Text(bytes))
    }

    /// The text; empty where what is there is none.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(BYTES);
        core::str::from_utf8(&self.0[..end]).unwrap_or("")
    }
}

impl<const BYTES: usize> Default for Text<BYTES> {
    fn default() -> Self {
        Text([0; BYTES])
    }
}

impl<const BYTES: usize> fmt::Debug for Text<BYTES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_kept_and_what_does_not_is_told() {
        assert_eq!(Text::<4>::default().as_str(), "");
        for text in ["", "a", "abcd", "ä"] {
            assert_eq!(Text::<4>::new(text).unwrap().as_str(), text);
        }
        assert_eq!((Text::<4>::new("abcde"), Text::<4>([0xff; 4]).as_str()), (None, ""));
    }
}
