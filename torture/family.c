/*
 * Actions with processes: fork, vfork, posix_spawn, exec (also of ourselves), system, popen.
 *
 * A forked child verifies all that its parent's thread owns, and of the other threads every region that
 * stood still while fork copied it (the turns, in shared memory, tell); then it acts on its own copy.
 */
#include "torture.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int await(struct worker *w, pid_t child, const char *what)
{
	int status;

	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			differs(w, NULL, "waitpid for %s: %s", what, strerror(errno));
	return status;
}

static void expect_exit(struct worker *w, int status, int code, const char *what)
{
	if (WIFSIGNALED(status))
		differs(w, NULL, "%s was killed by signal %d (%s)", what, WTERMSIG(status),
			strsignal(WTERMSIG(status)));
	if (!WIFEXITED(status) || WEXITSTATUS(status) != code)
		differs(w, NULL, "%s ended with status 0x%x instead of exit code %d", what, status, code);
}

/* ---- fork --------------------------------------------------------------------------------------- */

/* What a region reads as in the child. */
static void inherit_region(struct worker *w, struct region *r)
{
	/* Elsewhere something of the child's may lie in the place of what it does not have. */
	if (r->kind == UNFORKED)
		for (size_t p = 0; p < r->pages; p += 1 + p / 16)
			if (r->cells[p].unforked && r->cells[p].state != ABSENT && readable(page_at(r, p)))
				differs(w, page_at(r, p),
					"region %u has MADV_DONTFORK, but the child can read its page %zu",
					r->id, p);
	for (size_t p = 0; p < r->pages; p++)
		if (r->cells[p].unforked)
			r->cells[p].state = ABSENT;
	if (r->kind == WIPED)
		region_emptied(r, 0, r->pages);
}

static void verify_inheritance(struct worker *w, uint32_t turns[MAX_THREADS][SLOTS + 1])
{
	for (unsigned i = 0; i < options.threads; i++) {
		struct worker *other = &workers[i];
		for (unsigned slot = 0; slot < SLOTS; slot++) {
			struct region *r = &other->regions[slot];
			bool shared = KIND(r->kind) & (KIND(SHARED) | KIND(MEMFD));
			bool still = other == w || (!shared && turns[i][slot] % 2 == 0 &&
						    turns[i][slot] == atomic_load(r->turn));
			if (!still)
				r->pages = 0;
			if (r->pages == 0)
				continue;
			inherit_region(w, r);
			region_verify(w, r, 0, r->pages);
		}
	}
	region_verify(w, &w->plot, 0, w->plot.pages);
	heap_verify_all(w);
}

static void turns_read(uint32_t turns[MAX_THREADS][SLOTS + 1])
{
	for (unsigned i = 0; i < options.threads; i++)
		for (unsigned slot = 0; slot < SLOTS; slot++)
			turns[i][slot] = atomic_load(&ground->turns[i][slot]);
}

static void forked(struct worker *w, unsigned depth, unsigned acts);

static _Noreturn void child_life(struct worker *w, uint32_t turns[MAX_THREADS][SLOTS + 1], unsigned depth,
				 unsigned acts, int code)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	w->child = true;
	noise_in_child(w);
	verify_inheritance(w, turns);
	/* What is shared with the parent stays as it is. */
	for (unsigned slot = 0; slot < SLOTS; slot++)
		if (KIND(w->regions[slot].kind) & (KIND(SHARED) | KIND(MEMFD)))
			w->regions[slot].pages = 0;
	for (unsigned i = 0; i < acts; i++) {
		w->actions++;
		act_on_own_memory(w);
	}
	if (depth)
		forked(w, depth - 1, acts / 2);
	region_verify_all(w);
	heap_verify_all(w);
	_exit(code);
}

/*
 * Ways to make a child without libc's fork. libc has not let go of its locks there, and so the child does nothing but
 * verify.
 */
struct bare {
	struct worker *w;
	uint32_t (*turns)[SLOTS + 1];
	int code;
};

