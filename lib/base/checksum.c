/* Eight bytes at a time by tables ("slicing by 8", Kounavis and Berry 2005). */
#include "base/checksum.h"

#include <pthread.h>
#include <string.h>

enum { SLICES = 8 };
#define POLYNOMIAL 0x82f63b78u /* reflected */

static uint32_t tables[SLICES][256];
static pthread_once_t made = PTHREAD_ONCE_INIT;

static void make_tables(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? POLYNOMIAL : 0);
        tables[0][i] = crc;
    }
    for (int slice = 1; slice < SLICES; slice++)
        for (int i = 0; i < 256; i++)
            tables[slice][i] = (tables[slice - 1][i] >> 8) ^ tables[0][tables[slice - 1][i] & 0xff];
}

/* Byte by byte, so that it is little-endian on every machine. */
static uint32_t word(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

uint32_t eth_hpp_checksum(uint32_t before, const void *data, size_t size)
{
    const unsigned char *at = data;
    uint32_t crc = ~before;
    pthread_once(&made, make_tables);
    for (; size >= SLICES; size -= SLICES, at += SLICES) {
        const uint32_t low = word(at) ^ crc, high = word(at + 4);
        crc = tables[7][low & 0xff] ^ tables[6][low >> 8 & 0xff] ^ tables[5][low >> 16 & 0xff] ^
              tables[4][low >> 24] ^ tables[3][high & 0xff] ^ tables[2][high >> 8 & 0xff] ^
              tables[1][high >> 16 & 0xff] ^ tables[0][high >> 24];
    }
    for (; size > 0; size--, at++)
        crc = (crc >> 8) ^ tables[0][(crc ^ *at) & 0xff];
    return ~crc;
}
