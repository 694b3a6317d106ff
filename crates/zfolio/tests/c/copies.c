/*
 * Makes copies of itself in a way that its first argument names, with memory out and another thread writing: each copy
 * reads all that its parent had, writes some of it, and makes a copy in turn. Its second argument is how much memory,
 * in MiB, its third how many copies.
 */
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE_WORDS = 512, SCRATCH_PAGES = 256, STACK = 256 << 10, RIGHT = 37 };

static uint64_t *memory, *scratch;
static size_t words;
static const char *way;
static int turn;
static _Atomic(int) writes = 1;

/* Where the kernel is to leave numbers: on pages of their own, which go out like all others. */
static struct {
	_Alignas(4096) int parent_tid;
	_Alignas(4096) int child_tid;
	_Alignas(4096) int pidfd;
	_Alignas(4096) struct clone_args args;
} *told;

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

static uint64_t word(size_t i)
{
	return i % 4 == 0 ? mix(i) : i / 512 + 1;
}

static void wrong(const char *what, uint64_t value)
{
	char line[160];
	int length = snprintf(line, sizeof line, "%s: %s: %llx\n", way, what, (unsigned long long)value);

	if (write(1, line, length) < 0)
		_exit(89);
	_exit(90);
}

static void verify(const char *who)
{
	for (size_t i = 0; i < words; i++)
		if (memory[i] != word(i))
			wrong(who, memory[i]);
	/* Its first word is written before its second. */
	for (size_t i = 0; i < SCRATCH_PAGES; i++) {
		uint64_t second = __atomic_load_n(scratch + i * PAGE_WORDS + 1, __ATOMIC_ACQUIRE);
		uint64_t first = __atomic_load_n(scratch + i * PAGE_WORDS, __ATOMIC_ACQUIRE);
		if (first < second || (writes == 0 && first > second + 1) || second == 0)
			wrong("what another thread writes", first - second);
	}
}

static void *writer(void *argument)
{
	for (uint64_t n = 2; atomic_load(&writes); n++)
		for (size_t i = 0; i < SCRATCH_PAGES; i++) {
			__atomic_store_n(scratch + i * PAGE_WORDS, n, __ATOMIC_RELEASE);
			__atomic_store_n(scratch + i * PAGE_WORDS + 1, n, __ATOMIC_RELEASE);
		}
	return argument;
}

static int is(const char *name)
{
	return strcmp(way, name) == 0;
}

static int copy(int depth);

/* What a copy does; the status that it ends with. */
static int live(int depth)
{
	/* The thread that writes is not here. */
	writes = 0;
	if ((is("told") || is("clone3") || is("clone3stack")) && told->child_tid != (int)syscall(SYS_gettid))
		wrong("what a copy is told", told->child_tid);
	verify("a copy");
	/* Its parent does not see this. */
	for (size_t i = 0; i < words; i += 7 * PAGE_WORDS)
		memory[i]++;
	for (size_t i = 0; i < words; i += 7 * PAGE_WORDS)
		memory[i]--;
	memory[words / 2 + depth] = ~0ull;
	memory[words / 2 + depth] = word(words / 2 + depth);
	if (depth > 0 && copy(depth - 1) != 0)
		return 91;
	verify("a copy, later");
	return RIGHT;
}

static int live_on(void *depth)
{
	/* glibc's convention: a function's stack is misaligned by its return address. */
	if (((uintptr_t)__builtin_frame_address(0) & 15) != 0)
		return 92;
	return live((int)(intptr_t)depth);
}

/* A copy that comes back from a system call on a stack of its own finds the address of this there. */
static __attribute__((used)) void on_new_stack(int depth)
{
	_exit(live(depth));
}
void after_call(void);
__asm__(".globl after_call\nafter_call:\n"
	"test %rax, %rax\n jne 1f\n"
	"mov %rbx, %rdi\n xor %ebp, %ebp\n and $-16, %rsp\n call on_new_stack\n"
	"1: hlt\n");

/* syscall(number, a, b, 0, 0, 0) with `depth` in rbx, which a system call keeps. */
static long call_with(long depth, long number, long a, long b)
{
	long result;

	__asm__ volatile("mov %%rsp, %%r12\n and $-16, %%rsp\n"
			 "xor %%ecx, %%ecx\n xor %%r8d, %%r8d\n xor %%r9d, %%r9d\n xor %%eax, %%eax\n"
			 "sub $16, %%rsp\n movq $0, (%%rsp)\n"
			 "call syscall@PLT\n mov %%r12, %%rsp\n"
			 : "=a"(result), "+D"(number), "+S"(a), "+d"(b)
			 : "b"(depth)
			 : "rcx", "r8", "r9", "r10", "r11", "r12", "memory", "cc");
	return result;
}

static long inline_call(long number, long flags)
{
	register long r10 __asm__("r10") = 0;
	register long r8 __asm__("r8") = 0;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(flags), "S"(0), "d"(0), "r"(r10), "r"(r8)
			 : "rcx", "r11", "memory");
	return result;
}

