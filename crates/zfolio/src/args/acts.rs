//! The command line of what changes runs that go on.

use crate::control_socket::tunables;
use clap::Args;
use std::ffi::OsString;

/// What stands below the help of `zfolio set`.
pub fn set_help() -> String {
    tunables::help()
        + "
Exit status:
  0  done, or listed
  1  there is no such run that this user may change, it does not answer,
     or standard output cannot be written
  2  the command line is wrong, or a value out of its range: nothing is changed

Examples:
  zfolio set 1234                                    what there is to set
  zfolio set 1234 memory=512M
  zfolio set 1234 max_pool_percent=40 accept_threshold_percent=80
  zfolio set $(pidof redis-server) writeback=N"
}

/// What stands below the help of `zfolio reclaim`.
pub const RECLAIM_HELP: &str = "\
Exit status:
  0  all of SIZE was reclaimed
  1  less was, there is no such run or engine,
     or standard output cannot be written
  2  the command line is wrong

Examples:
  zfolio reclaim 1234 200M
  zfolio reclaim 1234 2G --timeout 600";

/// What `zfolio set` takes.
#[derive(Args, Debug)]
pub struct Set {
    /// The run: its `zfolio run`, or any of its processes
    ///
    /// What is of one process is changed for that process, or for all of them where this is `zfolio run`.
    #[arg(value_name = "PID", value_parser = pid)]
    pub pid: u32,

    /// What to change, and to which value; nothing: list what there is
    #[arg(value_name = "NAME=VALUE", allow_hyphen_values = true)]
    pub values: Vec<String>,
}

/// What `zfolio reclaim` takes.
#[derive(Args, Debug)]
pub struct Reclaim {
    /// The process; or the run, by its `zfolio run`
    #[arg(value_name = "PID", value_parser = pid)]
    pub pid: u32,

    /// By how much the footprint is to be lower: 64M, 1.5GiB or bytes
    #[arg(value_name = "SIZE", allow_hyphen_values = true)]
    pub size: OsString,

    /// Give up after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub timeout: u32,
}

fn pid(text: &str) -> Result<u32, String> {
    let pid = text.parse().ok().filter(|pid| *pid > 0);
    pid.ok_or_else(|| "the number of a process comes first (`zfolio ps` lists runs)".into())
}

#[cfg(test)]
mod tests {
    use crate::args::Cli;
    use clap::Parser;

    #[test]
    fn what_is_in_the_wrong_order_is_told_what_comes_first() {
        for line in ["zfolio set memory=64M 7", "zfolio reclaim 64M 7", "zfolio set -1", "zfolio set 0"] {
            let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
        }
        for line in ["zfolio set memory=64M 7", "zfolio reclaim 64M 7"] {
            let error = Cli::try_parse_from(line.split(' ')).unwrap_err().to_string();
            assert!(error.contains("the number of a process comes first"), "{error}");
        }
        for line in ["zfolio set 7", "zfolio set 7 memory=1G enabled=N", "zfolio reclaim 7 1G --timeout 5"] {
            assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
    }
}
