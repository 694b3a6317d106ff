/*
 * writers N MIB: N processes that write MIB each at the same time, as usemem of vm-scalability does it: number after
 * number, from the first byte to the last. (The numbers of no two processes are the same: usemem's are, and
 * deduplication would win by that alone.)
 *
 * When all have written each reads every sixteenth page again. Prints the seconds from the start signal to the last
 * byte written, the bytes, and a hash of what was read, as JSON.
 */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, LOOKS = 16 };

struct common {
	pthread_barrier_t barrier;
	uint64_t began_ns, done_ns[1024], hash[1024];
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void write_and_read(struct common *common, unsigned number, size_t bytes)
{
	uint64_t *words = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t hash = 1469598103934665603ull;

	if (words == MAP_FAILED)
		_exit(2);
	if (pthread_barrier_wait(&common->barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
		common->began_ns = now_ns();
	for (size_t i = 0; i < bytes / 8; i++)
		words[i] = ((uint64_t)number << 40) + i;
	common->done_ns[number] = now_ns();
	pthread_barrier_wait(&common->barrier);
	for (size_t page = number % LOOKS; page < bytes / PAGE; page += LOOKS)
		for (size_t word = 0; word < WORDS; word++)
			hash = (hash ^ words[page * WORDS + word]) * 1099511628211ull;
	common->hash[number] = hash;
	_exit(0);
}

int main(int argc, char **argv)
{
	unsigned count = argc > 2 ? atoi(argv[1]) : 0;
	size_t bytes = argc > 2 ? (size_t)atoi(argv[2]) << 20 : 0;
	struct common *common =
		mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t hash = 0, done_ns = 0;
	pthread_barrierattr_t shared;
	static pid_t pids[1024];

	if (count < 1 || count > 1024 || bytes == 0 || common == MAP_FAILED) {
		fprintf(stderr, "usage: writers N MIB\n");
		return 2;
	}
	pthread_barrierattr_init(&shared);
	pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&common->barrier, &shared, count);
	for (unsigned number = 0; number < count; number++) {
		pids[number] = fork();
		if (pids[number] == 0)
			write_and_read(common, number, bytes);
	}
	for (unsigned number = 0; number < count; number++) {
		int status;
		if (wait(&status) >= 0 && status == 0)
			continue;
		/* The others wait for it. */
		for (unsigned other = 0; other < count; other++)
			kill(pids[other], SIGKILL);
		return 1;
	}
	for (unsigned number = 0; number < count; number++) {
		hash = hash * 31 + common->hash[number];
		done_ns = common->done_ns[number] > done_ns ? common->done_ns[number] : done_ns;
	}
	printf("{\"seconds\": %.3f, \"bytes\": %zu, \"hash\": \"%016llx\"}\n", (done_ns - common->began_ns) / 1e9,
	       count * bytes, (unsigned long long)hash);
	return 0;
}