static int bare_life(void *argument)
{
	struct bare *b = argument;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	b->w->child = true;
	verify_inheritance(b->w, b->turns);
	_exit(b->code);
}

enum { BARE_STACK = 1 << 20 };

/* How a child is made. */
enum way { BY_LIBC, ON_A_STACK, BY_SYSCALL, WAYS };

static pid_t bare_child(struct worker *w, uint32_t turns[MAX_THREADS][SLOTS + 1], int code, uint8_t *stack)
{
	struct bare b = { w, turns, code };
	pid_t child = stack ? clone(bare_life, stack + BARE_STACK, SIGCHLD, &b)
			    : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

	if (child == 0)
		bare_life(&b);
	return child;
}

static void forked(struct worker *w, unsigned depth, unsigned acts)
{
	uint32_t turns[MAX_THREADS][SLOTS + 1];
	int code = 30 + random_below(w, 90);
	enum way way = depth || acts ? BY_LIBC : random_below(w, WAYS);
	uint8_t *stack = way == ON_A_STACK ? mmap(NULL, BARE_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
				  : NULL;

	if (stack == MAP_FAILED)
		stack = NULL;
	turns_read(turns);
	pid_t child = way ? bare_child(w, turns, code, stack) : fork();
	if (child < 0)
		differs(w, NULL, "%s: %s", way ? "clone" : "fork", strerror(errno));
	if (child == 0)
		child_life(w, turns, depth, acts, code);
	/* The parent's writing after the fork is none of the child's business. */
	struct region *r = region_pick(w, KINDS_PRIVATE);
	if (r)
		region_write(w, r, 0, r->pages < 64 ? r->pages : 64);
	expect_exit(w, await(w, child, "a forked child"), code, way ? "a cloned child" : "a forked child");
	if (stack)
		munmap(stack, BARE_STACK);
}

void family_fork(struct worker *w)
{
	forked(w, 0, 0);
}

/*
 * Killed at any time from its first instruction on, of which the first are not its own: its parent goes on as if
 * nothing were.
 */
void act_fork_killed(struct worker *w)
{
	uint32_t turns[MAX_THREADS][SLOTS + 1];
	unsigned wait_us = one_in(w, 4) ? 0 : random_below(w, 4000);

	note(w, " after %u us", wait_us);
	turns_read(turns);
	pid_t child = fork();
	if (child < 0)
		differs(w, NULL, "fork: %s", strerror(errno));
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		w->child = true;
		verify_inheritance(w, turns);
		for (;;)
			pause();
	}
	struct region *r = region_pick(w, KINDS_PRIVATE);
	if (r)
		region_write(w, r, 0, r->pages < 8 ? r->pages : 8);
	if (wait_us)
		nap_us(wait_us);
	kill(child, SIGKILL);
	int status = await(w, child, "a killed child");
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
		differs(w, NULL, "a killed child ended with status 0x%x", status);
}

void act_fork(struct worker *w)
{
	unsigned depth = one_in(w, 4), acts = one_in(w, 2) ? random_below(w, 30) : 0;

	note(w, " %u deep, %u actions", depth, acts);
	forked(w, depth, acts);
	if (one_in(w, 3))
		region_verify_all(w);
}

/* ---- vfork -------------------------------------------------------------------------------------- */

static __attribute__((noinline)) pid_t vforked(struct worker *w, struct region *r, size_t first, size_t pages)
{
	pid_t child = vfork();

	if (child == 0) {
		/* Our memory, another process: it faults, we wait. */
		region_verify(w, r, first, pages);
		region_write(w, r, first, 1);
		_exit(7);
	}
	return child;
}

void act_vfork(struct worker *w)
{
	struct region *r = region_pick(w, KINDS_ALL);
	size_t first, pages;

	if (!r || !region_run(w, r, 64, &first, &pages))
		return;
	note(w, " region %u pages %zu+%zu", r->id, first, pages);
	pid_t child = vforked(w, r, first, pages);
	if (child < 0)
		differs(w, NULL, "vfork: %s", strerror(errno));
	expect_exit(w, await(w, child, "a vfork child"), 7, "a vfork child");
	region_verify(w, r, first, pages);
}

