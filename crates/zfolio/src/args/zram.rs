//! The command line of compressed block devices.

use clap::{ArgGroup, Args, Subcommand};
use std::path::PathBuf;

/// What `zfolio zram` takes.
#[derive(Args, Debug)]
pub struct Zram {
    /// What to do.
    #[command(subcommand)]
    pub task: ZramTask,
}

/// What can be done with devices.
#[derive(Subcommand, Debug)]
pub enum ZramTask {
    /// Serve a device, until Ctrl-C
    ///
    /// Its blocks live compressed in this process's memory. Clients of all front ends see the same device, at the same
    /// time. A line on stdout says when it is served: its number, and the URI or socket of each front end. NBD is
    /// served by nbdkit, which is a package of its own.
    #[command(after_help = SERVE_HELP)]
    Serve(Box<Serve>),

    /// List the devices of this user, as zramctl does
    ///
    /// DATA is what was written, COMPR what it comes to, TOTAL the memory that it takes, all included.
    #[command(after_help = LIST_HELP)]
    List(List),

    /// Show the attributes of a device, or one of them
    #[command(after_help = show_help())]
    Show(Show),

    /// Set attributes of a device, as writing to /sys/block/zramN does
    ///
    /// They are set in their order, up to the first that is refused. What is then is printed, a line each.
    #[command(after_help = set_help())]
    Set(Set),

    /// Forget all that a device holds, and its size
    ///
    /// It is refused while a client has the device open. `zfolio zram set N disksize=SIZE` makes it a device again.
    #[command(after_help = BUSY_HELP)]
    Reset(Device),

    /// End a device and who serves it, as Ctrl-C does there
    ///
    /// It is saved where `--save` says so. It is refused while a client has the device open.
    #[command(name = "hot_remove", after_help = BUSY_HELP)]
    HotRemove(Device),
}

const SERVE_HELP: &str = "\
Exit status:
  0  ended by Ctrl-C, SIGTERM or hot_remove, and saved if it was to be
  1  it cannot be served, loaded, stopped or saved; nbdkit is missing
  2  the command line is wrong

Examples:
  zfolio zram serve --disksize 4G --nbd unix:/tmp/zram.sock
  nbdinfo 'nbd+unix:///?socket=/tmp/zram.sock'

  zfolio zram serve --disksize 4G --comp-algorithm lz4 \\
      --recomp-algorithm zstd:9 --vhost-user /tmp/vm.sock
  qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=m,size=1G,share=on \\
      -numa node,memdev=m -chardev socket,id=c,path=/tmp/vm.sock \\
      -device vhost-user-blk-pci,chardev=c ...

  zfolio zram serve --disksize 1G --load d.zram --save d.zram --nbd tcp:10809

  zfolio zram serve --disksize 4G --ublk
  mkfs.ext4 /dev/ublkb0 && mount -o discard /dev/ublkb0 /mnt";

const LIST_HELP: &str = "\
Exit status:
  0  listed, also where there is none
  1  standard output cannot be written
  2  the command line is wrong";

const BUSY_HELP: &str = "\
Exit status:
  0  done
  1  there is no such device, it is busy, or it does not answer
  2  the command line is wrong";

/// A table of attributes, for help.
fn attributes(is_listed: fn(&zram::Attribute) -> bool) -> String {
    let listed = zram::ATTRIBUTES.iter().filter(|attribute| is_listed(attribute));
    let text = |attribute: &zram::Attribute| {
        let accepted =
            if attribute.accepted.is_empty() { String::new() } else { format!("={}", attribute.accepted) };
        format!("  {}{accepted}\n      {}\n", attribute.name, attribute.meaning)
    };
    "Attributes:\n".to_string() + &listed.map(text).collect::<String>()
}

/// What stands below the help of `zfolio zram show`.
fn show_help() -> String {
    let text = |attribute: &zram::Attribute| format!("  {}\n      {}\n", attribute.name, attribute.meaning);
    let shown = zram::ATTRIBUTES.iter().filter(|attribute| attribute.access != zram::Access::Set);
    "Attributes:\n".to_string()
        + &shown.map(text).collect::<String>()
        + "
Exit status:
  0  shown
  1  there is no such device that this user may ask, it does not answer,
     or standard output cannot be written
  2  there is no such attribute

Examples:
  zfolio zram show 0
  zfolio zram show 0 mm_stat"
}

