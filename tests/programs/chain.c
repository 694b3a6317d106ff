/*
 * A chain of forks: each generation checks what it has from its parent, writes all of it anew, and has a child. All of
 * them live until the last has ended.
 *
 *   chain GENERATIONS MIB
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t *memory;
static size_t words;

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

/* One of eight is noise. */
static uint64_t word(size_t i, unsigned generation)
{
	return i % 8 == 0 ? mix(i * 1000 + generation) : i / 512 + generation;
}

static void write_all(unsigned generation)
{
	for (size_t i = 0; i < words; i++)
		memory[i] = word(i, generation);
}

static void verify(unsigned who, unsigned generation)
{
	for (size_t i = 0; i < words; i++)
		if (memory[i] != word(i, generation)) {
			printf("generation %u: word %zu is %lx, not generation %u's\n", who, i, (unsigned long)memory[i], generation);
			fflush(stdout);
			_exit(91);
		}
}

int main(int argc, char **argv)
{
	unsigned generations = argc > 2 ? strtoul(argv[1], NULL, 10) : 0, own = 0;
	pid_t child = 0;
	int status = 0;

	if (!generations)
		return 2;
	words = strtoul(argv[2], NULL, 10) << 17;
	memory = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 90;
	write_all(0);
	while (own + 1 < generations) {
		fflush(stdout);
		child = fork();
		if (child < 0)
			return 92;
		if (child != 0)
			break;
		verify(own + 1, own);
		own++;
		write_all(own);
	}
	if (child > 0 && (waitpid(child, &status, 0) != child || status != 0)) {
		printf("generation %u: its child has status %x\n", own, status);
		fflush(stdout);
		_exit(93);
	}
	verify(own, own);
	printf("generation %u has what it wrote\n", own);
	return 0;
}
