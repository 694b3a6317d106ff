/*
 * Actions on memory that several threads use at once.
 *
 * The common: page p belongs to thread p mod N, which alone writes and discards it, so that neighbours
 * within one 64 KiB are written, faulted in and discarded by different threads. Anybody may read any
 * page: `version` is odd while its owner changes it, and a read between two equal even versions counts.
 *
 * The shelves: four pages each, under a mutex that lies in ordinary memory too.
 */
#include "torture.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define COMMON_PAGES 512u
#define SHELVES 64u
#define SHELF_PAGES 4u

struct common_page {
	_Atomic uint32_t version;
	_Atomic tag_t tag; /* 0: zero */
	unsigned generation;
	tag_t before; /* the owner's, for reports */
};

struct shelf {
	pthread_mutex_t lock;
	unsigned generation;
	tag_t tag;
};

static uint64_t (*common)[WORDS];
static struct common_page *common_pages; /* locked: the ledger */
static unsigned common_id;

static struct shelf *shelves; /* ordinary memory, as programs do it */
static uint8_t *shelf_memory;
static unsigned shelf_id;

void commons_begin(void *(*ledger_pages)(size_t bytes))
{
	common_id = region_id();
	shelf_id = region_id();
	common = map_pages(COMMON_PAGES);
	common_pages = ledger_pages(COMMON_PAGES * sizeof *common_pages);
	shelf_memory = map_pages(SHELVES * SHELF_PAGES);
	shelves = map_pages(SHELVES * sizeof *shelves / PAGE + 1);
	for (unsigned i = 0; i < SHELVES; i++)
		pthread_mutex_init(&shelves[i].lock, NULL);
}

/* Word by word, because others may be reading. */
static void publish(uint64_t *page, tag_t tag)
{
	uint64_t words[WORDS];

	content_fill(words, tag);
	for (unsigned i = 0; i < WORDS; i++)
		__atomic_store_n(&page[i], words[i], __ATOMIC_RELAXED);
}

static void common_check(struct worker *w, unsigned p, const uint64_t *words, tag_t tag, tag_t before)
{
	char found[512];

	if (tag ? content_matches(words, tag) : content_is_zero(words, PAGE))
		return;
	content_describe(found, sizeof found, words, tag, before);
	differs(w, common[p],
		"the common's page %u of thread %u, read by thread %u\n  expected: generation %u%s\n  found: %s",
		p, p % options.threads, w->index, tag_generation(tag), tag ? "" : " (zero)", found);
}

/* What the owner left there; nothing if the owner is at it. */
static void common_read(struct worker *w, unsigned p)
{
	struct common_page *c = &common_pages[p];
	uint64_t words[WORDS];
	uint32_t version = atomic_load(&c->version);
	tag_t tag = atomic_load(&c->tag);

	for (unsigned i = 0; i < WORDS; i++)
		words[i] = __atomic_load_n(&common[p][i], __ATOMIC_RELAXED);
	/* An atomic operation that changes nothing keeps the reads above it. */
	if (version % 2 == 0 && atomic_fetch_add(&c->version, 0) == version)
		common_check(w, p, words, tag, 0);
}

static void common_change(struct worker *w, unsigned p, bool discard)
{
	struct common_page *c = &common_pages[p];
	tag_t tag = 0;

	atomic_fetch_add(&c->version, 1);
	c->before = c->tag;
	if (discard) {
		if (madvise(common[p], PAGE, MADV_DONTNEED) != 0)
			differs(w, common[p], "MADV_DONTNEED: %s", strerror(errno));
	} else {
		c->generation = (c->generation + 1) % GENERATIONS;
		tag = tag_make(common_id, p, c->generation, 0);
		publish(common[p], tag);
	}
	atomic_store(&c->tag, tag);
	atomic_fetch_add(&c->version, 1);
}

void act_commons(struct worker *w)
{
	unsigned n = 50 + random_below(w, 300);
	/* All threads in one place, or all over. */
	unsigned span = one_in(w, 2) ? 16 : COMMON_PAGES;

	note(w, " %u steps in %u pages", n, span);
	while (n--) {
		unsigned p = random_below(w, span), own = p - p % options.threads + w->index;
		if (own >= COMMON_PAGES)
			own = w->index;
		switch (random_below(w, 8)) {
		case 0:
		case 1: common_change(w, own, true); break;
		case 2:
		case 3:
		case 4: common_change(w, own, false); break;
		case 5:
			common_check(w, own, common[own], common_pages[own].tag, common_pages[own].before);
			break;
		default: common_read(w, p); break;
		}
	}
}

void act_shelves(struct worker *w)
{
	unsigned n = 20 + random_below(w, 60);

	note(w, " %u steps", n);
	while (n--) {
		unsigned i = random_below(w, SHELVES);
		struct shelf *s = &shelves[i];
		uint8_t *memory = shelf_memory + i * SHELF_PAGES * PAGE;

		pthread_mutex_lock(&s->lock);
		if (s->tag)
			bytes_verify(w, memory, SHELF_PAGES * PAGE, s->tag, "a shelf under its mutex");
		else if (!content_is_zero(memory, SHELF_PAGES * PAGE))
			differs(w, memory, "shelf %u is not zero", i);
		if (one_in(w, 3)) {
			madvise(memory, SHELF_PAGES * PAGE, MADV_DONTNEED);
			s->tag = 0;
		} else {
			s->generation = (s->generation + 1) % GENERATIONS;
			s->tag = tag_make(shelf_id, i * SHELF_PAGES, s->generation, 0);
			content_fill_bytes(memory, SHELF_PAGES * PAGE, s->tag);
		}
		if (one_in(w, 30))
			nap_us(200);
		pthread_mutex_unlock(&s->lock);
	}
}
