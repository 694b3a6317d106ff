/*
 * Children that live in their parent's memory for a while, and act on it: of vfork, whose parent's thread waits (its
 * other threads go on), and of clone with CLONE_VM, whose parent's thread goes on too.
 */
#include "torture.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { VFORKED_CODE = 11, COMPANION_CODE = 12 };

static void expect_end(struct worker *w, pid_t child, int code, const char *what)
{
	int status;

	if (child < 0)
		differs(w, NULL, "%s: %s", what, strerror(errno));
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			differs(w, NULL, "waitpid for %s: %s", what, strerror(errno));
	if (!WIFEXITED(status) || WEXITSTATUS(status) != code)
		differs(w, NULL, "%s ended with status 0x%x instead of exit code %d", what, status, code);
}

/* ---- vfork --------------------------------------------------------------------------------------- */

static void stay(struct worker *w, unsigned acts, unsigned depth);

static __attribute__((noinline)) pid_t vforked(struct worker *w, unsigned acts, unsigned depth)
{
	pid_t child = vfork();

	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		stay(w, acts, depth);
		_exit(VFORKED_CODE);
	}
	return child;
}

/* What the child does is its parent's doing: there is one memory and one ledger. */
static void stay(struct worker *w, unsigned acts, unsigned depth)
{
	for (unsigned i = 0; i < acts; i++) {
		w->actions++;
		strcpy(w->history[w->actions % HISTORY], "a vforked child");
		act_by_vfork(w);
		if (one_in(w, 3))
			nap_us(random_below(w, 4000));
		if (depth && i == acts / 2)
			expect_end(w, vforked(w, acts, depth - 1), VFORKED_CODE, "a vforked child's child");
	}
}

void act_vfork_stays(struct worker *w)
{
	unsigned acts = 1 + random_below(w, 24), depth = random_below(w, 3);

	note(w, " %u deep, %u actions", depth, acts);
	expect_end(w, vforked(w, acts, depth), VFORKED_CODE, "a vforked child");
	if (one_in(w, 4))
		region_verify_all(w);
}

/* ---- clone with CLONE_VM ------------------------------------------------------------------------- */

enum { COMPANIONS = 4, COMPANION_PAGES = 64, COMPANION_STACK = 64 * PAGE, COMPANION_ID = REGION_IDS - 9 - MAX_THREADS };

/*
 * It has its parent's thread-local data, which that thread uses at the same time: no malloc, and nothing that waits by
 * way of libc. (errno is written to where something fails.)
 */
struct companion {
	struct worker *w;
	uint8_t *memory, *stack;
	unsigned page, rounds;
	pid_t pid;
};

static void rest(unsigned microseconds)
{
	struct timespec t = { 0, microseconds * 1000 };

	syscall(SYS_nanosleep, &t, NULL);
}

static int keep_company(void *argument)
{
	struct companion *c = argument;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (unsigned round = 1; round <= c->rounds; round++) {
		/* Numbers of its own: the worker's are being used. */
		unsigned pages = 1 + mix(c->page * 1000 + round) % COMPANION_PAGES;
		for (unsigned p = 0; p < pages; p++)
			content_fill(c->memory + p * PAGE, tag_make(COMPANION_ID, c->page + p, round, 0));
		if (round % 3 == 0)
			rest(500 * (round % 5));
		for (unsigned p = 0; p < pages; p++)
			bytes_verify(c->w, c->memory + p * PAGE, PAGE, tag_make(COMPANION_ID, c->page + p, round, 0),
				     "memory of a child that shares it");
		if (round % 2)
			continue;
		if (madvise(c->memory, COMPANION_PAGES * PAGE, MADV_DONTNEED) != 0)
			differs(c->w, c->memory, "MADV_DONTNEED: %s", strerror(errno));
		for (unsigned p = 0; p < COMPANION_PAGES; p++)
			if (!content_is_zero(c->memory + p * PAGE, PAGE))
				differs(c->w, c->memory + p * PAGE,
					"page %u that a child has discarded, which shares the memory, is not zero", p);
	}
	_exit(COMPANION_CODE);
}

void act_companions(struct worker *w)
{
	struct companion all[COMPANIONS];
	unsigned n = 1 + random_below(w, COMPANIONS);

	if (!budget_take(n * COMPANION_PAGES))
		return;
	note(w, " %u", n);
	for (unsigned i = 0; i < n; i++) {
		all[i] = (struct companion){ .w = w,
					     .memory = map_pages(COMPANION_PAGES),
					     .stack = map_pages(COMPANION_STACK / PAGE),
					     .page = (w->index * COMPANIONS + i) * COMPANION_PAGES,
					     .rounds = 1 + random_below(w, 40) };
		if (!all[i].memory || !all[i].stack)
			differs(w, NULL, "mmap: %s", strerror(errno));
		all[i].pid = clone(keep_company, all[i].stack + COMPANION_STACK, CLONE_VM | SIGCHLD, &all[i]);
	}
	for (unsigned acts = random_below(w, 12); acts; acts--)
		act_by_vfork(w);
	for (unsigned i = 0; i < n; i++) {
		expect_end(w, all[i].pid, COMPANION_CODE, "a child that shares the memory");
		munmap(all[i].memory, COMPANION_PAGES * PAGE);
		munmap(all[i].stack, COMPANION_STACK);
	}
	budget_give(n * COMPANION_PAGES);
}
