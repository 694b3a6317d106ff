/*
 * Thousands of mappings: a region is cut into pieces that the kernel keeps apart, loses each other one, or has one torn
 * out. A piece has 64 KiB, or less, or more. All that other actions do then goes over many mappings.
 */
#include "torture.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { PIECES_MOST = 3000, PIECE_64K = 16 };

static size_t piece_pages(struct worker *w)
{
	switch (random_below(w, 6)) {
	case 0:
	case 1: return 1;
	case 2: return 2 + random_below(w, PIECE_64K - 2);
	case 3: return PIECE_64K + 1 + random_below(w, 2 * PIECE_64K);
	default: return PIECE_64K;
	}
}

/* A run of mapped pages, of which each other piece is meant. */
static struct region *pick_pieces(struct worker *w, size_t *first, size_t *pages, size_t *piece)
{
	struct region *r = region_pick(w, KINDS_PRIVATE);

	if (!r || !region_run(w, r, one_in(w, 2) ? r->pages : 200, first, pages))
		return NULL;
	*piece = piece_pages(w);
	if (*pages > PIECES_MOST * *piece)
		*pages = PIECES_MOST * *piece;
	note(w, " region %u pages %zu+%zu, pieces of %zu", r->id, *first, *pages, *piece);
	return r;
}

/* What makes a mapping of a piece. */
enum cut { READABLE, CLOSED, UNDUMPED, KEPT_OUT, CUTS };

static void cut_out(struct worker *w, struct region *r, size_t first, size_t pages, enum cut cut)
{
	switch (cut) {
	case READABLE: region_protect(w, r, first, pages, READ_ONLY); return;
	case CLOSED: region_protect(w, r, first, pages, NO_ACCESS); return;
	case UNDUMPED:
		if (madvise(page_at(r, first), pages * PAGE, MADV_DONTDUMP) != 0)
			differs(w, page_at(r, first), "MADV_DONTDUMP: %s", strerror(errno));
		return;
	default:
		if (madvise(page_at(r, first), pages * PAGE, MADV_DONTFORK) != 0)
			differs(w, page_at(r, first), "MADV_DONTFORK: %s", strerror(errno));
		for (size_t p = first; p < first + pages; p++)
			r->cells[p].unforked = true;
	}
}

void act_cut(struct worker *w)
{
	size_t first, pages, piece;
	struct region *r = pick_pieces(w, &first, &pages, &piece);
	enum cut cut = random_below(w, CUTS);

	if (!r)
		return;
	note(w, ", cut %u", cut);
	for (size_t p = piece; p < pages; p += 2 * piece)
		cut_out(w, r, first + p, pages - p < piece ? pages - p : piece, cut);
	r->patchwork = true;
	if (one_in(w, 2))
		region_verify(w, r, first, pages);
}

void act_stripes(struct worker *w)
{
	size_t first, pages, piece;
	struct region *r = pick_pieces(w, &first, &pages, &piece);

	if (!r)
		return;
	for (size_t p = piece; p < pages; p += 2 * piece) {
		size_t n = pages - p < piece ? pages - p : piece;
		if (munmap(page_at(r, first + p), n * PAGE) != 0)
			differs(w, page_at(r, first + p), "munmap: %s", strerror(errno));
		for (size_t i = 0; i < n; i++)
			r->cells[first + p + i].state = ABSENT;
	}
	r->patchwork = true;
	if (one_in(w, 2))
		region_verify(w, r, first, pages);
}

/*
 * Growing takes one mapping, and so nothing is moved where the piece lies in several. What was moved is looked at and
 * unmapped; the region has a hole.
 */
void act_tear(struct worker *w)
{
	size_t first, pages, more = 1 + random_below(w, 2 * PIECE_64K);
	struct region *r = region_pick(w, KINDS_PRIVATE);

	if (!r || !region_run(w, r, piece_pages(w), &first, &pages) || !budget_take(more))
		return;
	uint8_t *at = mremap(page_at(r, first), pages * PAGE, (pages + more) * PAGE, MREMAP_MAYMOVE);
	note(w, " region %u pages %zu+%zu, %zu more, to %p", r->id, first, pages, more, (void *)at);
	if (at == MAP_FAILED && errno != EFAULT && errno != ENOMEM)
		differs(w, page_at(r, first), "mremap of %zu pages to %zu more: %s", pages, more, strerror(errno));
	if (at != MAP_FAILED) {
		region_verify_at(w, r, first, pages, at);
		for (size_t p = first; p < first + pages; p++)
			r->cells[p].state = ABSENT;
		r->patchwork = true;
		if (munmap(at, (pages + more) * PAGE) != 0)
			differs(w, at, "munmap of what was torn out: %s", strerror(errno));
	}
	budget_give(more);
}
