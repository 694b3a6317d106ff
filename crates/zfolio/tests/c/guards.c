/*
 * guards ROUNDS: a thread makes guards of 256 MiB (MADV_GUARD_INSTALL) and takes them away again, so many times.
 * Another locks the first one's stack as far as it is there (MLOCK_ONFAULT), over and over, each time until the first
 * has gone on.
 *
 * It says "right" at the end, or "no guards" on a kernel that has none.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

enum { PAGE = 4096, STACK = 64 * PAGE, PAGES = 65536 };

static char *stack, *memory;
static int rounds;
static volatile int done, is_done;

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(2);
}

static void *map(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		fail("mmap");
	return at;
}

static int can_be_read(const char *at)
{
	static int ends[2];
	char byte;

	if (ends[1] == 0 && pipe(ends) != 0)
		fail("pipe");
	if (write(ends[1], at, 1) == 1 && read(ends[0], &byte, 1) == 1)
		return 1;
	if (errno != EFAULT)
		fail("write");
	return 0;
}

static void *make_guards(void *argument)
{
	(void)argument;
	for (int round = 1; round <= rounds; round++, done++) {
		for (int page = 0; page < PAGES; page += PAGES / 4)
			memset(memory + page * PAGE, round, PAGE);
		if (madvise(memory, PAGES * PAGE, MADV_GUARD_INSTALL) != 0) {
			if (errno == EINVAL) {
				puts("no guards");
				exit(0);
			}
			fail("MADV_GUARD_INSTALL");
		}
		for (int page = 0; page < PAGES; page += PAGES / 4)
			if (can_be_read(memory + page * PAGE)) {
				printf("page %d is no guard in round %d\n", page, round);
				exit(1);
			}
		if (madvise(memory, PAGES * PAGE, MADV_GUARD_REMOVE) != 0)
			fail("MADV_GUARD_REMOVE");
		for (int page = 0; page < PAGES; page += PAGES / 4)
			if (memory[page * PAGE] != 0) {
				printf("page %d has come back in round %d\n", page, round);
				exit(1);
			}
	}
	is_done = 1;
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_attr_t attributes;
	pthread_t thread;

	(void)argc;
	rounds = atoi(argv[1]);
	stack = map(STACK);
	memory = map(PAGES * PAGE);
	pthread_attr_init(&attributes);
	pthread_attr_setstack(&attributes, stack, STACK);
	if ((errno = pthread_create(&thread, &attributes, make_guards, NULL)) != 0)
		fail("pthread_create");
	while (!is_done) {
		if (mlock2(stack, STACK, MLOCK_ONFAULT) != 0)
			fail("mlock2");
		/* Until the thread has gone on. */
		for (int seen = done; done - seen < 2 && !is_done;)
			usleep(100);
		if (munlock(stack, STACK) != 0)
			fail("munlock");
		usleep(100);
	}
	pthread_join(thread, NULL);
	puts("right");
	return 0;
}
