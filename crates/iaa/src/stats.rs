//! Counters: per queue, device, CPU and reason. The names are those of the kernel's driver where it has them.

use crate::request::{Operation, Reason};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($(#[$about:meta])* $live:ident => $name:ident { $($(#[$doc:meta])* $field:ident,)* }) => {
        #[derive(Default)]
        pub(crate) struct $live { $(pub $field: AtomicU64,)* }

        impl $live {
            pub fn read(&self) -> $name {
                $name { $($field: self.$field.load(Relaxed),)* }
            }

            /// Reads and begins again.
            #[allow(dead_code, reason = "not all kinds of counters begin again")]
            pub fn take(&self) -> $name {
                $name { $($field: self.$field.swap(0, Relaxed),)* }
            }
        }

        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$doc])* pub $field: u64,)* }

        impl $name {
            /// What they are called.
            pub const NAMES: &[&str] = &[$(stringify!($field),)*];

            /// The counts in the order of their names.
            pub fn values(&self) -> [u64; Self::NAMES.len()] {
                [$(self.$field,)*]
            }

            /// Adds another one's counts.
            pub fn add(&mut self, other: &$name) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

counters! {
    /// What a queue, or all queues of a device, did.
    QueueCounters => QueueStats {
        /// Units compressed.
        comp_calls,
        /// Bytes that came of it.
        comp_bytes_out,
        /// Units decompressed.
        decomp_calls,
        /// Bytes that were decompressed.
        decomp_bytes_in,
        /// Units of which a CRC was made.
        crc_calls,
        /// Bytes of them.
        crc_bytes_in,
        /// Descriptors that it took, which are more than the units: counting and verifying have their own.
        descriptors,
        /// Descriptors that it had no room for.
        refused,
        /// Descriptors that were not done in time.
        timeouts,
        /// Page faults that the device reported.
        page_faults,
        /// Other completions without a result.
        errors,
    }
}

counters! {
    /// What was asked for on a CPU.
    CpuCounters => CpuStats {
        /// Units that a device compressed.
        comp_calls,
        /// Units that a device decompressed.
        decomp_calls,
        /// Units that the CPU compressed instead.
        sw_comp_calls,
        /// Units that the CPU decompressed instead.
        sw_decomp_calls,
        /// Units of which a device made a CRC.
        crc_calls,
        /// Units of which the CPU made it instead.
        sw_crc_calls,
    }
}

impl CpuCounters {
    pub fn count(&self, operation: Operation, by_device: bool) {
        let counter = match (operation, by_device) {
            (Operation::Compress, true) => &self.comp_calls,
            (Operation::Decompress, true) => &self.decomp_calls,
            (Operation::Compress, false) => &self.sw_comp_calls,
            (Operation::Decompress, false) => &self.sw_decomp_calls,
            (Operation::Crc64(_), true) => &self.crc_calls,
            (Operation::Crc64(_), false) => &self.sw_crc_calls,
        };
        counter.fetch_add(1, Relaxed);
    }
}

/// Units that the CPU did, by the reason.
#[derive(Default)]
pub(crate) struct ReasonCounters([AtomicU64; Reason::ALL.len()]);

impl ReasonCounters {
    pub fn count(&self, reason: Reason) {
        self.0[reason as usize].fetch_add(1, Relaxed);
    }

    pub fn read(&self) -> [u64; Reason::ALL.len()] {
        core::array::from_fn(|at| self.0[at].load(Relaxed))
    }
}

/// All counters of a driver at a moment.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Per queue that is open: device, number, counts.
    pub queues: Vec<(u32, u32, QueueStats)>,
    /// What queues did that are closed by now.
    pub closed: QueueStats,
    /// The same for each of them: device, number, counts. One that came back is here and among those that are open.
    pub gone: Vec<(u32, u32, QueueStats)>,
    /// Per CPU, those that asked for anything.
    pub cpus: Vec<(usize, CpuStats)>,
    /// Units that the CPU did, by the reason, in the order of [`Reason::ALL`].
    pub reasons: [u64; Reason::ALL.len()],
}

impl Stats {
    /// How many units the CPU did for this reason.
    pub fn software(&self, reason: Reason) -> u64 {
        self.reasons[reason as usize]
    }

    /// Per device that has an open queue: its number, counts.
    pub fn devices(&self) -> Vec<(u32, QueueStats)> {
        let mut devices: Vec<(u32, QueueStats)> = Vec::new();
        for (device, _, stats) in &self.queues {
            match devices.iter_mut().find(|(other, _)| other == device) {
                Some((_, sum)) => sum.add(stats),
                None => devices.push((*device, *stats)),
            }
        }
        devices
    }

    /// All queues together.
    pub fn total(&self) -> QueueStats {
        let mut total = self.closed;
        self.queues.iter().for_each(|(_, _, stats)| total.add(stats));
        total
    }

    /// All CPUs together.
    pub fn calls(&self) -> CpuStats {
        let mut sum = CpuStats::default();
        self.cpus.iter().for_each(|(_, stats)| sum.add(stats));
        sum
    }
}
