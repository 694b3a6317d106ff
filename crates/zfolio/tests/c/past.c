/*
 * Fills memory that it can check, waits until most of it is out, has the kernel look at it, take it or advise on it
 * past any fault, as its first argument says, and checks every word. Exit status 0 and "right" where all is as without
 * zfolio, 77 and a reason where this machine cannot do it. With HERE in the environment it does not wait: to be tried
 * without.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 2048
#define WORDS (PAGE / 8)
/*
 * Of so many pages in a row the last is not touched. A fault may have brought it with others, and it looks touched
 * then.
 */
#define EVERY 8

#ifndef UFFDIO_MOVE
struct uffdio_move {
	__u64 dst, src, len, mode;
	__s64 move;
};
#define UFFDIO_MOVE _IOWR(UFFDIO, 5, struct uffdio_move)
#endif
#define MOVE_ALLOW_HOLES 2
#define FEATURE_MOVE (1 << 16)
#define FEATURE_WP_UNPOPULATED (1 << 13)
#define FEATURE_WP_ASYNC (1 << 15)

struct scan {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, anyof, ret;
};
struct found {
	uint64_t start, end, categories;
};
#define SCAN _IOWR('f', 16, struct scan)
#define IS_WRITTEN 2
#define IS_FILE 4
#define IS_PRESENT 8
#define IS_ZERO 32
#define WP_MATCHING 1
#define CHECK_WPASYNC 2

ssize_t __pread64_chk(int, void *, size_t, off_t, size_t);
ssize_t __read_chk(int, void *, size_t, size_t);

static uint64_t *memory;
/* Nobody touches these, nor anything beside them. */
#define FEW 64
static uint64_t *untouched;
static uint64_t entries[PAGES];

static void fail(const char *why)
{
	printf("%s (%s)\n", why, strerror(errno));
	exit(1);
}

static void skip(const char *why)
{
	printf("%s: %s\n", why, strerror(errno));
	exit(77);
}

static int is_touched(size_t page)
{
	return page % EVERY != EVERY - 1;
}

/* Every third page is zeros. */
static uint64_t word(size_t i)
{
	return i / WORDS % 3 == 0 ? 0 : (i + 1) * 0x9e3779b97f4a7c15ull;
}

static uint64_t *map(size_t pages)
{
	void *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		fail("mmap");
	madvise(at, pages * PAGE, MADV_NOHUGEPAGE);
	return at;
}

static size_t present(void)
{
	static unsigned char there[PAGES];
	size_t count = 0;

	if (mincore(memory, PAGES * PAGE, there) != 0)
		fail("mincore");
	for (size_t i = 0; i < PAGES; i++)
		count += there[i] & 1;
	return count;
}

/*
 * Returns when most of it is out: mincore says of it what it says of the kernel's swap. The shared zero page, as which
 * zeros are read, stays.
 */
static void until_out(void)
{
	for (int i = 0; i < 20000; i++) {
		if (getenv("HERE") || present() < PAGES / 5 * 3)
			return;
		usleep(1000);
	}
	fail("it does not go out");
}

static void fill(void)
{
	/* Apart from what else is mapped. */
	memory = map(PAGES + 2) + WORDS;
	mprotect(memory - WORDS, PAGE, PROT_NONE);
	mprotect(memory + PAGES * WORDS, PAGE, PROT_NONE);
	for (size_t i = 0; i < PAGES * WORDS; i++)
		if (is_touched(i / WORDS))
			memory[i] = word(i);
	untouched = map(FEW + 2) + WORDS;
	mprotect(untouched - WORDS, PAGE, PROT_NONE);
	mprotect(untouched + FEW * WORDS, PAGE, PROT_NONE);
	until_out();
}

/* `at` holds what was written to `memory`. */
static void verify(const uint64_t *at)
{
	for (size_t i = 0; i < PAGES * WORDS; i++)
		if (at[i] != (is_touched(i / WORDS) ? word(i) : 0)) {
			printf("word %zu of page %zu is %lx\n", i % WORDS, i / WORDS, (unsigned long)at[i]);
			exit(1);
		}
}

static int open_pagemap(void)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		fail("/proc/self/pagemap");
	return fd;
}

static off_t where(void)
{
	return (uintptr_t)memory / PAGE * 8;
}

/* Threads that bring pages in all the time. */
static volatile int stop;

