// Thread or process? What a program and its surroundings can see of an engine that is an extra thread, and of one that
// is a CLONE_VM process of its own. Prints one line for each experiment; docs/thread-or-process.md is made from it.
//
//   engine_kind [EXPERIMENT...]
//
// The experiments on ends are in ends.c.

#include "engine_kind.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>

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
    snprintf(command, sizeof command,
             "gdb -nx -batch -p %d -ex 'info threads' 2>/dev/null </dev/null | "
             "grep -c 'LWP.*engine_kind\\|Thread 0x.*LWP'",
             pid);
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

// ---- the driver ----

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

static bool exists(pid_t id) { return kill(id, 0) == 0 || errno != ESRCH; }

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
