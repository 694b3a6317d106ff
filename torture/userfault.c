/*
 * A userfaultfd of the program's own: it goes on working, whatever else does the same in this process. A thread serves
 * its faults by UFFDIO_COPY, UFFDIO_MOVE and UFFDIO_ZEROPAGE; and pages of a region are moved out of it and back.
 */
#include "torture.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_COLD
#define MADV_COLD 20
#endif
#ifndef UFFDIO_MOVE
struct uffdio_move {
	__u64 dst, src, len, mode;
	__s64 move;
};
#define UFFDIO_MOVE _IOWR(UFFDIO, 5, struct uffdio_move)
#define UFFDIO_MOVE_MODE_ALLOW_SRC_HOLES 2
#define UFFD_FEATURE_MOVE (1 << 16)
#endif

/* A new one, or -1 where this machine has none that moves. */
static int userfault_open(void)
{
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_MOVE };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	if (fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0)
		return fd;
	skip("userfaultfd with UFFDIO_MOVE", "%s", strerror(errno));
	if (fd >= 0)
		close(fd);
	return -1;
}

/*
 * Until it is registered a new mapping may be one with its neighbour, whose faults fill both, where huge pages of some
 * size are made: there are holes after this.
 */
static void own(struct worker *w, int fd, void *at, size_t pages)
{
	struct uffdio_register range = { .range = { (uintptr_t)at, pages * PAGE },
					 .mode = UFFDIO_REGISTER_MODE_MISSING };

	if (ioctl(fd, UFFDIO_REGISTER, &range) != 0)
		differs(w, at, "UFFDIO_REGISTER of %zu pages of the program's own: %s", pages, strerror(errno));
	if (madvise(at, pages * PAGE, MADV_DONTNEED) != 0)
		differs(w, at, "MADV_DONTNEED: %s", strerror(errno));
}

static void disown(struct worker *w, int fd, void *at, size_t pages)
{
	struct uffdio_range range = { (uintptr_t)at, pages * PAGE };

	if (ioctl(fd, UFFDIO_UNREGISTER, &range) != 0)
		differs(w, at, "UFFDIO_UNREGISTER of %zu pages: %s", pages, strerror(errno));
}

/*
 * Makes a page nobody else's: after a fork no other one can be moved. Nor can one of a large folio whose first page was
 * shared (Linux 6.18 looks at that one's flag alone): advice on one page splits it.
 */
static void touch(void *page)
{
	volatile uint8_t *byte = page;

	*byte = *byte;
	madvise(page, PAGE, MADV_COLD);
}

/* ---- faults that are served by the program ------------------------------------------------------- */

enum { SERVED_MOST = 80 };

struct service {
	struct worker *w;
	int fd, stop[2];
	uint8_t *base;
	uint8_t *stock; /* what is moved in; it may be out by then */
	unsigned id;
	_Atomic unsigned generation;
	_Atomic unsigned served;
	bool moved[SERVED_MOST]; /* in this generation */
};

enum way { COPIED, MOVED, ZEROED, WAYS };

static enum way way_of(size_t page)
{
	return page % WAYS;
}

static tag_t served_tag(const struct service *s, size_t page)
{
	return tag_make(s->id, page, s->generation, 0);
}

static int move_in(struct service *s, uintptr_t at, size_t page)
{
	void *from = s->stock + page * PAGE;

	for (;;) {
		struct uffdio_move move = { .dst = at, .src = (uintptr_t)from, .len = PAGE };
		if (ioctl(s->fd, UFFDIO_MOVE, &move) == 0) {
			s->moved[page] = true;
			return 0;
		}
		if (errno == EBUSY)
			touch(from);
		else if (errno == EEXIST || (errno == ENOENT && s->moved[page]))
			return -1;
		else if (errno != EAGAIN)
			differs(s->w, from, "UFFDIO_MOVE of page %zu, which was filled: %s", page, strerror(errno));
	}
}

static int copy_in(struct service *s, uintptr_t at, size_t page)
{
	uint64_t words[WORDS] __attribute__((aligned(4096)));
	int refused;

	content_fill(words, served_tag(s, page));
	do {
		struct uffdio_copy copy = { .dst = at, .src = (uintptr_t)words, .len = PAGE };
		refused = ioctl(s->fd, UFFDIO_COPY, &copy);
	} while (refused != 0 && errno == EAGAIN);
	return refused;
}