static void *toucher(void *unused)
{
	uint64_t x = 1;

	while (!stop) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		size_t page = (x >> 33) % PAGES;
		if (is_touched(page))
			*(volatile uint64_t *)(memory + page * WORDS);
	}
	return unused;
}

/* What was written is there or swapped. */
static void check_entries(void)
{
	for (size_t i = 0; i < PAGES; i++)
		if ((is_touched(i) && entries[i] >> 62 == 0) || entries[i] >> 57 & 1) {
			printf("page %zu is %lx\n", i, (unsigned long)entries[i]);
			exit(1);
		}
}

/* And what was never touched is neither. */
static void check_untouched(int fd)
{
	uint64_t few[FEW];

	if (pread(fd, few, sizeof few, (uintptr_t)untouched / PAGE * 8) != sizeof few)
		fail("not all was read");
	for (size_t i = 0; i < FEW; i++)
		if ((few[i] & ~(1ull << 55)) != 0)
			fail("what was never touched looks as if it had been");
}

enum how { PREAD, READ, CHK, READ_CHK, READV, PREADV, PREADV2, RAW, RAW_READ, RAW_PREADV, DUP, THREAD, HOWS };

static void look(int fd, enum how how)
{
	struct iovec pieces[2] = { { entries, 24 }, { entries + 3, sizeof entries - 24 } };
	ssize_t done = -1;

	memset(entries, 0x55, sizeof entries);
	if (how == READ || how == READ_CHK || how == READV || how == RAW_READ)
		lseek(fd, where(), SEEK_SET);
	switch (how) {
	case PREAD: case DUP: case THREAD: done = pread(fd, entries, sizeof entries, where()); break;
	case READ: done = read(fd, entries, sizeof entries); break;
	case CHK: done = __pread64_chk(fd, entries, sizeof entries, where(), sizeof entries); break;
	case READ_CHK: done = __read_chk(fd, entries, sizeof entries, sizeof entries); break;
	case READV: done = readv(fd, pieces, 2); break;
	case PREADV: done = preadv(fd, pieces, 2, where()); break;
	case PREADV2: done = preadv2(fd, pieces, 2, where(), 0); break;
	case RAW: done = syscall(SYS_pread64, fd, entries, sizeof entries, where()); break;
	case RAW_READ: done = syscall(SYS_read, fd, entries, sizeof entries); break;
	case RAW_PREADV: done = syscall(SYS_preadv2, fd, pieces, 2, where(), 0, 0); break;
	default: break;
	}
	if (done != sizeof entries)
		fail("not all was read");
	if ((how == READ || how == READV) && lseek(fd, 0, SEEK_CUR) != where() + done)
		fail("the descriptor stands elsewhere");
}

static void looks(void)
{
	int own = open_pagemap(), thread = open("/proc/thread-self/pagemap", O_RDONLY);
	pthread_t other;

	for (enum how how = PREAD; how < HOWS; how++) {
		int fd = how == DUP ? dup(own) : how == THREAD ? thread : own;
		until_out();
		look(fd, how);
		check_entries();
		check_untouched(fd);
		if (how == DUP)
			close(fd);
	}
	pthread_create(&other, NULL, toucher, NULL);
	for (int i = 0; i < 300; i++) {
		look(own, i % HOWS);
		check_entries();
	}
	stop = 1;
	pthread_join(other, NULL);
	verify(memory);
}

/*
 * All pages that were written to, by PAGEMAP_SCAN with so many regions and pages at a time, as who resets memory asks
 * for them.
 */
