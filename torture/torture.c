/* The table of actions, the options, and the supervision of the workers. */
#include "torture.h"

#include <errno.h>
#include <getopt.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- the table ---------------------------------------------------------------------------------- */

#define ACTIONS(X) \
	X(write, 40, OWN_MEMORY, "fill pages anew") \
	X(poke, 40, OWN_MEMORY, "write single words") \
	X(verify, 40, OWN_MEMORY, "read a run of pages") \
	X(probe, 30, OWN_MEMORY, "read single pages here and there") \
	X(verify_all, 2, 0, "read everything that this thread owns") \
	X(nap, 25, 0, "sleep, so that memory grows cold") \
	X(spin, 3, 0, "compute without touching memory") \
	X(map, 14, USES_FDS, "map a region of any kind, 4 KiB to 64 MiB") \
	X(unmap, 5, OWN_MEMORY, "verify and unmap a region") \
	X(unmap_part, 5, OWN_MEMORY, "unmap part of a region") \
	X(fill_hole, 8, OWN_MEMORY, "map what was unmapped, by MAP_FIXED_NOREPLACE") \
	X(map_over, 10, OWN_MEMORY, "map new memory over old, by MAP_FIXED") \
	X(trim, 6, OWN_MEMORY, "keep the longest run of a region with holes") \
	X(holes, 3, ALONE, "holes, unmapped, moved away or kept out of children: MAP_FIXED there, munmap over them, fork") \
	X(grow, 12, OWN_MEMORY | USES_FDS, "mremap to more") \
	X(shrink, 6, OWN_MEMORY | USES_FDS, "mremap to less") \
	X(cut, 2, OWN_MEMORY, "cut a region into thousands of mappings, each other one protected or advised otherwise") \
	X(stripes, 2, OWN_MEMORY, "unmap each other piece of a region") \
	X(tear, 4, OWN_MEMORY, "mremap a piece of a region away, to more") \
	X(regrow, 8, OWN_MEMORY | USES_FDS, "mremap to less and back: the part that returns is zero") \
	X(move, 12, OWN_MEMORY | USES_FDS, "mremap, MREMAP_FIXED") \
	X(move_over, 5, OWN_MEMORY | USES_FDS, "mremap, MREMAP_FIXED over another region") \
	X(dontunmap, 6, OWN_MEMORY | USES_FDS, "mremap, MREMAP_DONTUNMAP: the old place is zero") \
	X(dontneed, 20, OWN_MEMORY, "MADV_DONTNEED") \
	X(purge, 6, OWN_MEMORY, "write and MADV_DONTNEED the same pages, many times") \
	X(remove, 4, 0, "MADV_DONTNEED and MADV_REMOVE of shared memory") \
	X(free, 12, OWN_MEMORY, "MADV_FREE") \
	X(free_and_touch, 8, OWN_MEMORY, "MADV_FREE, then write one word") \
	X(advise, 10, OWN_MEMORY, "advice that changes no content") \
	X(unfork, 8, OWN_MEMORY, "MADV_DONTFORK and DOFORK of any part, at any moment") \
	X(guard, 8, OWN_MEMORY, "MADV_GUARD_INSTALL and REMOVE") \
	X(pin, 6, OWN_MEMORY, "pin and unpin by zfolio.h, and ask where pages are") \
	X(protect, 20, OWN_MEMORY, "mprotect: read-only, nothing, and back") \
	X(heap, 20, OWN_MEMORY, "malloc, calloc, realloc, memalign, free") \
	X(heap_storm, 3, 0, "thousands of small objects, then malloc_trim") \
	X(heap_trim, 2, 0, "malloc_trim") \
	X(brk, 1, ALONE, "sbrk and brk: more, less, more again") \
	X(pipe, 6, USES_FDS, "write and read through a pipe") \
	X(pipe_vectors, 6, USES_FDS, "writev and readv through a pipe") \
	X(vmsplice, 3, USES_FDS, "vmsplice into a pipe") \
	X(socketpair, 5, USES_FDS, "sendmsg and recvmsg") \
	X(file, 5, USES_FDS, "pwrite, pwritev, pread, preadv of a file in --dir") \
	X(direct, 4, USES_FDS, "the same with O_DIRECT") \
	X(process_vm, 4, 0, "process_vm_readv and writev of ourselves") \
	X(uring, 3, USES_FDS, "io_uring: read and write") \
	X(uring_fixed, 3, USES_FDS, "io_uring: registered buffers") \
	X(uring_waiting, 2, USES_FDS, "io_uring: a read that waits for its bytes") \
	X(commons, 12, 0, "pages of several threads side by side: write, read, discard") \
	X(shelves, 6, 0, "pages under mutexes that several threads use") \
	X(recurse, 4, OWN_MEMORY, "deep recursion with verified locals") \
	X(tls, 6, 0, "thread-local data") \
	X(threads, 6, OWN_MEMORY | MAKES_THREADS, "threads that start, work, and are joined") \
	X(detached, 3, 0, "detached threads") \
	X(cancelled, 1, USES_FDS, "a cancelled thread") \
	X(robust, 3, 0, "robust mutexes of a thread that dies") \
	X(robust_process, 1, 0, "robust mutexes of a process that dies") \
	X(fork, 2, USES_FDS, "fork: the child verifies and acts on its copy") \
	X(fork_killed, 1, USES_FDS, "a forked child that is killed, perhaps before it runs") \
	X(vfork, 2, 0, "a vfork child uses our memory") \
	X(vfork_stays, 3, USES_FDS, "a vfork child acts on our memory for a while, and so does its child") \
	X(companions, 3, USES_FDS, "children of clone with CLONE_VM act beside us in our memory") \
	X(exec, 2, USES_FDS, "spawn, fork and vfork with exec of ourselves") \
	X(shell, 1, USES_FDS, "system and popen") \
	X(signals, 3, 0, "signals every millisecond: on, off, on an alternate stack") \
	X(barrier, 3, 0, "SIGSEGV at read-only memory, mended by its handler") \
	X(close_range, 1, OWNS_FDS, "close_range(3, ~0)") \
	X(full_table, 1, OWNS_FDS, "no descriptor left") \
	X(userfault, 2, USES_FDS, "a userfaultfd of the program's own: copies, moves, zeros") \
	X(uffd_move, 3, OWN_MEMORY | USES_FDS, "UFFDIO_MOVE out of a region, and back, or UFFDIO_COPY or ZEROPAGE") \
	X(plant_stale, 0, 0, "PLANTED: a page's older content") \
	X(plant_zero, 0, 0, "PLANTED: a page turned to zero") \
	X(plant_bit, 0, 0, "PLANTED: a bit flipped") \
	X(plant_foreign, 0, 0, "PLANTED: another page's content") \
	X(plant_undead, 0, 0, "PLANTED: a discarded page that is still there") \
	X(plant_stall, 0, 0, "PLANTED: an action that never ends")

