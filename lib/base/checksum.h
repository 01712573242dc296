/* CRC-32C (Castagnoli; RFC 3720, appendix B.4), by which damage to stored data is found. */
#ifndef ETH_HPP_BASE_CHECKSUM_H
#define ETH_HPP_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* Of `size` bytes that follow those of which `before` is the checksum; 0: nothing before. */
uint32_t eth_hpp_checksum(uint32_t before, const void *data, size_t size);

#endif
