/*
 * swapped MIB [FORKS]: writes so much memory, an eighth of it noise, and reads all of it. Ends with 1 where a word is
 * not what was written.
 *
 * Reads it once more after each fork, whose child lets go of the memory, and lives as long as its parent.
 *
 * After each of 32 parts it has the kernel swap all that there is in its address space, whoever's it is. Prints how
 * much was there and in the machine's own swap then, at most: both together, and the latter alone, in KiB.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PARTS = 32 };

static unsigned long held_most, swapped_most;

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

static uint64_t word(size_t i)
{
	return i % 8 == 0 ? mix(i) : i / 512;
}

static void look(void)
{
	unsigned long there = 0, swapped = 0;
	char line[256];
	FILE *status = fopen("/proc/self/status", "r");

	while (status && fgets(line, sizeof line, status)) {
		sscanf(line, "RssAnon: %lu", &there);
		sscanf(line, "VmSwap: %lu", &swapped);
	}
	if (status)
		fclose(status);
	held_most = there + swapped > held_most ? there + swapped : held_most;
	swapped_most = swapped > swapped_most ? swapped : swapped_most;
}

/* Past libc, whose symbol knows what is the engine's, and hands advice on to that. */
static void swap(unsigned long start, unsigned long bytes)
{
	long number = SYS_madvise, advice = MADV_PAGEOUT;

	__asm__ volatile("syscall"
			 : "+a"(number)
			 : "D"(start), "S"(bytes), "d"(advice)
			 : "rcx", "r11", "memory");
}

static void swap_all(void)
{
	unsigned long start, end, inode;
	char line[512], write;
	FILE *maps = fopen("/proc/self/maps", "r");

	while (maps && fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx r%c%*2s %*s %*s %lu", &start, &end, &write, &inode) == 4 && write == 'w' &&
		    inode == 0)
			swap(start, end - start);
	if (maps)
		fclose(maps);
	look();
}

static void read_all(const uint64_t *memory, size_t words)
{
	for (size_t i = 0; i < words; i++) {
		if (memory[i] != word(i)) {
			printf("word %zu is %lx\n", i, (unsigned long)memory[i]);
			exit(1);
		}
		if (i % (words / PARTS) == 0)
			swap_all();
	}
}

/* What is there is the parent's alone again then, and as protected as the fork has left it. */
static void fork_who_lets_go(uint64_t *memory, size_t words)
{
	int gone[2], parent[2];
	char byte;

	if (pipe(gone) != 0 || pipe(parent) != 0)
		exit(2);
	switch (fork()) {
	case -1:
		exit(2);
	case 0:
		close(gone[0]);
		close(parent[1]);
		munmap(memory, words * 8);
		close(gone[1]);
		_exit(read(parent[0], &byte, 1) != 0);
	}
	close(gone[1]);
	close(parent[0]);
	if (read(gone[0], &byte, 1) != 0)
		exit(2);
	close(gone[0]);
}

int main(int argc, char **argv)
{
	size_t words = argc > 1 ? strtoul(argv[1], NULL, 10) << 17 : 0;
	int forks = argc > 2 ? atoi(argv[2]) : 0;
	uint64_t *memory = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (words == 0 || memory == MAP_FAILED)
		return 2;
	for (size_t i = 0; i < words; i++) {
		memory[i] = word(i);
		if (i % (words / PARTS) == 0)
			swap_all();
	}
	read_all(memory, words);
	for (int i = 0; i < forks; i++) {
		fork_who_lets_go(memory, words);
		read_all(memory, words);
	}
	printf("%lu %lu\n", held_most, swapped_most);
	return 0;
}
