/* How a process ends: as it would. */
#include "cloak.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static void no_core(void)
{
	setrlimit(RLIMIT_CORE, &(struct rlimit){ 0 });
}

void check_exit_code(void)
{
	memory_verify();
	exit(37);
}

static void *exit_here(void *argument)
{
	memory_verify();
	exit(23);
	return argument;
}

void check_exit_in_thread(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, exit_here, NULL);
	for (;;)
		pause();
}

static unsigned handlers_run;

static void verify_at_exit(void)
{
	memory_verify();
	if (++handlers_run != 1)
		fail("an exit handler ran %u times", handlers_run);
}

/* A handler that touches memory, and a buffer that stdio must write once: to a file that is read back. */
void check_return_of_main(void)
{
	char path[] = "/tmp/cloak-XXXXXX", text[64] = "";
	int fd = mkstemp(path);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "w");

	atexit(verify_at_exit);
	if (!f)
		return;
	fprintf(f, "once ");
	pid_t child = fork();
	if (child == 0) {
		memory_verify();
		_exit(19);
	}
	expect_exit(child, 19, "the child");
	fprintf(f, "only");
	fclose(f);
	fd = open(path, O_RDONLY);
	unlink(path);
	if (fd < 0 || read(fd, text, sizeof text - 1) < 0 || strcmp(text, "once only") != 0)
		fail("the file holds \"%s\"", text);
	close(fd);
}

static void *leave_last(void *argument)
{
	memory_rest();
	memory_verify();
	memory_write();
	memory_verify();
	syscall(SYS_exit, 0);
	return argument;
}

void check_last_thread(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, leave_last, NULL);
	pthread_exit(NULL);
}

void check_killed_abort(void)
{
	no_core();
	memory_verify();
	abort();
}

void check_killed_kill(void)
{
	memory_write();
	kill(getpid(), SIGKILL);
	pause();
}

void check_killed_segv(void)
{
	no_core();
	memory_verify();
	*(volatile int *)(memory_pages & 0xf) = 1;
}

void check_killed_bus(void)
{
	no_core();
	int fd = memfd_create("cloak", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, PAGE) != 0)
		skip("memfd: %s", strerror(errno));
	volatile uint8_t *two = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	memory_verify();
	two[0] = 1;
	two[PAGE] = 1;
}

void check_killed_term(void)
{
	pid_t self = getpid();

	memory_write();
	pid_t child = fork();
	if (child == 0) {
		memory_verify();
		kill(self, SIGTERM);
		_exit(0);
	}
	for (;;)
		pause();
}

static void *fall_here(void *argument)
{
	memory_verify();
	*(volatile int *)(memory_pages & 0xf) = 1;
	return argument;
}

void check_killed_in_thread(void)
{
	pthread_t thread;

	no_core();
	pthread_create(&thread, NULL, fall_here, NULL);
	for (;;)
		pause();
}
