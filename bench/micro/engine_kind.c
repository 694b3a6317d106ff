// Thread or process? What a program and its surroundings can see of an engine that is an extra thread, and of
// one that is a CLONE_VM process of its own. Prints one line for each experiment; docs/thread-or-process.md is
// made from it.
//
//   engine_kind [EXPERIMENT...]

#include "engine.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/kcmp.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum kind { THREAD, PROCESS };
enum { PAGES = 64 };
enum order { NONE, EVICT, OPEN_SHADOW, BURN, CRASH, SLEEP, DROP_RIGHTS, CONFINE, LEAVE };

// Seen by the driver, the program and the engine.
struct shared {
    volatile int engine_id;           // its tid
    volatile int ready, order, error; // orders of the program to the engine; it sets NONE when done
    volatile long answer;
    volatile bool spin;
    volatile bool hold; // the driver may not go on before the program says so
    volatile double began_s, tid_word_s, pidfd_s, kcmp_s, woke_s;
    volatile int step;
    int program_pid, uffd; // the descriptor's number in the engine's table
    char said[256];
};
static struct shared *s;

static char *data, *stage;
static volatile int tid_word = 1; // the main thread's clear_child_tid, as set_tid_address(2) leaves it
static enum kind kind;
static int uffd, pidfd;

// ---- the engine; raw system calls only ----

static long move_pages(char *to, char *from, long bytes) {
    struct uffdio_move move = {(uint64_t)to, (uint64_t)from, bytes, 0, 0};
    return RAW(SYS_ioctl, uffd, UFFDIO_MOVE, &move);
}

