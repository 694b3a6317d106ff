//! `zfolio zram serve`: what the user asks for, in the words of zram's attributes.

use super::nbdkit;
use crate::args;
use crate::lines::printable;
use std::io::{Write, stderr};
use zram_server::{Failure, Options};

/// Serves until a signal; the exit status where it does not come to that.
pub fn run(serve: &args::Serve) -> u8 {
    let Err(why) = start(serve);
    let _ = writeln!(stderr(), "zfolio: {}", printable(&why.to_string()));
    why.status
}

fn start(serve: &args::Serve) -> Result<std::convert::Infallible, Failure> {
    let options = options(serve);
    if !serve.nbd.is_empty() {
        return Ok(nbdkit::become_it(options, &serve.nbdkit_arg)?);
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
        options.add("comp_algorithm", named);
    }
    for (at, named) in serve.recomp_algorithm.iter().enumerate() {
        options.add("recomp_algorithm", &format!("algo={named} priority={}", at + 1));
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
                "comp_algorithm=zstd:3",
                "recomp_algorithm=algo=lz4hc priority=1",
                "recomp_algorithm=algo=zstd:9 priority=2",
                "mem_limit=1G",
                "disksize=4G",
                "save=/b",
                "nbd=unix:/a",
            ]
        );
    }
}
