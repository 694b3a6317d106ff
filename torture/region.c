/*
 * A region: one mapping of a worker's, and the ledger that says what each page of it must read as.
 *
 * Only the owner changes a region. `turn` is odd while it may, so that a forked child can tell which
 * regions of other threads stood still while it was made.
 *
 * Pages that were unmapped (ABSENT) may belong to anybody by now: nothing here touches them, and they
 * come back only by MAP_FIXED_NOREPLACE.
 */
#include "torture.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef MADV_GUARD_REMOVE
#define MADV_GUARD_REMOVE 103
#endif

const char *const kind_names[KINDS] = {
	"plain", "huge", "reserved", "locked", "shared", "memfd", "wipe-on-fork", "dont-fork",
	"executable",
};

static _Atomic long budget_pages = -1;
static _Atomic unsigned last_id;

#define HUGE_PAGES 512u

bool budget_take(size_t pages)
{
	long unset = -1;

	atomic_compare_exchange_strong(&budget_pages, &unset, (long)options.footprint_pages);
	if (atomic_fetch_sub(&budget_pages, (long)pages) >= (long)pages)
		return true;
	atomic_fetch_add(&budget_pages, (long)pages);
	return false;
}

void budget_give(size_t pages)
{
	atomic_fetch_add(&budget_pages, (long)pages);
}

unsigned region_id(void)
{
	return atomic_fetch_add(&last_id, 1) % (REGION_IDS - 1) + 1;
}

void *page_at(const struct region *r, size_t page)
{
	return r->base + page * PAGE;
}

void *map_pages(size_t pages)
{
	void *p = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

bool peek(const void *address, void *to, size_t bytes)
{
	struct iovec local = { to, bytes }, remote = { (void *)address, bytes };

	return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)bytes;
}

bool readable(const void *address)
{
	char byte;

	return peek(address, &byte, 1);
}

static void turn_begin(struct region *r)
{
	if (atomic_load(r->turn) % 2 == 0)
		atomic_fetch_add(r->turn, 1);
}

void turns_end(struct worker *w)
{
	for (unsigned i = 0; i < SLOTS; i++)
		if (atomic_load(w->regions[i].turn) % 2 == 1)
			atomic_fetch_add(w->regions[i].turn, 1);
}

/* ---- creation and end --------------------------------------------------------------------------- */

/*
 * dont-fork regions live in an address range of their own, where no mmap without an address lands: in a
 * child, something mapped there is the parent's region come back.
 */
static void *far_address(const struct worker *w, const struct region *r)
{
	size_t slot = w->index * SLOTS + (r - w->regions);
	return (void *)(0x100000000000ull + slot * (256ull << 20));
}

static void *map_kind(struct worker *w, struct region *r, enum kind kind, size_t pages)
{
	int protection = kind == RESERVED ? PROT_NONE : PROT_READ | PROT_WRITE;
	int flags = kind == SHARED || kind == MEMFD ? MAP_SHARED : MAP_PRIVATE;
	size_t bytes = pages * PAGE;
	uint8_t *p;

	if (kind == MEMFD) {
		int fd = memfd_create("torture", MFD_CLOEXEC);
		if (fd < 0 || ftruncate(fd, bytes) != 0)
			differs(w, NULL, "memfd: %s", strerror(errno));
		p = mmap(NULL, bytes, protection, flags, fd, 0);
		close(fd);
		return p;
	}
	flags |= MAP_ANONYMOUS;
	if (kind == EXECUTABLE)
		protection |= PROT_EXEC;
	if (one_in(w, 4))
		flags |= MAP_POPULATE;
	if (kind == HUGE) {
		/* Map more and cut it to a 2 MiB boundary, as allocators do. */
		size_t more = bytes + HUGE_PAGES * PAGE;
		p = mmap(NULL, more, protection, flags, -1, 0);
		if (p == MAP_FAILED)
			return p;
		size_t head = -(uintptr_t)p % (HUGE_PAGES * PAGE);
		if (head)
			munmap(p, head);
		if (more > head + bytes)
			munmap(p + head + bytes, more - head - bytes);
		p += head;
		madvise(p, bytes, MADV_HUGEPAGE);
		return p;
	}
	p = mmap(kind == UNFORKED ? far_address(w, r) : NULL, bytes, protection, flags, -1, 0);
	if (p == MAP_FAILED)
		return p;
	if (kind == LOCKED && mlock(p, bytes) != 0)
		skip("mlock", "%s", strerror(errno));
	if (kind == WIPED && madvise(p, bytes, MADV_WIPEONFORK) != 0)
		differs(w, p, "MADV_WIPEONFORK: %s", strerror(errno));
	if (kind == UNFORKED && madvise(p, bytes, MADV_DONTFORK) != 0)
		differs(w, p, "MADV_DONTFORK: %s", strerror(errno));
	return p;
}

struct region *region_create(struct worker *w, enum kind kind, size_t pages)
{
	struct region *r = NULL;