/// What stands below the help of `zfolio zram set`.
fn set_help() -> String {
    attributes(|attribute| attribute.access != zram::Access::Show)
        + "
Exit status:
  0  done
  1  there is no such device that this user may change, it cannot be set now,
     or standard output cannot be written
  2  a value or a name is wrong

Examples:
  zfolio zram set 0 mem_limit=1G
  zfolio zram set 0 idle=all recompress=\"type=idle algo=zstd\"
  zfolio zram set 0 writeback=huge_idle compact=1"
}

/// What `zfolio zram serve` takes.
#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new("front end").args(["nbd", "vhost_user", "ublk"]).required(true).multiple(true),
    override_usage = "zfolio zram serve --disksize SIZE --nbd PLACE [OPTIONS] [NAME=VALUE]...
       zfolio zram serve --disksize SIZE --vhost-user PATH [OPTIONS]
       zfolio zram serve --disksize SIZE --ublk [OPTIONS]"
)]
pub struct Serve {
    /// Size of the device: 4G, 512M or bytes
    #[arg(long, value_name = "SIZE", required_unless_present = "load", help_heading = "Device")]
    pub disksize: Option<String>,

    /// Compress with this: lz4 (the default), lz4hc, zstd, deflate, deflate-iaa, lzo, lzo-rle or 842, if you like
    /// with a level
    #[arg(long, value_name = "NAME[:LEVEL]", help_heading = "Device")]
    pub comp_algorithm: Option<String>,

    /// Compress again with this what `recompress` names; up to 3, of which the first has priority 1
    #[arg(long, value_name = "NAME[:LEVEL]", help_heading = "Device")]
    pub recomp_algorithm: Vec<String>,

    /// Take at most so much memory for what is stored, as zram counts it; a write that needs more fails with ENOSPC
    #[arg(long, value_name = "SIZE", help_heading = "Device")]
    pub mem_limit: Option<String>,

    /// Write to this file or block device what `writeback` names; all of it encrypted
    ///
    /// What was written is given back at the end. One that holds anything at its beginning or end is refused without
    /// `force`, also where the server before was killed.
    #[arg(long, value_name = "PATH[,force]", help_heading = "Device")]
    pub backing_dev: Option<String>,

    /// Fill the device from FILE, which --save has written
    ///
    /// With --disksize a FILE that is not there is no error: the device is empty then, at its first start.
    #[arg(long, value_name = "FILE", help_heading = "Device")]
    pub load: Option<PathBuf>,

    /// Save the device to FILE when it ends
    ///
    /// FILE has its old contents until all of the new ones are on the disk.
    #[arg(long, value_name = "FILE", help_heading = "Device")]
    pub save: Option<PathBuf>,

    /// Other attributes, set before the size is; `zfolio zram set --help` lists them
    #[arg(value_name = "NAME=VALUE", value_parser = pair, help_heading = "Device")]
    pub attributes: Vec<(String, String)>,

    /// Serve NBD at `unix:PATH` or `tcp:[ADDR:]PORT`; may be given several times
    ///
    /// A port without an address is one of 127.0.0.1. There is no password: whoever reaches the port reads and writes.
    #[arg(long, value_name = "unix:PATH|tcp:ADDR", value_parser = place, help_heading = "Front ends")]
    pub nbd: Vec<String>,

    /// Hand this to nbdkit, for TLS and filters; may be given several times
    ///
    /// For example `--nbdkit-arg=--tls=require --nbdkit-arg=--tls-certificates=DIR`, or `--nbdkit-arg=--filter=rate
    /// --nbdkit-arg=rate=10M`.
    #[arg(
        long,
        value_name = "ARG",
        requires = "nbd",
        allow_hyphen_values = true,
        help_heading = "Front ends"
    )]
    pub nbdkit_arg: Vec<String>,

    /// Serve a virtual machine at a socket: virtio-blk by vhost-user, for QEMU, cloud-hypervisor and Firecracker
    ///
    /// One machine at a time; may be given several times.
    #[arg(long, value_name = "PATH", help_heading = "Front ends")]
    pub vhost_user: Vec<PathBuf>,

    /// Make it a block device of this machine, /dev/ublkbN
    ///
    /// It takes root, and Linux 6.0 or newer with the module ublk_drv. Do not swap to it on the same machine: what the
    /// server needs to take a page may be out by then.
    #[arg(long, help_heading = "Front ends")]
    pub ublk: bool,
}

