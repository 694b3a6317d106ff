/*
 * torture: a program that notices if its memory is tampered with.
 *
 * It knows nothing of zfolio. Worker threads do to their memory everything that programs do to memory,
 * and know at every moment what each page must read as:
 *
 *   content.c      what a page holds: a function of its tag, and the way back
 *   region.c       a mapping and its ledger: for each page the tag, or zero, or inaccessible
 *   worker.c       a thread that acts: its random numbers, its last 16 actions, the report of a difference
 *   torture.c      the table of actions, options, supervision
 *
 * The actions, a file for each theme:
 *
 *   writing.c      write, poke, verify, nap
 *   mapping.c      map, munmap, MAP_FIXED, all of mremap
 *   pieces.c       thousands of mappings side by side
 *   advice.c       madvise: DONTNEED, FREE, COLD, PAGEOUT, guards; pins; mprotect
 *   heap.c         malloc and its relatives, brk
 *   transfer.c     read, write and relatives through pipes, sockets, files, O_DIRECT
 *   uring.c        io_uring: plain and fixed buffers, a read that waits
 *   commons.c      memory that several threads use at once
 *   stack.c        recursion, thread-local data
 *   noise.c        threads that are in stdio and malloc all the time
 *   birth.c        threads that start and end, robust mutexes
 *   family.c       fork, vfork, spawn, exec, system, popen
 *   vforked.c      children that live in our memory for a while
 *   signals.c      a signal every millisecond, on two kinds of stack
 *   descriptors.c  close_range, a full table
 *   userfault.c    a userfaultfd of the program's own
 *   plants.c       differences made on purpose, to see them found
 *
 * The ledger is locked in memory and what forks must agree on is shared memory, so neither is the kind
 * of memory that is under test.
 */
#ifndef TORTURE_H
#define TORTURE_H

#include "content.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/types.h>
#include <time.h>

#define SLOTS 16 /* regions of a worker */
#define MAX_THREADS 64
#define HISTORY 16 /* actions that a report shows */
#define REGION_PAGES_MAX (64u << 20 >> 12)

/* ---- regions ------------------------------------------------------------------------------------ */

enum kind {
	PLAIN,    /* private anonymous */
	HUGE,     /* the same, 2 MiB aligned, MADV_HUGEPAGE */
	RESERVED, /* mapped PROT_NONE, made accessible bit by bit, as arenas are */
	LOCKED,   /* mlock */
	SHARED,   /* MAP_SHARED | MAP_ANONYMOUS */
	MEMFD,    /* MAP_SHARED of a memfd */
	WIPED,    /* MADV_WIPEONFORK */
	UNFORKED, /* MADV_DONTFORK */
	EXECUTABLE, /* readable, writable and executable */
	KINDS,
};
#define KIND(k) (1u << (k))
#define KINDS_PRIVATE (KIND(PLAIN) | KIND(HUGE) | KIND(RESERVED) | KIND(WIPED) | KIND(UNFORKED) | \
		       KIND(EXECUTABLE))
#define KINDS_ALL ((1u << KINDS) - 1)
extern const char *const kind_names[KINDS];

enum state {
	ABSENT,  /* not mapped: may belong to anybody by now */
	EMPTY,   /* reads as zero */
	FILLED,  /* reads as its tag's content */
	FREED,   /* MADV_FREE: reads as its tag's content or as zero, until written */
	GUARDED, /* MADV_GUARD_INSTALL: not accessible, then zero */
};

enum protection { READ_WRITE, READ_ONLY, NO_ACCESS };

struct action;

struct cell {
	tag_t tag;
	tag_t before; /* the content before the last change; only for reports */
	uint8_t state;
	uint8_t protection;
	bool unforked; /* MADV_DONTFORK: no child has it */
	const struct action *carried; /* the action by which the kernel carried the content here; null: a thread wrote it */
};

struct region {
	uint8_t *base;
	size_t pages; /* 0: the slot is empty */
	enum kind kind;
	unsigned id;
	unsigned generation; /* the last one given out */
	bool patchwork;      /* the kernel may keep it as several mappings */
	struct cell *cells;
	_Atomic uint32_t *turn; /* in shared memory; odd while its worker may be changing the region */
};

/* ---- workers ------------------------------------------------------------------------------------ */

/* A piece of malloc'ed memory; heap.c. */
#define OBJECTS 64
struct object {
	void *at;
	size_t bytes;
	unsigned generation;
};

/* Thread-local data of every thread; stack.c. */
#define TLS_PAGES 8
extern __thread uint64_t tls_pages[TLS_PAGES][WORDS];
extern __thread uint64_t tls_image[4];

struct worker {
	unsigned index;
	pthread_t thread;
	uint64_t random;
	struct region regions[SLOTS];
	struct region plot; /* touched by this thread's signal handler alone */
	struct object objects[OBJECTS];
	void *alternate; /* the alternate stack */
	timer_t timers[2];
	uint64_t ticks;              /* signals handled */
	tag_t tls[TLS_PAGES];        /* what thread-local data holds */
	const struct action *action; /* under way; null between two */
	_Atomic uint64_t action_began_ms;
	_Atomic uint64_t actions;
	_Atomic uint64_t pages_written;
	_Atomic uint64_t pages_verified;
	char history[HISTORY][160];
	bool child; /* this is a copy of the worker in a forked child */
};

