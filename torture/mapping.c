/* Actions on mappings: map, munmap, MAP_FIXED, mremap. */
#include "torture.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

/*
 * mremap was refused. The region was one mapping, so that this is right only where the process is near
 * its limit of mappings, a neighbour is in the way, or the limit of locked memory is reached.
 */
static void refused(struct worker *w, struct region *r, const char *what)
{
	note(w, " refused: %s", strerror(errno));
	if (errno == ENOMEM || (errno == EAGAIN && r->kind == LOCKED))
		return;
	differs(w, r->base, "%s of region %u (%s), %zu pages: %s", what, r->id, kind_names[r->kind], r->pages,
		strerror(errno));
}

/*
 * A refused MREMAP_FIXED may have cleared its target, which may then be anybody's. So the target's first
 * page is marked before, and only what still carries the mark is ours.
 */
static bool target_is_ours(const void *target, tag_t mark)
{
	uint64_t page[WORDS];

	return peek(target, page, PAGE) && content_matches(page, mark);
}

void act_map(struct worker *w)
{
	static const enum kind often[] = { PLAIN,    PLAIN,    PLAIN,  PLAIN,  PLAIN, PLAIN, HUGE,    HUGE,
					   RESERVED, RESERVED, LOCKED, SHARED, MEMFD, WIPED, UNFORKED,
					   EXECUTABLE, EXECUTABLE };
	enum kind kind = often[random_below(w, sizeof often / sizeof *often)];
	unsigned log = random_below(w, 15);
	size_t pages = ((size_t)1 << log) + random_below(w, (size_t)1 << log);

	/* Sizes from 4 KiB to 64 MiB, each magnitude as likely; what does not fit the footprint is halved. */
	if (one_in(w, 3))
		pages = (size_t)1 << log;
	if (pages > REGION_PAGES_MAX)
		pages = REGION_PAGES_MAX;
	if (kind == LOCKED && pages > 64)
		pages = 64;
	size_t share = options.footprint_pages / options.threads;
	while (pages > 1 && pages > share && !one_in(w, 4))
		pages /= 2;
	struct region *r = region_create(w, kind, pages);
	if (!r) {
		note(w, " no room for %zu pages (%s)", pages, kind_names[kind]);
		if ((r = region_pick(w, KINDS_ALL)))
			region_destroy(w, r);
		return;
	}
	note(w, " region %u (%s) %p %zu pages", r->id, kind_names[kind], (void *)r->base, pages);
	if (kind == RESERVED)
		pages = pages / 4 + 1;
	region_write(w, r, 0, pages);
}

void act_unmap(struct worker *w)
{
	struct region *r = region_pick(w, KINDS_ALL);

	if (!r)
		return;
	note(w, " region %u", r->id);
	region_verify(w, r, 0, r->pages);
	region_destroy(w, r);
}

void act_unmap_part(struct worker *w)
{
	struct region *r = region_pick(w, KINDS_ALL);
	size_t first, pages;

	if (!r || r->pages < 2 || !region_run(w, r, r->pages / 2, &first, &pages))
		return;
	note(w, " region %u pages %zu+%zu of %zu", r->id, first, pages, r->pages);
	if (munmap(page_at(r, first), pages * PAGE) != 0)
		differs(w, page_at(r, first), "munmap: %s", strerror(errno));
	for (size_t p = first; p < first + pages; p++)
		r->cells[p].state = ABSENT;
	r->patchwork = true;
}

