/* Actions that only write, read and wait. */
#include "torture.h"

#include <string.h>
#include <time.h>

void act_write(struct worker *w)
{
	struct region *r = region_pick(w, KINDS_ALL);
	size_t first, pages;

	if (!r || !region_run(w, r, one_in(w, 8) ? r->pages : 256, &first, &pages))
		return;
	note(w, " region %u pages %zu+%zu", r->id, first, pages);
	region_write(w, r, first, pages);
}

/* Single words on many pages: what was stored before is wrong by eight bytes. */
void act_poke(struct worker *w)
{
	struct region *r = region_pick(w, KINDS_ALL);

	if (!r)
		return;
	unsigned n = 1 + random_below(w, 64);
	note(w, " region %u, %u words", r->id, n);
	while (n--) {
		size_t page = random_below(w, r->pages);
		if (r->cells[page].state != ABSENT)
			region_poke(w, r, page);
	}
}

void act_verify(struct worker *w)
{
	struct region *r = region_pick(w, KINDS_ALL);
	size_t first, pages;

	if (!r || !region_run(w, r, one_in(w, 4) ? r->pages : 256, &first, &pages))
		return;
	note(w, " region %u pages %zu+%zu", r->id, first, pages);
	region_verify(w, r, first, pages);
}

/* Single pages here and there: the uniformly random reader. */
void act_probe(struct worker *w)
{
	struct region *r = region_pick(w, KINDS_ALL);

	if (!r)
		return;
	unsigned n = 1 + random_below(w, 128);
	note(w, " region %u, %u pages", r->id, n);
	while (n--)
		region_verify(w, r, random_below(w, r->pages), 1);
}

void act_verify_all(struct worker *w)
{
	region_verify_all(w);
	heap_verify_all(w);
}

/* Memory grows cold. */
void act_nap(struct worker *w)
{
	unsigned us = 100 << random_below(w, 8);

	note(w, " %u us", us);
	nap_us(us);
}

void act_spin(struct worker *w)
{
	uint64_t end = now_ms() + 1 + random_below(w, 3);

	(void)w;
	while (now_ms() < end)
		;
}
