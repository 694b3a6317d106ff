/* Actions on the heap: malloc and its relatives, malloc_trim, brk. */
#include "torture.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The last region ids are those of heaps, one for each worker. */
static tag_t object_tag(struct worker *w, const struct object *o)
{
	unsigned slot = o - w->objects;

	return tag_make(REGION_IDS - 1 - w->index, slot * (PAGE_IDS / OBJECTS), o->generation, 0);
}

static void object_verify(struct worker *w, struct object *o, size_t bytes)
{
	bytes_verify(w, o->at, bytes, object_tag(w, o), "malloc'ed memory");
}

static void object_write(struct worker *w, struct object *o)
{
	o->generation++;
	content_fill_bytes(o->at, o->bytes, object_tag(w, o));
}

/* 1 byte to 512 KiB, each magnitude as likely: on both sides of malloc's threshold for mmap. */
static size_t random_size(struct worker *w)
{
	size_t order = (size_t)1 << random_below(w, 19);

	return order + random_below(w, order);
}

static void object_new(struct worker *w, struct object *o)
{
	size_t bytes = random_size(w), alignment = 16;

	switch (random_below(w, 4)) {
	case 0:
		o->at = calloc(1, bytes);
		if (o->at && !content_is_zero(o->at, bytes))
			differs(w, o->at, "calloc of %zu bytes is not zero", bytes);
		break;
	case 1:
		alignment = (size_t)16 << random_below(w, 13);
		if (posix_memalign(&o->at, alignment, bytes) != 0)
			o->at = NULL;
		break;
	default: o->at = malloc(bytes); break;
	}
	if (!o->at)
		differs(w, NULL, "malloc of %zu bytes: %s", bytes, strerror(errno));
	if ((uintptr_t)o->at % alignment)
		differs(w, o->at, "memory is not aligned to %zu", alignment);
	o->bytes = bytes;
	object_write(w, o);
}

static void object_resize(struct worker *w, struct object *o)
{
	size_t bytes = random_size(w), kept = bytes < o->bytes ? bytes : o->bytes;
	void *at = realloc(o->at, bytes);

	if (!at)
		differs(w, NULL, "realloc to %zu bytes: %s", bytes, strerror(errno));
	o->at = at;
	object_verify(w, o, kept);
	o->bytes = bytes;
	object_write(w, o);
}

void heap_verify_all(struct worker *w)
{
	for (unsigned i = 0; i < OBJECTS; i++)
		if (w->objects[i].at)
			object_verify(w, &w->objects[i], w->objects[i].bytes);
}

void act_heap(struct worker *w)
{
	unsigned n = 1 + random_below(w, 32);

	note(w, " %u objects", n);
	while (n--) {
		struct object *o = &w->objects[random_below(w, OBJECTS)];
		if (!o->at) {
			object_new(w, o);
			continue;
		}
		object_verify(w, o, o->bytes);
		switch (random_below(w, 4)) {
		case 0: object_resize(w, o); break;
		case 1: object_write(w, o); break;
		default:
			free(o->at);
			o->at = NULL;
			break;
		}
	}
}

/* Many small ones, freed in another order, and the arena given back. */
void act_heap_storm(struct worker *w)
{
	enum { MANY = 2000 };
	static _Atomic unsigned generation;
	struct small {
		struct small *next;
		size_t bytes;
		uint8_t data[];
	} *first = NULL, *second = NULL;
	unsigned serial = atomic_fetch_add(&generation, 1);

	for (unsigned i = 0; i < MANY; i++) {
		size_t bytes = 1 + random_below(w, 500);
		struct small *s = malloc(sizeof *s + bytes);
		if (!s)
			differs(w, NULL, "malloc: %s", strerror(errno));
		s->bytes = bytes;
		content_fill_bytes(s->data, bytes, tag_make(REGION_IDS - 1 - MAX_THREADS, bytes, serial, 0));
		struct small **list = i % 2 ? &first : &second;
		s->next = *list;
		*list = s;
	}
	nap_us(500);
	for (unsigned half = 0; half < 2; half++) {
		for (struct small *s = half ? second : first, *next; s; s = next) {
			bytes_verify(w, s->data, s->bytes,
				     tag_make(REGION_IDS - 1 - MAX_THREADS, s->bytes, serial, 0),
				     "a small object");
			next = s->next;
			free(s);
		}
		if (one_in(w, 2))
			note(w, " trim %d", malloc_trim(0));
	}
}

void act_heap_trim(struct worker *w)
{
	note(w, " %d", malloc_trim(random_below(w, 2) << 16));
	heap_verify_all(w);
}

/*
 * The break, moved by hand. Nobody else acts meanwhile, because malloc moves it too; where malloc did
 * all the same (a thread that ends frees its cache), the memory is left to it.
 */
void act_brk(struct worker *w)
{
	size_t pages = 2 + random_below(w, 1024), keep = 1 + random_below(w, pages - 1);
	uint8_t *old = sbrk(0), *base = old + -(uintptr_t)old % PAGE, *end = base + pages * PAGE;
	unsigned generation = w->actions % GENERATIONS;

	note(w, " %p, %zu pages", (void *)old, pages);
	if (!budget_take(pages))
		return;
	if (sbrk(end - old) != old) {
		note(w, " refused");
		budget_give(pages);
		return;
	}
	for (unsigned round = 0; round < 2; round++) {
		tag_t tag = tag_make(REGION_IDS - 2 - MAX_THREADS, 0, generation + round, 0);
		if (!content_is_zero(base, pages * PAGE) && round == 0)
			differs(w, base, "fresh memory of brk is not zero (%zu pages)", pages);
		content_fill_bytes(base, pages * PAGE, tag);
		nap_us(random_below(w, 1000));
		bytes_verify(w, base, pages * PAGE, tag, "memory of brk");
		if (sbrk(0) != end)
			break;
		if (brk(base + keep * PAGE) != 0)
			differs(w, base, "brk to less: %s", strerror(errno));
		bytes_verify(w, base, keep * PAGE, tag, "memory of brk after it was cut");
		if (brk(end) != 0)
			differs(w, base, "brk to more: %s", strerror(errno));
		if (!content_is_zero(base + keep * PAGE, (pages - keep) * PAGE))
			differs(w, base + keep * PAGE,
				"memory of brk that was cut and came back is not zero (%zu pages)",
				pages - keep);
		bytes_verify(w, base, keep * PAGE, tag, "memory of brk after it grew again");
	}
	if (sbrk(0) == end && brk(old) != 0)
		differs(w, base, "brk back: %s", strerror(errno));
	budget_give(pages);
}
