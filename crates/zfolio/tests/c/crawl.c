/*
 * Programs that a limit squeezes badly: crawl small COUNT | copies FILE | pages MIB. All check what they read. The last
 * two go on until a byte comes on stdin.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096

static int is_told(void)
{
	struct pollfd in = { 0, POLLIN, 0 };
	return poll(&in, 1, 0) > 0;
}

static unsigned long next(unsigned long *state)
{
	*state = *state * 6364136223846793005UL + 1442695040888963407UL;
	return *state >> 20;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

/* COUNT mappings of a page, a page without access behind each; beside them some memory that can go out. */
static int small(long count)
{
	long **at = calloc(count, sizeof *at), bad = 0;
	size_t held = 4 << 20;
	char *heap = malloc(held);
	memset(heap, 7, held);
	for (long i = 0; i < count; i++) {
		at[i] = mmap(0, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (at[i] == MAP_FAILED || mprotect(at[i], PAGE, PROT_READ | PROT_WRITE))
			die("mmap");
		at[i][i % 512] = i + 1;
		heap[i * 64 % held]++;
	}
	for (long i = 0; i < count; i++)
		bad += at[i][i % 512] != i + 1;
	return bad != 0;
}

/* Private copies of all pages of a file, read again and again. */
static int copies(const char *path)
{
	int file = open(path, O_RDONLY);
	struct stat stat;
	if (file < 0 || fstat(file, &stat))
		die(path);
	char *at = mmap(0, stat.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
	if (at == MAP_FAILED)
		die("mmap");
	for (off_t i = 0; i < stat.st_size; i += PAGE)
		at[i] = i / PAGE;
	while (!is_told())
		for (off_t i = 0; i < stat.st_size; i += PAGE)
			if (at[i] != (char)(i / PAGE))
				return 1;
	return 0;
}

/* Pages that shrink to half, touched here and there. */
static int pages(size_t mib)
{
	size_t count = mib << 8;
	unsigned long state = 1, *at = mmap(0, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		die("mmap");
	for (size_t page = 0; page < count; page++) {
		for (int i = 0; i < 256; i++)
			at[page * 512 + i] = next(&state) << 32 | next(&state);
		at[page * 512 + 511] = page;
	}
	while (!is_told())
		for (int i = 0; i < 100; i++) {
			size_t page = next(&state) % count;
			if (at[page * 512 + 511] != page)
				return 1;
		}
	return 0;
}

int main(int count, char **words)
{
	int status = 2;
	if (count == 3 && !strcmp(words[1], "small"))
		status = small(atol(words[2]));
	else if (count == 3 && !strcmp(words[1], "copies"))
		status = copies(words[2]);
	else if (count == 3 && !strcmp(words[1], "pages"))
		status = pages(atol(words[2]));
	puts(status ? "wrong" : "right");
	return status;
}
