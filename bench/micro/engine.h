// A minimal engine inside a foreign process, as a thread and as a process, for the experiments of bench/micro:
// it serves the faults on one region from a stage (UFFDIO_MOVE out, UFFDIO_MOVE back), and nothing more.
//
//   thread   clone(CLONE_VM | CLONE_THREAD | ...) without a TLS or a place in libc's lists
//   process  clone(CLONE_VM) twice; the first clone exits, so that the engine is no child of the program
//
// Either has a file table of its own and blocks every signal, and makes raw system calls alone.
#pragma once
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef UFFDIO_MOVE // Linux 6.8
struct uffdio_move {
    uint64_t dst, src, len, mode;
    int64_t move;
};
#define UFFDIO_MOVE _IOWR(UFFDIO, 0x05, struct uffdio_move)
#define UFFD_FEATURE_MOVE (1 << 16)
#endif

enum { PAGE = 4096 };

static inline long raw_syscall(long nr, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#define RAW(nr, ...) RAW_(nr, ##__VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define RAW_(nr, a, b, c, d, e, f, ...) raw_syscall(nr, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

// clone with a function to run on a stack of its own; the function's result is the exit status.
static inline long raw_clone(long flags, void *stack_top, int (*run)(void), int *child_tid) {
    void **top = stack_top;
    *--top = (void *)run;
    long result;
    register long r10 __asm__("r10") = (long)child_tid, r8 __asm__("r8") = 0;
    __asm__ volatile("syscall\n\t"
                     "test %%eax, %%eax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "pop %%rax\n\t"
                     "call *%%rax\n\t"
                     "mov %%eax, %%edi\n\t"
                     "mov %[nr_exit], %%eax\n\t"
                     "syscall\n"
                     "1:"
                     : "=a"(result)
                     : "a"((long)SYS_clone), "D"(flags), "S"(top), "d"(0l), "r"(r10), "r"(r8), [nr_exit] "i"(SYS_exit)
                     : "rcx", "r11", "memory");
    return result;
}

static inline double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static inline void pause_ms(double ms) {
    struct timespec t = {ms / 1000, (long)(ms * 1e6) % 1000000000};
    nanosleep(&t, NULL);
}

static inline void *map_pages(size_t pages) {
    void *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        err(1, "mmap");
    return at;
}

static inline void pin_to(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}
