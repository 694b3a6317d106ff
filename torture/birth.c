/* Actions with threads that start and end: joined, detached, cancelled, dying with mutexes in hand. */
#include "torture.h"

#include <errno.h>
#include <limits.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BIRTH_ID (REGION_IDS - 5 - MAX_THREADS)

/* What a short-lived thread gets, in malloc'ed memory. */
struct errand {
	struct worker *w;
	tag_t tag;
	unsigned bytes;
	bool leave;  /* by pthread_exit */
	sem_t *done; /* for a detached one */
	uint8_t data[];
};

static struct errand *errand_new(struct worker *w, unsigned serial)
{
	unsigned bytes = 1 + random_below(w, 20000);
	struct errand *e = malloc(sizeof *e + bytes);

	if (!e)
		differs(w, NULL, "malloc: %s", strerror(errno));
	e->w = w;
	e->tag = tag_make(BIRTH_ID, w->index * 8, w->actions * 16 + serial, 0);
	e->bytes = bytes;
	e->leave = one_in(w, 2);
	e->done = NULL;
	content_fill_bytes(e->data, bytes, e->tag);
	return e;
}

static __attribute__((noinline)) void use_stack(struct errand *e)
{
	uint8_t local[24000];

	content_fill_bytes(local, sizeof local, e->tag);
	nap_us(e->bytes % 4 ? 0 : 300);
	bytes_verify(e->w, local, sizeof local, e->tag, "the stack of a short-lived thread");
}

static void *run_errand(void *argument)
{
	struct errand *e = argument;
	struct worker *w = e->w;

	tls_verify_new(w);
	bytes_verify(w, e->data, e->bytes, e->tag, "the argument of a new thread");
	use_stack(e);
	tls_image[1] = e->bytes;
	memset(tls_pages[e->bytes % TLS_PAGES], 0x77, PAGE);
	if (e->done) {
		sem_t *done = e->done;
		free(e);
		sem_post(done);
		return NULL;
	}
	if (e->leave)
		pthread_exit(e);
	return e;
}

static void started(struct worker *w, int error)
{
	if (error)
		differs(w, NULL, "pthread_create: %s", strerror(error));
}

void act_threads(struct worker *w)
{
	unsigned n = 1 + random_below(w, 6);
	pthread_t threads[6];
	struct errand *errands[6];
	void *stacks[6] = { 0 };
	size_t stack_bytes = 1 << 20;

	note(w, " %u threads", n);
	for (unsigned i = 0; i < n; i++) {
		pthread_attr_t attributes;
		pthread_attr_init(&attributes);
		switch (random_below(w, 4)) {
		case 0:
			stacks[i] = map_pages(stack_bytes / PAGE);
			if (stacks[i])
				pthread_attr_setstack(&attributes, stacks[i], stack_bytes);
			break;
		case 1: pthread_attr_setstacksize(&attributes, stack_bytes << random_below(w, 3)); break;
		case 2: pthread_attr_setguardsize(&attributes, PAGE * random_below(w, 20)); break;
		default: break;
		}
		errands[i] = errand_new(w, i);
		started(w, pthread_create(&threads[i], &attributes, run_errand, errands[i]));
		pthread_attr_destroy(&attributes);
	}
	for (unsigned i = 0; i < n; i++) {
		void *result = NULL;
		int error = pthread_join(threads[i], &result);
		if (error || result != errands[i])
			differs(w, &threads[i], "pthread_join: %s, result %p instead of %p", strerror(error),
				result, (void *)errands[i]);
		bytes_verify(w, errands[i]->data, errands[i]->bytes, errands[i]->tag,
			     "the argument of a thread that ended");
		free(errands[i]);
		if (stacks[i])
			munmap(stacks[i], stack_bytes);
	}
}

void act_detached(struct worker *w)
{
	unsigned n = 1 + random_below(w, 4);
	sem_t *done = malloc(sizeof *done);
	pthread_attr_t attributes;

	note(w, " %u threads", n);
	sem_init(done, 0, 0);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	for (unsigned i = 0; i < n; i++) {
		pthread_t thread;
		struct errand *e = errand_new(w, i);
		e->done = done;
		started(w, pthread_create(&thread, &attributes, run_errand, e));
	}
	pthread_attr_destroy(&attributes);
	for (unsigned i = 0; i < n; i++)
		while (sem_wait(done) != 0)
			if (errno != EINTR)
				differs(w, done, "sem_wait: %s", strerror(errno));
	/* A poster may still be inside sem_post: this memory is not given back. */
	static _Atomic(void *) kept[16];
	free(atomic_exchange(&kept[w->actions % 16], NULL));
	kept[w->actions % 16] = done;
}

static void cleaned_up(void *argument)
{
	*(volatile unsigned *)argument = 1;
}

