//! Under what the processes run: zfolio, or the kernel's zswap or zram in a memory control group.

use super::Load;
use super::machine::{self, Changes};
use crate::cgroup::Version;
use std::fmt;
use std::path::PathBuf;
use zswap::Choice;

/// One of them, with its compressor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// `zfolio run`.
    Zfolio(String),
    /// zswap, over a zram device to which nothing is written as long as the pool has room.
    Zswap(String),
    /// Swap on a zram device, without zswap.
    Zram(String),
}

/// As a user names it: `zswap:lzo`.
impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Side::Zfolio(compressor) => write!(f, "zfolio:{compressor}"),
            Side::Zswap(compressor) => write!(f, "zswap:{compressor}"),
            Side::Zram(compressor) => write!(f, "zram:{compressor}"),
        }
    }
}

/// Where a crew runs.
pub struct Place {
    /// The words in front of it.
    pub words: Vec<String>,
    /// Where zfolio writes its summary.
    pub summary: Option<PathBuf>,
    /// The zram device whose memory no group is charged with.
    pub zram: Option<String>,
    /// The pool of zswap is not charged either.
    pub has_uncharged_zswap: bool,
}

impl Side {
    /// All that a user names, separated by commas: `zfolio:lz4,zswap:lzo`.
    pub fn parse_all(text: &str) -> Result<Vec<Side>, String> {
        text.split(',').map(Side::parse).collect()
    }

    fn parse(text: &str) -> Result<Side, String> {
        let wrong = |why: &str| format!("--sides {text}: {why}");
        let (kind, compressor) = text.split_once(':').unwrap_or((text, ""));
        let name = compressor.to_string();
        match kind {
            "zfolio" if compressor.is_empty() => {
                Ok(Side::Zfolio(crate::args::DEFAULT_COMPRESSOR.to_string()))
            }
            "zfolio" => match Choice::parse(compressor) {
                Ok(_) => Ok(Side::Zfolio(name)),
                Err(error) => Err(wrong(&error.to_string())),
            },
            "zswap" if compressor.is_empty() => Ok(Side::Zswap("lzo".to_string())),
            "zswap" => Ok(Side::Zswap(name)),
            "zram" if compressor.is_empty() => Ok(Side::Zram("lzo-rle".to_string())),
            "zram" => Ok(Side::Zram(name)),
            _ => Err(wrong("expected zfolio, zswap or zram, each with a compressor if you like: zram:lz4")),
        }
    }

    /// Sets the kernel up for it. The error is why it cannot be had here.
    pub fn set_up(&self, changes: &mut Changes, load: &Load, limit_bytes: u64) -> Result<Place, String> {
        machine::without_swap()?;
        let swap_bytes = load.processes * load.bytes * 2;
        match self {
            Side::Zfolio(compressor) => {
                let summary = changes.scratch_file("summary.json");
                let program = std::env::current_exe().map_err(|error| error.to_string())?;
                let words =
                    ["run", "--quiet", "--memory", &limit_bytes.to_string(), "--compressor", compressor];
                let mut words: Vec<String> = words.map(String::from).to_vec();
                words.insert(0, program.display().to_string());
                words.extend(["--json".into(), summary.display().to_string(), "--".into()]);
                Ok(Place { words, summary: Some(summary), zram: None, has_uncharged_zswap: false })
            }
            Side::Zswap(compressor) => {
                changes.set(machine::ZSWAP, "compressor", compressor)?;
                changes.set_at_least(machine::ZSWAP, "max_pool_percent", machine::percent(swap_bytes))?;
                changes.set(machine::ZSWAP, "enabled", "Y")?;
                let device = changes.zram(swap_bytes, "lzo-rle")?;
                changes.swap_on(&device)?;
                let group = changes.group(limit_bytes)?;
                let has_uncharged_zswap = group.version == Version::V1;
                Ok(Place { words: group.enter(), summary: None, zram: Some(device), has_uncharged_zswap })
            }
            Side::Zram(compressor) => {
                // Not there, it is off.
                if machine::has_zswap() {
                    changes.set(machine::ZSWAP, "enabled", "N")?;
                }
                let device = changes.zram(swap_bytes, compressor)?;
                changes.swap_on(&device)?;
                let group = changes.group(limit_bytes)?;
                Ok(Place {
                    words: group.enter(),
                    summary: None,
                    zram: Some(device),
                    has_uncharged_zswap: false,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_named_with_or_without_a_compressor() {
        let named =
            |text| Side::parse_all(text).map(|all| all.iter().map(Side::to_string).collect::<Vec<_>>());
        assert_eq!(
            named("zfolio:lz4,zswap,zram:lz4"),
            Ok(vec!["zfolio:lz4".into(), "zswap:lzo".into(), "zram:lz4".into()])
        );
        assert_eq!(named("zfolio"), Ok(vec![format!("zfolio:{}", crate::args::DEFAULT_COMPRESSOR)]));
        for wrong in ["", "swap", "zfolio:lz9", "zram:lz4,"] {
            assert!(named(wrong).is_err_and(|line| line.starts_with("--sides ")), "{wrong}");
        }
    }
}
