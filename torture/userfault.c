/* A userfaultfd of the program's own: it goes on working, whatever else does the same in this process. */
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

struct service {
	struct worker *w;
	int fd, stop[2];
	uint8_t *base;
	unsigned id;
	_Atomic unsigned generation;
	_Atomic unsigned served;
};

static void *serve(void *argument)
{
	struct service *s = argument;
	uint64_t page[WORDS] __attribute__((aligned(4096)));

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
		content_fill(page, tag_make(s->id, (at - (uintptr_t)s->base) / PAGE, s->generation, 0));
		struct uffdio_copy copy = { .dst = at, .src = (uintptr_t)page, .len = PAGE };
		int refused;
		while ((refused = ioctl(s->fd, UFFDIO_COPY, &copy)) != 0 && errno == EAGAIN)
			copy = (struct uffdio_copy){ .dst = at, .src = (uintptr_t)page, .len = PAGE };
		/* A fault that a signal cut short is asked for twice: EEXIST. */
		if (!refused)
			atomic_fetch_add(&s->served, 1);
	}
}

void act_userfault(struct worker *w)
{
	size_t pages = 16 + random_below(w, 64);
	struct service s = { .w = w, .id = REGION_IDS - 7 - MAX_THREADS };
	struct uffdio_api api = { .api = UFFD_API };
	pthread_t thread;

	if ((s.fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)) < 0 ||
	    ioctl(s.fd, UFFDIO_API, &api) != 0) {
		skip("userfaultfd", "%s", strerror(errno));
		if (s.fd >= 0)
			close(s.fd);
		return;
	}
	s.base = map_pages(pages);
	struct uffdio_register range = { .range = { (uintptr_t)s.base, pages * PAGE },
					 .mode = UFFDIO_REGISTER_MODE_MISSING };
	note(w, " %p, %zu pages", (void *)s.base, pages);
	if (ioctl(s.fd, UFFDIO_REGISTER, &range) != 0)
		differs(w, s.base, "UFFDIO_REGISTER of fresh memory of the program's own: %s",
			strerror(errno));
	if (pipe2(s.stop, O_CLOEXEC) != 0)
		differs(w, NULL, "pipe: %s", strerror(errno));
	int error = pthread_create(&thread, NULL, serve, &s);
	if (error)
		differs(w, NULL, "pthread_create: %s", strerror(error));
	for (s.generation = 1; s.generation < 4; s.generation++) {
		for (size_t p = 0; p < pages; p++)
			bytes_verify(w, s.base + p * PAGE, PAGE, tag_make(s.id, p, s.generation, 0),
				     "memory under our userfaultfd");
		nap_us(random_below(w, 1000));
		bytes_verify(w, s.base, pages * PAGE, tag_make(s.id, 0, s.generation, 0),
			     "memory under our userfaultfd, later");
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
}
