"""One run of the workload, under one memory system."""

import json
import os
import subprocess
import tempfile
import threading
import time

from . import undo as u
from . import zswap
from .cgroup import Cgroup, NoGroup


class Failed(Exception):
    """A run that ended wrongly; the sentence is for the user."""


def machine_busy_seconds():
    """CPU seconds that the machine has worked since it started, for anybody."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, u.read("/proc/stat").split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


class Run:
    """The figures of one run: `phases` by name, in order, as the workload prints them, and what was seen around it."""

    def __init__(self, undo, workload, limit_bytes=None, zfolio=None, timeout_s=900):
        """`zfolio` is the command in front of the workload, without `--json`, or None."""
        self.phases, self.hash, self.summary = {}, None, None
        steps = len(undo.steps)
        try:
            group = Cgroup(undo, limit_bytes)
        except OSError as error:
            undo.all(to=steps)
            if limit_bytes is not None:
                raise zswap.Unavailable(f"no memory control group can be made: {error.strerror}") from error
            group = NoGroup()
        with tempfile.TemporaryDirectory() as folder:
            summary, errors = f"{folder}/summary.json", f"{folder}/stderr"
            command = [*zfolio, "--json", summary, "--", *workload] if zfolio else workload
            busy = machine_busy_seconds()
            with zswap.Watch() as self.watch, open(errors, "w") as stderr:
                start = time.monotonic()
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True,
                                           preexec_fn=group.enter, start_new_session=True)
                timer = threading.Timer(timeout_s, group.kill)
                timer.start()
                try:
                    self.follow(process, group)
                    status = process.wait()
                    self.seconds = time.monotonic() - start
                finally:
                    timer.cancel()
                    if process.poll() is None:
                        group.kill()
                        process.kill()
                        process.wait()
            self.cpu_s = group.cpu_seconds()
            self.version, self.peak_bytes = group.version, group.peak_bytes()
            busy = machine_busy_seconds() - busy
            self.others_cpus = None if self.cpu_s is None else max(0, busy - self.cpu_s) / self.seconds
            said = u.read(errors)
            left = group.processes_left()
            failures = group.remove()
            if left:
                raise Failed(f"{' '.join(command)}: left {left} processes behind")
            if status != 0 or self.hash is None:
                raise Failed(f"{' '.join(command)}: exit status {status}\n{said}")
            if failures:
                raise Failed("\n".join(failures))
            if zfolio and os.path.exists(summary):
                with open(summary) as file:
                    self.summary = json.load(file)

    def peak_with_pool_bytes(self):
        return None if self.peak_bytes is None else self.peak_bytes + self.uncharged_bytes

    def follow(self, process, group):
        begun = 0
        for line in process.stdout:
            said = json.loads(line)
            if "begin" in said:
                begun = group.cpu_seconds()
            elif "phase" in said:
                said["cpu_s"] = None if begun is None else group.cpu_seconds() - begun
                self.phases[said["phase"]] = said
            elif said.get("done"):
                self.hash, self.shares = said["hash"], said["shares"]
                return

    def figure(self, name):
        """A figure of zfolio's summary, wherever it stands in it; None when it is not there."""

        def find(value):
            if isinstance(value, dict):
                if name in value:
                    return value[name]
                value = list(value.values())
            if isinstance(value, list):
                return next((found for found in map(find, value) if found is not None), None)
            return None

        return find(self.summary)
