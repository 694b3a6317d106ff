/* addresses: comes to its limit of addresses (RLIMIT_AS) with little memory, so that nothing more can be mapped, then
 * gets addresses back and fills them. Prints "whole", and stays for a while. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MIB = 1 << 20, PIECE = 64 << 10, SIZE = 48 * MIB };

static char *map(size_t bytes)
{
	char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		return NULL;
	memset(at, 7, bytes);
	return at;
}

int main(void)
{
	int file = memfd_create("addresses", 0);
	char *reserve, *filled;
	long pages;
	FILE *statm;

	if (ftruncate(file, SIZE + MIB))
		return 90;
	reserve = mmap(NULL, SIZE + MIB, PROT_READ, MAP_SHARED, file, 0);
	statm = fopen("/proc/self/statm", "r");
	if (reserve == MAP_FAILED || !statm || fscanf(statm, "%ld", &pages) != 1)
		return 91;
	rlim_t most = pages * 4096 + MIB;
	if (setrlimit(RLIMIT_AS, &(struct rlimit){ most, most }))
		return 92;
	while (map(PIECE))
		;
	munmap(reserve, SIZE + MIB);
	filled = map(SIZE);
	for (size_t at = 0; filled && at < SIZE; at++)
		if (filled[at] != 7)
			return 93;
	puts(filled ? "whole" : "no room");
	fflush(stdout);
	usleep(1500000);
	return 0;
}
