/*
 * Starts a program by one of the ways there are, or is such a program and says what it finds.
 *
 *   descend show ARG...              says its arguments and its environment
 *   descend grow                     fills memory, checks it, and says whether somebody keeps it small
 *   descend by WAY PROGRAM ARG...    starts the program by a call, see `ways`
 *   descend as UID PROGRAM ARG...    gives up its rights first
 *   descend full WAY PROGRAM ARG...  the same as `by`, with no descriptor left
 *   descend leaves WAY PROGRAM       says which descriptor is the next before and after a call, which is to fail or
 *                                    comes back
 *   descend filter CALL PROGRAM ARG...
 *                                    lets the kernel refuse a call from now on, see `filter`
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static void show(char **arguments)
{
	for (; *arguments; arguments++)
		printf("argument %s\n", *arguments);
	for (char **e = environ; e && *e; e++)
		printf("%.200s\n", *e);
}

enum { MIB = 96, PAGES = MIB << 8, WORDS = 512 };

static size_t present_pages(uint64_t *memory)
{
	static unsigned char present[PAGES];
	size_t pages = 0;

	if (mincore(memory, (size_t)MIB << 20, present) != 0)
		exit(90);
	for (size_t p = 0; p < PAGES; p++)
		pages += present[p] & 1;
	return pages;
}

static void grow(void)
{
	uint64_t *memory = mmap(NULL, (size_t)MIB << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED) {
		printf("no memory: %s\n", strerror(errno));
		exit(91);
	}
	for (size_t p = 0; p < PAGES; p++)
		for (size_t w = 0; w < WORDS; w++)
			memory[p * WORDS + w] = p * 77 + w / 8;
	for (size_t p = 0; p < PAGES; p++)
		for (size_t w = 0; w < WORDS; w++)
			if (memory[p * WORDS + w] != p * 77 + w / 8)
				exit(92);
	/* Where every CPU is busy this may have been faster than the engine's look at it. */
	for (unsigned i = 0; i < 40 && present_pages(memory) >= PAGES * 2 / 3; i++)
		nanosleep(&(struct timespec){ 0, 50000000 }, NULL);
	puts(present_pages(memory) < PAGES * 2 / 3 ? "kept small" : "whole");
}

/* ---- ways ----------------------------------------------------------------------------------------- */

static char *const one[] = { "A=1", "B=2", NULL };
static char *const preloads[] = { "A=1", "LD_PRELOAD=libm.so.6 libm.so.6", "B=2", NULL };
static char *const forgets_page[] = { "ZFOLIO_MEMCG2=x", NULL };
static char *const none[] = { NULL };

static const char *program;
static char **arguments;

