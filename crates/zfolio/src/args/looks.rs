//! The command line of what looks at runs that go on.

use clap::Args;

/// What stands below the help of `zfolio stat`.
pub const STAT_HELP: &str = "\
Exit status:
  0  shown; with --watch, the run has ended, or Ctrl-C or a closed pipe has ended this
  1  there is no such run that this user may see, there are several and no PID,
     or standard output cannot be written
  2  the command line is wrong

Examples:
  zfolio stat                                the only run that there is
  zfolio stat 1234 --watch                   once a second, with rates
  zfolio stat --json | jq .counters.zswpout
  zfolio stat --watch 10 --json >> run.jsonl";

/// The shortest and the longest time between two looks, in seconds.
const SECONDS: [f64; 2] = [0.1, 86_400.0];

/// What `zfolio stat` takes.
#[derive(Args, Debug)]
pub struct Stat {
    /// The run: its `zfolio run`, or any of its processes
    ///
    /// Of a process that has an engine its own counters are shown instead of those of the run. Without PID it is the
    /// only run that there is.
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Option<u32>,

    /// Write JSON instead of text: the run with all counters, and each of its processes
    #[arg(long)]
    pub json: bool,

    /// Show them again each second, or each SECONDS, with rates per second beside the totals
    ///
    /// On a terminal they are drawn in one place. Elsewhere one block follows the other, and with --json each is a
    /// line. It ends with the run.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    pub watch: Option<f64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let [least, most] = SECONDS;
    let seconds = text.parse().ok().filter(|seconds| (least..=most).contains(seconds));
    seconds.ok_or_else(|| format!("a number of seconds from {least} to {most} is needed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Task};
    use clap::Parser;

    fn stat(line: &str) -> Result<Stat, String> {
        match Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?.task {
            Task::Stat(stat) => Ok(stat),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_interval_may_be_left_out() {
        for (line, pid, watch) in [
            ("zfolio stat", None, None),
            ("zfolio stat 7", Some(7), None),
            ("zfolio stat 7 --watch", Some(7), Some(1.0)),
            ("zfolio stat --watch --json", None, Some(1.0)),
            ("zfolio stat --watch 0.5 7", Some(7), Some(0.5)),
        ] {
            let stat = stat(line).unwrap();
            assert_eq!((stat.pid, stat.watch), (pid, watch), "{line}");
        }
    }

    #[test]
    fn what_is_no_interval_is_told_with_what_one_is() {
        for wrong in ["0", "-1", "nan", "inf", "1e9", "x"] {
            let error = stat(&format!("zfolio stat --watch={wrong}")).unwrap_err();
            assert!(error.contains("from 0.1 to 86400"), "{error}");
        }
        for wrong in ["0", "-1", "x", "4294967296"] {
            assert!(stat(&format!("zfolio stat {wrong}")).is_err(), "{wrong}");
        }
    }
}
