/* Actions that advise (madvise) and protect (mprotect). */
#include "torture.h"

#include "zfolio.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

static struct region *advised(struct worker *w, unsigned kinds, size_t *first, size_t *pages)
{
	struct region *r = region_pick(w, kinds);

	if (!r || !region_run(w, r, one_in(w, 6) ? r->pages : 100, first, pages))
		return NULL;
	note(w, " region %u %p pages %zu+%zu", r->id, page_at(r, *first), *first, *pages);
	return r;
}

/* What is discarded reads as zero from then on; guards stay guards. */
static void discarded(struct region *r, size_t first, size_t pages)
{
	for (size_t p = first; p < first + pages; p++)
		if (r->cells[p].state != GUARDED)
			region_emptied(r, p, 1);
}

void act_dontneed(struct worker *w)
{
	size_t first, pages;
	struct region *r = advised(w, KINDS_PRIVATE, &first, &pages);

	if (!r)
		return;
	if (madvise(page_at(r, first), pages * PAGE, MADV_DONTNEED) != 0)
		differs(w, page_at(r, first), "MADV_DONTNEED: %s", strerror(errno));
	discarded(r, first, pages);
	switch (random_below(w, 4)) {
	case 0: region_verify(w, r, first, pages); break;
	case 1: region_write(w, r, first, pages); break;
	case 2: region_verify(w, r, first + random_below(w, pages), 1); break;
	default: break;
	}
}

/* The same page again and again: an allocator's page that is used and purged. */
void act_purge(struct worker *w)
{
	size_t first, pages;
	struct region *r = advised(w, KINDS_PRIVATE, &first, &pages);

	if (!r)
		return;
	if (pages > 16)
		pages = 16;
	region_open(w, r, first, pages);
	for (unsigned i = 0; i < 50; i++) {
		region_write(w, r, first, pages);
		if (one_in(w, 4))
			nap_us(50);
		if (madvise(page_at(r, first), pages * PAGE, MADV_DONTNEED) != 0)
			differs(w, page_at(r, first), "MADV_DONTNEED: %s", strerror(errno));
		discarded(r, first, pages);
		region_verify(w, r, first, pages);
	}
}

/* Shared memory keeps its content over MADV_DONTNEED and loses it by MADV_REMOVE. */
void act_remove(struct worker *w)
{
	size_t first, pages;
	struct region *r = advised(w, KIND(SHARED) | KIND(MEMFD), &first, &pages);

	if (!r)
		return;
	if (madvise(page_at(r, first), pages * PAGE, MADV_DONTNEED) != 0)
		differs(w, page_at(r, first), "MADV_DONTNEED of shared memory: %s", strerror(errno));
	region_verify(w, r, first, pages);
	if (one_in(w, 2)) {
		region_open(w, r, first, pages);
		if (madvise(page_at(r, first), pages * PAGE, MADV_REMOVE) != 0)
			differs(w, page_at(r, first), "MADV_REMOVE: %s", strerror(errno));
		discarded(r, first, pages);
		region_verify(w, r, first, pages);
	}
}

static struct region *freed(struct worker *w, size_t *first, size_t *pages)
{
	struct region *r = advised(w, KINDS_PRIVATE, first, pages);

	if (!r)
		return NULL;
	if (madvise(page_at(r, *first), *pages * PAGE, MADV_FREE) != 0)
		differs(w, page_at(r, *first), "MADV_FREE: %s", strerror(errno));
	for (size_t p = *first; p < *first + *pages; p++)
		if (r->cells[p].state == FILLED)
			r->cells[p].state = FREED;
	return r;
}

void act_free(struct worker *w)
{
	size_t first, pages;
	struct region *r = freed(w, &first, &pages);

	if (r && one_in(w, 2))
		region_verify(w, r, first, pages);
}

/* A word written to a freed page makes it stay: the rest of the page is all old or all zero, for good. */
void act_free_and_touch(struct worker *w)
{
	size_t first, pages;
	struct region *r = freed(w, &first, &pages);
	uint64_t old[WORDS], zero[WORDS];

	if (!r)
		return;
	if (pages > 32)
		pages = 32;
	region_open(w, r, first, pages);
	size_t word = random_below(w, WORDS);
	for (size_t p = first; p < first + pages; p++)
		((uint64_t *)page_at(r, p))[word] = p;
	nap_us(random_below(w, 2000));
	for (size_t p = first; p < first + pages; p++) {
		const void *at = page_at(r, p);
		content_fill(old, r->cells[p].tag);
		memset(zero, 0, PAGE);
		old[word] = zero[word] = p;
		bool is_zero = memcmp(at, zero, PAGE) == 0;
		if (!is_zero && (r->cells[p].state != FREED || memcmp(at, old, PAGE) != 0)) {
			char found[512];
			content_describe(found, sizeof found, at, r->cells[p].tag, r->cells[p].before);
			differs(w, at,
				"region %u page %zu after MADV_FREE and a write to word %zu\n"
				"  expected: that word, and the rest old or zero\n  found: %s",
				r->id, p, word, found);
		}
	}
	region_write(w, r, first, pages);
}

