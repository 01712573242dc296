/*
 * Training data: a file of tokens, cut into samples of sequence_length tokens whose targets are the
 * tokens that follow. Sample number n is the same whatever the plan, the rank or the machine.
 *
 * Files: a text, of which every byte is a token (vocabulary 256); or tokens, with a name that ends
 * in ".bin": raw little-endian uint16, or the same behind a header of 256 int32 that starts with
 * 20240520 (magic), 1 (version), number of tokens, as karpathy/llm.c writes them. In a ".bin" file
 * 65535 is padding: it is no target, and read as token 0.
 */
#ifndef ETH_HPP_RUNTIME_DATA_H
#define ETH_HPP_RUNTIME_DATA_H

#include "base/error.h"

/* A target that is not counted, as Hugging Face's and PyTorch's losses have it. */
enum { ETH_HPP_NO_TARGET = -100 };

struct eth_hpp_data;

struct eth_hpp_data_options {
    int sequence_length;
    bool shuffle;  /* false: samples in the file's order */
    uint64_t seed; /* of the shuffle: each pass over the file has an order of its own */
};

/* Opens the file. Freed with eth_hpp_data_close. Errors: INPUT (cannot be opened, empty, too small
 * for one sample, cut off, another format). */
enum eth_hpp_status eth_hpp_data_open(const char *path, const struct eth_hpp_data_options *options,
                                      struct eth_hpp_data **data, struct eth_hpp_error *err);
void eth_hpp_data_close(struct eth_hpp_data *data);

int64_t eth_hpp_data_tokens(const struct eth_hpp_data *data);
/* Samples of one pass over the file. */
int64_t eth_hpp_data_samples(const struct eth_hpp_data *data);
/* Tokens are 0 .. vocabulary-1; known only where the format says so: 256 of a text, 65535 else. */
int eth_hpp_data_vocabulary(const struct eth_hpp_data *data);

/* Writes sample `number` (0 .. without end): sequence_length tokens and targets. `data` is a struct
 * eth_hpp_data: the function fits struct eth_hpp_stage_ops. Not for several threads at once. Errors:
 * INPUT where the file has been cut off since it was opened, IO. */
enum eth_hpp_status eth_hpp_data_sample(void *data, int64_t number, int32_t *tokens,
                                        int32_t *targets, struct eth_hpp_error *err);

#endif
