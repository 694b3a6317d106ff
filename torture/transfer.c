/*
 * Actions that let the kernel read and write memory: read, write and relatives.
 *
 * Pages of one region go through a pipe, a socket or a file into pages of another, and the ledger of the
 * target takes over the tags.
 */
#include "torture.h"
#include "transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

bool transfer_pick(struct worker *w, size_t most, struct transfer *t)
{
	t->from = region_pick(w, KINDS_ALL);
	t->to = region_pick(w, KINDS_ALL);
	size_t pages;
	if (!t->from || !t->to || t->from == t->to ||
	    !region_run(w, t->from, most, &t->from_first, &t->pages) ||
	    !region_run(w, t->to, t->pages, &t->to_first, &pages))
		return false;
	if (t->pages > pages)
		t->pages = pages;
	region_open(w, t->from, t->from_first, t->pages);
	region_open(w, t->to, t->to_first, t->pages);
	for (size_t i = 0; i < t->pages; i++) {
		struct cell *c = &t->from->cells[t->from_first + i];
		if (c->state == FREED)
			region_write(w, t->from, t->from_first + i, 1);
	}
	t->source = page_at(t->from, t->from_first);
	t->target = page_at(t->to, t->to_first);
	t->bytes = t->pages * PAGE;
	note(w, " region %u pages %zu+%zu (%p) to region %u page %zu (%p)", t->from->id, t->from_first,
	     t->pages, (void *)t->source, t->to->id, t->to_first, (void *)t->target);
	return true;
}

void transfer_done(struct worker *w, struct transfer *t)
{
	for (size_t i = 0; i < t->pages; i++) {
		struct cell *c = &t->from->cells[t->from_first + i];
		if (c->state == FILLED) {
			region_holds(t->to, t->to_first + i, c->tag);
			t->to->cells[t->to_first + i].carried = w->action;
		} else {
			region_emptied(t->to, t->to_first + i, 1);
		}
	}
	if (!one_in(w, 3))
		region_verify(w, t->to, t->to_first, t->pages);
	if (one_in(w, 3))
		region_verify(w, t->from, t->from_first, t->pages);
}

/* ---- pipes and sockets -------------------------------------------------------------------------- */

enum method { WHOLE, VECTOR, SPLICE, MESSAGE };

/* Cuts up to 40,000 bytes of the buffer into one to four pieces of any length. */
static int pieces(struct worker *w, uint8_t *at, size_t left, bool vector, struct iovec *v)
{
	int n = 0, most = vector ? 1 + random_below(w, 4) : 1;

	while (left && n < most) {
		size_t part = 1 + random_below(w, left < 40000 ? left : 40000);
		v[n++] = (struct iovec){ at, part };
		at += part;
		left -= part;
	}
	return n;
}

static ssize_t send_some(struct worker *w, int fd, const struct transfer *t, size_t at, enum method method)
{
	struct iovec v[4];
	int n = pieces(w, t->source + at, t->bytes - at, method != WHOLE, v);

	switch (method) {
	case SPLICE: return vmsplice(fd, v, n, SPLICE_F_NONBLOCK);
	case MESSAGE: return sendmsg(fd, &(struct msghdr){ .msg_iov = v, .msg_iovlen = n }, MSG_NOSIGNAL);
	case VECTOR: return writev(fd, v, n);
	default: return write(fd, v[0].iov_base, v[0].iov_len);
	}
}

static ssize_t receive_some(struct worker *w, int fd, const struct transfer *t, size_t at, enum method method)
{
	struct iovec v[4];
	int n = pieces(w, t->target + at, t->bytes - at, method != WHOLE, v);

	switch (method) {
	case MESSAGE: return recvmsg(fd, &(struct msghdr){ .msg_iov = v, .msg_iovlen = n }, 0);
	case VECTOR: return readv(fd, v, n);
	default: return read(fd, v[0].iov_base, v[0].iov_len);
	}
}

