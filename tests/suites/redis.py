"""redis' own suite (runtest), from Debian's source package, on the programs of its package redis-tools: an item for each unit."""

import os
import re
import shutil
import subprocess
import threading

from .execution import Item, own_limit

NAME = "redis"
MEMORY = "32M"
SOURCE = os.path.abspath("target/suites/redis")
# Debian has the server under the name of two of its tools, and redis-server without a service is a link to one of them.
PROGRAMS = {
    "redis-server": "redis-check-rdb", "redis-sentinel": "redis-check-rdb", "redis-check-rdb": "redis-check-rdb",
    "redis-check-aof": "redis-check-aof", "redis-cli": "redis-cli", "redis-benchmark": "redis-benchmark",
}

EXCLUDED = {
    "unit/printver": "has no case",
    "unit/tls": "has no case without certificates",
}

SHORT = "integration/rdb"

# Several servers and their children at a time, each with an engine of its own; or one that holds more than 32 MiB for
# most of the time.
LIMITS = {"integration/rdb": "32M", "integration/replication": "128M", "integration/*": "64M", "unit/aofrw": "64M", "unit/cluster*": "64M",
          "unit/geo": "48M", "unit/latency-monitor": "48M", "unit/memefficiency": "256M", "unit/type/set": "64M"}

# (Pattern of "ITEM CASE", reason.)
EXPECTED = [
    ("integration/rdb Test child sending info", "redis counts the child's copies in smaps, where those that are out are not"),
]

# Runs side by side begin at other ports.
next_port = 12000 + os.getpid() % 49 * 200
port_lock = threading.Lock()


def version():
    said = subprocess.run(["redis-cli", "--version"], capture_output=True, text=True).stdout.strip()
    return said.replace("redis-cli", "redis")


def missing():
    if not shutil.which("tclsh"):
        return "tclsh is not there: tools/setup suites installs it"
    if not shutil.which("redis-check-rdb"):
        return "redis-tools is not there: tools/setup suites installs it"
    if not os.path.exists(f"{SOURCE}/tests/test_helper.tcl"):
        return "redis' source package is not there: tools/setup suites fetches it where the mirror has it"
    return None


def items(short):
    with open(f"{SOURCE}/tests/test_helper.tcl") as file:
        listed = re.search(r"set ::all_tests {(.*?)}", file.read(), re.S)[1].split()
    wanted = SHORT.split() if short else [name for name in listed if name not in EXCLUDED]
    return [Item(NAME, name, command(name), read, memory=own_limit(LIMITS, name)) for name in wanted]


def command(name):
    def words(folder):
        # The suite writes beneath its own folder, so that each execution has a copy.
        shutil.copytree(f"{SOURCE}/tests", f"{folder}/tests", symlinks=True)
        os.mkdir(f"{folder}/src")
        for program, file in PROGRAMS.items():
            os.symlink(shutil.which(file), f"{folder}/src/{program}")
        for file in os.listdir(f"{SOURCE}/src"):
            if file.endswith((".h", ".tcl")) or file == "commands":
                os.symlink(f"{SOURCE}/src/{file}", f"{folder}/src/{file}")
        return ["tclsh", "tests/test_helper.tcl", "--single", name, "--clients", "1", "--durable",
                "--baseport", str(ports()), "--portcount", "100"]
    return words


def ports():
    """The first of a hundred ports that no execution beside this one has: they and those for clusters, 10,000 above, are not ephemeral."""
    global next_port
    with port_lock:
        next_port = next_port + 200 if next_port < 21600 else 12000
        return next_port


def read(_folder, text, _end):
    cases = {}
    for result, case in re.findall(r"^\[(ok|err|skip|ignore|exception|TIMEOUT)\]: (.*)$", text, re.M):
        name = re.sub(r" \(\d+ ms\)$| in tests/\S+\.tcl$", "", case)
        number, unique = 2, name
        while unique in cases:
            unique, number = f"{name} #{number}", number + 1
        cases[unique] = result
    return cases
