// The workload of `make bench`: an ordinary program with an array that is larger than the memory it is
// given. It knows nothing of the memory system below it; what it read is hashed, and the hashes are the
// same for the same size, seed, data file and number of accesses, whatever that system is.
//
// Work, not time, is fixed (--accesses): otherwise the hashes could not be compared.
//
// Output: lines of JSON. {"begin": PHASE} before and {"phase": PHASE, ...} after each phase, then
// {"done": true, "hash": ...}.

#include <err.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "latency.h"
#include "pages.h"

// One page in WRITE_EVERY is also written in the random phases.
enum { WRITE_EVERY = 4 };

struct run {
    struct pages pages;
    size_t accesses; // of each phase with random access
    uint64_t hash;   // of everything read so far
    struct latency latency;
};

static inline void absorb(uint64_t *hash, uint64_t word) { *hash = (*hash ^ word) * 0x9e3779b97f4a7c15u + 1; }

typedef uint64_t lanes __attribute__((vector_size(32)));

// Every word of a page, and its place (Fletcher's two sums in four lanes).
static inline uint64_t page_sum(const unsigned char *page) {
    const lanes *words = (const lanes *)page;
    lanes a = {0}, b = {0};
    for (size_t i = 0; i < PAGE / sizeof(lanes); i++) {
        a += words[i];
        b += a;
    }
    uint64_t sum = 0;
    for (int i = 0; i < 4; i++) {
        absorb(&sum, a[i]);
        absorb(&sum, b[i]);
    }
    return sum;
}

// ---- phases; each returns the number of bytes that the program read or wrote ----

static size_t write_all(struct run *r) {
    uint64_t before = ticks_now();
    for (size_t page = 0; page < r->pages.count; page++) {
        fill_page(&r->pages, page);
        uint64_t after = ticks_now();
        latency_record(&r->latency, after - before);
        before = after;
    }
    return r->pages.count * PAGE;
}

static size_t read_all(struct run *r) {
    uint64_t before = ticks_now();
    for (size_t page = 0; page < r->pages.count; page++) {
        absorb(&r->hash, page_sum(page_at(&r->pages, page)));
        uint64_t after = ticks_now();
        latency_record(&r->latency, after - before);
        before = after;
    }
    return r->pages.count * PAGE;
}

// Reads a page whole and, one time in four, writes its `unique` word: the word was random before and is
// random after, so a phase does not change how well the pages compress (but for same-filled ones).
static inline void touch(struct run *r, size_t page, uint64_t word) {
    uint64_t before = ticks_now();
    absorb(&r->hash, page_sum(page_at(&r->pages, page)));
    if (word % WRITE_EVERY == 0)
        stamp_at(&r->pages, page)->unique = r->hash;
    latency_record(&r->latency, ticks_now() - before);
}

static size_t random_pages(struct run *r) {
    for (size_t i = 0; i < r->accesses; i++) {
        uint64_t word = mix(r->pages.seed ^ 5, i);
        touch(r, below(word, r->pages.count), word);
    }
    return r->accesses * PAGE;
}

// Ranks by Gray et al., "Quickly Generating Billion-Record Synthetic Databases" (SIGMOD 1994), as in YCSB,
// scattered over the array by a random permutation.
static size_t zipf_pages(struct run *r) {
    const double theta = 0.99, n = r->pages.count;
    double zeta = 0;
    for (size_t i = 1; i <= r->pages.count; i++)
        zeta += pow(i, -theta);
    double alpha = 1 / (1 - theta), zeta2 = 1 + pow(0.5, theta);
    double eta = (1 - pow(2 / n, 1 - theta)) / (1 - zeta2 / zeta);
    for (size_t i = 0; i < r->accesses; i++) {
        uint64_t word = mix(r->pages.seed ^ 6, i);
        double u = (word >> 11) * 0x1p-53, uz = u * zeta;
        size_t rank = uz < 1 ? 0 : uz < zeta2 ? 1 : (size_t)(n * pow(eta * u - eta + 1, alpha));
        touch(r, r->pages.order[rank < r->pages.count ? rank : r->pages.count - 1], word);
    }
    return r->accesses * PAGE;
}

static size_t chase(struct run *r) {
    size_t page = r->pages.order[0];
    while (!is_stamped(&r->pages, page))
        page = (page + RUN_PAGES) % r->pages.count;
    uint64_t before = ticks_now();
    for (size_t i = 0; i < r->accesses; i++) {
        const struct stamp *stamp = stamp_at(&r->pages, page);
        page = stamp->next;
        absorb(&r->hash, stamp->unique + page);
        uint64_t after = ticks_now();
        latency_record(&r->latency, after - before);
        before = after;
    }
    return r->accesses * sizeof(struct stamp);
}

