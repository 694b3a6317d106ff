// Begins small and grows in the way that its argument names, or does not; checks every word at the end.

#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOTAL (64UL << 20)

#ifdef BSS
static unsigned long bss[TOTAL / 8];
#endif

static unsigned long word(unsigned long i)
{
	return i % 16 == 0 ? i * 0x9e3779b97f4a7c15 : i;
}

static void fill(unsigned long *at, unsigned long bytes, unsigned long first)
{
	for (unsigned long i = 0; i < bytes / 8; i++)
		at[i] = word(first + i);
}

static unsigned long wrong(unsigned long *at, unsigned long bytes, unsigned long first)
{
	unsigned long count = 0;

	for (unsigned long i = 0; i < bytes / 8; i++)
		count += at[i] != word(first + i);
	return count;
}

static void *mapping(unsigned long bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		abort();
	return at;
}

// In pieces, each from `get`.
static int pieces(void *(*get)(unsigned long), unsigned long bytes)
{
	static unsigned long *piece[TOTAL / 1024];
	unsigned long count = TOTAL / bytes, bad = 0;

	for (unsigned long i = 0; i < count; i++) {
		piece[i] = get(bytes);
		fill(piece[i], bytes, i);
	}
	for (unsigned long i = 0; i < count; i++)
		bad += wrong(piece[i], bytes, i);
	return bad != 0;
}

static int reallocated(void)
{
	unsigned long *at = NULL, bytes = 1 << 12;

	for (; bytes <= TOTAL; bytes *= 2) {
		at = realloc(at, bytes);
		fill(at, bytes, 0);
	}
	return wrong(at, bytes / 2, 0) != 0;
}

// From one page, by mremap alone.
static int remapped(void)
{
	unsigned long bytes = 1 << 12;
	unsigned long *at = mapping(bytes);

	fill(at, bytes, 0);
	for (; bytes < TOTAL; bytes *= 2) {
		at = mremap(at, bytes, 2 * bytes, MREMAP_MAYMOVE);
		if (at == MAP_FAILED)
			abort();
		fill(at + bytes / 8, bytes, bytes / 8);
	}
	return wrong(at, bytes, 0) != 0;
}

static void *in_thread(void *unused)
{
	(void)unused;
	return (void *)(long)pieces(mapping, 1 << 20);
}

// What the library changes in libc it cannot change any more when there is a second thread.
static int threaded(unsigned long stack, int own, int guarded)
{
	static char memory[64 << 10] __attribute__((aligned(4096)));
	pthread_attr_t attributes;
	pthread_t thread;
	void *result = NULL;

	pthread_attr_init(&attributes);
	if (own)
		pthread_attr_setstack(&attributes, memory, sizeof(memory));
	else
		pthread_attr_setstacksize(&attributes, stack);
	if (!guarded)
		pthread_attr_setguardsize(&attributes, 0);
	if (pthread_create(&thread, &attributes, in_thread, NULL) || pthread_join(thread, &result))
		return 2;
	return result != NULL;
}

static int status_of(pid_t pid)
{
	int status;

	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return 99;
	return WEXITSTATUS(status);
}

static int in_child(void)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(pieces(mapping, 1 << 20));
	return status_of(pid);
}

// A clone that passes no hook.
static int in_raw_child(void)
{
	register long r10 __asm__("r10") = 0;
	register long r8 __asm__("r8") = 0;
	long pid;

	__asm__ volatile("syscall"
			 : "=a"(pid)
			 : "a"(SYS_clone), "D"(SIGCHLD), "S"(0), "d"(0), "r"(r10), "r"(r8)
			 : "rcx", "r11", "memory");

	if (pid == 0)
		_exit(pieces(mapping, 1 << 20));
	return status_of(pid);
}

