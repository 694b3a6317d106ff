/*
 * streams c|d lzo|lzo-rle|842: what the kernel's own lib/lzo and lib/842 make of units, for tools/kernel-streams.
 *
 * Standard input is units (c) or streams (d), standard output the other; each behind its length, in 4 bytes, and before
 * a stream stands how many bytes it holds.
 */
#include <stdlib.h>

#include <linux/module.h>
#include <linux/lzo.h>
#include <linux/sw842.h>

enum { ROOM = 4 << 20 };

static u8 in[ROOM], out[ROOM], work[1 << 20];

static void die(const char *what)
{
	fprintf(stderr, "streams: %s\n", what);
	exit(1);
}

static bool get_length(u32 *length)
{
	size_t got = fread(length, 1, sizeof *length, stdin);

	if (got != 0 && got != sizeof *length)
		die("the input ends in a length");
	if (got && *length > ROOM)
		die("that is too long");
	return got;
}

static void get(u32 length)
{
	if (fread(in, 1, length, stdin) != length)
		die("the input ends too early");
}

static void put(const void *at, size_t length)
{
	u32 head = length;

	fwrite(&head, sizeof head, 1, stdout);
	fwrite(at, 1, length, stdout);
}

/* The length of the stream. */
static size_t compress(const char *name, u32 length)
{
	size_t room = ROOM;
	unsigned int room842 = ROOM;
	int error;

	if (!strcmp(name, "lzo"))
		error = lzo1x_1_compress_safe(in, length, out, &room, work);
	else if (!strcmp(name, "lzo-rle"))
		error = lzorle1x_1_compress_safe(in, length, out, &room, work);
	else {
		error = sw842_compress(in, length, out, &room842, work);
		room = room842;
	}
	if (error)
		die("a unit was not compressed");
	return room;
}

/* How many bytes it holds, of which there are to be so many. */
static size_t decompress(const char *name, u32 length, u32 plain)
{
	size_t room = plain;
	unsigned int room842 = plain;
	int error;

	if (!strcmp(name, "842")) {
		error = sw842_decompress(in, length, out, &room842);
		room = room842;
	} else
		error = lzo1x_decompress_safe(in, length, out, &room);
	if (error)
		die("a stream was refused");
	return room;
}

int main(int argc, char **argv)
{
	u32 length, plain;

	if (argc != 3 || (strcmp(argv[2], "lzo") && strcmp(argv[2], "lzo-rle") && strcmp(argv[2], "842")))
		die("usage: streams c|d lzo|lzo-rle|842");
	if (*argv[1] == 'c') {
		while (get_length(&length)) {
			get(length);
			fwrite(&length, sizeof length, 1, stdout);
			put(out, compress(argv[2], length));
		}
	} else {
		while (get_length(&plain)) {
			if (!get_length(&length))
				die("the input ends in a length");
			get(length);
			put(out, decompress(argv[2], length, plain));
		}
	}
	return 0;
}