static void scan(int fd, size_t regions, size_t max_pages, int raw)
{
	static unsigned char seen[PAGES];
	struct found found[64];
	uint64_t start = (uintptr_t)memory, end = start + PAGES * PAGE;
	size_t calls = 0;

	memset(seen, 0, sizeof seen);
	while (start < end) {
		struct scan s = { sizeof s, 0, start, end, 0, (uintptr_t)found, regions, max_pages,
			IS_ZERO | IS_FILE, IS_WRITTEN | IS_PRESENT | IS_ZERO | IS_FILE, 0, 0 };
		int n = raw ? syscall(SYS_ioctl, fd, SCAN, &s) : ioctl(fd, SCAN, &s);
		size_t pages = 0;
		if (n < 0)
			fail("PAGEMAP_SCAN");
		for (int i = 0; i < n; i++) {
			if (found[i].start < start || found[i].end > s.walk_end || found[i].start >= found[i].end ||
			    (i > 0 && found[i].start <= found[i - 1].end))
				fail("regions are out of order, or could be one");
			pages += (found[i].end - found[i].start) / PAGE;
			for (uint64_t at = found[i].start; at < found[i].end; at += PAGE)
				seen[(at - (uintptr_t)memory) / PAGE] = 1;
		}
		if (max_pages != 0 && pages > max_pages)
			fail("more pages than were asked for");
		if (s.walk_end <= start || s.walk_end > end)
			fail("it has come no further");
		if (s.walk_end < end && (size_t)n < regions && (max_pages == 0 || pages < max_pages))
			fail("it has stopped for no reason");
		start = s.walk_end;
		calls++;
	}
	for (size_t i = 0; i < PAGES; i++)
		if (!seen[i] && is_touched(i)) {
			printf("page %zu was not found, in %zu calls\n", i, calls);
			exit(1);
		}
}

static void scans(void)
{
	int fd = open_pagemap();
	struct found found;
	struct scan few = { sizeof few, 0, (uintptr_t)untouched, (uintptr_t)untouched + FEW * PAGE, 0, (uintptr_t)&found, 1, 0, 0,
		IS_PRESENT, 0, 0 };

	if (ioctl(fd, SCAN, &few) != 0)
		fail("what was never touched was found");

	for (int i = 0; i < 6; i++) {
		until_out();
		scan(fd, i % 2 ? 3 : 64, i % 3 ? 50 : 0, i > 3);
	}
	verify(memory);
}

static int userfault(uint64_t features)
{
	struct uffdio_api api = { .api = UFFD_API, .features = features };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);

	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0)
		skip("userfaultfd");
	return fd;
}

static void enlist(int fd, uint64_t *at, size_t pages, uint64_t mode)
{
	struct uffdio_register r = { { (uintptr_t)at, pages * PAGE }, mode, 0 };

	if (ioctl(fd, UFFDIO_REGISTER, &r) != 0)
		fail("UFFDIO_REGISTER");
}

/* Its own UFFDIO_MOVE: with holes all in one call, else run by run. */
static void moves(int holes, int raw)
{
	int fd = userfault(FEATURE_MOVE);
	uint64_t *to = map(PAGES);

	enlist(fd, to, PAGES, UFFDIO_REGISTER_MODE_MISSING);
	until_out();
	for (size_t at = 0; at < PAGES;) {
		size_t pages = holes ? PAGES - at : EVERY - 1 - at % EVERY;
		struct uffdio_move m = { (uintptr_t)(to + at * WORDS), (uintptr_t)(memory + at * WORDS), pages * PAGE,
			holes ? MOVE_ALLOW_HOLES : 0, 0 };
		int refused = raw ? syscall(SYS_ioctl, fd, UFFDIO_MOVE, &m) : ioctl(fd, UFFDIO_MOVE, &m);
		if (refused && errno != EAGAIN)
			fail("UFFDIO_MOVE");
		if (!refused && m.move != (__s64)(pages * PAGE))
			fail("UFFDIO_MOVE has not come to the end");
		if (m.move > 0)
			at += m.move / PAGE;
		if (!holes && at % EVERY == EVERY - 1)
			at++;
	}
	struct uffdio_range all = { (uintptr_t)to, PAGES * PAGE };
	ioctl(fd, UFFDIO_UNREGISTER, &all);
	verify(to);
	/* Where it was nothing is left, and it can be used again. */
	for (size_t i = 0; i < PAGES * WORDS; i++)
		if (memory[i] != 0)
			fail("what was moved is where it was too");
	memcpy(memory, to, PAGES * PAGE);
	until_out();
	verify(memory);
}

/* UFFDIO_COPY out of memory that is out. */
static void copy(void)
{
	int fd = userfault(0);
	uint64_t *to = map(PAGES);

	enlist(fd, to, PAGES, UFFDIO_REGISTER_MODE_MISSING);
	until_out();
	for (size_t done = 0; done < PAGES * PAGE;) {
		struct uffdio_copy c = { (uintptr_t)to + done, (uintptr_t)memory + done, PAGES * PAGE - done, 0, 0 };
		if (ioctl(fd, UFFDIO_COPY, &c) == 0)
			break;
		if (errno != EAGAIN)
			fail("UFFDIO_COPY");
		done += c.copy > 0 ? c.copy : 0;
	}
	verify(to);
	verify(memory);
}