	for (unsigned i = 0; i < SLOTS && !r; i++)
		if (w->regions[i].pages == 0)
			r = &w->regions[i];
	if (!r || !budget_take(pages))
		return NULL;
	turn_begin(r);
	uint8_t *p = map_kind(w, r, kind, pages);
	if (p == MAP_FAILED)
		differs(w, NULL, "mmap of %zu pages (%s): %s", pages, kind_names[kind], strerror(errno));
	r->base = p;
	r->pages = pages;
	r->kind = kind;
	r->id = region_id();
	r->generation = 0;
	r->patchwork = false;
	for (size_t i = 0; i < pages; i++)
		r->cells[i] = (struct cell){ .state = EMPTY,
					     .protection = kind == RESERVED ? NO_ACCESS : READ_WRITE,
					     .unforked = kind == UNFORKED };
	return r;
}

void region_destroy(struct worker *w, struct region *r)
{
	size_t first = 0, pages;

	turn_begin(r);
	for (; region_next_run(r, &first, &pages); first += pages)
		if (munmap(page_at(r, first), pages * PAGE) != 0)
			differs(w, page_at(r, first), "munmap of %zu pages: %s", pages, strerror(errno));
	budget_give(r->pages);
	r->pages = 0;
}

struct region *region_pick(struct worker *w, unsigned kinds)
{
	struct region *found[SLOTS];
	unsigned n = 0;

	for (unsigned i = 0; i < SLOTS; i++)
		if (w->regions[i].pages && (kinds & KIND(w->regions[i].kind)))
			found[n++] = &w->regions[i];
	if (n == 0)
		return NULL;
	struct region *r = found[random_below(w, n)];
	turn_begin(r);
	return r;
}

/* ---- runs --------------------------------------------------------------------------------------- */

bool region_next_run(const struct region *r, size_t *first, size_t *pages)
{
	size_t from = *first, to;

	while (from < r->pages && r->cells[from].state == ABSENT)
		from++;
	for (to = from; to < r->pages && r->cells[to].state != ABSENT; to++)
		;
	*first = from;
	*pages = to - from;
	return to > from;
}

bool region_run(struct worker *w, const struct region *r, size_t most, size_t *first, size_t *pages)
{
	size_t from = random_below(w, r->pages), n = 1 + random_below(w, most);

	/* Half of the time from or to an edge, or aligned to 64 KiB: where things break. */
	switch (random_below(w, 8)) {
	case 0: from = 0; break;
	case 1: from &= ~(size_t)15; break;
	case 2: from &= ~(size_t)511; break;
	case 3:
		from &= ~(size_t)15;
		n = (n + 15) & ~(size_t)15;
		break;
	default: break;
	}
	*first = from;
	if (!region_next_run(r, first, pages)) {
		*first = 0;
		if (!region_next_run(r, first, pages))
			return false;
	}
	if (*pages > n)
		*pages = n;
	return true;
}

bool region_has_holes(const struct region *r)
{
	for (size_t p = 0; p < r->pages; p++)
		if (r->cells[p].state == ABSENT)
			return true;
	return false;
}

/* ---- the ledger --------------------------------------------------------------------------------- */

void region_emptied(struct region *r, size_t first, size_t pages)
{
	for (size_t p = first; p < first + pages; p++) {
		struct cell *c = &r->cells[p];
		if (c->state == ABSENT)
			continue;
		if (c->state != EMPTY)
			c->before = c->tag;
		c->state = EMPTY;
	}
}

tag_t region_next_tag(struct region *r, size_t page)
{
	if (++r->generation == GENERATIONS) {
		r->id = region_id();
		r->generation = 1;
	}
	return tag_make(r->id, page, r->generation, 0);
}

void region_holds(struct region *r, size_t page, tag_t tag)
{
	struct cell *c = &r->cells[page];

	if (c->state != EMPTY)
		c->before = c->tag;
	c->tag = tag;
	c->state = FILLED;
	c->carried = NULL;
}

void region_drop_head(struct region *r, size_t pages)
{
	r->base += pages * PAGE;
	r->pages -= pages;
	memmove(r->cells, r->cells + pages, r->pages * sizeof *r->cells);
}

/* ---- access ------------------------------------------------------------------------------------- */

