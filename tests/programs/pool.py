"""Work shared among processes by multiprocessing, started by fork and by a fork server. Prints what they found."""

import hashlib
import multiprocessing
import random
import sys

RECORDS = {}


def fill(count):
    chance = random.Random(3)
    words = ["".join(chance.choices("abcdefghijklmnopqrst", k=chance.randint(3, 9))) for _ in range(500)]
    for number in range(count):
        RECORDS[number] = " ".join(chance.choices(words, k=20))


def read(part):
    """What a forked worker has from its parent; it writes to some of its own copies."""
    seen = hashlib.sha256()
    for number in range(part, len(RECORDS), 16):
        seen.update(RECORDS[number].encode())
        if number % 5 == 0:
            RECORDS[number] += " read"
            seen.update(RECORDS[number].encode())
    return seen.hexdigest()


def make(part):
    """What a worker without its parent's memory makes for itself."""
    chance = random.Random(part)
    table = {number: chance.randbytes(40).hex() for number in range(60_000)}
    return hashlib.sha256("".join(table[key] for key in sorted(table, key=table.get)).encode()).hexdigest()


def main():
    fill(int(sys.argv[1]))
    with multiprocessing.get_context("fork").Pool(4) as pool:
        for line in pool.map(read, range(16), chunksize=1):
            print(line)
    with multiprocessing.get_context("forkserver").Pool(3) as pool:
        for line in pool.imap(make, range(9)):
            print(line)
    print(hashlib.sha256("".join(RECORDS.values()).encode()).hexdigest())


if __name__ == "__main__":
    main()