static int zero_in(struct service *s, uintptr_t at)
{
	int refused;

	do {
		struct uffdio_zeropage zero = { .range = { at, PAGE } };
		refused = ioctl(s->fd, UFFDIO_ZEROPAGE, &zero);
	} while (refused != 0 && errno == EAGAIN);
	return refused;
}

static void *serve(void *argument)
{
	struct service *s = argument;

	for (;;) {
		struct pollfd wait[2] = { { s->fd, POLLIN, 0 }, { s->stop[0], POLLIN, 0 } };
		struct uffd_msg message;
		poll(wait, 2, -1);
		if (wait[1].revents)
			return NULL;
		if (read(s->fd, &message, sizeof message) != sizeof message)
			continue;
		if (message.event != UFFD_EVENT_PAGEFAULT)
			differs(s->w, s->base, "our userfaultfd tells of event %u", message.event);
		uintptr_t at = message.arg.pagefault.address & ~(PAGE - 1);
		size_t page = (at - (uintptr_t)s->base) / PAGE;
		int refused = way_of(page) == COPIED  ? copy_in(s, at, page)
			      : way_of(page) == MOVED ? move_in(s, at, page)
						      : zero_in(s, at);
		/* A fault that a signal cut short is asked for twice: EEXIST. */
		if (!refused)
			atomic_fetch_add(&s->served, 1);
	}
}

static void expect_served(struct service *s, size_t pages, const char *when)
{
	for (size_t p = 0; p < pages; p++) {
		uint8_t *at = s->base + p * PAGE;
		if (way_of(p) != ZEROED)
			bytes_verify(s->w, at, PAGE, served_tag(s, p), when);
		else if (!content_is_zero(at, PAGE))
			differs(s->w, at, "%s: page %zu is not zero", when, p);
	}
}

void act_userfault(struct worker *w)
{
	size_t pages = 16 + random_below(w, SERVED_MOST - 16);
	struct service s = { .w = w, .id = REGION_IDS - 7 - MAX_THREADS, .fd = userfault_open() };
	pthread_t thread;

	if (s.fd < 0)
		return;
	s.base = map_pages(pages);
	s.stock = map_pages(pages);
	note(w, " %p, %zu pages", (void *)s.base, pages);
	own(w, s.fd, s.base, pages);
	if (pipe2(s.stop, O_CLOEXEC) != 0)
		differs(w, NULL, "pipe: %s", strerror(errno));
	int error = pthread_create(&thread, NULL, serve, &s);
	if (error)
		differs(w, NULL, "pthread_create: %s", strerror(error));
	for (s.generation = 1; s.generation < 4; s.generation++) {
		for (size_t p = 0; p < pages; p++)
			if (way_of(p) == MOVED)
				content_fill(s.stock + p * PAGE, served_tag(&s, p));
		memset(s.moved, 0, sizeof s.moved);
		nap_us(random_below(w, 2000));
		expect_served(&s, pages, "memory under our userfaultfd");
		nap_us(random_below(w, 1000));
		expect_served(&s, pages, "memory under our userfaultfd, later");
		/* It counts after it has woken us. */
		for (unsigned i = 0; i < 1000 && s.served < pages * s.generation; i++)
			nap_us(1000);
		if (s.served != pages * s.generation)
			differs(w, s.base, "our userfaultfd served %u pages instead of %zu", s.served,
				pages * s.generation);
		if (madvise(s.base, pages * PAGE, MADV_DONTNEED) != 0)
			differs(w, s.base, "MADV_DONTNEED: %s", strerror(errno));
	}
	if (write(s.stop[1], "", 1) != 1)
		differs(w, NULL, "write: %s", strerror(errno));
	pthread_join(thread, NULL);
	close(s.fd);
	close(s.stop[0]);
	close(s.stop[1]);
	munmap(s.base, pages * PAGE);
	munmap(s.stock, pages * PAGE);
}

/* ---- a region's pages, moved away and back ------------------------------------------------------- */

