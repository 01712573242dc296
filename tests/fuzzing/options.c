#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/option.h"

enum { WORDS_MAX = 64 };

/* The bytes are words, each ended by a newline. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *words[WORDS_MAX + 1] = {"program"}, *text = strndup((const char *)data, size),
                            *left = text;
    int count = 1, rest;
    bool help;
    struct eth_hpp_option_set set;
    struct eth_hpp_error err;
    while (left != NULL && count < WORDS_MAX)
        words[count++] = strsep(&left, "\n");
    if (text != NULL && eth_hpp_option_set_init(&set, eth_hpp_job_options, ETH_HPP_JOB_OPTIONS,
                                                &err) == ETH_HPP_OK) {
        eth_hpp_option_parse(&set, count, words, &rest, &help, &err);
        eth_hpp_option_set_free(&set);
    }
    free(text);
    return 0;
}