#define DECLARE(name, weight, flags, what) action_fn act_##name;
ACTIONS(DECLARE)

#define ROW(name, weight, flags, what) { #name, weight, act_##name, flags, what },
const struct action actions[] = { ACTIONS(ROW) };
#define ACTION_COUNT (sizeof actions / sizeof *actions)

/* ---- state -------------------------------------------------------------------------------------- */

struct options options = {
	.seed = 1,
	.threads = 4,
	.seconds = 10,
	.stall_seconds = 60,
	.footprint_pages = 96 << 8,
	.directory = ".",
};
struct ground *ground;
struct worker *workers;

static unsigned weights[ACTION_COUNT];
static _Atomic bool stop;
static pthread_rwlock_t world, descriptors;
static pthread_barrier_t start;

/* ---- workers ------------------------------------------------------------------------------------ */

static const struct action *choose(struct worker *w, unsigned total)
{
	unsigned at = random_below(w, total);

	for (unsigned i = 0;; i++) {
		if (at < weights[i])
			return &actions[i];
		at -= weights[i];
	}
}

/* One random action of those with OWN_MEMORY and without another flag. */
static void act_within(struct worker *w, unsigned without)
{
	unsigned total = 0, at;

	for (unsigned i = 0; i < ACTION_COUNT; i++)
		total += (actions[i].flags & (OWN_MEMORY | without)) == OWN_MEMORY ? weights[i] : 0;
	if (total == 0)
		return;
	at = random_below(w, total);
	for (unsigned i = 0; i < ACTION_COUNT; i++) {
		if ((actions[i].flags & (OWN_MEMORY | without)) != OWN_MEMORY)
			continue;
		if (at < weights[i]) {
			note(w, "; %s", actions[i].name);
			actions[i].fn(w);
			return;
		}
		at -= weights[i];
	}
}

