/*
 * Fills more memory than its limit, gives up rights in the way that its first argument says, looks whether its engine
 * and workers have done the same, and goes on: reads and writes all of its memory, starts threads and ends them, some
 * with robust locks held, and forks. Begins as root.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOBODY 65534
#define MIB 64
#define LOCKS 64
#define GROUPS 32

int capset(cap_user_header_t header, const cap_user_data_t data);

static uint64_t *memory;
static const size_t words = (size_t)MIB << 17;
static uint64_t seed;

#define fail(...) (printf(__VA_ARGS__), printf("\n"), fflush(stdout), _exit(91))

static void rest(unsigned ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	while (nanosleep(&t, &t) != 0)
		;
}

/* ---- memory ------------------------------------------------------------------------------------- */

/* One word of four is noise. */
static uint64_t word(size_t i)
{
	uint64_t x = i + seed;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	return i % 4 == 0 ? x ^ (x >> 27) : i / 512 + seed;
}

static void fill(void)
{
	seed++;
	for (size_t i = 0; i < words; i++)
		memory[i] = word(i);
}

static void verify(const char *who)
{
	for (size_t i = 0; i < words; i++)
		if (memory[i] != word(i))
			fail("%s: word %zu is %lx", who, i, (unsigned long)memory[i]);
}

/* ---- rights of other processes ------------------------------------------------------------------ */

struct rights {
	char name[32];
	int parent, no_new_privileges, filter;
	unsigned uids[4], gids[4], groups[GROUPS], group_count;
	uint64_t caps[5];
};

static int read_rights(const char *pid, struct rights *r)
{
	static const char *sets[] = { "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:" };
	char path[64], line[1024];
	int at, step;

	snprintf(path, sizeof path, "/proc/%s/status", pid);
	FILE *file = fopen(path, "re");
	if (!file)
		return -1;
	memset(r, 0, sizeof *r);
	while (fgets(line, sizeof line, file)) {
		sscanf(line, "Name: %31s", r->name);
		sscanf(line, "PPid: %d", &r->parent);
		sscanf(line, "Uid: %u %u %u %u", r->uids, r->uids + 1, r->uids + 2, r->uids + 3);
		sscanf(line, "Gid: %u %u %u %u", r->gids, r->gids + 1, r->gids + 2, r->gids + 3);
		sscanf(line, "NoNewPrivs: %d", &r->no_new_privileges);
		sscanf(line, "Seccomp: %d", &r->filter);
		if (strncmp(line, "Groups:", 7) == 0)
			for (at = 7; r->group_count < GROUPS &&
				     sscanf(line + at, "%u%n", r->groups + r->group_count, &step) == 1; at += step)
				r->group_count++;
		for (int i = 0; i < 5; i++)
			if (strncmp(line, sets[i], 7) == 0)
				r->caps[i] = strtoull(line + 7, NULL, 16);
	}
	fclose(file);
	return 0;
}

/* What a process has that the program has not; NULL when there is nothing. */
static const char *excess(const struct rights *r, const struct rights *own, int is_in_own_space)
{
	static const char *sets[] = { "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb" };

	if (memcmp(r->uids, own->uids, sizeof r->uids) != 0)
		return "uids";
	if (memcmp(r->gids, own->gids, sizeof r->gids) != 0)
		return "gids";
	for (unsigned i = 0; i < r->group_count; i++) {
		unsigned j = 0;
		while (j < own->group_count && own->groups[j] != r->groups[i])
			j++;
		if (j == own->group_count)
			return "groups";
	}
	for (int i = 0; i < 5; i++)
		if (r->caps[i] & ~own->caps[i] || (!is_in_own_space && i != 3 && r->caps[i]))
			return sets[i];
	if (own->no_new_privileges && !r->no_new_privileges)
		return "no_new_privs";
	/* Whatever the program may call, they have a filter of their own. */
	return r->filter == 2 ? NULL : "all system calls";
}

/* Looks at the engines of this run and at their workers; how many there are. */
static int look(int is_in_own_space, const char **who, const char **what)
{
	struct rights own, r, engine;
	char parent[16];
	int found = 0;
	DIR *proc = opendir("/proc");

	if (!proc || read_rights("thread-self", &own) != 0)
		fail("/proc: %s", strerror(errno));
	*what = NULL;
	for (struct dirent *entry; (entry = readdir(proc));) {
		if (entry->d_name[0] < '0' || entry->d_name[0] > '9' || read_rights(entry->d_name, &r) != 0)
			continue;
		snprintf(parent, sizeof parent, "%d", r.parent);
		int is_engine = strcmp(r.name, "zfolio-engine") == 0 && r.parent == getppid();
		int is_worker = strcmp(r.name, "zfolio-worker") == 0 && read_rights(parent, &engine) == 0 &&
				strcmp(engine.name, "zfolio-engine") == 0 && engine.parent == getppid();
		if (!is_engine && !is_worker)
			continue;
		found++;
		const char *more = excess(&r, &own, is_in_own_space);
		if (more) {
			*who = is_engine ? "the engine" : "a worker";
			*what = more;
		}
	}
	closedir(proc);
	return found;
}