/* What is at `p` must be what the region's page holds: it is there, or was moved there. */
static void verify_page(struct worker *w, struct region *r, size_t page, const void *p)
{
	struct cell *c = &r->cells[page];
	char found[512];

	if (c->state == ABSENT)
		return;
	if (c->protection == NO_ACCESS || c->state == GUARDED) {
		/* A look from the kernel's side must be refused; now and then is enough. */
		if (page % 64 == 0 && readable(p))
			differs(w, p, "region %u (%s) page %zu is readable but should be %s", r->id,
				kind_names[r->kind], page, c->state == GUARDED ? "guarded" : "PROT_NONE");
		return;
	}
	atomic_fetch_add_explicit(&w->pages_verified, 1, memory_order_relaxed);
	if (c->state == FILLED) {
		if (content_matches(p, c->tag))
			return;
	} else if (content_is_zero(p, PAGE)) {
		/* Once seen as zero, a freed page stays zero. */
		c->state = EMPTY;
		return;
	} else if (c->state == FREED && content_matches(p, c->tag)) {
		return;
	}
	if (c->state == EMPTY) {
		content_describe(found, sizeof found, p, 0, c->before);
		differs(w, p, "region %u (%s) page %zu of %zu\n  expected: zero\n  found: %s", r->id,
			kind_names[r->kind], page, r->pages, found);
	}
	content_describe(found, sizeof found, p, c->tag, c->before);
	differs(w, p,
		"region %u (%s) page %zu of %zu\n"
		"  expected: region %u page %u generation %u patches %u (%s)%s, by %s\n  found: %s",
		r->id, kind_names[r->kind], page, r->pages, tag_region(c->tag), tag_page(c->tag),
		tag_generation(c->tag), tag_patches(c->tag), content_pattern(c->tag),
		c->state == FREED ? ", or zero (MADV_FREE)" : "",
		c->carried ? c->carried->name : "a thread", found);
}

void region_verify(struct worker *w, struct region *r, size_t first, size_t pages)
{
	region_verify_at(w, r, first, pages, page_at(r, first));
}

void region_verify_at(struct worker *w, struct region *r, size_t first, size_t pages, const void *at)
{
	for (size_t p = 0; p < pages; p++)
		verify_page(w, r, first + p, (const uint8_t *)at + p * PAGE);
}

void region_verify_all(struct worker *w)
{
	for (unsigned i = 0; i < SLOTS; i++)
		if (w->regions[i].pages)
			region_verify(w, &w->regions[i], 0, w->regions[i].pages);
}

int region_flags(const struct region *r, enum protection protection)
{
	static const int flags[] = { PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE };

	return flags[protection] | (r->kind == EXECUTABLE && protection != NO_ACCESS ? PROT_EXEC : 0);
}

void region_protect(struct worker *w, struct region *r, size_t first, size_t pages,
		    enum protection protection)
{
	if (mprotect(page_at(r, first), pages * PAGE, region_flags(r, protection)) != 0)
		differs(w, page_at(r, first), "mprotect of %zu pages: %s", pages, strerror(errno));
	for (size_t p = first; p < first + pages; p++)
		r->cells[p].protection = protection;
	if (pages < r->pages)
		r->patchwork = true;
}

void region_open(struct worker *w, struct region *r, size_t first, size_t pages)
{
	for (size_t p = first; p < first + pages;) {
		size_t n = 0;
		bool guarded = r->cells[p].state == GUARDED;
		while (p + n < first + pages && r->cells[p + n].state != ABSENT &&
		       (r->cells[p + n].state == GUARDED) == guarded &&
		       (guarded || r->cells[p + n].protection != READ_WRITE))
			n++;
		if (n == 0) {
			p++;
			continue;
		}
		if (guarded) {
			if (madvise(page_at(r, p), n * PAGE, MADV_GUARD_REMOVE) != 0)
				differs(w, page_at(r, p), "MADV_GUARD_REMOVE: %s", strerror(errno));
			region_emptied(r, p, n);
			continue; /* now for its protection */
		}
		region_protect(w, r, p, n, READ_WRITE);
		p += n;
	}
}

void region_write(struct worker *w, struct region *r, size_t first, size_t pages)
{
	region_open(w, r, first, pages);
	for (size_t p = first; p < first + pages; p++) {
		if (r->cells[p].state == ABSENT)
			continue;
		tag_t tag = region_next_tag(r, p);
		content_fill(page_at(r, p), tag);
		region_holds(r, p, tag);
		atomic_fetch_add_explicit(&w->pages_written, 1, memory_order_relaxed);
	}
}

void region_poke(struct worker *w, struct region *r, size_t page)
{
	struct cell *c = &r->cells[page];

	if (c->state != FILLED || tag_patches(c->tag) == PATCHES) {
		region_write(w, r, page, 1);
		return;
	}
	region_open(w, r, page, 1);
	tag_t tag = tag_with_patches(c->tag, tag_patches(c->tag) + 1);
	content_patch(page_at(r, page), tag);
	region_holds(r, page, tag);
}

void bytes_verify(struct worker *w, const void *from, size_t bytes, tag_t tag, const char *what)
{
	size_t at = 0;

	if (content_matches_bytes(from, bytes, tag, &at))
		return;
	const uint8_t *p = (const uint8_t *)from + at;
	size_t left = bytes - at < 16 ? bytes - at : 16;
	differs(w, p,
		"%s: %zu bytes at %p, tag region %u page %u generation %u (%s), differ from offset 0x%zx; %s",
		what, bytes, from, tag_region(tag), tag_page(tag), tag_generation(tag), content_pattern(tag),
		at, content_is_zero(p, left) ? "zero from there" : "not zero there");
}
