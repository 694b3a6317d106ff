// Buffers outside the heap and a large Map inside it; prints a hash of each step.
//
//     node --max-old-space-size=1500 heap.js ENTRIES BUFFERS [SEED]
'use strict';
const { createHash } = require('crypto');

const WORDS = ('paid late order parcel returned address checked twice customer called back about the ' +
    'missing invoice gift wrapped deliver after five leave at door neighbour').split(' ');
const KIB = 1024;

const entries = Number(process.argv[2]);
const buffers = Number(process.argv[3]);
let state = Number(process.argv[4] ?? 2463534242) >>> 0;

/** A 32-bit xorshift below `bound`. */
function below(bound) {
  state ^= state << 13; state >>>= 0;
  state ^= state >>> 17;
  state ^= state << 5; state >>>= 0;
  return state % bound;
}

function sentence(words) {
  const text = [];
  for (let i = 0; i < words; i++) text.push(WORDS[below(WORDS.length)]);
  return text.join(' ');
}

function digest(map, blobs) {
  const hash = createHash('sha256');
  for (const [key, value] of map) hash.update(`${key} ${value.name} ${value.price} ${value.tags.join()}\n`);
  for (const blob of blobs) hash.update(blob);
  return hash.digest('hex');
}

const blobs = [];
for (let i = 0; i < buffers; i++) {
  // A log as a server would keep it: lines of text, 256 KiB of them.
  const blob = Buffer.alloc(256 * KIB);
  let at = 0;
  while (at < blob.length) at += blob.write(`${1700000000 + below(1 << 24)} ${sentence(6)} ${below(1 << 16)}\n`, at) || KIB;
  blobs.push(blob);
}
const map = new Map();
for (let i = 0; i < entries; i++) {
  map.set(`k${below(1 << 30)}-${i}`, { name: sentence(3), price: below(1000000) / 100, tags: [below(50), below(50), i] });
}
console.log('built  ', map.size, digest(map, blobs));

let number = 0;
for (const [key, value] of map) {
  if (number % 3 === 0) map.delete(key);
  else if (number % 5 === 0) value.name = value.name.toUpperCase();
  number++;
}
for (let i = 0; i < blobs.length; i += 4) blobs[i] = Buffer.from(blobs[i].toString('latin1').toUpperCase(), 'latin1');
console.log('changed', map.size, digest(map, blobs));
