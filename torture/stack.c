/* Actions on stacks and thread-local data. */
#include "torture.h"

#include <string.h>

#define STACK_ID (REGION_IDS - 3 - MAX_THREADS)
#define TLS_ID (REGION_IDS - 4 - MAX_THREADS)

__thread uint64_t tls_pages[TLS_PAGES][WORDS];
__thread uint64_t tls_image[4] = { 0x0123456789abcdefull, 1, 2, 0xfedcba9876543210ull };

static __attribute__((noinline)) void deeper(struct worker *w, unsigned depth, unsigned most,
					     unsigned generation)
{
	uint64_t page[WORDS];
	tag_t tag = tag_make(STACK_ID, depth, generation, 0);

	content_fill(page, tag);
	if (depth < most)
		deeper(w, depth + 1, most, generation);
	else
		nap_us(500 + random_below(w, 2000));
	if (content_matches(page, tag))
		return;
	char found[512];
	content_describe(found, sizeof found, page, tag, 0);
	differs(w, page, "a local variable at depth %u of %u\n  expected: generation %u\n  found: %s", depth,
		most, generation, found);
}

void act_recurse(struct worker *w)
{
	unsigned most = 1u << random_below(w, 9);

	note(w, " %u deep", most);
	deeper(w, 0, most, w->actions % GENERATIONS);
}

void tls_verify_new(struct worker *w)
{
	if (!content_is_zero(tls_pages, sizeof tls_pages))
		differs(w, tls_pages, "a new thread's thread-local zeros are not zero");
	if (tls_image[0] != 0x0123456789abcdefull || tls_image[1] != 1 || tls_image[2] != 2 ||
	    tls_image[3] != 0xfedcba9876543210ull)
		differs(w, tls_image, "a new thread's initialized thread-local data: %llx %llx %llx %llx",
			(long long)tls_image[0], (long long)tls_image[1], (long long)tls_image[2],
			(long long)tls_image[3]);
}

void act_tls(struct worker *w)
{
	for (unsigned i = 0; i < TLS_PAGES; i++) {
		tag_t *tag = &w->tls[i];
		char found[512];
		if (*tag ? !content_matches(tls_pages[i], *tag) : !content_is_zero(tls_pages[i], PAGE)) {
			content_describe(found, sizeof found, tls_pages[i], *tag, 0);
			differs(w, tls_pages[i],
				"thread-local page %u\n  expected: generation %u%s\n  found: %s", i,
				tag_generation(*tag), *tag ? "" : " (zero)", found);
		}
		if (one_in(w, 2)) {
			*tag = tag_make(TLS_ID, w->index * TLS_PAGES + i, w->actions % GENERATIONS, 0);
			content_fill(tls_pages[i], *tag);
		}
	}
}
