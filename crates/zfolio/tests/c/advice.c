/* Advises memory, and checks that it goes out or comes back, and holds what it held. The argument says how. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "words.h"

#define PAGE ((size_t)4096)
#define BYTES ((size_t)32 << 20)
#define PAGES (BYTES / PAGE)
#define PART ((size_t)256)

static size_t present(void *at, size_t pages)
{
	static unsigned char there[PAGES];
	size_t count = 0;

	if (mincore(at, pages * PAGE, there) != 0)
		fail("mincore");
	for (size_t i = 0; i < pages; i++)
		count += there[i] & 1;
	return count;
}

/* Returns when nearly all of it is out, or in. */
static void until(void *at, size_t pages, int in)
{
	for (int i = 0; i < 20000; i++) {
		size_t there = present(at, pages);
		if (in ? there > pages / 20 * 19 : there < pages / 20)
			return;
		usleep(1000);
	}
	fail(in ? "it does not come in" : "it does not go out");
}

/* Linux says from 6.13 on whose a pidfd is. */
static int knows_processes(void)
{
	struct utsname name;
	int major = 0, minor = 0;

	uname(&name);
	sscanf(name.release, "%d.%d", &major, &minor);
	return major > 6 || (major == 6 && minor >= 13);
}

static void advise(const char *way, void *at, size_t pages, int advice)
{
	struct iovec range = { at, pages * PAGE };
	long done = 0;

	if (!strcmp(way, "process") && knows_processes())
		done = syscall(SYS_process_madvise, syscall(SYS_pidfd_open, getpid(), 0), &range, 1, advice, 0) -
		       (long)range.iov_len;
	else if (!strcmp(way, "syscall"))
		done = syscall(SYS_madvise, at, range.iov_len, advice);
	else
		done = madvise(at, range.iov_len, advice);
	if (done != 0)
		fail("the advice is refused");
}

/* What the kernel refuses it refuses as ever, and what it does not know of the mapped parts know. */
static void errors(uint64_t *at)
{
	if (madvise((char *)at + 1, PAGE, MADV_PAGEOUT) != -1 || errno != EINVAL)
		fail("half pages");
	uint64_t *parts = fill(3 * PART * PAGE);
	munmap(parts + WORDS(PART * PAGE), PART * PAGE);
	if (madvise(parts, 3 * PART * PAGE, MADV_PAGEOUT) != -1 || errno != ENOMEM)
		fail("a range with a hole");
	until(parts, PART, 0);
	until(parts + 2 * WORDS(PART * PAGE), PART, 0);
	verify(parts, PART * PAGE);
	for (size_t i = 2 * WORDS(PART * PAGE); i < 3 * WORDS(PART * PAGE); i++)
		if (parts[i] != word(i))
			fail("beyond the hole");
}

/* Grows beyond the limit: what is cold goes, and what was there before it stays. */
static void cold(void)
{
	uint64_t *others = fill(BYTES), *more = fill(BYTES), *at = fill(BYTES);

	advise("", at, PAGES, MADV_COLD);
	/* The engine looks 20 ms apart at most. */
	usleep(50000);
	uint64_t *fresh = fill(BYTES);
	if (present(at, PAGES) > PAGES / 2)
		fail("it does not go out");
	if (present(others, PAGES) + present(more, PAGES) < PAGES / 10 * 19)
		fail("others go out");
	verify(others, BYTES);
	verify(more, BYTES);
	verify(at, BYTES);
	verify(fresh, BYTES);
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "";

	if (!strcmp(way, "cold")) {
		cold();
		puts("right");
		return 0;
	}
	uint64_t *at = fill(BYTES);

	advise(way, at, PAGES, MADV_PAGEOUT);
	until(at, PAGES, 0);
	if (!strcmp(way, "needed")) {
		advise(way, at, PAGES, MADV_WILLNEED);
		until(at, PAGES, 1);
	} else {
		errors(at);
	}
	verify(at, BYTES);
	puts("right");
	return 0;
}
