/*
 * strangers SECONDS: one thread maps private memory that the engine is about to register and keep out of children, and
 * another maps more a page behind it, over and over, for so many seconds. They rest now and then, and a child must have
 * all of what is there. The program keeps something else out of its children.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, PLACES = 4, FIRST = 32 * PAGE, SECOND = 16 * PAGE, STRIDE = 1 << 20, REST_US = 20000 };

/* Where the kernel maps nothing by itself. */
static char *const base = (char *)0x110000000000;
static volatile int stop, rest;
static int resting;

static char *map(char *at, size_t bytes)
{
	char *got = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (got != at)
		exit(80);
	*got = 1;
	return got;
}

static char *first_at(int place)
{
	return base + (size_t)place * STRIDE;
}

static char *second_at(int place)
{
	return first_at(place) + FIRST + PAGE;
}

static void rest_if_asked(void)
{
	if (!rest)
		return;
	__atomic_fetch_add(&resting, 1, __ATOMIC_SEQ_CST);
	while (rest)
		usleep(100);
	__atomic_fetch_sub(&resting, 1, __ATOMIC_SEQ_CST);
}

static void *map_first(void *none)
{
	for (int place = 0; !stop; place = (place + 1) % PLACES) {
		munmap(first_at(place), FIRST);
		map(first_at(place), FIRST);
		usleep(200);
		rest_if_asked();
	}
	return none;
}

static void *map_second(void *none)
{
	for (int place = 0; !stop; place = (place + 1) % PLACES) {
		munmap(second_at(place), SECOND);
		map(second_at(place), SECOND);
		rest_if_asked();
	}
	return none;
}

static int child_status(void)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		for (int place = 0; place < PLACES; place++)
			if (*first_at(place) != 1 || *second_at(place) != 1)
				_exit(1);
		_exit(0);
	}
	waitpid(child, &status, 0);
	return status;
}

int main(int argc, char **argv)
{
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 2);
	pthread_t threads[2];
	int status = 0;

	madvise(map(base - STRIDE, FIRST), FIRST, MADV_DONTFORK);
	for (int place = 0; place < PLACES; place++) {
		map(first_at(place), FIRST);
		map(second_at(place), SECOND);
	}
	if (pthread_create(&threads[0], NULL, map_first, NULL) != 0 ||
	    pthread_create(&threads[1], NULL, map_second, NULL) != 0)
		return 82;
	while (time(NULL) < end && status == 0) {
		usleep(REST_US);
		rest = 1;
		while (__atomic_load_n(&resting, __ATOMIC_SEQ_CST) < 2)
			usleep(100);
		/* Time for the engine to register what has come last. */
		usleep(REST_US);
		status = child_status();
		rest = 0;
	}
	stop = 1;
	for (int thread = 0; thread < 2; thread++)
		pthread_join(threads[thread], NULL);
	printf("the child's status is %d\n", status);
	return 0;
}