typedef void action_fn(struct worker *w);

struct action {
	const char *name;
	unsigned weight;
	action_fn *fn;
	unsigned flags;
	const char *what;
};

/* Descriptors: the action opens some / counts on nobody else having any. */
#define USES_FDS 1u
#define OWNS_FDS 2u
/* No other action runs meanwhile. */
#define ALONE 4u
/* Touches nothing but its worker's memory: may run in a forked child too. */
#define OWN_MEMORY 8u
/* Not in a vforked child, which has no thread that libc could copy. */
#define MAKES_THREADS 16u

/* What is shared with forked children. */
struct ground {
	_Atomic uint32_t turns[MAX_THREADS][SLOTS + 1]; /* the last is the plot's */
	_Atomic uint64_t skips;
	_Atomic bool reporting;
};

struct options {
	uint64_t seed;
	unsigned threads;
	unsigned seconds;
	unsigned stall_seconds;
	size_t footprint_pages;
	unsigned fork_every; /* actions; 0: only where the dice say so */
	const char *directory;
	const char *program; /* how to exec ourselves */
};

extern struct options options;
extern struct ground *ground;
extern struct worker *workers;
extern const struct action actions[];

uint64_t now_ms(void);
void nap_us(unsigned microseconds);

/* Uniform in [0, below); below > 0. */
uint64_t random_below(struct worker *w, uint64_t below);
bool one_in(struct worker *w, unsigned n);

/* Adds a line to the worker's history: the particulars of the action under way. */
void note(struct worker *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Reports the difference and aborts. `where` is the address that it is about, or null. */
_Noreturn void differs(struct worker *w, const void *where, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Something that this kernel or file system does not have: said once for each `what`. */
void skip(const char *what, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- region.c ----------------------------------------------------------------------------------- */

/* Maps a region into an empty slot; null if the footprint is used up or all slots are taken. */
struct region *region_create(struct worker *w, enum kind kind, size_t pages);
void region_destroy(struct worker *w, struct region *r);

/* A random region of one of the kinds, marked as changing until the action ends; null if none. */
struct region *region_pick(struct worker *w, unsigned kinds);

/* A random run of at most `most` mapped pages; false if the region has none. */
bool region_run(struct worker *w, const struct region *r, size_t most, size_t *first, size_t *pages);
/* The next run of mapped pages at or after *first. */
bool region_next_run(const struct region *r, size_t *first, size_t *pages);

void region_write(struct worker *w, struct region *r, size_t first, size_t pages);
void region_poke(struct worker *w, struct region *r, size_t page);
void region_verify(struct worker *w, struct region *r, size_t first, size_t pages);
/* The same of what was moved to `at`. */
void region_verify_at(struct worker *w, struct region *r, size_t first, size_t pages, const void *at);
/* All regions; not the plot, which changes at any moment. */
void region_verify_all(struct worker *w);
/* Makes mapped pages of the range readable and writable, and guards go away. */
void region_open(struct worker *w, struct region *r, size_t first, size_t pages);
void region_protect(struct worker *w, struct region *r, size_t first, size_t pages,
		    enum protection protection);

/* Ledger changes; they touch no memory. */
void region_emptied(struct region *r, size_t first, size_t pages);
tag_t region_next_tag(struct region *r, size_t page);
void region_holds(struct region *r, size_t page, tag_t tag);
/* Takes the mapped range out of the region, [0, pages) of it first; for a tail or a head only. */
void region_drop_head(struct region *r, size_t pages);
bool region_has_holes(const struct region *r);
unsigned region_id(void);

/* What mmap and mprotect are told for a protection of the region's. */
int region_flags(const struct region *r, enum protection protection);

void *page_at(const struct region *r, size_t page);
/* Reads through a system call: where it is refused there is no signal, only false. */
bool peek(const void *address, void *to, size_t bytes);
/* True if a system call can read a byte there. */
bool readable(const void *address);
void *map_pages(size_t pages);
void turns_end(struct worker *w);

bool budget_take(size_t pages);
void budget_give(size_t pages);

/* Memory of no region, for buffers: content by tag, verified bytewise. */
void bytes_verify(struct worker *w, const void *from, size_t bytes, tag_t tag, const char *what);

/* ---- of the themes ------------------------------------------------------------------------------ */

void commons_begin(void *(*ledger_pages)(size_t bytes));
void heap_verify_all(struct worker *w);
void signals_install(void);
void signals_begin(struct worker *w);
void signals_end(struct worker *w);
void tls_verify_new(struct worker *w);
/* A child that verifies everything and exits. */
void family_fork(struct worker *w);
/* Threads that hold the locks of stdio and malloc as often as not; noise.c. */
void noise_begin(void);
void noise_in_child(struct worker *w);
/* What `torture --child` does. */
int family_child_main(int argc, char **argv);
/* One random action that touches nothing but this worker's memory: within another, or in a child. */
void act_on_own_memory(struct worker *w);
/* The same for a child of vfork, or beside one that shares the memory. */
void act_by_vfork(struct worker *w);

#endif
