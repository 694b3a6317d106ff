/*
 * Reads constants that the loader has written addresses to, and made read-only, while they go out and come in: each is
 * its own address. Threads read some of them here and there, others map, discard, move and unmap memory all the time,
 * and processes are forked from it. Its arguments are for how many seconds, how many processes, and how many of the
 * others. At last it writes to a constant, which must be refused as ever.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { COUNT = 1 << 20, READERS = 2, MAPPERS = 2, AREA = 256 << 10 };

__asm__(".pushsection .data.rel.ro,\"aw\",@progbits\n"
	".balign 4096\n"
	"constants:\n"
	".rept 1 << 20\n"
	".quad .\n"
	".endr\n"
	".popsection");
extern const uintptr_t constants[COUNT];

static double end;
static _Atomic(long) wrong;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static int is_right(size_t i)
{
	return *(const volatile uintptr_t *)&constants[i] == (uintptr_t)&constants[i];
}

static void read_until(double time, unsigned seed)
{
	while (now() < time) {
		for (int i = 0; i < 100; i++)
			wrong += !is_right((size_t)rand_r(&seed) * 8191 % COUNT);
		usleep(200);
	}
}

static void *reader(void *seed)
{
	read_until(end, (unsigned)(uintptr_t)seed);
	return NULL;
}

static void *map(void)
{
	return mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Each round raises events of three kinds, on memory that has been out. */
static void *mapper(void *seed)
{
	while (now() < end) {
		volatile char *area = map(), *place = map();
		memset((void *)area, (int)(uintptr_t)seed, AREA);
		usleep(1000);
		madvise((void *)area, AREA / 2, MADV_DONTNEED);
		for (int i = 0; i < AREA; i += 4096)
			wrong += area[i] != (i < AREA / 2 ? 0 : (char)(uintptr_t)seed);
		usleep(500);
		place = mremap((void *)area, AREA, AREA, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)place);
		wrong += place[0] != 0 || place[AREA - 1] != (char)(uintptr_t)seed;
		munmap((void *)place, AREA);
	}
	return NULL;
}

static int ended(pid_t pid)
{
	int status;
	return waitpid(pid, &status, 0) != pid || status != 0;
}

/* A process, and one of its own. */
static void family(unsigned seed)
{
	pid_t child = fork();
	if (child == 0) {
		read_until(now() + 0.2, seed);
		pid_t grandchild = fork();
		if (grandchild == 0) {
			for (size_t i = 0; i < COUNT; i += 256)
				wrong += !is_right(i);
			_exit(wrong != 0);
		}
		_exit(ended(grandchild) || wrong != 0);
	}
	wrong += ended(child);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
	(void)number, (void)context;
	int refused = info->si_code == SEGV_ACCERR && info->si_addr == &constants[COUNT / 2];
	const char *said = refused && wrong == 0 ? "right\n" : "not right\n";
	_exit(write(1, said, strlen(said)) < 0 || !refused);
}

int main(int count, char **arguments)
{
	double seconds = count > 1 ? atof(arguments[1]) : 1;
	int families = count > 2 ? atoi(arguments[2]) : 1;
	int mappers = count > 3 ? atoi(arguments[3]) : 0;
	pthread_t threads[READERS + MAPPERS];
	if (mappers > MAPPERS)
		return 2;
	end = now() + seconds;
	for (uintptr_t i = 0; i < (uintptr_t)(READERS + mappers); i++)
		pthread_create(&threads[i], NULL, i < READERS ? reader : mapper, (void *)(i + 1));
	for (int i = 0; i < families; i++) {
		usleep(seconds * 1e6 / (families + 1));
		family(100 + i);
	}
	for (int i = 0; i < READERS + mappers; i++)
		pthread_join(threads[i], NULL);
	for (size_t i = 0; i < COUNT; i++)
		wrong += !is_right(i);
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
	sigaction(SIGSEGV, &action, NULL);
	*(volatile uintptr_t *)&constants[COUNT / 2] = 0;
	return 1;
}
