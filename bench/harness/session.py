"""One benchmark's time on a machine: nobody else's in this checkout, and all is put back at its end."""

import contextlib
import fcntl
import os
import signal
import sys

from . import report, zswap
from .programs import OUT
from .undo import Undo

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def say(text):
    print(text, flush=True)


@contextlib.contextmanager
def session(name):
    """Says which machine it is, and yields what must be undone; what a killed run has left behind is undone first."""
    os.makedirs(OUT, exist_ok=True)
    lock = open(f"{OUT}/lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"{name}: another run is under way here")
    undo = Undo(f"{OUT}/undo.json")
    for failure in undo.all():
        say(failure)
    for number in SIGNALS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    machine = report.machine()
    say(f"{machine['cpus']} CPUs ({machine['cpu']}), {machine['memory_bytes'] / report.GIB:.0f} GiB, Linux "
        f"{machine['kernel']}, load average {machine['load_average']:.1f}, commit {report.commit()}")
    try:
        yield undo
    except zswap.Unavailable as reason:
        sys.exit(f"{name}: the kernel cannot be compared with: {reason}")
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        for failure in undo.all():
            say(f"{name}: {failure}")
