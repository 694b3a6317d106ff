/* A process beside others: memory of so many MiB, and what it does with it, one word after the other.
 *
 *   neighbour MIB WORD...
 *   fill       writes all of it
 *   make PATH  makes a file
 *   until PATH waits for a file
 *   work PATH  touches pages here and there until there is the file, and checks them
 *   read MS    goes through all of it again and again for so long
 *   fork N     goes on in N children too, which end with the words; the first one waits for them there
 *   verify     checks every page, and says "right"
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };

static uint64_t *memory;
static size_t pages;
static uint64_t state = 88172645463325252ull;

static uint64_t noise(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static void rest(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
	nanosleep(&t, NULL);
}

static long now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* One word of eight is noise. */
static void fill(void)
{
	for (size_t page = 0; page < pages; page++)
		for (int word = 0; word < WORDS; word++)
			memory[page * WORDS + word] = word % 8 ? page : noise();
}

static void check(size_t page)
{
	if (memory[page * WORDS + 1] != page || memory[page * WORDS + WORDS - 1] != page) {
		printf("page %zu is wrong\n", page);
		fflush(stdout);
		_exit(91);
	}
}

static void check_all(void)
{
	for (size_t page = 0; page < pages; page++)
		check(page);
}

static int exists(const char *path)
{
	return access(path, F_OK) == 0;
}

int main(int argc, char **argv)
{
	pid_t first = getpid();
	pages = strtoul(argv[1], NULL, 10) << 8;
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 90;
	for (int i = 2; i < argc; i++) {
		const char *word = argv[i];
		if (!strcmp(word, "fill")) {
			fill();
		} else if (!strcmp(word, "verify")) {
			check_all();
			printf("right\n");
			fflush(stdout);
		} else if (!strcmp(word, "make")) {
			int fd = open(argv[++i], O_CREAT | O_WRONLY, 0600);
			dprintf(fd, "%d\n", (int)getpid());
			close(fd);
		} else if (!strcmp(word, "until")) {
			for (i++; !exists(argv[i]);)
				rest(5);
		} else if (!strcmp(word, "work")) {
			for (i++; !exists(argv[i]);)
				for (int n = 0; n < 1000; n++)
					check(noise() % pages);
		} else if (!strcmp(word, "read")) {
			for (long end = now_ms() + strtol(argv[++i], NULL, 10); now_ms() < end;)
				check_all();
		} else if (!strcmp(word, "fork")) {
			for (int n = strtol(argv[++i], NULL, 10); n > 0 && getpid() == first; n--)
				fork();
			int status;
			while (getpid() == first && wait(&status) > 0)
				if (status)
					return 92;
		}
	}
	return 0;
}
