//! Sizes of memory as people write them: `512M`, `1.5GiB`, `268435456`, `50%`.
//!
//! Units are binary whichever way they are spelled, as in docker and systemd: `M`, `MB` and `MiB` are 1,048,576 bytes.

use std::fmt;

/// What `--memory` takes, for messages.
pub const FORMS: &str = "a size such as 512M, 1.5GiB or 268435456 (bytes), or a share such as 50%";

/// The smallest limit: an engine with its inactive list and its contexts needs some of it, and a program the rest.
pub const LEAST_BYTES: u64 = 16 << 20;

/// A size before it is known of what a share is a share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// So many bytes.
    Bytes(u64),
    /// So many hundredths of the memory that there is.
    Percent(f64),
}

/// Why a text is no size that a program can be run in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BadSize {
    /// No number with a known unit.
    Form,
    /// Less than [`LEAST_BYTES`].
    Small,
    /// More than the machine's memory, in bytes.
    Large(u64),
}

impl fmt::Display for BadSize {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            BadSize::Form => write!(f, "expected {FORMS}"),
            BadSize::Small => write!(f, "less than {}, the least; expected {FORMS}", Bytes(LEAST_BYTES)),
            BadSize::Large(ram) => {
                write!(f, "more than this machine's {} of memory; expected {FORMS}", Bytes(*ram))
            }
        }
    }
}

impl Size {
    /// Reads a number with an optional fraction and an optional unit: `K`, `M`, `G`, `T`, each also with `B` or `iB`,
    /// in either case; `B`; or `%`.
    pub fn parse(text: &str) -> Result<Size, BadSize> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..end], text[end..].trim_start().to_ascii_lowercase());
        let number: f64 = match number.parse() {
            Ok(n) if number.starts_with(|c: char| c.is_ascii_digit()) => n,
            _ => return Err(BadSize::Form),
        };
        let shift = match unit.as_str() {
            "%" => return Ok(Size::Percent(number)),
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(BadSize::Form),
        };
        // The cast saturates: 99999999999T is more than any machine has, and is refused as such.
        Ok(Size::Bytes((number * (1u64 << shift) as f64) as u64))
    }

    /// The size in bytes, `share_of_bytes` being what a share is a share of. Refuses what is too small, or more than
    /// `ram_bytes`.
    pub fn bytes(self, share_of_bytes: u64, ram_bytes: u64) -> Result<u64, BadSize> {
        let bytes = match self {
            Size::Bytes(bytes) => bytes,
            Size::Percent(percent) if percent > 100.0 => return Err(BadSize::Large(ram_bytes)),
            Size::Percent(percent) => (share_of_bytes as f64 * percent / 100.0) as u64,
        };
        match bytes {
            b if b < LEAST_BYTES => Err(BadSize::Small),
            b if b > ram_bytes => Err(BadSize::Large(ram_bytes)),
            b => Ok(b),
        }
    }
}

/// Bytes for people: three digits and a binary unit, `1.21 GiB`; as `{:#}` in the fewest columns, `1.21G`.
pub struct Bytes(pub u64);

impl Bytes {
    /// So many pages.
    pub fn of_pages(pages: u64) -> Bytes {
        Bytes(pages * base::PAGE as u64)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (mut value, mut unit) = (self.0 as f64, "B");
        for larger in ["KiB", "MiB", "GiB", "TiB"] {
            // What would be rounded to 1000 is the next unit's, so that there are never more than three digits.
            if value < 999.5 {
                break;
            }
            (value, unit) = (value / 1024.0, larger);
        }
        let digits = match value {
            _ if value.fract() == 0.0 => 0,
            v if v < 9.995 => 2,
            v if v < 99.95 => 1,
            _ => 0,
        };
        match f.alternate() {
            false => write!(f, "{value:.digits$} {unit}"),
            true => write!(f, "{value:.digits$}{}", &unit[..1]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn bytes(text: &str) -> Result<u64, BadSize> {
        Size::parse(text)?.bytes(4 * GIB, 8 * GIB)
    }

    #[test]
    fn sizes_of_every_form() {
        for (text, expected) in [
            ("512M", 512 << 20),
            ("512m", 512 << 20),
            ("512MB", 512 << 20),
            ("512 MiB", 512 << 20),
            ("2G", 2 * GIB),
            ("1.5GiB", 3 * GIB / 2),
            ("268435456", 256 << 20),
            ("268435456B", 256 << 20),
            ("16384K", 16 << 20),
            ("0.0078125T", 8 * GIB),
            ("50%", 2 * GIB),
            ("12.5%", GIB / 2),
            ("16M", 16 << 20),
            ("8G", 8 * GIB),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_its_reason() {
        for text in
            ["", "-1", "12Q", "M", "1.2.3M", ".5G", "1e9", "0x1000000", "--", "%", "nan", "inf", "5G G", "½G"]
        {
            assert_eq!(bytes(text), Err(BadSize::Form), "{text}");
        }
        for text in ["0", "0%", "15M", "1", "16777215"] {
            assert_eq!(bytes(text), Err(BadSize::Small), "{text}");
        }
        for text in ["9G", "101%", "99999999999999999999T"] {
            assert_eq!(bytes(text), Err(BadSize::Large(8 * GIB)), "{text}");
        }
    }

    #[test]
    fn bytes_are_written_with_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "0.98 KiB"),
            (1 << 20, "1 MiB"),
            (256 << 20, "256 MiB"),
            ((256 << 20) + 1, "256 MiB"),
            (1_300_000_000, "1.21 GiB"),
            (19_500_000_000, "18.2 GiB"),
            (1023 << 20, "1.00 GiB"),
            (3 << 40, "3 TiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text, "{bytes}");
            let short = text.replace(' ', "").replace("iB", "");
            assert_eq!(format!("{:#}", Bytes(bytes)), short, "{bytes}");
        }
    }
}
