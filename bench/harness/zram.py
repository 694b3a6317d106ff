"""The kernel's compressed block device, set up for a comparison."""

import ctypes
import os

from . import undo as u
from . import zswap

CONTROL = "/sys/class/zram-control"


def make(undo, size_bytes, algorithm):
    """Makes a device of its own; returns its name."""
    if not os.path.isdir(CONTROL):
        raise zswap.Unavailable("this kernel has no zram (CONFIG_ZRAM), or its module is not loaded")
    try:
        name = f"zram{u.read(f'{CONTROL}/hot_add')}"
        undo.plan("remove zram", name)
        u.write(f"/sys/block/{name}/comp_algorithm", algorithm)
        u.write(f"/sys/block/{name}/disksize", size_bytes)
    except OSError as error:
        raise zswap.Unavailable(f"no zram device with {algorithm} can be made: {error}") from error
    return name


def set_up(undo, swap_bytes, algorithm):
    """Makes a device of its own and swaps to it, with zswap off; returns the device's name."""
    try:
        if os.path.isdir(zswap.PARAMETERS):
            undo.set(f"{zswap.PARAMETERS}/enabled", "N")
        name = make(undo, swap_bytes, algorithm)
        with open(f"/dev/{name}", "r+b") as device:
            device.write(zswap.header(swap_bytes))
    except OSError as error:
        raise zswap.Unavailable(f"zram cannot be swapped to: {error}") from error
    if u.LIBC.swapon(f"/dev/{name}".encode(), zswap.SWAP_FLAGS) != 0:
        raise zswap.Unavailable(f"zram may not be swapped to: {os.strerror(ctypes.get_errno())}")
    return name


def mm_stat(name):
    """What the device holds: bytes of data, what they come to, and what all of it takes and has taken at most."""
    data, compressed, used, _, used_max = u.read(f"/sys/block/{name}/mm_stat").split()[:5]
    return {"data": int(data), "compressed": int(compressed), "used": int(used), "used_max": int(used_max)}


def pool_peak_bytes(name):
    """The most memory that the device has taken."""
    return mm_stat(name)["used_max"]
