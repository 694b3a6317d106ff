/* lost MIB: fills memory with noise and reads it again when it is told to, with a handler for pages that cannot be
 * restored. Prints how many pages were lost, and how many words were wrong. Lost pages are touched twice. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static sigjmp_buf back;
static volatile uintptr_t page;
static volatile int elsewhere;

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

static void lost(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	if (((uintptr_t)info->si_addr & ~4095ul) != page)
		elsewhere++;
	siglongjmp(back, 1);
}

/* Reads a page; how many of its words are wrong, or -1 if it is lost. */
static int look(volatile uint64_t *words, uint64_t first)
{
	int wrong = 0;

	page = (uintptr_t)words;
	if (sigsetjmp(back, 1))
		return -1;
	for (int i = 0; i < 512; i++)
		wrong += words[i] != mix(first + i);
	return wrong;
}

int main(int argc, char **argv)
{
	size_t pages = (argc > 1 ? strtoul(argv[1], NULL, 10) : 64) * 256;
	uint64_t *memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct sigaction action = { .sa_sigaction = lost, .sa_flags = SA_SIGINFO };
	int gone = 0, back_again = 0, wrong = 0;

	if (memory == MAP_FAILED || sigaction(SIGBUS, &action, NULL) != 0)
		return 90;
	for (size_t i = 0; i < pages * 512; i++)
		memory[i] = mix(i);
	puts("ready");
	fflush(stdout);
	if (getchar() == EOF)
		return 91;
	for (size_t i = 0; i < pages; i++) {
		int words = look(memory + i * 512, i * 512);

		if (words >= 0) {
			wrong += words;
			continue;
		}
		gone++;
		back_again += look(memory + i * 512, i * 512) >= 0;
	}
	printf("lost %d wrong %d back %d elsewhere %d\n", gone, wrong, back_again, elsewhere);
	return 0;
}
