/*
 * A program with holes in its memory, and what it does there: holes WAY MIB ROUNDS. Memory beside the hole, and
 * other memory, is verified word by word.
 *
 * unmap: unmaps the whole range. map: maps memory into the hole by MAP_FIXED. move: moves a part away, and unmaps
 * the whole. keep: has no hole itself, but its children have, since it keeps the part out of them; they map
 * something there. child: its children have the hole, and map there or unmap the whole.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t *other;
static size_t words;

static uint64_t word(size_t i)
{
	return i % 8 == 0 ? i * 0x9e3779b97f4a7c15ull : i / 512;
}

static void fill(uint64_t *at, size_t count)
{
	for (size_t i = 0; i < count; i++)
		at[i] = word(i);
}

static void verify(const uint64_t *at, size_t count, const char *what)
{
	for (size_t i = 0; i < count; i++)
		if (at[i] != word(i)) {
			printf("%s: word %zu is %lx\n", what, i, (unsigned long)at[i]);
			fflush(stdout);
			_exit(91);
		}
}

static void *map(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		exit(92);
	return at;
}

/* A range of four parts, of which the middle two are the hole. */
static char *range;
static size_t part;

static void verify_beside(void)
{
	verify((uint64_t *)range, part / 8, "before the hole");
	verify((uint64_t *)(range + 3 * part), part / 8, "behind the hole");
	verify(other, words, "elsewhere");
}

static void map_there(void)
{
	char *hole = range + part;

	if (mmap(hole, 2 * part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != hole)
		_exit(93);
	verify_beside();
	fill((uint64_t *)hole, part / 4);
	usleep(20000);
	verify_beside();
	verify((uint64_t *)hole, part / 4, "in the hole");
}

static void unmap_all(void)
{
	if (munmap(range, 4 * part) != 0)
		_exit(94);
	verify(other, words, "elsewhere");
}

static int is_there(const char *page)
{
	unsigned char there;

	return mincore((void *)page, 4096, &there) == 0;
}

/* A child that does the one and the other, and has a child that does so too. */
static void have_child(int generations)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		for (size_t at = part; at < 3 * part; at += 4096)
			if (is_there(range + at))
				_exit(95);
		verify_beside();
		if (generations > 1)
			have_child(generations - 1);
		map_there();
		unmap_all();
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child || status != 0) {
		printf("child: status %x\n", status);
		fflush(stdout);
		_exit(96);
	}
}

int main(int count, char **argv)
{
	if (count < 4)
		return 90;
	const char *way = argv[1];
	size_t bytes = (size_t)atoi(argv[2]) << 20;

	words = bytes / 8;
	part = bytes / 4;
	other = map(bytes);
	for (int round = 0; round < atoi(argv[3]); round++) {
		range = map(4 * part);
		fill((uint64_t *)range, part / 8);
		fill((uint64_t *)(range + 3 * part), part / 8);
		if (strcmp(way, "keep") == 0) {
			fill((uint64_t *)(range + part), part / 4);
			if (madvise(range + part, 2 * part, MADV_DONTFORK) != 0)
				exit(97);
		} else if (strcmp(way, "move") == 0) {
			uint64_t *to = map(2 * part);

			fill((uint64_t *)(range + part), part / 4);
			if (mremap(range + part, 2 * part, 2 * part, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
				exit(98);
			verify(to, part / 4, "moved");
			munmap(to, 2 * part);
		} else {
			munmap(range + part, 2 * part);
		}
		/* What the engine maps as it starts, awakes and works it maps now, when there is a hole. */
		if (round == 0)
			fill(other, words);
		usleep(round == 0 ? 300000 : 5000);
		verify_beside();
		if (strcmp(way, "keep") == 0) {
			have_child(2);
			verify((uint64_t *)(range + part), part / 4, "kept out");
		} else if (strcmp(way, "child") == 0) {
			have_child(2);
		} else if (strcmp(way, "map") == 0) {
			map_there();
		}
		unmap_all();
	}
	printf("right\n");
	return 0;
}
