/* Models known by name; figures from their published config.json. */
#include "model/model.h"

#include <stdio.h>
#include <string.h>

/* Nothing unlike, no dropout. */
#define PLAIN "", 0, 0, 0

static const struct eth_hpp_model presets[] = {
    /* name, family, vocabulary, context, decoders, hidden, inner, heads, key-value heads, head
       size, tied, PLAIN, norms' epsilon, rotary theta */
    {"gpt2", ETH_HPP_GPT2, 50257, 1024, 12, 768, 3072, 12, 12, 64, true, PLAIN, 1e-5, 0},
    {"gpt2-medium", ETH_HPP_GPT2, 50257, 1024, 24, 1024, 4096, 16, 16, 64, true, PLAIN, 1e-5, 0},
    {"gpt2-large", ETH_HPP_GPT2, 50257, 1024, 36, 1280, 5120, 20, 20, 64, true, PLAIN, 1e-5, 0},
    {"gpt2-xl", ETH_HPP_GPT2, 50257, 1024, 48, 1600, 6400, 25, 25, 64, true, PLAIN, 1e-5, 0},
    /* Byte-level models for demonstrations and tests: few layers beside many. */
    {"gpt2-tiny6", ETH_HPP_GPT2, 256, 64, 6, 64, 256, 4, 4, 16, true, PLAIN, 1e-5, 0},
    {"gpt2-tiny24", ETH_HPP_GPT2, 256, 64, 24, 64, 256, 4, 4, 16, true, PLAIN, 1e-5, 0},
    {"llama-tiny", ETH_HPP_LLAMA, 256, 64, 6, 64, 176, 4, 2, 16, false, PLAIN, 1e-5, 1e4},
    {"opt-1.3b", ETH_HPP_OPT, 50272, 2048, 24, 2048, 8192, 32, 32, 64, true, PLAIN, 1e-5, 0},
    {"opt-2.7b", ETH_HPP_OPT, 50272, 2048, 32, 2560, 10240, 32, 32, 80, true, PLAIN, 1e-5, 0},
    {"llama-7b", ETH_HPP_LLAMA, 32000, 4096, 32, 4096, 11008, 32, 32, 128, false, PLAIN, 1e-5, 1e4},
    {"llama-13b", ETH_HPP_LLAMA, 32000, 4096, 40, 5120, 13824, 40, 40, 128, false, PLAIN, 1e-5,
     1e4},
    {"llama-70b", ETH_HPP_LLAMA, 32000, 4096, 80, 8192, 28672, 64, 8, 128, false, PLAIN, 1e-5, 1e4},
    {"mistral-7b", ETH_HPP_MISTRAL, 32000, 32768, 32, 4096, 14336, 32, 8, 128, false, PLAIN, 1e-5,
     1e6},
    {"qwen2-7b", ETH_HPP_QWEN2, 152064, 32768, 28, 3584, 18944, 28, 4, 128, false, PLAIN, 1e-6,
     1e6},
    {"gpt-neox-20b", ETH_HPP_GPT_NEOX, 50432, 2048, 44, 6144, 24576, 64, 64, 96, false, PLAIN, 1e-5,
     1e4},
};
enum { PRESETS = sizeof(presets) / sizeof(presets[0]) };

const struct eth_hpp_model *eth_hpp_preset_find(const char *name)
{
    for (int i = 0; i < PRESETS; i++)
        if (strcmp(presets[i].name, name) == 0)
            return &presets[i];
    return NULL;
}

const char *eth_hpp_preset_names(void)
{
    static char names[512];
    size_t used = 0;
    for (int i = 0; i < PRESETS && used < sizeof(names); i++)
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", i > 0 ? ", " : "",
                                 presets[i].name);
    return names;
}
