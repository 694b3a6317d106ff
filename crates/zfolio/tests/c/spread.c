/* spread MIB: two threads add to random bytes of a table of so many MiB; prints a sum over the table. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned char *table;
static size_t bytes;

static void *touch(void *seed)
{
	unsigned long x = (unsigned long)seed * 88172645463325252ul + 1;

	for (long i = 0; i < 2000000; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		__atomic_fetch_add(table + x % bytes, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[2];
	unsigned sum = 0;

	bytes = (size_t)atoi(argv[argc - 1]) << 20;
	table = malloc(bytes);
	for (size_t i = 0; i < bytes; i++)
		table[i] = i * 2654435761u >> 24;
	for (long i = 0; i < 2; i++)
		pthread_create(threads + i, NULL, touch, (void *)(i + 1));
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	for (size_t i = 0; i < bytes; i++)
		sum += table[i];
	printf("%u\n", sum);
	return 0;
}
