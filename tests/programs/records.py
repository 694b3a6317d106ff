"""Builds a dict of records, sorts it in two orders, changes a part of it and prints a hash of each step.

    python3 records.py [RECORDS [SEED]]

With 2,000,000 records CPython needs more than 1 GiB. The records are what such programs hold: short
texts, small and large integers, prices, a few shared strings; nothing is random bytes, and nothing is
chosen to compress well.
"""

import hashlib
import random
import sys

CITIES = ["Aachen", "Bergen", "Cardiff", "Delft", "Espoo", "Funchal", "Girona", "Haarlem", "Izmir", "Jena"]
SYLLABLES = ["an", "be", "cor", "da", "el", "fi", "ga", "hol", "in", "ja", "ki", "lo", "mar", "ne", "os", "pa"]
WORDS = """paid late order parcel returned address checked twice customer called back about the missing
invoice gift wrapped deliver after five leave at the door neighbour signed for it refund pending""".split()


def build(count, rng):
    """Returns the dict: key -> record. Keys come in no order."""
    records = {}
    for number in range(count):
        name = "".join(rng.choices(SYLLABLES, k=3)).capitalize()
        key = f"{name.lower()}-{rng.getrandbits(40):010x}"
        records[key] = {
            "id": number,
            "name": name,
            "city": CITIES[number * 7 % 10],
            "price": round(rng.expovariate(0.01), 2),
            "stock": rng.getrandbits(20),
            "note": " ".join(rng.choices(WORDS, k=8)),
        }
    return records


def digest(records, keys):
    """Hashes the records in the order of `keys`."""
    sha = hashlib.sha256()
    for key in keys:
        record = records[key]
        line = f"{key} {record['id']} {record['name']} {record['city']} {record['price']!r} {record['stock']} {record['note']}\n"
        sha.update(line.encode())
    return sha.hexdigest()


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    records = build(count, rng)
    print(f"{len(records)} records")

    print("by key  ", digest(records, sorted(records)), flush=True)

    # Every fourth record changes, and so does the order by price.
    for number, record in enumerate(records.values()):
        if number % 4 == 0:
            record["price"] = round(record["price"] * 1.19, 2)
            record["note"] = record["note"].upper()
    by_price = sorted(records, key=lambda key: (records[key]["price"], key))
    print("by price", digest(records, by_price), flush=True)


if __name__ == "__main__":
    main()
