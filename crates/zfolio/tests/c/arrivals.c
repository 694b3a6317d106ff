/*
 * Maps shared memory right behind private memory that has just been mapped, and that the engine is about to register
 * and keep out of children, for as many seconds as its first argument says. The engine keeps all of such a range out,
 * and gives what it finds to be another's back at once: until then, which a busy machine may make long, the flag is
 * there. The kernel must not go on keeping any of the shared memory out of children, and a child must have all of it.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, PLACES = 64, PRIVATE = 32 * PAGE, SHARED = 16 * PAGE, STRIDE = 1 << 20 };

/* Where the kernel maps nothing by itself. */
static char *const base = (char *)0x110000000000;
static volatile int stop;

static char *map(char *at, size_t bytes, int kind)
{
	char *got = mmap(at, bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (got != at)
		exit(80);
	*got = 1;
	return got;
}

static char *private_at(int place)
{
	return base + (size_t)place * STRIDE;
}

static char *shared_at(int place)
{
	return private_at(place) + PRIVATE;
}

static void *map_private(void *none)
{
	while (!stop)
		for (int place = 0; place < PLACES && !stop; place++) {
			munmap(private_at(place), PRIVATE);
			map(private_at(place), PRIVATE, MAP_PRIVATE);
		}
	return none;
}

/* How many of the shared mappings children are not to have. */
static int kept_out(void)
{
	FILE *smaps = fopen("/proc/self/smaps", "r");
	char line[512];
	int count = 0, is_shared = 0;

	if (!smaps)
		exit(81);
	while (fgets(line, sizeof line, smaps)) {
		uintptr_t start, end;
		char flags[5];
		if (sscanf(line, "%lx-%lx %4s", &start, &end, flags) == 3)
			is_shared = flags[3] == 's' && (char *)start >= base && (char *)start < base + PLACES * (size_t)STRIDE;
		else if (is_shared && strncmp(line, "VmFlags:", 8) == 0)
			count += strstr(line, " dc") != NULL;
	}
	fclose(smaps);
	return count;
}

/* How many of them are not given back within a second. */
static int stay_kept_out(void)
{
	struct timespec look = { .tv_nsec = 20000000 };
	int count = kept_out();

	for (int looks = 0; count > 0 && looks < 50; looks++) {
		nanosleep(&look, NULL);
		count = kept_out();
	}
	return count;
}

int main(int argc, char **argv)
{
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 2);
	pthread_t thread;
	int passes = 0, count = 0;

	for (int place = 0; place < PLACES; place++) {
		map(private_at(place), PRIVATE, MAP_PRIVATE);
		map(shared_at(place), SHARED, MAP_SHARED);
	}
	if (pthread_create(&thread, NULL, map_private, NULL) != 0)
		return 82;
	for (; time(NULL) < end && count == 0; passes++) {
		for (int place = 0; place < PLACES; place++) {
			munmap(shared_at(place), SHARED);
			map(shared_at(place), SHARED, MAP_SHARED);
		}
		count = stay_kept_out();
	}
	stop = 1;
	pthread_join(thread, NULL);
	pid_t child = fork();
	if (child == 0) {
		for (int place = 0; place < PLACES; place++)
			if (*shared_at(place) != 1)
				_exit(1);
		_exit(0);
	}
	int status;
	waitpid(child, &status, 0);
	fprintf(stderr, "%d passes\n", passes);
	printf("%d kept out, the child's status is %d\n", count, status);
	return 0;
}
