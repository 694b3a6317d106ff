/*
 * What a page holds: a function of its tag, and the way back.
 *
 * A tag names one writing of one page. Every page of content carries its tag in a form that can be
 * read back from the bytes, so that a page that differs can be told apart as an older writing of the
 * same page, a writing of another page, zeros, or nothing that this program ever wrote.
 *
 *   63      48 47    34 33          12 11   8 7      0
 *  +----------+--------+--------------+------+--------+
 *  |  region  |  page  |  generation  |patch | check  |
 *  +----------+--------+--------------+------+--------+
 *
 * `patch` counts the single words that were written over the page after its generation was filled.
 * `check` is a hash of the other fields under the seed.
 */
#ifndef CONTENT_H
#define CONTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAGE ((size_t)4096)
#define WORDS (PAGE / 8)

#define REGION_IDS (1u << 16)
#define PAGE_IDS (1u << 14)
#define GENERATIONS (1u << 22)
#define PATCHES 15u

typedef uint64_t tag_t;

/* A bijection of 64-bit words (the finalizer of splitmix64): the project's only hash. */
static inline uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

/* Sets the key of all content. Call it once, before any thread starts. */
void content_seed(uint64_t seed);

tag_t tag_make(unsigned region, unsigned page, unsigned generation, unsigned patches);
bool tag_valid(tag_t tag);
static inline unsigned tag_region(tag_t tag)
{
	return tag >> 48;
}
static inline unsigned tag_page(tag_t tag)
{
	return (tag >> 34) & (PAGE_IDS - 1);
}
static inline unsigned tag_generation(tag_t tag)
{
	return (tag >> 12) & (GENERATIONS - 1);
}
static inline unsigned tag_patches(tag_t tag)
{
	return (tag >> 8) & 15;
}
tag_t tag_with_patches(tag_t tag, unsigned patches);

/* The name of the pattern that the tag's page is filled with. */
const char *content_pattern(tag_t tag);

/* Writes the whole page. */
void content_fill(void *page, tag_t tag);

/* Writes only the word that `tag`'s last patch puts over the page; the rest must hold the tag before. */
void content_patch(void *page, tag_t tag);

/* Where the last patch of `tag` lies, and what it writes. */
size_t content_patch_word(tag_t tag, uint64_t *value);

/* True if the page holds exactly the tag's content. */
bool content_matches(const void *page, tag_t tag);

bool content_is_zero(const void *page, size_t bytes);

/* The same for runs of bytes of any length and alignment; the tag's patches are not applied. */
void content_fill_bytes(void *to, size_t bytes, tag_t tag);
bool content_matches_bytes(const void *from, size_t bytes, tag_t tag, size_t *where);

/*
 * Says in words what a page holds that should have held `expected`; `before` is the page's previous
 * tag (0 for none).
 */
void content_describe(char *text, size_t room, const void *page, tag_t expected, tag_t before);

#endif
