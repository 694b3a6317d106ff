//! `zfolio zram`: compressed block devices.
//!
//! ```text
//!   serve ──> nbdkit, with the plugin ──> Server        list, show, set, reset, hot_remove
//!     └──────── without --nbd ─────────> Server   <──── a line, at the control socket ┘
//! ```
//!
//! - [`serve`]: what the user asks for; [`nbdkit`]: sockets, and the process that becomes nbdkit
//! - [`list`]: the table; [`client`]: who asks a device for something

mod client;
mod list;
mod nbdkit;
mod serve;

use crate::args::ZramTask;
use serde_json::json;

/// Does it; the exit status.
pub fn run(task: &ZramTask) -> u8 {
    match task {
        ZramTask::Serve(serve) => serve::run(serve),
        ZramTask::List(list) => list::run(list.json),
        ZramTask::Show(show) => client::run(show.number, json!({ "do": "show", "name": show.name })),
        ZramTask::Set(set) => client::run(set.number, json!({ "do": "set", "values": set.values })),
        ZramTask::Reset(device) => client::run(device.number, json!({ "do": "reset" })),
        ZramTask::HotRemove(device) => client::run(device.number, json!({ "do": "hot_remove" })),
    }
}
