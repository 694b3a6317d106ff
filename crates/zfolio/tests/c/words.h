/* Memory of words that can be checked: three of four are 0. What fails ends the program, and says why. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define WORDS(bytes) ((bytes) / sizeof(uint64_t))

static void fail(const char *why)
{
	printf("%s (%s)\n", why, strerror(errno));
	exit(1);
}

static uint64_t word(size_t i)
{
	return i % 4 ? 0 : (i + 1) * 0x9e3779b97f4a7c15ull >> 32;
}

static uint64_t *fill(size_t bytes)
{
	uint64_t *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		fail("mmap");
	for (size_t i = 0; i < WORDS(bytes); i++)
		at[i] = word(i);
	return at;
}

static void verify(const uint64_t *at, size_t bytes)
{
	for (size_t i = 0; i < WORDS(bytes); i++)
		if (at[i] != word(i))
			fail("it does not hold what it held");
}
