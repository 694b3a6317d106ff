"""What must be put back when the benchmark ends, in whatever way it ends.

Each change of the machine is first written to a file and then made; at the end the file is worked off backwards.
A run that was killed leaves the file behind, and the next one works it off before it starts.
"""

import ctypes
import errno
import json
import os
import signal
import time

LIBC = ctypes.CDLL(None, use_errno=True)


def read(path):
    with open(path) as file:
        return file.read().strip()


def write(path, value):
    with open(path, "w") as file:
        file.write(str(value))


class Undo:
    def __init__(self, path):
        self.path = path
        self.steps = []
        if os.path.exists(path):
            with open(path) as file:
                self.steps = json.load(file)

    def plan(self, what, path, value=None):
        """Remembers how to undo what the caller does next."""
        self.steps.append([what, path, value])
        self.save()

    def set(self, path, value):
        """Sets a kernel parameter, and its old value back at the end."""
        old = read(path)
        if old != str(value):
            self.plan("set", path, old)
            write(path, value)

    def choose(self, path, value):
        """The same of a parameter that shows all its values, and the one that it has in brackets."""
        old = read(path).split("[")[1].split("]")[0]
        if old != value:
            self.plan("set", path, old)
            write(path, value)

    def save(self):
        with open(self.path + ".new", "w") as file:
            json.dump(self.steps, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self.path + ".new", self.path)

    def all(self, to=0):
        """Undoes the newest steps until `to` are left. Returns what could not be undone, in words."""
        failures = []
        while len(self.steps) > to:
            what, path, value = self.steps[-1]
            try:
                DO[what](path, value)
            except OSError as error:
                failures.append(f"could not undo: {what} {path}: {error.strerror}")
            self.steps.pop()
            self.save()
        if not self.steps and os.path.exists(self.path):
            os.unlink(self.path)
        return failures


def remove_file(path, _):
    if os.path.exists(path):
        os.unlink(path)


def swap_off(path, _):
    swapped = any(line.split()[0] == path for line in read("/proc/swaps").splitlines())
    if swapped and LIBC.swapoff(path.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def remove_zram(name, _):
    """Takes a device of zram away, and what is swapped to it back."""
    if not os.path.exists(f"/sys/block/{name}"):
        return
    swap_off(f"/dev/{name}", None)
    # Who has looked at the device may have it open for a moment more.
    for tries_left in reversed(range(20)):
        try:
            write(f"/sys/block/{name}/reset", 1)
            return write("/sys/class/zram-control/hot_remove", name.removeprefix("zram"))
        except OSError as error:
            if error.errno != errno.EBUSY or tries_left == 0:
                raise
            time.sleep(0.05)


def kill_group(path):
    for pid in read(path + "/cgroup.procs").split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            pass


def remove_group(path, _):
    """Removes a control group, and first ends what still runs in it."""
    for _ in range(100):
        if not os.path.isdir(path):
            return
        kill_group(path)
        try:
            os.rmdir(path)
            return
        except OSError as error:
            failure = error
        time.sleep(0.05)
    raise failure


DO = {"set": write, "remove file": remove_file, "swapoff": swap_off, "remove zram": remove_zram,
      "remove group": remove_group}
