"""CPython's own suite, as Debian's package libpythonX.Y-testsuite has it: an item for each test file."""

import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree

from .execution import Item, own_limit

NAME = "cpython"
PYTHON = "/usr/bin/python3"
MEMORY = "28M"

EXCLUDED = {}

# Many processes at a time, each of which has an engine of 3 to 4 MiB; two of them have a hundred.
LIMITS = {
    "test_compileall": "128M", "test_concurrent_futures": "128M", "test_importlib": "128M", "test_multiprocessing_fork*": "512M",
    "test_multiprocessing_*": "128M", "test_regrtest": "128M",
}

# Cases that do not end here, with or without zfolio.
IGNORED = {"test_socket": "*VSOCK*"}

# What `make test` runs: memory, threads, forks, mappings and files.
SHORT = """
    test_bytes test_fork1 test_gc test_mmap test_resource test_struct test_threading_local test_wait4
"""

# (Pattern of "ITEM CASE", reason.)
EXPECTED = []


def version():
    return subprocess.run([PYTHON, "--version"], capture_output=True, text=True).stdout.strip()


def missing():
    if not os.path.exists(PYTHON):
        return f"{PYTHON} is not there"
    if subprocess.run([PYTHON, "-c", "import test.test_gc"], capture_output=True).returncode:
        return f"{version()} has no test suite: tools/setup suites installs it"
    return None


def items(short):
    listed = subprocess.run([PYTHON, "-m", "test", "--list-tests"], capture_output=True, text=True, check=True).stdout.split()
    wanted = SHORT.split() if short else [name for name in listed if name not in EXCLUDED]
    return [Item(NAME, name, command(name), read, timeout_s=1200, memory=own_limit(LIMITS, name)) for name in wanted]


def command(name):
    # Each case's result is in the XML; the log tells why, and of subtests that failed.
    ignored = ["-i", IGNORED[name]] if name in IGNORED else []
    return lambda folder: [PYTHON, "-m", "test", "-v", "--junit-xml", f"{folder}/results.xml", "--tempdir", folder, *ignored, name]


def read(folder, text, _end):
    cases = {}
    for case in reported(f"{folder}/results.xml"):
        # A case without a name is one whose subtests failed: the log has them.
        if case.get("name"):
            add(cases, stable(case.get("name")), result(case))
    if not cases:
        # The item did not come to its end: the log has what it got done, most of it.
        for case, said in re.findall(r"^\w+ \((test\.[\w.]+)\)(?:\n.*)? \.\.\. (ok|FAIL|ERROR|skipped|expected failure)", text, re.M):
            add(cases, case, {"skipped": "skip", "expected failure": "ok"}.get(said, said.lower()))
    for kind, case, part in re.findall(r"^(FAIL|ERROR): \w+ \(([\w.]+)\)(.*)$", text, re.M):
        cases.setdefault(stable(case + part), kind.lower())
    return cases


def reported(path):
    try:
        return list(ElementTree.parse(path).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return []


def result(case):
    for tag, name in (("error", "error"), ("failure", "fail"), ("skipped", "skip")):
        if case.find(tag) is not None:
            return name
    return "unexpected success" if case.get("outcome") else "ok"


def stable(name):
    """Some names have an address or a path of the run in them."""
    return re.sub(r"/tmp/[\w/.-]+", "/tmp/...", re.sub("0x[0-9a-f]+", "0x...", name))


def add(cases, name, result):
    number = 2
    unique = name
    while unique in cases:
        unique, number = f"{name} #{number}", number + 1
    cases[unique] = result
