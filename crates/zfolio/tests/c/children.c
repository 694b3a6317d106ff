/*
 * Keeps memory out of its children (MADV_DONTFORK) and lets them have it (MADV_DOFORK) while it grows. Its first
 * argument is how many MiB it grows by. A thread gives both pieces of advice on one range in turn, all the time. Now
 * and then the main thread gives them on another range, and forks: the child must have what it should have, and
 * nothing else. At last the program prints what the calls say about ranges that are none, and, with a second argument,
 * what becomes of a copy that passes no library.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 256, SIZE = PAGES * PAGE, STEPS = 8 };

/* Where the kernel maps nothing by itself, so that a child has nothing else there. */
static char *const ours = (char *)0x100000000000, *const turned = (char *)0x100010000000,
	    *const torn = (char *)0x100020000000, *const elsewhere = (char *)0x100030000000;
static uint64_t *memory;
static size_t words;
static volatile int stop;

static char *map(char *at)
{
	char *got = mmap(at, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (got != at)
		exit(80);
	for (int page = 0; page < PAGES; page++)
		*(uint64_t *)(at + page * PAGE) = (uintptr_t)at + page;
	return at;
}

static int is_mapped(char *at)
{
	unsigned char present;

	return mincore(at, PAGE, &present) == 0;
}

/* True when pages of a range are there, with what was written, or none of them is. */
static int has(char *at, int first, int pages, int expected)
{
	for (int page = first; page < first + pages; page++) {
		if (is_mapped(at + page * PAGE) != expected)
			return 0;
		if (expected && *(uint64_t *)(at + page * PAGE) != (uintptr_t)at + page)
			return 0;
	}
	return 1;
}

static uint64_t word(size_t i)
{
	return i % 512 ? i / 512 : i * 0x9e3779b97f4a7c15ull;
}

static int grown_is_right(size_t upto)
{
	for (size_t i = 0; i < upto; i += 61)
		if (memory[i] != word(i))
			return 0;
	return 1;
}

static void *turn(void *argument)
{
	while (!stop)
		if (madvise(turned, SIZE, MADV_DONTFORK) != 0 || madvise(turned, SIZE, MADV_DOFORK) != 0)
			exit(81);
	return argument;
}

static void await(pid_t pid, int expected, const char *what)
{
	int status;

	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		exit(82);
	if (status != expected) {
		printf("%s: a child ends with status %x\n", what, status);
		exit(83);
	}
}

/* Forks: whether the child has `ours` is known, `turned` it has or has not, but not in parts. */
static void look(size_t upto, int has_ours, const char *what)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(!has(ours, 0, PAGES, has_ours)		    ? 90
		      : !has(turned, 0, PAGES, is_mapped(turned)) ? 91
		      : !grown_is_right(upto)			    ? 92
								    : 0);
	await(pid, 0, what);
}

static void says(const char *what, long result)
{
	printf("%s: %s\n", what, result == 0 ? "done" : strerrorname_np(errno));
}

/* Unmaps a part of a range, and advises on all of it. */
static void tear(void)
{
	pid_t pid;

	map(torn);
	munmap(torn + 100 * PAGE, PAGE);
	says("DONTFORK with a gap", madvise(torn, SIZE, MADV_DONTFORK));
	if ((pid = fork()) == 0)
		_exit(!has(torn, 0, PAGES, 0));
	await(pid, 0, "kept out around a gap");
	says("DOFORK with a gap", madvise(torn, SIZE, MADV_DOFORK));
	if ((pid = fork()) == 0)
		_exit(!has(torn, 0, 100, 1) || !has(torn, 101, PAGES - 101, 1));
	await(pid, 0, "let in around a gap");
	munmap(torn, SIZE);
}

/* What a mapping grows by is kept out as its end is, in its place or elsewhere. */
static void grow_kept(char *from)
{
	char *at = map(from);
	pid_t pid;

	if (madvise(at, SIZE, MADV_DONTFORK) != 0)
		exit(88);
	at = mremap(at, SIZE, 2 * SIZE, MREMAP_MAYMOVE | (from == torn ? 0 : MREMAP_FIXED), torn);
	if (at != torn)
		exit(89);
	memset(at + SIZE, 1, SIZE);
	if ((pid = fork()) == 0)
		_exit(is_mapped(at) || is_mapped(at + SIZE) || is_mapped(at + 2 * SIZE - PAGE));
	await(pid, 0, "grown and kept out");
	if (madvise(at, 2 * SIZE, MADV_DOFORK) != 0)
		exit(79);
	if ((pid = fork()) == 0)
		_exit(at[SIZE] + at[2 * SIZE - 1] != 2);
	await(pid, 0, "grown and let in");
	munmap(at, 2 * SIZE);
}

/* The kernel's own data, which it lets no child have. */
static void advise_vvar(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long from, to;
	char line[256];

	while (fgets(line, sizeof line, maps))
		if (strstr(line, "[vvar]") && sscanf(line, "%lx-%lx", &from, &to) == 2)
			says("DOFORK of the kernel's", madvise((void *)from, to - from, MADV_DOFORK));
	fclose(maps);
}

static pid_t copy_past_libc(void)
{
	long result;

	__asm__ volatile("xor %%r10, %%r10\n xor %%r8, %%r8\n syscall"
			 : "=a"(result)
			 : "a"(SYS_clone), "D"(SIGCHLD), "S"(0), "d"(0)
			 : "rcx", "r8", "r10", "r11", "memory");
	return result;
}

int main(int count, char **arguments)
{
	pthread_t thread;
	int status;

	words = (size_t)atoi(arguments[1]) << 20 >> 3;
	map(ours);
	map(turned);
	memory = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_create(&thread, NULL, turn, NULL);
	for (size_t step = 0; step < STEPS; step++) {
		size_t upto = words / STEPS * (step + 1);

		for (size_t i = words / STEPS * step; i < upto; i++)
			memory[i] = word(i);
		if (madvise(ours, SIZE, MADV_DONTFORK) != 0)
			return 84;
		look(upto, 0, "kept out");
		if (madvise(ours, SIZE, MADV_DOFORK) != 0)
			return 85;
		look(upto, 1, "let in");
		if (syscall(SYS_madvise, ours, SIZE, MADV_DONTFORK) != 0)
			return 86;
		look(upto, 0, "kept out by syscall");
		if (syscall(SYS_madvise, ours, SIZE, MADV_DOFORK) != 0)
			return 87;
		look(upto, 1, "let in by syscall");
	}
	stop = 1;
	pthread_join(thread, NULL);
	tear();
	grow_kept(torn);
	grow_kept(elsewhere);
	says("DOFORK of nothing", madvise(ours, 0, MADV_DOFORK));
	says("DONTFORK from within a page", madvise(ours + 1, PAGE, MADV_DONTFORK));
	says("DOFORK of too much", madvise(ours, -PAGE, MADV_DOFORK));
	says("DONTFORK of more than there can be", madvise(ours, -1, MADV_DONTFORK));
	says("DOFORK where nothing is", madvise(torn, SIZE, MADV_DOFORK));
	advise_vvar();
	puts(has(ours, 0, PAGES, 1) && has(turned, 0, PAGES, 1) && grown_is_right(words) ? "right" : "not right");
	fflush(stdout);
	if (count > 2) {
		pid_t pid = copy_past_libc();

		if (pid == 0)
			_exit(*(volatile uint64_t *)ours == (uintptr_t)ours);
		waitpid(pid, &status, 0);
		printf("a copy past libc: %s\n", WIFSIGNALED(status) ? "killed" : WEXITSTATUS(status) ? "has it" : "zeros");
	}
	return 0;
}
