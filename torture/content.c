/*
 * Patterns of page content and their recognition.
 *
 * The patterns are those that a memory compressor meets: incompressible words, text, heap-like words,
 * one repeated word, zeros, and the near misses of the last two (all the same but for one word or one byte).
 */
#include "content.h"

#include <stdio.h>
#include <string.h>

enum pattern { RANDOM, TEXT, HEAP, SAME, ZERO, SPARSE, ALMOST_SAME, MIXED, PATTERNS };

static const char *const pattern_names[PATTERNS] = {
	"random", "text", "heap", "same-filled", "zero", "sparse", "almost-same", "mixed",
};

/* A region's flavour is the share of each pattern among its pages, in sixteenths. */
static const uint8_t flavours[4][16] = {
	{ RANDOM, RANDOM, TEXT, TEXT, TEXT, HEAP, HEAP, HEAP, SAME, SAME, ZERO, SPARSE, ALMOST_SAME, MIXED,
	  MIXED, MIXED },
	{ TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, HEAP, MIXED, SPARSE, SAME },
	{ RANDOM, RANDOM, RANDOM, RANDOM, RANDOM, RANDOM, RANDOM, RANDOM, RANDOM, RANDOM, RANDOM, RANDOM,
	  RANDOM, RANDOM, TEXT, SAME },
	{ SAME, SAME, SAME, SAME, SAME, ALMOST_SAME, ALMOST_SAME, SPARSE, SPARSE, ZERO, ZERO, HEAP, HEAP,
	  HEAP, HEAP, TEXT },
};

#define STEP 0x9e3779b97f4a7c15ull
#define LINE 32 /* words of text between two words that carry the tag */

static uint64_t key;
static uint64_t dictionary[64];

static uint64_t unmix(uint64_t x)
{
	x = (x ^ (x >> 31) ^ (x >> 62)) * 0x319642b2d24d8ec3ull;
	x = (x ^ (x >> 27) ^ (x >> 54)) * 0x96de1b173f119089ull;
	return x ^ (x >> 30) ^ (x >> 60);
}

void content_seed(uint64_t seed)
{
	static const char letters[] = "etaoinshrdlu cmf";

	key = mix(seed + STEP);
	for (unsigned i = 0; i < 64; i++) {
		uint64_t bits = mix(key + i);
		char word[8];
		for (unsigned j = 0; j < 7; j++, bits >>= 4)
			word[j] = letters[bits & 15];
		word[7] = ' ';
		memcpy(&dictionary[i], word, 8);
	}
}

/* The content word that carries `tag` at word `w` of a page, and back. */
static inline uint64_t word_of(tag_t tag, uint64_t w)
{
	return mix((tag + w * STEP) ^ key);
}

static inline tag_t tag_of(uint64_t word, uint64_t w)
{
	return (unmix(word) ^ key) - w * STEP;
}

static uint64_t check_of(tag_t tag)
{
	return mix((tag >> 8) ^ key) & 0xff;
}

tag_t tag_make(unsigned region, unsigned page, unsigned generation, unsigned patches)
{
	tag_t tag = (tag_t)(region & (REGION_IDS - 1)) << 48 | (tag_t)(page & (PAGE_IDS - 1)) << 34 |
		    (tag_t)(generation & (GENERATIONS - 1)) << 12 | (tag_t)(patches & 15) << 8;
	return tag | check_of(tag);
}

bool tag_valid(tag_t tag)
{
	return (tag & 0xff) == check_of(tag);
}

tag_t tag_with_patches(tag_t tag, unsigned patches)
{
	return tag_make(tag_region(tag), tag_page(tag), tag_generation(tag), patches);
}

static enum pattern pattern_of(tag_t base)
{
	uint64_t flavour = mix(key + tag_region(base)) & 3;
	return flavours[flavour][mix(base ^ (key >> 1)) & 15];
}

const char *content_pattern(tag_t tag)
{
	return pattern_names[pattern_of(tag_with_patches(tag, 0))];
}

