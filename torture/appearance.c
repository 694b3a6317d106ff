/* What a process sees of itself. */
#include "cloak.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct first_sight {
	struct rlimit limits[RLIMIT_NLIMITS];
	int timer_slack, no_new_privileges, seccomp, dumpable;
	cpu_set_t affinity;
	int nice, policy;
	pid_t pid, parent, group, session;
	uid_t uid;
	gid_t gid;
	mode_t mask;
	char directory[4096];
} first;

void first_sight_take(void)
{
	for (unsigned i = 0; i < RLIMIT_NLIMITS; i++)
		getrlimit(i, &first.limits[i]);
	first.timer_slack = prctl(PR_GET_TIMERSLACK);
	first.no_new_privileges = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
	first.seccomp = prctl(PR_GET_SECCOMP);
	first.dumpable = prctl(PR_GET_DUMPABLE);
	sched_getaffinity(0, sizeof first.affinity, &first.affinity);
	first.nice = getpriority(PRIO_PROCESS, 0);
	first.policy = sched_getscheduler(0);
	first.pid = getpid();
	first.parent = getppid();
	first.group = getpgrp();
	first.session = getsid(0);
	first.uid = getuid();
	first.gid = getgid();
	first.mask = umask(022);
	umask(first.mask);
	if (!getcwd(first.directory, sizeof first.directory))
		first.directory[0] = 0;
}

void check_memory(void)
{
	memory_verify();
	memory_write();
	memory_rest();
	memory_verify();
}

void check_errno(void)
{
	uint64_t sum = 0;

	errno = EXDEV;
	for (size_t p = 0; p < memory_pages; p++)
		sum += *(volatile uint64_t *)(memory + p * PAGE);
	if (errno != EXDEV)
		fail("errno became %d (%s); sum %llx", errno, strerror(errno), (unsigned long long)sum);
}

/* ---- descriptors -------------------------------------------------------------------------------- */

static void expect_descriptors(int highest)
{
	DIR *d = opendir("/proc/self/fd");
	char foreign[512] = "";

	if (!d)
		fail("/proc/self/fd: %s", strerror(errno));
	for (struct dirent *e; (e = readdir(d));) {
		int fd = atoi(e->d_name);
		char path[300], target[200];
		if (e->d_name[0] == '.' || fd == dirfd(d) || fd <= highest)
			continue;
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		ssize_t n = readlink(path, target, sizeof target - 1);
		target[n > 0 ? n : 0] = 0;
		snprintf(foreign + strlen(foreign), sizeof foreign - strlen(foreign), " %d (%s)", fd, target);
	}
	int lowest = dirfd(d);
	closedir(d);
	if (foreign[0])
		fail("descriptors that nobody opened:%s", foreign);
	if (lowest != highest + 1)
		fail("opendir got descriptor %d instead of %d", lowest, highest + 1);
}

void check_descriptors(void)
{
	expect_descriptors(2);
	int fd = open("/dev/null", O_RDWR);
	if (fd != 3)
		fail("open got descriptor %d instead of 3", fd);
	memory_verify();
	expect_descriptors(3);
	close(fd);
	expect_descriptors(2);
}

void check_descriptors_closed(void)
{
	closefrom(3);
	memory_verify();
	memory_write();
	closefrom(3);
	memory_rest();
	memory_verify();
	expect_descriptors(2);
}

void check_descriptors_none(void)
{
	/* The way back for a verdict; closed again before anything is looked at. */
	int kept = fcntl(STDOUT_FILENO, F_DUPFD, 900);

	for (int fd = 0; fd < 3; fd++)
		close(fd);
	bool right = memory_is_right();
	int lowest = open("/dev/null", O_RDWR);
	dup2(kept, STDOUT_FILENO);
	if (lowest != 0)
		fail("open got descriptor %d instead of 0", lowest);
	if (!right)
		fail("memory differs");
}

void check_descriptors_taken(void)
{
	int null = open("/dev/null", O_RDWR);
	struct stat wanted, found;

	fstat(null, &wanted);
	for (int fd = 3; fd < 1024; fd++)
		if (dup2(null, fd) != fd && errno != EBADF)
			fail("dup2 to %d: %s", fd, strerror(errno));
	memory_verify();
	memory_write();
	memory_rest();
	memory_verify();
	for (int fd = 3; fd < 1024; fd++)
		if (fstat(fd, &found) == 0 && found.st_ino != wanted.st_ino)
			fail("descriptor %d is another file than before", fd);
}

