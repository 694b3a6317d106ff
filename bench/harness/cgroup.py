"""A control group around one program: its memory limit, its peak, and the CPU time of everything in it.

CPU time comes from here and not from rusage, so that an engine counts whether it is a thread, a child or a
process that somebody else waits for. Version 1 needs two groups (memory, cpuacct), version 2 one.
"""

import os
import time

from . import undo as u


def mounts():
    """Controller -> (mount point, path of this process below it), and version 2's as ``""``."""
    paths = {}
    for line in u.read("/proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            paths[name] = path
    found = {}
    for line in u.read("/proc/mounts").splitlines():
        _, point, kind, options = line.split()[:4]
        if kind == "cgroup2" and "memory" in u.read(point + "/cgroup.controllers").split():
            found[""] = point, paths.get("", "/")
        elif kind == "cgroup":
            for name in options.split(","):
                if name in ("memory", "cpuacct", "blkio"):
                    found[name] = point, paths.get(name, "/")
    return found


def make_group(undo, mount, needed):
    """A new group as near to our own as it can be: below it, else further up (version 2 forbids groups below processes)."""
    point, path = mount
    while True:
        folder = os.path.normpath(f"{point}/{path}/zfolio-bench-{os.getpid()}-{time.monotonic_ns() // 1000}")
        if os.path.isdir(os.path.dirname(folder)):
            try:
                undo.plan("remove group", folder)
                os.mkdir(folder)
                if os.path.exists(f"{folder}/{needed}"):
                    return folder
                os.rmdir(folder)
            except OSError as error:
                failure = error
            else:
                failure = FileNotFoundError(2, f"no {needed} in a new group", folder)
        if path == "/":
            raise failure
        path = os.path.dirname(path)


class Cgroup:
    """One program's group(s); `limit_bytes` None is no limit. `throttle` is a device's number and the reads that it serves
    in a second, swap's too."""

    def __init__(self, undo, limit_bytes=None, throttle=None):
        found = mounts()
        self.version = 1 if {"memory", "cpuacct"} <= found.keys() else 2
        if self.version == 2 and "" not in found:
            raise FileNotFoundError(2, "no memory controller is mounted", "/sys/fs/cgroup")
        self.undo, self.steps = undo, len(undo.steps)
        if self.version == 1:
            self.memory = make_group(undo, found["memory"], "memory.limit_in_bytes")
            self.cpu = make_group(undo, found["cpuacct"], "cpuacct.usage")
        else:
            self.memory = self.cpu = make_group(undo, found[""], "memory.max")
        self.groups = {self.memory, self.cpu}
        if throttle:
            self.groups.add(self.throttle(found, *throttle))
        if limit_bytes is not None:
            u.write(self.memory + ("/memory.limit_in_bytes" if self.version == 1 else "/memory.max"), limit_bytes)

    def throttle(self, found, device, reads_a_second):
        """The group in which a device serves so many reads a second."""
        if self.version == 2:
            u.write(self.memory + "/io.max", f"{device} riops={reads_a_second}")
            return self.memory
        group = make_group(self.undo, found["blkio"], "blkio.throttle.read_iops_device")
        u.write(group + "/blkio.throttle.read_iops_device", f"{device} {reads_a_second}")
        return group

    def enter(self):
        """Called in the child, before it becomes the program."""
        for group in self.groups:
            u.write(group + "/cgroup.procs", os.getpid())

    def cpu_seconds(self):
        if self.version == 1:
            return int(u.read(self.cpu + "/cpuacct.usage")) / 1e9
        return int(u.read(self.cpu + "/cpu.stat").split()[1]) / 1e6

    def peak_bytes(self):
        """Highest charge. Version 1 does not charge zswap's pool, version 2 does."""
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        return int(u.read(f"{self.memory}/{name}"))

    def oom_kills(self):
        """How many processes the kernel has killed for want of memory."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        lines = u.read(f"{self.memory}/{name}").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def major_faults(self):
        """Faults for which a page was read from a disk, or taken from zswap."""
        return self.stat("total_pgmajfault", "pgmajfault")

    def anonymous_bytes(self):
        """Memory of no file that is there now."""
        return self.stat("total_rss", "anon")

    def stat(self, *names):
        """A field of memory.stat, by its names in versions 1 and 2."""
        name = names[self.version - 1]
        return next(int(line.split()[1]) for line in u.read(f"{self.memory}/memory.stat").splitlines()
                    if line.split()[0] == name)

    def kill(self):
        u.kill_group(self.memory)

    def processes_left(self):
        """How many processes are still there a second after the program's end: there should be none."""
        for _ in range(100):
            left = u.read(self.memory + "/cgroup.procs").split()
            if not left:
                return 0
            time.sleep(0.01)
        return len(left)

    def remove(self):
        return self.undo.all(to=self.steps)


class NoGroup:
    """Where no group may be made, as in most containers: the program runs, and its CPU time and peak are not known."""

    version = None

    def enter(self):
        pass

    def cpu_seconds(self):
        return None

    def peak_bytes(self):
        return None

    def processes_left(self):
        return 0

    def kill(self):
        pass

    def remove(self):
        return []
