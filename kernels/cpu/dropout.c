#include "kernels/cpu/dropout.h"

/* Random blocks are made this many at a time, each of 4 words for 4 elements. */
enum { LANES = 16, WORDS = 4, SPAN = ETH_HPP_CPU_SPAN };
_Static_assert(LANES *WORDS == SPAN, "a span is that many blocks of four words");

/* Keeps the streams of dropout apart from those of the initial weights (kernels/random.h). */
static const uint32_t DOMAIN = 0x80000000u;

/* eth_hpp_random_philox of several counters side by side. */
ETH_HPP_CPU_CLONES
static void philox(const uint32_t first[LANES], const uint32_t second[LANES], uint32_t third,
                   uint32_t fourth, const uint32_t key[2], uint32_t words[WORDS][LANES])
{
    uint32_t k0 = key[0], k1 = key[1];
    for (int lane = 0; lane < LANES; lane++) {
        words[0][lane] = first[lane];
        words[1][lane] = second[lane];
        words[2][lane] = third;
        words[3][lane] = fourth;
    }
    for (int round = 0; round < 10; round++) {
#pragma omp simd
        for (int lane = 0; lane < LANES; lane++) {
            const uint64_t product0 = (uint64_t)0xD2511F53u * words[0][lane];
            const uint64_t product1 = (uint64_t)0xCD9E8D57u * words[2][lane];
            words[0][lane] = (uint32_t)(product1 >> 32) ^ words[1][lane] ^ k0;
            words[1][lane] = (uint32_t)product1;
            words[2][lane] = (uint32_t)(product0 >> 32) ^ words[3][lane] ^ k1;
            words[3][lane] = (uint32_t)product0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* The random words of SPAN elements. A counter is the element's block, with operation and layer
 * above it, and the sample; the key is seed and step. */
static void draw(const struct eth_hpp_dropout *dropout, size_t sample, size_t first,
                 uint32_t words[WORDS][LANES])
{
    const uint64_t number = (uint64_t)dropout->first_sample + sample;
    const uint32_t place = (uint32_t)dropout->layer << 16 | (uint32_t)dropout->operation << 8;
    const uint32_t key[2] = {(uint32_t)dropout->seed,
                             (uint32_t)(dropout->seed >> 32) ^ (uint32_t)dropout->step ^ DOMAIN};
    uint32_t low[LANES], high[LANES];
    for (size_t lane = 0; lane < LANES; lane++) {
        const uint64_t block = first / WORDS + lane;
        low[lane] = (uint32_t)block;
        high[lane] = (uint32_t)(block >> 32 & 0xff) | place;
    }
    philox(low, high, (uint32_t)number, (uint32_t)(number >> 32), key, words);
}

/* Every element of a span, by its word. */
ETH_HPP_CPU_CLONES
static void make_factors(const uint32_t *words, uint32_t threshold, real kept, real factors[SPAN])
{
#pragma omp simd
    for (int i = 0; i < SPAN; i++)
        factors[i] = words[i] < threshold ? 0 : kept;
}

ETH_HPP_CPU_CLONES
static void multiply(size_t count, const real *factors, real *values)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        values[i] *= factors[i];
}

void ETH_HPP_CPU(drop)(const struct eth_hpp_dropout *dropout, size_t sample, size_t first,
                       size_t count, real *values)
{
    const uint32_t threshold = (uint32_t)(dropout->rate * 4294967296.0);
    const real kept = (real)(1 / (1 - dropout->rate));
    for (size_t i = 0; i < count; i += SPAN) {
        const size_t here = count - i < SPAN ? count - i : SPAN;
        uint32_t words[WORDS][LANES];
        real factors[SPAN];
        draw(dropout, sample, first + i, words);
        make_factors(&words[0][0], threshold, kept, factors);
        multiply(here, factors, values + i);
    }
}

/* What the operation was called with. A loop's element is a span of a sample. */
struct work {
    const struct eth_hpp_dropout *dropout;
    size_t count, spans;
    real *values;
};

static void drop_spans(const void *argument, size_t first, size_t end)
{
    const struct work *at = argument;
    for (size_t i = first; i < end; i++) {
        const size_t sample = i / at->spans, begin = i % at->spans * SPAN;
        const size_t left = at->count - begin;
        ETH_HPP_CPU(drop)
        (at->dropout, sample, begin, left < SPAN ? left : SPAN,
         at->values + sample * at->count + begin);
    }
}

static void dropout(void *state, const struct eth_hpp_dropout *dropout, size_t samples,
                    size_t count, void *values)
{
    const struct work at = {
        .dropout = dropout, .count = count, .spans = (count + SPAN - 1) / SPAN, .values = values};
    eth_hpp_cpu_threads_run(state, samples * at.spans, ETH_HPP_CPU_ELEMENTS / SPAN, drop_spans,
                            &at);
}

void ETH_HPP_CPU(dropout_provide)(struct eth_hpp_kernels_ops *ops)
{
    ops->dropout = dropout;
}
