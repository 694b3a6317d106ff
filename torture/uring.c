/* Actions by io_uring, without a library: plain buffers, registered ones, and a read that waits. */
#include "torture.h"
#include "transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define ENTRIES 4

struct ring {
	int fd;
	uint8_t *rings;
	size_t rings_bytes;
	struct io_uring_sqe *entries;
	size_t entries_bytes;
	struct io_uring_params params;
};

static bool ring_begin(struct worker *w, struct ring *g)
{
	memset(g, 0, sizeof *g);
	g->fd = syscall(SYS_io_uring_setup, ENTRIES, &g->params);
	if (g->fd < 0) {
		if (errno == ENOSYS || errno == EPERM || errno == ENOMEM)
			skip("io_uring", "%s", strerror(errno));
		else
			differs(w, NULL, "io_uring_setup: %s", strerror(errno));
		return false;
	}
	size_t submission = g->params.sq_off.array + g->params.sq_entries * sizeof(uint32_t);
	size_t completion = g->params.cq_off.cqes + g->params.cq_entries * sizeof(struct io_uring_cqe);
	g->rings_bytes = submission > completion ? submission : completion;
	g->entries_bytes = g->params.sq_entries * sizeof *g->entries;
	if (!(g->params.features & IORING_FEAT_SINGLE_MMAP)) {
		skip("io_uring", "no IORING_FEAT_SINGLE_MMAP");
		close(g->fd);
		return false;
	}
	g->rings = mmap(NULL, g->rings_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, g->fd,
			IORING_OFF_SQ_RING);
	g->entries = mmap(NULL, g->entries_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, g->fd,
			  IORING_OFF_SQES);
	if (g->rings == MAP_FAILED || (void *)g->entries == MAP_FAILED)
		differs(w, NULL, "mmap of io_uring's rings: %s", strerror(errno));
	return true;
}

static void ring_end(struct ring *g)
{
	munmap(g->entries, g->entries_bytes);
	munmap(g->rings, g->rings_bytes);
	close(g->fd);
}

static _Atomic uint32_t *ring_word(struct ring *g, uint32_t offset)
{
	return (_Atomic uint32_t *)(g->rings + offset);
}

static void ring_submit(struct worker *w, struct ring *g, const struct io_uring_sqe *entry)
{
	uint32_t tail = *ring_word(g, g->params.sq_off.tail);
	uint32_t index = tail & *ring_word(g, g->params.sq_off.ring_mask);

	g->entries[index] = *entry;
	*ring_word(g, g->params.sq_off.array + index * 4) = index;
	*ring_word(g, g->params.sq_off.tail) = tail + 1;
	long n;
	while ((n = syscall(SYS_io_uring_enter, g->fd, 1, 0, 0, NULL, 0)) < 0 &&
	       (errno == EINTR || errno == EAGAIN))
		;
	if (n != 1)
		differs(w, (void *)entry->addr, "io_uring_enter: %s", strerror(errno));
}

