//! Intel's accelerator as a user sees it: what `zfolio doctor` says of it, and why a run with `deflate-iaa` does without.

use crate::doctor::{Check, Remedy, Verdict};
use acomp::Compressor;
use iaa::setup::Setup;

/// Devices and queues, each tried, and what to run where none can be used.
pub fn check(setup: Setup) -> Check {
    let has_devices = setup.devices.as_ref().is_ok_and(|devices| !devices.is_empty());
    let verdict = if has_devices && setup.usable_count() == 0 { Verdict::Note } else { Verdict::Ok };
    let mut found = setup.summary();
    for (at, (name, state)) in setup.queues.iter().enumerate() {
        found += if at == 0 { ": " } else { "; " };
        found += name;
        match state {
            Ok(()) => found += " works",
            Err(why) => found += &format!(": {why}"),
        }
    }
    // They live as long as the few milliseconds of this process.
    let command = |command: String| Remedy { who: "root", command: command.leak() };
    let mut remedies: Vec<Remedy> = setup.commands.into_iter().map(command).collect();
    if verdict == Verdict::Note {
        remedies.push(Remedy { who: "user", command: "ask root for it, or take another --compressor" });
        remedies.push(Remedy { who: "container", command: "docker run --device /dev/iax ..." });
    }
    Check { name: "IAA", found, verdict, remedies: remedies.leak() }
}

/// What a user who asked for `deflate-iaa` should know: why it runs in software.
pub fn shortfall(compressor: Compressor, look: impl FnOnce() -> Setup) -> Option<String> {
    if compressor.name() != "deflate-iaa" {
        return None;
    }
    let setup = look();
    match &setup.devices {
        Ok(devices) if devices.is_empty() => Some(setup.summary()),
        _ if setup.usable_count() > 0 => None,
        _ => Some(format!(
            "{}: deflate-iaa runs in software (`zfolio doctor` says what helps)",
            setup.summary()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iaa_model::Tree;

    fn why(compressor: &str, tree: &Tree) -> Option<String> {
        shortfall(Compressor::parse(compressor).unwrap(), || Setup::look(tree.root()))
    }

    #[test]
    fn no_device_is_one_line() {
        let tree = Tree::new("zfolio-none");
        let check = check(Setup::look(tree.root()));
        assert_eq!(check.found, "no IAA device: deflate-iaa runs in software");
        assert_eq!((check.verdict, check.remedies.len()), (Verdict::Ok, 0));
        assert_eq!(why("deflate-iaa", &tree).unwrap(), check.found);
        assert_eq!(shortfall(Compressor::parse("zstd").unwrap(), || panic!("nobody asked")), None);
    }

    #[test]
    fn a_device_that_is_set_up_is_named_with_its_queues() {
        let tree = Tree::new("zfolio-works");
        tree.device(1, 0);
        tree.queue(1, 0, "shared", 64);
        tree.queue(1, 1, "dedicated", 64);
        tree.set(1, "wq1.1/type", "kernel");
        let check = check(Setup::look(tree.root()));
        assert_eq!(
            check.found,
            "1 IAA device, 1 of 2 work queues usable: wq1.0 works; wq1.1: it is not of type user"
        );
        assert_eq!(check.verdict, Verdict::Ok);
        assert_eq!(why("deflate-iaa", &tree), None);
    }

    #[test]
    fn a_device_that_is_not_set_up_gets_the_commands() {
        let tree = Tree::new("zfolio-kernels");
        tree.device(1, 0);
        tree.queue(1, 0, "dedicated", 128);
        tree.set(1, "wq1.0/type", "kernel");
        let check = check(Setup::look(tree.root()));
        assert_eq!(check.verdict, Verdict::Note);
        assert_eq!(check.found, "1 IAA device, 0 of 1 work queue usable: wq1.0: it is not of type user");
        let commands: Vec<_> = check.remedies.iter().map(|remedy| (remedy.who, remedy.command)).collect();
        assert_eq!(commands[0], ("root", "accel-config disable-wq iax1/wq1.0"));
        assert!(commands.contains(&("root", "accel-config enable-wq iax1/wq1.0")), "{commands:?}");
        assert_eq!(
            why("deflate-iaa", &tree).unwrap(),
            "1 IAA device, 0 of 1 work queue usable: deflate-iaa runs in software (`zfolio doctor` says what helps)"
        );
    }
}