// The child maps as much as makes the mark, in its parent's memory, and leaves it to the parent.
static int after_vfork(int grows)
{
	static unsigned long *volatile at;
	pid_t pid = vfork();

	if (pid == 0) {
		at = mapping(16 << 20);
		fill(at, 16 << 20, 3);
		_exit(5);
	}
	if (status_of(pid) != 5)
		return 3;
	return (grows && pieces(mapping, 1 << 20)) || wrong(at, 16 << 20, 3);
}

static int handled = 7;

static void handler(int number)
{
	(void)number;
	handled = pieces(mapping, 1 << 20);
}

static int in_handler(void)
{
	static char stack[64 << 10];
	stack_t alternate = { .ss_sp = stack, .ss_size = sizeof(stack) };
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };

	sigaltstack(&alternate, NULL);
	sigaction(SIGUSR1, &action, NULL);
	raise(SIGUSR1);
	return handled;
}

static int churn(void)
{
	int bad = 0;

	for (unsigned long i = 0; i < 500; i++) {
		unsigned long *at = mapping(1 << 20);

		fill(at, 1 << 20, i);
		bad += wrong(at, 1 << 20, i) != 0;
		munmap(at, 1 << 20);
	}
	return bad != 0;
}

// What starts an engine is forbidden from here on: it is there by then.
static int behind_filter(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof(code) / sizeof(*code), code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter))
		return 4;
	return pieces(mapping, 1 << 20);
}

static int after_setuid(void)
{
	if (getuid() == 0 && (setgid(65534) || setuid(65534)))
		return 4;
	return pieces(mapping, 1 << 20);
}

// Advice from before there was an engine holds in a child from after it.
static int kept_out(void)
{
	char *kept = mapping(4 << 12), *given = mapping(4 << 12);
	unsigned char there;

	memset(kept, 1, 4 << 12);
	memset(given, 2, 4 << 12);
	if (madvise(kept + 4096, 8192, MADV_DONTFORK))
		return 4;
	if (pieces(mapping, 1 << 20))
		return 1;
	pid_t pid = fork();

	if (pid == 0) {
		int gone = mincore(kept + 4096, 4096, &there) && errno == ENOMEM && mincore(kept + 8192, 4096, &there);

		_exit(gone && kept[0] == 1 && kept[3 << 12] == 1 && given[5000] == 2 ? 0 : 5);
	}
	return status_of(pid);
}

int main(int count, char **words)
{
	const char *how = count > 1 ? words[1] : "";
	int result = 98;

	if (!strcmp(how, "nothing"))
		result = 0;
	else if (!strcmp(how, "malloc"))
		result = pieces((void *(*)(unsigned long))malloc, 2048);
	else if (!strcmp(how, "mmap"))
		result = pieces(mapping, 64 << 10);
	else if (!strcmp(how, "realloc"))
		result = reallocated();
	else if (!strcmp(how, "thread"))
		result = threaded(8 << 20, 0, 1);
	else if (!strcmp(how, "small_thread"))
		result = threaded(64 << 10, 0, 1);
	else if (!strcmp(how, "bare_thread"))
		result = threaded(64 << 10, 0, 0);
	else if (!strcmp(how, "own_stack"))
		result = threaded(0, 1, 1);
	else if (!strcmp(how, "mremap"))
		result = remapped();
	else if (!strcmp(how, "fork"))
		result = in_child();
	else if (!strcmp(how, "raw_fork"))
		result = in_raw_child();
	else if (!strcmp(how, "vfork"))
		result = after_vfork(1);
	else if (!strcmp(how, "vfork_alone"))
		result = after_vfork(0);
	else if (!strcmp(how, "handler"))
		result = in_handler();
	else if (!strcmp(how, "churn"))
		result = churn();
	else if (!strcmp(how, "seccomp"))
		result = behind_filter();
	else if (!strcmp(how, "setuid"))
		result = after_setuid();
	else if (!strcmp(how, "dontfork"))
		result = kept_out();
#ifdef BSS
	else if (!strcmp(how, "bss")) {
		fill(bss, TOTAL, 1);
		result = wrong(bss, TOTAL, 1) != 0;
	}
#endif
	return result;
}