static uint64_t thread_pointer(void)
{
	uint64_t at;

	syscall(SYS_arch_prctl, ARCH_GET_FS, &at);
	return at;
}

/* The flags of clone(2) that a way is about; 0 where it makes another call. */
static int flags_of_way(void)
{
	static const struct {
		const char *way;
		int flags;
	} all[] = {
		{ "stack", 0 },
		{ "files", CLONE_FILES | CLONE_FS | CLONE_IO | CLONE_SYSVSEM },
		{ "vfork", CLONE_VFORK },
		{ "user", CLONE_NEWUSER },
		{ "spaces", CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC },
		{ "pid", CLONE_NEWPID },
		{ "told", CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | CLONE_SETTLS },
		{ "pidfd", CLONE_PIDFD },
	};

	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (is(all[i].way))
			return all[i].flags | SIGCHLD;
	return 0;
}

static void check_pidfd(int pidfd)
{
	if (fcntl(pidfd, F_GETFD) < 0)
		wrong("a pidfd", pidfd);
	close(pidfd);
}

/* Makes one; its number. In the copy it does not return. */
static pid_t make(int depth, char *stack)
{
	struct clone_args *args = &told->args;
	char *top = stack + STACK;
	int flags = flags_of_way();
	pid_t pid = -1;

	memset(told, 0, sizeof *told);
	memset(args, 0, sizeof *args);
	args->exit_signal = SIGCHLD;
	args->flags = CLONE_PIDFD | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_CLEAR_SIGHAND;
	args->pidfd = (uintptr_t)&told->pidfd;
	args->parent_tid = (uintptr_t)&told->parent_tid;
	args->child_tid = (uintptr_t)&told->child_tid;
	usleep(20000);
	if (flags != 0) {
		pid = clone(live_on, top, flags, (void *)(intptr_t)depth,
			    is("pidfd") ? &told->pidfd : &told->parent_tid, (void *)thread_pointer(),
			    &told->child_tid);
		if (is("told") && pid > 0 && told->parent_tid != pid)
			wrong("what a parent is told", told->parent_tid);
		if (is("pidfd") && pid > 0)
			check_pidfd(told->pidfd);
		return pid;
	}
	if (is("raw"))
		pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	else if (is("rawfork"))
		pid = syscall(SYS_fork);
	else if (is("rawstack")) {
		((void (**)(void))top)[-1] = after_call;
		pid = call_with(depth, SYS_clone, SIGCHLD, (long)(top - 8));
	} else if (is("clone3stack")) {
		((void (**)(void))top)[-1] = after_call;
		args->stack = (uintptr_t)stack;
		args->stack_size = STACK - 8;
		pid = call_with(depth, SYS_clone3, (long)args, sizeof *args);
	} else if (is("clone3"))
		pid = syscall(SYS_clone3, args, sizeof *args);
	else if (is("inline"))
		pid = inline_call(SYS_clone, SIGCHLD);
	else
		wrong("no such way", 0);
	if (pid == 0)
		_exit(live(depth));
	if (pid > 0 && (is("clone3") || is("clone3stack"))) {
		if (told->parent_tid != pid)
			wrong("what a parent is told", told->parent_tid);
		check_pidfd(told->pidfd);
	}
	return pid;
}

/* 0 when the copy has found all right; else its status, or an error. */
static int copy(int depth)
{
	char *stack = NULL;
	int status;

	if (!is("inline"))
		stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (stack == MAP_FAILED)
		return 93;
	pid_t pid = make(depth, stack);
	if (pid < 0) {
		printf("error %d\n", errno);
		fflush(stdout);
		return 94;
	}
	verify("a parent");
	if (waitpid(pid, &status, __WALL) != pid)
		return 95;
	if (stack != NULL)
		munmap(stack, STACK);
	if (WIFSIGNALED(status)) {
		printf("signal %d\n", WTERMSIG(status));
		fflush(stdout);
		return 96;
	}
	return WEXITSTATUS(status) == RIGHT ? 0 : WEXITSTATUS(status);
}

int main(int count, char **arguments)
{
	pthread_t thread;
	int result = 0;

	if (count != 4)
		return 80;
	way = arguments[1];
	words = strtoul(arguments[2], NULL, 0) << 17;
	memory = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	scratch = mmap(NULL, SCRATCH_PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	told = mmap(NULL, 1 << 17, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED || scratch == MAP_FAILED || (void *)told == MAP_FAILED)
		return 81;
	for (size_t i = 0; i < words; i++)
		memory[i] = word(i);
	for (size_t i = 0; i < SCRATCH_PAGES; i++)
		scratch[i * PAGE_WORDS] = scratch[i * PAGE_WORDS + 1] = 1;
	usleep(200000);
	pthread_create(&thread, NULL, writer, NULL);
	/* Who is no user of its namespace cannot make another. */
	for (; result == 0 && turn < atoi(arguments[3]); turn++)
		result = copy(is("user") ? 0 : 1);
	writes = 0;
	pthread_join(thread, NULL);
	verify("at last");
	puts(result == 0 ? "right" : "not right");
	return result;
}
