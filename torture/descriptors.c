/* Actions on the file table: everything closed in the midst, and no free descriptor. No other thread has a
 * file open. */
#include "torture.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void use_memory(struct worker *w)
{
	nap_us(random_below(w, 1000));
	for (unsigned i = 0; i < 5; i++)
		act_on_own_memory(w);
	region_verify_all(w);
}

static void expect_lowest(struct worker *w, int wanted)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	if (fd != wanted)
		differs(w, NULL, "open gave descriptor %d instead of %d", fd, wanted);
	close(fd);
}

void act_close_range(struct worker *w)
{
	struct rlimit limit;
	int fd[2];

	getrlimit(RLIMIT_NOFILE, &limit);
	for (unsigned i = 0; i < 5; i++)
		if (pipe(fd) != 0)
			differs(w, NULL, "pipe: %s", strerror(errno));
	int high = fcntl(fd[0], F_DUPFD, (int)(limit.rlim_cur > 5000 ? 5000 : limit.rlim_cur - 1));
	if (close_range(3, ~0u, 0) != 0) {
		if (errno != ENOSYS)
			differs(w, NULL, "close_range: %s", strerror(errno));
		skip("close_range", "%s", strerror(errno));
		closefrom(3);
	}
	for (int i = 3; i < 20; i++)
		if (fcntl(i, F_GETFD) != -1 || errno != EBADF)
			differs(w, NULL, "descriptor %d is open after close_range", i);
	if (high >= 0 && fcntl(high, F_GETFD) != -1)
		differs(w, NULL, "descriptor %d is open after close_range", high);
	expect_lowest(w, 3);
	use_memory(w);
	expect_lowest(w, 3);
}

void act_full_table(struct worker *w)
{
	struct rlimit limit, less;
	int first = dup(STDERR_FILENO), fd, last = first;

	getrlimit(RLIMIT_NOFILE, &limit);
	less = limit;
	/* The whole table where that is quick, else one that is nearly full by decree. */
	if (limit.rlim_cur > 32768 || one_in(w, 2))
		less.rlim_cur = first + 1 + random_below(w, 100);
	setrlimit(RLIMIT_NOFILE, &less);
	while ((fd = dup(STDERR_FILENO)) >= 0)
		last = fd;
	if (errno != EMFILE)
		differs(w, NULL, "dup: %s instead of EMFILE", strerror(errno));
	note(w, " descriptors %d to %d", first, last);
	use_memory(w);
	if (one_in(w, 3))
		family_fork(w);
	for (fd = first; fd <= last; fd++)
		close(fd);
	setrlimit(RLIMIT_NOFILE, &limit);
	expect_lowest(w, first);
}
