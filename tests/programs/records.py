"""Builds a dict of records, sorts it in two orders, changes a part of it and prints a hash of each step.

    python3 records.py [RECORDS [SEED]]

With 2,000,000 records CPython needs more than 1 GiB. The records are the orders of some shops, which arrive in
batches: texts of a few common words, small and large integers, prices, shared strings. They are sorted by shop (which
visits the batches in another order than they arrived in), and then by price within each day. Nothing is
random bytes, and nothing is there twice to please a compressor.
"""

import hashlib
import random
import sys

SHOPS = ["Aachen", "Bergen", "Cardiff", "Delft", "Espoo", "Funchal", "Girona", "Haarlem", "Izmir", "Jena"]
GOODS = ["lamp", "desk", "chair", "shelf", "sofa", "mirror", "carpet", "stool", "bench", "table", "frame", "clock"]
COLOURS = ["black", "white", "oak", "walnut", "blue", "green", "grey", "red"]
NOTES = ["paid by card", "paid on delivery", "gift wrapped, leave with a neighbour", "deliver after five o'clock",
         "second attempt, customer called back", "returned, refund pending", "part of a larger order"]
BATCH = 500


def build(count, rng):
    """Returns the dict: order number -> record."""
    records = {}
    for number in range(count):
        batch, place = divmod(number, BATCH)
        day, shop = divmod(batch, len(SHOPS))
        key = f"{SHOPS[shop]}-{day:04}-{place:03}"
        good, colour = rng.choice(GOODS), rng.choice(COLOURS)
        records[key] = {
            "number": number,
            "shop": SHOPS[shop],
            "day": day,
            "article": f"{good}, {colour}, size {rng.randrange(1, 9)}",
            "pieces": 1 + int(rng.expovariate(0.7)),
            "price": rng.randrange(4, 400) + 0.95,
            "note": f"{rng.choice(NOTES)}; seen by clerk {rng.randrange(40)}",
        }
    return records


def digest(records, keys):
    """Hashes the records in the order of `keys`."""
    sha = hashlib.sha256()
    for key in keys:
        record = records[key]
        sha.update(f"{key} {' '.join(map(str, record.values()))}\n".encode())
    return sha.hexdigest()


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    records = build(count, rng)
    print(f"{len(records)} records", flush=True)

    print("by key  ", digest(records, sorted(records)), flush=True)

    # Every fourth record changes, and so does the order by price.
    for record in records.values():
        if record["number"] % 4 == 0:
            record["price"] = round(record["price"] * 1.19, 2)
            record["note"] = record["note"].upper()
    by_price = []
    keys = list(records)
    for start in range(0, count, BATCH * len(SHOPS)):
        day = keys[start:start + BATCH * len(SHOPS)]
        by_price += sorted(day, key=lambda key: (records[key]["price"], key))
    print("by price", digest(records, by_price), flush=True)


if __name__ == "__main__":
    main()
