//! A thing that `zfolio doctor` looks at: what was found, what that means, and who can change it.

/// What a finding means for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// zfolio works, with less than it could have.
    Note,
    /// zfolio does not work.
    Missing,
}

impl Verdict {
    /// As people and the JSON read it.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Missing => "missing",
        }
    }

    /// The escape sequence that begins its colour.
    pub fn colour(self) -> &'static str {
        match self {
            Verdict::Ok => "\x1b[32m",
            Verdict::Note => "\x1b[33m",
            Verdict::Missing => "\x1b[1;31m",
        }
    }
}

/// One thing looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// What there is.
    pub found: String,
    /// What it means.
    pub verdict: Verdict,
    /// Ways to a better verdict; any one is enough.
    pub remedies: &'static [Remedy],
}

/// Who can change something, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// "root", "user" or "container".
    pub who: &'static str,
    /// A command, or where there is none, what to do.
    pub command: &'static str,
}

/// A remedy.
pub const fn remedy(who: &'static str, command: &'static str) -> Remedy {
    Remedy { who, command }
}