void check_descriptors_full(void)
{
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = 64;
	setrlimit(RLIMIT_NOFILE, &limit);
	while (dup(STDERR_FILENO) >= 0)
		;
	memory_verify();
	memory_write();
	memory_rest();
	memory_verify();
	fork_and_verify();
}

/* ---- threads ------------------------------------------------------------------------------------ */

static unsigned count_tasks(void)
{
	DIR *d = opendir("/proc/self/task");
	unsigned n = 0;

	if (!d)
		fail("/proc/self/task: %s", strerror(errno));
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

static pthread_barrier_t meeting;

static void *meet_twice(void *argument)
{
	pthread_barrier_wait(&meeting);
	pthread_barrier_wait(&meeting);
	return argument;
}

void check_tasks(void)
{
	pthread_t threads[3];
	unsigned n = count_tasks();

	if (n != 1)
		fail("%u tasks instead of 1", n);
	pthread_barrier_init(&meeting, NULL, 4);
	for (unsigned i = 0; i < 3; i++)
		pthread_create(&threads[i], NULL, meet_twice, NULL);
	pthread_barrier_wait(&meeting);
	n = count_tasks();
	pthread_barrier_wait(&meeting);
	if (n != 4)
		fail("%u tasks instead of 4", n);
	for (unsigned i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	/* A joined thread may take a moment to vanish. */
	for (unsigned i = 0; i < 100 && (n = count_tasks()) != 1; i++)
		usleep(10000);
	if (n != 1)
		fail("%u tasks instead of 1 after the threads were joined", n);
}

static bool status_line(const char *key, char *value, size_t room)
{
	FILE *f = fopen("/proc/self/status", "re");
	char line[512];
	bool found = false;

	while (f && !found && fgets(line, sizeof line, f)) {
		size_t n = strlen(key);
		if (strncmp(line, key, n) == 0 && line[n] == ':') {
			line[strcspn(line, "\n")] = 0;
			snprintf(value, room, "%s", line + n + 1 + strspn(line + n + 1, "\t "));
			found = true;
		}
	}
	if (f)
		fclose(f);
	return found;
}

void check_task_names(void)
{
	DIR *d = opendir("/proc/self/task");
	char path[300], name[64];

	if (!d)
		fail("/proc/self/task: %s", strerror(errno));
	for (struct dirent *e; (e = readdir(d));) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
		FILE *f = fopen(path, "re");
		if (!f || !fgets(name, sizeof name, f))
			fail("%s: %s", path, strerror(errno));
		fclose(f);
		if (strcmp(name, "cloak\n") != 0)
			fail("task %s is called %s", e->d_name, name);
	}
	closedir(d);
}

void check_status(void)
{
	static const char *const none[] = { "TracerPid", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt" };
	/* libc's own two signals: its posix_spawn leaves them ignored. */
	const unsigned long long libc = 3ull << 31;
	char value[256];

	memory_verify();
	if (status_line("Threads", value, sizeof value) && strcmp(value, "1") != 0)
		fail("Threads is %s instead of 1", value);
	for (unsigned i = 0; i < sizeof none / sizeof *none; i++)
		if (status_line(none[i], value, sizeof value) && strtoull(value, NULL, 16) & ~libc)
			fail("%s is %s instead of 0", none[i], value);
}

/* ---- children ----------------------------------------------------------------------------------- */

static void expect_no_children(int options)
{
	int status;
	pid_t got = waitpid(-1, &status, WNOHANG | options);

	if (got != -1 || errno != ECHILD)
		fail("waitpid(-1) gave %d (status %x) instead of ECHILD", (int)got, got > 0 ? status : 0);
}

void check_children(void)
{
	siginfo_t info;
	char path[64], text[256];

	memory_verify();
	expect_no_children(0);
	if (waitid(P_ALL, 0, &info, WEXITED | WSTOPPED | WNOHANG) != -1 || errno != ECHILD)
		fail("waitid finds a child");
	snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
	FILE *f = fopen(path, "re");
	if (f && fgets(text, sizeof text, f))
		fail("%s: %s", path, text);
	if (f)
		fclose(f);
}

void check_children_all(void)
{
	memory_verify();
	expect_no_children(__WALL);
	expect_no_children(__WCLONE);
}

void check_children_usage(void)
{
	struct rusage usage;

	memory_verify();
	getrusage(RUSAGE_CHILDREN, &usage);
	if (usage.ru_utime.tv_sec || usage.ru_utime.tv_usec || usage.ru_stime.tv_sec ||
	    usage.ru_stime.tv_usec || usage.ru_minflt || usage.ru_nvcsw || usage.ru_maxrss)
		fail("children have used %ld us, %ld faults, %ld switches",
		     usage.ru_utime.tv_usec + usage.ru_stime.tv_usec, usage.ru_minflt, usage.ru_nvcsw);
}

void check_subreaper(void)
{
	if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
		fail("PR_SET_CHILD_SUBREAPER: %s", strerror(errno));
	memory_write();
	memory_rest();
	memory_verify();
	expect_no_children(__WALL);
	fork_and_verify();
	memory_rest();
	expect_no_children(__WALL);
}

static volatile sig_atomic_t child_signals;

static void count_child_signal(int number)
{
	(void)number;
	child_signals++;
}

void check_child_signal(void)
{
	signal(SIGCHLD, count_child_signal);
	memory_verify();
	memory_write();
	memory_rest();
	memory_verify();
	if (child_signals)
		fail("%d SIGCHLD without a child", (int)child_signals);
	fork_and_verify();
	if (child_signals != 1)
		fail("%d SIGCHLD for one child", (int)child_signals);
}

/* ---- settings ----------------------------------------------------------------------------------- */

void check_limits(void)
{
	memory_verify();
	for (unsigned i = 0; i < RLIMIT_NLIMITS; i++) {
		struct rlimit now;
		getrlimit(i, &now);
		if (now.rlim_cur != first.limits[i].rlim_cur || now.rlim_max != first.limits[i].rlim_max)
			fail("limit %u is %llu instead of %llu", i, (unsigned long long)now.rlim_cur,
			     (unsigned long long)first.limits[i].rlim_cur);
	}
}

void check_process_settings(void)
{
	char name[16] = "";
	int death = -1, reaper = -1;

	memory_verify();
	prctl(PR_GET_NAME, name);
	if (strcmp(name, "cloak") != 0)
		fail("PR_GET_NAME says %s", name);
	prctl(PR_GET_PDEATHSIG, &death);
	if (death != 0)
		fail("PR_GET_PDEATHSIG says %d", death);
	prctl(PR_GET_CHILD_SUBREAPER, &reaper);
	if (reaper != 0)
		fail("PR_GET_CHILD_SUBREAPER says %d", reaper);
	if (prctl(PR_GET_KEEPCAPS) != 0)
		fail("PR_GET_KEEPCAPS says %d", prctl(PR_GET_KEEPCAPS));
	if (prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) != 0)
		fail("PR_GET_THP_DISABLE says 1");
	if (prctl(PR_GET_TIMERSLACK) != first.timer_slack)
		fail("PR_GET_TIMERSLACK says %d instead of %d", prctl(PR_GET_TIMERSLACK), first.timer_slack);
	if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != first.no_new_privileges)
		fail("PR_GET_NO_NEW_PRIVS changed");
	if (prctl(PR_GET_SECCOMP) != first.seccomp)
		fail("PR_GET_SECCOMP changed");
	if (first.dumpable != 1 || prctl(PR_GET_DUMPABLE) != 1)
		fail("PR_GET_DUMPABLE said %d and says %d", first.dumpable, prctl(PR_GET_DUMPABLE));
}

