/* Uses all that include/zfolio.h has. `alone` runs without zfolio; `pins` under a limit of 96 MiB. */
#define _GNU_SOURCE
#include <sys/wait.h>

#include "words.h"
#include "zfolio.h"

#define MIB ((size_t)1 << 20)

static struct zfolio_range range(const void *at, size_t bytes)
{
	struct zfolio_range told;

	memset(&told, 0xff, sizeof told);
	if (zfolio_range(at, bytes, &told))
		fail("zfolio_range");
	return told;
}

/* All of a range is there, and so much of it is pinned. */
static void expect_there(const void *at, size_t bytes, size_t pinned)
{
	struct zfolio_range told = range(at, bytes);

	if (told.resident_bytes != bytes || told.pinned_bytes != pinned ||
	    told.inactive_bytes + told.stored_bytes + told.swapped_bytes + told.filled_bytes != 0) {
		printf("%zu of %zu bytes are there, %zu pinned\n", (size_t)told.resident_bytes, bytes,
		       (size_t)told.pinned_bytes);
		exit(1);
	}
}

/* Returns when nearly all of it is in the pool. What a child had too stays until that is gone, and goes then. */
static void until_out(const void *at, size_t bytes, int advised)
{
	for (int i = 0; i < 200; i++) {
		if (advised && zfolio_pageout(at, bytes))
			fail("zfolio_pageout");
		struct zfolio_range told = range(at, bytes);
		if (told.resident_bytes + told.inactive_bytes > bytes)
			fail("more is there than there is");
		if (told.stored_bytes + told.filled_bytes > bytes / 10 * 9) {
			if (told.pool_bytes == 0 || told.pool_bytes > told.stored_bytes / 2)
				fail("it does not shrink");
			return;
		}
		usleep(100000);
	}
	fail("it does not go out");
}

static void alone(void)
{
	char *at = (char *)fill(MIB);
	struct zfolio_range told;

	if (zfolio_is_there() || zfolio_pageout(at + 7, MIB / 2) || zfolio_cold(at, MIB) || zfolio_willneed(at + 7, 1))
		fail("advice goes to the kernel");
	if (zfolio_pin(at, MIB) != -1 || errno != ENOSYS || zfolio_unpin(at, MIB) != -1 ||
	    zfolio_range(at, MIB, &told) != -1 || errno != ENOSYS)
		fail("nobody is there");
	verify((uint64_t *)at, MIB);
}

static void pins(void)
{
	const size_t size = 16 * MIB, much = 128 * MIB;
	uint64_t *pinned = fill(size), *cold = fill(size), *rest;
	char *at = (char *)pinned;
	int status;

	if (!zfolio_is_there() || zfolio_pin(pinned, size) || zfolio_cold(cold, size))
		fail("zfolio_pin");
	rest = fill(much);
	expect_there(pinned, size, size);
	until_out(cold, size, 0);
	verify(pinned, size);
	verify(rest, much);
	expect_there(pinned, size, size);

	/* A child has none, and what it has is what it was. */
	fflush(stdout);
	if (fork() == 0) {
		if (range(pinned, size).pinned_bytes)
			fail("a child has pins");
		verify(pinned, size);
		_exit(0);
	}
	if (wait(&status) < 0 || status)
		fail("the child");
	expect_there(pinned, size, size);

	/* Without the pin it goes, and comes back with it at once. Bytes in the middle of a page are its page. */
	if (zfolio_unpin(at + 5, size - 10))
		fail("zfolio_unpin");
	until_out(pinned, size, 1);
	if (zfolio_pin(at + 4 * MIB + 5, 4 * MIB - 10))
		fail("zfolio_pin of a part");
	expect_there(at + 4 * MIB, 4 * MIB, 4 * MIB);
	verify(pinned, size);

	/* What moves takes its pin along. */
	char *to = mremap(at + 4 * MIB, 4 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, fill(4 * MIB));
	if (to == MAP_FAILED)
		fail("mremap");
	verify(rest, much);
	expect_there(to, 4 * MIB, 4 * MIB);
	if (munmap(to, 4 * MIB))
		fail("munmap");
	while (range(to, 4 * MIB).pinned_bytes)
		usleep(1000);

	if (zfolio_pin(rest, much / 2) != -1 || errno != ENOMEM)
		fail("more than half of the limit is pinned");
	if (zfolio_pin((void *)-4096, 8192) != -1 || errno != EINVAL)
		fail("there are no such addresses");
	if (zfolio_pin(rest, 0) || range(rest, much).pinned_bytes)
		fail("nothing is pinned");
	verify(cold, size);
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "pins") == 0)
		pins();
	else
		alone();
	puts("right");
	return 0;
}
