/*
 * zfolio.h: what a program can tell zfolio about its memory, and ask (zfolio(3)).
 *
 * There is nothing to link. Under `zfolio run` the functions are found in the library that is preloaded; without it
 * advice goes to the kernel, and zfolio_pin, zfolio_unpin and zfolio_range fail with ENOSYS. All of them return 0, or
 * -1 with errno.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef ZFOLIO_H
#define ZFOLIO_H

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

/* Bytes of a range, by where its pages are. What was never touched is in none of them, nor are pages of files. */
struct zfolio_range {
	uint64_t resident_bytes; /* in the program */
	uint64_t inactive_bytes; /* in RAM as they are; a touch brings them back */
	uint64_t stored_bytes;   /* in the pool */
	uint64_t pool_bytes;     /* what those take there, compressed */
	uint64_t swapped_bytes;  /* in swap areas alone */
	uint64_t filled_bytes;   /* out, and all zeros or one repeated word: stored without data */
	uint64_t pinned_bytes;   /* that stay */
};

/* A function of the library that `zfolio run` preloads; NULL without it. */
static inline void *zfolio_function(const char *name)
{
	/* RTLD_DEFAULT */
	return dlsym((void *)0, name);
}

/* True under `zfolio run`. */
static inline int zfolio_is_there(void)
{
	return zfolio_function("zfolio_pin") != NULL;
}

static inline int zfolio_advise(uintptr_t start, uintptr_t end, int advice)
{
	return start < end ? madvise((void *)start, end - start, advice) : 0;
}

/* The whole pages of a range go out, now: MADV_PAGEOUT. */
static inline int zfolio_pageout(const void *at, size_t bytes)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)at;
	return zfolio_advise((start + page - 1) & -page, (start + bytes) & -page, 21 /* MADV_PAGEOUT */);
}

/* The whole pages of a range go before all others, when memory must go: MADV_COLD. */
static inline int zfolio_cold(const void *at, size_t bytes)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)at;
	return zfolio_advise((start + page - 1) & -page, (start + bytes) & -page, 20 /* MADV_COLD */);
}

/* What is out of the pages that a range touches comes in, without a fault for each: MADV_WILLNEED. */
static inline int zfolio_willneed(const void *at, size_t bytes)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)at;
	return zfolio_advise(start & -page, (start + bytes + page - 1) & -page, 3 /* MADV_WILLNEED */);
}

static inline int zfolio_call(const char *name, const void *at, size_t bytes)
{
	int (*call)(const void *, size_t);
	*(void **)&call = zfolio_function(name);
	if (call)
		return call(at, bytes);
	errno = ENOSYS;
	return -1;
}

/* The pages that a range touches come in, and stay until they are unpinned: no touch of them waits. Pins do not nest,
 * and are not inherited by a child of fork. One that is to be unmapped is unpinned before. ENOMEM: there are too many
 * ranges, or more than half of the limit would be pinned. */
static inline int zfolio_pin(const void *at, size_t bytes)
{
	return zfolio_call("zfolio_pin", at, bytes);
}

/* They may go out again. */
static inline int zfolio_unpin(const void *at, size_t bytes)
{
	return zfolio_call("zfolio_unpin", at, bytes);
}

/* Where the pages that a range touches are. */
static inline int zfolio_range(const void *at, size_t bytes, struct zfolio_range *out)
{
	int (*call)(const void *, size_t, struct zfolio_range *, size_t);
	*(void **)&call = zfolio_function("zfolio_range");
	if (call)
		return call(at, bytes, out, sizeof *out);
	errno = ENOSYS;
	return -1;
}

#endif