static double engine_now_s(void) {
    struct timespec t;
    RAW(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void obey(int order) {
    if (order == EVICT)
        s->answer = move_pages(stage, data, PAGES * PAGE);
    if (order == OPEN_SHADOW) {
        s->answer = RAW(SYS_openat, AT_FDCWD, "/etc/shadow", O_RDONLY);
        if (s->answer >= 0)
            RAW(SYS_close, s->answer);
    }
    if (order == BURN)
        for (double end = engine_now_s() + 0.2; engine_now_s() < end;) {}
    if (order == CRASH)
        __builtin_trap();
    if (order == DROP_RIGHTS) {
        struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
        s->answer = RAW(SYS_capset, &header, none);
    }
    if (order == CONFINE) {
        // What an engine needs once its descriptors are open. Without SECCOMP_FILTER_FLAG_TSYNC it binds the caller alone.
        static struct sock_filter allow_list[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 4, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 3, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_poll, 2, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 1, 0),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog filter = {sizeof allow_list / sizeof *allow_list, allow_list};
        RAW(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        s->answer = RAW(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter);
    }
    if (order == SLEEP) {
        // What an engine without work would do: wait for a call or for the end of the main thread's use of
        // this memory, whichever is first.
        s->order = NONE;
        struct futex_waitv waits[2] = {{NONE, (uint64_t)&s->order, FUTEX_32, 0}, {1, (uint64_t)&tid_word, FUTEX_32, 0}};
        while (tid_word == 1 && s->order == NONE)
            RAW(SYS_futex_waitv, waits, 2, 0, 0, 0);
        s->woke_s = engine_now_s();
        return;
    }
    s->order = NONE;
}

static int engine(void) {
    RAW(SYS_close_range, 0, ~0u, 0);
    if (kind == PROCESS) {
        RAW(SYS_setsid);
        RAW(SYS_chdir, "/");
    }
    pidfd = RAW(SYS_pidfd_open, s->program_pid, 0);
    uffd = RAW(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct uffdio_api api = {UFFD_API, UFFD_FEATURE_MOVE, 0};
    s->error = RAW(SYS_ioctl, uffd, UFFDIO_API, &api);
    struct uffdio_register of_data = {{(uint64_t)data, PAGES * PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
    struct uffdio_register of_stage = {{(uint64_t)stage, PAGES * PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
    if (!s->error)
        s->error = RAW(SYS_ioctl, uffd, UFFDIO_REGISTER, &of_data) ?: RAW(SYS_ioctl, uffd, UFFDIO_REGISTER, &of_stage);
    s->engine_id = RAW(SYS_gettid);
    s->uffd = uffd;
    s->ready = 1;
    for (;;) {
        struct pollfd polls[2] = {{uffd, POLLIN, 0}, {pidfd, POLLIN, 0}};
        if (!s->spin)
            RAW(SYS_poll, polls, 2, 1);
        struct uffd_msg message;
        while (RAW(SYS_read, uffd, &message, sizeof message) == sizeof message) {
            long offset = (message.arg.pagefault.address & ~(PAGE - 1ull)) - (uint64_t)data;
            if (move_pages(data + offset, stage + offset, PAGE) != 0) {
                struct uffdio_range range = {(uint64_t)data + offset, PAGE};
                RAW(SYS_ioctl, uffd, UFFDIO_WAKE, &range);
            }
        }
        if (!tid_word && s->tid_word_s == 0)
            s->tid_word_s = engine_now_s();
        if (s->kcmp_s == 0 && RAW(SYS_kcmp, s->program_pid, s->engine_id, KCMP_VM, 0, 0) > 0)
            s->kcmp_s = engine_now_s();
        if (kind == PROCESS && polls[1].revents) {
            s->pidfd_s = engine_now_s();
            return 0;
        }
        if (s->order == LEAVE)
            return 0;
        if (s->order != NONE)
            obey(s->order);
    }
}

// ---- the program's side ----

static char *engine_stack;
static int engine_word;

static int first_clone(void) {
    long id = raw_clone(CLONE_VM | CLONE_UNTRACED, engine_stack + 15 * PAGE, engine, NULL);
    return id < 0 ? -id : 0;
}

// Returns 0, or the error of clone.
static int engine_start(enum kind which) {
    kind = which;
    s->program_pid = getpid();
    data = map_pages(PAGES);
    stage = map_pages(PAGES);
    engine_stack = map_pages(32);
    for (int page = 0; page < PAGES; page++)
        memset(data + page * PAGE, page + 1, PAGE);
    syscall(SYS_set_tid_address, &tid_word);

    sigset_t all, old;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &old);
    long id;
    if (kind == THREAD) {
        id = raw_clone(CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_UNTRACED |
                           CLONE_CHILD_CLEARTID,
                       engine_stack + 15 * PAGE, engine, &engine_word);
    } else {
        id = raw_clone(CLONE_VM | CLONE_UNTRACED, engine_stack + 31 * PAGE, first_clone, NULL);
        int status = 0;
        if (id > 0 && waitpid(id, &status, __WCLONE) == id && status != 0)
            id = -WEXITSTATUS(status);
    }
    sigprocmask(SIG_SETMASK, &old, NULL);
    if (id < 0)
        return -id;
    while (!s->ready)
        pause_ms(0.1);
    return 0;
}

static long ask(enum order order) {
    s->order = order;
    while (s->order == (int)order)
        pause_ms(0.1);
    return s->answer;
}

static bool is_right(int page) { return *(volatile char *)(data + page * PAGE) == page + 1; }

#define SAY(...) snprintf(s->said + strlen(s->said), sizeof s->said - strlen(s->said), __VA_ARGS__)

// ---- the experiments: `program` runs with the engine inside, `watch` in the driver beside it ----

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double fault_p50_us(void) {
    enum { ROUNDS = 40 };
    static double us[ROUNDS * PAGES];
    for (int i = 0, round = 0; round < ROUNDS; round++) {
        ask(EVICT);
        for (int page = 0; page < PAGES; page++) {
            pause_ms(0.05);
            double start = now_s();
            is_right(page);
            us[i++] = (now_s() - start) * 1e6;
        }
    }
    qsort(us, ROUNDS * PAGES, sizeof *us, compare_doubles);
    return us[ROUNDS * PAGES / 2];
}

static void fault_latency(void) {
    SAY("p50 %.1f us sleeping", fault_p50_us());
    s->spin = true;
    SAY(", %.1f us spinning", fault_p50_us());
}

static void unshare_user(void) {
    ask(EVICT);
    SAY("%s", unshare(CLONE_NEWUSER) ? strerror(errno) : "works");
    SAY("; data %s after it", is_right(3) ? "right" : "WRONG");
}

static void enter_time_namespace(void) {
    int fd = open("/proc/self/ns/time", O_RDONLY);
    SAY("%s", setns(fd, 0) ? strerror(errno) : "works");
}

static void enter_mount_namespace(void) {
    int fd = open("/proc/self/ns/mnt", O_RDONLY);
    SAY("%s", setns(fd, CLONE_NEWNS) ? strerror(errno) : "works");
}

static void exit_of_last_thread(void) {
    ask(EVICT);
    s->hold = true;
    syscall(SYS_exit, 7);
}

static void watch_exit_of_last_thread(pid_t pid) {
    int status;
    for (int ms = 0; ms < 1000; ms++, pause_ms(1)) {
        if (waitpid(pid, &status, WNOHANG) == pid) {
            SAY("ends with status %d", WEXITSTATUS(status));
            return;
        }
    }
    SAY("STAYS ALIVE");
    kill(pid, SIGKILL);
}

static int borrower(void) {
    s->step = 1;
    while (s->step != 2)
        RAW(SYS_sched_yield);
    s->answer = *(volatile char *)(data + 5 * PAGE);
    s->step = 3;
    return 0;
}

// SIGSTOP to the program while a child that shares its memory, as after vfork, is about to fault.
static void stop_with_borrower(void) {
    ask(EVICT);
    raw_clone(CLONE_VM | SIGCHLD, (char *)map_pages(8) + 8 * PAGE, borrower, NULL);
    while (s->step != 1)
        pause_ms(1);
    s->hold = true;
    pause_ms(10000);
}

static void watch_stop_with_borrower(pid_t pid) {
    while (!s->hold)
        pause_ms(1);
    kill(pid, SIGSTOP);
    waitpid(pid, NULL, WUNTRACED);
    double start = now_s();
    s->step = 2;
    while (s->step != 3 && now_s() < start + 1)
        pause_ms(1);
    if (s->step == 3)
        SAY("the child goes on");
    else
        SAY("the child HANGS");
    kill(pid, SIGCONT);
    while (s->step != 3 && now_s() < start + 3)
        pause_ms(1);
    SAY(s->step == 3 ? "" : ", also after SIGCONT");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void filter_for_all_threads(void) {
    ask(EVICT);
    struct sock_filter refuse_ioctl[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {4, refuse_ioctl};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    SAY("filter installed: %s", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter)
                             ? strerror(errno) : "yes");
    s->step = 1;
    SAY(is_right(7) ? "; fault served" : "; data WRONG");
}

static const char *may_read_shadow(void) { return ask(OPEN_SHADOW) >= 0 ? "READS" : "may not read"; }

static void after_setuid(void) {
    ask(EVICT);
    if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
        err(1, "setresuid");
    SAY("engine %s /etc/shadow", may_read_shadow());
    ask(DROP_RIGHTS);
    SAY("; without capabilities it %s it", may_read_shadow());
    ask(CONFINE);
    SAY("; confined by a filter it %s it", may_read_shadow());
    SAY("; data %s", is_right(9) ? "right" : "WRONG");
}

static void exec_evicted(void) {
    s->hold = true;
    s->began_s = now_s();
    execlp("sleep", "sleep", "0.5", NULL);
}

static void exec_program(void) {
    ask(EVICT);
    exec_evicted();
}

static void exec_while_asleep(void) {
    ask(EVICT);
    s->order = SLEEP;
    while (s->order == SLEEP)
        pause_ms(1);
    exec_evicted();
}

static bool exists(pid_t id) { return kill(id, 0) == 0 || errno != ESRCH; }

static double ms_after(double then) { return then == 0 ? -1 : (then - s->began_s) * 1000; }

// Does the task still run? (A zombie, which only waits for its parent, does not; kill(2) does not see threads.)
static bool task_exists(pid_t id) {
    char path[64], stat[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", id);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return false;
    bool found = read(fd, stat, sizeof stat - 1) > 0;
    close(fd);
    const char *name_end = strrchr(stat, ')');
    return found && name_end && name_end[2] != 'Z' && name_end[2] != 'X';
}

static void watch_exec(pid_t pid) {
    while (!s->hold)
        pause_ms(1);
    pause_ms(200);
    bool lives = task_exists(s->engine_id);
    SAY("engine %s", lives ? "lives on" : "is gone");
    if (lives) {
        char path[64], line[256];
        snprintf(path, sizeof path, "/proc/%d/status", s->engine_id);
        FILE *status = fopen(path, "r");
        while (status && fgets(line, sizeof line, status))
            if (strncmp(line, "VmRSS:", 6) == 0)
                SAY(" with %ld KiB of the old program", atol(line + 6));
        if (s->woke_s > 0)
            SAY("; futex_waitv on the tid word returns after %.1f ms", ms_after(s->woke_s));
        else
            SAY("; tid word 0 after %.1f ms, kcmp differs after %.1f ms, pidfd silent", ms_after(s->tid_word_s),
                ms_after(s->kcmp_s));
    }
    waitpid(pid, NULL, 0);
    pause_ms(50);
    if (lives)
        SAY(task_exists(s->engine_id) ? "; STAYS after the end" : "; ends with the new program");
}

static void exit_group_of_program(void) {
    ask(EVICT);
    s->hold = true;
    _exit(5);
}

// The same with memory that takes a while to free.
static void exit_of_large_program(void) {
    char *ballast = map_pages(1 << 17);
    memset(ballast, 1, PAGE << 17);
    exit_group_of_program();
}

static void kill_of_program(void) {
    ask(EVICT);
    s->hold = true;
    pause_ms(10000);
}

static void watch_end(pid_t pid, bool with_kill) {
    while (!s->hold)
        pause_ms(0.1);
    if (with_kill) {
        pause_ms(5);
        kill(pid, SIGKILL);
    }
    int status;
    waitpid(pid, &status, 0);
    double start = now_s();
    while (task_exists(s->engine_id) && now_s() < start + 1) {}
    if (task_exists(s->engine_id))
        SAY("engine STAYS");
    else
        SAY("engine gone %.2f ms after wait() returned", (now_s() - start) * 1000);
}

static void watch_exit(pid_t pid) { watch_end(pid, false); }
static void watch_kill(pid_t pid) { watch_end(pid, true); }

// Killed on its own: by pid where it has one.
static void touch_after_hold(void) {
    ask(EVICT);
    s->hold = true;
    while (s->step != 1)
        pause_ms(1);
    char seen = *(volatile char *)(data + 11 * PAGE);
    SAY(seen == 12 ? "; data right" : seen == 0 ? "; program READS ZEROS" : "; data WRONG");
}

static void watch_engine_killed(pid_t pid) {
    while (!s->hold)
        pause_ms(1);
    kill(s->engine_id, SIGKILL);
    pause_ms(100);
    s->step = 1;
    int status = 0;
    for (int ms = 0; ms < 1000 && waitpid(pid, &status, WNOHANG) != pid; ms++)
        pause_ms(1);
    if (WIFSIGNALED(status))
        SAY("the program dies with it (signal %d)", WTERMSIG(status));
}

// The same while another process, as the coordinator could, holds the engine's userfaultfd too.
static void watch_engine_killed_but_held(pid_t pid) {
    while (!s->hold)
        pause_ms(1);
    int engine_fd = syscall(SYS_pidfd_open, s->engine_id, 0);
    int held = syscall(SYS_pidfd_getfd, engine_fd, s->uffd, 0);
    if (held < 0)
        SAY("(not held: %s) ", strerror(errno));
    watch_engine_killed(pid);
    if (kill(pid, 0) == 0 && waitpid(pid, NULL, WNOHANG) == 0) {
        SAY("the program waits until it is killed");
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    close(held);
    close(engine_fd);
}

static void on_crash(int signal) { (void)signal; SAY("the PROGRAM'S HANDLER runs; "); _exit(1); }

static void engine_crash(void) {
    signal(SIGILL, on_crash);
    ask(EVICT);
    s->hold = true;
    s->order = CRASH;
    pause_ms(200);
    s->step = 1;
    SAY("the program goes on");
    char seen = *(volatile char *)(data + 11 * PAGE);
    SAY(seen == 12 ? ", data right" : seen == 0 ? ", READS ZEROS" : ", data WRONG");
}

static void watch_status(pid_t pid) {
    int status = 0;
    for (int ms = 0; ms < 2000; ms++, pause_ms(1)) {
        if (waitpid(pid, &status, WNOHANG) == pid) {
            if (WIFSIGNALED(status))
                SAY("the program dies (signal %d)", WTERMSIG(status));
            return;
        }
    }
    SAY("%sthe program HANGS", s->said[0] ? "; " : "");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void core_dump(void) {
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_CORE, &all);
    ask(EVICT);
    s->began_s = now_s();
    abort();
}

static void watch_core_dump(pid_t pid) {
    int status;
    waitpid(pid, &status, 0);
    SAY("%s after %.0f ms", WCOREDUMP(status) ? "core written" : "no core", (now_s() - s->began_s) * 1000);
    pause_ms(50);
    SAY(", engine %s", task_exists(s->engine_id) ? "STAYS" : "gone");
    char command[128];
    snprintf(command, sizeof command, "rm -f core core.%d core.%d", pid, s->engine_id);
    if (system(command))
        SAY("; rm failed");
}

static void until_told(void) {
    ask(EVICT);
    s->hold = true;
    while (s->step != 1)
        pause_ms(1);
    SAY("; data %s after it", is_right(13) ? "right" : "WRONG");
}

static void first_line_of(const char *command, char *line, size_t size) {
    FILE *pipe = popen(command, "r");
    line[0] = 0;
    if (!pipe || !fgets(line, size, pipe))
        snprintf(line, size, "?");
    if (pipe)
        pclose(pipe);
    line[strcspn(line, "\n")] = 0;
}

static void watch_gdb(pid_t pid) {
    while (!s->hold)
        pause_ms(1);
    char command[512], threads[128];
    snprintf(command, sizeof command, "gdb -nx -batch -p %d -ex 'info threads' 2>/dev/null </dev/null | grep -c 'LWP.*engine_kind\\|Thread 0x.*LWP'", pid);
    first_line_of(command, threads, sizeof threads);
    SAY("attaches, %s line(s) of threads", threads);
    s->step = 1;
    int status;
    waitpid(pid, &status, 0);
}

static void watch_ps(pid_t pid) {
    while (!s->hold)
        pause_ms(1);
    char command[256], count[64], threads[64];
    snprintf(command, sizeof command, "ps -e -o pid=,args= | grep -v grep | awk '$1 == %d || $1 == %d' | wc -l", pid,
             s->engine_id);
    first_line_of(command, count, sizeof count);
    snprintf(command, sizeof command, "ps -o nlwp= -p %d", pid);
    first_line_of(command, threads, sizeof threads);
    SAY("%s process(es) of this command line, %d thread(s)", count, atoi(threads));
    s->step = 1;
    int status;
    waitpid(pid, &status, 0);
}

static double cpu_of(int who) {
    struct rusage usage;
    getrusage(who, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static void times_of_program(void) {
    ask(BURN);
    SAY("200 ms of the engine: program's own rusage %.0f ms", cpu_of(RUSAGE_SELF) * 1000);
}

static void watch_times(pid_t pid) {
    int status;
    struct rusage usage;
    wait4(pid, &status, 0, &usage);
    SAY(", its waiter's %.0f ms", (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e3 +
                                      (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e3);
}

static void wait_for_any(void) {
    SAY("waitpid(-1): %s", waitpid(-1, NULL, WNOHANG) ? strerror(errno) : "A CHILD");
    SAY(", with __WALL: %s", waitpid(-1, NULL, WNOHANG | __WALL) ? strerror(errno) : "A CHILD");
}

static void own_thread_count(void) {
    char stat[1024] = "", *at;
    int fd = open("/proc/self/stat", O_RDONLY), threads = 0;
    if (read(fd, stat, sizeof stat - 1) > 0 && (at = strrchr(stat, ')')))
        sscanf(at, ") %*c %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %d", &threads);
    SAY("num_threads %d", threads);
}

// The least RLIMIT_NPROC with which the engine starts, and with which the program can fork beside it. (The
// engine's userfaultfd is refused to this uid, which does not matter here.)
static void limit_of_processes(void) {
    struct rlimit limit = {0, 100};
    if (setresuid(4242, 4242, 4242))
        err(1, "setresuid");
    int error = EAGAIN;
    while (error) {
        limit.rlim_cur++;
        setrlimit(RLIMIT_NPROC, &limit);
        error = engine_start(kind);
    }
    SAY("engine starts at a limit of %d", (int)limit.rlim_cur);
    pid_t pid = -1;
    for (limit.rlim_cur = 1; pid < 0; limit.rlim_cur++) {
        setrlimit(RLIMIT_NPROC, &limit);
        pid = fork();
    }
    if (pid == 0)
        _exit(0);
    SAY(", the program then forks at %d", (int)limit.rlim_cur - 1);
}

// Right after wait(), as a compiler driver that runs and rewrites a binary does.
static const char *self_path;

static void count_busy_text(const char *how) {
    int busy = 0, rounds = 200;
    for (int i = 0; i < rounds; i++) {
        char command[512];
        snprintf(command, sizeof command, "/tmp/engine_kind.%d", getpid());
        if (i == 0) {
            char copy[1100];
            snprintf(copy, sizeof copy, "cp %s %s", self_path, command);
            if (system(copy))
                errx(1, "cp");
        }
        pid_t pid = fork();
        if (pid == 0) {
            execl(command, command, "--only-start", kind == THREAD ? "thread" : "process", how, NULL);
            _exit(99);
        }
        int status;
        waitpid(pid, &status, 0);
        if (status != 0)
            errx(1, "--only-start: %d", status);
        int fd = open(command, O_WRONLY);
        busy += fd < 0 && errno == ETXTBSY;
        close(fd);
        if (i == rounds - 1)
            unlink(command);
        pause_ms(3);
    }
    SAY("its binary is busy after wait() %d times of %d", busy, rounds);
}

static void busy_text(void) { count_busy_text("at once"); }
static void busy_text_with_farewell(void) { count_busy_text("with farewell"); }

// What a hook in libc's _exit can do: the engine goes first. The pidfd is readable once it has let go of the memory.
static void farewell(void) {
    struct pollfd engine = {syscall(SYS_pidfd_open, s->engine_id, 0), POLLIN, 0};
    s->order = LEAVE;
    poll(&engine, 1, 1000);
}

static void stop_of_group(void) {
    setpgid(0, 0);
    until_told();
}

static void watch_stop_of_group(pid_t pid) {
    while (!s->hold)
        pause_ms(1);
    kill(-pid, SIGSTOP);
    pause_ms(50);
    char command[128], state[64];
    snprintf(command, sizeof command, "awk '{print $3}' /proc/%d/stat", s->engine_id);
    first_line_of(command, state, sizeof state);
    SAY("kill -STOP -pgid: engine's state %s", state);
    kill(-pid, SIGCONT);
    s->step = 1;
    waitpid(pid, NULL, 0);
}

static const struct experiment {
    const char *name;
    void (*program)(void);
    void (*watch)(pid_t);
    bool starts_itself;
    bool unhurried; // may take more than 2 s
} experiments[] = {
    {"fault_latency", fault_latency, NULL, false, true},
    {"unshare_user", unshare_user, NULL, false, false},
    {"setns_time", enter_time_namespace, NULL, false, false},
    {"setns_mount", enter_mount_namespace, NULL, false, false},
    {"raw_exit_of_last_thread", exit_of_last_thread, watch_exit_of_last_thread, false, false},
    {"sigstop_with_vfork_child", stop_with_borrower, watch_stop_with_borrower, false, false},
    {"sigstop_to_group", stop_of_group, watch_stop_of_group, false, false},
    {"seccomp_tsync", filter_for_all_threads, watch_status, false, false},
    {"after_setuid", after_setuid, NULL, false, false},
    {"exec", exec_program, watch_exec, false, false},
    {"exec_while_asleep", exec_while_asleep, watch_exec, false, false},
    {"exit_group", exit_group_of_program, watch_exit, false, false},
    {"exit_group_of_512_MiB", exit_of_large_program, watch_exit, false, false},
    {"sigkill_of_program", kill_of_program, watch_kill, false, false},
    {"sigkill_of_engine", touch_after_hold, watch_engine_killed, false, false},
    {"sigkill_of_engine_held", touch_after_hold, watch_engine_killed_but_held, false, false},
    {"engine_crashes", engine_crash, watch_status, false, false},
    {"core_dump", core_dump, watch_core_dump, false, false},
    {"gdb", until_told, watch_gdb, false, false},
    {"ps", until_told, watch_ps, false, false},
    {"rusage", times_of_program, watch_times, false, false},
    {"wait_for_any_child", wait_for_any, NULL, false, false},
    {"proc_self_stat", own_thread_count, NULL, false, false},
    {"nproc", limit_of_processes, NULL, true, false},
    {"text_busy", busy_text, NULL, true, true},
    {"text_busy_with_farewell", busy_text_with_farewell, NULL, true, true},
};

static void perform(const struct experiment *e, enum kind which) {
    memset(s, 0, sizeof *s);
    kind = which;
    pid_t pid = fork();
    if (pid == 0) {
        if (!e->starts_itself && (engine_start(which) || s->error)) {
            SAY("the engine did not start: %s", strerror(-s->error));
            _exit(98);
        }
        e->program();
        _exit(0);
    }
    void (*watch)(pid_t) = e->watch ?: watch_status;
    if (e->unhurried) {
        int status;
        waitpid(pid, &status, 0);
    } else {
        watch(pid);
    }
    kill(pid, SIGKILL);
    // The driver is the subreaper: engines that lost their parent end here.
    pause_ms(20);
    if (which == PROCESS && s->engine_id && exists(s->engine_id) && waitpid(s->engine_id, NULL, WNOHANG) == 0)
        kill(s->engine_id, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0) {}
    printf("%-26s %-8s %s\n", e->name, which == THREAD ? "thread" : "process", s->said);
    fflush(stdout);
}

int main(int argc, char **argv) {
    s = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (argc == 4 && strcmp(argv[1], "--only-start") == 0) {
        int error = engine_start(strcmp(argv[2], "thread") ? PROCESS : THREAD);
        if (!error)
            ask(EVICT);
        if (!error && kind == PROCESS && strcmp(argv[3], "with farewell") == 0)
            farewell();
        return error;
    }
    self_path = realpath("/proc/self/exe", NULL);
    if (chdir("/tmp"))
        err(1, "/tmp");
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    for (size_t i = 0; i < sizeof experiments / sizeof *experiments; i++) {
        bool wanted = argc == 1;
        for (int a = 1; a < argc; a++)
            wanted |= strcmp(argv[a], experiments[i].name) == 0;
        for (int which = THREAD; wanted && which <= PROCESS; which++)
            perform(&experiments[i], which);
    }
    return 0;
}