/* Writes words [from, to) of the page whose unpatched tag is `base`. */
static void fill_words(uint64_t *words, size_t from, size_t to, tag_t base, enum pattern pattern)
{
	switch (pattern) {
	case RANDOM:
		for (size_t w = from; w < to; w++)
			words[w] = word_of(base, w);
		break;
	case TEXT:
		for (size_t w = from; w < to; w++) {
			static const uint64_t letter = 63;
			if (w % LINE == 0) {
				words[w] = word_of(base, w);
			} else {
				uint64_t bits = mix(base + w / 8);
				words[w] = dictionary[(bits >> (w % 8 * 7)) & letter];
			}
		}
		break;
	case HEAP:
		for (size_t w = from; w < to; w++) {
			uint64_t bits = mix(base - w / 4);
			switch (w % 8) {
			case 0: words[w] = 0x00007f0000000000ull | (bits & 0xfffff0); break;
			case 1: words[w] = bits >> 58; break;
			case 5: words[w] = 0x00005500000000a0ull + (bits >> 60) * 0x40; break;
			case 7: words[w] = w % 64 == 7 ? word_of(base, w) : 0x31; break;
			default: words[w] = 0; break;
			}
		}
		break;
	case SAME:
	case ALMOST_SAME:
		for (size_t w = from; w < to; w++)
			words[w] = word_of(base, 0);
		break;
	case ZERO:
	case SPARSE: memset(words + from, 0, (to - from) * 8); break;
	case MIXED:
	case PATTERNS: break;
	}
}

static void fill_base(uint64_t *words, tag_t base)
{
	enum pattern pattern = pattern_of(base);
	uint64_t bits = mix(base + key);

	if (pattern == MIXED) {
		for (unsigned quarter = 0; quarter < 4; quarter++, bits >>= 8)
			fill_words(words, quarter * WORDS / 4, (quarter + 1) * WORDS / 4, base,
				   bits % (ZERO + 1));
		return;
	}
	fill_words(words, 0, WORDS, base, pattern);
	if (pattern == SPARSE) {
		/* The first, the last or any word: what a test for zero pages could forget. */
		size_t w = (bits & 3) == 0 ? 0 : (bits & 3) == 1 ? WORDS - 1 : (bits >> 8) % WORDS;
		words[w] = word_of(base, w);
	} else if (pattern == ALMOST_SAME) {
		((uint8_t *)words)[(bits & 1) ? PAGE - 1 : (bits >> 8) % PAGE] ^= 1 << (bits >> 61);
	}
}

size_t content_patch_word(tag_t tag, uint64_t *value)
{
	unsigned patch = tag_patches(tag);
	size_t w = mix(tag_with_patches(tag, 0) + patch * STEP) % WORDS;

	*value = word_of(tag, w);
	return w;
}

void content_patch(void *page, tag_t tag)
{
	uint64_t value;
	size_t w = content_patch_word(tag, &value);

	((uint64_t *)page)[w] = value;
}

void content_fill(void *page, tag_t tag)
{
	fill_base(page, tag_with_patches(tag, 0));
	for (unsigned patch = 1; patch <= tag_patches(tag); patch++)
		content_patch(page, tag_with_patches(tag, patch));
}

bool content_matches(const void *page, tag_t tag)
{
	uint64_t expected[WORDS];

	content_fill(expected, tag);
	return memcmp(page, expected, PAGE) == 0;
}

bool content_is_zero(const void *page, size_t bytes)
{
	const uint8_t *p = page;

	return bytes == 0 || (p[0] == 0 && memcmp(p, p + 1, bytes - 1) == 0);
}

/* Byte runs are the pages of one region one after another, cut at both ends. */
static tag_t run_tag(tag_t tag, size_t page)
{
	return tag_make(tag_region(tag), tag_page(tag) + page, tag_generation(tag), 0);
}

void content_fill_bytes(void *to, size_t bytes, tag_t tag)
{
	uint64_t page[WORDS];

	for (size_t at = 0; at < bytes; at += PAGE) {
		content_fill(page, run_tag(tag, at / PAGE));
		memcpy((char *)to + at, page, bytes - at < PAGE ? bytes - at : PAGE);
	}
}

