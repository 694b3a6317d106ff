// Passes the system calls that libzfolio.so hooks inside libc, and says what came of it. With an argument it grows past
// its limit first.
//
// It starts by the oldest version of glibc's start-up code, so that it runs with any glibc since 2.2.5, whichever it
// was linked with.

#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

__asm__(".symver old_start_main, __libc_start_main@GLIBC_2.2.5");
int old_start_main(int (*)(int, char **), int, char **, void (*)(void), void (*)(void), void (*)(void), void *);

#define WORDS (48 << 20 >> 3)

static unsigned long *large;

static unsigned long word(unsigned long i)
{
	return i % 16 == 0 ? i * 0x9e3779b97f4a7c15 : i;
}

static unsigned long wrong(void)
{
	unsigned long count = 0;

	for (unsigned long i = 0; large && i < WORDS; i++)
		count += large[i] != word(i);
	return count;
}

static void child(int number)
{
	fflush(stdout);
	pid_t pid = fork();

	if (pid == 0) {
		char *more = malloc(3 << 20);

		memset(more, number, 3 << 20);
		exit(wrong() == 0 && more[(3 << 20) - 1] == number ? number : 99);
	}
	int status = -1;

	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		printf("child %d: lost\n", number);
	else
		printf("child %d: %d\n", number, WEXITSTATUS(status));
}

static void heap(void)
{
	char *bytes = NULL, *small[500];
	unsigned long sum = 0;

	for (unsigned long size = 1000; size < 2000000; size = size * 3 / 2) {
		bytes = realloc(bytes, size);
		memset(bytes + size * 2 / 3, size % 251, size - size * 2 / 3);
	}
	for (int i = 0; i < 500; i++) {
		small[i] = malloc(2000);
		memset(small[i], i, 2000);
	}
	for (int i = 0; i < 500; i++)
		sum += small[i][1999] == (char)i;
	printf("heap: %lu small ones, brk %s\n", sum, sbrk(0) == (void *)-1 ? "fails" : "works");
	printf("mmap: %s\n", mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? "refuses" : "?");
}

/*
 * How many processes beside this one have this program. An engine has its program's, and is to end when that executes
 * another.
 */
static int others(void)
{
	char own[4096] = "", path[300], other[4096];
	int found = 0;
	DIR *proc = opendir("/proc");

	if (!proc || readlink("/proc/self/exe", own, sizeof(own) - 1) < 0)
		return -1;
	for (struct dirent *entry; (entry = readdir(proc));) {
		snprintf(path, sizeof(path), "/proc/%s/exe", entry->d_name);
		ssize_t length = readlink(path, other, sizeof(other) - 1);
		other[length < 0 ? 0 : length] = 0;
		found += atoi(entry->d_name) > 0 && atoi(entry->d_name) != getpid() && strcmp(own, other) == 0;
	}
	closedir(proc);
	return found;
}

/* Executes the program anew, by the same loader. */
static void again(const char *program)
{
	char loader[4096] = "", folder[4096];

	if (readlink("/proc/self/exe", loader, sizeof(loader) - 1) < 0)
		return;
	strcpy(folder, loader);
	*strrchr(folder, '/') = 0;
	execl(loader, loader, "--library-path", folder, program, "others", (char *)NULL);
	printf("execl fails\n");
}

static int run(int count, char **words)
{
	if (count > 1 && strcmp(words[1], "others") == 0) {
		int left = others();

		for (int i = 0; i < 50 && left != 0; i++, left = others())
			usleep(100000);
		printf("left: %d\n", left);
		fflush(stdout);
		_exit(7);
	}
	child(1);
	heap();
	if (count > 1) {
		large = malloc(WORDS * sizeof(*large));
		for (unsigned long i = 0; i < WORDS; i++)
			large[i] = word(i);
	}
	child(2);
	fflush(stdout);
	printf("system: %d\n", WEXITSTATUS(system("exit 3")));

	char line[80] = "";
	FILE *pipe = popen("echo from a pipe", "r");

	if (!fgets(line, sizeof(line), pipe))
		printf("no line\n");
	printf("popen: %d %s", pclose(pipe), line);
	child(3);
	printf("wrong: %lu\n", wrong());
	fflush(stdout);
	if (count > 1)
		again(words[0]);
	_exit(7);
}

__attribute__((used)) static void begin(long *stack)
{
	old_start_main(run, stack[0], (char **)(stack + 1), NULL, NULL, NULL, stack);
}

__asm__(".globl _start\n_start: xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call begin\n hlt\n");
