"""One execution of one item of a suite: alone, or under zfolio.

An *item* is what a suite can run by itself: a test file, a stressor, a unit. A *case* is what an item reports a result for.
"""

import dataclasses
import fnmatch
import json
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time

# An environment variable that each process of an execution has, and by which those that stay behind are found.
MARK = "ZFOLIO_SUITES_ITEM"
# Interpreters of version managers are scripts in front of the real ones; the suites' packages belong to Debian's.
PATH = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
# Ends that no test program has by itself, so that one of them counts however seldom it is seen.
CRASHES = {"SIGSEGV", "SIGBUS", "SIGKILL", "SIGILL", "SIGABRT", "exit 125"}


def own_limit(limits, name):
    """An item's own limit, by the first pattern that its name fits; None where there is none."""
    return next((memory for pattern, memory in limits.items() if fnmatch.fnmatchcase(name, pattern)), None)


@dataclasses.dataclass(frozen=True)
class Way:
    """How items are run; `options` are those of `zfolio run`, None without it.

    `memory` is the limit; where `is_least` is set, of items that have none of their own, and are not larger.
    `patience_s` is for a way that is slow by design: an item that takes longer is ended, and what it got done is
    compared. `reached` is the part of all cases that is to be done in that time.
    """

    name: str
    options: tuple = None
    memory: str = None
    is_least: bool = False
    patience_s: int = None
    reached: float = 0

    def timeout_s(self, item, alone):
        """How long an item may take that is known from its execution alone. Where the machine is busy that took longer, too."""
        if self.patience_s:
            return min(3 * self.patience_s, max(self.patience_s, SLOWER * alone.seconds))
        return min(item.timeout_s, max(LEAST_S, SLOWER * alone.seconds))

    def limit(self, item, alone):
        """The limit in bytes of an item that is known from its execution alone."""
        if not self.is_least:
            return size(self.memory)
        if item.memory:
            return size(item.memory)
        return max(size(self.memory), int(alone.largest_bytes * PART))


@dataclasses.dataclass
class Item:
    """`command` is called with the folder in which the item runs, and gives its words; `read` gives the cases of an execution."""

    suite: str
    name: str
    command: object
    read: object
    timeout_s: int = 600
    # Its small limit, where it is another than its suite's.
    memory: str = None


@dataclasses.dataclass
class Execution:
    """What came of it: the result of each case, how the item ended, what zfolio has to say.

    `largest_bytes` is what the largest process of its tree held, and `cpu_s` the processor time of all, with engines'.
    """

    cases: dict
    end: str
    seconds: float
    said: list
    largest_bytes: int = 0
    cpu_s: float = 0
    summary: dict = None

    def result(self, case):
        if case == END:
            return self.end
        if case == STOPS:
            return "some" if self.stopped() else "none"
        return self.cases.get(case, "not reached" if self.crashed() else "absent")

    def crashed(self):
        return self.end in CRASHES or self.end in UNENDED

    def out_bytes(self):
        """How much memory was compressed and moved out, in all."""
        return (self.summary or {}).get("counters", {}).get("zswpout", 0) * 4096

    def stopped(self):
        return any(" stopped" in line for line in self.said)


# The cases that an item's end is, and that zfolio stopped nobody: who waits for a process may well take its end for its
# own doing.
END, STOPS = "(end)", "(stops)"
# The end of an item whose way ran out of patience.
SLOW = "slow"
# Ends of items that took too long.
UNENDED = ("timeout", SLOW)


# Some items are far larger than most of their suite: their limit is this part of what their largest process holds
# alone.
PART = 0.9
# With zfolio an item has so many times as long as it took alone; squeezed, it has this long in any case.
SLOWER, LEAST_S = 10, 120


def size(text):
    return int(text[:-1]) << {"M": 20, "G": 30}[text[-1]]


def end_of(status):
    """A shell's, zfolio's and subprocess' way to say that a signal ended a program are one."""
    number = -status if status < 0 else status - 128
    if number > 0:
        try:
            return signal.Signals(number).name
        except ValueError:
            pass
    return f"exit {status}"


def wait(process, timeout_s):
    """Waits for the process: how it ended, or None, and what it and its children used."""
    descriptor = os.pidfd_open(process.pid)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    has_ended = poll.poll(timeout_s * 1000)
    os.close(descriptor)
    if not has_ended:
        return None, None
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return end_of(process.returncode), usage


def execute(item, way, zfolio, logs, alone=None):
    """Runs the item in a folder of its own, which goes afterwards, with all of its processes.

    `alone` is its first execution, which tells its limits.
    """
    # Sockets' addresses have 107 bytes, so the folder's path is a short one.
    folder = tempfile.mkdtemp(prefix="suites-")
    summary = f"{folder}/zfolio.json"
    os.mkdir(f"{folder}/item")
    words = item.command(f"{folder}/item")
    if way.options is not None:
        words = [zfolio, "run", "--quiet", "--json", summary, "--memory", str(way.limit(item, alone)), *way.options, "--", *words]
    timeout_s = way.timeout_s(item, alone) if alone else item.timeout_s
    path = f"{logs}/{item.suite}/{item.name.replace('/', '.')}.{way.name}.log"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ZFOLIO"))}
    environment = {**keep, "PATH": PATH, "LC_ALL": "C.UTF-8", "TERM": "dumb", "TMPDIR": f"{folder}/item", MARK: folder}
    with open(path, "wb") as log:
        begun = time.monotonic()
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=f"{folder}/item",
                                   env=environment, start_new_session=True)
        try:
            end, usage = wait(process, timeout_s)
            if end is None:
                end = SLOW if way.patience_s else "timeout"
                # zfolio ends with its program, and says what it has done.
                process.terminate()
                _, usage = wait(process, 10)
        finally:
            seconds = time.monotonic() - begun
            end_all(folder)
            process.wait()
    with open(path, errors="replace") as log:
        text = log.read()
    # What zfolio says comes wherever the item's own output is.
    said = re.findall("zfolio: .*", text)
    execution = Execution(item.read(f"{folder}/item", re.sub("zfolio: .*\n", "", text), end), end, seconds, said)
    if usage:
        execution.largest_bytes, execution.cpu_s = usage.ru_maxrss << 10, usage.ru_utime + usage.ru_stime
    if os.path.exists(summary) and os.path.getsize(summary):
        with open(summary) as file:
            execution.summary = json.load(file)
    shutil.rmtree(folder, ignore_errors=True)
    return execution


def end_all(mark):
    """Kills whatever has the mark in its environment or works in the folder, until nothing does.

    redis-server writes its title over its environment; its working directory still tells.
    """
    needle = f"{MARK}={mark}".encode()
    for _ in range(100):
        found = [pid for pid in filter(str.isdigit, os.listdir("/proc")) if needle in environment_of(pid) or directory_of(pid).startswith(mark)]
        if not found:
            return
        for pid in found:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)


def environment_of(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def directory_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""
