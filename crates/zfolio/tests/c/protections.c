/*
 * Memory of other protections than reading and writing, which goes out all the same. The first argument says what
 * is tried, the second how many MiB there are of it:
 *
 *   code      readable, writable and executable: each page holds a function that returns its number, and data
 *   barrier   read-only but where a handler of SIGSEGV lets a page be written: threads write, and the memory is
 *   made read-only again and again (for the third argument's seconds) flips     made executable, read-only and
 *   writable again by one thread, page by page, while others read it and map memory (for the third argument's
 *   seconds) lent      made read-only while io_uring has it for good, and written to later: what is sent from there
 *   is what was written populate  filled by mmap (MAP_POPULATE), in each way that it can be
 *   keys      made read-only under a protection key, as a JIT does with its code, and made writable again
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, WRITERS = 2, READERS = 2, FEW = 64 << 10 };

static uint8_t *memory;
static size_t bytes, pages;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void fail(const char *what, size_t page)
{
	printf("wrong: %s (page %zu)\n", what, page);
	fflush(stdout);
	_exit(1);
}

static void *map(size_t length, int protection, int flags)
{
	void *at = mmap(NULL, length, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
	if (at == MAP_FAILED)
		fail("mmap", 0);
	return at;
}

static void protect(size_t page, size_t count, int protection)
{
	if (mprotect(memory + page * PAGE, count * PAGE, protection) != 0)
		fail("mprotect", page);
}

static uint64_t *words_of(size_t page)
{
	return (uint64_t *)(memory + page * PAGE);
}

/* What a word holds; compressible, and different on each page. */
static uint64_t word(size_t page, size_t i)
{
	return i % 8 ? page * 31 + i / 64 : page * 0x9e3779b97f4a7c15u + i;
}

/* ---- code --------------------------------------------------------------------------------------- */

static void code(void)
{
	memory = map(bytes, PROT_READ | PROT_WRITE | PROT_EXEC, 0);
	for (size_t page = 0; page < pages; page++) {
		uint8_t *at = memory + page * PAGE;
		/* mov $page,%eax; ret */
		*at = 0xb8;
		memcpy(at + 1, &(uint32_t){ page }, 4);
		at[5] = 0xc3;
		for (size_t i = 1; i < WORDS; i++)
			words_of(page)[i] = word(page, i);
	}
	for (int round = 0; round < 2; round++)
		for (size_t n = 0; n < pages; n++) {
			size_t page = round ? n * 7919 % pages : n;
			if (((uint32_t(*)(void))(memory + page * PAGE))() != page)
				fail("a function", page);
			for (size_t i = 1; i < WORDS; i++)
				if (words_of(page)[i] != word(page, i))
					fail("data beside a function", page);
		}
}

/* ---- barrier ------------------------------------------------------------------------------------ */

static _Atomic(uint8_t) *is_open;
static uint32_t *written[WRITERS];
static uint8_t *was_written[WRITERS];
static __thread size_t target = SIZE_MAX;
static pthread_barrier_t gate;
static _Atomic(int) stop;

static void let_through(int number, siginfo_t *info, void *context)
{
	size_t page = ((uint8_t *)info->si_addr - memory) / PAGE;
	(void)number, (void)context;
	if (page != target || info->si_code != SEGV_ACCERR)
		fail("a signal that no write has raised", page);
	is_open[page] = 1;
	protect(page, 1, PROT_READ | PROT_WRITE);
}

static void *writer(void *argument)
{
	size_t self = (size_t)argument, seed = self + 1;
	for (;;) {
		pthread_barrier_wait(&gate);
		if (stop)
			return NULL;
		for (int n = 0; n < 2000; n++) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			size_t page = (seed >> 33) % pages;
			_Atomic(uint64_t) *at = (_Atomic(uint64_t) *)&words_of(page)[1 + self];
			target = page;
			if (seed >> 63)
				atomic_fetch_add(at, 1);
			else
				atomic_store(at, written[self][page] + 1);
			target = SIZE_MAX;
			written[self][page]++;
			was_written[self][page] = 1;
			if (*at != written[self][page])
				fail("a word that was just written", page);
		}
		pthread_barrier_wait(&gate);
	}
}

