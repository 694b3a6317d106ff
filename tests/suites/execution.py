"""One execution of one item of a suite: alone, or under zfolio.

An *item* is what a suite can run by itself: a test file, a stressor, a unit. A *case* is what an item reports a result for.
"""

import dataclasses
import json
import os
import re
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


@dataclasses.dataclass(frozen=True)
class Way:
    """How items are run; `options` are those of `zfolio run`, None without it, and `memory` is the limit of those that have none of their own.

    `patience_s` is for a way that is slow by design: an item that takes longer is ended, and what it got done is compared.
    """

    name: str
    options: tuple = None
    memory: str = None
    patience_s: int = None


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
    """What came of it: the result of each case, how the item ended, what zfolio has to say."""

    cases: dict
    end: str
    seconds: float
    said: list
    summary: dict = None

    def result(self, case):
        if case == END:
            return self.end
        return self.cases.get(case, "not reached" if self.crashed() else "absent")

    def crashed(self):
        return self.end in CRASHES or self.end in ("timeout", SLOW)

    def out_bytes(self):
        """How much memory was compressed and moved out, in all."""
        folios = (self.summary or {}).get("folios", {}).get("out", {})
        return sum(int(size[:-1]) * 1024 * count for size, count in folios.items())

    def stopped(self):
        return any(" stopped" in line for line in self.said)


# The case that an item's end is, and the end of an item whose way ran out of patience.
END, SLOW = "(end)", "slow"


def end_of(status):
    """A shell's, zfolio's and subprocess' way to say that a signal ended a program are one."""
    number = -status if status < 0 else status - 128
    if number > 0:
        try:
            return signal.Signals(number).name
        except ValueError:
            pass
    return f"exit {status}"


def execute(item, way, zfolio, logs):
    """Runs the item in a folder of its own, which goes afterwards, with all of its processes."""
    # Sockets' addresses have 107 bytes, so the folder's path is a short one.
    folder = tempfile.mkdtemp(prefix="suites-")
    summary = f"{folder}/zfolio.json"
    os.mkdir(f"{folder}/item")
    words = item.command(f"{folder}/item")
    if way.options is not None:
        memory = way.memory if way.patience_s else item.memory or way.memory
        words = [zfolio, "run", "--quiet", "--json", summary, "--memory", memory, *way.options, "--", *words]
    path = f"{logs}/{item.suite}/{item.name.replace('/', '.')}.{way.name}.log"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ZFOLIO"))}
    environment = {**keep, "PATH": PATH, "LC_ALL": "C.UTF-8", "TERM": "dumb", "TMPDIR": f"{folder}/item", MARK: folder}
    with open(path, "wb") as log:
        begun = time.monotonic()
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=f"{folder}/item",
                                   env=environment, start_new_session=True)
        try:
            end = end_of(process.wait(way.patience_s or item.timeout_s))
        except subprocess.TimeoutExpired:
            end = SLOW if way.patience_s else "timeout"
            # zfolio ends with its program, and says what it has done.
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                pass
        finally:
            seconds = time.monotonic() - begun
            end_all(folder)
            process.wait()
    with open(path, errors="replace") as log:
        text = log.read()
    execution = Execution(item.read(f"{folder}/item", text, end), end, seconds, re.findall("^zfolio: .*", text, re.M))
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