static void *wait_to_be_cancelled(void *argument)
{
	uint64_t page[WORDS];
	tag_t tag = tag_make(BIRTH_ID, 0, 77, 0);

	content_fill(page, tag);
	pthread_cleanup_push(cleaned_up, argument);
	for (;;) {
		nap_us(1000000);
		if (!content_matches(page, tag))
			break;
	}
	pthread_cleanup_pop(0);
	return NULL;
}

void act_cancelled(struct worker *w)
{
	volatile unsigned *cleaned = calloc(1, sizeof *cleaned);
	pthread_t thread;
	void *result;

	started(w, pthread_create(&thread, NULL, wait_to_be_cancelled, (void *)cleaned));
	nap_us(random_below(w, 1500));
	pthread_cancel(thread);
	int error = pthread_join(thread, &result);
	/* Cancelled before it came to its cleanup handler is as good. */
	if (error || result != PTHREAD_CANCELED)
		differs(w, (void *)cleaned, "a cancelled thread: %s, result %p", strerror(error), result);
	free((void *)cleaned);
}

/* ---- robust mutexes ----------------------------------------------------------------------------- */

struct legacy {
	struct worker *w;
	unsigned locks;
	pthread_mutex_t locks_held[8];
	tag_t tag;
	uint64_t page[WORDS];
};

static void legacy_init(struct legacy *l, struct worker *w, int shared)
{
	pthread_mutexattr_t attributes;

	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutexattr_setpshared(&attributes, shared);
	l->w = w;
	l->locks = 1 + random_below(w, 8);
	for (unsigned i = 0; i < l->locks; i++)
		pthread_mutex_init(&l->locks_held[i], &attributes);
	pthread_mutexattr_destroy(&attributes);
}

static void *die_holding(void *argument)
{
	struct legacy *l = argument;

	for (unsigned i = 0; i < l->locks; i++)
		pthread_mutex_lock(&l->locks_held[i]);
	tag_t tag = tag_make(BIRTH_ID, 1, l->locks, 0);
	content_fill(l->page, tag);
	__atomic_store_n(&l->tag, tag, __ATOMIC_RELEASE);
	nap_us(300);
	return NULL;
}

static void inherit(struct worker *w, struct legacy *l, const char *of)
{
	for (unsigned i = 0; i < l->locks; i++) {
		int error = pthread_mutex_lock(&l->locks_held[i]);
		if (error != EOWNERDEAD)
			differs(w, &l->locks_held[i],
				"robust mutex %u of %u, of %s: %s instead of EOWNERDEAD", i, l->locks, of,
				error ? strerror(error) : "success");
		pthread_mutex_consistent(&l->locks_held[i]);
		pthread_mutex_unlock(&l->locks_held[i]);
		if ((error = pthread_mutex_lock(&l->locks_held[i])) != 0)
			differs(w, &l->locks_held[i], "a robust mutex made consistent: %s", strerror(error));
		pthread_mutex_unlock(&l->locks_held[i]);
	}
}

static void legacy_end(struct worker *w, struct legacy *l)
{
	bytes_verify(w, l->page, PAGE, l->tag, "what a dead owner wrote");
	for (unsigned i = 0; i < l->locks; i++)
		pthread_mutex_destroy(&l->locks_held[i]);
}

/* The lock is asked for before the owner's death (the kernel wakes us) or after it. */
void act_robust(struct worker *w)
{
	struct legacy *l = calloc(1, sizeof *l);
	pthread_t thread;
	bool before = one_in(w, 2);

	legacy_init(l, w, PTHREAD_PROCESS_PRIVATE);
	note(w, " %u mutexes at %p%s", l->locks, (void *)l, before ? ", waited for" : "");
	started(w, pthread_create(&thread, NULL, die_holding, l));
	if (before) {
		/* Wait until it holds all of them, and then for its death. */
		while (!__atomic_load_n(&l->tag, __ATOMIC_ACQUIRE))
			nap_us(20);
		inherit(w, l, "a dying thread");
	}
	int error = pthread_join(thread, NULL);
	if (error)
		differs(w, l, "pthread_join: %s", strerror(error));
	if (!before)
		inherit(w, l, "a dead thread");
	legacy_end(w, l);
	free(l);
}

/* The same with a process, in shared memory. */
void act_robust_process(struct worker *w)
{
	struct legacy *l = mmap(NULL, sizeof *l, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status;

	if (l == MAP_FAILED)
		return;
	legacy_init(l, w, PTHREAD_PROCESS_SHARED);
	pid_t child = fork();
	if (child == 0) {
		w->child = true;
		die_holding(l);
		_exit(5);
	}
	if (child < 0)
		differs(w, NULL, "fork: %s", strerror(errno));
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			differs(w, NULL, "waitpid: %s", strerror(errno));
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 5)
		differs(w, NULL, "the child's status is %x instead of 500", status);
	inherit(w, l, "a dead process");
	legacy_end(w, l);
	munmap(l, sizeof *l);
}
