/*
 * A thread moves memory to and fro between two places while the main thread forks, as often as the argument says. Each
 * child must have that memory in one of the two, with all that was written there, and so must the parent at last. What
 * lies between the places is looked at in passing by whoever goes through the mappings.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 256, SIZE = PAGES * PAGE, BETWEEN = 60, SMALL = 256 << 10 };

/* Where the kernel maps nothing by itself. */
static char *const places[2] = { (char *)0x100000000000, (char *)0x100010000000 };
static volatile int stop;

static void *move(void *argument)
{
	for (int at = 0; !stop; at = !at) {
		if (mremap(places[at], SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, places[!at]) == MAP_FAILED)
			exit(80);
		for (volatile int rest = 0; rest < 20000; rest++)
			;
	}
	return argument;
}

static char *map(char *at, size_t bytes)
{
	char *got = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (got != at)
		exit(81);
	return at;
}

static int is_mapped(char *at)
{
	unsigned char present[PAGES];

	return mincore(at, SIZE, present) == 0;
}

/* 0 when all is right; 82 when the memory is nowhere, 83 when it is not what was written. */
static int look(void)
{
	for (int i = 0; i < 2; i++) {
		if (!is_mapped(places[i]))
			continue;
		for (int page = 0; page < PAGES; page++)
			if (*(uint64_t *)(places[i] + page * PAGE) != page + 1ull)
				return 83;
		return 0;
	}
	return 82;
}

int main(int count, char **arguments)
{
	int forks = count > 1 ? atoi(arguments[1]) : 1, status, result = 0;
	pthread_t thread;

	for (int i = 0; i < BETWEEN; i++) {
		char *small = map(places[0] + (size_t)(i + 2) * (2 << 20), SMALL);
		for (int at = 0; at < SMALL; at += PAGE)
			small[at] = i;
	}
	map(places[0], SIZE);
	for (int page = 0; page < PAGES; page++)
		*(uint64_t *)(places[0] + page * PAGE) = page + 1;
	/* Until it is out. */
	usleep(100000);
	pthread_create(&thread, NULL, move, NULL);
	for (int i = 0; i < forks && result == 0; i++) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(look());
		if (pid < 0 || waitpid(pid, &status, 0) != pid)
			result = 84;
		else if (status != 0)
			result = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
	}
	stop = 1;
	pthread_join(thread, NULL);
	if (result == 0)
		result = look();
	puts(result == 0 ? "right" : "not right");
	return result;
}
