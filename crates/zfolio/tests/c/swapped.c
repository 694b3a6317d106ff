/* swapped MIB: writes so much memory, an eighth of it noise, and reads all of it. Ends with 1 where a word is not what was written.
 *
 * After each of 32 parts it has the kernel swap all that there is in its address space, whoever's it is. Prints how much was there and in the machine's own
 * swap then, at most: both together, and the latter alone, in KiB.
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

/* Past libc, whose symbol knows what is the engine's. */
static void swap_all(void)
{
	unsigned long start, end, inode;
	char line[512], write;
	FILE *maps = fopen("/proc/self/maps", "r");

	while (maps && fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx r%c%*2s %*s %*s %lu", &start, &end, &write, &inode) == 4 && write == 'w' &&
		    inode == 0)
			syscall(SYS_madvise, start, end - start, MADV_PAGEOUT);
	if (maps)
		fclose(maps);
	look();
}

int main(int argc, char **argv)
{
	size_t words = argc > 1 ? strtoul(argv[1], NULL, 10) << 17 : 0;
	uint64_t *memory = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (words == 0 || memory == MAP_FAILED)
		return 2;
	for (size_t i = 0; i < words; i++) {
		memory[i] = word(i);
		if (i % (words / PARTS) == 0)
			swap_all();
	}
	for (size_t i = 0; i < words; i++) {
		if (memory[i] != word(i)) {
			printf("word %zu is %lx\n", i, (unsigned long)memory[i]);
			return 1;
		}
		if (i % (words / PARTS) == 0)
			swap_all();
	}
	printf("%lu %lu\n", held_most, swapped_most);
	return 0;
}
