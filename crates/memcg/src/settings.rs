//! What the user asked for.

use crate::{AREA_FAULTS_BYTES, COMPRESSOR_BYTES, ROOT_BYTES, Text};
use core::ops::Range;

/// The most swap areas of a run.
pub const AREAS_MAX: usize = 8;

/// Bytes of a cluster: an area's size is a multiple of them.
pub const CLUSTER_BYTES: u64 = 2 << 20;

/// A swap area.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AreaSetting {
    /// Its size, whole clusters; 0: there is none.
    pub bytes: u64,
    /// Areas of higher priorities are used first.
    pub priority: i32,
    /// 0.
    pub _reserved: u32,
}

/// What the user asked for; written before the first process starts, read-only afterwards.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Compressor in the notation of the command line (`zstd:1`).
    pub compressor: Text<COMPRESSOR_BYTES>,
    /// What the paths begin with where devices are looked for: nothing, but in tests.
    pub iaa_root: Text<ROOT_BYTES>,
    /// Test mode: 1 evicts everything all the time, whatever the limit.
    pub evict_all: u32,
    /// Seed of the test mode's choices.
    pub seed: u32,
    /// Milliseconds without progress at a full limit after which the program is stopped.
    pub full_timeout_ms: u32,
    /// A program is stopped that takes so many times as long as without waits, or more; 0: it is not.
    pub stop_when_slow: u32,
    /// 1: all processes may miss at the same time, however many there are.
    pub no_turns: u32,
    /// 1: no huge pages are made for the program: this kernel may stop when it moves one.
    pub no_huge: u32,
    /// Test mode: every so many objects that are stored, one is damaged, to see that it is noticed; 0 damages none.
    pub damage_every: u32,
    /// Test mode: how the areas fail, in the notation of the command line (`slow=20,full=50`); empty: they do not.
    pub area_faults: Text<AREA_FAULTS_BYTES>,
    /// The swap areas. Those that are there come first, and clusters are numbered through them in this order.
    pub areas: [AreaSetting; AREAS_MAX],
}

impl Settings {
    /// The clusters of each area, with its priority.
    pub fn area_clusters(&self) -> impl Iterator<Item = (Range<u32>, i32)> {
        self.areas.iter().take_while(|area| area.bytes > 0).scan(0, |end, area| {
            let start = *end;
            *end += (area.bytes / CLUSTER_BYTES) as u32;
            Some((start..*end, area.priority))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_numbered_through_the_areas() {
        let mut settings = Settings::default();
        assert_eq!(settings.area_clusters().count(), 0);
        for (n, (clusters, priority)) in [(3, 0), (1, 7), (1 << 20, -1)].into_iter().enumerate() {
            settings.areas[n] = AreaSetting { bytes: clusters * CLUSTER_BYTES, priority, _reserved: 0 };
        }
        let all: Vec<_> = settings.area_clusters().collect();
        assert_eq!(all, [(0..3, 0), (3..4, 7), (4..(1 << 20) + 4, -1)]);
    }
}