static void pump(struct worker *w, int to_fd, int from_fd, const struct transfer *t, enum method method)
{
	size_t sent = 0, received = 0;

	while (received < t->bytes) {
		if (sent < t->bytes) {
			ssize_t n = send_some(w, to_fd, t, sent, method);
			if (n > 0)
				sent += n;
			else if (n == 0 || (errno != EAGAIN && errno != EINTR))
				differs(w, t->source + sent, "writing %zu bytes from there: %s",
					t->bytes - sent, strerror(errno));
		}
		if (one_in(w, 8))
			nap_us(100);
		while (received < sent) {
			ssize_t n = receive_some(w, from_fd, t, received, method);
			if (n > 0)
				received += n;
			else if (n == 0 || (errno != EAGAIN && errno != EINTR))
				differs(w, t->target + received, "reading to there: %s",
					n ? strerror(errno) : "end of file");
			else
				break;
		}
	}
}

static void piped(struct worker *w, enum method method)
{
	struct transfer t;
	int fd[2];

	if (!transfer_pick(w, 64, &t))
		return;
	if (pipe2(fd, O_CLOEXEC | O_NONBLOCK) != 0)
		differs(w, NULL, "pipe: %s", strerror(errno));
	pump(w, fd[1], fd[0], &t, method);
	close(fd[0]);
	close(fd[1]);
	transfer_done(w, &t);
}

void act_pipe(struct worker *w)
{
	piped(w, WHOLE);
}
void act_pipe_vectors(struct worker *w)
{
	piped(w, VECTOR);
}
void act_vmsplice(struct worker *w)
{
	piped(w, SPLICE);
}

void act_socketpair(struct worker *w)
{
	struct transfer t;
	int fd[2];

	if (!transfer_pick(w, 64, &t))
		return;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fd) != 0)
		differs(w, NULL, "socketpair: %s", strerror(errno));
	pump(w, fd[0], fd[1], &t, MESSAGE);
	close(fd[0]);
	close(fd[1]);
	transfer_done(w, &t);
}

/* ---- files -------------------------------------------------------------------------------------- */

int transfer_file(struct worker *w, int flags)
{
	char path[4096];
	int fd;

	snprintf(path, sizeof path, "%s/.torture-%d-%u", options.directory, (int)getpid(), w->index);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | flags, 0600);
	int error = errno;
	unlink(path);
	if (fd >= 0)
		return fd;
	if (flags & O_DIRECT && error == EINVAL)
		skip("O_DIRECT", "%s: %s", options.directory, strerror(error));
	else
		skip("files", "%s: %s", path, strerror(error));
	return -1;
}

static void filed(struct worker *w, int flags)
{
	struct transfer t;
	int fd;
	size_t unit = flags & O_DIRECT ? PAGE : 1;

	if (!transfer_pick(w, 256, &t) || (fd = transfer_file(w, flags)) < 0)
		return;
	for (unsigned direction = 0; direction < 2; direction++) {
		for (size_t at = 0; at < t.bytes;) {
			size_t part = 1 + random_below(w, t.bytes - at);
			part = (part + unit - 1) / unit * unit;
			uint8_t *memory = (direction ? t.target : t.source) + at;
			struct iovec v[2] = { { memory, part / 2 / unit * unit },
					      { memory + part / 2 / unit * unit,
						part - part / 2 / unit * unit } };
			bool vector = one_in(w, 2);
			ssize_t n = direction ? vector ? preadv(fd, v, 2, at) : pread(fd, memory, part, at)
				    : vector  ? pwritev(fd, v, 2, at)
					      : pwrite(fd, memory, part, at);
			if (n < 0 && errno == EINTR)
				continue;
			if (n <= 0)
				differs(w, memory, "%s of %zu bytes at offset %zu: %s",
					direction ? "pread" : "pwrite", part, at,
					n ? strerror(errno) : "end of file");
			at += n;
		}
	}
	close(fd);
	transfer_done(w, &t);
}

void act_file(struct worker *w)
{
	filed(w, 0);
}
void act_direct(struct worker *w)
{
	filed(w, O_DIRECT);
}

/* ---- from memory to memory ---------------------------------------------------------------------- */

void act_process_vm(struct worker *w)
{
	struct transfer t;

	if (!transfer_pick(w, 64, &t))
		return;
	struct iovec source = { t.source, t.bytes }, target = { t.target, t.bytes };
	ssize_t n = one_in(w, 2) ? process_vm_readv(getpid(), &target, 1, &source, 1, 0)
				 : process_vm_writev(getpid(), &source, 1, &target, 1, 0);
	if (n != (ssize_t)t.bytes)
		differs(w, t.source, "process_vm_readv or writev of ourselves, %zu bytes: %zd, %s", t.bytes,
			n, strerror(errno));
	transfer_done(w, &t);
}
