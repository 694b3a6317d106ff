/*
 * What compiled code expects of a C library, for a library that has none: libzfolio.so must not call into the program's
 * libc, whose functions may be interposed, may touch thread-local storage, and may not be resolved yet when the engine
 * runs.
 *
 * All symbols are hidden, so the program never sees them. The code lies with what runs in every process (see patch.rs).
 */
#include <stddef.h>
#include <stdint.h>

typedef struct { uint64_t w[2]; } __attribute__((packed, may_alias)) two;
typedef uint64_t __attribute__((aligned(1), may_alias)) word;

#define START __attribute__((section(".text.startup.zfolio")))

/* Above this many bytes the processor's own string instruction is as fast as any loop. */
enum { STRING = 512 };

START void *memmove(void *to, const void *from, size_t n)
{
	unsigned char *d = to;
	const unsigned char *s = from;

	if (n < 16) {
		if (n >= 8) {
			uint64_t a = *(const word *)s, b = *(const word *)(s + n - 8);
			*(word *)d = a;
			*(word *)(d + n - 8) = b;
		} else if ((uintptr_t)d - (uintptr_t)s >= n) {
			for (size_t i = 0; i < n; i++)
				d[i] = s[i];
		} else {
			while (n--)
				d[n] = s[n];
		}
		return to;
	}
	if ((uintptr_t)d - (uintptr_t)s >= n) {
		if (n >= STRING) {
			__asm__ volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(n) : : "memory");
			return to;
		}
		/* The tail is read first: the loop may write over it when the ranges overlap. */
		two tail = *(const two *)(s + n - 16);
		size_t i = 0;
		for (; i + 16 < n; i += 16)
			*(two *)(d + i) = *(const two *)(s + i);
		*(two *)(d + n - 16) = tail;
		return to;
	}
	two head = *(const two *)s;
	for (size_t i = n; i > 16; i -= 16)
		*(two *)(d + i - 16) = *(const two *)(s + i - 16);
	*(two *)d = head;
	return to;
}

START void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
	return memmove(to, from, n);
}

START void *memset(void *to, int byte, size_t n)
{
	unsigned char *d = to;

	if (n >= 64) {
		__asm__ volatile("rep stosb" : "+D"(d), "+c"(n) : "a"(byte) : "memory");
		return to;
	}
	for (size_t i = 0; i < n; i++)
		d[i] = (unsigned char)byte;
	return to;
}

START int memcmp(const void *left, const void *right, size_t n)
{
	const unsigned char *a = left, *b = right;

	while (n >= 8 && *(const word *)a == *(const word *)b) {
		a += 8;
		b += 8;
		n -= 8;
	}
	for (size_t i = 0; i < n; i++)
		if (a[i] != b[i])
			return a[i] < b[i] ? -1 : 1;
	return 0;
}

START int bcmp(const void *left, const void *right, size_t n)
{
	return memcmp(left, right, n);
}

START size_t strlen(const char *s)
{
	size_t n = 0;

	while (s[n])
		n++;
	return n;
}

/* The compressors' contexts are static: nobody allocates through these, and if somebody does, it must show at once. */
void *malloc(size_t n) { (void)n; __builtin_trap(); }
void *calloc(size_t n, size_t m) { (void)n; (void)m; __builtin_trap(); }
void *realloc(void *p, size_t n) { (void)p; (void)n; __builtin_trap(); }
void free(void *p) { if (p) __builtin_trap(); }

/* Named by the unwind tables of the Rust core library; nothing unwinds here. */
void rust_eh_personality(void) { __builtin_trap(); }
void _Unwind_Resume(void *e) { (void)e; __builtin_trap(); }
