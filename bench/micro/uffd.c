// What userfaultfd's operations cost on this machine, in microseconds (medians):
//
//   - moves and copies made by the only thread, and again while a second thread of the process keeps
//     another CPU busy (each move then pays for a TLB shootdown there)
//   - a fault and back through an engine process (CLONE_VM) that restores the page by a move, asleep in
//     poll or spinning, on the faulting thread's CPU or another one, idle or busy
//
//   uffd [SECONDS]
//
// Each row is measured for so long (0.5 s): a row shorter than a time slice would say how busy the machine is with
// others.

#include "engine.h"

#include <poll.h>
#include <sys/prctl.h>

enum { HUGE = 2 << 20, FAULT_PAGES = 256, MOST_SAMPLES = 1000000 };

static double seconds = 0.5;
static double samples[MOST_SAMPLES];
static int count;

// A row's loop: for (double since = begin(); !is_over(since);)
static double begin(void) {
    count = 0;
    return now_s();
}

static bool is_over(double since) { return count == MOST_SAMPLES || (count > 0 && now_s() > since + seconds); }

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double q) {
    qsort(samples, count, sizeof *samples, compare);
    return samples[(int)(count * q)] * 1e6;
}

// ---- operations of the only thread ----

static int uffd;

static char *aligned_pages(bool huge) {
    char *at = map_pages(2 * HUGE / PAGE);
    at = (char *)(((uintptr_t)at + HUGE - 1) & -(uintptr_t)HUGE);
    madvise(at, HUGE, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return at;
}

static void manage(char *at) {
    struct uffdio_register range = {{(uint64_t)at, HUGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
    if (ioctl(uffd, UFFDIO_REGISTER, &range))
        err(1, "UFFDIO_REGISTER");
}

static void move(char *to, char *from, size_t bytes) {
    struct uffdio_move move = {(uint64_t)to, (uint64_t)from, bytes, 0, 0};
    if (ioctl(uffd, UFFDIO_MOVE, &move))
        err(1, "UFFDIO_MOVE of %zu bytes (%lld done)", bytes, (long long)move.move);
}

// Back and forth: two moves for each sample.
static double cost_of_move(size_t bytes, bool huge) {
    char *home = aligned_pages(huge), *stage = aligned_pages(huge);
    memset(home, 1, HUGE);
    manage(home);
    manage(stage);
    for (double since = begin(); !is_over(since);) {
        double start = now_s();
        move(stage, home, bytes);
        move(home, stage, bytes);
        samples[count++] = (now_s() - start) / 2;
    }
    return quantile(0.5);
}

static double cost_of_copy(size_t bytes) {
    char *home = aligned_pages(false), *source = aligned_pages(false);
    memset(source, 1, HUGE);
    manage(home);
    for (double since = begin(); !is_over(since);) {
        for (size_t at = 0; at < HUGE && count < MOST_SAMPLES; at += bytes) {
            struct uffdio_copy copy = {(uint64_t)home + at, (uint64_t)source + at, bytes, 0, 0};
            double start = now_s();
            if (ioctl(uffd, UFFDIO_COPY, &copy))
                err(1, "UFFDIO_COPY");
            samples[count++] = now_s() - start;
        }
        madvise(home, HUGE, MADV_DONTNEED);
    }
    return quantile(0.5);
}

static void operations(double costs[6]) {
    costs[0] = cost_of_move(PAGE, false);
    costs[1] = cost_of_move(65536, false);
    costs[2] = cost_of_move(HUGE, false);
    costs[3] = cost_of_move(HUGE, true);
    costs[4] = cost_of_copy(PAGE);
    costs[5] = cost_of_copy(65536);
}

// ---- the fault and back ----

static char *data, *stage;
static volatile int engine_ready, evict, leave, spin, engine_cpu;

static int engine(void) {
    cpu_set_t set;
    memset(&set, 0, sizeof set);
    ((unsigned long *)&set)[0] = 1ul << engine_cpu;
    RAW(SYS_sched_setaffinity, 0, sizeof set, &set);
    int fd = RAW(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct uffdio_api api = {UFFD_API, UFFD_FEATURE_MOVE, 0};
    RAW(SYS_ioctl, fd, UFFDIO_API, &api);
    for (int i = 0; i < 2; i++) {
        struct uffdio_register range = {{(uint64_t)(i ? stage : data), FAULT_PAGES * PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
        RAW(SYS_ioctl, fd, UFFDIO_REGISTER, &range);
    }
    engine_ready = 1;
    while (!leave) {
        struct pollfd poll = {fd, POLLIN, 0};
        if (!spin)
            RAW(SYS_poll, &poll, 1, 1);
        struct uffd_msg message;
        while (RAW(SYS_read, fd, &message, sizeof message) == sizeof message) {
            long offset = (message.arg.pagefault.address & ~(PAGE - 1ull)) - (uint64_t)data;
            struct uffdio_move in = {(uint64_t)data + offset, (uint64_t)stage + offset, PAGE, 0, 0};
            RAW(SYS_ioctl, fd, UFFDIO_MOVE, &in);
        }
        if (evict) {
            struct uffdio_move out = {(uint64_t)stage, (uint64_t)data, FAULT_PAGES * PAGE, 0, 0};
            RAW(SYS_ioctl, fd, UFFDIO_MOVE, &out);
            evict = 0;
        }
    }
    RAW(SYS_close, fd);
    return 0;
}

struct place {
    const char *name;
    int cpu;
    bool busy;
};

static volatile int busy_stop;
static int busy_cpu;

static int keep_busy(void) {
    cpu_set_t set;
    memset(&set, 0, sizeof set);
    ((unsigned long *)&set)[0] = 1ul << busy_cpu;
    RAW(SYS_sched_setaffinity, 0, sizeof set, &set);
    while (!busy_stop) {}
    return 0;
}

// A second user of this memory, as a thread is one, that does nothing but run.
static long busy_begin(int cpu) {
    busy_stop = 0;
    busy_cpu = cpu;
    long id = raw_clone(CLONE_VM | CLONE_FILES | SIGCHLD, (char *)map_pages(8) + 8 * PAGE, keep_busy, NULL);
    pause_ms(20);
    return id;
}

static void busy_end(long id) {
    busy_stop = 1;
    waitpid(id, NULL, 0);
}

static void fault_and_back(const struct place *place, bool spinning) {
    data = map_pages(FAULT_PAGES);
    stage = map_pages(FAULT_PAGES);
    memset(data, 1, FAULT_PAGES * PAGE);
    engine_ready = evict = leave = 0;
    spin = spinning;
    engine_cpu = place->cpu;
    long busy = place->busy ? busy_begin(1) : 0;
    long id = raw_clone(CLONE_VM | SIGCHLD, (char *)map_pages(8) + 8 * PAGE, engine, NULL);
    while (!engine_ready)
        pause_ms(1);
    for (double since = begin(); !is_over(since);) {
        evict = 1;
        while (evict)
            pause_ms(0.2);
        for (int page = 0; page < FAULT_PAGES && !is_over(since); page++) {
            // Between faults the program works for a while, so that a sleeping engine is asleep again.
            for (double end = now_s() + 30e-6; now_s() < end;) {}
            double start = now_s();
            *(volatile char *)(data + page * PAGE);
            samples[count++] = now_s() - start;
        }
    }
    leave = 1;
    waitpid(id, NULL, 0);
    if (busy)
        busy_end(busy);
    double p50 = quantile(0.5), p99 = quantile(0.99);
    printf("  %-9s %-36s %8.1f %8.1f\n", spinning ? "spinning" : "in poll", place->name, p50, p99);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc > 1)
        seconds = atof(argv[1]);
    if (!(seconds > 0))
        errx(2, "usage: uffd [SECONDS]");
    uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {UFFD_API, UFFD_FEATURE_MOVE, 0};
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api))
        err(1, "userfaultfd with UFFDIO_MOVE");
    pin_to(0);
    bool two = sysconf(_SC_NPROCESSORS_ONLN) > 1;

    static const char *const names[6] = {"move 4 KiB",          "move 64 KiB in base pages", "move 2 MiB in base pages",
                                         "move a 2 MiB huge page", "copy 4 KiB",             "copy 64 KiB"};
    double alone[6], beside[6];
    operations(alone);
    if (two) {
        long busy = busy_begin(1);
        operations(beside);
        busy_end(busy);
    }
    printf("%-28s %10s %22s\n", "operation, us (p50)", "alone", "second CPU in memory");
    for (int i = 0; i < 6; i++) {
        printf("  %-26s %10.2f", names[i], alone[i]);
        two ? printf(" %22.2f\n", beside[i]) : printf(" %22s\n", "-");
    }

    printf("\n  %-9s %-36s %8s %8s\n", "engine", "fault and back, us", "p50", "p99");
    static const struct place places[] = {
        {"on the program's CPU", 0, false},
        {"on the other CPU, idle", 1, false},
        {"on the other CPU, beside a busy thread", 1, true},
        {"on the program's CPU, other CPU busy", 0, true},
    };
    for (int i = 0; i < (two ? 4 : 1); i++) {
        fault_and_back(&places[i], false);
        if (places[i].cpu == 1)
            fault_and_back(&places[i], true);
    }
    return 0;
}
