"""The kernel's compressed swap, set up for a comparison and watched while it works."""

import ctypes
import mmap
import os
import struct
import threading

from . import undo as u

PARAMETERS = "/sys/module/zswap/parameters"
PAGE = mmap.PAGESIZE
# Ahead of any other swap area: the flag that a priority is given, and the highest there is.
SWAP_FLAGS = 0x8000 | 0x7FFF
SWAP_FOLDERS = ["/var/tmp", "target/bench"]


class Unavailable(Exception):
    """Why the kernel cannot be compared with; the sentence is for the user."""


def set_up(undo, swap_bytes, compressor, pool_percent=None):
    """Turns zswap on over a swap file of its own: with a pool of `pool_percent` of the machine, or one so large that
    nothing is written to disk."""
    if not os.path.isdir(PARAMETERS):
        raise Unavailable("this kernel has no zswap (CONFIG_ZSWAP)")
    try:
        undo.set(f"{PARAMETERS}/compressor", compressor)
        if u.read(f"{PARAMETERS}/compressor") != compressor:
            raise Unavailable(f"this kernel's zswap has no {compressor}")
        need = 100 * swap_bytes // (os.sysconf("SC_PHYS_PAGES") * PAGE) + 1
        if pool_percent is not None:
            undo.set(f"{PARAMETERS}/max_pool_percent", pool_percent)
        elif int(u.read(f"{PARAMETERS}/max_pool_percent")) < need:
            undo.set(f"{PARAMETERS}/max_pool_percent", min(need, 100))
        undo.set(f"{PARAMETERS}/enabled", "Y")
        if os.path.exists(f"{PARAMETERS}/shrinker_enabled"):
            undo.set(f"{PARAMETERS}/shrinker_enabled", "N")
    except OSError as error:
        raise Unavailable(f"zswap's parameters may not be set: {error}") from error
    return swap_file(undo, swap_bytes)


def set_up_without(undo, swap_bytes):
    """Turns a swap file on, with zswap off."""
    try:
        if os.path.isdir(PARAMETERS):
            undo.set(f"{PARAMETERS}/enabled", "N")
    except OSError as error:
        raise Unavailable(f"zswap's parameters may not be set: {error}") from error
    return swap_file(undo, swap_bytes)


def swap_file(undo, swap_bytes):
    """Turns a new swap file on; returns its path."""
    reasons = []
    for folder in SWAP_FOLDERS:
        try:
            return swap_on(undo, os.path.abspath(f"{folder}/zfolio-bench-{os.getpid()}.swap"), swap_bytes)
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
    raise Unavailable("no swap file could be turned on (" + "; ".join(reasons) + ")")


def header(size):
    """What mkswap writes: version 1, the last page, no bad pages."""
    page = bytearray(PAGE)
    page[1024:1036] = struct.pack("<III", 1, size // PAGE - 1, 0)
    page[-10:] = b"SWAPSPACE2"
    return page


def swap_on(undo, path, size):
    steps = len(undo.steps)
    undo.plan("remove file", path)
    with open(path, "wb", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        file.write(header(size))
        file.flush()
        os.fsync(file.fileno())
    undo.plan("swapoff", path)
    if u.LIBC.swapon(path.encode(), SWAP_FLAGS) != 0:
        errno = ctypes.get_errno()
        undo.all(to=steps)
        raise OSError(errno, os.strerror(errno))
    return path


def table(path):
    return {line.split()[0].rstrip(":"): int(line.split()[1]) for line in u.read(path).splitlines()}


def pool_now():
    """Bytes of the pool and of the pages in it, for the whole machine."""
    meminfo = table("/proc/meminfo")
    return meminfo.get("Zswap", 0) << 10, meminfo.get("Zswapped", 0) << 10


class Watch:
    """Samples the pool every 10 ms, and counts pages by /proc/vmstat, between enter and exit."""

    COUNTERS = ["zswpout", "zswpin", "zswpwb", "pswpout", "pswpin", "swpout_zero", "swpin_zero"]

    def __enter__(self):
        self.pool_peak_bytes = self.stored_peak_bytes = self.pool_at_stored_peak_bytes = 0
        self.before = table("/proc/vmstat")
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()
        return self

    def sample(self):
        pool_before, stored_before = pool_now()
        while not self.ended.wait(0.01):
            pool, stored = pool_now()
            pool, stored = pool - pool_before, stored - stored_before
            self.pool_peak_bytes = max(self.pool_peak_bytes, pool)
            if stored > self.stored_peak_bytes:
                self.stored_peak_bytes, self.pool_at_stored_peak_bytes = stored, pool

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        after = table("/proc/vmstat")
        self.pages = {name: after.get(name, 0) - self.before.get(name, 0) for name in self.COUNTERS}
