"""Keeps a journal of orders in memory, answers questions about the last ones, and reads all of it once, in order.

    python3 journal.py [ORDERS [SEED]]

With 1,800,000 orders CPython needs more than 1 GiB. An order is a dict of short texts, of which no two orders have the
same: numbers, names, articles, prices, notes and a hash. Most of that is cold, as in any program that keeps what it
has seen.
"""

import hashlib
import random
import sys

NAMES = ["Ada", "Boris", "Chloe", "Dmitri", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kofi", "Lena"]
GOODS = ["lamp", "desk", "chair", "shelf", "sofa", "mirror", "carpet", "stool", "bench", "table", "frame", "clock"]
NOTES = ["paid by card", "paid on delivery", "leave it with a neighbour", "deliver after five o'clock",
         "second attempt, customer called back", "returned, refund pending", "part of a larger order"]

# A question is about an order this part of the journal ago, on the average.
RECENT = 0.005


def order(number, rng):
    """Returns the order of this number."""
    name, good, note = rng.choice(NAMES), rng.choice(GOODS), rng.choice(NOTES)
    seal = hashlib.sha256(f"{number} {name} {good} {note}".encode()).hexdigest()
    return {
        "id": f"order-{number:08}",
        "customer": f"{name} {number * 7919 % 100_003}",
        "article": f"{good}, size {number % 9 + 1}, lot {number // 250}",
        "price": f"{number % 397 + 4}.{number % 100:02}",
        "note": f"{note}; seen by clerk {number % 41}",
        "seal": seal[:12],
    }


def text(entry):
    """Returns an order as a line."""
    return " ".join(entry.values()).encode()


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_800_000
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    journal = [order(number, rng) for number in range(count)]
    print(f"{count:,} orders", flush=True)

    answers = hashlib.sha256()
    for _ in range(count // 10):
        ago = int(rng.expovariate(1 / (RECENT * count)))
        answers.update(text(journal[-1 - min(ago, count - 1)]))
    print(f"{count // 10:,} answers ", answers.hexdigest()[:32], flush=True)

    journal_hash = hashlib.sha256()
    for entry in journal:
        journal_hash.update(text(entry))
    print("all of the journal", journal_hash.hexdigest()[:32], flush=True)


if __name__ == "__main__":
    main()
