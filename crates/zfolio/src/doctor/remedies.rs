//! What helps where a check says that something is missing or less than it could be.

use crate::check::{Remedy, remedy};

pub(super) const RIGHTS: &[Remedy] = &[
    remedy("root", "run zfolio as root, or give it CAP_SYS_PTRACE"),
    remedy("root", "sysctl -w vm.unprivileged_userfaultfd=1    (for every user)"),
    remedy("user", "sudo setfacl -m u:$USER:rw /dev/userfaultfd"),
    remedy("container", "docker run --device /dev/userfaultfd ..."),
];

pub(super) const SCHEDULING: &[Remedy] = &[
    remedy("root", "give zfolio CAP_SYS_NICE"),
    remedy("user", "root can allow `ulimit -e 20`: \"USER - nice 0\" in /etc/security/limits.conf"),
    remedy("container", "docker run --cap-add SYS_NICE ...   (or --ulimit nice=20)"),
];

pub(super) const NEWER_KERNEL: &[Remedy] = &[
    remedy("root", "Debian 12: apt install -t bookworm-backports linux-image-amd64"),
    remedy("root", "Ubuntu 24.04: apt install linux-generic-hwe-24.04"),
    remedy("user", "ask for a machine with Linux 6.12 or later"),
    remedy("container", "the host's kernel counts: move to a node with 6.12 or later"),
];

pub(super) const PROC: &[Remedy] = &[
    remedy("root", "mount -t proc proc /proc"),
    remedy("user", "start zfolio where /proc is mounted and readable"),
    remedy("container", "leave /proc as docker mounts it"),
];

pub(super) const CODE: &[Remedy] = &[
    remedy("root", "mount -o remount,exec /tmp"),
    remedy("user", "export XDG_RUNTIME_DIR=DIR, of your own and not on a noexec mount"),
    remedy("container", "docker run --tmpfs /tmp:exec ..."),
];

pub(super) const GLIBC: &[Remedy] = &[
    remedy("root", "nothing to do: it works, and costs more"),
    remedy("user", "nothing to do: it works, and costs more"),
    remedy("container", "an image with Debian's or Ubuntu's glibc, 2.31 or newer"),
];

pub(super) const HUGE_PAGES: &[Remedy] = &[
    remedy("root", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
    remedy("user", "nothing to do: it works in base pages"),
    remedy("container", "set on the host"),
];

pub(super) const MAPS: &[Remedy] = &[
    remedy("root", "sysctl -w vm.max_map_count=1048576"),
    remedy("user", "ask root for it"),
    remedy("container", "set on the host"),
];

pub(super) const OVERCOMMIT: &[Remedy] = &[
    remedy("root", "sysctl -w vm.overcommit_memory=0"),
    remedy("user", "ask root for it, or leave more room in CommitLimit"),
    remedy("container", "set on the host"),
];

pub(super) const ADDRESS_SPACE: &[Remedy] = &[
    remedy("root", "prlimit --as=unlimited --pid $$"),
    remedy("user", "ulimit -v unlimited"),
    remedy("container", "docker run --ulimit as=-1 ..."),
];

pub(super) const PROCESSES: &[Remedy] = &[
    remedy("root", "prlimit --nproc=4096 --pid $$"),
    remedy("user", "ulimit -u 4096"),
    remedy("container", "docker run --ulimit nproc=4096 ..."),
];

pub(super) const SWAP: &[Remedy] = &[
    remedy("root", "swapoff -a, or for one run: systemd-run --scope -p MemorySwapMax=0 zfolio run ..."),
    remedy("user", "nothing to do: it works, and what is in swap too takes longer to come back"),
    remedy("container", "docker run --memory 1G --memory-swap 1G ...    (the same size: no swap)"),
];
