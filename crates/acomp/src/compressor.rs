//! A compressor as a user names it: an algorithm, a level, whether it has a dictionary, `zstd:1,dict=FILE`, or how its
//! device is used, `deflate-iaa:dynamic,verify_compress=1`.

use core::fmt;

use crate::algorithm::Algorithm;
use crate::device::Device;
use crate::part::Part;
use crate::registry::ALGORITHMS;

/// What comes before the parameter's value.
const DICTIONARY: &str = "dict=";

/// An algorithm, a level, whether there is a dictionary, and how a device is used. Small and `Copy`; it holds no memory
/// of the algorithm's.
#[derive(Clone, Copy)]
pub struct Compressor {
    pub(crate) algorithm: &'static Algorithm,
    level: i32,
    has_dictionary: bool,
    device: Device,
}

impl Compressor {
    /// Every algorithm there is, for help texts and for tests that try them all.
    pub const ALL: &'static [&'static Algorithm] = ALGORITHMS;

    /// Reads `NAME` or `NAME:LEVEL`, such as `lz4`, `lz4:4`, `zstd:-1`, `lzo-rle`, `deflate-iaa:fixed`; and behind
    /// either, where the algorithm takes dictionaries, `,dict=FILE`. Which file that is says
    /// [`Compressor::dictionary_file`]. Behind the name of an algorithm for a device stand the parameters of
    /// [`Device`], as in `deflate-iaa,g_comp_wqs_per_iaa=1,verify_compress=1`.
    ///
    /// # Errors
    ///
    /// The name is none of [`Compressor::ALL`], what follows the colon is no number, or word, that the algorithm
    /// accepts, or what follows the comma is no parameter of it.
    pub fn parse(text: &str) -> Result<Compressor, ParseError> {
        let (head, parameter) = split(text, ',');
        let (name, level) = split(head, ':');
        let algorithm = *Self::ALL.iter().find(|a| a.name == name).ok_or(ParseError::Name)?;
        let mut device = Device::DEFAULT;
        let has_dictionary = match parameter.map(|parameter| parameter.strip_prefix(DICTIONARY)) {
            None => false,
            Some(None) if algorithm.takes_device => {
                device = parameter.and_then(Device::parse).ok_or(ParseError::Parameter(algorithm))?;
                false
            }
            Some(Some(file)) if algorithm.with_dictionary.is_some() && !file.is_empty() => true,
            Some(_) => return Err(ParseError::Parameter(algorithm)),
        };
        let level = algorithm.level(level).ok_or(ParseError::Level(algorithm))?;
        Ok(Compressor { algorithm, level, has_dictionary, device })
    }

    /// At a level that the algorithm has; a device is used as usual.
    pub(crate) fn new(algorithm: &'static Algorithm, level: i32, has_dictionary: bool) -> Compressor {
        Compressor { algorithm, level, has_dictionary, device: Device::DEFAULT }
    }

    /// The file that a text names of which [`Compressor::parse`] says that it has one.
    pub fn dictionary_file(text: &str) -> Option<&str> {
        split(text, ',').1?.strip_prefix(DICTIONARY)
    }

    /// The algorithm's name without the level.
    pub fn name(&self) -> &'static str {
        self.algorithm.name
    }

    /// The level, or lz4's acceleration, or the place of the mode in the list of those; 0 where there is none to
    /// choose.
    pub fn level(&self) -> i32 {
        self.level
    }

    /// True where the user has a dictionary for it in a file.
    pub fn has_dictionary(&self) -> bool {
        self.has_dictionary
    }

    /// True if there are devices that do its work.
    pub fn is_for_device(&self) -> bool {
        self.algorithm.takes_device
    }

    /// How its device is used, if it is for one.
    pub fn device(&self) -> Device {
        self.device
    }

    /// What of the code only some compressors run, and this one does.
    pub fn part(&self) -> Option<Part> {
        (self.algorithm.part)(self.level, self.has_dictionary)
    }

    /// True when it gives up on noise by itself, in a small part of the time that it takes for what shrinks: a look
    /// beforehand would take about as long.
    pub fn gives_up_early(&self) -> bool {
        (self.algorithm.gives_up_early)(self.level)
    }
}

impl PartialEq for Compressor {
    fn eq(&self, other: &Compressor) -> bool {
        let what = |this: &Compressor| (this.name(), this.level, this.has_dictionary, this.device);
        what(self) == what(other)
    }
}

