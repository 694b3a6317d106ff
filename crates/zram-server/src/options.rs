//! What the user asks for: a name and a value each, as nbdkit hands them to its plugin.

use std::path::PathBuf;

/// What a device is served with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Attributes, in the order in which they are set.
    pub attributes: Vec<(String, String)>,
    /// The file that the device is filled from.
    pub load: Option<PathBuf>,
    /// The file that it is saved to at its end.
    pub save: Option<PathBuf>,
    /// Sockets for virtual machines.
    pub vhost_user: Vec<PathBuf>,
    /// True if it is a block device of this machine too.
    pub ublk: bool,
    /// Where nbdkit listens, as the user has written it: `unix:PATH` or `tcp:ADDR`.
    pub nbd: Vec<String>,
}

impl Options {
    /// Takes one more of them.
    pub fn add(&mut self, name: &str, value: &str) {
        match name {
            "load" => self.load = Some(value.into()),
            "save" => self.save = Some(value.into()),
            "vhost_user" => self.vhost_user.push(value.into()),
            "ublk" => self.ublk = true,
            "nbd" => self.nbd.push(value.into()),
            _ => self.attributes.push((name.into(), value.into())),
        }
    }

    /// All of them as `NAME=VALUE`, from which [`Options::add`] makes the same. An error names a path that is no text.
    pub fn words(&self) -> Result<Vec<String>, String> {
        let text = |path: &PathBuf| match path.to_str() {
            Some(text) => Ok(text.to_string()),
            None => Err(format!("{}: a path must be text", path.display())),
        };
        let mut words: Vec<String> =
            self.attributes.iter().map(|(name, value)| format!("{name}={value}")).collect();
        for (name, paths) in
            [("load", self.load.as_slice()), ("save", self.save.as_slice()), ("vhost_user", &self.vhost_user)]
        {
            for path in paths {
                words.push(format!("{name}={}", text(path)?));
            }
        }
        words.extend(self.ublk.then(|| "ublk=1".into()));
        words.extend(self.nbd.iter().map(|place| format!("nbd={place}")));
        Ok(words)
    }

    /// The sockets among the places where nbdkit listens.
    pub fn nbd_sockets(&self) -> impl Iterator<Item = &str> {
        self.nbd.iter().filter_map(|place| place.strip_prefix("unix:"))
    }

    /// Each socket as a client takes it: a URI of NBD, or `vhost-user:PATH`.
    pub fn front_ends(&self) -> Vec<String> {
        let uri = |place: &String| match place.strip_prefix("unix:") {
            Some(path) => format!("nbd+unix:///?socket={path}"),
            None => format!("nbd://{}", place.strip_prefix("tcp:").unwrap_or(place)),
        };
        let machines = self.vhost_user.iter().map(|path| format!("vhost-user:{}", path.display()));
        self.nbd.iter().map(uri).chain(machines).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_handed_over_is_what_was_asked_for() {
        let options = Options {
            attributes: vec![
                ("comp_algorithm".into(), "zstd".into()),
                ("recomp_algorithm".into(), "algo=zstd priority=1".into()),
                ("disksize".into(), "4G".into()),
            ],
            load: Some("/a=b".into()),
            save: Some("/c".into()),
            vhost_user: vec!["/d".into(), "/e f".into()],
            ublk: true,
            nbd: vec!["unix:/g".into(), "tcp:127.0.0.1:10809".into()],
        };
        let mut taken = Options::default();
        for word in options.words().unwrap() {
            let (name, value) = word.split_once('=').unwrap();
            taken.add(name, value);
        }
        assert_eq!(taken, options);
        assert_eq!(options.nbd_sockets().collect::<Vec<_>>(), ["/g"]);
        assert_eq!(
            options.front_ends(),
            ["nbd+unix:///?socket=/g", "nbd://127.0.0.1:10809", "vhost-user:/d", "vhost-user:/e f"]
        );
    }
}
