/* Rights given up, namespaces, filters, limits: after each of them memory is still there. */
#include "cloak.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Still there, also after a while and after new writing. */
static void use_memory(void)
{
	memory_verify();
	memory_write();
	memory_rest();
	memory_verify();
}

static void need_root(void)
{
	if (geteuid() != 0)
		skip("needs root");
}

/* Capabilities as they were when the process began are those of the kernel's own account. */
void check_capabilities(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct now[2];
	unsigned long long account[3] = { 0 };
	static const char *const names[3] = { "CapInh:\t%llx", "CapPrm:\t%llx", "CapEff:\t%llx" };
	char line[256];

	memory_verify();
	if (syscall(SYS_capget, &header, now) != 0)
		fail("capget: %s", strerror(errno));
	FILE *f = fopen("/proc/self/status", "re");
	while (f && fgets(line, sizeof line, f))
		for (unsigned i = 0; i < 3; i++)
			sscanf(line, names[i], &account[i]);
	if (f)
		fclose(f);
	if ((account[2] & 0xffffffff) != now[0].effective || account[2] >> 32 != now[1].effective)
		fail("capget and /proc/self/status differ");
	/* root's are whole: what a parent has, this process has. */
	FILE *parent;
	snprintf(line, sizeof line, "/proc/%d/status", (int)getppid());
	unsigned long long its = 0;
	if ((parent = fopen(line, "re"))) {
		while (fgets(line, sizeof line, parent))
			sscanf(line, names[2], &its);
		fclose(parent);
		if (its != account[2])
			fail("CapEff is %llx, the parent's is %llx", account[2], its);
	}
}

/* ---- namespaces --------------------------------------------------------------------------------- */

static bool command_unshare_works(const char *option)
{
	char command[100];

	snprintf(command, sizeof command, "unshare %s true 2>/dev/null", option);
	return system(command) == 0;
}

void check_unshare_user(void)
{
	if (!command_unshare_works("-U"))
		skip("`unshare -U true` does not work here");
	if (unshare(CLONE_NEWUSER) != 0)
		fail("unshare(CLONE_NEWUSER): %s", strerror(errno));
	use_memory();
	fork_and_verify();
}

void check_unshare_rest(void)
{
	static const struct {
		int flag;
		const char *name;
	} kinds[] = {
		{ CLONE_FILES, "FILES" },     { CLONE_FS, "FS" },           { CLONE_NEWNS, "NEWNS" },
		{ CLONE_NEWUTS, "NEWUTS" },   { CLONE_NEWIPC, "NEWIPC" },   { CLONE_NEWNET, "NEWNET" },
		{ CLONE_SYSVSEM, "SYSVSEM" }, { CLONE_SIGHAND, "SIGHAND" }, { CLONE_VM, "VM" },
		{ CLONE_THREAD, "THREAD" },
	};

	need_root();
	if (!command_unshare_works("-m"))
		skip("`unshare -m true` does not work here");
	for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (unshare(kinds[i].flag) != 0)
			fail("unshare(CLONE_%s): %s", kinds[i].name, strerror(errno));
	use_memory();
}

void check_unshare_pid(void)
{
	need_root();
	if (!command_unshare_works("-pf"))
		skip("`unshare -pf true` does not work here");
	if (unshare(CLONE_NEWPID) != 0)
		fail("unshare(CLONE_NEWPID): %s", strerror(errno));
	memory_verify();
	pid_t child = fork();
	if (child == 0) {
		if (getpid() != 1)
			fail("the child's pid is %d instead of 1", (int)getpid());
		memory_verify();
		_exit(19);
	}
	expect_exit(child, 19, "a child in a new pid namespace");
}

void check_setns_mount(void)
{
	need_root();
	int fd = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	if (fd < 0 || !command_unshare_works("-m"))
		skip("mount namespaces are not to be had here");
	if (setns(fd, CLONE_NEWNS) != 0)
		fail("setns: %s", strerror(errno));
	close(fd);
	use_memory();
}

/* ---- rights ------------------------------------------------------------------------------------- */

static void drop_rights(void)
{
	need_root();
	if (setgroups(0, NULL) != 0 || setgid(65534) != 0 || setuid(65534) != 0)
		fail("setuid: %s", strerror(errno));
	if (setuid(0) == 0)
		fail("root came back");
}

void check_setuid(void)
{
	drop_rights();
	use_memory();
}

void check_setuid_fork(void)
{
	drop_rights();
	fork_and_verify();
	use_memory();
	fork_and_verify();
}