static int ring_wait(struct worker *w, struct ring *g)
{
	_Atomic uint32_t *head = ring_word(g, g->params.cq_off.head),
			 *tail = ring_word(g, g->params.cq_off.tail);

	while (*head == *tail)
		if (syscall(SYS_io_uring_enter, g->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0 &&
		    errno != EINTR)
			differs(w, NULL, "io_uring_enter: %s", strerror(errno));
	uint32_t index = *head & *ring_word(g, g->params.cq_off.ring_mask);
	int result = ((struct io_uring_cqe *)(g->rings + g->params.cq_off.cqes))[index].res;
	*head = *head + 1;
	return result;
}

/* All bytes of the transfer in one direction, in as many requests as the kernel likes. */
static void ring_carry(struct worker *w, struct ring *g, int fd, int opcode, uint8_t *memory, size_t bytes,
		       int buffer)
{
	for (size_t at = 0; at < bytes;) {
		struct io_uring_sqe entry = {
			.opcode = opcode,
			.fd = fd,
			.addr = (uintptr_t)(memory + at),
			.len = bytes - at,
			.off = at,
			.buf_index = buffer,
		};
		/* Sometimes in a worker thread of the kernel's. */
		if (one_in(w, 3))
			entry.flags = IOSQE_ASYNC;
		ring_submit(w, g, &entry);
		if (one_in(w, 4))
			nap_us(100);
		/* A signal can cost the kernel its worker thread: ECANCELED, and nothing was carried. */
		int n = ring_wait(w, g);
		if (n == -EINTR || n == -EAGAIN || n == -ECANCELED)
			continue;
		if (n <= 0)
			differs(w, memory + at, "io_uring, operation %d of %zu bytes: %s", opcode, bytes - at,
				n ? strerror(-n) : "end of file");
		at += n;
	}
}

void act_uring(struct worker *w)
{
	struct transfer t;
	struct ring ring;
	int fd;

	if (!transfer_pick(w, 64, &t) || !ring_begin(w, &ring))
		return;
	if ((fd = transfer_file(w, one_in(w, 2) ? O_DIRECT : 0)) >= 0) {
		ring_carry(w, &ring, fd, IORING_OP_WRITE, t.source, t.bytes, 0);
		ring_carry(w, &ring, fd, IORING_OP_READ, t.target, t.bytes, 0);
		close(fd);
	}
	ring_end(&ring);
	if (fd >= 0)
		transfer_done(w, &t);
}

/* The kernel holds on to the very pages from registration on. */
void act_uring_fixed(struct worker *w)
{
	struct transfer t;
	struct ring ring;
	int fd;

	if (!transfer_pick(w, 64, &t) || !ring_begin(w, &ring))
		return;
	struct iovec buffers[2] = { { t.source, t.bytes }, { t.target, t.bytes } };
	if (syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, buffers, 2) != 0) {
		if (errno != ENOMEM && errno != EOPNOTSUPP)
			differs(w, t.source, "IORING_REGISTER_BUFFERS: %s", strerror(errno));
		skip("io_uring fixed buffers", "%s", strerror(errno));
		ring_end(&ring);
		return;
	}
	if ((fd = transfer_file(w, one_in(w, 2) ? O_DIRECT : 0)) >= 0) {
		if (one_in(w, 2))
			nap_us(1000);
		/* Written after the registration: the kernel must see it. */
		region_write(w, t.from, t.from_first, 1 + random_below(w, t.pages));
		ring_carry(w, &ring, fd, IORING_OP_WRITE_FIXED, t.source, t.bytes, 0);
		if (one_in(w, 2))
			nap_us(1000);
		ring_carry(w, &ring, fd, IORING_OP_READ_FIXED, t.target, t.bytes, 1);
		close(fd);
	}
	ring_end(&ring);
	if (fd >= 0)
		transfer_done(w, &t);
}

/* Reads that were asked for long before the bytes come. */
void act_uring_waiting(struct worker *w)
{
	struct transfer t;
	struct ring ring;
	int fd[2];

	if (!transfer_pick(w, 8, &t) || !ring_begin(w, &ring))
		return;
	if (pipe2(fd, O_CLOEXEC) != 0)
		differs(w, NULL, "pipe: %s", strerror(errno));
	for (size_t page = 0; page < t.pages; page++) {
		size_t at = page * PAGE;
		struct io_uring_sqe entry = {
			.opcode = IORING_OP_READ,
			.fd = fd[0],
			.addr = (uintptr_t)(t.target + at),
			.len = PAGE,
			.off = -1ull,
		};
		ring_submit(w, &ring, &entry);
		nap_us(random_below(w, 1500));
		ssize_t n;
		while ((n = write(fd[1], t.source + at, PAGE)) < 0 && errno == EINTR)
			;
		if (n != (ssize_t)PAGE)
			differs(w, t.source + at, "writing to a pipe: %s", strerror(errno));
		for (size_t done = 0; done < PAGE;) {
			int got = ring_wait(w, &ring);
			if (got <= 0)
				differs(w, t.target + at, "io_uring, a waiting read: %s", strerror(-got));
			done += got;
			if (done < PAGE) {
				entry.addr = (uintptr_t)(t.target + at + done);
				entry.len = PAGE - done;
				ring_submit(w, &ring, &entry);
			}
		}
	}
	close(fd[0]);
	close(fd[1]);
	ring_end(&ring);
	transfer_done(w, &t);
}
