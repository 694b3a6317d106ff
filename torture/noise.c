/*
 * Noise: threads that are inside stdio and malloc, with their locks held, most of the time. fork takes these locks, and
 * a child must find them free and what they guard in order.
 */
#include "torture.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { NOTES = 64, NOTE_BYTES = 3000 };

static FILE *nowhere;

/* Allocations of all sizes, of which the first bytes say how long they are. */
static void churn(size_t *notes[NOTES], uint64_t *random)
{
	*random = mix(*random + 1);
	size_t **note = &notes[*random % NOTES], bytes = sizeof(size_t) + *random / NOTES % NOTE_BYTES;

	if (*note && **note > NOTE_BYTES + sizeof(size_t))
		differs(NULL, *note, "an allocation of %zu bytes among those of the noise", **note);
	free(*note);
	*note = malloc(bytes);
	**note = bytes;
	memset(*note + 1, (int)bytes, bytes - sizeof(size_t));
}

static void *noise(void *argument)
{
	size_t *notes[NOTES] = { 0 };
	uint64_t random = options.seed + (uintptr_t)argument;

	for (;;) {
		flockfile(nowhere);
		for (int i = 0; i < 8; i++) {
			churn(notes, &random);
			fprintf(nowhere, "%llx %g\n", (unsigned long long)random, (double)random);
		}
		fflush_unlocked(nowhere);
		funlockfile(nowhere);
		if (random % 4 == 0)
			nap_us(random / 4 % 300);
	}
	return NULL;
}

static ssize_t swallow(void *cookie, const char *bytes, size_t count)
{
	(void)cookie;
	(void)bytes;
	return count;
}

void noise_begin(void)
{
	pthread_t thread;
	sigset_t all, before;

	/* Of no descriptor, which other actions close. */
	nowhere = fopencookie(NULL, "w", (cookie_io_functions_t){ .write = swallow });
	if (!nowhere) {
		perror("torture: fopencookie");
		exit(2);
	}
	/* What is sent to the process is for the workers. */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	for (uintptr_t i = 0; i < 2; i++) {
		int error = pthread_create(&thread, NULL, noise, (void *)i);
		if (error) {
			fprintf(stderr, "torture: pthread_create: %s\n", strerror(error));
			exit(2);
		}
		pthread_detach(thread);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Whoever held the locks is not here. */
void noise_in_child(struct worker *w)
{
	size_t *notes[NOTES] = { 0 };
	uint64_t random = options.seed + w->actions;

	for (int i = 0; i < 100; i++)
		churn(notes, &random);
	fprintf(nowhere, "%s\n", "a child");
	fflush(nowhere);
	for (int i = 0; i < NOTES; i++)
		free(notes[i]);
}
