/*
 * Keeps a small mapping out of children (MADV_DONTFORK) and unmaps it; then a mapping beside it grows over its place. A
 * child must have all of that one.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 32, MORE = 4 };

/* Where the kernel maps nothing by itself. */
static char *const base = (char *)0x110000000000;

static char *map(char *at, size_t bytes)
{
	char *got = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (got != at)
		exit(80);
	memset(got, 1, bytes);
	return got;
}

int main(void)
{
	char *place = base + PAGES * PAGE;
	int status;

	/* The engine is awake then. */
	map(base - (16 << 20), 15 << 20);
	usleep(300000);
	map(place, MORE * PAGE);
	if (madvise(place, MORE * PAGE, MADV_DONTFORK) != 0)
		return 81;
	munmap(place, MORE * PAGE);
	map(base, PAGES * PAGE);
	usleep(100000);
	if (mremap(base, PAGES * PAGE, (PAGES + MORE) * PAGE, 0) != base)
		return 82;
	memset(place, 2, MORE * PAGE);
	usleep(100000);
	pid_t child = fork();
	if (child == 0)
		_exit(base[0] == 1 && place[0] == 2 && place[MORE * PAGE - 1] == 2 ? 0 : 1);
	waitpid(child, &status, 0);
	printf("the child's status is %d\n", status);
	return 0;
}