/* Advice that changes no content. */
void act_advise(struct worker *w)
{
	static const struct {
		int advice;
		const char *name;
	} neutral[] = {
		{ MADV_COLD, "COLD" },
		{ MADV_PAGEOUT, "PAGEOUT" },
		{ MADV_WILLNEED, "WILLNEED" },
		{ MADV_SEQUENTIAL, "SEQUENTIAL" },
		{ MADV_RANDOM, "RANDOM" },
		{ MADV_NORMAL, "NORMAL" },
		{ MADV_HUGEPAGE, "HUGEPAGE" },
		{ MADV_NOHUGEPAGE, "NOHUGEPAGE" },
		{ MADV_COLLAPSE, "COLLAPSE" },
		{ MADV_POPULATE_READ, "POPULATE_READ" },
		{ MADV_POPULATE_WRITE, "POPULATE_WRITE" },
		{ MADV_MERGEABLE, "MERGEABLE" },
		{ MADV_DONTDUMP, "DONTDUMP" },
		{ MADV_DODUMP, "DODUMP" },
	};
	size_t first, pages, which = random_below(w, sizeof neutral / sizeof *neutral);
	struct region *r = advised(w, KINDS_ALL, &first, &pages);

	if (!r)
		return;
	/* Its refusal says nothing about content; flags may split the mapping. */
	note(w, " MADV_%s: %d", neutral[which].name,
	     madvise(page_at(r, first), pages * PAGE, neutral[which].advice));
	r->patchwork = true;
	if (one_in(w, 2))
		region_verify(w, r, first, pages);
	/*
	 * Not for long: on Linux 6.18 a signal makes mremap of mergeable memory start again, after it has
	 * unmapped its target or moved some mappings of several.
	 */
	if (neutral[which].advice == MADV_MERGEABLE)
		while (madvise(page_at(r, first), pages * PAGE, MADV_UNMERGEABLE) != 0 && errno == EINTR)
			;
}

/* Children are not to have a part of a region, or are to have it again; and sometimes the one and the other in turn. */
void act_unfork(struct worker *w)
{
	size_t first, pages;
	struct region *r = advised(w, KINDS_PRIVATE | KIND(LOCKED), &first, &pages);
	bool unforked = one_in(w, 2);

	if (!r)
		return;
	for (unsigned times = one_in(w, 4) ? 1 + random_below(w, 30) : 1; times > 0; times--) {
		unforked = !unforked;
		if (madvise(page_at(r, first), pages * PAGE, unforked ? MADV_DONTFORK : MADV_DOFORK) != 0)
			differs(w, page_at(r, first), "MADV_%s: %s", unforked ? "DONTFORK" : "DOFORK",
				strerror(errno));
	}
	note(w, unforked ? " kept out" : " let in");
	for (size_t p = first; p < first + pages; p++)
		r->cells[p].unforked = unforked;
	r->patchwork = true;
	if (one_in(w, 3))
		region_verify(w, r, first, pages);
}

/* Guards: not accessible while there, zero after. */
void act_guard(struct worker *w)
{
	size_t first, pages;
	struct region *r = advised(w, KIND(PLAIN) | KIND(HUGE) | KIND(RESERVED), &first, &pages);

	if (!r)
		return;
	if (madvise(page_at(r, first), pages * PAGE, MADV_GUARD_INSTALL) != 0) {
		if (errno != EINVAL)
			differs(w, page_at(r, first), "MADV_GUARD_INSTALL: %s", strerror(errno));
		skip("MADV_GUARD_INSTALL", "%s", strerror(errno));
		return;
	}
	for (size_t p = first; p < first + pages; p++) {
		if (r->cells[p].state == FILLED)
			r->cells[p].before = r->cells[p].tag;
		r->cells[p].state = GUARDED;
	}
	if (readable(page_at(r, first)) || readable(page_at(r, first + pages - 1)))
		differs(w, page_at(r, first), "a guard can be read");
	if (one_in(w, 2)) {
		nap_us(300);
		region_open(w, r, first, pages);
		region_verify(w, r, first, pages);
	}
}

/* Most of what is pinned is unpinned soon, and the rest when its mapping ends: what stays does not go out. */
void act_pin(struct worker *w)
{
	size_t first, pages;
	struct region *r = advised(w, KINDS_PRIVATE | KIND(LOCKED), &first, &pages);
	struct zfolio_range told;

	if (!r)
		return;
	if (zfolio_pin(page_at(r, first), pages * PAGE) != 0) {
		if (errno != ENOMEM && errno != ENOSYS)
			differs(w, page_at(r, first), "zfolio_pin: %s", strerror(errno));
		skip("zfolio_pin", "%s", strerror(errno));
		return;
	}
	if (one_in(w, 2))
		region_verify(w, r, first, pages);
	if (zfolio_range(page_at(r, first), pages * PAGE, &told) != 0)
		differs(w, page_at(r, first), "zfolio_range: %s", strerror(errno));
	size_t sum = told.resident_bytes + told.inactive_bytes + told.stored_bytes + told.swapped_bytes +
		     told.filled_bytes;
	if (sum > pages * PAGE)
		differs(w, page_at(r, first), "zfolio_range: %zu bytes of %zu pages", sum, pages);
	if (one_in(w, 2))
		region_write(w, r, first, pages);
	if (!one_in(w, 8) && zfolio_unpin(page_at(r, first), pages * PAGE) != 0 && errno != ENOMEM)
		differs(w, page_at(r, first), "zfolio_unpin: %s", strerror(errno));
}

void act_protect(struct worker *w)
{
	struct region *r = region_pick(w, KINDS_ALL);
	size_t first, pages;

	if (!r || !region_run(w, r, one_in(w, 3) ? r->pages : 200, &first, &pages))
		return;
	enum protection protection = random_below(w, 3);
	note(w, " region %u pages %zu+%zu to %u", r->id, first, pages, protection);
	region_protect(w, r, first, pages, protection);
	if (one_in(w, 3))
		nap_us(200);
	if (one_in(w, 2))
		region_verify(w, r, first, pages);
	/* And back, most of the time; else it stays until somebody writes there. */
	if (!one_in(w, 4)) {
		region_open(w, r, first, pages);
		if (one_in(w, 2))
			region_verify(w, r, first, pages);
	}
}
