"""Reads a mapped file and its memory again and again, where there is not enough for both. Ends once the file stays in the page cache: three rounds without waiting for the disk."""

import mmap
import os
import sys
import time

PAGE = 4096

memory = bytearray(int(sys.argv[1]) << 20)
for at in range(0, len(memory), PAGE):
    memory[at : at + 8] = at.to_bytes(8, "little")

with open("mapped", "wb") as file:
    file.write(os.urandom(int(sys.argv[2]) << 20))
    file.flush()
    os.fsync(file.fileno())
with open("mapped", "rb") as file:
    # What was written is in the page cache; what is read by way of the mapping is to come from the disk.
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
# As code is read: a page here, a page there.
mapped.madvise(mmap.MADV_RANDOM)


def reads():
    """How often this process, and nobody else, has had something read from a disk, in bytes."""
    with open("/proc/self/io") as io:
        return next(int(line.split()[1]) for line in io if line.startswith("read_bytes"))


calm, began = 0, time.monotonic()
while calm < 3 and time.monotonic() < began + 40:
    before = reads()
    sum(mapped[at] for at in range(0, len(mapped), PAGE))
    sum(memory[at] for at in range(0, len(memory), PAGE))
    calm = calm + 1 if reads() - before < len(mapped) // 64 else 0
os.unlink("mapped")
print("it stays" if calm == 3 else "it is read for ever", all(memory[at] == at & 0xFF for at in range(0, len(memory), PAGE)))
