/*
 * Differences made on purpose: what proves that the program notices. None is chosen unless --actions
 * names it; then the run must end with a report and SIGABRT.
 */
#include "torture.h"

#include <string.h>

static struct region *filled(struct worker *w, size_t *page, bool written_twice)
{
	struct region *r = region_pick(w, KINDS_PRIVATE);

	if (!r)
		return NULL;
	*page = random_below(w, r->pages);
	region_write(w, r, *page, 1);
	if (written_twice)
		region_write(w, r, *page, 1);
	/* Patterns of nothing but zeros would hide it. */
	struct cell *c = &r->cells[*page];
	if (c->state != FILLED || content_is_zero(page_at(r, *page), PAGE))
		return NULL;
	note(w, " region %u page %zu", r->id, *page);
	return r;
}

void act_plant_stale(struct worker *w)
{
	size_t page;
	struct region *r = filled(w, &page, true);

	if (r)
		content_fill(page_at(r, page), r->cells[page].before);
}

void act_plant_zero(struct worker *w)
{
	size_t page;
	struct region *r = filled(w, &page, false);

	if (r)
		memset(page_at(r, page), 0, PAGE);
}

void act_plant_bit(struct worker *w)
{
	size_t page;
	struct region *r = filled(w, &page, false);

	if (r)
		((uint8_t *)page_at(r, page))[random_below(w, PAGE)] ^= 1 << random_below(w, 8);
}

void act_plant_foreign(struct worker *w)
{
	size_t page;
	struct region *r = filled(w, &page, false);

	if (r)
		content_fill(page_at(r, page), tag_make(r->id + 1, page, 5, 0));
}

/* A page that was discarded and comes back. */
void act_plant_undead(struct worker *w)
{
	size_t page;
	struct region *r = filled(w, &page, false);

	if (r)
		region_emptied(r, page, 1);
}

void act_plant_stall(struct worker *w)
{
	(void)w;
	for (;;)
		nap_us(1000000);
}