void check_chroot_fork(void)
{
	char directory[] = "/tmp/cloak-XXXXXX";

	need_root();
	int outside = open("/tmp", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (!mkdtemp(directory))
		skip("mkdtemp: %s", strerror(errno));
	if (chroot(directory) != 0) {
		int error = errno;
		rmdir(directory);
		skip("chroot: %s", strerror(error));
	}
	if (chdir("/") != 0)
		fail("chdir: %s", strerror(errno));
	/* Nothing stays behind: from here on the root has no name. */
	unlinkat(outside, directory + strlen("/tmp/"), AT_REMOVEDIR);
	close(outside);
	drop_rights();
	fork_and_verify();
	use_memory();
	fork_and_verify();
}

void check_no_new_privileges(void)
{
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
		fail("PR_SET_NO_NEW_PRIVS: %s", strerror(errno));
	use_memory();
	fork_and_verify();
}

void check_undumpable(void)
{
	if (prctl(PR_SET_DUMPABLE, 0) != 0)
		fail("PR_SET_DUMPABLE: %s", strerror(errno));
	use_memory();
	fork_and_verify();
}

/* ---- filters ------------------------------------------------------------------------------------ */

#define ALLOW(name) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void filter_all_threads(uint32_t otherwise)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		ALLOW(read),
		ALLOW(write),
		ALLOW(exit),
		ALLOW(exit_group),
		ALLOW(futex),
		ALLOW(rt_sigreturn),
		ALLOW(mmap),
		ALLOW(munmap),
		ALLOW(mprotect),
		ALLOW(brk),
		ALLOW(sched_yield),
		BPF_STMT(BPF_RET | BPF_K, otherwise),
	};
	struct sock_fprog program = { sizeof rules / sizeof *rules, rules };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
		fail("PR_SET_NO_NEW_PRIVS: %s", strerror(errno));
	long refused = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
	if (refused != 0)
		fail("seccomp with TSYNC: %ld, %s", refused,
		     refused < 0 ? strerror(errno) : "a thread that cannot be synchronized");
}

/* The second thread reads while and after the filter is installed. */
static _Atomic int reader_state; /* 1: reading, 2: read on, 3: done, 4: wrong */

static void *read_beside(void *argument)
{
	reader_state = 1;
	do {
		if (!memory_is_right()) {
			reader_state = 4;
			return argument;
		}
	} while (reader_state == 1);
	reader_state = 3;
	for (;;)
		sched_yield();
	return argument;
}

static _Noreturn void filtered(uint32_t otherwise)
{
	pthread_t reader;
	static const char wrong[] = "memory differs", beside[] = "memory differs for the second thread";
	volatile uint64_t sink = 0;

	pthread_create(&reader, NULL, read_beside, NULL);
	while (!reader_state)
		sched_yield();
	filter_all_threads(otherwise);
	if (!memory_is_right())
		_exit(write(STDOUT_FILENO, wrong, sizeof wrong - 1) > 0 ? 1 : 2);
	/* The reader ends before anything is written anew. */
	atomic_compare_exchange_strong(&reader_state, &(int){ 1 }, 2);
	while (reader_state == 2)
		sched_yield();
	if (reader_state == 4)
		_exit(write(STDOUT_FILENO, beside, sizeof beside - 1) > 0 ? 1 : 2);
	/* No memory_rest: sleeping is not allowed. */
	for (unsigned round = 0; round < 10; round++) {
		memory_write();
		for (unsigned i = 0; i < 30000000; i++)
			sink += i;
		if (!memory_is_right())
			_exit(write(STDOUT_FILENO, wrong, sizeof wrong - 1) > 0 ? 1 : 2);
	}
	_exit(0);
}

void check_seccomp_error(void)
{
	filtered(SECCOMP_RET_ERRNO | EPERM);
}

void check_seccomp_kill(void)
{
	filtered(SECCOMP_RET_KILL_PROCESS);
}

void check_seccomp_strict(void)
{
	static const char wrong[] = "memory differs";

	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0)
		skip("strict mode: %s", strerror(errno));
	bool right = memory_is_right();
	memory_write();
	right = right && memory_is_right();
	if (!right && write(STDOUT_FILENO, wrong, sizeof wrong - 1) < 0)
		syscall(SYS_exit, 2);
	syscall(SYS_exit, right ? 0 : 1);
}

/* ---- limits ------------------------------------------------------------------------------------- */

void check_lock_all(void)
{
	if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) {
		if (geteuid() != 0)
			skip("mlockall: %s", strerror(errno));
		fail("mlockall: %s", strerror(errno));
	}
	use_memory();
	if (munlockall() != 0)
		fail("munlockall: %s", strerror(errno));
	use_memory();
}

static void limit_to(int which, rlim_t value)
{
	struct rlimit limit;

	getrlimit(which, &limit);
	limit.rlim_cur = value;
	if (setrlimit(which, &limit) != 0)
		fail("setrlimit: %s", strerror(errno));
}

void check_limit_address_space(void)
{
	unsigned long pages = 0;
	FILE *f = fopen("/proc/self/statm", "re");

	if (!f || fscanf(f, "%lu", &pages) != 1)
		fail("/proc/self/statm: %s", strerror(errno));
	fclose(f);
	limit_to(RLIMIT_AS, pages * PAGE + (1 << 20));
	use_memory();
	fork_and_verify();
}

void check_limit_files(void)
{
	limit_to(RLIMIT_NOFILE, 3);
	use_memory();
	fork_and_verify();
}

void check_limit_file_size(void)
{
	limit_to(RLIMIT_FSIZE, 0);
	use_memory();
	fork_and_verify();
}

void check_limit_processes(void)
{
	limit_to(RLIMIT_NPROC, 1);
	drop_rights();
	use_memory();
}

void check_limit_locked(void)
{
	limit_to(RLIMIT_MEMLOCK, 0);
	use_memory();
	fork_and_verify();
}
