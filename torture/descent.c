/* Children: fork, vfork, clone, exec; and being stopped. */
#include "cloak.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A fork forbids huge pages for a moment, and marks mappings. */
static void expect_no_trace(const char *who)
{
	char line[256];
	unsigned marked = 0;

	if (prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) != 0)
		fail("%s gets no huge pages any more", who);
	FILE *smaps = fopen("/proc/self/smaps", "re");
	while (smaps && fgets(line, sizeof line, smaps))
		marked += strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " rr ");
	if (smaps)
		fclose(smaps);
	if (marked)
		fail("%u mappings of %s have the advice MADV_RANDOM", marked, who);
}

void check_fork(void)
{
	int fd = open("/dev/null", O_RDWR);

	pid_t child = fork();
	if (child == 0) {
		memory_verify();
		expect_no_trace("the child");
		check_tasks();
		check_children_all();
		for (int i = 0; i < 4; i++)
			if (fcntl(i, F_GETFD) < 0)
				fail("the child does not have descriptor %d", i);
		for (int i = 4; i < 100; i++)
			if (fcntl(i, F_GETFD) >= 0)
				fail("the child has a descriptor %d", i);
		memory_write();
		memory_rest();
		memory_verify();
		_exit(19);
	}
	expect_exit(child, 19, "the child");
	expect_no_trace("the parent");
	close(fd);
	memory_verify();
}

static _Atomic bool busy;

/* Works on memory of its own until told to stop. */
static void *keep_busy(void *argument)
{
	enum { MINE = 1000 };
	uint8_t *mine = malloc(MINE * PAGE);
	size_t at;

	for (unsigned generation = 1; busy; generation++) {
		tag_t tag = tag_make(9, 0, generation, 0);
		content_fill_bytes(mine, MINE * PAGE, tag);
		if (!content_matches_bytes(mine, MINE * PAGE, tag, &at))
			fail("a busy thread's memory differs");
	}
	free(mine);
	return argument;
}

void check_fork_threads(void)
{
	pthread_t threads[3];

	busy = true;
	for (unsigned i = 0; i < 3; i++)
		pthread_create(&threads[i], NULL, keep_busy, NULL);
	for (unsigned i = 0; i < 10; i++)
		fork_and_verify();
	busy = false;
	for (unsigned i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	memory_verify();
}

static void descend(unsigned depth)
{
	pid_t child = fork();

	if (child == 0) {
		memory_verify();
		memory_write();
		if (depth)
			descend(depth - 1);
		memory_verify();
		_exit(19);
	}
	memory_write();
	memory_verify();
	expect_exit(child, 19, "a child");
	memory_verify();
}

void check_fork_deep(void)
{
	descend(4);
}

static __attribute__((noinline)) pid_t vfork_and_verify(pid_t stopped)
{
	pid_t child = vfork();

	if (child == 0) {
		if (stopped)
			kill(stopped, SIGSTOP);
		bool right = memory_is_right();
		memory_write();
		if (stopped)
			kill(stopped, SIGCONT);
		_exit(right ? 18 : 1);
	}
	return child;
}

void check_vfork(void)
{
	expect_exit(vfork_and_verify(0), 18, "the vfork child");
	memory_verify();
}

/*
 * The whole process is stopped, but for the vfork child that uses its memory: who serves it must not be
 * stopped along.
 */
void check_stop_vfork(void)
{
	expect_exit(vfork_and_verify(getpid()), 18, "the vfork child");
	memory_verify();
}

void check_spawn(void)
{
	pid_t child = spawn_self((const char *[]){ "cloak", "--exit", "41", NULL });
	expect_exit(child, 41, "the spawned child");
	child = spawn_self((const char *[]){ "cloak", "--die", "15", NULL });
	int status = await(child);
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGTERM)
		fail("a child killed by SIGTERM has status %x", status);
	status = system("exit 12");
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 12)
		fail("system(\"exit 12\") has status %x", status);
	memory_verify();
}

void check_raw_clone(void)
{
	for (unsigned round = 0; round < 3; round++) {
		/* No libc and no wrapper of a library has a part in this one. */
		long child;
		register long r10 __asm__("r10") = 0;
		register long r8 __asm__("r8") = 0;
		__asm__ volatile("syscall"
				 : "=a"(child)
				 : "a"(SYS_clone), "D"(SIGCHLD), "S"(0), "d"(0), "r"(r10), "r"(r8)
				 : "rcx", "r11", "memory");
		if (child == 0)
			syscall(SYS_exit_group, memory_is_right() ? 19 : 1);
		if (child < 0)
			fail("clone: %s", strerror(-child));
		int status = await(child);
		bool well = WIFEXITED(status) && WEXITSTATUS(status) == 19;
		bool dead = WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
		if (!well && !dead)
			fail("the child read wrong memory (status %x)", status);
		memory_verify();
	}
}

void check_exec(void)
{
	char pid[24];

	snprintf(pid, sizeof pid, "%d", (int)getpid());
	if (open("/dev/null", O_RDWR | O_CLOEXEC) != 3)
		fail("descriptor 3 is taken");
	execl(program, "cloak", "--after-exec", pid, NULL);
	fail("exec of %s: %s", program, strerror(errno));
}

/* ---- being stopped ------------------------------------------------------------------------------ */

static char state_of(pid_t pid)
{
	char path[64], text[512], *after;
	char state = '?';

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	FILE *f = fopen(path, "re");
	if (f && fgets(text, sizeof text, f) && (after = strrchr(text, ')')))
		sscanf(after + 1, " %c", &state);
	if (f)
		fclose(f);
	return state;
}

/* Stops the target three times, sees that it is stopped, and lets it go on. */
int stopper_main(pid_t target)
{
	for (unsigned round = 0; round < 3; round++) {
		char state = '?';
		kill(target, SIGSTOP);
		for (unsigned i = 0; i < 1000 && (state = state_of(target)) != 'T'; i++)
			nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
		nanosleep(&(struct timespec){ 0, 200000000 }, NULL);
		char later = state_of(target);
		kill(target, SIGCONT);
		if (state != 'T' || later != 'T')
			return 1;
		nanosleep(&(struct timespec){ 0, 100000000 }, NULL);
	}
	return 44;
}

void check_stop(void)
{
	char pid[24];
	int status;

	snprintf(pid, sizeof pid, "%d", (int)getpid());
	pid_t child = spawn_self((const char *[]){ "cloak", "--stopper", pid, NULL });
	while (waitpid(child, &status, WNOHANG) != child) {
		memory_verify();
		memory_write();
	}
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 44)
		fail("the process was not seen as stopped (status %x)", status);
	memory_verify();
}

void check_reader_outside(void)
{
	pid_t parent = getpid();

	prctl(PR_SET_PTRACER, parent);
	pid_t child = fork();
	if (child == 0) {
		static uint64_t page[WORDS];
		for (size_t p = 0; p < memory_pages; p += 3) {
			struct iovec to = { page, PAGE }, from = { memory + p * PAGE, PAGE };
			ssize_t n = process_vm_readv(parent, &to, 1, &from, 1, 0);
			if (n < 0 && errno == EPERM)
				_exit(21);
			if (n != (ssize_t)PAGE || memcmp(page, memory + p * PAGE, PAGE) != 0)
				_exit(1);
		}
		_exit(19);
	}
	int status = await(child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 21)
		skip("process_vm_readv is not allowed here");
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 19)
		fail("another process read wrong memory (status %x)", status);
}
