/*
 * Signals: to each thread its own, every millisecond, handled on its stack or on an alternate one. The
 * handler owns a plot of memory that nobody else touches: it verifies a page of it and writes another.
 *
 * And SIGSEGV, caught and mended, as garbage collectors do.
 */
#include "torture.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

#define PLOT_PAGES 48
#define ALTERNATE_BYTES ((size_t)128 << 10)

static int signal_number(bool alternate)
{
	return SIGRTMIN + 3 + alternate;
}

static void on_tick(int number, siginfo_t *info, void *context)
{
	struct worker *w = info->si_value.sival_ptr;
	int saved_errno = errno;
	uint8_t here;

	(void)context;
	bool on_alternate =
		&here >= (uint8_t *)w->alternate && &here < (uint8_t *)w->alternate + ALTERNATE_BYTES;
	if (on_alternate != (number == signal_number(true)))
		differs(w, &here, "signal %d is handled on the wrong stack", number);
	/* Late already: work would leave no time for anything else. */
	if (info->si_overrun == 0) {
		struct region *r = &w->plot;
		atomic_fetch_add(r->turn, 1);
		w->ticks++;
		region_verify(w, r, mix(w->ticks) % PLOT_PAGES, 1);
		region_write(w, r, mix(w->ticks * 3) % PLOT_PAGES, 1);
		atomic_fetch_add(r->turn, 1);
	}
	errno = saved_errno;
}

/* ---- the write barrier -------------------------------------------------------------------------- */

static _Atomic(uint8_t *) barriers[MAX_THREADS];
#define BARRIER_PAGES 16

static void on_fault(int number, siginfo_t *info, void *context)
{
	uint8_t *at = info->si_addr;
	ucontext_t *interrupted = context;

	for (unsigned i = 0; i < options.threads; i++) {
		uint8_t *barrier = barriers[i];
		if (!barrier || at < barrier || at >= barrier + BARRIER_PAGES * PAGE)
			continue;
		if (info->si_code != SEGV_ACCERR)
			differs(&workers[i], at,
				"SIGSEGV at a write barrier has code %d instead of SEGV_ACCERR",
				info->si_code);
		mprotect((void *)((uintptr_t)at & ~(PAGE - 1)), PAGE, PROT_READ | PROT_WRITE);
		return;
	}
	/* Not ours. A second one, while this is told, kills. */
	signal(number, SIG_DFL);
	differs(NULL, at, "SIGSEGV with code %d, by the instruction at %p", info->si_code,
		(void *)interrupted->uc_mcontext.gregs[REG_RIP]);
}

void act_barrier(struct worker *w)
{
	uint8_t *at = map_pages(BARRIER_PAGES);
	tag_t tag = tag_make(REGION_IDS - 6 - MAX_THREADS, w->index * 16, w->actions % GENERATIONS, 0);

	if (!at)
		return;
	note(w, " %p", (void *)at);
	content_fill_bytes(at, BARRIER_PAGES * PAGE, tag);
	barriers[w->index] = at;
	mprotect(at, BARRIER_PAGES * PAGE, PROT_READ);
	nap_us(random_below(w, 1000));
	for (unsigned i = 0; i < BARRIER_PAGES; i++) {
		uint8_t *page = at + i * PAGE;
		size_t offset = random_below(w, PAGE);
		if (one_in(w, 2)) {
			/* The fault is the kernel's here, and an error. */
			if (syscall(SYS_clock_gettime, CLOCK_MONOTONIC, page) == 0 || errno != EFAULT)
				differs(w, page, "the kernel wrote to read-only memory");
		}
		((volatile uint8_t *)page)[offset] ^= 0xff;
		((volatile uint8_t *)page)[offset] ^= 0xff;
	}
	bytes_verify(w, at, BARRIER_PAGES * PAGE, tag, "memory behind a write barrier");
	barriers[w->index] = NULL;
	munmap(at, BARRIER_PAGES * PAGE);
}

/* ---- on and off --------------------------------------------------------------------------------- */

void signals_install(void)
{
	struct sigaction action = { .sa_sigaction = on_tick, .sa_flags = SA_SIGINFO | SA_RESTART };

	sigaddset(&action.sa_mask, signal_number(false));
	sigaddset(&action.sa_mask, signal_number(true));
	sigaction(signal_number(false), &action, NULL);
	action.sa_flags |= SA_ONSTACK;
	sigaction(signal_number(true), &action, NULL);

	struct sigaction fault = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	sigaction(SIGSEGV, &fault, NULL);
}

void signals_begin(struct worker *w)
{
	struct region *r = &w->plot;

	r->base = map_pages(PLOT_PAGES);
	r->pages = PLOT_PAGES;
	r->kind = PLAIN;
	r->id = region_id();
	for (unsigned i = 0; i < PLOT_PAGES; i++)
		r->cells[i].state = EMPTY;
	w->alternate = map_pages(ALTERNATE_BYTES / PAGE);
	if (sigaltstack(&(stack_t){ .ss_sp = w->alternate, .ss_size = ALTERNATE_BYTES }, NULL) != 0)
		differs(w, w->alternate, "sigaltstack: %s", strerror(errno));
	for (unsigned alternate = 0; alternate < 2; alternate++) {
		struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID,
					  .sigev_signo = signal_number(alternate),
					  .sigev_value.sival_ptr = w };
		event.sigev_notify_thread_id = syscall(SYS_gettid);
		if (timer_create(CLOCK_MONOTONIC, &event, &w->timers[alternate]) != 0)
			differs(w, NULL, "timer_create: %s", strerror(errno));
	}
}

/* Each of the two timers runs or rests until the next time. */
void act_signals(struct worker *w)
{
	for (unsigned alternate = 0; alternate < 2; alternate++) {
		bool on = one_in(w, 2);
		struct itimerspec every = { .it_interval.tv_nsec = on * 1000000,
					    .it_value.tv_nsec = on * (1 + random_below(w, 1000000)) };
		note(w, " %s %s", alternate ? "alternate" : "usual", on ? "on" : "off");
		timer_settime(w->timers[alternate], 0, &every, NULL);
	}
}

void signals_end(struct worker *w)
{
	timer_delete(w->timers[0]);
	timer_delete(w->timers[1]);
	sigaltstack(&(stack_t){ .ss_flags = SS_DISABLE }, NULL);
	region_verify(w, &w->plot, 0, PLOT_PAGES);
}
