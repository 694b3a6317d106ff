/* The table of checks; how one is run, and what all of them stand on. */
#include "cloak.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

#define MEMORY_MIB 100
#define LIMIT_MS 60000
#define SKIPPED 77

struct check {
	const char *name;
	void (*fn)(void);
	int ending;
	const char *what;
};

#define ROW(name, what) { #name, check_##name, 0, what },
#define ROW_ENDING(name, ending, what) { #name, check_##name, ending, what },
static const struct check checks[] = { CHECKS_APPEARANCE(ROW) CHECKS_PRIVILEGE(ROW) CHECKS_DESCENT(ROW)
					       CHECKS_ENDING(ROW_ENDING) };
#define CHECK_COUNT (sizeof checks / sizeof *checks)

/* Where those that this program starts find how much to fill. */
#define MEMORY_VARIABLE "CLOAK_MIB"

static char program_path[4096];
const char *program = program_path;
uint8_t *memory;
size_t memory_pages;
static size_t memory_bytes = (size_t)MEMORY_MIB << 20;
static unsigned memory_generation = 1;

/* ---- memory ------------------------------------------------------------------------------------- */

static tag_t memory_tag(size_t page)
{
	/* A tenth of the pages is of the latest generation, the rest of the first. */
	bool latest = page % 10 == 3;

	return tag_make(1 + page / PAGE_IDS, page, latest ? memory_generation : 1, 0);
}

static void memory_fill(void)
{
	memory_pages = memory_bytes / PAGE;
	memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
	for (size_t p = 0; p < memory_pages; p++)
		content_fill(memory + p * PAGE, memory_tag(p));
}

void memory_write(void)
{
	memory_generation++;
	for (size_t p = 3; p < memory_pages; p += 10)
		content_fill(memory + p * PAGE, memory_tag(p));
}

bool memory_is_right(void)
{
	for (size_t p = 0; p < memory_pages; p++)
		if (!content_matches(memory + p * PAGE, memory_tag(p)))
			return false;
	return true;
}

void memory_verify(void)
{
	char found[512];

	for (size_t p = 0; p < memory_pages; p++) {
		const uint8_t *page = memory + p * PAGE;
		if (content_matches(page, memory_tag(p)))
			continue;
		content_describe(found, sizeof found, page, memory_tag(p), 0);
		fail("memory differs at %p, page %zu: %s", (void *)page, p, found);
	}
}

void memory_rest(void)
{
	struct timespec t = { 0, 200000000 };

	while (nanosleep(&t, &t) != 0 && errno == EINTR)
		;
}

/* ---- verdicts ----------------------------------------------------------------------------------- */

/* Straight to descriptor 1 and out: exit handlers and stdio may be what is under test. */
static _Noreturn void end_with(int code, const char *format, va_list args)
{
	char text[1024];

	vsnprintf(text, sizeof text - 1, format, args);
	strcat(text, "\n");
	if (write(STDOUT_FILENO, text, strlen(text)) < 0)
		_exit(code + 1);
	_exit(code);
}

void fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	end_with(1, format, args);
}

void skip(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	end_with(SKIPPED, format, args);
}

/* ---- children ----------------------------------------------------------------------------------- */

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void nap_ms(unsigned ms)
{
	nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL);
}

int await(pid_t child)
{
	uint64_t end = now_ms() + LIMIT_MS / 2;
	int status;

	for (;;) {
		pid_t got = waitpid(child, &status, WNOHANG);
		if (got == child)
			return status;
		if (got < 0 && errno != EINTR)
			fail("waitpid: %s", strerror(errno));
		if (now_ms() > end) {
			kill(child, SIGKILL);
			fail("a child has not ended after %d s", LIMIT_MS / 2000);
		}
		nap_ms(2);
	}
}

void expect_exit(pid_t child, int code, const char *what)
{
	if (child < 0)
		fail("%s: %s", what, strerror(errno));
	int status = await(child);
	if (WIFSIGNALED(status))
		fail("%s: killed by signal %d (%s)", what, WTERMSIG(status), strsignal(WTERMSIG(status)));
	if (WEXITSTATUS(status) != code)
		fail("%s: exit code %d instead of %d", what, WEXITSTATUS(status), code);
}