static void barrier(double seconds)
{
	struct sigaction action = { .sa_sigaction = let_through, .sa_flags = SA_SIGINFO };
	pthread_t threads[WRITERS];
	double end = now() + seconds;

	memory = map(bytes, PROT_READ | PROT_WRITE, 0);
	is_open = calloc(pages, 1);
	sigaction(SIGSEGV, &action, NULL);
	pthread_barrier_init(&gate, NULL, WRITERS + 1);
	for (size_t page = 0; page < pages; page++)
		for (size_t i = 8; i < WORDS; i++)
			words_of(page)[i] = word(page, i);
	for (size_t i = 0; i < WRITERS; i++) {
		written[i] = calloc(pages, sizeof *written[i]);
		was_written[i] = calloc(pages, 1);
		pthread_create(&threads[i], NULL, writer, (void *)i);
	}
	while (now() < end) {
		memset((void *)is_open, 0, pages);
		for (size_t i = 0; i < WRITERS; i++)
			memset(was_written[i], 0, pages);
		protect(0, pages, PROT_READ);
		pthread_barrier_wait(&gate);
		pthread_barrier_wait(&gate);
		for (size_t page = 0; page < pages; page++)
			if (is_open[page] != (was_written[0][page] || was_written[1][page]))
				fail("a write that has raised no signal, or a signal without a write", page);
	}
	stop = 1;
	pthread_barrier_wait(&gate);
	for (size_t i = 0; i < WRITERS; i++)
		pthread_join(threads[i], NULL);
	for (size_t page = 0; page < pages; page++) {
		for (size_t i = 0; i < WRITERS; i++)
			if (words_of(page)[1 + i] != written[i][page])
				fail("what was written", page);
		for (size_t i = 8; i < WORDS; i++)
			if (words_of(page)[i] != word(page, i))
				fail("what was not written", page);
	}
}

/* ---- flips -------------------------------------------------------------------------------------- */

static void *reader(void *argument)
{
	size_t seed = (size_t)argument + 1;
	while (!stop) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		size_t page = (seed >> 33) % pages, i = 8 + (seed >> 50) % (WORDS - 8);
		if (((volatile uint64_t *)words_of(page))[i] != word(page, i))
			fail("what was read", page);
	}
	return NULL;
}

/* Whatever it maps may come to where something was unmapped a moment ago, and is its own. */
static void *mapper(void *argument)
{
	size_t seed = (size_t)argument + 7;
	while (!stop) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		size_t count = 16 + (seed >> 60);
		uint64_t *at = map(count * PAGE, PROT_READ | PROT_WRITE, seed >> 40 & 1 ? MAP_POPULATE : 0);
		for (size_t page = 0; page < count; page++)
			at[page * WORDS] = seed + page;
		if (seed >> 41 & 1)
			mprotect(at, count * PAGE, PROT_READ);
		usleep(seed >> 54);
		for (size_t page = 0; page < count; page++)
			if (at[page * WORDS] != seed + page || at[page * WORDS + 1] != 0)
				fail("what a mapping holds", page);
		munmap(at, count * PAGE);
	}
	return NULL;
}

static void flips(double seconds)
{
	static const int protections[] = { PROT_READ, PROT_READ | PROT_EXEC, PROT_READ | PROT_WRITE,
					   PROT_READ | PROT_WRITE | PROT_EXEC };
	pthread_t threads[READERS + 2];
	double end = now() + seconds;
	size_t seed = 5, count = 0;

	memory = map(bytes, PROT_READ | PROT_WRITE, 0);
	for (size_t page = 0; page < pages; page++)
		for (size_t i = 0; i < WORDS; i++)
			words_of(page)[i] = word(page, i);
	for (size_t i = 0; i < READERS + 2; i++)
		pthread_create(&threads[i], NULL, i < READERS ? reader : mapper, (void *)i);
	while (now() < end) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		size_t page = (seed >> 33) % pages, run = 1 + (seed >> 59);
		run = run < pages - page ? run : pages - page;
		int protection = protections[seed >> 20 & 3];
		protect(page, run, protection);
		if (protection & PROT_WRITE)
			/* A word that no reader looks at. */
			for (size_t p = page; p < page + run; p++)
				words_of(p)[1] = ++count;
	}
	stop = 1;
	for (size_t i = 0; i < READERS + 2; i++)
		pthread_join(threads[i], NULL);
}

/* ---- lent --------------------------------------------------------------------------------------- */

/* Has the kernel write a buffer that it was lent to a pipe, and reads that. */
static void send(int ring, const struct io_uring_params *p, void *queue, struct io_uring_sqe *entry, uint64_t *to)
{
	int ends[2];
	uint32_t *tail = (uint32_t *)((uint8_t *)queue + p->sq_off.tail);

	if (pipe(ends) != 0)
		fail("pipe", 0);
	*entry = (struct io_uring_sqe){ .opcode = IORING_OP_WRITE_FIXED, .fd = ends[1], .off = -1, .len = PAGE,
					.addr = (uintptr_t)memory };
	((uint32_t *)((uint8_t *)queue + p->sq_off.array))[*tail % p->sq_entries] = 0;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1 || read(ends[0], to, PAGE) != PAGE)
		fail("what io_uring does", 0);
	close(ends[0]);
	close(ends[1]);
}

