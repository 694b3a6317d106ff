/*
 * discards HOW ROUNDS: fills 16 MiB, discards them at once, and sees that they are zero, so many times; in a thread, or
 * in a child that has the same memory: of vfork, or of clone with CLONE_VM.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 4096, STACK = 256 << 10 };

static char *memory;
static int rounds;
static volatile int stale;

/* Nothing that waits by way of libc: a child has its parent's thread-local data. */
static int discard(void *argument)
{
	struct timespec pause = { 0, 500000 };

	(void)argument;
	for (int round = 1; round <= rounds; round++) {
		for (int page = 0; page < PAGES; page++)
			*(uint64_t *)(memory + page * PAGE) = round * 100000ull + page;
		madvise(memory, PAGES * PAGE, MADV_DONTNEED);
		syscall(SYS_nanosleep, &pause, NULL);
		for (int page = 0; page < PAGES; page++)
			stale += *(uint64_t *)(memory + page * PAGE) != 0;
	}
	return 0;
}

static int in_child(void *argument)
{
	discard(argument);
	_exit(0);
}

static void *in_thread(void *argument)
{
	discard(argument);
	return NULL;
}

static void *map(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		exit(2);
	return at;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;

	const char *how = argv[1];
	int status = 0;

	memory = map(PAGES * PAGE);
	rounds = atoi(argv[2]);
	if (!strcmp(how, "thread")) {
		pthread_t thread;

		pthread_create(&thread, NULL, in_thread, NULL);
		pthread_join(thread, NULL);
	} else if (!strcmp(how, "vfork")) {
		pid_t child = vfork();

		if (child == 0)
			in_child(NULL);
		waitpid(child, &status, 0);
	} else {
		pid_t child = clone(in_child, (char *)map(STACK) + STACK, CLONE_VM | SIGCHLD, NULL);

		waitpid(child, &status, 0);
	}
	if (stale || status)
		printf("%d discarded pages came back, status %x\n", stale, status);
	else
		puts("right");
	return 0;
}