/* For the lists: as many arguments as go into registers, and more. */
#define LIST(f, ...) \
	switch (count) { \
	case 1: return f(program, a[0], NULL, ##__VA_ARGS__); \
	case 2: return f(program, a[0], a[1], NULL, ##__VA_ARGS__); \
	case 4: return f(program, a[0], a[1], a[2], a[3], NULL, ##__VA_ARGS__); \
	case 5: return f(program, a[0], a[1], a[2], a[3], a[4], NULL, ##__VA_ARGS__); \
	case 6: return f(program, a[0], a[1], a[2], a[3], a[4], a[5], NULL, ##__VA_ARGS__); \
	case 9: return f(program, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], NULL, ##__VA_ARGS__); \
	default: exit(93); \
	}

enum list { L, LP, LE };

static int by_list(enum list which)
{
	char **a = arguments;
	int count = 0;

	while (a[count])
		count++;
	switch (which) {
	case L: LIST(execl);
	case LP: LIST(execlp);
	default: LIST(execle, one);
	}
}

static int wait_for(int error, pid_t child)
{
	int status;

	if (error) {
		errno = error;
		return -1;
	}
	if (waitpid(child, &status, 0) != child)
		exit(94);
	exit(WIFEXITED(status) ? WEXITSTATUS(status) : 95);
}

static int by_vfork(void)
{
	volatile int error = 0;
	pid_t child = vfork();

	if (child == 0) {
		execve(program, arguments, one);
		error = errno;
		_exit(96);
	}
	return wait_for(error, child);
}

static void exec_in_handler(int signal)
{
	(void)signal;
	execve(program, arguments, one);
}

static int by_handler(void)
{
	static char stack[32768];
	struct sigaction action = { .sa_handler = exec_in_handler, .sa_flags = SA_ONSTACK | SA_NODEFER };

	sigaltstack(&(stack_t){ .ss_sp = stack, .ss_size = sizeof stack }, NULL);
	sigaction(SIGUSR1, &action, NULL);
	raise(SIGUSR1);
	return -1;
}

static void *exec_in_thread(void *result)
{
	*(int *)result = execve(program, arguments, one) < 0 ? errno : 0;
	return NULL;
}

static int by_thread(void)
{
	pthread_t thread;
	int error = 0;

	pthread_create(&thread, NULL, exec_in_thread, &error);
	pthread_join(thread, NULL);
	errno = error;
	return -1;
}

/* More strings than a page has room for pointers, so that the new array takes several of the stack. */
static int by_large_environment(void)
{
	enum { COUNT = 3000 };
	static char texts[COUNT][32], *many[COUNT + 1];

	for (unsigned i = 0; i < COUNT; i++) {
		snprintf(texts[i], sizeof texts[i], "VARIABLE_%u=%u", i, i * i);
		many[i] = texts[i];
	}
	return execve(program, arguments, many);
}

static int by_fd(int (*call)(int))
{
	int fd = open(program, O_PATH | O_CLOEXEC);

	return fd < 0 ? fd : call(fd);
}

static int fd_exec(int fd) { return fexecve(fd, arguments, one); }
static int fd_at(int fd) { return execveat(fd, "", arguments, one, AT_EMPTY_PATH); }

/* In a process of two threads. */
static int beside_thread(int (*call)(void))
{
	pthread_t thread;

	pthread_create(&thread, NULL, (void *(*)(void *))pause, NULL);
	return call();
}

static int empty_then(int (*call)(const char *, char *const *))
{
	clearenv();
	return call(program, arguments);
}

static int own_then(char *const *strings)
{
	environ = (char **)strings;
	return execvp(program, arguments);
}

static int spawn_with(int (*call)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
				  char *const *, char *const *),
		      char *const *strings)
{
	pid_t child = 0;
	int error = call(&child, program, NULL, NULL, arguments, strings);

	return wait_for(error, child);
}

static int spawn_one(void) { return spawn_with(posix_spawn, one); }

/* From a directory in which there is no such file as a relative path names here. */
static int spawn_elsewhere(void)
{
	posix_spawn_file_actions_t actions;
	pid_t child = 0;
	int error;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addchdir_np(&actions, "/");
	error = posix_spawn(&child, program, &actions, NULL, arguments, one);
	return wait_for(error, child);
}

#define WAYS(X) \
	X(execve, execve(program, arguments, environ)) \
	X(execve_empty, execve(program, arguments, none)) \
	X(execve_null, execve(program, arguments, NULL)) \
	X(execve_preloads, execve(program, arguments, preloads)) \
	X(execve_forgets, execve(program, arguments, forgets_page)) \
	X(execve_large, by_large_environment()) \
	X(execv, empty_then(execv)) \
	X(execvp, empty_then(execvp)) \
	X(execvp_own, own_then(one)) \
	X(execvp_null, own_then(NULL)) \
	X(execvpe, execvpe(program, arguments, one)) \
	X(execl, (clearenv(), by_list(L))) \
	X(execlp, (clearenv(), by_list(LP))) \
	X(execle, by_list(LE)) \
	X(fexecve, by_fd(fd_exec)) \
	X(execveat, by_fd(fd_at)) \
	X(posix_spawn, spawn_with(posix_spawn, one)) \
	X(posix_spawn_null, spawn_with(posix_spawn, NULL)) \
	X(posix_spawnp, spawn_with(posix_spawnp, preloads)) \
	X(posix_spawn_elsewhere, spawn_elsewhere()) \
	X(posix_spawn_thread, beside_thread(spawn_one)) \
	X(vfork, by_vfork()) \
	X(handler, by_handler()) \
	X(thread, by_thread())

static int start(const char *way)
{
#define TRY(name, call) \
	if (strcmp(way, #name) == 0) \
		return call;
	WAYS(TRY)
	exit(97);
}

/* ---- rights --------------------------------------------------------------------------------------- */

static void become(unsigned user)
{
	if (setgroups(0, NULL) != 0 || setgid(user) != 0 || setuid(user) != 0)
		exit(98);
}

/* A filter in every thread, as a sandbox has one: refuses the call that is named, by an error or by death. */
static void filter(const char *what)
{
	static const struct {
		const char *name;
		uint32_t number, refusal;
	} kinds[] = {
		{ "userfaultfd", SYS_userfaultfd, SECCOMP_RET_ERRNO | EPERM },
		{ "userfaultfd_kill", SYS_userfaultfd, SECCOMP_RET_KILL_PROCESS },
		{ "socket_kill", SYS_socket, SECCOMP_RET_KILL_PROCESS },
		{ "ioctl", SYS_ioctl, SECCOMP_RET_ERRNO | EPERM },
		{ "ioctl_kill", SYS_ioctl, SECCOMP_RET_KILL_PROCESS },
		{ "clone", SYS_clone, SECCOMP_RET_ERRNO | EPERM },
		{ "process_vm", SYS_process_vm_readv, SECCOMP_RET_ERRNO | EPERM },
	};
	unsigned k = 0;

	while (k < sizeof kinds / sizeof *kinds && strcmp(what, kinds[k].name) != 0)
		k++;
	if (k == sizeof kinds / sizeof *kinds)
		exit(97);
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kinds[k].number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, kinds[k].refusal),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof rules / sizeof *rules, rules };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
	    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0)
		exit(99);
}

/* Those that are there are closed as the program begins. */
static void fill_table(void)
{
	struct rlimit limit = { 64, 64 };

	if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
		exit(89);
	while (open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0)
		;
}

static int next_descriptor(void)
{
	int fd = dup(0);

	close(fd);
	return fd;
}

/* With an argument that is too long for the kernel, which has looked at the file by then. */
static int leaves(const char *way)
{
	static char text[1 << 18];
	char *const too_long[] = { "a", memset(text, 'x', sizeof text - 1), NULL };
	char *const help[] = { "a", "ways", NULL };
	int before = next_descriptor(), error = 0;
	pid_t child;

	if (strcmp(way, "exec") == 0)
		error = execve(program, too_long, one) < 0 ? errno : 0;
	else if ((error = posix_spawn(&child, program, NULL, NULL, help, one)) == 0)
		waitpid(child, NULL, 0);
	printf("%d: %s, %d\n", before, strerror(error), next_descriptor());
	return 0;
}

int main(int argc, char **argv)
{
	if (argc >= 2 && strcmp(argv[1], "show") == 0) {
		show(argv + 2);
		return 7;
	}
	if (argc == 2 && strcmp(argv[1], "grow") == 0) {
		grow();
		return 0;
	}
	if (argc == 2 && strcmp(argv[1], "ways") == 0) {
#define SAY(name, call) puts(#name);
		WAYS(SAY)
		return 0;
	}
	if (argc < 4)
		return 2;
	program = argv[3];
	arguments = argv + 3;
	if (strcmp(argv[1], "leaves") == 0)
		return leaves(argv[2]);
	if (strcmp(argv[1], "full") == 0)
		fill_table();
	if (strcmp(argv[1], "by") == 0 || strcmp(argv[1], "full") == 0) {
		char **before = environ;
		int result = start(argv[2]);
		printf("%d: %s%s\n", result, strerror(errno), environ == before ? "" : ", another environ");
		return 1;
	}
	if (strcmp(argv[1], "as") == 0)
		become(atoi(argv[2]));
	else if (strcmp(argv[1], "filter") == 0)
		filter(argv[2]);
	else
		return 2;
	execv(program, arguments);
	return 1;
}