/* Within `ms` they must have no more than this process, nor ever after. */
static void expect_equal(unsigned ms, int is_in_own_space)
{
	const char *who = "", *what;

	for (unsigned waited = 0;; waited += 10) {
		int found = look(is_in_own_space, &who, &what);
		if (found < 1)
			fail("there is no engine to look at");
		if (!what)
			return;
		if (waited >= ms)
			fail("%s still has %s that the program has not", who, what);
		rest(10);
	}
}

/* ---- ways to give up rights ---------------------------------------------------------------------- */

/* Past libc and past every hook. */
static long raw(long number, long a, long b, long c)
{
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "0"(number), "D"(a), "S"(b), "d"(c)
			 : "rcx", "r11", "memory");
	return result;
}

static void drop(long result, const char *what)
{
	if (result != 0)
		fail("%s: %s", what, strerror(errno));
}

/* Of all capabilities, only this one stays. */
static void keep_only(int capability)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2] = { 0 };

	data[capability / 32].effective = data[capability / 32].permitted = 1u << capability % 32;
	drop(capset(&header, data), "capset");
}

static void become_nobody(void)
{
	drop(setgroups(0, NULL), "setgroups");
	drop(setgid(NOBODY), "setgid");
	drop(setuid(NOBODY), "setuid");
}

/* Main has ended: its rights stay what they were. */
static int is_last;

static void give_up(const char *way)
{
	unsigned at_once = 0, soon = 1000;

	if (strcmp(way, "setuid") == 0 || strcmp(way, "early") == 0) {
		become_nobody();
	} else if (strcmp(way, "saved") == 0) {
		drop(setresuid(NOBODY, NOBODY, 0), "setresuid");
	} else if (strcmp(way, "turns") == 0) {
		for (int turn = 0; turn < 20; turn++) {
			drop(seteuid(NOBODY), "seteuid");
			expect_equal(soon, 1);
			drop(seteuid(0), "seteuid");
			expect_equal(soon, 1);
		}
		drop(setresuid(1000, 1000, 1000), "setresuid");
	} else if (strcmp(way, "files") == 0) {
		setfsgid(NOBODY);
		setfsuid(NOBODY);
	} else if (strcmp(way, "raw") == 0) {
		drop(raw(SYS_setgroups, 0, 0, 0), "setgroups");
		drop(raw(SYS_setresgid, NOBODY, NOBODY, NOBODY), "setresgid");
		drop(raw(SYS_setresuid, NOBODY, NOBODY, NOBODY), "setresuid");
		at_once = soon;
	} else if (strcmp(way, "syscall") == 0) {
		drop(syscall(SYS_setgroups, 0, NULL), "setgroups");
		drop(syscall(SYS_setresgid, NOBODY, NOBODY, NOBODY), "setresgid");
		drop(syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY), "setresuid");
	} else if (strcmp(way, "groups") == 0) {
		drop(setgroups(1, (gid_t[]){ 20 }), "setgroups");
	} else if (strcmp(way, "capset") == 0) {
		keep_only(CAP_CHOWN);
	} else if (strcmp(way, "bounding") == 0) {
		drop(prctl(PR_CAPBSET_DROP, CAP_SYS_BOOT), "PR_CAPBSET_DROP");
		drop(prctl(PR_CAPBSET_DROP, CAP_SYS_TIME), "PR_CAPBSET_DROP");
		become_nobody();
	} else if (strcmp(way, "keep") == 0) {
		/* Another user with one capability, which can do what it takes to become nobody later. */
		drop(prctl(PR_SET_KEEPCAPS, 1), "PR_SET_KEEPCAPS");
		drop(setresuid(1000, 1000, 1000), "setresuid");
		keep_only(CAP_SETUID);
		expect_equal(soon, 1);
		drop(setresuid(NOBODY, NOBODY, NOBODY), "setresuid");
		keep_only(CAP_SETUID);
	} else if (strcmp(way, "privileges") == 0) {
		drop(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS");
	} else if (strcmp(way, "dumpable") == 0) {
		drop(prctl(PR_SET_DUMPABLE, 0), "PR_SET_DUMPABLE");
		become_nobody();
	} else if (strcmp(way, "looks") == 0) {
		become_nobody();
		drop(prctl(PR_SET_DUMPABLE, 1), "PR_SET_DUMPABLE");
		rest(300);
		if (prctl(PR_GET_DUMPABLE) != 1)
			fail("nobody may look into the memory any more");
	} else if (strcmp(way, "space") == 0) {
		if (unshare(CLONE_NEWUSER) != 0) {
			printf("skipped\n");
			exit(0);
		}
		expect_equal(soon, 0);
		return;
	} else {
		fail("there is no way %s", way);
	}
	/* An engine has followed when the call returns; its workers may have been busy. */
	expect_equal(is_last || at_once ? soon : soon / 2, 1);
}