/* ---- exec of ourselves -------------------------------------------------------------------------- */

/*
 * torture --child SEED HOPS PAGES
 *
 * Reads PAGES times a tag and a page from stdin and verifies them, after HOPS execs of itself, each from
 * a process with memory of its own in use. Writes a sum over all words to stdout. The same words as in
 * its arguments are in TORTURE_CHILD.
 */
static uint64_t sum_page(uint64_t sum, const uint64_t *words)
{
	for (size_t i = 0; i < WORDS; i++)
		sum = mix(sum + words[i]);
	return sum;
}

static void read_all(int fd, void *to, size_t bytes)
{
	for (size_t at = 0; at < bytes;) {
		ssize_t n = read(fd, (char *)to + at, bytes - at);
		if (n > 0)
			at += n;
		else if (n == 0 || errno != EINTR)
			differs(NULL, NULL, "an exec'ed child reads its input: %s after %zu of %zu bytes",
				n ? strerror(errno) : "end of file", at, bytes);
	}
}

int family_child_main(int argc, char **argv)
{
	enum { OWN = 512 };

	if (argc != 5)
		differs(NULL, NULL, "an exec'ed child has %d arguments", argc);
	options.seed = strtoull(argv[2], NULL, 10);
	unsigned hops = atoi(argv[3]), pages = atoi(argv[4]);
	char words[100], least[24];
	const char *said = getenv("TORTURE_CHILD");
	snprintf(words, sizeof words, "%s %s", argv[2], argv[4]);
	if (!said || strcmp(said, words) != 0)
		differs(NULL, NULL, "an exec'ed child's environment says \"%s\", its arguments say \"%s\"",
			said ? said : "", words);
	content_seed(options.seed);

	uint8_t *own = malloc(OWN * PAGE);
	tag_t tag = tag_make(1, 0, hops + 1, 0);
	content_fill_bytes(own, OWN * PAGE, tag);
	nap_us(300);
	bytes_verify(NULL, own, OWN * PAGE, tag, "an exec'ed child's own memory");
	if (hops) {
		snprintf(least, sizeof least, "%u", hops - 1);
		execv(options.program, (char *[]){ "torture", "--child", argv[2], least, argv[4], NULL });
		differs(NULL, NULL, "exec of %s: %s", options.program, strerror(errno));
	}
	uint8_t *got = malloc((size_t)pages * PAGE + 1);
	uint64_t sum = options.seed;
	for (unsigned i = 0; i < pages; i++) {
		uint64_t *page = (uint64_t *)(got + i * PAGE);
		read_all(STDIN_FILENO, &tag, sizeof tag);
		read_all(STDIN_FILENO, page, PAGE);
		if (tag ? !content_matches(page, tag) : !content_is_zero(page, PAGE))
			differs(NULL, page, "an exec'ed child got page %u of %u wrong", i, pages);
		sum = sum_page(sum, page);
	}
	bytes_verify(NULL, own, OWN * PAGE, tag_make(1, 0, hops + 1, 0),
		     "an exec'ed child's own memory, later");
	free(got);
	free(own);
	if (write(STDOUT_FILENO, &sum, sizeof sum) != sizeof sum)
		return 1;
	return 20 + pages % 50;
}

enum birth { SPAWN, FORK, VFORK };

static __attribute__((noinline)) pid_t exec_child(struct worker *w, enum birth birth, char **argv,
						  char **envp, int in, int out)
{
	pid_t child = -1;

	if (birth == SPAWN) {
		posix_spawn_file_actions_t files;
		posix_spawn_file_actions_init(&files);
		posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
		posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
		int error = posix_spawn(&child, options.program, &files, NULL, argv, envp);
		posix_spawn_file_actions_destroy(&files);
		if (error)
			differs(w, NULL, "posix_spawn of %s: %s", options.program, strerror(error));
		return child;
	}
	child = birth == FORK ? fork() : vfork();
	if (child == 0) {
		dup2(in, STDIN_FILENO);
		dup2(out, STDOUT_FILENO);
		execve(options.program, argv, envp);
		_exit(127);
	}
	if (child < 0)
		differs(w, NULL, "fork: %s", strerror(errno));
	return child;
}