static void lent(double seconds)
{
	struct io_uring_params p = { 0 };
	uint64_t sent[WORDS];
	double end = now() + seconds;
	int ring = syscall(SYS_io_uring_setup, 4, &p);

	memory = map(bytes, PROT_READ | PROT_WRITE, 0);
	if (ring < 0 || syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &(struct iovec){ memory, PAGE }, 1) != 0) {
		puts("skipped: io_uring is refused");
		return;
	}
	void *queue = mmap(NULL, p.sq_off.array + p.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	void *entries = mmap(NULL, p.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED, ring,
			     IORING_OFF_SQES);
	if (queue == MAP_FAILED || entries == MAP_FAILED)
		fail("a ring", 0);
	for (uint64_t round = 1; now() < end; round++) {
		for (size_t page = 0; page < pages; page++)
			words_of(page)[0] = round * pages + page;
		protect(0, pages, PROT_READ);
		usleep(50000);
		send(ring, &p, queue, entries, sent);
		if (sent[0] != round * pages)
			fail("what was sent from memory that cannot be written to", 0);
		protect(0, pages, PROT_READ | PROT_WRITE);
		words_of(0)[0] = ~round;
		send(ring, &p, queue, entries, sent);
		if (sent[0] != ~round)
			fail("what was sent from memory that can be written to again", 0);
	}
}

/* ---- populate ----------------------------------------------------------------------------------- */

/* How many pages of a range are there. */
static size_t present(void *at, size_t length)
{
	static unsigned char vector[1 << 20];
	size_t count = 0;
	if (mincore(at, length, vector) != 0)
		fail("mincore", 0);
	for (size_t i = 0; i < length / PAGE; i++)
		count += vector[i] & 1;
	return count;
}

static long peak_kib(void)
{
	char line[256];
	long kib = -1;
	FILE *status = fopen("/proc/self/status", "r");
	while (status && fgets(line, sizeof line, status))
		sscanf(line, "VmHWM: %ld", &kib);
	return kib;
}

static void populate(void)
{
	/* As ever where there is room: all of it is there, whatever its protection. */
	if (present(map(FEW, PROT_READ | PROT_WRITE, MAP_POPULATE), FEW) != FEW / PAGE)
		fail("few pages", 0);
	size_t some = 16 * FEW;
	uint8_t *all = map(some, PROT_READ | PROT_WRITE, MAP_POPULATE);
	if (present(all, some) != some / PAGE)
		fail("some pages", 0);
	memset(all, 1, some);
	if (mmap(all, some, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_POPULATE, -1, 0) != all ||
	    all[0] || all[some - 1])
		fail("in the place of others", 0);
	map(some, PROT_NONE, MAP_POPULATE);
	errno = 0;
	if (mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0) != MAP_FAILED || errno != EINVAL)
		fail("an errno", 0);
	errno = 0;
	if (mmap(all, some, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_POPULATE, -1, 0) != MAP_FAILED ||
	    errno != EEXIST)
		fail("another errno", 0);
	/* More than there is room for. */
	memory = map(bytes, PROT_READ | PROT_WRITE, MAP_POPULATE);
	for (size_t page = 0; page < pages; page++) {
		if (words_of(page)[1])
			fail("fresh memory", page);
		words_of(page)[1] = word(page, 1);
	}
	for (size_t page = 0; page < pages; page++)
		if (words_of(page)[1] != word(page, 1))
			fail("populated memory", page);
	printf("peak %ld\n", peak_kib() >> 10);
}

/* ---- keys --------------------------------------------------------------------------------------- */

static void keys(void)
{
	int key = pkey_alloc(0, 0);

	if (key < 0) {
		puts("no keys");
		return;
	}
	memory = map(bytes, PROT_READ | PROT_WRITE, 0);
	for (int round = 0; round < 3; round++) {
		for (size_t page = 0; page < pages; page++)
			for (size_t i = 0; i < WORDS; i++) {
				if (round && words_of(page)[i] != word(page, i) + round - 1)
					fail("memory with a key", page);
				words_of(page)[i] = word(page, i) + round;
			}
		if (pkey_mprotect(memory, bytes, PROT_READ | (round == 1 ? PROT_EXEC : 0), key) != 0)
			fail("pkey_mprotect", 0);
		for (size_t n = 0; n < pages; n++) {
			size_t page = n * 7919 % pages;
			if (words_of(page)[1] != word(page, 1) + round)
				fail("read-only memory with a key", page);
		}
		if (pkey_mprotect(memory, bytes, PROT_READ | PROT_WRITE, 0) != 0)
			fail("pkey_mprotect", 1);
	}
}

int main(int count, char **arguments)
{
	if (count < 3)
		return 2;
	bytes = strtoul(arguments[2], NULL, 10) << 20;
	pages = bytes / PAGE;
	double seconds = count > 3 ? atof(arguments[3]) : 1;
	switch (arguments[1][0]) {
	case 'c': code(); break;
	case 'b': barrier(seconds); break;
	case 'f': flips(seconds); break;
	case 'l': lent(seconds); break;
	case 'k': keys(); break;
	default: populate(); break;
	}
	puts("right");
	return 0;
}