/* Moves all of a range, as whoever knows the call's refusals does; holes too, or they are filled first. */
static void move_all(struct worker *w, int fd, uint8_t *to, uint8_t *from, size_t bytes)
{
	bool holes = one_in(w, 2), by_number = one_in(w, 4);
	size_t done = 0, most = bytes;

	while (done < bytes) {
		size_t part = bytes - done < most ? bytes - done : most;
		struct uffdio_move move = { .dst = (uintptr_t)to + done,
					    .src = (uintptr_t)from + done,
					    .len = part,
					    .mode = holes ? UFFDIO_MOVE_MODE_ALLOW_SRC_HOLES : 0 };
		long refused = by_number ? syscall(SYS_ioctl, fd, UFFDIO_MOVE, &move) : ioctl(fd, UFFDIO_MOVE, &move);
		if (refused == 0 && move.move != (long long)part)
			differs(w, from + done, "UFFDIO_MOVE of %zu bytes is done after %lld", part, (long long)move.move);
		if (move.move > 0)
			done += move.move;
		else if (errno == EINVAL && part > PAGE)
			most = part / 2 / PAGE * PAGE; /* it takes pages of one mapping */
		else if (errno == EBUSY || (errno == ENOENT && !holes))
			touch(from + done);
		else if (errno != EAGAIN)
			differs(w, from + done, "UFFDIO_MOVE of %zu bytes: %s", part, strerror(errno));
	}
}

/* Back by one of the ways, a run after the other; what is zeroed is lost. */
static void bring_back(struct worker *w, struct region *r, int fd, size_t first, size_t pages, uint8_t *from)
{
	for (size_t p = 0, n; p < pages; p += n) {
		uintptr_t to = (uintptr_t)page_at(r, first + p);
		long refused = 0;
		n = 1 + random_below(w, one_in(w, 2) ? pages : 20);
		n = n < pages - p ? n : pages - p;
		switch ((enum way)random_below(w, WAYS)) {
		case MOVED: move_all(w, fd, (uint8_t *)to, from + p * PAGE, n * PAGE); break;
		case COPIED:
			for (size_t done = 0; done < n * PAGE;) {
				struct uffdio_copy copy = { .dst = to + done, .src = (uintptr_t)from + p * PAGE + done,
							    .len = PAGE };
				refused = ioctl(fd, UFFDIO_COPY, &copy);
				if (refused != 0 && errno != EAGAIN)
					differs(w, (void *)(to + done), "UFFDIO_COPY: %s", strerror(errno));
				done += refused == 0 ? PAGE : 0;
			}
			break;
		default:
			for (size_t done = 0; done < n; done += refused == 0) {
				struct uffdio_zeropage zero = { .range = { to + done * PAGE, PAGE } };
				refused = ioctl(fd, UFFDIO_ZEROPAGE, &zero);
				if (refused != 0 && errno != EAGAIN)
					differs(w, (void *)(to + done * PAGE), "UFFDIO_ZEROPAGE: %s", strerror(errno));
			}
			region_emptied(r, first + p, n);
		}
	}
}

/*
 * Out of a region, into memory that the program's userfaultfd has; and when that has become memory like any other, out
 * of it, into the region, which the userfaultfd has now.
 */
void act_uffd_move(struct worker *w)
{
	size_t first, pages;
	struct region *r = region_pick(w, KINDS_PRIVATE);
	int fd;

	if (!r || !region_run(w, r, one_in(w, 4) ? 2048 : 100, &first, &pages) || !budget_take(pages))
		return;
	note(w, " region %u %p pages %zu+%zu", r->id, page_at(r, first), first, pages);
	if ((fd = userfault_open()) < 0) {
		budget_give(pages);
		return;
	}
	uint8_t *away = mmap(NULL, pages * PAGE, region_flags(r, READ_WRITE), MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (away == MAP_FAILED)
		differs(w, NULL, "mmap of %zu pages: %s", pages, strerror(errno));
	note(w, " to %p", (void *)away);
	region_open(w, r, first, pages);
	own(w, fd, away, pages);
	if (one_in(w, 2))
		nap_us(random_below(w, 2000));
	move_all(w, fd, away, page_at(r, first), pages * PAGE);
	disown(w, fd, away, pages);
	if (one_in(w, 2))
		for (size_t p = 0; p < pages; p++)
			if (!content_is_zero(page_at(r, first + p), PAGE))
				differs(w, page_at(r, first + p), "page %zu of region %u was moved away and is not zero",
					first + p, r->id);
	nap_us(random_below(w, 2000));
	if (one_in(w, 2))
		region_verify_at(w, r, first, pages, away);
	own(w, fd, page_at(r, first), pages);
	bring_back(w, r, fd, first, pages, away);
	disown(w, fd, page_at(r, first), pages);
	r->patchwork = true;
	region_verify(w, r, first, pages);
	munmap(away, pages * PAGE);
	close(fd);
	budget_give(pages);
}
