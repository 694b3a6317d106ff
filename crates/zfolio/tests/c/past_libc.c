/*
 * Maps its memory by system calls of its own, so that no hook of the library's sees it grow, and sees that an engine
 * comes all the same, and that nothing else shows.
 * usage: past_libc WHAT [NUMBER]   prints "right", or what was not.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ptrace.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ul << 20)
/* What a process holds that is to have an engine, in any run of these tests. */
#define ENOUGH (3 * MIB + MIB / 2)
/* How long a call takes, and when whoever waits in it is given what it waits for. */
#define CALL_MS 3000
#define ACT_MS 2500

static long raw(long number, long a, long b, long c, long d, long e, long f) {
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

static void raw_sleep(long ms) {
	struct timespec time = { ms / 1000, ms % 1000 * 1000000 };
	raw(SYS_nanosleep, (long)&time, 0, 0, 0, 0, 0);
}

static char *raw_map(size_t bytes) {
	return (char *)raw(SYS_mmap, 0, bytes, 3, 0x22, -1, 0);
}

static void fill(char *at, size_t bytes) {
	for (size_t i = 0; i < bytes; i += 64)
		*(volatile size_t *)(at + i) = i % MIB * 2654435761u;
}

static int is_filled(char *at, size_t bytes) {
	for (size_t i = 0; i < bytes; i += 64)
		if (*(volatile size_t *)(at + i) != i % MIB * 2654435761u)
			return 0;
	return 1;
}

static void die(const char *what) {
	printf("%s (%s)\n", what, strerror(errno));
	fflush(stdout);
	_exit(1);
}

static void check(int holds, const char *what) {
	if (!holds)
		die(what);
}

/*
 * The run's page is mapped by who has an engine. The program's own data is small, since a program with much of it has
 * an engine from the start.
 */
static int is_managed(void) {
	static char part[4096 + 16];
	size_t kept = 0;
	int found = 0, fd = open("/proc/self/maps", O_RDONLY);
	for (ssize_t length; !found && (length = read(fd, part + kept, 4096)) > 0;) {
		size_t all = kept + length;
		found = memmem(part, all, "/memcg", 6) != NULL;
		/* What was looked for may lie across two parts. */
		kept = all < 16 ? all : 16;
		memmove(part, part + all - kept, kept);
	}
	close(fd);
	return found;
}

static void await_managed(void) {
	for (int i = 0; i < 1000 && !is_managed(); i++)
		raw_sleep(10);
	check(is_managed(), "no engine has come");
}

static double now_ms(void) {
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

/* More than the limit, in pieces. */
static void grow(size_t mib) {
	check(!is_managed(), "there is an engine already");
	char *at = raw_map(mib * MIB);
	for (size_t i = 0; i < mib; i++) {
		fill(at + i * MIB, MIB);
		raw_sleep(1);
	}
	check(is_managed(), "no engine has come");
	for (size_t i = 0; i < mib; i++)
		check(is_filled(at + i * MIB, MIB), "a page is wrong");
}

/* ---- A thread waits in a call, and another process, which shares its memory, fills that. ---- */

static struct {
	char *memory;
	int fd, other;
	pid_t thread;
	uint32_t word;
	volatile int heard;
} shared;
static char helper_stack[64 << 10] __attribute__((aligned(16)));

static void act_write(void) { raw(SYS_write, shared.fd, (long)"12345678", 8, 0, 0, 0); }
static void act_drain(void) { raw(SYS_read, shared.fd, (long)shared.memory + MIB, MIB, 0, 0, 0); }
static void act_wake(void) { raw(SYS_futex, (long)&shared.word, FUTEX_WAKE, 1, 0, 0, 0); }
static void act_signal(void) { raw(SYS_kill, shared.thread, SIGUSR1, 0, 0, 0, 0); }
static void act_unlock(void) { raw(SYS_kill, shared.other, SIGKILL, 0, 0, 0, 0); }
static void (*act)(void);

static int helper(void *unused) {
	(void)unused;
	raw_sleep(100);
	fill(shared.memory, ENOUGH);
	raw_sleep(ACT_MS - 100);
	if (act)
		act();
	raw(SYS_exit, 0, 0, 0, 0, 0, 0);
	return 0;
}

static void hear(int signal) { (void)signal; shared.heard++; }

static sigset_t usr1(void) {
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	return set;
}

static int local_pair[2];
static void make_pipe(void) { check(!pipe(local_pair), "pipe"); shared.fd = local_pair[1]; }
static struct timespec soon = { CALL_MS / 1000, 0 };
static struct timeval soon_tv = { CALL_MS / 1000, 0 };
static struct pollfd quiet;

/* What each call says, and why. */
static int timed_out(long result) { return result == 0; }
static int eagain(long result) { return result == -1 && errno == EAGAIN; }
static int etimedout(long result) { return result == -1 && errno == ETIMEDOUT; }
static int got_eight(long result) { return result == 8; }
static int got_sixteen(long result) { return result == 16; }
static int got_one(long result) { return result == 1; }
static int got_some(long result) { return result > 0; }
static int got_all(long result) { return result == 1 << 17; }
static int by_signal(long result) { return result == -1 && errno == EINTR && shared.heard == 1; }

static long do_nanosleep(void) { return nanosleep(&soon, NULL); }
static long do_clock_nanosleep(void) {
	struct timespec at;
	clock_gettime(CLOCK_MONOTONIC, &at);
	at.tv_sec += CALL_MS / 1000;
	return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}
static long do_poll(void) { make_pipe(); quiet = (struct pollfd){ local_pair[0], POLLIN, 0 }; return poll(&quiet, 1, CALL_MS); }
static long do_ppoll(void) {
	sigset_t set = usr1();
	make_pipe();
	quiet = (struct pollfd){ local_pair[0], POLLIN, 0 };
	return ppoll(&quiet, 1, &soon, &set);
}
static long do_select(void) {
	fd_set set;
	make_pipe();
	FD_ZERO(&set);
	FD_SET(local_pair[0], &set);
	return select(local_pair[0] + 1, &set, NULL, NULL, &soon_tv);
}
static long do_pselect(void) {
	sigset_t mask = usr1();
	fd_set set;
	make_pipe();
	FD_ZERO(&set);
	FD_SET(local_pair[0], &set);
	return pselect(local_pair[0] + 1, &set, NULL, NULL, &soon, &mask);
}
static int epoll_of_pipe(void) {
	struct epoll_event event = { .events = EPOLLIN };
	int fd = epoll_create1(0);
	make_pipe();
	check(!epoll_ctl(fd, EPOLL_CTL_ADD, local_pair[0], &event), "epoll_ctl");
	return fd;
}
static long do_epoll_wait(void) { struct epoll_event e; return epoll_wait(epoll_of_pipe(), &e, 1, CALL_MS); }
static long do_epoll_data(void) { struct epoll_event e; return epoll_wait(epoll_of_pipe(), &e, 1, -1); }
static long do_epoll_pwait(void) {
	struct epoll_event e;
	sigset_t set = usr1();
	return epoll_pwait(epoll_of_pipe(), &e, 1, CALL_MS, &set);
}
/* The mask lets the signal in for the time of the call alone. */
static long do_epoll_signal(void) {
	struct epoll_event e;
	sigset_t set = usr1(), none;
	sigemptyset(&none);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return epoll_pwait(epoll_of_pipe(), &e, 1, -1, &none);
}
static long do_ppoll_signal(void) {
	sigset_t set = usr1(), none;
	sigemptyset(&none);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return ppoll(NULL, 0, NULL, &none);
}
static long do_sigsuspend(void) {
	sigset_t set = usr1(), none;
	sigemptyset(&none);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return sigsuspend(&none);
}
static long do_pause(void) { return pause(); }
static long do_futex(void) { return syscall(SYS_futex, &shared.word, FUTEX_WAIT, 0, &soon); }
static long do_futex_woken(void) { return syscall(SYS_futex, &shared.word, FUTEX_WAIT, 0, NULL) + 1; }
static long do_read(void) { char b[8]; make_pipe(); return read(local_pair[0], b, 8); }
static long do_read_signal(void) {
	char b[8];
	make_pipe();
	struct sigaction action = { .sa_handler = hear };
	sigaction(SIGUSR1, &action, NULL);
	return read(local_pair[0], b, 8);
}
static long do_write(void) {
	make_pipe();
	shared.fd = local_pair[0];
	return write(local_pair[1], shared.memory, 1 << 17);
}
static long do_recv_all(void) {
	char b[16];
	check(!socketpair(AF_UNIX, SOCK_STREAM, 0, local_pair) && write(local_pair[1], "12345678", 8) == 8, "socketpair");
	shared.fd = local_pair[1];
	return recv(local_pair[0], b, 16, MSG_WAITALL);
}
static long do_recv_timeout(void) {
	char b;
	check(!socketpair(AF_UNIX, SOCK_STREAM, 0, local_pair), "socketpair");
	setsockopt(local_pair[0], SOL_SOCKET, SO_RCVTIMEO, &soon_tv, sizeof soon_tv);
	return recv(local_pair[0], &b, 1, 0);
}
static long do_recv(void) {
	char b[8];
	check(!socketpair(AF_UNIX, SOCK_STREAM, 0, local_pair), "socketpair");
	shared.fd = local_pair[1];
	return recv(local_pair[0], b, 8, 0);
}
static long do_semtimedop(void) {
	struct sembuf take = { 0, -1, 0 };
	int id = semget(IPC_PRIVATE, 1, 0600);
	check(id >= 0, "semget");
	long result = semtimedop(id, &take, 1, &soon);
	int error = errno;
	semctl(id, 0, IPC_RMID);
	errno = error;
	return result;
}
static long do_sigtimedwait(void) {
	sigset_t set = usr1();
	sigprocmask(SIG_BLOCK, &set, NULL);
	return sigtimedwait(&set, NULL, &soon);
}
static long do_sigwaitinfo(void) {
	sigset_t set = usr1();
	sigprocmask(SIG_BLOCK, &set, NULL);
	return sigwaitinfo(&set, NULL) == SIGUSR1;
}
static long do_signalfd(void) {
	struct signalfd_siginfo info;
	sigset_t set = usr1();
	sigprocmask(SIG_BLOCK, &set, NULL);
	return read(signalfd(-1, &set, 0), &info, sizeof info) == sizeof info;
}
static long do_timerfd(void) {
	struct itimerspec time = { .it_value = soon };
	uint64_t count;
	int fd = timerfd_create(CLOCK_MONOTONIC, 0);
	timerfd_settime(fd, 0, &time, NULL);
	return read(fd, &count, 8);
}
static long do_eventfd(void) { uint64_t count; shared.fd = eventfd(0, 0); return read(shared.fd, &count, 8); }
static long do_flock(void) {
	char path[64];
	snprintf(path, sizeof path, "/tmp/past_libc-lock-%d", getpid());
	int fd = open(path, O_CREAT | O_RDWR, 0600), ready[2];
	char b;
	check(!pipe(ready), "pipe");
	shared.other = fork();
	if (!shared.other) {
		flock(open(path, O_RDWR), LOCK_EX);
		check(write(ready[1], "x", 1) == 1, "write");
		pause();
		_exit(0);
	}
	check(read(ready[0], &b, 1) == 1, "read");
	unlink(path);
	return flock(fd, LOCK_EX);
}
static long do_waitpid(void) {
	shared.other = fork();
	if (!shared.other) {
		pause();
		_exit(0);
	}
	return waitpid(shared.other, NULL, 0);
}

static struct {
	const char *name;
	long (*call)(void);
	void (*act)(void);
	int (*is_right)(long);
	int is_late;
} calls[] = {
	{ "nanosleep", do_nanosleep, NULL, timed_out },
	{ "clock_nanosleep", do_clock_nanosleep, NULL, timed_out },
	{ "poll", do_poll, NULL, timed_out },
	{ "ppoll", do_ppoll, NULL, timed_out },
	{ "ppoll until a signal", do_ppoll_signal, act_signal, by_signal },
	{ "select", do_select, NULL, timed_out },
	{ "pselect", do_pselect, NULL, timed_out },
	{ "epoll_wait", do_epoll_wait, NULL, timed_out },
	{ "epoll_wait for data", do_epoll_data, act_write, got_one },
	{ "epoll_pwait", do_epoll_pwait, NULL, timed_out },
	{ "epoll_pwait until a signal", do_epoll_signal, act_signal, by_signal },
	{ "sigsuspend", do_sigsuspend, act_signal, by_signal },
	{ "pause", do_pause, act_signal, by_signal },
	{ "futex", do_futex, NULL, etimedout },
	{ "futex that is woken", do_futex_woken, act_wake, got_one },
	{ "read of a pipe", do_read, act_write, got_eight },
	{ "read until a signal", do_read_signal, act_signal, by_signal },
	/* Whoever has come half the way is left alone until it is through. */
	{ "write to a pipe", do_write, act_drain, got_all, 1 },
	{ "recv of all", do_recv_all, act_write, got_sixteen, 1 },
	{ "recv with a timeout", do_recv_timeout, NULL, eagain },
	{ "recv", do_recv, act_write, got_eight },
	{ "semtimedop", do_semtimedop, NULL, eagain },
	{ "sigtimedwait", do_sigtimedwait, NULL, eagain },
	{ "sigwaitinfo", do_sigwaitinfo, act_signal, got_one },
	{ "signalfd", do_signalfd, act_signal, got_one },
	{ "timerfd", do_timerfd, NULL, got_eight },
	{ "eventfd", do_eventfd, act_write, got_eight },
	{ "flock", do_flock, act_unlock, timed_out },
	{ "waitpid", do_waitpid, act_unlock, got_some },
};

static int one_call(int i) {
	struct sigaction action = { .sa_handler = hear, .sa_flags = SA_RESTART };
	sigaction(SIGUSR1, &action, NULL);
	shared.thread = getpid();
	shared.memory = raw_map(ENOUGH);
	act = calls[i].act;
	/* No exit signal: that would end the call. */
	pid_t other = clone(helper, helper_stack + sizeof helper_stack, CLONE_VM | CLONE_FILES, NULL);
	check(other > 0, "clone");
	check(!is_managed(), "there is an engine already");
	double began = now_ms();
	errno = 0;
	long result = calls[i].call();
	int error = errno, managed = is_managed();
	double took = now_ms() - began;
	errno = error;
	if (!calls[i].is_right(result) || took < ACT_MS - 500 || managed == calls[i].is_late) {
		printf("%s: %ld (%s) after %.0f ms, %d signals, %s\n", calls[i].name, result, strerror(error), took, shared.heard,
		       managed ? "managed" : "not managed");
		return 1;
	}
	while (waitpid(other, NULL, __WALL) < 0 && errno == EINTR) {}
	if (calls[i].is_late)
		await_managed();
	/* What was read into it is another's. */
	check(is_filled(shared.memory + 2 * MIB, ENOUGH - 2 * MIB), "a page is wrong");
	return 0;
}

/* Each in a process of its own; some at a time, since each has to be given its engine while it waits. */
static void all_calls(void) {
	enum { COUNT = sizeof calls / sizeof *calls, AT_ONCE = 6 };
	int bad = 0;
	fflush(stdout);
	for (int first = 0; first < COUNT; first += AT_ONCE) {
		int end = first + AT_ONCE < COUNT ? first + AT_ONCE : COUNT, status;
		pid_t children[COUNT];
		for (int i = first; i < end; i++)
			if (!(children[i] = fork())) {
				int wrong = one_call(i);
				fflush(stdout);
				_exit(wrong);
			}
		for (int i = first; i < end; i++) {
			waitpid(children[i], &status, 0);
			if (status)
				printf("%s: status %x\n", calls[i].name, status);
			bad |= status;
		}
	}
	check(!bad, "some calls went wrong");
}

/* ---- Any instruction. ---- */

static uint64_t compute(int rounds) {
	uint64_t a = 1, b = 2, c = 3;
	double x = 0.5, y = 1.5;
	char *words[64] = { 0 };
	for (int i = 0; i < rounds; i++) {
		a = a * 6364136223846793005u + 1442695040888963407u;
		b ^= a >> 29;
		c += b * 31 + (a & 1 ? 7 : 5);
		x = x * 0.999 + y * 0.001 + 1.0 / (i + 1);
		y = y * 0.998 + (double)(a >> 40) * 1e-8;
		if (i % 97 == 0) {
			char **word = &words[a >> 58];
			free(*word);
			*word = malloc(1 + (b & 1023));
			**word = c;
			c += (unsigned char)**word;
		}
		if (i % 4096 == 0)
			raw(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
	}
	for (int i = 0; i < 64; i++)
		free(words[i]);
	uint64_t bits[2];
	memcpy(bits, &x, 8);
	memcpy(bits + 1, &y, 8);
	return a ^ b ^ c ^ bits[0] ^ bits[1] << 1;
}

/* Each child computes again until an engine has come: by then that was at some instruction of a computation. */
static void anywhere(int count) {
	enum { ROUNDS = 4000000, MOST = 1000 };
	uint64_t expected = compute(ROUNDS);
	int status;
	for (int i = 0; i < count; i++) {
		pid_t child = fork();
		if (!child) {
			fill(raw_map(ENOUGH), ENOUGH);
			for (int turn = 0; turn < MOST; turn++) {
				if (compute(ROUNDS) != expected)
					_exit(1);
				if (is_managed())
					_exit(0);
			}
			_exit(2);
		}
		waitpid(child, &status, 0);
		check(status != 1 << 8, "a result is wrong");
		check(status != 2 << 8, "no engine has come");
		check(!status, "a child was killed");
	}
}

/* ---- Signals that come meanwhile. ---- */

static volatile int counts[2];
static void count(int signal) { counts[signal == SIGRTMIN]++; }

static void storm(void) {
	enum { MANY = 3000 };
	struct sigaction action = { .sa_handler = count };
	sigaction(SIGRTMIN, &action, NULL);
	sigaction(SIGRTMIN + 1, &action, NULL);
	pid_t parent = getpid(), child = fork();
	if (!child) {
		for (int i = 0; i < MANY; i++) {
			union sigval value = { 0 };
			while (sigqueue(parent, SIGRTMIN + i % 2, value) < 0)
				raw_sleep(1);
			if (i % 8 == 0)
				raw_sleep(1);
		}
		_exit(0);
	}
	char *at = raw_map(ENOUGH);
	fill(at, ENOUGH);
	int status;
	while (waitpid(child, &status, 0) < 0)
		check(errno == EINTR, "waitpid");
	await_managed();
	check(counts[0] + counts[1] == MANY && counts[0] == counts[1], "signals are missing");
	check(is_filled(at, ENOUGH), "a page is wrong");
}

/* ---- What a parent is told. ---- */

static void watched(void) {
	pid_t child = fork();
	siginfo_t info;
	if (!child) {
		fill(raw_map(ENOUGH), ENOUGH);
		await_managed();
		_exit(7);
	}
	check(!waitid(P_PID, child, &info, WEXITED | WSTOPPED | WCONTINUED), "waitid");
	check(info.si_code == CLD_EXITED && info.si_status == 7, "the parent was told something else than the end");
}

/* A child of vfork has the memory, and its parent's thread cannot be stopped. */
static void in_vfork(void) {
	char *at = raw_map(ENOUGH);
	int status;
	pid_t child = vfork();
	if (!child) {
		fill(at, ENOUGH);
		raw_sleep(1000);
		_exit(7);
	}
	check(waitpid(child, &status, 0) == child && status == 7 << 8, "the child of vfork");
	await_managed();
	check(is_filled(at, ENOUGH), "a page is wrong");
}

/* Another program traces it. */
static void traced(void) {
	int status, ready[2], go[2];
	char byte;
	check(!pipe(ready) && !pipe(go), "pipe");
	pid_t child = fork();
	if (!child) {
		check(write(ready[1], "x", 1) == 1 && read(go[0], &byte, 1) == 1, "pipe");
		char *at = raw_map(ENOUGH);
		fill(at, ENOUGH);
		raw_sleep(1500);
		check(!is_managed(), "it has an engine, although it is traced");
		_exit(is_filled(at, ENOUGH) ? 7 : 1);
	}
	check(read(ready[0], &byte, 1) == 1, "pipe");
	check(!ptrace(PTRACE_SEIZE, child, 0, 0), "ptrace");
	check(write(go[1], "x", 1) == 1, "pipe");
	check(waitpid(child, &status, __WALL) == child && status == 7 << 8, "the child that was traced");
}

/* Its run may be killed any time: it goes on. Says when it has begun, and waits for no one. */
static void abandoned(void) {
	uint64_t expected = compute(1000000);
	puts("begun");
	fflush(stdout);
	char *at = raw_map(ENOUGH);
	fill(at, ENOUGH);
	double end = now_ms() + 1000;
	do
		check(compute(1000000) == expected, "a result is wrong");
	while (now_ms() < end);
	check(is_filled(at, ENOUGH), "a page is wrong");
}

int main(int argc, char **argv) {
	const char *what = argc > 1 ? argv[1] : "";
	int number = argc > 2 ? atoi(argv[2]) : 0;
	alarm(110);
	if (!strcmp(what, "grow"))
		grow(number);
	else if (!strcmp(what, "calls"))
		all_calls();
	else if (!strcmp(what, "anywhere"))
		anywhere(number);
	else if (!strcmp(what, "storm"))
		storm();
	else if (!strcmp(what, "watched"))
		watched();
	else if (!strcmp(what, "vfork"))
		in_vfork();
	else if (!strcmp(what, "traced"))
		traced();
	else if (!strcmp(what, "abandoned"))
		abandoned();
	else
		return 2;
	puts("right");
	return 0;
}