impl Eq for Compressor {}

/// Prints what [`Compressor::parse`] reads back: `zstd:1`, `lzo`; and `zstd:1,dict=FILE`, whatever the file is.
impl fmt::Display for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if let Some(parameter) = &self.algorithm.parameter {
            write!(f, ":{}", parameter.text(self.level))?;
        }
        self.device.fmt(f)?;
        if self.has_dictionary { write!(f, ",{DICTIONARY}FILE") } else { Ok(()) }
    }
}

/// What comes before the first `mark`, and what comes behind it, if it is there.
fn split(text: &str, mark: char) -> (&str, Option<&str>) {
    text.split_once(mark).map_or((text, None), |(before, behind)| (before, Some(behind)))
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text names no compressor. It prints as one line that says what is accepted.
#[derive(Clone, Copy)]
pub enum ParseError {
    /// There is no algorithm of this name.
    Name,
    /// This algorithm has no such level or mode.
    Level(&'static Algorithm),
    /// This algorithm has no such parameter behind the comma.
    Parameter(&'static Algorithm),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ParseError::Name => {}
            ParseError::Level(algorithm) => {
                let name = algorithm.name;
                return match &algorithm.parameter {
                    Some(parameter) => {
                        write!(f, "no such {} of {name}: accepted is {algorithm}", parameter.name)
                    }
                    None => write!(f, "{name} takes no number: accepted is {algorithm}"),
                };
            }
            ParseError::Parameter(algorithm) => {
                return write!(f, "no such parameter of {}: accepted is {algorithm}", algorithm.name);
            }
        }
        f.write_str("no such compressor: accepted are ")?;
        for (index, algorithm) in Compressor::ALL.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{algorithm}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for ParseError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_prints_and_parses_back() {
        for algorithm in Compressor::ALL {
            let plain = Compressor::parse(algorithm.name).unwrap();
            assert_eq!(plain.name(), algorithm.name);
            let Some(parameter) = &algorithm.parameter else {
                assert_eq!((plain.level(), plain.to_string()), (0, algorithm.name.to_string()));
                continue;
            };
            assert_eq!(plain.level(), parameter.default);
            for level in parameter.accepted.clone() {
                let text = format!("{}:{}", algorithm.name, parameter.text(level));
                assert_eq!(Compressor::parse(&text).unwrap().to_string(), text);
            }
        }
    }

    #[test]
    fn dictionaries_print_and_parse_back() {
        for (text, file, printed) in [
            ("zstd:3", None, "zstd:3"),
            ("zstd,dict=auto", Some("auto"), "zstd:1,dict=FILE"),
            ("zstd:9,dict=a,b:c=d", Some("a,b:c=d"), "zstd:9,dict=FILE"),
        ] {
            let compressor = Compressor::parse(text).unwrap();
            assert_eq!(
                (compressor.has_dictionary(), Compressor::dictionary_file(text)),
                (file.is_some(), file)
            );
            assert_eq!(compressor.to_string(), printed);
            assert_eq!(Compressor::parse(printed).unwrap(), compressor);
        }
        assert_ne!(Compressor::parse("zstd").unwrap(), Compressor::parse("zstd,dict=x").unwrap());
    }

    #[test]
    fn how_a_device_is_used_prints_and_parses_back() {
        for (text, printed) in [
            ("deflate-iaa", "deflate-iaa:dynamic"),
            ("deflate-iaa,verify_compress=0,distribute_comps=1", "deflate-iaa:dynamic"),
            ("deflate-iaa:fixed,verify_compress=1", "deflate-iaa:fixed,verify_compress=1"),
            (
                "deflate-iaa:dynamic,timeout_ms=7,distribute_decomps=0,verify_compress=1,g_comp_wqs_per_iaa=8,distribute_comps=0",
                "deflate-iaa:dynamic,g_comp_wqs_per_iaa=8,distribute_comps=0,distribute_decomps=0,verify_compress=1,timeout_ms=7",
            ),
        ] {
            let compressor = Compressor::parse(text).unwrap();
            assert_eq!(compressor.to_string(), printed);
            assert_eq!(Compressor::parse(printed).unwrap(), compressor);
            assert_eq!(Compressor::dictionary_file(text), None);
        }
        let parse = |text| Compressor::parse(text).unwrap();
        assert_ne!(parse("deflate-iaa"), parse("deflate-iaa,verify_compress=1"));
    }

    #[test]
    fn nonsense_gets_one_line_with_the_list() {
        let unknown = "no such compressor: accepted are lz4[:ACCELERATION] (ACCELERATION 1 to 65537, default 1), \
                       lz4hc[:LEVEL] (LEVEL 3 to 12, default 9), zstd[:LEVEL][,dict=FILE] (LEVEL -7 to 22, default 1), \
                       deflate[:LEVEL] (LEVEL 1 to 12, default 1), \
                       deflate-iaa[:MODE][,g_comp_wqs_per_iaa=0-8][,distribute_comps=0|1][,distribute_decomps=0|1][,verify_compress=0|1][,sync_mode=0|1][,timeout_ms=1-60000] (MODE dynamic, fixed or canned, default dynamic), \
                       lzo, lzo-rle, 842";
        for text in ["", ":", ":1", "gzip", "ZSTD", "zstd ", " lz4", "lz4h", "lzo-", "rle", "84", "zstd-1"] {
            assert_eq!(Compressor::parse(text).unwrap_err().to_string(), unknown, "{text:?}");
        }
        let level = "no such LEVEL of zstd: accepted is zstd[:LEVEL][,dict=FILE] (LEVEL -7 to 22, default 1)";
        for text in ["zstd:", "zstd:23", "zstd:-8", "zstd:1:2", "zstd:fast", "zstd: 1", "zstd:99999999999"] {
            assert_eq!(Compressor::parse(text).unwrap_err().to_string(), level, "{text:?}");
        }
        let parameter =
            "no such parameter of zstd: accepted is zstd[:LEVEL][,dict=FILE] (LEVEL -7 to 22, default 1)";
        for text in
            ["zstd,", "zstd:1,dict", "zstd:1,dict=", "zstd:1, dict=x", "zstd:1,dic=x", "zstd:1,level=3"]
        {
            assert_eq!(Compressor::parse(text).unwrap_err().to_string(), parameter, "{text:?}");
        }
        for text in ["lz4,dict=x", "lz4:1,dict=x", "842,dict=x", "deflate:1,", "deflate,verify_compress=1"] {
            let line = Compressor::parse(text).unwrap_err().to_string();
            assert!(line.starts_with("no such parameter of "), "{line}");
        }
        for text in ["lzo:", "lzo:1", "lzo:0"] {
            assert_eq!(
                Compressor::parse(text).unwrap_err().to_string(),
                "lzo takes no number: accepted is lzo"
            );
        }
        let form = "deflate-iaa[:MODE][,g_comp_wqs_per_iaa=0-8][,distribute_comps=0|1][,distribute_decomps=0|1][,verify_compress=0|1][,sync_mode=0|1][,timeout_ms=1-60000] (MODE dynamic, fixed or canned, default dynamic)";
        let mode = format!("no such MODE of deflate-iaa: accepted is {form}");
        for text in
            ["deflate-iaa:", "deflate-iaa:0", "deflate-iaa:1", "deflate-iaa:Fixed", "deflate-iaa:fixed:1"]
        {
            assert_eq!(Compressor::parse(text).unwrap_err().to_string(), mode, "{text:?}");
        }
        let parameter = format!("no such parameter of deflate-iaa: accepted is {form}");
        for what in [
            "",
            "dict=x",
            "verify_compress",
            "verify_compress=",
            "verify_compress=2",
            "verify_compress=+1",
            "verify_compress=1,",
            "verify_compress=1,verify_compress=1",
            "distribute_comps=yes",
            "g_comp_wqs_per_iaa=9",
            "g_comp_wqs_per_iaa=-1",
            "g_comp_wqs_per_iaa=256",
            "timeout_ms=0",
            "timeout_ms=60001",
            "timeout_ms=65536",
        ] {
            let text = format!("deflate-iaa:fixed,{what}");
            assert_eq!(Compressor::parse(&text).unwrap_err().to_string(), parameter, "{text:?}");
        }
        for text in ["lz4hc:2", "lz4hc:13", "deflate:0", "deflate:13"] {
            assert!(Compressor::parse(text).is_err(), "{text}");
        }
        for text in ["lz4:0", "lz4:-1", "lz4:65538"] {
            assert!(
                Compressor::parse(text).unwrap_err().to_string().starts_with("no such ACCELERATION of lz4")
            );
        }
    }
}
