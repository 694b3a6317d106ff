/*
 * Which ways are gone through the C libraries: gcc calls this at every edge (-fsanitize-coverage=trace-pc; build.rs
 * gives it this name), and libFuzzer looks at what it calls extra counters. Two edges that share one of them are one to
 * it: that happens to few.
 */
#include <stdint.h>

enum { BITS = 16 };

__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t ways[1 << BITS];

__attribute__((no_sanitize_address, no_sanitize_coverage)) void __wrap___sanitizer_cov_trace_pc(void)
{
	uint64_t pc = (uint64_t)__builtin_return_address(0);
	uint8_t *way = &ways[pc * 0x9e3779b97f4a7c15 >> (64 - BITS)];
	*way += *way != 255;
}