void act_on_own_memory(struct worker *w)
{
	act_within(w, 0);
}

void act_by_vfork(struct worker *w)
{
	act_within(w, MAKES_THREADS);
}

static void act(struct worker *w, const struct action *a)
{
	if (a->flags & ALONE)
		pthread_rwlock_wrlock(&world);
	else
		pthread_rwlock_rdlock(&world);
	if (a->flags & OWNS_FDS)
		pthread_rwlock_wrlock(&descriptors);
	else if (a->flags & USES_FDS)
		pthread_rwlock_rdlock(&descriptors);

	strcpy(w->history[w->actions % HISTORY], a->name);
	w->action = a;
	w->action_began_ms = now_ms();
	a->fn(w);
	w->action_began_ms = 0;
	turns_end(w);
	atomic_fetch_add(&w->actions, 1);

	if (a->flags & (OWNS_FDS | USES_FDS))
		pthread_rwlock_unlock(&descriptors);
	pthread_rwlock_unlock(&world);
}

/* Something to act on, also where --actions leaves `map` out. */
static void furnish(struct worker *w)
{
	for (unsigned kind = 0; kind < KINDS; kind++) {
		struct region *r = region_create(w, kind, 1 + random_below(w, 64));
		if (r)
			region_write(w, r, 0, r->pages);
	}
}

static void look_last(struct worker *w)
{
	region_verify_all(w);
	heap_verify_all(w);
}

static void *work(void *argument)
{
	static const struct action beginning = { "the beginning", 1, furnish, USES_FDS, "" };
	static const struct action between = { "a fork between", 1, family_fork, USES_FDS, "" };
	static const struct action end = { "the last look", 1, look_last, 0, "" };
	struct worker *w = argument;
	unsigned total = 0;

	for (unsigned i = 0; i < ACTION_COUNT; i++)
		total += weights[i];
	/* The first malloc of a thread makes an arena, which opens a file: before anybody counts files. */
	free(malloc(100));
	signals_begin(w);
	pthread_barrier_wait(&start);
	act(w, &beginning);
	while (!stop) {
		act(w, choose(w, total));
		if (options.fork_every && w->actions % options.fork_every == 0)
			act(w, &between);
	}
	act(w, &end);
	signals_end(w);
	return NULL;
}

/* Memory that is not under test: locked where that is allowed. */
static void *ledger_pages(size_t bytes)
{
	void *p =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED) {
		perror("torture: mmap");
		exit(2);
	}
	if (mlock2(p, bytes, MLOCK_ONFAULT) != 0)
		skip("locking the ledger", "%s", strerror(errno));
	return p;
}

static void *leave(void *argument)
{
	pthread_exit(argument);
}

