"""stress-ng's stressors of the classes vm and memory, with --verify: an item, with one case, for each stressor."""

import re
import shutil
import subprocess

from .execution import UNENDED, Item

NAME = "stress-ng"
MEMORY = "32M"
SECONDS = 2

EXCLUDED = {
    "dev-shm": "fills the machine's /dev/shm, whatever its size",
    "mmapfork": "shares between 32 children as much memory as the machine has free",
    "physpage": "writes memory type registers of the whole machine",
    "swap": "turns swap on and off for the whole machine",
    "watchdog": "opens the machine's watchdog, which may start it anew",
}

SHORT = "brk madvise mmap mremap rmap vm"

# Shared memory stays, and some take as much as they like: as large as the processor's cache, or a part of the
# machine's.
LIMITS = {"prefetch": "96M"}

# Stressors take as much as they are told, where they may be told.
SIZES = {
    "malloc": "8M", "memfd": "8M", "memrate": "16M", "mmap": "32M", "mremap": "16M", "msync": "8M", "pagemove": "16M",
    "shm": "1M", "shm-sysv": "1M", "vm": "32M", "vm-rw": "16M",
}

# (Pattern of "ITEM CASE", reason.)
EXPECTED = [
    ("munmap (stops)", "it unmaps all that /proc/self/maps shows, its engine's memory too"),
    ("vm-segv (stops)", "it unmaps all of its address space, its engine's memory too"),
]

# stress-ng(1), "Exit status".
ENDS = {"exit 0": "ok", "exit 2": "failed", "exit 3": "no resource", "exit 4": "not implemented", "exit 7": "bad metrics"}


def version():
    return subprocess.run(["stress-ng", "--version"], capture_output=True, text=True).stdout.split(" (")[0]


def missing():
    return None if shutil.which("stress-ng") else "stress-ng is not there: tools/setup suites installs it"


def stressors():
    found = set()
    for kind in ("vm", "memory"):
        said = subprocess.run(["stress-ng", "--class", f"{kind}?"], capture_output=True, text=True).stdout
        found |= set(said.partition(":")[2].split())
    return sorted(found)


def items(short):
    wanted = SHORT.split() if short else [name for name in stressors() if name not in EXCLUDED]
    return [Item(NAME, name, command(name), read(name), timeout_s=60 + SECONDS, memory=LIMITS.get(name)) for name in wanted]


def command(name):
    size = [f"--{name}-bytes", SIZES[name]] if name in SIZES else []
    words = ["stress-ng", f"--{name}", "1", *size, "--verify", "--timeout", f"{SECONDS}s", "--no-rand-seed", "--temp-path"]
    return lambda folder: [*words, folder]


def read(name):
    def cases(_folder, text, end):
        if end in UNENDED:
            return {}
        result = ENDS.get(end, end)
        # What the first complaint is about, without the process's number.
        complaint = re.search(r"^stress-ng: fail: +\[\d+\] (.*)$", text, re.M)
        return {name: f"{result}: {complaint[1]}" if complaint else result}
    return cases
