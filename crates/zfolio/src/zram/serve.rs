//! `zfolio zram serve`: what the user asks for, in the words of zram's attributes.

use super::nbdkit;
use crate::args;
use crate::lines::printable;
use std::io::{Write, stderr};
use zram_server::Options;

/// Exit status: it cannot be served.
const FAILED: u8 = 1;

/// Serves until a signal; the exit status where it does not come to that.
pub fn run(serve: &args::Serve) -> u8 {
    let Err(why) = start(serve);
    let _ = writeln!(stderr(), "zfolio: {}", printable(&why));
    FAILED
}

fn start(serve: &args::Serve) -> Result<std::convert::Infallible, String> {
    let options = options(serve);
    if !serve.nbd.is_empty() {
        return nbdkit::become_it(options, &serve.nbdkit_arg);
    }
    let server = zram_server::start(options)?;
    server.greet(std::io::stdout());
    loop {
        // A signal ends the process.
        std::thread::park();
    }
}

/// Attributes in the order in which they can be set: the size is last.
fn options(serve: &args::Serve) -> Options {
    let mut options = Options {
        load: serve.load.clone(),
        save: serve.save.clone(),
        vhost_user: serve.vhost_user.clone(),
        ublk: serve.ublk,
        nbd: serve.nbd.clone(),
        ..Options::default()
    };
    if let Some(named) = &serve.comp_algorithm {
        let (name, level) = algorithm(named);
        options.add("comp_algorithm", name);
        if let Some(level) = level {
            options.add("algorithm_params", &format!("priority=0 level={level}"));
        }
    }
    for (at, named) in serve.recomp_algorithm.iter().enumerate() {
        let ((name, level), priority) = (algorithm(named), at + 1);
        options.add("recomp_algorithm", &format!("algo={name} priority={priority}"));
        if let Some(level) = level {
            options.add("algorithm_params", &format!("priority={priority} level={level}"));
        }
    }
    let others =
        [("mem_limit", &serve.mem_limit), ("backing_dev", &serve.backing_dev), ("disksize", &serve.disksize)];
    let others = others.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let given = serve.attributes.iter().map(|(name, value)| (&name[..], value));
    for (name, value) in given.chain(others) {
        options.add(name, value);
    }
    options
}

/// A name, and a level behind a colon.
fn algorithm(named: &str) -> (&str, Option<&str>) {
    named.split_once(':').map_or((named, None), |(name, level)| (name, Some(level)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Task, ZramTask};
    use clap::Parser;

    #[test]
    fn what_is_asked_for_is_said_in_zrams_words() {
        let line = "zfolio zram serve --disksize 4G --comp-algorithm zstd:3 --recomp-algorithm lz4hc --recomp-algorithm \
                    zstd:9 --mem-limit 1G --nbd unix:/a --save /b";
        let serve = match Cli::try_parse_from(line.split(' ')).unwrap().task {
            Task::Zram(zram) => match zram.task {
                ZramTask::Serve(serve) => *serve,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        assert_eq!(
            options(&serve).words().unwrap(),
            [
                "comp_algorithm=zstd",
                "algorithm_params=priority=0 level=3",
                "recomp_algorithm=algo=lz4hc priority=1",
                "recomp_algorithm=algo=zstd priority=2",
                "algorithm_params=priority=2 level=9",
                "mem_limit=1G",
                "disksize=4G",
                "save=/b",
                "nbd=unix:/a",
            ]
        );
    }
}