static void expect_nothing_pending(void)
{
	sigset_t set;

	sigpending(&set);
	for (int i = 1; i < NSIG; i++)
		if (sigismember(&set, i) == 1)
			fail("signal %d (%s) is pending", i, strsignal(i));
}

void check_dispositions(void)
{
	sigset_t set;

	memory_verify();
	sigprocmask(SIG_BLOCK, NULL, &set);
	for (int i = 1; i < NSIG; i++) {
		struct sigaction now;
		if (sigismember(&set, i) == 1)
			fail("signal %d (%s) is blocked", i, strsignal(i));
		if (sigaction(i, NULL, &now) == 0 && now.sa_handler != SIG_DFL)
			fail("signal %d (%s) is not at its default", i, strsignal(i));
	}
	expect_nothing_pending();
}

void check_blocked(void)
{
	sigset_t all, now;
	siginfo_t info;

	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	memory_verify();
	memory_write();
	memory_rest();
	memory_verify();
	expect_nothing_pending();
	kill(getpid(), SIGUSR1);
	memory_verify();
	sigpending(&now);
	if (sigismember(&now, SIGUSR1) != 1)
		fail("a blocked SIGUSR1 is no longer pending");
	if (sigtimedwait(&all, &info, &(struct timespec){ 0 }) != SIGUSR1 || info.si_pid != getpid())
		fail("the pending SIGUSR1 is not ours");
	expect_nothing_pending();
}