/* What it takes over itself is home, holes are its own to fill, and protected as it says. */
static void own(void)
{
	int fd = userfault(0);

	until_out();
	enlist(fd, memory, PAGES, UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP);
	for (size_t page = EVERY - 1; page < PAGES; page += EVERY) {
		struct uffdio_zeropage z = { { (uintptr_t)(memory + page * WORDS), PAGE }, 0, 0 };
		if (ioctl(fd, UFFDIO_ZEROPAGE, &z) != 0 && errno != EEXIST)
			fail("UFFDIO_ZEROPAGE");
		z.range.start -= PAGE;
		errno = 0;
		if (ioctl(fd, UFFDIO_ZEROPAGE, &z) == 0 || errno != EEXIST)
			fail("UFFDIO_ZEROPAGE: there was a page, and is a hole");
	}
	struct uffdio_writeprotect p = { { (uintptr_t)memory, PAGES * PAGE }, UFFDIO_WRITEPROTECT_MODE_WP };
	if (ioctl(fd, UFFDIO_WRITEPROTECT, &p) != 0)
		fail("UFFDIO_WRITEPROTECT");
	p.mode = 0;
	if (ioctl(fd, UFFDIO_WRITEPROTECT, &p) != 0)
		fail("UFFDIO_WRITEPROTECT");
	verify(memory);
}

/* Who tracks writes: PAGEMAP_SCAN protects what it has found, of memory that is registered for it and no other. */
static void tracks(void)
{
	static struct found found[PAGES];
	int fd = userfault(FEATURE_WP_ASYNC | FEATURE_WP_UNPOPULATED), pagemap = open_pagemap();
	struct scan s = { sizeof s, WP_MATCHING | CHECK_WPASYNC, (uintptr_t)memory, (uintptr_t)memory + PAGES * PAGE, 0,
		(uintptr_t)found, PAGES, 0, 0, IS_WRITTEN, 0, IS_WRITTEN };
	int n;

	until_out();
	if (ioctl(pagemap, SCAN, &s) != -1 || errno != EPERM)
		fail("PAGEMAP_SCAN of memory that is not registered for it");
	enlist(fd, memory, PAGES, UFFDIO_REGISTER_MODE_WP);
	struct uffdio_writeprotect p = { { (uintptr_t)memory, PAGES * PAGE }, UFFDIO_WRITEPROTECT_MODE_WP };
	if (ioctl(fd, UFFDIO_WRITEPROTECT, &p) != 0)
		fail("UFFDIO_WRITEPROTECT");
	usleep(100000);
	*(volatile uint64_t *)(memory + 10 * WORDS) = word(10 * WORDS);
	n = ioctl(pagemap, SCAN, &s);
	if (n != 1 || found[0].start != (uintptr_t)(memory + 10 * WORDS) || found[0].end != found[0].start + PAGE)
		fail("PAGEMAP_SCAN has found something else than what was written to");
	if (ioctl(pagemap, SCAN, &s) != 0)
		fail("PAGEMAP_SCAN has not protected what it has found");
	verify(memory);
}

/* Advice on memory that is out, by oneself. A collapse may be refused, as of any range with holes. */
static void advice(int what, const char *name)
{
	int collapses = what == 25;

	if (collapses)
		madvise(memory, PAGES * PAGE, MADV_HUGEPAGE);
	until_out();
	if (madvise(memory, PAGES * PAGE, what) != 0 && errno != EAGAIN && !(collapses && (errno == EINVAL || errno == EBUSY))) {
		if (errno == EPERM || errno == EINVAL || errno == EBUSY)
			skip(name);
		fail(name);
	}
	verify(memory);
}