void fork_and_verify(void)
{
	pid_t child = fork();

	if (child == 0) {
		memory_verify();
		_exit(19);
	}
	expect_exit(child, 19, "a forked child");
}

static pid_t spawn(const char *const *arguments, int out, bool group)
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	sigset_t none, all;
	pid_t child;

	posix_spawn_file_actions_init(&files);
	if (out >= 0)
		posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
	posix_spawnattr_init(&attributes);
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &all);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
						      (group ? POSIX_SPAWN_SETPGROUP : 0));
	int error = posix_spawn(&child, program, &files, &attributes, (char *const *)arguments, environ);
	posix_spawn_file_actions_destroy(&files);
	posix_spawnattr_destroy(&attributes);
	if (error)
		fail("posix_spawn of %s: %s", program, strerror(error));
	return child;
}

pid_t spawn_self(const char *const *arguments)
{
	return spawn(arguments, -1, false);
}

/* ---- the run ------------------------------------------------------------------------------------ */

/* How many living processes belong to the group, by /proc. */
static unsigned living_in_group(pid_t group, char *names, size_t room)
{
	DIR *proc = opendir("/proc");
	unsigned n = 0;

	names[0] = 0;
	for (struct dirent *e; proc && (e = readdir(proc));) {
		char path[300], text[512], state, *after;
		int parent, its_group;
		if (!isdigit((unsigned char)e->d_name[0]))
			continue;
		snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
		FILE *f = fopen(path, "re");
		if (!f)
			continue;
		if (fgets(text, sizeof text, f) && (after = strrchr(text, ')')) &&
		    sscanf(after + 1, " %c %d %d", &state, &parent, &its_group) == 3 && its_group == group &&
		    state != 'Z' && state != 'X') {
			*after = 0;
			snprintf(names, room, "%.60s)", text);
			n++;
		}
		fclose(f);
	}
	if (proc)
		closedir(proc);
	return n;
}

static void say_ending(char *text, size_t room, int status)
{
	if (WIFSIGNALED(status))
		snprintf(text, room, "was killed by signal %d (%s)", WTERMSIG(status),
			 strsignal(WTERMSIG(status)));
	else
		snprintf(text, room, "ended with exit code %d", WEXITSTATUS(status));
}

enum verdict { PASSED, FAILED, SKIPPED_CHECK };

static enum verdict judge(const struct check *c, int status, const char *said, char *why, size_t room)
{
	if (said[0] && WIFEXITED(status) && (WEXITSTATUS(status) == 1 || WEXITSTATUS(status) == SKIPPED)) {
		snprintf(why, room, "%s", said);
		return WEXITSTATUS(status) == 1 ? FAILED : SKIPPED_CHECK;
	}
	if (c->ending < 0 ? !WIFSIGNALED(status) || WTERMSIG(status) != -c->ending
			  : !WIFEXITED(status) || WEXITSTATUS(status) != c->ending) {
		say_ending(why, room, status);
		return FAILED;
	}
	return PASSED;
}

/* Runs one check in a process of its own and waits for its end, and for that of all it started. */
static enum verdict run(const struct check *c, char *why, size_t room)
{
	char said[1024] = "", names[128];
	size_t used = 0;
	int out[2], status = 0;
	bool late = false;

	if (pipe2(out, O_CLOEXEC | O_NONBLOCK) != 0)
		fail("pipe: %s", strerror(errno));
	pid_t child = spawn((const char *[]){ "cloak", "--one", c->name, NULL }, out[1], true);
	close(out[1]);
	for (uint64_t end = now_ms() + LIMIT_MS; waitpid(child, &status, WNOHANG) != child; nap_ms(5)) {
		if (!late && now_ms() > end) {
			late = true;
			kill(-child, SIGKILL);
		}
	}
	for (ssize_t n;
	     used < sizeof said - 1 && (n = read(out[0], said + used, sizeof said - 1 - used)) > 0;)
		used += n;
	said[used] = 0;
	close(out[0]);
	/* A line from each process that had something to say: the innermost comes first. */
	while (used && said[used - 1] == '\n')
		said[--used] = 0;
	for (char *end; (end = strchr(said, '\n'));)
		*end = ';';

