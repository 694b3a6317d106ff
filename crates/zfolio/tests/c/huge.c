/* Writes to memory of which the kernel makes huge pages, twice as much as it may have, and reads it back. With the
 * argument `pieces` it takes them apart meanwhile: it drops, protects, moves and unmaps parts of them. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE ((size_t)4096)
#define HUGE ((size_t)2 << 20)
#define HUGES ((size_t)160)
#define PASSES 3

static char *memory;

static void fail(const char *why)
{
	puts(why);
	exit(1);
}

/* The value of a word of a page, which compresses to a third or so. */
static uint64_t value(size_t page, size_t number)
{
	return number % 8 < 2 ? (page * 0x9e3779b97f4a7c15u) ^ (number * 0xc2b2ae3d27d4eb4fu) : page;
}

static void write_page(size_t page)
{
	uint64_t *words = (uint64_t *)(memory + page * PAGE);

	for (size_t i = 0; i < PAGE / 8; i++)
		words[i] = value(page, i);
}

static void check(size_t page, int is_zero)
{
	uint64_t *words = (uint64_t *)(memory + page * PAGE);

	for (size_t i = 0; i < PAGE / 8; i++)
		if (words[i] != (is_zero ? 0 : value(page, i)))
			fail("a page reads wrong");
}

/* Of every fourth huge page something becomes of a part: what is dropped reads as zeros, and the rest as before. */
static int is_dropped(size_t page, int pass)
{
	size_t huge = page / (HUGE / PAGE), part = page % (HUGE / PAGE);

	return huge % 4 == 0 && part >= 100 && part < 140 && pass > 0;
}

static void take_apart(void)
{
	for (size_t huge = 0; huge < HUGES; huge++) {
		char *at = memory + huge * HUGE;

		if (huge % 4 == 0)
			madvise(at + 100 * PAGE, 40 * PAGE, MADV_DONTNEED);
		if (huge % 4 == 1) {
			mprotect(at + 7 * PAGE, 9 * PAGE, PROT_READ);
			mprotect(at + 7 * PAGE, 9 * PAGE, PROT_READ | PROT_WRITE);
		}
		if (huge % 4 == 2) {
			/* There and back again. */
			void *other = mmap(NULL, 32 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			mremap(at + 64 * PAGE, 32 * PAGE, 32 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, other);
			mremap(other, 32 * PAGE, 32 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at + 64 * PAGE);
		}
	}
}

int main(int argc, char **argv)
{
	size_t pages = HUGES * HUGE / PAGE;
	int apart = argc > 1 && !strcmp(argv[1], "pieces");

	memory = mmap(NULL, (HUGES + 2) * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		fail("mmap");
	memory = (char *)(((uintptr_t)memory + HUGE - 1) / HUGE * HUGE);
	if (madvise(memory, HUGES * HUGE, MADV_HUGEPAGE) != 0)
		fail("madvise");
	for (size_t page = 0; page < pages; page++)
		write_page(page);
	for (int pass = 0; pass < PASSES; pass++) {
		for (size_t page = 0; page < pages; page++)
			check(page, apart && is_dropped(page, pass));
		if (apart)
			take_apart();
	}
	puts("right");
	return 0;
}