/* Holes are filled with new memory, if nobody else was faster. */
void act_fill_hole(struct worker *w)
{
	struct region *r =
		region_pick(w, KINDS_ALL & ~(KIND(SHARED) | KIND(MEMFD) | KIND(WIPED) | KIND(UNFORKED)));

	if (!r)
		return;
	for (size_t p = 0; p < r->pages;) {
		size_t n = 0;
		while (p + n < r->pages && r->cells[p + n].state == ABSENT)
			n++;
		if (n == 0) {
			p++;
			continue;
		}
		void *at = mmap(page_at(r, p), n * PAGE, region_flags(r, READ_WRITE),
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		if (at == page_at(r, p)) {
			note(w, " region %u pages %zu+%zu", r->id, p, n);
			for (size_t i = p; i < p + n; i++)
				r->cells[i] = (struct cell){ .state = EMPTY, .before = r->cells[i].tag };
			region_verify(w, r, p, n);
			if (one_in(w, 2))
				region_write(w, r, p, n);
		} else if (at != MAP_FAILED) {
			munmap(at, n * PAGE);
		}
		p += n;
	}
}

/* New memory right over old, evicted or not. */
void act_map_over(struct worker *w)
{
	struct region *r = region_pick(w, KIND(PLAIN) | KIND(HUGE) | KIND(RESERVED));
	size_t first, pages;

	if (!r || !region_run(w, r, 600, &first, &pages))
		return;
	bool inaccessible = one_in(w, 5);
	note(w, " region %u pages %zu+%zu%s", r->id, first, pages, inaccessible ? " PROT_NONE" : "");
	void *at = mmap(page_at(r, first), pages * PAGE, region_flags(r, inaccessible ? NO_ACCESS : READ_WRITE),
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	if (at == MAP_FAILED)
		differs(w, page_at(r, first), "MAP_FIXED: %s", strerror(errno));
	region_emptied(r, first, pages);
	for (size_t p = first; p < first + pages; p++) {
		r->cells[p].protection = inaccessible ? NO_ACCESS : READ_WRITE;
		r->cells[p].unforked = false;
	}
	r->patchwork = true;
	switch (random_below(w, 3)) {
	case 0: region_verify(w, r, first, pages); break;
	case 1: region_write(w, r, first, pages); break;
	default: break;
	}
}

/* ---- mremap ------------------------------------------------------------------------------------- */

/* True if the kernel keeps the whole range as one mapping; false also where that cannot be found out. */
static bool one_mapping(const struct region *r)
{
	uintptr_t wanted = (uintptr_t)r->base;
	unsigned long from = 0, to = 0;
	char text[8192], *line;
	size_t used = 0;
	bool found = false;
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	for (ssize_t n; !found && (n = read(fd, text + used, sizeof text - 1 - used)) > 0;) {
		text[used + n] = 0;
		line = text;
		for (char *end; !found && (end = strchr(line, '\n')); line = end + 1)
			found = sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= wanted && wanted < to;
		used = strlen(line);
		memmove(text, line, used + 1);
	}
	close(fd);
	return found && wanted + r->pages * PAGE <= to;
}

/* True if children are to have a part of it, and not the rest: the kernel keeps these as several mappings. */
static bool is_mixed(const struct region *r)
{
	for (size_t p = 1; p < r->pages; p++)
		if (r->cells[p].unforked != r->cells[0].unforked)
			return true;
	return false;
}

/*
 * A region for mremap: without holes and one mapping. (Since Linux 6.17 several mappings can be moved at
 * once; if the second is refused then, the first has moved already, and nobody says so.)
 */
static struct region *pick_whole(struct worker *w, unsigned kinds)
{
	struct region *r = region_pick(w, kinds);

	if (!r || region_has_holes(r))
		return NULL;
	if (r->patchwork && (is_mixed(r) || !one_mapping(r)))
		return NULL;
	r->patchwork = false;
	return r;
}

/* Shared memory grown past its object's end has no pages there; dont-fork regions stay in their range. */
#define GROWABLE \
	(KIND(PLAIN) | KIND(HUGE) | KIND(RESERVED) | KIND(LOCKED) | KIND(WIPED) | KIND(EXECUTABLE))
#define MOVABLE (GROWABLE | KIND(SHARED) | KIND(MEMFD))

/* `pages` new ones at the end, all of them zero. */
static void grown(struct region *r, uint8_t *at, size_t pages)
{
	struct cell last = r->cells[r->pages - 1];

	r->base = at;
	for (size_t p = r->pages; p < r->pages + pages; p++)
		r->cells[p] = (struct cell){ .state = EMPTY,
					     .protection = last.protection,
					     .unforked = last.unforked };
	r->pages += pages;
}

void act_grow(struct worker *w)
{
	struct region *r = pick_whole(w, GROWABLE);

	if (!r)
		return;
	size_t more = 1 + random_below(w, one_in(w, 4) ? r->pages : 64), old = r->pages;
	if (old + more > REGION_PAGES_MAX || !budget_take(more))
		return;
	int flags = one_in(w, 4) ? 0 : MREMAP_MAYMOVE;
	note(w, " region %u %p %zu+%zu pages%s", r->id, (void *)r->base, old, more, flags ? "" : " in place");
	uint8_t *at = mremap(r->base, old * PAGE, (old + more) * PAGE, flags);
	if (at == MAP_FAILED) {
		budget_give(more);
		refused(w, r, "mremap to grow");
		return;
	}
	note(w, " to %p", (void *)at);
	grown(r, at, more);
	switch (random_below(w, 3)) {
	case 0: region_verify(w, r, 0, r->pages); break;
	case 1: region_write(w, r, old - 1, more + 1); break;
	default: break;
	}
}

void act_shrink(struct worker *w)
{
	struct region *r = pick_whole(w, MOVABLE | KIND(UNFORKED));

	if (!r || r->pages < 2)
		return;
	size_t keep = 1 + random_below(w, r->pages - 1), gone = r->pages - keep;
	note(w, " region %u %p %zu to %zu pages", r->id, (void *)r->base, r->pages, keep);
	void *at = mremap(r->base, r->pages * PAGE, keep * PAGE, one_in(w, 2) ? MREMAP_MAYMOVE : 0);
	if (at == MAP_FAILED) {
		refused(w, r, "mremap to shrink");
		return;
	}
	if (at != r->base)
		differs(w, at, "mremap to shrink moved region %u from %p", r->id, (void *)r->base);
	r->pages = keep;
	budget_give(gone);
}

/* Shrunk and grown again at once: the part that came back is zero. */
void act_regrow(struct worker *w)
{
	struct region *r = pick_whole(w, GROWABLE);

	if (!r || r->pages < 2)
		return;
	size_t old = r->pages, keep = 1 + random_below(w, old - 1);
	note(w, " region %u %p %zu to %zu pages and back", r->id, (void *)r->base, old, keep);
	void *at = mremap(r->base, old * PAGE, keep * PAGE, 0);
	if (at == MAP_FAILED) {
		refused(w, r, "mremap to shrink");
		return;
	}
	r->pages = keep;
	if (one_in(w, 3))
		nap_us(200);
	at = mremap(r->base, keep * PAGE, old * PAGE, one_in(w, 2) ? MREMAP_MAYMOVE : 0);
	if (at == MAP_FAILED) {
		budget_give(old - keep);
		refused(w, r, "mremap to regrow");
		return;
	}
	note(w, " to %p", at);
	grown(r, at, old - keep);
	region_verify(w, r, 0, old);
}

/* To a place of ours, by MREMAP_FIXED over other memory. */
void act_move(struct worker *w)
{
	struct region *r = pick_whole(w, MOVABLE);

	if (!r)
		return;
	/* A new place with another alignment within 2 MiB, or the same. */
	size_t slack = one_in(w, 2) ? 512 : 0;
	uint8_t *place = map_pages(r->pages + slack);
	if (!place)
		return;
	size_t offset = slack ? random_below(w, slack + 1) : 0;
	uint8_t *target = place + offset * PAGE;
	tag_t mark = tag_make(0, w->index, r->generation, 1);
	content_fill(target, mark);
	note(w, " region %u %p %zu pages", r->id, (void *)r->base, r->pages);
	void *at = mremap(r->base, r->pages * PAGE, r->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target);
	int error = errno;
	if (offset)
		munmap(place, offset * PAGE);
	if (offset < slack)
		munmap(target + r->pages * PAGE, (slack - offset) * PAGE);
	if (at == MAP_FAILED) {
		if (target_is_ours(target, mark))
			munmap(target, r->pages * PAGE);
		errno = error;
		refused(w, r, "mremap to move");
		return;
	}
	note(w, " to %p", at);
	r->base = at;
	if (one_in(w, 2))
		region_verify(w, r, 0, r->pages);
}

/* Over a region that is in use, whose pages there are lost. */
void act_move_over(struct worker *w)
{
	struct region *r = pick_whole(w, GROWABLE & ~KIND(LOCKED));
	struct region *over = pick_whole(w, GROWABLE & ~KIND(LOCKED));

	if (!r || !over || r == over || over->pages < r->pages)
		return;
	size_t lost = r->pages;
	uint8_t *target = over->base;
	note(w, " region %u %p %zu pages over region %u %p", r->id, (void *)r->base, lost, over->id,
	     (void *)target);
	/* Not zeros: a mark. */
	region_write(w, over, 0, 1);
	region_poke(w, over, 0);
	void *at = mremap(r->base, lost * PAGE, lost * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target);
	if (at == MAP_FAILED) {
		int error = errno;
		if (!target_is_ours(target, over->cells[0].tag)) {
			budget_give(lost);
			region_drop_head(over, lost);
		}
		errno = error;
		refused(w, r, "mremap over another region");
		return;
	}
	budget_give(lost);
	region_drop_head(over, lost);
	r->base = at;
	region_verify(w, r, 0, r->pages);
	if (over->pages)
		region_verify(w, over, 0, 1);
}

/* The old place stays mapped and is zero. */
void act_dontunmap(struct worker *w)
{
	struct region *r = pick_whole(w, KIND(PLAIN) | KIND(HUGE) | KIND(RESERVED) | KIND(WIPED));

	if (!r)
		return;
	uint8_t *old = r->base;
	bool opened = r->cells[0].protection != NO_ACCESS;
	for (size_t p = 0; p < r->pages; p++)
		opened = opened && r->cells[p].protection == READ_WRITE && r->cells[p].state != GUARDED;
	note(w, " region %u %p %zu pages", r->id, (void *)old, r->pages);
	uint8_t *at = mremap(old, r->pages * PAGE, r->pages * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	if (at == MAP_FAILED) {
		if (errno == EINVAL)
			skip("MREMAP_DONTUNMAP", "%s", strerror(errno));
		else
			refused(w, r, "MREMAP_DONTUNMAP");
		return;
	}
	note(w, " to %p", (void *)at);
	r->base = at;
	if (opened) {
		/* New writing in the old place must not show in the new one. */
		for (size_t p = 0; p < r->pages; p++) {
			if (!content_is_zero(old + p * PAGE, PAGE)) {
				char found[512];
				content_describe(found, sizeof found, old + p * PAGE, 0, r->cells[p].tag);
				differs(w, old + p * PAGE,
					"the old place of region %u after MREMAP_DONTUNMAP, page %zu\n"
					"  expected: zero\n  found: %s",
					r->id, p, found);
			}
			if (p % 3 == 0)
				memset(old + p * PAGE, 0xa5, PAGE);
		}
	}
	munmap(old, r->pages * PAGE);
	if (one_in(w, 2))
		region_verify(w, r, 0, r->pages);
}

/* The longest run stays, the rest goes: a region without holes again. */
void act_trim(struct worker *w)
{
	struct region *r = region_pick(w, KINDS_ALL);
	size_t first = 0, pages, best = 0, best_pages = 0;

	if (!r || !region_has_holes(r))
		return;
	for (; region_next_run(r, &first, &pages); first += pages) {
		if (pages > best_pages) {
			best = first;
			best_pages = pages;
		}
	}
	if (best_pages == 0) {
		region_destroy(w, r);
		return;
	}
	note(w, " region %u keeps %zu+%zu of %zu", r->id, best, best_pages, r->pages);
	for (first = 0; region_next_run(r, &first, &pages); first += pages)
		if (first != best && munmap(page_at(r, first), pages * PAGE) != 0)
			differs(w, page_at(r, first), "munmap: %s", strerror(errno));
	budget_give(r->pages - best_pages);
	r->pages = best + best_pages;
	if (best)
		region_drop_head(r, best);
	region_verify(w, r, 0, r->pages);
}