/// What `zfolio zram list` takes.
#[derive(Args, Debug)]
pub struct List {
    /// Write JSON instead of text: sizes in bytes, all counters
    #[arg(long)]
    pub json: bool,
}

/// What `zfolio zram show` takes.
#[derive(Args, Debug)]
pub struct Show {
    /// The device: 0 for zram0
    #[arg(value_name = "N")]
    pub number: u32,

    /// The attribute; all of them without it
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
}

/// What `zfolio zram set` takes.
#[derive(Args, Debug)]
pub struct Set {
    /// The device: 0 for zram0
    #[arg(value_name = "N")]
    pub number: u32,

    /// What to set, and to which value
    #[arg(value_name = "NAME=VALUE", required = true, value_parser = pair)]
    pub values: Vec<(String, String)>,
}

/// A device.
#[derive(Args, Debug)]
pub struct Device {
    /// The device: 0 for zram0
    #[arg(value_name = "N")]
    pub number: u32,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE, such as mem_limit=1G")?;
    match zram::ATTRIBUTES.iter().any(|attribute| attribute.name == name) {
        true => Ok((name.into(), value.into())),
        false => Err(format!("there is no attribute {name:?} (`zfolio zram set --help` lists them)")),
    }
}

/// A place for NBD, as it was written.
fn place(text: &str) -> Result<String, String> {
    let is_place = match text.split_once(':') {
        Some(("unix", path)) => !path.is_empty(),
        Some(("tcp", address)) => {
            let port = match address.rsplit_once(':') {
                Some(("", _)) => None,
                Some((_, port)) => Some(port),
                None => Some(address),
            };
            port.is_some_and(|port| port.parse::<u16>().is_ok())
        }
        _ => false,
    };
    if is_place { Ok(text.into()) } else { Err("expected unix:PATH, tcp:PORT or tcp:ADDR:PORT".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Task};
    use clap::Parser;

    fn parse(line: &str) -> Result<ZramTask, String> {
        match Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?.task {
            Task::Zram(zram) => Ok(zram.task),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_device_has_a_size_and_a_front_end() {
        assert!(parse("zfolio zram serve --disksize 1G --nbd unix:/a --nbd tcp:1 --vhost-user /b").is_ok());
        assert!(parse("zfolio zram serve --load /a --vhost-user /b").is_ok());
        assert!(parse("zfolio zram serve --disksize 1G --ublk").is_ok());
        assert!(parse("zfolio zram serve --disksize 1G").unwrap_err().contains("--nbd"));
        assert!(parse("zfolio zram serve --nbd tcp:1").unwrap_err().contains("--disksize"));
        let alone = "zfolio zram serve --disksize 1G --vhost-user /b --nbdkit-arg=-v";
        assert!(parse(alone).unwrap_err().contains("--nbd"));
    }

    #[test]
    fn nbd_has_a_path_or_a_port() {
        let line = |place: &str| parse(&format!("zfolio zram serve --disksize 1G --nbd {place}"));
        for place in ["unix:a", "tcp:0", "tcp:65535", "tcp:localhost:1", "tcp:[::1]:1"] {
            assert!(line(place).is_ok(), "{place}");
        }
        for place in ["foo", "unix:", "tcp:", "tcp:99999", "tcp::1", "tcp:a:", "tcp:a", "udp:1"] {
            assert!(line(place).unwrap_err().contains("tcp:PORT"), "{place}");
        }
    }

    #[test]
    fn help_names_every_compressor() {
        let help = Cli::try_parse_from(["zfolio", "zram", "serve", "--help"]).unwrap_err().to_string();
        let (_, listed) = help.split_once("Compress with this: ").unwrap();
        let words: Vec<&str> = listed.split([' ', ',', '\n']).take_while(|word| *word != "level").collect();
        for algorithm in acomp::Compressor::ALL {
            assert!(words.contains(&algorithm.name), "{}: {words:?}", algorithm.name);
        }
    }

    #[test]
    fn what_is_set_is_an_attribute() {
        assert!(parse("zfolio zram set 0").is_err());
        assert!(parse("zfolio zram set 0 compact").unwrap_err().contains("NAME=VALUE"));
        assert!(parse("zfolio zram set 0 comapct=1").unwrap_err().contains("no attribute"));
        assert!(parse("zfolio zram set zram0 compact=1").is_err());
        assert!(matches!(parse("zfolio zram hot_remove 3"), Ok(ZramTask::HotRemove(Device { number: 3 }))));
    }
}