static void workers_begin(void)
{
	pthread_rwlockattr_t attributes;
	pthread_t first;

	/* The first pthread_exit of a process opens libgcc_s.so.1: before an action fills the table. */
	if (pthread_create(&first, NULL, leave, NULL) == 0)
		pthread_join(first, NULL);

	pthread_rwlockattr_init(&attributes);
	pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&world, &attributes);
	pthread_rwlock_init(&descriptors, &attributes);
	pthread_barrier_init(&start, NULL, options.threads);

	commons_begin(ledger_pages);
	workers = ledger_pages(options.threads * sizeof *workers);
	for (unsigned i = 0; i < options.threads; i++) {
		struct worker *w = &workers[i];
		w->index = i;
		w->random = mix(options.seed * MAX_THREADS + i);
		struct cell *cells = ledger_pages((SLOTS + 1) * REGION_PAGES_MAX * sizeof *cells);
		for (unsigned slot = 0; slot < SLOTS; slot++) {
			w->regions[slot].cells = cells + slot * REGION_PAGES_MAX;
			w->regions[slot].turn = &ground->turns[i][slot];
		}
		w->plot.cells = cells + SLOTS * REGION_PAGES_MAX;
		w->plot.turn = &ground->turns[i][SLOTS];
	}
	for (unsigned i = 0; i < options.threads; i++) {
		int error = pthread_create(&workers[i].thread, NULL, work, &workers[i]);
		if (error) {
			fprintf(stderr, "torture: pthread_create: %s\n", strerror(error));
			exit(2);
		}
	}
}

/* ---- supervision -------------------------------------------------------------------------------- */

static void stall_check(void)
{
	for (unsigned i = 0; i < options.threads; i++) {
		struct worker *w = &workers[i];
		uint64_t began = w->action_began_ms, now = now_ms();
		if (began == 0 || now < began + options.stall_seconds * 1000ull)
			continue;
		differs(w, NULL, "thread %u has been in action \"%s\" for %llu ms: somebody waits for ever",
			i, w->action->name, (unsigned long long)(now - began));
	}
}

static uint64_t total_actions(void)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < options.threads; i++)
		n += workers[i].actions;
	return n;
}

static void say_progress(unsigned seconds)
{
	uint64_t written = 0, verified = 0, regions = 0, pages = 0;

	for (unsigned i = 0; i < options.threads; i++) {
		written += workers[i].pages_written;
		verified += workers[i].pages_verified;
		for (unsigned slot = 0; slot < SLOTS; slot++) {
			size_t n = workers[i].regions[slot].pages;
			regions += n != 0;
			pages += n;
		}
	}
	printf("torture: %u s, %llu actions, %llu MiB written, %llu MiB verified, %llu regions of %llu MiB\n",
	       seconds, (unsigned long long)total_actions(), (unsigned long long)written >> 8,
	       (unsigned long long)verified >> 8, (unsigned long long)regions,
	       (unsigned long long)pages >> 8);
	fflush(stdout);
}

static void supervise(void)
{
	uint64_t began = now_ms();

	for (unsigned tenths = 1;; tenths++) {
		nap_us(100000);
		unsigned seconds = (now_ms() - began) / 1000;
		if (seconds >= options.seconds)
			break;
		if (tenths % 10 == 0)
			stall_check();
		if (tenths % 100 == 0)
			say_progress(seconds);
	}
	stop = true;
	for (unsigned i = 0; i < options.threads; i++) {
		struct timespec until;
		for (;;) {
			clock_gettime(CLOCK_REALTIME, &until);
			until.tv_sec += 1;
			if (pthread_timedjoin_np(workers[i].thread, NULL, &until) == 0)
				break;
			stall_check();
		}
	}
}

/* ---- options ------------------------------------------------------------------------------------ */

static void usage(FILE *to)
{
	fprintf(to, "usage: torture [--seconds N] [--seed N] [--threads N] [--footprint SIZE] [--dir DIR]\n"
		    "               [--fork-every ACTIONS] [--actions NAME,...]\n"
		    "               [--without NAME,...] [--stall SECONDS] [--list]\n");
}

static _Noreturn void refuse(const char *option, const char *value)
{
	fprintf(stderr, "torture: %s: %s?\n", option, value);
	usage(stderr);
	exit(2);
}

