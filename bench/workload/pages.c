#include "pages.h"

#include <err.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const kind_names[KINDS] = {"heap", "text", "incompressible", "zero", "same_filled"};

enum { DECK = 20 };
static const unsigned char deck_shares[KINDS] = {9, 7, 2, 1, 1};

// The header of the data file; the sections follow at the next page, in the order of `enum kind`.
struct header {
    char magic[16];
    uint64_t section_runs[3];
};
static const char magic[16] = "zfolio-bench-01";

static void *map_anonymous(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        err(1, "no room for %zu bytes", bytes);
    return at;
}

static void map_data(struct pages *p, const char *file) {
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0)
        err(1, "%s (made by bench/make-data)", file);
    // Shared and populated: pages of the page cache, which belong to no limit on anonymous memory, and no
    // faults of theirs in the measured phases.
    const unsigned char *at = mmap(NULL, st.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (at == MAP_FAILED)
        err(1, "mmap of %s", file);
    close(fd);
    const struct header *header = (const void *)at;
    if (st.st_size < PAGE || memcmp(header->magic, magic, sizeof magic) != 0)
        errx(1, "%s: not a data file of bench/make-data", file);
    size_t offset = PAGE;
    for (int s = HEAP; s <= RAW; s++) {
        p->sections[s] = at + offset;
        p->section_runs[s] = header->section_runs[s];
        offset += header->section_runs[s] * RUN;
        if (header->section_runs[s] == 0 || offset > (size_t)st.st_size)
            errx(1, "%s: the %s section is empty or cut off", file, kind_names[s]);
    }
}

// Deals the kinds run by run from shuffled decks, so that the shares are exact, and walks each section in
// its own order, so that a repetition is as far away as the section is long.
static void deal_runs(struct pages *p) {
    size_t runs = p->count / RUN_PAGES, cursor[3] = {0};
    unsigned char deck[DECK];
    p->kinds = map_anonymous(runs);
    p->source_runs = map_anonymous(runs * sizeof *p->source_runs);
    for (size_t run = 0; run < runs; run++) {
        size_t at = run % DECK;
        if (at == 0) {
            for (int kind = 0, i = 0; kind < KINDS; kind++)
                for (int n = 0; n < deck_shares[kind]; n++)
                    deck[i++] = kind;
        }
        size_t other = at + below(mix(p->seed ^ 1, run), DECK - at);
        unsigned char kind = deck[other];
        deck[other] = deck[at];
        p->kinds[run] = kind;
        p->runs_of_kind[kind]++;
        if (kind <= RAW)
            p->source_runs[run] = cursor[kind]++ % p->section_runs[kind];
    }
}

// A random order of all pages, and the cycle through the stamped ones that follows from it.
static void shuffle_pages(struct pages *p) {
    p->order = map_anonymous(p->count * sizeof *p->order);
    p->next = map_anonymous(p->count * sizeof *p->next);
    for (size_t i = 0; i < p->count; i++) {
        size_t other = below(mix(p->seed ^ 2, i), i + 1);
        p->order[i] = p->order[other];
        p->order[other] = i;
    }
    size_t first = p->count, last = p->count;
    for (size_t i = 0; i < p->count; i++) {
        size_t page = p->order[i];
        if (!is_stamped(p, page))
            continue;
        if (first == p->count)
            first = page;
        else
            p->next[last] = page;
        last = page;
    }
    p->next[last] = first;
}

void pages_init(struct pages *p, const char *data_file, size_t size, uint64_t seed) {
    *p = (struct pages){.count = size / RUN * RUN_PAGES, .seed = seed};
    if (p->count < DECK * RUN_PAGES)
        errx(2, "--size: at least %d KiB", DECK * RUN / 1024);
    if (p->count > UINT32_MAX)
        errx(2, "--size: less than 16 TiB");
    map_data(p, data_file);
    deal_runs(p);
    shuffle_pages(p);
    p->base = map_anonymous(p->count * PAGE);
}

void fill_page(const struct pages *p, size_t page) {
    size_t run = page / RUN_PAGES;
    unsigned char *to = page_at(p, page), kind = p->kinds[run];
    if (kind == ZERO) {
        memset(to, 0, PAGE);
    } else if (kind == SAME) {
        uint64_t *words = (uint64_t *)to, word = mix(p->seed ^ 3, page);
        for (size_t i = 0; i < PAGE / sizeof word; i++)
            words[i] = word;
    } else {
        memcpy(to, p->sections[kind] + p->source_runs[run] * (size_t)RUN + page % RUN_PAGES * PAGE, PAGE);
        *stamp_at(p, page) = (struct stamp){mix(p->seed ^ 4, page), p->next[page]};
    }
}
