/* Fills memory that it can check, lets it leave, and then does what its first argument says. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t *memory;
static size_t words;

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

/* One word of four is noise, unless all is to be. */
static uint64_t word(size_t i, int noise)
{
	return noise || i % 4 == 0 ? mix(i) : i / 512;
}

static void fill(size_t mib, int noise)
{
	words = mib << 17;
	memory = mmap(NULL, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		exit(90);
	for (size_t i = 0; i < words; i++)
		memory[i] = word(i, noise);
}

/* Returns when a page of the memory is out. */
static void until_out(void)
{
	static unsigned char there[1 << 16];
	size_t pages = words / 512;

	for (int i = 0; i < 20000; i++) {
		if (mincore(memory, pages * 4096, there) != 0)
			exit(99);
		if (memchr(there, 0, pages))
			return;
		usleep(1000);
	}
	exit(100);
}

static void verify(const char *who)
{
	for (size_t i = 0; i < words; i++)
		if (memory[i] != word(i, 0)) {
			printf("%s: word %zu is %lx\n", who, i, (unsigned long)memory[i]);
			fflush(stdout);
			_exit(91);
		}
}

static void rest(unsigned ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	while (nanosleep(&t, &t) != 0)
		;
}

static int child_status(pid_t child)
{
	int status;

	if (child < 0 || waitpid(child, &status, __WALL) != child)
		exit(92);
	return status;
}

/* Lives on when the main thread has ended. */
static void *last_thread(void *argument)
{
	rest(300);
	verify("last thread");
	printf("right\n");
	exit(0);
	return argument;
}

/* Gives pages to a pipe, lets them leave, and takes them out of the pipe. */
static void lend(void)
{
	static uint64_t got[1 << 13];
	struct iovec pages = { memory, 1 << 20 };
	int fds[2], one = 1, file = open("/proc/self/exe", O_RDONLY);

	if (pipe(fds) != 0 || vmsplice(file, &pages, 1, 0) != -1 || errno != EBADF)
		exit(80);
	for (int round = 0; round < 8; round++) {
		pages = (struct iovec){ memory + (round << 17), 1 << 20 };
		/* As much as there is room for, and then no more. */
		ssize_t sent = vmsplice(fds[1], &pages, 1, 0), taken = 0;
		if (sent != 1 << 16)
			exit(81);
		if (vmsplice(fds[1], &pages, 1, SPLICE_F_NONBLOCK) != -1 || errno != EAGAIN)
			exit(82);
		verify("lent");
		rest(50);
		verify("lent");
		pages = (struct iovec){ got, sent };
		if (round % 2 == 0)
			taken = vmsplice(fds[0], &pages, 1, 0);
		while (taken < sent)
			taken += read(fds[0], (char *)got + taken, sent - taken);
		for (size_t i = 0; i < (size_t)sent / 8; i++)
			if (got[i] != word((round << 17) + i, 0)) {
				printf("pipe: word %zu is %lx\n", i, (unsigned long)got[i]);
				exit(83);
			}
	}
	/* Into a full pipe it waits for a reader. */
	pages = (struct iovec){ memory, 1 << 16 };
	if (vmsplice(fds[1], &pages, 1, 0) != 1 << 16)
		exit(85);
	pid_t child = fork();
	if (child == 0) {
		rest(100);
		_exit(read(fds[0], got, sizeof got) == sizeof got ? 0 : 1);
	}
	if (vmsplice(fds[1], &pages, 1, 0) <= 0 || child_status(child) != 0)
		exit(86);
	if (setsockopt(socket(AF_INET, SOCK_STREAM, 0), SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) != -1 ||
	    errno != ENOPROTOOPT)
		exit(84);
}

/* Says when it is ready, and waits for a line. */
static void await_word(void)
{
	char line[8];

	printf("ready %d\n", (int)getpid());
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		exit(96);
}

/*
 * Locks memory that has left, and has it move and grow again and again: each time it must be one mapping,
 * or the next mremap says EFAULT.
 */
static void grow_locked(void)
{
	const size_t more = 40960;
	size_t bytes = words * 8;

	until_out();
	if (mlock(memory, bytes) != 0)
		exit(70);
	for (int round = 0; round < 6; round++) {
		/* What lies behind it keeps it from growing where it is. */
		mmap((char *)memory + bytes, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
		     -1, 0);
		void *moved = mremap(memory, bytes, bytes + more, MREMAP_MAYMOVE);
		if (moved == MAP_FAILED) {
			printf("mremap of %zu bytes: %s\n", bytes, strerror(errno));
			exit(71);
		}
		memory = moved;
		for (size_t i = bytes / 8; i < (bytes + more) / 8; i++) {
			if (memory[i] != 0)
				exit(72);
			memory[i] = word(i, 0);
		}
		bytes += more;
		words = bytes / 8;
		verify("locked");
	}
}

/* Not every libc has _Fork. */
static pid_t fork_alone(void)
{
	pid_t (*call)(void) = (pid_t(*)(void))dlsym(RTLD_DEFAULT, "_Fork");

	return call ? call() : fork();
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	size_t mib = argc > 2 ? strtoul(argv[2], NULL, 0) : 48;

	fill(mib, strcmp(what, "noise") == 0);
	rest(200);
	int by_fork = strcmp(what, "fork") == 0, by_libc = strcmp(what, "_Fork") == 0;
	if (by_fork || by_libc || strcmp(what, "forkpty") == 0) {
		for (int round = 0; round < 4; round++) {
			int terminal = -1;
			pid_t child = by_fork ? fork() : by_libc ? fork_alone() : forkpty(&terminal, NULL, NULL, NULL);
			if (child == 0) {
				verify("child");
				_exit(5);
			}
			verify("parent");
			int status = child_status(child);
			if (!WIFEXITED(status) || WEXITSTATUS(status) != 5)
				exit(93);
			close(terminal);
		}
	} else if (strcmp(what, "daemon") == 0) {
		if (daemon(1, 1) != 0)
			exit(94);
		rest(200);
		verify("daemon");
	} else if (strcmp(what, "exec") == 0) {
		execl("/proc/self/exe", "hold", "verify", argv[2], NULL);
		exit(95);
	} else if (strcmp(what, "userfault") == 0) {
		/* Nobody serves this one: a page that is a hole by now would be waited for. */
		struct uffdio_api api = { .api = UFFD_API };
		struct uffdio_register range = { .range = { (uintptr_t)memory, words * 8 },
						 .mode = UFFDIO_REGISTER_MODE_MISSING };
		/* What is there before the engine has come to it could never go out again. */
		until_out();
		int own = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
		if (own < 0 || ioctl(own, UFFDIO_API, &api) != 0)
			exit(97);
		if (ioctl(own, UFFDIO_REGISTER, &range) != 0) {
			perror("UFFDIO_REGISTER");
			exit(98);
		}
		rest(200);
	} else if (strcmp(what, "last") == 0) {
		pthread_t thread;
		pthread_create(&thread, NULL, last_thread, NULL);
		pthread_exit(NULL);
	} else if (strcmp(what, "lend") == 0) {
		lend();
	} else if (strcmp(what, "locked") == 0) {
		grow_locked();
	} else if (strcmp(what, "turns") == 0) {
		await_word();
	} else if (strcmp(what, "burst") == 0) {
		await_word();
		fill(2 * mib, 0);
	}
	verify("end");
	printf("right\n");
	return 0;
}
