/* A copy of pages from one region to another, by whatever carries bytes. */
#ifndef TRANSFER_H
#define TRANSFER_H

#include "torture.h"

struct transfer {
	struct region *from, *to;
	size_t from_first, to_first, pages;
	uint8_t *source, *target;
	size_t bytes;
};

/* Picks two regions and a run of at most `most` pages in both, and makes them accessible. */
bool transfer_pick(struct worker *w, size_t most, struct transfer *t);
/* All bytes have arrived: the ledger follows, and most of the time somebody looks. */
void transfer_done(struct worker *w, struct transfer *t);
/* A nameless file in --dir, or -1 if the file system refuses (already said). */
int transfer_file(struct worker *w, int flags);

#endif
