"""Tables in DuckDB: orders joined with customers, grouped, and sorted by a window; prints a hash of each answer.

    tables.py ROWS
"""

import hashlib
import sys

import duckdb

rows = int(sys.argv[1])
base = duckdb.connect()
base.execute("SET threads = 2; SET memory_limit = '16GB'; SET temp_directory = ''; SET preserve_insertion_order = true")
base.execute(f"""
    CREATE TABLE customers AS SELECT i AS id, 'customer ' || (i * 7919 % 1000003) AS name, i % 97 AS town
        FROM range({rows // 20}) t(i);
    CREATE TABLE orders AS SELECT i AS id, (i * 2654435761) % {rows // 20} AS customer,
        (i * 40503 % 100000) / 100 AS price,
        'order of ' || (i % 365) || ' days, at the door of a neighbour, ' || (i * 31 % 977) AS note
        FROM range({rows}) t(i)""")
QUESTIONS = [
    "SELECT town, count(*), round(sum(price), 2) FROM orders JOIN customers ON customer = customers.id"
    " GROUP BY town ORDER BY town",
    "SELECT note, count(*) AS n, max(price) FROM orders GROUP BY note ORDER BY n DESC, note LIMIT 1000",
    "SELECT id, note FROM (SELECT *, row_number() OVER (PARTITION BY customer ORDER BY price DESC, id) AS place"
    " FROM orders) WHERE place = 1 ORDER BY note, id LIMIT 5000",
    "SELECT md5(string_agg(name, '' ORDER BY name, id)) FROM customers",
]
for question in QUESTIONS:
    print(hashlib.sha256(repr(base.execute(question).fetchall()).encode()).hexdigest()[:32], flush=True)
