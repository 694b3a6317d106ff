"""One command under one kind of memory, and what was seen of it: with swap areas on the disk, unlike `program.Run`.

    alone    without a limit
    swap     in a memory control group, over a swap file without zswap
    zswap    in a memory control group, over a swap file with zswap in front, whose pool is bounded
    zram     in a memory control group, over zram with lz4
    zfolio   under `zfolio run --backing` on the same disk; words behind choose a compressor and --max-pool-percent:
             `zfolio lz4`, `zfolio 0%`; without a swap area: `zfolio ram`
"""

import dataclasses
import hashlib
import json
import os
import subprocess
import tempfile
import threading
import time

from . import undo as u
from . import zram, zswap
from .cgroup import Cgroup

# Version 1 does not charge zswap's pool to a group, and the machine's one is bounded by whole percents only.
POOL_PERCENT = 1
# How often the kernel may run out of memory in one turn.
TURNS = 3


class Killed(Exception):
    """The kernel ran out of memory in a group, each time that it was tried; the sentence is for the user."""


class Failed(Exception):
    """A command that ended wrongly; the sentence is for the user."""


@dataclasses.dataclass
class Seen:
    """What was seen of one run. Pages are of 4 KiB; `total_bytes` is what it had, with the pool; `pages_brought` are those
    that came back, from a pool or a disk."""

    seconds: float
    cpu_s: float
    pages_in: int
    pages_out: int
    pages_brought: int
    major_faults: int
    device_bytes: int
    anonymous_peak_bytes: int
    total_bytes: int | None
    hash: str
    summary: dict | None


def device_of(path):
    """The number of the device that a path lies on, as control groups name it."""
    number = os.stat(path).st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def device_written_bytes(path):
    """Bytes written to the device that a path lies on, by anybody, since the machine started."""
    for line in u.read("/proc/diskstats").splitlines():
        fields = line.split()
        if f"{fields[0]}:{fields[1]}" == device_of(path):
            return int(fields[9]) * 512
    return 0


def hash_to_end(pipe, total):
    for block in iter(lambda: pipe.read(1 << 16), b""):
        total.update(block)


def follow(command, group, folder, timeout_s, talk):
    """Runs the command in the group to its end; returns its status, elapsed seconds, a hash of what it and its client
    said, and what it complained of. What it says goes through a pipe: no group is charged with pages of a file."""
    total = hashlib.sha256()
    with open(f"{folder}/stderr", "w") as stderr:
        began = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
                                   preexec_fn=group.enter, start_new_session=True)
        reader = threading.Thread(target=hash_to_end, args=(process.stdout, total))
        timer = threading.Timer(timeout_s, group.kill)
        reader.start()
        timer.start()
        try:
            try:
                told = talk(process) if talk else ""
            except subprocess.CalledProcessError as error:
                # A client of a server that was ended; a server that was not is ended now.
                told = str(error)
                group.kill()
            status = process.wait()
            seconds = time.monotonic() - began
        finally:
            timer.cancel()
            if process.poll() is None:
                group.kill()
                process.kill()
                process.wait()
            reader.join()
            process.stdout.close()
    total.update(told.encode())
    return status, seconds, total.hexdigest(), u.read(f"{folder}/stderr")


class Footprint:
    """Samples a group's anonymous memory every 20 ms between enter and exit."""

    def __init__(self, group):
        self.group, self.peak_bytes, self.ended = group, 0, threading.Event()

    def __enter__(self):
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()
        return self

    def sample(self):
        while not self.ended.wait(0.02):
            self.peak_bytes = max(self.peak_bytes, self.group.anonymous_bytes())

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


class Kinds:
    """Runs commands under kinds; `backing` is the folder of zfolio's swap area, and on the disk of the swap file, which
    serves at most `reads_a_second`."""

    def __init__(self, undo, zfolio, swap_bytes, compressor="lzo", backing="/var/tmp", options=(), reads_a_second=None):
        self.undo, self.zfolio, self.swap_bytes = undo, os.path.abspath(zfolio), swap_bytes
        self.compressor, self.backing, self.options = compressor, backing, list(options)
        self.throttle = (device_of(backing), reads_a_second) if reads_a_second else None
        self.device = None

    def run(self, kind, command, memory_bytes, timeout_s=900, talk=None):
        """`memory_bytes` is the group's limit or that of `zfolio run`. `talk` is called with the process and returns
        what it was told. The kernel may kill: then the turn is tried again."""
        if kind == "alone" or kind.startswith("zfolio"):
            return self.once(kind, command, memory_bytes, timeout_s, talk)
        for left in reversed(range(TURNS)):
            steps = len(self.undo.steps)
            try:
                if kind == "swap":
                    zswap.set_up_without(self.undo, self.swap_bytes)
                elif kind == "zram":
                    self.device = zram.set_up(self.undo, self.swap_bytes, "lz4")
                else:
                    zswap.set_up(self.undo, self.swap_bytes, self.compressor, POOL_PERCENT)
                return self.once(kind, command, memory_bytes, timeout_s, talk)
            except Killed:
                if left == 0:
                    raise
            finally:
                for failure in self.undo.all(to=steps):
                    print(failure)

    def words(self, kind, memory_bytes, summary):
        if not kind.startswith("zfolio"):
            return []
        area = ["--backing", f"{self.backing},size={self.swap_bytes}"]
        chosen = [] if "ram" in kind.split() else area
        for word in kind.split()[1:]:
            if word == "ram":
                continue
            chosen += ["--max-pool-percent", word[:-1]] if word.endswith("%") else ["--compressor", word]
        return [self.zfolio, "run", "--quiet", "--memory", str(memory_bytes), "--json", summary,
                *chosen, *self.options, "--"]

    def once(self, kind, command, memory_bytes, timeout_s, talk):
        group = Cgroup(self.undo, memory_bytes if kind in ("swap", "zswap", "zram") else None, self.throttle)
        summary = None
        with tempfile.TemporaryDirectory() as folder, zswap.Watch() as watch:
            written = device_written_bytes(self.backing)
            words = [*self.words(kind, memory_bytes, f"{folder}/summary.json"), *command]
            with Footprint(group) as footprint:
                status, seconds, answer, errors = follow(words, group, folder, timeout_s, talk)
            cpu_s, faults, kills = group.cpu_seconds(), group.major_faults(), group.oom_kills()
            written = device_written_bytes(self.backing) - written
            left = group.processes_left()
            failures = group.remove()
            if status == 0 and os.path.exists(f"{folder}/summary.json"):
                with open(f"{folder}/summary.json") as file:
                    summary = json.load(file)
        if status != 0 or left:
            if kills:
                raise Killed(f"{kind}: {kills} killed for want of memory")
            late = f" after {seconds:.0f} s" + (", too late" if seconds >= timeout_s else "")
            said = f"exit status {status}{late}, {left} processes left\n{errors[-2000:]}"
            raise Failed(f"{' '.join(words)}\n{said}")
        if failures:
            raise Failed("\n".join(failures))
        counters = summary["counters"] if summary else watch.pages
        total = memory_bytes
        if kind == "zswap" and group.version == 1:
            total += watch.pool_peak_bytes
        elif kind == "zram":
            total += zram.pool_peak_bytes(self.device)
        # What comes from an area goes through zfolio's pool, and not through the kernel's.
        brought = counters["zswpin"] + (0 if summary else counters["pswpin"])
        return Seen(seconds, cpu_s, counters["pswpin"], counters["pswpout"], brought,
                    faults + (counters["faults"] if summary else 0), written,
                    footprint.peak_bytes, total, answer, summary)
