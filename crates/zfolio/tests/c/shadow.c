/*
 * shadow: takes all addresses below those of executables without access, as MemorySanitizer and ThreadSanitizer do
 * between them; prints "right" when it could, and its 64 MiB are what it has written. These are there from the start,
 * and so is an engine.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

enum { WORDS = 8 << 20 };

static uint64_t words[WORDS];

int main(void)
{
	char *first = (char *)0x010000000000, *end = (char *)0x550000000000;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;

	if (mmap(first, end - first, PROT_NONE, flags, -1, 0) != first) {
		perror("something is there");
		return 1;
	}
	for (int round = 0; round < 3; round++)
		for (size_t i = 0; i < WORDS; i++) {
			if (words[i] != (round ? i / 512 : 0))
				return 2;
			words[i] = i / 512;
		}
	puts("right");
	return 0;
}