void check_timers(void)
{
	memory_verify();
	for (int which = ITIMER_REAL; which <= ITIMER_PROF; which++) {
		struct itimerval now;
		getitimer(which, &now);
		if (now.it_value.tv_sec || now.it_value.tv_usec)
			fail("interval timer %d runs", which);
	}
	if (alarm(0) != 0)
		fail("an alarm is set");
	FILE *f = fopen("/proc/self/timers", "re");
	char line[200];
	if (f && fgets(line, sizeof line, f))
		fail("a timer exists: %s", line);
	if (f)
		fclose(f);
}

void check_scheduling(void)
{
	cpu_set_t now;

	memory_verify();
	sched_getaffinity(0, sizeof now, &now);
	if (!CPU_EQUAL(&now, &first.affinity))
		fail("the affinity changed");
	if (getpriority(PRIO_PROCESS, 0) != first.nice)
		fail("niceness is %d instead of %d", getpriority(PRIO_PROCESS, 0), first.nice);
	if (sched_getscheduler(0) != first.policy)
		fail("the scheduling policy is %d instead of %d", sched_getscheduler(0), first.policy);
}

void check_identity(void)
{
	char directory[4096] = "";
	mode_t mask;

	memory_verify();
	if (getpid() != first.pid || (pid_t)syscall(SYS_gettid) != first.pid || getppid() != first.parent)
		fail("pid, tid or parent changed");
	if (getpgrp() != first.group || getsid(0) != first.session || first.group != first.pid)
		fail("group or session changed");
	if (getuid() != first.uid || geteuid() != first.uid || getgid() != first.gid ||
	    getegid() != first.gid)
		fail("uid or gid changed");
	umask(mask = umask(0));
	if (mask != first.mask)
		fail("umask is %o instead of %o", mask, first.mask);
	if (!getcwd(directory, sizeof directory) || strcmp(directory, first.directory) != 0)
		fail("the directory is %s instead of %s", directory, first.directory);
}

void check_alternate_stack(void)
{
	stack_t now;

	memory_verify();
	sigaltstack(NULL, &now);
	if (!(now.ss_flags & SS_DISABLE))
		fail("an alternate stack is set, at %p", now.ss_sp);
}

/* ---- wild access -------------------------------------------------------------------------------- */

static sigjmp_buf back;
static siginfo_t wild;

static void on_wild_access(int number, siginfo_t *info, void *context)
{
	(void)context;
	wild = *info;
	siglongjmp(back, number);
}

static void expect_fault(const volatile uint8_t *at, bool write, int number, int code)
{
	struct sigaction action = { .sa_sigaction = on_wild_access, .sa_flags = SA_SIGINFO };

	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
	int got = sigsetjmp(back, 1);
	if (got == 0) {
		if (write)
			*(volatile uint8_t *)at = 1;
		else
			(void)*at;
		fail("no signal for an access to %p", (void *)at);
	}
	if (got != number || wild.si_code != code || wild.si_addr != (void *)at)
		fail("access to %p gave signal %d, code %d, address %p instead of signal %d, code %d",
		     (void *)at, got, wild.si_code, wild.si_addr, number, code);
}

void check_wild_access(void)
{
	/* Half of the memory, evicted by now, is locked away, and a page of it unmapped. */
	uint8_t *half = memory + memory_pages / 2 * PAGE, *hole = half - 64 * PAGE;

	expect_fault((uint8_t *)16, false, SIGSEGV, SEGV_MAPERR);
	mprotect(half, 64 * PAGE, PROT_NONE);
	expect_fault(half + 5 * PAGE + 123, false, SIGSEGV, SEGV_ACCERR);
	mprotect(half, 64 * PAGE, PROT_READ);
	expect_fault(half + 7 * PAGE + 45, true, SIGSEGV, SEGV_ACCERR);
	mprotect(half, 64 * PAGE, PROT_READ | PROT_WRITE);
	memory_verify();
	munmap(hole, PAGE);
	expect_fault(hole + 9, true, SIGSEGV, SEGV_MAPERR);
}

/* ---- after exec --------------------------------------------------------------------------------- */

void look_around_after_exec(pid_t pid)
{
	if (getpid() != pid)
		fail("the pid is %d instead of %d", (int)getpid(), (int)pid);
	expect_descriptors(2);
	unsigned n = count_tasks();
	if (n != 1)
		fail("%u tasks instead of 1", n);
	expect_no_children(__WALL);
	check_dispositions();
	memory_verify();
}
