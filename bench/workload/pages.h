// What the pages of the workload hold, and how each is told from every other.
//
// The data file (bench/make-data) is a header page and three sections of 64 KiB runs; `fill_page` lays
// copies of them out so that neighbours in address are neighbours in the source, as in a real heap:
//
//   every 20 runs, shuffled:  9 heap | 7 text | 2 incompressible | 1 zero | 1 same-filled
//
// Every copy of a page carries a stamp of 16 bytes: no two pages are equal, so deduplication gains
// nothing. Zero pages are left as they are; a same-filled page repeats a word of its own.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PAGE = 4096, RUN = 65536, RUN_PAGES = RUN / PAGE };
enum kind { HEAP, TEXT, RAW, ZERO, SAME, KINDS };

extern const char *const kind_names[KINDS];

struct stamp {
    uint64_t unique; // random; the word that the phases with writes overwrite
    uint64_t next;   // the page after this one in the pointer chase
};

struct pages {
    unsigned char *base; // the array under test
    size_t count;        // pages in it, a multiple of RUN_PAGES
    uint64_t seed;
    unsigned char *kinds;  // of each run
    uint32_t *source_runs; // run of the section that each run is a copy of
    uint32_t *order;       // a random permutation of all pages
    uint32_t *next;        // page -> stamped page after it in `order`, a single cycle
    const unsigned char *sections[3];
    size_t section_runs[3];
    size_t runs_of_kind[KINDS];
};

// SplitMix64's finaliser: a random word for each (seed, index), without state.
static inline uint64_t mix(uint64_t seed, uint64_t index) {
    uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// A random number below n, from a random word.
static inline uint64_t below(uint64_t word, uint64_t n) {
    return (uint64_t)(((unsigned __int128)word * n) >> 64);
}

static inline unsigned char *page_at(const struct pages *p, size_t page) { return p->base + page * PAGE; }

// Where the stamp of a page lies: 16-byte aligned, another place in each page.
static inline struct stamp *stamp_at(const struct pages *p, size_t page) {
    return (struct stamp *)(page_at(p, page) + 16 * below(mix(p->seed, page), PAGE / 16));
}

static inline bool is_stamped(const struct pages *p, size_t page) { return p->kinds[page / RUN_PAGES] <= RAW; }

// Maps the data file and the array (untouched), and decides what every page will hold. Ends the program on an error.
void pages_init(struct pages *p, const char *data_file, size_t size, uint64_t seed);

// Writes a page's first content: its first touch.
void fill_page(const struct pages *p, size_t page);
