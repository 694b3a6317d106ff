/*
 * A process to which orphans come, and that waits until it has no child any more: `init PLACE WAY`.
 *
 * PLACE: own (the first process of a PID namespace with a /proc of its own), foreign (with the /proc of the namespace
 * around it), subreaper, hidden (as foreign, and its child hides /dev/shm and executes another program).
 * WAY: wait, waitid, syscall, all (children of every kind), poll, signal, threads.
 *
 * It has more memory than its limit, a child, and a grandchild that comes to it, each of which has an engine. Every one
 * of them must be told of once and nobody else, and the end when they are gone.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define fail(...) (printf(__VA_ARGS__), printf("\n"), fflush(stdout), _exit(91))

static const char *place, *way, *self;
static int expected[2];
static int ends[2]; /* the children read from it, and end when it is closed */
static int met[2];

static void rest(unsigned ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	while (nanosleep(&t, &t) != 0)
		;
}

static volatile uint64_t *fill(size_t mib)
{
	volatile uint64_t *words = malloc(mib * MIB);

	for (size_t i = 0; i < mib * MIB / 8; i++)
		words[i] = i / 100;
	return words;
}

static void verify(volatile uint64_t *words, size_t mib)
{
	for (size_t i = 0; i < mib * MIB / 8; i++)
		if (words[i] != i / 100)
			fail("word %zu is %lx", i, (unsigned long)words[i]);
}

/* A child with an engine, until its parent lets it end. */
static void live(int status)
{
	volatile uint64_t *words = fill(8);
	char byte;

	close(ends[1]);
	while (read(ends[0], &byte, 1) > 0)
		;
	verify(words, 8);
	_exit(status);
}

static void note(int pid, int status)
{
	for (int i = 0; i < 2; i++)
		if (pid == expected[i]) {
			if (!WIFEXITED(status) || WEXITSTATUS(status) != 3 + i)
				fail("child %d ended as %x", i, status);
			if (__sync_fetch_and_add(&met[i], 1) != 0)
				fail("child %d came twice", i);
			return;
		}
	fail("%s: %d is no child of mine", way, pid);
}

/* Waits for one child; 0 when none is ready, -1 at the end. */
static int take(int options)
{
	int status = 0, pid;
	siginfo_t info;

	memset(&info, 0x55, sizeof info);
	if (strcmp(way, "waitid") == 0) {
		if (waitid(P_ALL, 0, &info, WEXITED | options) != 0)
			return -1;
		pid = info.si_pid;
		status = W_EXITCODE(info.si_status, 0);
		if (pid == 0 && info.si_signo != 0)
			fail("waitid says signal %d of nobody", info.si_signo);
	} else if (strcmp(way, "syscall") == 0)
		pid = syscall(SYS_wait4, -1, &status, options, NULL);
	else if (strcmp(way, "all") == 0)
		pid = waitpid(-1, &status, options | __WALL);
	else if (options == 0)
		pid = wait(&status);
	else
		pid = waitpid(-1, &status, options);
	if (pid > 0)
		note(pid, status);
	return pid;
}

static void *take_all(void *unused)
{
	int pid;

	(void)unused;
	while ((pid = take(0)) > 0 || (pid == -1 && errno == EINTR))
		;
	if (pid != -1 || errno != ECHILD)
		fail("%s: %d, errno %d", way, pid, errno);
	return NULL;
}

static void take_by_signals(void)
{
	sigset_t set;
	int pid = 1;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	while (pid >= 0 || errno != ECHILD) {
		struct timespec time = { 1, 0 };

		sigtimedwait(&set, NULL, &time);
		while ((pid = take(WNOHANG)) > 0)
			;
	}
}

static void take_by_polls(void)
{
	int pid;

	while ((pid = take(WNOHANG)) >= 0)
		if (pid == 0)
			rest(5);
	if (errno != ECHILD)
		fail("%s: errno %d", way, errno);
}

static void be_init(void)
{
	volatile uint64_t *words = fill(32);
	int told[2];
	pthread_t thread;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	if (strcmp(way, "signal") == 0)
		sigprocmask(SIG_BLOCK, &set, NULL);
	if (pipe(ends) != 0 || pipe(told) != 0)
		fail("pipe");
	if ((expected[0] = fork()) == 0) {
		int grandchild = fork();

		if (grandchild == 0)
			live(4);
		if (write(told[1], &grandchild, sizeof grandchild) != sizeof grandchild)
			_exit(90);
		rest(100);
		_exit(3);
	}
	if (read(told[0], &expected[1], sizeof expected[1]) != sizeof expected[1])
		fail("no grandchild");
	/* There are children, and none has ended; later none but the grandchild, and an engine or two. */
	if (take(WNOHANG) != 0)
		fail("somebody has ended already");
	rest(300);
	if (take(WNOHANG) != expected[0] || take(WNOHANG) != 0)
		fail("the child has not ended");
	verify(words, 32);
	close(ends[1]);
	if (strcmp(way, "threads") == 0) {
		pthread_create(&thread, NULL, take_all, NULL);
		take_all(NULL);
		pthread_join(thread, NULL);
	} else if (strcmp(way, "signal") == 0)
		take_by_signals();
	else if (strcmp(way, "poll") == 0)
		take_by_polls();
	else
		take_all(NULL);
	if (met[0] != 1 || met[1] != 1)
		fail("%s: %d and %d came", way, met[0], met[1]);
	verify(words, 32);
}

/* A child that has an engine where /proc has other numbers, and executes a program that cannot be managed. */
static void hide(void)
{
	int status;

	fill(8);
	if (fork() == 0) {
		fill(8);
		if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("none", "/dev/shm", "tmpfs", 0, NULL))
			fail("mount: errno %d", errno);
		execl(self, "init", "large", NULL);
		fail("execl");
	}
	if (wait(&status) <= 0 || status != 0)
		fail("status %x", status);
}

static int first(void *unused)
{
	(void)unused;
	if (strcmp(place, "own") == 0 && (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("proc", "/proc", "proc", 0, NULL)))
		fail("mount: errno %d", errno);
	if (strcmp(place, "hidden") == 0)
		hide();
	else
		be_init();
	return 0;
}

int main(int argc, char **argv)
{
	static char stack[1 << 20] __attribute__((aligned(16)));
	int pid, status;

	self = argv[0];
	if (argc == 2 && strcmp(argv[1], "large") == 0) {
		volatile uint64_t *words = fill(24);

		rest(1500);
		verify(words, 24);
		return 0;
	}
	if (argc != 3)
		return 2;
	place = argv[1];
	way = argv[2];
	if (strcmp(place, "subreaper") == 0) {
		prctl(PR_SET_CHILD_SUBREAPER, 1);
		be_init();
	} else {
		pid = clone(first, stack + sizeof stack, CLONE_NEWPID | CLONE_NEWNS | SIGCHLD, NULL);
		if (pid < 0)
			return printf("skipped\n"), 0;
		if (waitpid(pid, &status, 0) != pid || status != 0)
			fail("the first process: %x", status);
	}
	printf("no child left\n");
	return 0;
}
