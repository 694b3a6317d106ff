//! What is known of kernels by their version: defects of what zfolio uses, where each matters, and what helps.
//!
//! A version alone proves nothing, since distributions take mends back to older kernels. What it says is therefore a
//! note, and never keeps a program from being run. docs/kernels.md says where each entry is from, and lists the defects
//! that zfolio gets by with, of which nothing is said.

use crate::check::{Remedy, remedy};
use crate::sys;
use std::fs;

/// A release: version, patch level, sublevel. A release candidate counts as its release.
pub type Version = (u32, u32, u32);

/// The oldest series that zfolio is tried on.
pub const OLDEST: Version = (6, 12, 0);

/// What must be in use for a defect to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing but zfolio.
    Nothing,
    /// The machine's own swap.
    Swap,
    /// Transparent huge pages.
    HugePages,
}

/// A defect of the kernel's.
#[derive(Debug, PartialEq, Eq)]
pub struct Defect {
    /// The first release that has it.
    since: Version,
    /// The first one that does not.
    mended: Version,
    /// The first releases without it of series that had it, and are looked after longer than others.
    backports: &'static [Version],
    /// When it shows.
    needs: Needs,
    /// What happens, and when.
    what: &'static str,
    /// What helps; any one is enough.
    pub remedies: &'static [Remedy],
}

const WITHOUT_SWAP: &[Remedy] = &[
    remedy("root", "install a newer kernel, or: swapoff -a"),
    remedy("root", "systemd-run --scope -p MemorySwapMax=0 zfolio run ..."),
    remedy("user", "ask root for it"),
    remedy("container", "docker run --memory 1G --memory-swap 1G ...    (the same size: no swap)"),
];
const WITHOUT_HUGE_PAGES: &[Remedy] = &[
    remedy("root", "install a newer kernel, or: echo never > /sys/kernel/mm/transparent_hugepage/enabled"),
    remedy("user", "ask root for it"),
    remedy("container", "set on the host"),
];
const NEWER: &[Remedy] = &[
    remedy("root", "install a newer kernel"),
    remedy("user", "ask root for it"),
    remedy("container", "the host's kernel counts"),
];

/// By what they can do, the worst first. The releases of 6.12 are those of its changelog as Debian has it.
const DEFECTS: &[Defect] = &[
    Defect {
        since: (6, 8, 0),
        mended: (6, 16, 0),
        backports: &[(6, 12, 37)],
        needs: Needs::Swap,
        what: "to move a page that the kernel is swapping may stop the machine, or spoil its counts of memory",
        remedies: WITHOUT_SWAP,
    },
    Defect {
        since: (6, 8, 0),
        mended: (6, 17, 0),
        backports: &[(6, 12, 43)],
        needs: Needs::HugePages,
        what: "to move a huge page that the kernel is migrating may stop the machine",
        remedies: WITHOUT_HUGE_PAGES,
    },
    Defect {
        since: (6, 8, 0),
        mended: (6, 15, 0),
        backports: &[(6, 12, 24)],
        needs: Needs::Nothing,
        what: "a program may hang at its end, while the kernel still works on its memory (io_uring, a debugger)",
        remedies: NEWER,
    },
];

impl Defect {
    /// True for a kernel whose version has it.
    fn is_in(&self, version: Version) -> bool {
        let (major, minor, _) = version;
        let is_mended = |&mend: &Version| (mend.0, mend.1) == (major, minor) && version >= mend;
        self.since <= version && version < self.mended && !self.backports.iter().any(is_mended)
    }

    /// What is said of it.
    pub fn sentence(&self) -> String {
        let (major, minor, _) = self.mended;
        let mends: String = self.backports.iter().map(|(a, b, c)| format!(" and {a}.{b}.{c}")).collect();
        format!("{} (mended in {major}.{minor}{mends}; unless this distribution has mended it)", self.what)
    }
}

/// The defects of a kernel that matter where these are in use.
pub fn defects(version: Version, in_use: &[Needs]) -> Vec<&'static Defect> {
    let matters = |defect: &&Defect| defect.needs == Needs::Nothing || in_use.contains(&defect.needs);
    DEFECTS.iter().filter(|defect| defect.is_in(version)).filter(matters).collect()
}

/// True where the kernel may be trusted to move huge pages.
pub fn moves_huge_pages(version: Version) -> bool {
    !DEFECTS.iter().any(|defect| defect.needs == Needs::HugePages && defect.is_in(version))
}

