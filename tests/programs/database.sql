-- A shop's database in memory: two tables, an index on each, joins, groups, updates and deletes.
-- @customers and @orders are set on the command line (.parameter set @orders 3000000).

.bail on

CREATE TABLE customer(id INTEGER PRIMARY KEY, name TEXT, city TEXT, since INTEGER);
CREATE TABLE purchase(id INTEGER PRIMARY KEY, customer INTEGER, price REAL, day INTEGER, note TEXT);
CREATE TABLE word(id INTEGER PRIMARY KEY, word TEXT);

INSERT INTO word(word) VALUES
  ('paid'), ('late'), ('order'), ('parcel'), ('returned'), ('address'), ('checked'), ('twice'),
  ('customer'), ('called'), ('back'), ('about'), ('the'), ('missing'), ('invoice'), ('gift');

-- SQLite's own random() has no seed: a multiplicative hash of the row's number takes its place.
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < @customers)
INSERT INTO customer
SELECT i, 'Customer ' || (i * 2654435761 % 99991), 'City ' || (i * 40503 % 977), 20000101 + i % 8000 FROM n;

WITH RECURSIVE
  n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < @orders),
  h(i, a, b) AS (SELECT i, i * 2654435761 % 4294967291, i * 2246822519 % 4294967291 FROM n)
INSERT INTO purchase
SELECT i, a % @customers + 1, (b % 100000) / 100.0, a % 3650,
  (SELECT word FROM word WHERE id = a % 16 + 1) || ' ' || (SELECT word FROM word WHERE id = b % 16 + 1) || ' ' ||
  (SELECT word FROM word WHERE id = a / 16 % 16 + 1) || ' ' || (SELECT word FROM word WHERE id = b / 16 % 16 + 1) ||
  ' no. ' || ((a * 3 + b) % 1000003) || ', seen by ' || (SELECT word FROM word WHERE id = a / 256 % 16 + 1)
FROM h;

CREATE INDEX purchase_customer ON purchase(customer, day);
CREATE INDEX purchase_note ON purchase(note);

SELECT 'rows', (SELECT count(*) FROM customer), (SELECT count(*) FROM purchase);
SELECT 'sums', sum(price), sum(day), sum(length(note)) FROM purchase;
SELECT 'notes', note, count(*) FROM purchase GROUP BY note ORDER BY count(*) DESC, note LIMIT 5;
SELECT 'cities', city, count(*), round(sum(price), 2)
  FROM purchase JOIN customer ON customer.id = purchase.customer
  GROUP BY city ORDER BY 4 DESC, city LIMIT 10;

UPDATE purchase SET note = upper(note), price = price * 1.19 WHERE id % 5 = 0;
DELETE FROM purchase WHERE day < 365;

SELECT 'after', count(*), sum(price), sum(day), sum(unicode(note)) FROM purchase;
SELECT 'days', sum(day * price) FROM purchase WHERE customer % 10 = 3;
PRAGMA integrity_check;
