//! How the devices of an algorithm for them are used: by the names of the kernel's driver (iaa_crypto),
//! `g_comp_wqs_per_iaa=1,verify_compress=1`, and how long they are waited for.

use core::fmt;
use core::ops::RangeInclusive;

/// Queues that a context's driver opens: two of each device where there are eight. Each is a file descriptor.
pub const QUEUES_MAX: usize = 16;

const NS_PER_MS: u64 = 1_000_000;

/// How devices are used. Small and `Copy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// How many queues of each device, its last ones, compress alone; its others then decompress alone. 0: all do both.
    pub g_comp_wqs_per_iaa: u8,
    /// Compressions of a CPU go round all devices of its package; else to the one that is its own.
    pub distribute_comps: bool,
    /// The same for decompressions.
    pub distribute_decomps: bool,
    /// The device reads back what it has compressed, and compares: a pass more.
    pub verify_compress: bool,
    /// One unit after the other instead of as many at a time as a device has engines: for comparison.
    pub sync_mode: bool,
    /// How long a unit may take the device before the CPU does its work.
    pub timeout_ms: u16,
}

impl Default for Device {
    fn default() -> Self {
        Device::DEFAULT
    }
}

/// A parameter, as a user names it.
struct Parameter {
    name: &'static str,
    accepted: RangeInclusive<u16>,
    get: fn(&Device) -> u16,
    set: fn(&mut Device, u16),
}

/// A device has eight queues.
const PARAMETERS: [Parameter; 6] = [
    Parameter {
        name: "g_comp_wqs_per_iaa",
        accepted: 0..=8,
        get: |device| device.g_comp_wqs_per_iaa.into(),
        set: |device, value| device.g_comp_wqs_per_iaa = value as u8,
    },
    Parameter {
        name: "distribute_comps",
        accepted: 0..=1,
        get: |device| device.distribute_comps.into(),
        set: |device, value| device.distribute_comps = value != 0,
    },
    Parameter {
        name: "distribute_decomps",
        accepted: 0..=1,
        get: |device| device.distribute_decomps.into(),
        set: |device, value| device.distribute_decomps = value != 0,
    },
    Parameter {
        name: "verify_compress",
        accepted: 0..=1,
        get: |device| device.verify_compress.into(),
        set: |device, value| device.verify_compress = value != 0,
    },
    Parameter {
        name: "sync_mode",
        accepted: 0..=1,
        get: |device| device.sync_mode.into(),
        set: |device, value| device.sync_mode = value != 0,
    },
    Parameter {
        name: "timeout_ms",
        accepted: 1..=60_000,
        get: |device| device.timeout_ms,
        set: |device, value| device.timeout_ms = value,
    },
];

impl Device {
    /// What stands where nothing is said: all queues for both, all devices in turn, nothing is read back, and the
    /// driver's patience.
    pub const DEFAULT: Device = Device {
        g_comp_wqs_per_iaa: iaa::Policy::DEFAULT.g_comp_wqs_per_iaa as u8,
        distribute_comps: iaa::Policy::DEFAULT.distribute_comps,
        distribute_decomps: iaa::Policy::DEFAULT.distribute_decomps,
        verify_compress: false,
        sync_mode: false,
        timeout_ms: (iaa::Config::DEFAULT.timeout_ns / NS_PER_MS) as u16,
    };

    /// Reads `NAME=NUMBER,...`, in any order, each at most once; `None` if it is something else.
    pub(crate) fn parse(text: &str) -> Option<Device> {
        let (mut device, mut seen) = (Device::DEFAULT, [false; PARAMETERS.len()]);
        for word in text.split(',') {
            let (name, value) = word.split_once('=')?;
            let at = PARAMETERS.iter().position(|parameter| parameter.name == name)?;
            let parameter = &PARAMETERS[at];
            let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
            let value = value.parse().ok().filter(|value| is_number && parameter.accepted.contains(value))?;
            (parameter.set)(&mut device, value);
            if core::mem::replace(&mut seen[at], true) {
                return None;
            }
        }
        Some(device)
    }

    /// How many units of a context are under way at a time: as many as a device has engines.
    pub fn descriptors(&self) -> usize {
        if self.sync_mode { 1 } else { 8 }
    }

    /// The driver's settings, to compress by such codes.
    pub fn config(&self, mode: iaa::Mode) -> iaa::Config {
        let policy = iaa::Policy {
            g_comp_wqs_per_iaa: self.g_comp_wqs_per_iaa.into(),
            distribute_comps: self.distribute_comps,
            distribute_decomps: self.distribute_decomps,
        };
        let (verify_compress, timeout_ns) = (self.verify_compress, u64::from(self.timeout_ms) * NS_PER_MS);
        iaa::Config {
            mode,
            verify_compress,
            timeout_ns,
            policy,
            queues_max: QUEUES_MAX,
            ..iaa::Config::DEFAULT
        }
    }
}

/// Prints what is not as usual, each behind a comma: what stands behind the compressor's mode.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Parameter { name, get, .. } in &PARAMETERS {
            let value = get(self);
            if value != get(&Device::DEFAULT) {
                write!(f, ",{name}={value}")?;
            }
        }
        Ok(())
    }
}

/// The form that is accepted: `[,g_comp_wqs_per_iaa=0-8][,distribute_comps=0|1]`...
pub(crate) struct Form;

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Parameter { name, accepted, .. } in &PARAMETERS {
            let between = if accepted.end() - accepted.start() == 1 { '|' } else { '-' };
            write!(f, "[,{name}={}{between}{}]", accepted.start(), accepted.end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn every_policy_prints_and_parses_back() {
        for queues in 0..=8 {
            for bits in 0..32 {
                let bit = |bit: u32| bits >> bit & 1 == 1;
                let device = Device {
                    g_comp_wqs_per_iaa: queues,
                    distribute_comps: bit(0),
                    distribute_decomps: bit(1),
                    verify_compress: bit(2),
                    timeout_ms: if bit(3) { 60_000 } else { 100 },
                    sync_mode: bit(4),
                };
                let text = device.to_string();
                match text.strip_prefix(',') {
                    Some(text) => assert_eq!(Device::parse(text), Some(device), "{text}"),
                    None => assert_eq!((text.as_str(), device), ("", Device::DEFAULT)),
                }
                let config = device.config(iaa::Mode::Dynamic);
                assert_eq!(
                    (config.policy.g_comp_wqs_per_iaa, config.policy.distribute_comps),
                    (queues.into(), bit(0))
                );
                assert_eq!(
                    (config.policy.distribute_decomps, config.verify_compress, config.queues_max),
                    (bit(1), bit(2), QUEUES_MAX)
                );
                assert_eq!(config.timeout_ns, if bit(3) { 60_000_000_000 } else { 100_000_000 });
                assert_eq!(device.descriptors(), if bit(4) { 1 } else { 8 });
            }
        }
    }
}
