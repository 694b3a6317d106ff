// A cheap clock and a log-linear histogram of its ticks: 16 buckets for each power of two, so a quantile
// is right to 6 %.
#pragma once
#include <stdint.h>
#include <string.h>
#include <time.h>

static inline double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

#ifdef __x86_64__
// The fence keeps the tick behind the loads that it measures.
static inline uint64_t ticks_now(void) {
    __builtin_ia32_lfence();
    return __builtin_ia32_rdtsc();
}
#else
static inline uint64_t ticks_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
#endif

enum { SUB_BITS = 4, SUB = 1 << SUB_BITS, BUCKETS = (64 - SUB_BITS + 1) * SUB };

struct latency {
    uint64_t count, max;
    uint32_t buckets[BUCKETS];
};

static inline void latency_record(struct latency *l, uint64_t ticks) {
    uint64_t bucket = ticks;
    if (ticks >= SUB) {
        int shift = 63 - __builtin_clzll(ticks) - SUB_BITS;
        bucket = ((uint64_t)shift << SUB_BITS) + (ticks >> shift);
    }
    l->buckets[bucket]++;
    l->count++;
    if (ticks > l->max)
        l->max = ticks;
}

// The value, in ticks, that a share q of all records does not exceed.
static inline uint64_t latency_quantile(const struct latency *l, double q) {
    uint64_t seen = 0, rank = (uint64_t)(l->count * q);
    for (unsigned b = 0; b < BUCKETS; b++) {
        seen += l->buckets[b];
        if (seen > rank) {
            uint64_t end = b < SUB ? b : ((uint64_t)(SUB + b % SUB + 1) << (b / SUB - 1)) - 1;
            return end < l->max ? end : l->max;
        }
    }
    return l->max;
}
