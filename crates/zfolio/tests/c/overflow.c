/*
 * overflow [AT]: fills some memory by many small allocations and prints a sum over it. With AT it reads that byte of an
 * allocation of 16, which a sanitizer reports.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	enum { COUNT = 100000, BYTES = 100 };
	char **all = malloc(COUNT * sizeof *all);
	unsigned long sum = 0;

	for (int i = 0; i < COUNT; i++) {
		all[i] = malloc(BYTES);
		memset(all[i], i & 15, BYTES);
	}
	for (int i = 0; i < COUNT; i++)
		sum += all[i][i % BYTES];
	printf("%lu\n", sum);
	fflush(stdout);
	if (argc > 1) {
		volatile char *small = malloc(16);

		memset((char *)small, 1, 16);
		return small[atoi(argv[1])];
	}
	for (int i = 0; i < COUNT; i++)
		free(all[i]);
	free(all);
	return 0;
}
