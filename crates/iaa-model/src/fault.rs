//! What can go wrong, and when it does.

use iaa::descriptor::Descriptor;
use std::time::Duration;

/// What happens to one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The queue says that it is full.
    Full,
    /// It is taken, and never done.
    Lost,
    /// It is done so much later.
    Late(Duration),
    /// The record's CRC is wrong; the output is right.
    WrongCrc,
    /// A bit of the output is wrong; the CRC is right.
    WrongOutput,
    /// The output is said to be so many bytes longer than it is.
    Longer(u32),
    /// The output is that of other input, which it all fits: a bit of what was read was wrong.
    OtherInput,
    /// The record says that nothing came of it: status and error.
    Status(u8, u8),
    /// Half of the output is written, and then a page of the input is missing.
    PageFaultReading,
    /// A page of the output is missing.
    PageFaultWriting,
    /// A page is missing at an address that nobody gave.
    PageFaultElsewhere,
    /// The device is taken away: this descriptor and all that it has are never done, and nothing is taken any more.
    Gone,
}

/// Which descriptors have one: called with the number of the descriptor (the first one that the device was offered is
/// 0).
pub type Plan = Box<dyn Fn(u64, &Descriptor) -> Option<Fault> + Send + Sync>;

/// None has.
pub fn none() -> Plan {
    Box::new(|_, _| None)
}
