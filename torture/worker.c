/*
 * A worker: a thread that acts, with random numbers of its own, a history of its actions, and the
 * report that ends everything when a byte differs.
 */
#include "torture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void nap_us(unsigned microseconds)
{
	struct timespec t = { microseconds / 1000000, microseconds % 1000000 * 1000 };

	while (nanosleep(&t, &t) != 0 && errno == EINTR)
		;
}

uint64_t random_below(struct worker *w, uint64_t below)
{
	w->random += 0x9e3779b97f4a7c15ull;
	return (unsigned __int128)mix(w->random) * below >> 64;
}

bool one_in(struct worker *w, unsigned n)
{
	return random_below(w, n) == 0;
}

void note(struct worker *w, const char *format, ...)
{
	char *line = w->history[w->actions % HISTORY];
	size_t used = strlen(line), room = sizeof w->history[0] - used;
	va_list args;

	va_start(args, format);
	vsnprintf(line + used, room, format, args);
	va_end(args);
}

static void say(const char *text)
{
	size_t left = strlen(text);

	while (left > 0) {
		ssize_t n = write(STDERR_FILENO, text, left);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return;
		text += n;
		left -= n;
	}
}

/* The line of /proc/self/maps that holds the address, and the page table's word for it. */
static void say_mapping(const void *where)
{
	static char text[1 << 16];
	size_t used = 0, wanted = (uintptr_t)where;
	uint64_t entry = 0;
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);

	for (ssize_t n; fd >= 0 && (n = read(fd, text + used, sizeof text - 1 - used)) > 0;) {
		used += n;
		text[used] = 0;
		char *line = text, *end;
		for (; (end = strchr(line, '\n')); line = end + 1) {
			unsigned long from, to;
			*end = 0;
			if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= wanted && wanted < to) {
				say("  mapping: ");
				say(line);
				say("\n");
			}
		}
		used = strlen(line);
		memmove(text, line, used + 1);
	}
	if (fd >= 0)
		close(fd);
	fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && pread(fd, &entry, 8, wanted / PAGE * 8) == 8) {
		snprintf(text, sizeof text, "  pagemap: %016llx (%s%s%s)\n", (unsigned long long)entry,
			 entry >> 63 ? "present" : "not present", entry >> 62 & 1 ? ", swapped" : "",
			 entry >> 57 & 1 ? ", uffd write-protected" : "");
		say(text);
	}
	if (fd >= 0)
		close(fd);
}

void differs(struct worker *w, const void *where, const char *format, ...)
{
	static char text[4096];
	va_list args;

	if (atomic_exchange(&ground->reporting, true)) {
		/* Somebody else is at it, perhaps in a child: let the report be one report. */
		sleep(3);
		abort();
	}
	snprintf(text, sizeof text, "\ntorture: DIFFERENCE at %p%s\n  ", where,
		 w && w->child ? " in a forked child" : "");
	say(text);
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	say(text);
	say("\n");
	if (w) {
		snprintf(text, sizeof text,
			 "  seed %llu, process %d, thread %u (task %ld), action %llu\n"
			 "  the last actions, newest first:\n",
			 (unsigned long long)options.seed, (int)getpid(), w->index, (long)syscall(SYS_gettid),
			 (unsigned long long)w->actions);
		say(text);
		for (unsigned i = 0; i < HISTORY && i <= w->actions; i++) {
			snprintf(text, sizeof text, "    %s\n", w->history[(w->actions - i) % HISTORY]);
			say(text);
		}
	} else {
		snprintf(text, sizeof text, "  seed %llu, process %d\n", (unsigned long long)options.seed,
			 (int)getpid());
		say(text);
	}
	if (where)
		say_mapping(where);
	abort();
}

void skip(const char *what, const char *format, ...)
{
	static const char *said[64];
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	char text[512];
	va_list args;
	unsigned i = 0;

	atomic_fetch_add(&ground->skips, 1);
	/* In a forked child another thread may have held it. */
	if (pthread_mutex_trylock(&lock) != 0)
		return;
	while (i < 63 && said[i] && strcmp(said[i], what) != 0)
		i++;
	bool news = !said[i];
	said[i] = what;
	pthread_mutex_unlock(&lock);
	if (!news)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	dprintf(STDERR_FILENO, "torture: skipped: %s: %s\n", what, text);
}