static uint64_t number(const char *option, const char *text, uint64_t least, uint64_t most)
{
	char *end;
	uint64_t n = strtoull(text, &end, 0);

	switch (*end) {
	case 'G': n <<= 10; /* fall through */
	case 'M': n <<= 10; /* fall through */
	case 'K':
		n <<= 10;
		end++;
		break;
	default: break;
	}
	if (*end || end == text || n < least || n > most)
		refuse(option, text);
	return n;
}

static void choose_actions(const char *option, char *names, bool chosen)
{
	for (char *name = strtok(names, ","); name; name = strtok(NULL, ",")) {
		unsigned i = 0;
		while (i < ACTION_COUNT && strcmp(actions[i].name, name) != 0)
			i++;
		if (i == ACTION_COUNT)
			refuse(option, name);
		weights[i] = !chosen ? 0 : actions[i].weight ? actions[i].weight : 1;
	}
}

static void list(void)
{
	for (unsigned i = 0; i < ACTION_COUNT; i++)
		printf("%-16s %3u  %s\n", actions[i].name, actions[i].weight, actions[i].what);
}

static void parse(int argc, char **argv)
{
	static const struct option known[] = {
		{ "seconds", required_argument, NULL, 's' },
		{ "seed", required_argument, NULL, 'S' },
		{ "threads", required_argument, NULL, 't' },
		{ "footprint", required_argument, NULL, 'f' },
		{ "dir", required_argument, NULL, 'd' },
		{ "fork-every", required_argument, NULL, 'F' },
		{ "actions", required_argument, NULL, 'a' },
		{ "without", required_argument, NULL, 'x' },
		{ "stall", required_argument, NULL, 'w' },
		{ "list", no_argument, NULL, 'l' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};

	for (unsigned i = 0; i < ACTION_COUNT; i++)
		weights[i] = actions[i].weight;
	for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
		switch (c) {
		case 's': options.seconds = number("--seconds", optarg, 0, 1 << 30); break;
		case 'S': options.seed = number("--seed", optarg, 0, UINT64_MAX); break;
		case 't': options.threads = number("--threads", optarg, 1, MAX_THREADS); break;
		case 'f':
			options.footprint_pages = number("--footprint", optarg, 1 << 20, 1ull << 40) / PAGE;
			break;
		case 'd': options.directory = optarg; break;
		case 'F': options.fork_every = number("--fork-every", optarg, 0, 1 << 30); break;
		case 'a':
			memset(weights, 0, sizeof weights);
			choose_actions("--actions", optarg, true);
			break;
		case 'x': choose_actions("--without", optarg, false); break;
		case 'w': options.stall_seconds = number("--stall", optarg, 1, 1 << 20); break;
		case 'l': list(); exit(0);
		case 'h': usage(stdout); exit(0);
		default: usage(stderr); exit(2);
		}
	}
	if (optind < argc)
		refuse("argument", argv[optind]);
}

int main(int argc, char **argv)
{
	ground = mmap(NULL, sizeof *ground, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	/* By its path: what /proc/self/exe names depends on who looks. */
	static char path[4096];
	options.program = readlink("/proc/self/exe", path, sizeof path - 1) > 0 ? path : argv[0];
	if (argc > 1 && strcmp(argv[1], "--child") == 0)
		return family_child_main(argc, argv);
	parse(argc, argv);
	signal(SIGPIPE, SIG_IGN);
	signals_install();
	content_seed(options.seed);
	/* Output never allocates. */
	static char output[BUFSIZ];
	setvbuf(stdout, output, _IOLBF, sizeof output);
	/* With few arenas they are shared, and malloc uses brk too. */
	if (options.seed % 2)
		mallopt(M_ARENA_MAX, 2);
	noise_begin();
	workers_begin();
	supervise();
	printf("torture: %llu actions, 0 differences, seed %llu\n", (unsigned long long)total_actions(),
	       (unsigned long long)options.seed);
	return 0;
}