/* And by another process. */
static void advised(void)
{
	static const int advices[] = { MADV_COLD, MADV_PAGEOUT, MADV_WILLNEED, 25 /* MADV_COLLAPSE */ };
	int pid = getpid(), status, ready[2];

	/* The child has nothing in common with its parent: that would not go out. */
	munmap(memory, PAGES * PAGE);
	for (size_t i = 0; i < sizeof advices / sizeof *advices; i++) {
		int child;
		if (pipe(ready) != 0)
			fail("pipe");
		child = fork();
		if (child == 0) {
			int fd = syscall(SYS_pidfd_open, pid, 0);
			struct iovec range = { memory, PAGES * PAGE };
			close(ready[1]);
			if (read(ready[0], &range, sizeof range) != sizeof range)
				_exit(1);
			long done = syscall(SYS_process_madvise, fd, &range, 1, advices[i], 0);
			_exit(done >= 0 || errno == EINVAL || errno == EBUSY || errno == EAGAIN || errno == ENOMEM ? 0 : errno == EPERM ? 77 : 1);
		}
		fill();
		struct iovec range = { memory, PAGES * PAGE };
		if (write(ready[1], &range, sizeof range) != sizeof range || waitpid(child, &status, 0) != child)
			fail("the child");
		if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
			skip("process_madvise");
		if (status != 0)
			fail("process_madvise");
		verify(memory);
		munmap(memory, PAGES * PAGE);
		close(ready[0]);
		close(ready[1]);
	}
}

static void remaps(void)
{
	size_t bytes = PAGES * PAGE;
	uint64_t *moved, *taken = map(PAGES);

	for (size_t i = 0; i < PAGES * WORDS; i++)
		taken[i] = ~i;
	until_out();
	/* Over memory that is out itself. */
	moved = mremap(memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, taken);
	if (moved != taken)
		fail("MREMAP_FIXED");
	verify(moved);
	memory = moved;
	until_out();
	moved = mremap(memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	if (moved == MAP_FAILED)
		fail("MREMAP_DONTUNMAP");
	for (size_t i = 0; i < PAGES * WORDS; i++)
		if (memory[i] != 0)
			fail("what is left is not empty");
	verify(moved);
}

/* A child that is killed gives its memory back early: of what is out and theirs in common its parent loses nothing. */
static void mrelease(void)
{
	int status, child, fd;

	until_out();
	child = fork();
	if (child == 0)
		for (;;)
			pause();
	fd = syscall(SYS_pidfd_open, child, 0);
	if (syscall(SYS_process_mrelease, fd, 0) != -1)
		fail("process_mrelease of a process that lives");
	kill(child, SIGKILL);
	if (syscall(SYS_process_mrelease, fd, 0) != 0 && errno != EINVAL && errno != ESRCH && errno != EAGAIN)
		fail("process_mrelease");
	waitpid(child, &status, 0);
	verify(memory);
}

/* Where code, data and heap are said to be is nothing that memory depends on. */
static void set_mm(void)
{
	uintptr_t heap = (uintptr_t)sbrk(0) & ~(uintptr_t)(PAGE - 1);

	until_out();
	if (prctl(PR_SET_MM, PR_SET_MM_START_DATA, (uintptr_t)memory, 0, 0) != 0)
		skip("PR_SET_MM");
	if (prctl(PR_SET_MM, PR_SET_MM_ARG_START, heap - PAGE, 0, 0) == 0 && present() > PAGES)
		fail("PR_SET_MM");
	verify(memory);
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "";

	fill();
	if (!strcmp(way, "looks"))
		looks();
	else if (!strcmp(way, "scans"))
		scans();
	else if (!strcmp(way, "moves"))
		moves(0, 0);
	else if (!strcmp(way, "moves_with_holes"))
		moves(1, 0);
	else if (!strcmp(way, "moves_by_syscall"))
		moves(0, 1);
	else if (!strcmp(way, "copy"))
		copy();
	else if (!strcmp(way, "own"))
		own();
	else if (!strcmp(way, "tracks"))
		tracks();
	else if (!strcmp(way, "populate_read"))
		advice(22, way);
	else if (!strcmp(way, "populate_write")) {
		advice(23, way);
	} else if (!strcmp(way, "collapse"))
		advice(25, way);
	else if (!strcmp(way, "pageout"))
		advice(MADV_PAGEOUT, way);
	else if (!strcmp(way, "soft_offline"))
		advice(101, way);
	else if (!strcmp(way, "advised"))
		advised();
	else if (!strcmp(way, "remaps"))
		remaps();
	else if (!strcmp(way, "mrelease"))
		mrelease();
	else if (!strcmp(way, "set_mm"))
		set_mm();
	else
		return 2;
	puts("right");
	return 0;
}