/// The version of the kernel that runs.
pub fn running() -> Version {
    let (release, build) = sys::kernel();
    let signature = fs::read_to_string("/proc/version_signature").unwrap_or_default();
    version(&release, &build, signature.trim_end())
}

/// The version of a kernel, from what uname(2) says (`release` and `version`) and Ubuntu's /proc/version_signature.
/// Debian and Ubuntu have names of their own for their releases, and say elsewhere which of the kernel's own they are.
pub fn version(release: &str, build: &str, signature: &str) -> Version {
    let debians = build.split_once("Debian ").map(|(_, version)| version);
    let ubuntus = signature.starts_with("Ubuntu ").then(|| signature.trim_end().rsplit(' ').next()).flatten();
    numbers(ubuntus.or(debians).unwrap_or(release))
}

/// `6.12.117-1` and `7.2-rc3` without what comes behind the numbers.
fn numbers(text: &str) -> Version {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let mut numbers = text[..end].split('.').map(|number| number.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_distributions() {
        let smp = "#1 SMP PREEMPT_DYNAMIC ";
        let debian = |text: &str| format!("{smp}Debian {text} (2026-10-28)");
        for (release, build, signature, expected) in [
            ("6.12.117+deb13-cloud-amd64", debian("6.12.117-1"), "", (6, 12, 117)),
            ("6.1.0-50-amd64", debian("6.1.176-1"), "", (6, 1, 176)),
            ("6.12.9+bpo-amd64", debian("6.12.9-1~bpo12+1"), "", (6, 12, 9)),
            ("6.8.0-57-generic", smp.into(), "Ubuntu 6.8.0-57.59-generic 6.8.12\n", (6, 8, 12)),
            ("6.14.0-37-generic", smp.into(), "Ubuntu 6.14.0-37.37~24.04.1-generic 6.14.11\n", (6, 14, 11)),
            ("6.11.0-26-generic", smp.into(), "", (6, 11, 0)),
            ("6.14.9-300.fc42.x86_64", smp.into(), "", (6, 14, 9)),
            ("6.12.0-55.9.1.el10_0.x86_64", smp.into(), "", (6, 12, 0)),
            ("6.6.87.2-microsoft-standard-WSL2", smp.into(), "", (6, 6, 87)),
            ("6.18.44-fc-v669", smp.into(), "", (6, 18, 44)),
            ("7.2-rc3", smp.into(), "", (7, 2, 0)),
            ("7.2.0-rc3-00012-g0123456", smp.into(), "", (7, 2, 0)),
            ("", String::new(), "", (0, 0, 0)),
        ] {
            assert_eq!(version(release, &build, signature), expected, "{release}");
        }
    }

    #[test]
    fn a_defect_is_said_of_the_releases_that_have_it_where_it_matters() {
        let all = [Needs::Swap, Needs::HugePages];
        let count = |version, in_use: &[Needs]| defects(version, in_use).len();
        assert_eq!(count((6, 7, 12), &all), 0, "nothing is moved there");
        assert_eq!([count((6, 8, 0), &all), count((6, 8, 0), &[])], [3, 1]);
        for (patch, expected) in [(23, 3), (24, 2), (36, 2), (37, 1), (42, 1), (43, 0), (117, 0)] {
            assert_eq!(count((6, 12, patch), &all), expected, "6.12.{patch}");
        }
        for (minor, expected) in [(13, 3), (14, 3), (15, 2), (16, 1), (17, 0)] {
            assert_eq!(count((6, minor, 0), &all), expected, "6.{minor}");
        }
        assert_eq!(count((7, 2, 0), &all), 0);
        assert_eq!(defects((6, 12, 30), &[Needs::Swap]), [&DEFECTS[0]]);
        assert_eq!(defects((6, 12, 30), &[Needs::HugePages]), [&DEFECTS[1]]);
    }

    #[test]
    fn each_has_a_sentence_and_a_remedy_for_each_kind_of_person() {
        assert_eq!(
            DEFECTS[1].sentence(),
            "to move a huge page that the kernel is migrating may stop the machine \
             (mended in 6.17 and 6.12.43; unless this distribution has mended it)"
        );
        for defect in DEFECTS {
            assert!(
                defect.since < defect.mended && defect.backports.iter().all(|mend| *mend < defect.mended)
            );
            for who in ["root", "user", "container"] {
                assert!(defect.remedies.iter().any(|remedy| remedy.who == who), "{}", defect.what);
            }
        }
    }
}
