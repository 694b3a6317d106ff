// Asks in all the ways that there are how much memory there is, and prints the answers: a name, and a number of bytes.
// Files are those of the arguments, besides /proc/meminfo. Then a child does the same, which is another program by
// exec: its names begin with "child ".
//
// With "threads" instead, threads read /proc/meminfo all the time, in a handler of signals too, and children of fork do
// it once: what is not as large as what was told first is wrong.

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *prefix = "";

static void tell(const char *name, unsigned long long bytes)
{
	printf("%s%s %llu\n", prefix, name, bytes);
}

static void check(int is_right, const char *what)
{
	if (is_right)
		return;
	printf("%swrong: %s (errno %d)\n", prefix, what, errno);
}

// A line of meminfo, in bytes.
static unsigned long long line(const char *text, const char *name)
{
	const char *at = strstr(text, name);

	return at ? strtoull(at + strlen(name), NULL, 10) * 1024 : 1;
}

// Reads a descriptor twice: by read, and after a seek, which has to say the same where that is a file that was made.
static void tell_file(const char *name, int fd, int is_meminfo)
{
	static char text[1 << 16];
	char names[200];

	errno = 0;
	check(fd >= 0, name);
	long bytes = read(fd, text, sizeof text - 1);

	check(bytes > 0 && errno == 0, "read");
	text[bytes > 0 ? bytes : 0] = 0;
	if (!is_meminfo) {
		tell(name, strncmp(text, "max", 3) == 0 ? ~0ull : strtoull(text, NULL, 10));
		const char *stat = strstr(text, "hierarchical_memory_limit ");

		if (stat)
			tell("hierarchical", strtoull(stat + 26, NULL, 10));
		close(fd);
		return;
	}
	const char *figures[] = {"MemTotal:", "MemFree:", "MemAvailable:", "Cached:", "SwapTotal:", "SwapFree:"};

	for (int i = 0; i < 6; i++) {
		snprintf(names, sizeof names, "%s/%s", name, figures[i]);
		tell(names, line(text, figures[i]));
	}
	char again[8192] = "";

	check(lseek(fd, 0, SEEK_SET) == 0 && read(fd, again, sizeof again - 1) > 0, "seek");
	check(line(again, "MemTotal:") == line(text, "MemTotal:"), "the same again");
	check(pread(fd, again, 9, 0) == 9 && memcmp(again, "MemTotal:", 9) == 0, "pread");
	check(write(fd, again, 1) < 0 && errno == EBADF, "it is open to be read");
	check((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY, "flags");
	check(close(fd) == 0, "close");
}

static void tell_calls(void)
{
	struct sysinfo info;

	check(sysinfo(&info) == 0, "sysinfo");
	tell("sysinfo", info.totalram * info.mem_unit);
	tell("sysinfo/free", info.freeram * info.mem_unit);
	tell("sysinfo/swap", info.totalswap * info.mem_unit);
	check(syscall(SYS_sysinfo, &info) == 0, "sysinfo by number");
	tell("syscall", info.totalram * info.mem_unit);
	tell("sysconf", sysconf(_SC_PHYS_PAGES) * 4096ull);
	tell("sysconf/free", sysconf(_SC_AVPHYS_PAGES) * 4096ull);
	tell("get_phys_pages", get_phys_pages() * 4096ull);
	tell("get_avphys_pages", get_avphys_pages() * 4096ull);
	check(sysconf(_SC_PAGESIZE) == 4096, "page size");
	errno = 0;
	check(sysconf(-1) == -1 && errno == EINVAL, "no such name");
	check(sysinfo((void *)8) == -1 && errno == EFAULT, "no such address");
}

static void tell_meminfo(void)
{
	const char *path = "/proc/meminfo";
	char link[] = "/tmp/zfolio-visible-XXXXXX";
	int lowest = dup(0);

	close(lowest);
	errno = 77;
	int fd = open(path, O_RDONLY);

	check(errno == 77, "errno is left alone");
	check(fd == lowest, "the lowest descriptor");
	check(fcntl(fd, F_GETFD) == 0, "it stays at exec");
	int next = dup(0);

	check(next == lowest + 1, "no other descriptor is left");
	close(next);
	tell_file("open", fd, 1);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	check(fcntl(fd, F_GETFD) == FD_CLOEXEC && fcntl(fd, F_GETFL) & O_NONBLOCK, "flags are kept");
	tell_file("cloexec", fd, 1);
	tell_file("syscall/open", syscall(SYS_open, path, O_RDONLY), 1);
	tell_file("syscall/openat", syscall(SYS_openat, AT_FDCWD, path, O_RDONLY), 1);
	int dir = open("/proc", O_RDONLY | O_DIRECTORY);

	tell_file("openat", openat(dir, "meminfo", O_RDONLY), 1);
	tell_file("dotdot", openat(dir, "self/../meminfo", O_RDONLY), 1);
	check(fchdir(dir) == 0, "fchdir");
	close(dir);
	tell_file("relative", open("meminfo", O_RDONLY), 1);
	check(chdir("/") == 0, "chdir");
	close(mkstemp(link));
	unlink(link);
	check(symlink(path, link) == 0, "symlink");
	tell_file("symlink", open(link, O_RDONLY), 1);
	unlink(link);
	fd = open("/proc/thread-self/../../../meminfo", O_RDONLY);
	tell_file("thread-self", fd, 1);

	const char *modes[] = {"r", "re", "rm"};

	for (int i = 0; i < 3; i++) {
		FILE *file = fopen(path, modes[i]);
		unsigned long long kib = 0;

		check(file && fscanf(file, "MemTotal: %llu kB", &kib) == 1, "fscanf");
		tell(modes[i], kib * 1024);
		check(!!(fcntl(fileno(file), F_GETFD) & FD_CLOEXEC) == (i == 1), "e");
		fclose(file);
	}
	FILE *file = freopen(path, "r", fopen("/dev/null", "r"));
	unsigned long long kib = 0;

	check(file && fscanf(file, "MemTotal: %llu kB", &kib) == 1, "freopen");
	tell("freopen", kib * 1024);
	fclose(file);

	errno = 0;
	check(open("/proc/no such file", O_RDONLY) == -1 && errno == ENOENT, "ENOENT");
	check(!fopen("/proc/no such file", "r") && errno == ENOENT, "ENOENT of fopen");
	// A file that is open for its name alone is the kernel's own.
	char at[64], to[200] = "";

	fd = open(path, O_PATH);
	snprintf(at, sizeof at, "/proc/self/fd/%d", fd);
	long bytes = readlink(at, to, sizeof to);

	check(bytes == (long)strlen(path) && memcmp(to, path, bytes) == 0, "O_PATH");
	close(fd);
}

// What is opened to be written is the file itself.
static void write_limit(const char *path)
{
	int fd = open(path, O_WRONLY);

	if (fd >= 0) {
		check((fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY, "open to be written");
		check(write(fd, "", 0) == 0, "written");
		close(fd);
	}
}

static unsigned long long first;
static _Atomic int wrong, done;

// Without libc's streams: a child of fork and a handler call it.
static void read_once(int signal)
{
	char text[256] = "";
	int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC), before = errno;

	if (fd < 0 || read(fd, text, sizeof text - 1) < 9 || line(text, "MemTotal:") != first)
		wrong++;
	if (fd >= 0)
		close(fd);
	if (signal)
		errno = before;
	done++;
}

static void *read_on(void *unused)
{
	for (int i = 0; i < 500; i++) {
		FILE *file = i % 8 == 0 ? fopen("/proc/meminfo", "r") : NULL;
		unsigned long long kib = 0;

		if (file && (fscanf(file, "MemTotal: %llu kB", &kib) != 1 || kib * 1024 != first))
			wrong++;
		if (file)
			fclose(file);
		read_once(0);
	}
	return unused;
}

static int descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = 0;

	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static int threads(void)
{
	pthread_t readers[4];
	int before = descriptors();

	first = sysconf(_SC_PHYS_PAGES) * 4096ull;
	signal(SIGUSR1, read_once);
	for (int i = 0; i < 4; i++)
		pthread_create(&readers[i], NULL, read_on, NULL);
	for (int i = 0; i < 20; i++) {
		pthread_kill(readers[i % 4], SIGUSR1);
		pid_t pid = fork();

		if (pid == 0) {
			read_once(0);
			_exit(wrong != 0);
		}
		int status = -1;

		check(waitpid(pid, &status, 0) == pid && status == 0, "a child");
	}
	for (int i = 0; i < 4; i++)
		pthread_join(readers[i], NULL);
	check(descriptors() == before, "descriptors are left");
	tell("threads", first);
	tell("reads", done);
	return wrong != 0;
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "threads") == 0)
		return threads();
	int is_child = argc > 1 && strcmp(argv[1], "child") == 0;

	if (is_child)
		prefix = "child ";
	tell_calls();
	tell_meminfo();
	for (int i = 1 + is_child; i < argc; i++) {
		tell_file(argv[i], open(argv[i], O_RDONLY), 0);
		write_limit(argv[i]);
	}
	fflush(stdout);
	if (is_child)
		return 0;
	if (fork() == 0) {
		char *arguments[argc + 2];

		memcpy(arguments + 1, argv, argc * sizeof *argv);
		(arguments[0] = argv[0], arguments[1] = "child", arguments[argc + 1] = NULL);
		execv("/proc/self/exe", arguments);
		_exit(1);
	}
	int status = -1;

	return wait(&status) < 0 || status != 0;
}
