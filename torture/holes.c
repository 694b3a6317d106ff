/*
 * Holes: a range of which a part is unmapped, moved away or kept out of children, and then the program maps
 * something of its own there, or unmaps the whole. No other action runs meanwhile, so that what is in the hole
 * then is nobody's.
 */
#include "torture.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

enum { LEAST = 16, MOST = 4096 };

/* How the hole came to be. */
enum way { UNMAPPED, MOVED, KEPT_OUT, WAYS };
static const char *const way_names[WAYS] = { "unmapped", "moved away", "kept out of children" };

struct range {
	uint8_t *base;
	unsigned id;
	size_t pages, hole, hole_pages;
};

static tag_t tag_of(const struct range *r, size_t page, bool again)
{
	return tag_make(r->id, page, 1 + again, 0);
}

static void fill(const struct range *r, size_t first, size_t pages, bool again)
{
	for (size_t p = first; p < first + pages; p++)
		content_fill(r->base + p * PAGE, tag_of(r, p, again));
}

static void verify(struct worker *w, const struct range *r, size_t first, size_t pages, bool again)
{
	for (size_t p = first; p < first + pages; p++)
		bytes_verify(w, r->base + p * PAGE, PAGE, tag_of(r, p, again), "a page beside a hole, or in one");
}

static void verify_around(struct worker *w, const struct range *r)
{
	size_t behind = r->hole + r->hole_pages;

	verify(w, r, 0, r->hole, false);
	verify(w, r, behind, r->pages - behind, false);
}

static void must(struct worker *w, const struct range *r, bool done, const char *what)
{
	if (!done)
		differs(w, r->base, "%s: %s", what, strerror(errno));
}

/* Something new in the hole. */
static void map_there(struct worker *w, const struct range *r)
{
	uint8_t *at = r->base + r->hole * PAGE;
	void *got = mmap(at, r->hole_pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
			 -1, 0);

	must(w, r, got == at, "MAP_FIXED into a hole");
	for (size_t p = 0; p < r->hole_pages; p++)
		if (!content_is_zero(at + p * PAGE, PAGE))
			differs(w, at + p * PAGE, "new memory in a hole is not zero");
	fill(r, r->hole, r->hole_pages, true);
	verify_around(w, r);
	verify(w, r, r->hole, r->hole_pages, true);
}

/* A child has what is around the hole, and of the hole what it should; and does there as it likes. */
static void fork_beside(struct worker *w, const struct range *r, bool has_it, bool maps)
{
	int status;
	pid_t child = fork();

	must(w, r, child >= 0, "fork");
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		w->child = true;
		verify_around(w, r);
		if (has_it)
			verify(w, r, r->hole, r->hole_pages, false);
		for (size_t p = r->hole; !has_it && p < r->hole + r->hole_pages; p += 1 + p / 16)
			if (readable(r->base + p * PAGE))
				differs(w, r->base + p * PAGE, "something is in a child's hole");
		if (maps)
			map_there(w, r);
		must(w, r, munmap(r->base, r->pages * PAGE) == 0, "munmap over a hole");
		_exit(34);
	}
	while (waitpid(child, &status, 0) < 0)
		must(w, r, errno == EINTR, "waitpid");
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 34)
		differs(w, r->base, "the child of a process with a hole ended with status 0x%x", status);
}

static void move_away(struct worker *w, const struct range *r)
{
	uint8_t *to = map_pages(r->hole_pages), *from = r->base + r->hole * PAGE;
	struct range moved = *r;

	must(w, r, to != NULL, "mmap");
	must(w, r, mremap(from, r->hole_pages * PAGE, r->hole_pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to,
	     "mremap");
	moved.base = to - r->hole * PAGE;
	verify(w, &moved, r->hole, r->hole_pages, false);
	must(w, r, munmap(to, r->hole_pages * PAGE) == 0, "munmap");
}

void act_holes(struct worker *w)
{
	struct range r = { .pages = LEAST + random_below(w, MOST >> random_below(w, 6)) };
	enum way way = random_below(w, WAYS);

	r.hole_pages = 1 + random_below(w, r.pages - 2);
	r.hole = 1 + random_below(w, r.pages - 1 - r.hole_pages);
	if (!budget_take(r.pages))
		return;
	r.base = map_pages(r.pages);
	must(w, &r, r.base != NULL, "mmap");
	r.id = region_id();
	note(w, " %p %zu pages, of which %zu+%zu are %s", (void *)r.base, r.pages, r.hole, r.hole_pages,
	     way_names[way]);
	uint8_t *hole = r.base + r.hole * PAGE;
	fill(&r, 0, r.pages, false);
	if (one_in(w, 2))
		nap_us(random_below(w, 3000));
	switch (way) {
	case UNMAPPED: must(w, &r, munmap(hole, r.hole_pages * PAGE) == 0, "munmap"); break;
	case MOVED: move_away(w, &r); break;
	default: must(w, &r, madvise(hole, r.hole_pages * PAGE, MADV_DONTFORK) == 0, "MADV_DONTFORK");
	}
	nap_us(random_below(w, 3000));
	if (way == KEPT_OUT || one_in(w, 2))
		fork_beside(w, &r, false, one_in(w, 2));
	verify_around(w, &r);
	if (way == KEPT_OUT) {
		verify(w, &r, r.hole, r.hole_pages, false);
		must(w, &r, madvise(hole, r.hole_pages * PAGE, MADV_DOFORK) == 0, "MADV_DOFORK");
		fork_beside(w, &r, true, false);
		verify(w, &r, r.hole, r.hole_pages, false);
	} else if (one_in(w, 2)) {
		map_there(w, &r);
	}
	must(w, &r, munmap(r.base, r.pages * PAGE) == 0, "munmap over a hole");
	budget_give(r.pages);
}