static const struct phase {
    const char *name;      // on the command line
    const char *passes[2]; // in the report
    size_t (*pass)(struct run *);
} phases[] = {
    {"write", {"write"}, write_all},          {"read", {"read", "reread"}, read_all}, {"random", {"random"}, random_pages},
    {"zipf", {"zipf"}, zipf_pages},           {"chase", {"chase"}, chase},
};
enum { PHASES = sizeof phases / sizeof *phases };

// ---- timing and the report ----

static double cpu_seconds(struct timeval t) { return t.tv_sec + t.tv_usec * 1e-6; }

static void run_pass(struct run *r, const char *name, size_t (*pass)(struct run *)) {
    struct rusage before, after;
    printf("{\"begin\": \"%s\"}\n", name);
    fflush(stdout);
    memset(&r->latency, 0, sizeof r->latency);
    getrusage(RUSAGE_SELF, &before);
    double start = seconds_now();
    uint64_t start_ticks = ticks_now();
    size_t bytes = pass(r);
    double ticks = ticks_now() - start_ticks, seconds = seconds_now() - start, ns = seconds * 1e9 / ticks;
    getrusage(RUSAGE_SELF, &after);
    printf("{\"phase\": \"%s\", \"bytes\": %zu, \"accesses\": %zu, \"seconds\": %.6f, \"mb_per_s\": %.1f, "
           "\"accesses_per_s\": %.0f, \"p50_ns\": %.0f, \"p99_ns\": %.0f, \"max_ns\": %.0f, \"user_s\": %.3f, "
           "\"sys_s\": %.3f, \"minor_faults\": %ld, \"major_faults\": %ld, \"hash\": \"%016lx\"}\n",
           name, bytes, (size_t)r->latency.count, seconds, bytes / seconds / 1e6, r->latency.count / seconds,
           latency_quantile(&r->latency, 0.5) * ns, latency_quantile(&r->latency, 0.99) * ns, r->latency.max * ns,
           cpu_seconds(after.ru_utime) - cpu_seconds(before.ru_utime),
           cpu_seconds(after.ru_stime) - cpu_seconds(before.ru_stime), after.ru_minflt - before.ru_minflt,
           after.ru_majflt - before.ru_majflt, r->hash);
    fflush(stdout);
}

// ---- the command line ----

static void usage(void) {
    errx(2, "usage: workload --data FILE [--size 1536M] [--phases write,read,random,zipf,chase] [--seed N] "
            "[--accesses N]");
}

static size_t number(const char *text, const char *option) {
    char *end;
    double value = strtod(text, &end);
    const char *units = "KMGT", *unit = *end ? strchr(units, *end) : NULL;
    if (unit) {
        value *= 1ull << 10 * (unit - units + 1);
        end++;
    }
    if (end == text || *end || !(value >= 1 && value < 1e18))
        errx(2, "%s: not a number with K, M, G or T: %s", option, text);
    return value;
}

static const struct phase *phase_named(const char *name) {
    for (int i = 0; i < PHASES; i++)
        if (strcmp(phases[i].name, name) == 0)
            return &phases[i];
    errx(2, "--phases: no phase is called %s", name);
}

int main(int argc, char **argv) {
    static struct run r;
    const char *data = NULL;
    char all[] = "write,read,random,zipf,chase", *list = all;
    size_t size = 1536ul << 20, seed = 1, accesses = 0;
    for (int i = 1; i < argc; i += 2) {
        const char *option = argv[i];
        char *value = argv[i + 1];
        if (!value)
            usage();
        if (!strcmp(option, "--data"))
            data = value;
        else if (!strcmp(option, "--size"))
            size = number(value, option);
        else if (!strcmp(option, "--phases"))
            list = value;
        else if (!strcmp(option, "--seed"))
            seed = number(value, option);
        else if (!strcmp(option, "--accesses"))
            accesses = number(value, option);
        else
            usage();
    }
    if (!data)
        usage();
    if (strncmp(list, "write", 5) != 0)
        errx(2, "--phases: the first is write, which fills the array");
    pages_init(&r.pages, data, size, seed);
    r.accesses = accesses ? accesses : r.pages.count / 2;

    for (char *name = strtok(list, ","); name; name = strtok(NULL, ",")) {
        const struct phase *phase = phase_named(name);
        for (int pass = 0; pass < 2 && phase->passes[pass]; pass++)
            run_pass(&r, phase->passes[pass], phase->pass);
    }

    printf("{\"done\": true, \"size\": %zu, \"accesses\": %zu, \"seed\": %zu, \"shares\": {", r.pages.count * PAGE,
           r.accesses, seed);
    for (int kind = 0; kind < KINDS; kind++)
        printf("%s\"%s\": %.4f", kind ? ", " : "", kind_names[kind],
               (double)r.pages.runs_of_kind[kind] * RUN_PAGES / r.pages.count);
    printf("}, \"hash\": \"%016lx\"}\n", r.hash);
    return 0;
}
