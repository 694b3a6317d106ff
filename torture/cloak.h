/*
 * cloak: the program cannot tell.
 *
 * A list of small checks, each in a process of its own that first fills 100 MiB (or --memory), so that under
 * `zfolio run --memory 32M` most of it is elsewhere while the check looks around:
 *
 *   cloak.c        the table, and how a check is run and judged
 *   appearance.c   what a process sees of itself: descriptors, threads, children, signals, limits
 *   privilege.c    rights given up, namespaces, filters, limits
 *   descent.c      children: fork, vfork, clone, exec; being stopped
 *   ending.c       how a process ends
 *
 * A check returns when all is well and calls fail() or skip() when not. Its process must then end as the
 * table says, and leave nothing behind.
 */
#ifndef CLOAK_H
#define CLOAK_H

#include "content.h"

#include <sys/types.h>

/* What it fills. */
extern uint8_t *memory;
extern size_t memory_pages;

void memory_verify(void);
/* The same without a library call, for where hardly any system call is allowed: false if it differs. */
bool memory_is_right(void);
/* Writes a tenth of it anew. */
void memory_write(void);
/* Sleeps, so that memory leaves. */
void memory_rest(void);

_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* What main saw before it touched anything; the checks compare. */
struct first_sight;
void first_sight_take(void);

/* The path by which this program can be exec'ed. */
extern const char *program;

/* Starts this program with the arguments; its stdout is ours. */
pid_t spawn_self(const char *const *arguments);
/* The wait status of the child, which must come within some seconds. */
int await(pid_t child);
/* Waits for a child of fork that is to exit with `code`. */
void expect_exit(pid_t child, int code, const char *what);
/* Forks a child that verifies the memory and exits; waits for it. */
void fork_and_verify(void);

#define CHECKS_APPEARANCE(X) \
	X(memory, "what was written is read") \
	X(errno, "touching memory leaves errno alone") \
	X(descriptors, "0, 1, 2 and what was opened; the next open gets the lowest number") \
	X(descriptors_closed, "close_range(3, ~0) closes nothing that is needed") \
	X(descriptors_none, "not even 0, 1 and 2 are needed") \
	X(descriptors_taken, "dup2 to every number up to 1023 harms nothing") \
	X(descriptors_full, "no free descriptor") \
	X(tasks, "/proc/self/task holds the program's threads, no more") \
	X(task_names, "no thread has a foreign name") \
	X(status, "/proc/self/status: one thread, no handlers, nothing blocked or ignored") \
	X(children, "waitpid(-1): ECHILD") \
	X(children_all, "waitpid(-1, __WALL): ECHILD") \
	X(children_usage, "children have used no time") \
	X(subreaper, "a subreaper gets no child that it does not know") \
	X(child_signal, "no SIGCHLD without a child, one with") \
	X(limits, "getrlimit is as it was") \
	X(process_settings, "prctl(PR_GET_*) is as it was, and as it is by default") \
	X(dispositions, "every signal has its default, none is blocked, none is pending") \
	X(blocked, "memory is served with every signal blocked; a pending signal waits") \
	X(timers, "no interval timer runs") \
	X(scheduling, "affinity, niceness, policy") \
	X(identity, "ids, group, session, directory, umask") \
	X(alternate_stack, "none unless the program sets one") \
	X(wild_access, "SIGSEGV with the right address and code")

#define CHECKS_PRIVILEGE(X) \
	X(capabilities, "the capabilities are as they were") \
	X(unshare_user, "unshare(CLONE_NEWUSER)") \
	X(unshare_rest, "unshare of files, fs, mounts, names, network") \
	X(unshare_pid, "a child in a new pid namespace") \
	X(setns_mount, "setns to a mount namespace") \
	X(setuid, "no rights at all from now on") \
	X(setuid_fork, "no rights, then a child") \
	X(chroot_fork, "an empty root, no rights, then a child") \
	X(no_new_privileges, "PR_SET_NO_NEW_PRIVS") \
	X(undumpable, "PR_SET_DUMPABLE 0, then a child") \
	X(seccomp_error, "a filter on all threads that refuses nearly everything") \
	X(seccomp_kill, "the same, and kills") \
	X(seccomp_strict, "read, write, exit and sigreturn, nothing else") \
	X(lock_all, "mlockall does not fail") \
	X(limit_address_space, "RLIMIT_AS") \
	X(limit_files, "RLIMIT_NOFILE 3") \
	X(limit_file_size, "RLIMIT_FSIZE 0") \
	X(limit_processes, "RLIMIT_NPROC 1 without rights") \
	X(limit_locked, "RLIMIT_MEMLOCK 0")

#define CHECKS_DESCENT(X) \
	X(fork, "a child verifies, alone, with our descriptors") \
	X(fork_threads, "a child of a process whose threads are busy") \
	X(fork_deep, "children of children") \
	X(vfork, "a vfork child uses our memory") \
	X(spawn, "posix_spawn, exit status and all") \
	X(raw_clone, "a clone without libc: right, or dead by SIGSEGV, never wrong") \
	X(exec, "exec keeps the pid, the descriptors, and nothing else") \
	X(stop, "stopped and continued from outside") \
	X(stop_vfork, "a vfork child uses our memory while we are stopped") \
	X(reader_outside, "process_vm_readv by another process")

/* The last column is how the process must end: an exit code, or minus a signal. */
#define CHECKS_ENDING(X) \
	X(exit_code, 37, "exit(37)") \
	X(exit_in_thread, 23, "exit(23) in a thread, while main sleeps") \
	X(return_of_main, 0, "exit handlers and stdio run once") \
	X(last_thread, 0, "main leaves by pthread_exit, the last thread by a bare exit") \
	X(killed_abort, -6, "abort") \
	X(killed_kill, -9, "SIGKILL") \
	X(killed_segv, -11, "a null pointer") \
	X(killed_bus, -7, "memory past the end of a file") \
	X(killed_term, -15, "SIGTERM from outside") \
	X(killed_in_thread, -11, "a null pointer in a thread")

#define DECLARE(name, what) void check_##name(void);
#define DECLARE_ENDING(name, ending, what) void check_##name(void);
CHECKS_APPEARANCE(DECLARE)
CHECKS_PRIVILEGE(DECLARE)
CHECKS_DESCENT(DECLARE)
CHECKS_ENDING(DECLARE_ENDING)

/* Not in the table: what `exec` and `stop` start. */
void look_around_after_exec(pid_t pid);
int stopper_main(pid_t target);

#endif
