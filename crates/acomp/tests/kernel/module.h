/*
 * What the kernel's lib/lzo and lib/842 take from <linux/module.h>, for a program in user space, beyond the headers
 * that the kernel has for those (tools/include).
 */
#pragma once

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <linux/types.h>
#include <linux/kernel.h>
#include <linux/bitops.h>
#include <asm-generic/unaligned.h>

static inline u16 get_unaligned_le16(const void *at) { return get_unaligned((const u16 *)at); }
static inline u32 get_unaligned_le32(const void *at) { return get_unaligned((const u32 *)at); }
static inline void put_unaligned_le32(u32 value, void *at) { put_unaligned(value, (u32 *)at); }

#define CONFIG_X86_64 1
#define CONFIG_HAVE_EFFICIENT_UNALIGNED_ACCESS 1
/* User space has both, as numbers to compare with; the kernel has one of them. */
#undef __BIG_ENDIAN

#define __exit
#define EXPORT_SYMBOL_GPL(name)
#define MODULE_LICENSE(text)
#define MODULE_DESCRIPTION(text)
#define MODULE_AUTHOR(text)
#define module_param_named(name, variable, type, mode)
#define module_init(function) static int (*function##_called)(void) __attribute__((unused)) = function
#define module_exit(function) static void (*function##_called)(void) __attribute__((unused)) = function
#define pr_debug(...) ((void)0)
#define pr_err(...) fprintf(stderr, __VA_ARGS__)
#define WARN(condition, ...) ((condition) ? fprintf(stderr, __VA_ARGS__) : 0)

/* Statistics that lib/842 can show: there is nobody to look at them. */
typedef mode_t umode_t;
#define S_IRUGO 0444
#define debugfs_initialized() false
#define debugfs_create_dir(name, parent) NULL
#define debugfs_create_atomic_t(name, mode, parent, value) ((void)(mode))
#define debugfs_remove_recursive(directory)

/* CRC-32 as the kernel's lib/crc32 has it: the highest bit first, and nothing inverted. */
static inline u32 crc32_be(u32 crc, const unsigned char *at, size_t len)
{
	while (len--) {
		crc ^= (u32)*at++ << 24;
		for (int bit = 0; bit < 8; bit++)
			crc = crc << 1 ^ (crc >> 31 ? 0x04c11db7 : 0);
	}
	return crc;
}
