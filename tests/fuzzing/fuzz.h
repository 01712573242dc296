/* What libFuzzer's targets have in common: each gives one parser whatever bytes libFuzzer makes up.
 */
#ifndef ETH_HPP_TESTS_FUZZ_H
#define ETH_HPP_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The path of a file in memory with these bytes, for parsers that open files; valid until the next
 * call. `ending`: of its name, "" for none; NULL where there is no memory. */
const char *fuzz_file(const uint8_t *data, size_t size, const char *ending);

#endif