/* ---- what goes on --------------------------------------------------------------------------------- */

static pthread_barrier_t barrier;

/* Locks what lies all over the memory, waits until that could have gone out, and ends. */
static void *lock_and_end(void *locks)
{
	for (int i = 0; i < LOCKS; i++)
		drop(pthread_mutex_lock(((pthread_mutex_t **)locks)[i]), "lock");
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	return NULL;
}

static void robust(void)
{
	pthread_mutex_t *locks[LOCKS];
	pthread_mutexattr_t robust;
	pthread_attr_t at;
	pthread_t thread;
	/*
	 * Each page of it has one, so that it would go out with the others. And the thread's control block lies in the
	 * middle of a mapping.
	 */
	size_t stride = 16 * 4096, stack = 256 << 10;
	char *place = mmap(NULL, LOCKS * stride + 3 * stack, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	pthread_mutexattr_init(&robust);
	pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
	for (int i = 0; i < LOCKS; i++) {
		locks[i] = (pthread_mutex_t *)(place + i * stride);
		pthread_mutex_init(locks[i], &robust);
	}
	for (int own_stack = 0; own_stack < 2; own_stack++) {
		pthread_attr_init(&at);
		if (own_stack)
			drop(pthread_attr_setstack(&at, place + LOCKS * stride + stack, stack), "stack");
		pthread_barrier_init(&barrier, NULL, 2);
		drop(pthread_create(&thread, &at, lock_and_end, locks), "pthread_create");
		pthread_barrier_wait(&barrier);
		/* Twice, so that whatever can go out has gone. */
		fill();
		verify("locks");
		pthread_barrier_wait(&barrier);
		drop(pthread_join(thread, NULL), "pthread_join");
		for (int i = 0; i < LOCKS; i++) {
			struct timespec soon;
			clock_gettime(CLOCK_REALTIME, &soon);
			soon.tv_sec += 2;
			int result = pthread_mutex_timedlock(locks[i], &soon);
			if (result != EOWNERDEAD)
				fail("lock %d of a thread that has ended: %s", i, strerror(result));
			pthread_mutex_consistent(locks[i]);
			pthread_mutex_unlock(locks[i]);
		}
	}
	munmap(place, LOCKS * stride + 3 * stack);
}

static void *add(void *argument)
{
	uint64_t deep[4096];

	for (size_t i = 0; i < words; i += 512)
		*(volatile uint64_t *)(deep + i / 512 % 4096) = memory[i];
	return argument;
}

static void threads(void)
{
	pthread_t some[8];

	for (int round = 0; round < 4; round++) {
		for (int i = 0; i < 8; i++)
			drop(pthread_create(some + i, NULL, add, NULL), "pthread_create");
		for (int i = 0; i < 8; i++)
			drop(pthread_join(some[i], NULL), "pthread_join");
	}
}

static void copies(void)
{
	for (int round = 0; round < 2; round++) {
		pid_t child = fork();
		int status;

		if (child == 0) {
			verify("child");
			_exit(5);
		}
		verify("parent");
		if (child < 0 || waitpid(child, &status, 0) != child || status != 5 << 8)
			fail("a child ended with %x", status);
	}
}

static void go_on(void)
{
	verify("after it");
	fill();
	verify("written after it");
	threads();
	robust();
	verify("after the locks");
	copies();
	fill();
	verify("at the end");
	printf("right\n");
	exit(0);
}

/* The process goes on when its main thread has ended, with whatever rights its other threads have. */
static void *last(void *way)
{
	rest(100);
	is_last = 1;
	give_up(way);
	go_on();
	return NULL;
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "";
	pthread_t thread;

	if (strcmp(way, "groups") == 0 && getgroups(0, NULL) != 3) {
		drop(setgroups(3, (gid_t[]){ 10, 20, 30 }), "setgroups");
		execv("/proc/self/exe", argv);
		fail("execv: %s", strerror(errno));
	}
	/* Its engine sleeps then. */
	if (strcmp(way, "early") == 0)
		give_up(way);
	memory = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
	fill();
	verify("before it");
	if (strcmp(way, "early") == 0)
		go_on();
	if (strcmp(way, "last") == 0) {
		drop(pthread_create(&thread, NULL, last, "setuid"), "pthread_create");
		pthread_exit(NULL);
	}
	give_up(way);
	go_on();
}
