// A program with an engine inside: the engine, its start, and what the program asks of it.

#include "engine_kind.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/kcmp.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/prctl.h>

struct shared *s;
char *data;
enum kind kind;

static char *stage;
static volatile int tid_word = 1; // the main thread's clear_child_tid, as set_tid_address(2) leaves it
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
        // What an engine needs once its descriptors are open. Without SECCOMP_FILTER_FLAG_TSYNC it binds the caller
        // alone.
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

int engine_start(enum kind which) {
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

long ask(enum order order) {
    s->order = order;
    while (s->order == (int)order)
        pause_ms(0.1);
    return s->answer;
}

bool is_right(int page) { return *(volatile char *)(data + page * PAGE) == page + 1; }
