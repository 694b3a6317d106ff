//! Lines of text for people: their columns, and counts, times and shares in them. Sizes are in size.rs.

use std::fmt::{self, Write};
use std::time::Duration;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Columns before a line's text.
pub const INDENT: usize = 14;

/// What part of a whole something is.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "0 %".into() } else { format!("{:.0} %", part as f64 * 100.0 / whole as f64) }
}

/// How far something has shrunk; nothing of nothing.
pub fn ratio(stored: u64, pool: u64) -> String {
    if pool == 0 { String::new() } else { format!(" ({:.1} to 1)", stored as f64 / pool as f64) }
}

/// A count with its thousands set apart.
pub struct Count(pub u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let digits = self.0.to_string();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                f.write_char(',')?;
            }
            f.write_char(digit)?;
        }
        Ok(())
    }
}

/// Nanoseconds for people, as std writes a duration, with three digits.
pub struct Time(pub u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let unit = match self.0 {
            0..1_000 => 1,
            1_000..1_000_000 => 1_000,
            1_000_000..1_000_000_000 => 1_000_000,
            _ => 1_000_000_000,
        };
        let digits = match self.0 / unit {
            _ if unit == 1 => 0,
            0..10 => 2,
            10..100 => 1,
            _ => 0,
        };
        write!(f, "{:.digits$?}", Duration::from_nanos(self.0))
    }
}

/// A time in whole seconds as a clock shows it: `0:12`, `2:02:05`.
pub fn clock(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// Columns of a line.
pub const WIDTH: usize = 80;

/// How often something was so, if more than once.
pub fn times(count: u64) -> String {
    if count > 1 { format!(" ({} times)", Count(count)) } else { String::new() }
}

/// Writes text in the column of the summary's texts, in as many lines as it takes; those after the first are set in.
pub fn write_wrapped(out: &mut impl Write, text: &str) -> fmt::Result {
    const SET_IN: usize = INDENT + 2;
    let mut line = format!("{:INDENT$}", "");
    let mut is_empty = true;
    for word in text.split(' ').map(|word| cut(word, WIDTH - SET_IN)) {
        if !is_empty && line.width() + 1 + word.width() > WIDTH {
            writeln!(out, "{line}")?;
            (line, is_empty) = (format!("{:SET_IN$}", ""), true);
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(&word);
        is_empty = false;
    }
    writeln!(out, "{line}")
}

/// What of a text can be shown in a line of a terminal: what would move the cursor, turn the direction of writing, or
/// worse, is escaped.
pub fn printable(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        match c {
            '\'' | '"' | '\\' => shown.push(c),
            c => shown.extend(c.escape_debug()),
        }
    }
    shown
}

/// The beginning of a text, of so many columns at most; where something is missing it ends in a mark for that.
pub fn cut(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.into();
    }
    let mut width = 1;
    let fits = |c: &char| {
        width += c.width().unwrap_or(0);
        width <= columns
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_times() {
        let counts: Vec<_> = [0, 999, 1000, 1_234_567].map(|n| Count(n).to_string()).to_vec();
        assert_eq!(counts, ["0", "999", "1,000", "1,234,567"]);
        let times: Vec<_> =
            [0, 999, 1_234, 45_600, 1_500_000_000, 123_400_000_000].map(|n| Time(n).to_string()).to_vec();
        assert_eq!(times, ["0ns", "999ns", "1.23µs", "45.6µs", "1.50s", "123s"]);
        assert_eq!([0, 72, 7325].map(clock), ["0:00", "1:12", "2:02:05"]);
    }
}