bool content_matches_bytes(const void *from, size_t bytes, tag_t tag, size_t *where)
{
	uint64_t page[WORDS];

	for (size_t at = 0; at < bytes; at += PAGE) {
		size_t part = bytes - at < PAGE ? bytes - at : PAGE;
		content_fill(page, run_tag(tag, at / PAGE));
		if (memcmp((const char *)from + at, page, part) != 0) {
			size_t i = 0;
			while (((const char *)from)[at + i] == ((char *)page)[i] && i + 1 < part)
				i++;
			*where = at + i;
			return false;
		}
	}
	return true;
}

/* How many words of the page are those of `tag`. */
static size_t agreement(const uint64_t *page, tag_t tag)
{
	uint64_t words[WORDS];
	size_t same = 0;

	content_fill(words, tag);
	for (size_t w = 0; w < WORDS; w++)
		same += page[w] == words[w];
	return same;
}

/* The tag, with its best number of patches, that explains the page; returns the words that agree. */
static size_t best_patches(const uint64_t *page, tag_t candidate, tag_t *best)
{
	size_t most = 0;

	for (unsigned patches = 0; patches <= PATCHES; patches++) {
		tag_t tag = tag_with_patches(candidate, patches);
		size_t same = agreement(page, tag);
		if (same > most) {
			most = same;
			*best = tag;
		}
	}
	return most;
}

void content_describe(char *text, size_t room, const void *page, tag_t expected, tag_t before)
{
	uint64_t copy[WORDS], words[WORDS];
	size_t differing = 0, first = WORDS, last = 0, most = 0;
	tag_t found = 0;
	int used;

	memcpy(copy, page, PAGE);
	if (expected)
		content_fill(words, expected);
	else
		memset(words, 0, PAGE);
	for (size_t w = 0; w < WORDS; w++) {
		if (copy[w] == words[w])
			continue;
		if (first == WORDS)
			first = w;
		last = w;
		differing++;
	}
	if (differing == 0) {
		snprintf(text, room, "the expected content, when looked at again (a passing difference)");
		return;
	}

	/* Any word that decodes to a valid tag names a candidate; the one that explains most words wins. */
	if (before)
		most = best_patches(copy, before, &found);
	for (size_t w = 0; w < WORDS && most < WORDS; w++) {
		for (unsigned same_filled = 0; same_filled < 2; same_filled++) {
			tag_t tag = tag_of(copy[w], same_filled ? 0 : w), best = 0;
			size_t same;
			if (!tag_valid(tag) ||
			    (found && tag_with_patches(tag, 0) == tag_with_patches(found, 0)))
				continue;
			same = best_patches(copy, tag, &best);
			if (same > most) {
				most = same;
				found = best;
			}
		}
	}
	/* Zero pages agree with every zero page and say nothing. */
	if (content_is_zero(copy, PAGE)) {
		used = snprintf(text, room, "zero");
	} else if (most < 8) {
		used = snprintf(text, room, "garbage");
	} else {
		tag_t like = expected ? expected : before;
		bool own = tag_region(found) == tag_region(like) && tag_page(found) == tag_page(like);
		const char *what = found == before || (own && !expected)              ? "stale"
				   : !own                                             ? "foreign"
				   : tag_generation(found) < tag_generation(expected) ? "stale"
				   : tag_generation(found) > tag_generation(expected) ? "newer"
				   : tag_patches(found) < tag_patches(expected)       ? "stale"
										      : "same";
		used = snprintf(text, room,
				"%s: region %u page %u generation %u patches %u (%zu of %zu words agree)%s",
				what, tag_region(found), tag_page(found), tag_generation(found),
				tag_patches(found), most, WORDS,
				found == before ? ", the content before the last write" : "");
	}
	if (used < 0 || (size_t)used >= room)
		return;
	snprintf(
		text + used, room - used,
		"\n  %zu of %zu words differ, from offset 0x%zx to 0x%zx; the first is %016llx and should be %016llx",
		differing, WORDS, first * 8, last * 8 + 7, (unsigned long long)copy[first],
		(unsigned long long)words[first]);
}