void act_exec(struct worker *w)
{
	struct region *r = region_pick(w, KINDS_ALL);
	size_t first, pages;
	int to[2], from[2], variables = 0;
	char seed[24], hops[24], count[24], said[100];
	enum birth birth = random_below(w, 3);

	if (!r || !region_run(w, r, 100, &first, &pages))
		return;
	region_open(w, r, first, pages);
	for (size_t p = first; p < first + pages; p++)
		if (r->cells[p].state == FREED)
			region_write(w, r, p, 1);
	snprintf(seed, sizeof seed, "%llu", (unsigned long long)options.seed);
	snprintf(hops, sizeof hops, "%u", (unsigned)random_below(w, 3));
	snprintf(count, sizeof count, "%zu", pages);
	snprintf(said, sizeof said, "TORTURE_CHILD=%s %s", seed, count);
	note(w, " region %u pages %zu+%zu, birth %u, %s hops", r->id, first, pages, birth, hops);
	while (environ[variables])
		variables++;
	char **envp = calloc(variables + 2, sizeof *envp);
	memcpy(envp, environ, variables * sizeof *envp);
	envp[variables] = said;
	if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0)
		differs(w, NULL, "pipe: %s", strerror(errno));
	char *argv[] = { "torture", "--child", seed, hops, count, NULL };
	pid_t child = exec_child(w, birth, argv, envp, to[0], from[1]);
	free(envp);
	close(to[0]);
	close(from[1]);

	uint64_t sum = options.seed, answer = 0;
	for (size_t p = first; p < first + pages; p++) {
		uint64_t *page = page_at(r, p);
		tag_t tag = r->cells[p].state == FILLED ? r->cells[p].tag : 0;
		struct iovec v[2] = { { &tag, sizeof tag }, { page, PAGE } };
		size_t left = sizeof tag + PAGE;
		for (int i = 0; left;) {
			ssize_t n = writev(to[1], v + i, 2 - i);
			if (n < 0 && errno == EINTR)
				continue;
			if (n <= 0)
				break; /* it died: its status says more */
			left -= n;
			for (; i < 2 && (size_t)n >= v[i].iov_len; i++)
				n -= v[i].iov_len;
			if (i < 2) {
				v[i].iov_base = (char *)v[i].iov_base + n;
				v[i].iov_len -= n;
			}
		}
		sum = sum_page(sum, page);
	}
	close(to[1]);
	ssize_t n;
	while ((n = read(from[0], &answer, sizeof answer)) < 0 && errno == EINTR)
		;
	close(from[0]);
	expect_exit(w, await(w, child, "an exec'ed child"), 20 + pages % 50, "an exec'ed child");
	if (n != sizeof answer || answer != sum)
		differs(w, page_at(r, first), "an exec'ed child answers %zd bytes, %llx instead of %llx", n,
			(unsigned long long)answer, (unsigned long long)sum);
}

/* ---- the shell ---------------------------------------------------------------------------------- */

void act_shell(struct worker *w)
{
	char command[100], line[100] = "";
	unsigned code = random_below(w, 100);

	snprintf(command, sizeof command, "exit %u", code);
	expect_exit(w, system(command), code, "system()");

	snprintf(command, sizeof command, "echo torture %llu; exit %u", (unsigned long long)w->actions, code);
	FILE *f = popen(command, "re");
	if (!f)
		differs(w, NULL, "popen: %s", strerror(errno));
	char *got = fgets(line, sizeof line, f);
	expect_exit(w, pclose(f), code, "popen()");
	snprintf(command, sizeof command, "torture %llu\n", (unsigned long long)w->actions);
	if (!got || strcmp(line, command) != 0)
		differs(w, line, "popen: \"%s\" instead of \"%s\"", line, command);
}