	enum verdict verdict = judge(c, status, said, why, room);
	if (late) {
		snprintf(why, room, "not done after %d s", LIMIT_MS / 1000);
		verdict = FAILED;
	}
	unsigned left = living_in_group(child, names, sizeof names);
	for (unsigned i = 0; left && i < 200; i++) {
		nap_ms(10);
		left = living_in_group(child, names, sizeof names);
	}
	if (left) {
		kill(-child, SIGKILL);
		if (verdict == PASSED)
			snprintf(why, room, "left %u processes behind, such as %s", left, names);
		verdict = FAILED;
	}
	return verdict;
}

static const struct check *find(const char *name)
{
	for (unsigned i = 0; i < CHECK_COUNT; i++)
		if (strcmp(checks[i].name, name) == 0)
			return &checks[i];
	fprintf(stderr, "cloak: no check is called %s; see cloak --list\n", name);
	exit(2);
}

static int run_some(char **names)
{
	static const char *const words[] = { "ok", "FAIL", "skip" };
	unsigned counts[3] = { 0 };
	char why[1200];

	/* What we were given by whoever started us is no check's business. */
	close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
	for (unsigned i = 0; *names ? names[i] != NULL : i < CHECK_COUNT; i++) {
		const struct check *c = *names ? find(names[i]) : &checks[i];
		enum verdict verdict = run(c, why, sizeof why);
		counts[verdict]++;
		printf("%s %s%s%s\n", words[verdict], c->name, verdict == PASSED ? "" : ": ",
		       verdict == PASSED ? "" : why);
		fflush(stdout);
	}
	printf("%u passed, %u failed, %u skipped\n", counts[PASSED], counts[FAILED], counts[SKIPPED_CHECK]);
	return counts[FAILED] ? 1 : 0;
}

static void memory_is_to_be(const char *mib)
{
	if (mib && atoi(mib) > 0)
		memory_bytes = (size_t)atoi(mib) << 20;
}

int main(int argc, char **argv)
{
	content_seed(7);
	memory_is_to_be(getenv(MEMORY_VARIABLE));
	if (readlink("/proc/self/exe", program_path, sizeof program_path - 1) < 0)
		snprintf(program_path, sizeof program_path, "%s", argv[0]);
	if (argc == 3 && strcmp(argv[1], "--one") == 0) {
		const struct check *c = find(argv[2]);
		first_sight_take();
		memory_fill();
		memory_rest();
		c->fn();
		return 0;
	}
	if (argc == 3 && strcmp(argv[1], "--after-exec") == 0) {
		first_sight_take();
		memory_fill();
		memory_rest();
		look_around_after_exec(atoi(argv[2]));
		return 0;
	}
	if (argc == 3 && strcmp(argv[1], "--stopper") == 0)
		return stopper_main(atoi(argv[2]));
	if (argc == 3 && strcmp(argv[1], "--exit") == 0)
		return atoi(argv[2]);
	if (argc == 3 && strcmp(argv[1], "--die") == 0) {
		kill(getpid(), atoi(argv[2]));
		return 0;
	}
	if (argc == 2 && strcmp(argv[1], "--list") == 0) {
		for (unsigned i = 0; i < CHECK_COUNT; i++)
			printf("%-20s %s\n", checks[i].name, checks[i].what);
		return 0;
	}
	if (argc >= 3 && strcmp(argv[1], "--memory") == 0) {
		setenv(MEMORY_VARIABLE, argv[2], 1);
		argv += 2;
		argc -= 2;
	}
	if (argc > 1 && argv[1][0] == '-') {
		fprintf(stderr, "usage: cloak --list | [--memory MIB] [NAME...]\n");
		return 2;
	}
	return run_some(argv + 1);
}
