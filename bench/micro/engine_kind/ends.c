// Experiments on ends: exec, exit and kill of the program, kill and crash of the engine, and what is left when wait()
// has returned.

#include "engine_kind.h"

#include <poll.h>
#include <sys/resource.h>

void exit_of_last_thread(void) {
    ask(EVICT);
    s->hold = true;
    syscall(SYS_exit, 7);
}

void watch_exit_of_last_thread(pid_t pid) {
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

static void exec_evicted(void) {
    s->hold = true;
    s->began_s = now_s();
    execlp("sleep", "sleep", "0.5", NULL);
}

void exec_program(void) {
    ask(EVICT);
    exec_evicted();
}

void exec_while_asleep(void) {
    ask(EVICT);
    s->order = SLEEP;
    while (s->order == SLEEP)
        pause_ms(1);
    exec_evicted();
}

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

void watch_exec(pid_t pid) {
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

void exit_group_of_program(void) {
    ask(EVICT);
    s->hold = true;
    _exit(5);
}

// The same with memory that takes a while to free.
void exit_of_large_program(void) {
    char *ballast = map_pages(1 << 17);
    memset(ballast, 1, PAGE << 17);
    exit_group_of_program();
}

void kill_of_program(void) {
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

void watch_exit(pid_t pid) { watch_end(pid, false); }
void watch_kill(pid_t pid) { watch_end(pid, true); }

// Killed on its own: by pid where it has one.
void touch_after_hold(void) {
    ask(EVICT);
    s->hold = true;
    while (s->step != 1)
        pause_ms(1);
    char seen = *(volatile char *)(data + 11 * PAGE);
    SAY(seen == 12 ? "; data right" : seen == 0 ? "; program READS ZEROS" : "; data WRONG");
}

void watch_engine_killed(pid_t pid) {
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
void watch_engine_killed_but_held(pid_t pid) {
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

void engine_crash(void) {
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

void core_dump(void) {
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_CORE, &all);
    ask(EVICT);
    s->began_s = now_s();
    abort();
}

void watch_core_dump(pid_t pid) {
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

// Right after wait(), as a compiler driver that runs and rewrites a binary does.
const char *self_path;

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

void busy_text(void) { count_busy_text("at once"); }
void busy_text_with_farewell(void) { count_busy_text("with farewell"); }

// What a hook in libc's _exit can do: the engine goes first. The pidfd is readable once it has let go of the memory.
void farewell(void) {
    struct pollfd engine = {syscall(SYS_pidfd_open, s->engine_id, 0), POLLIN, 0};
    s->order = LEAVE;
    poll(&engine, 1, 1000);
}
