/*
 * heap MIB THREADS [MISTAKES]: fills a heap of so many MiB by allocations of 64 to 4,152 bytes, each with words of its
 * own, reads all of it twice, prints a sum over it and how much anonymous memory was there when it was full, in KiB,
 * and gives it back. Ends with 1 where a word is not what was written.
 *
 * Mistakes, for sanitizers to find, with commas between: `use` reads what was freed, `leak` forgets 12,345 bytes,
 * `race` has threads count without a lock, `read` branches on what nobody has written, `shift` shifts too far.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_THREADS = 16, ROUNDS = 2, MEAN_BYTES = 2112 };

struct block {
	uint64_t *words;
	uint32_t count;
};

struct part {
	pthread_t thread;
	uint64_t seed, sum;
	struct block *blocks;
	size_t count;
	pthread_barrier_t *full;
	int wrong;
};

static const char *mistakes = "";
static unsigned long raced;

static int makes(const char *mistake)
{
	return strstr(mistakes, mistake) != NULL;
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

/* One word of eight is noise. */
static uint64_t word(uint64_t seed, size_t block, size_t i)
{
	return i % 8 == 0 ? mix(seed + (block << 16) + i) : block;
}

static void *work(void *argument)
{
	struct part *part = argument;

	for (size_t b = 0; b < part->count; b++) {
		struct block *block = &part->blocks[b];

		block->count = 8 + mix(part->seed + b) % 512;
		block->words = malloc(block->count * sizeof *block->words);
		for (size_t i = 0; i < block->count; i++)
			block->words[i] = word(part->seed, b, i);
	}
	pthread_barrier_wait(part->full);
	for (int round = 0; round < ROUNDS; round++)
		for (size_t b = 0; b < part->count; b++)
			for (size_t i = 0; i < part->blocks[b].count; i++) {
				part->wrong |= part->blocks[b].words[i] != word(part->seed, b, i);
				part->sum += part->blocks[b].words[i];
			}
	if (makes("race"))
		raced++;
	return NULL;
}

static unsigned long anonymous_kib(void)
{
	unsigned long there = 0;
	char line[256];
	FILE *status = fopen("/proc/self/status", "r");

	while (status && fgets(line, sizeof line, status))
		sscanf(line, "RssAnon: %lu", &there);
	if (status)
		fclose(status);
	return there;
}

static __attribute__((noinline)) void forget(size_t bytes)
{
	char *volatile lost = malloc(bytes);

	memset(lost, 1, bytes);
	lost = NULL;
}

/* Makes the mistakes, with a block that was written long ago. */
static void err(struct block *old)
{
	if (makes("use")) {
		free(old->words);
		old->count = *(volatile uint64_t *)old->words;
		old->words = NULL;
	}
	if (makes("leak"))
		forget(12345);
	if (makes("read")) {
		volatile uint64_t *fresh = malloc(4096);

		if (fresh[100] == 1)
			puts("one");
		free((void *)fresh);
	}
	if (makes("shift")) {
		volatile int by = 40, one = 1;

		by = one << by;
	}
}

int main(int argc, char **argv)
{
	static struct part parts[MOST_THREADS];
	size_t bytes = argc > 2 ? strtoul(argv[1], NULL, 10) << 20 : 0;
	int threads = argc > 2 ? atoi(argv[2]) : 0, wrong = 0;
	unsigned long held = 0;
	pthread_barrier_t full;
	uint64_t sum = 0;

	if (bytes == 0 || threads < 1 || threads > MOST_THREADS)
		return 2;
	mistakes = argc > 3 ? argv[3] : "";
	pthread_barrier_init(&full, NULL, threads + 1);
	for (int t = 0; t < threads; t++) {
		struct part *part = &parts[t];

		part->seed = (uint64_t)(t + 1) << 40;
		part->count = bytes / threads / MEAN_BYTES;
		part->blocks = malloc(part->count * sizeof *part->blocks);
		part->full = &full;
		pthread_create(&part->thread, NULL, work, part);
	}
	pthread_barrier_wait(&full);
	held = anonymous_kib();
	for (int t = 0; t < threads; t++) {
		pthread_join(parts[t].thread, NULL);
		sum += parts[t].sum;
		wrong |= parts[t].wrong;
	}
	printf("%lu %lu\n", (unsigned long)sum, held);
	fflush(stdout);
	err(&parts[0].blocks[parts[0].count / 2]);
	for (int t = 0; t < threads; t++) {
		for (size_t b = 0; b < parts[t].count; b++)
			free(parts[t].blocks[b].words);
		free(parts[t].blocks);
	}
	return wrong;
}
