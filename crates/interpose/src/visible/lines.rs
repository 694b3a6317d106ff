//! A file of the kernel's, line by line, without an allocation.

use uffd::file;

/// The longest line that is read whole, in bytes: of a longer one the beginning is.
const LINE_BYTES: usize = 1024;

/// Reads an open file from its beginning, and leaves where it stands.
pub struct Lines {
    fd: i32,
    offset: usize,
    buffer: [u8; LINE_BYTES],
    filled: usize,
    /// The line that was given last ends here.
    given: usize,
    /// The buffer begins within a line of which the beginning was given.
    is_within: bool,
}

impl Lines {
    /// Those of a descriptor.
    pub fn of(fd: i32) -> Lines {
        Lines { fd, offset: 0, buffer: [0; LINE_BYTES], filled: 0, given: 0, is_within: false }
    }

    /// The next one, without its end; `None` behind the last, and where the file cannot be read.
    pub fn next_line(&mut self) -> Option<&[u8]> {
        loop {
            self.buffer.copy_within(self.given..self.filled, 0);
            self.filled -= self.given;
            self.given = 0;
            let end = loop {
                if let Some(end) = self.buffer[..self.filled].iter().position(|byte| *byte == b'\n') {
                    break Some(end);
                }
                match file::read_at(self.fd, &mut self.buffer[self.filled..], self.offset) {
                    // The buffer is full, or this is the end.
                    Ok(0) | Err(_) => break None,
                    Ok(bytes) => {
                        self.offset += bytes;
                        self.filled += bytes;
                    }
                }
            };
            let bytes = end.unwrap_or(self.filled);
            if end.is_none() && bytes == 0 {
                return None;
            }
            self.given = end.map_or(self.filled, |end| end + 1);
            let was_within = core::mem::replace(&mut self.is_within, end.is_none());
            if !was_within {
                return Some(&self.buffer[..bytes]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Seek, Write};
    use std::os::fd::AsRawFd;
    use std::vec::Vec;

    fn lines_of(text: &[u8]) -> Vec<Vec<u8>> {
        let path = std::env::temp_dir().join(std::format!("zfolio-lines-{}", std::process::id()));
        let mut file =
            File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.write_all(text).unwrap();
        let (at, mut lines) = (file.stream_position().unwrap(), Lines::of(file.as_raw_fd()));
        let mut found = Vec::new();
        while let Some(line) = lines.next_line() {
            found.push(line.to_vec());
        }
        assert_eq!(file.stream_position().unwrap(), at, "it stands where it stood");
        found
    }

    #[test]
    fn lines_are_whole_or_cut_and_none_is_lost() {
        let long = [b'x'; 3 * LINE_BYTES];
        let text = [b"a\n\nbc\n", &long[..], b"\nd\n", &long[..LINE_BYTES], b"\ne"].concat();
        let cut = &long[..LINE_BYTES];
        assert_eq!(lines_of(&text), [b"a", &b""[..], b"bc", cut, b"d", cut, b"e"]);
        assert!(lines_of(b"").is_empty());
        let many: Vec<u8> = (0..5000).flat_map(|n| std::format!("line {n}\n").into_bytes()).collect();
        assert_eq!(lines_of(&many).len(), 5000);
        assert_eq!(lines_of(&many)[4321], b"line 4321");
        let mut closed = Lines::of(-1);
        assert!(closed.next_line().is_none());
    }
}
