/*
 * What CUDA reads of the environment. The kernel of a receive that is posted ahead runs until its
 * data come, which wait for what is launched after it. So nothing may stand behind it by accident:
 * streams are not to share one of the 8 queues to the device that there are unless more are asked
 * for, and a kernel is not to be loaded at its first launch, which waits for those that run (CUDA
 * C++ Programming Guide, on environment variables and on lazy loading). CUDA reads the variables
 * when it is first called, and its libraries when they are.
 */
#include "kernels/cuda/cuda.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace eth_hpp {

static const struct {
    const char *name, *value;
} settings[SETTINGS] = {
    {"CUDA_DEVICE_MAX_CONNECTIONS", "32"},
    {"CUDA_MODULE_LOADING", "EAGER"},
};

static void append(char *text, size_t size, const char *more)
{
    snprintf(text + strlen(text), size - strlen(text), "%s", more);
}

/* What users chose, for other programs as a rule, would stop this one: they are told. */
static void remark(cuda *state, int i, const char *given)
{
    char one[128];
    snprintf(one, sizeof(one), "%s%s=%s in place of %.40s", state->remark[0] == '\0' ? "" : ", ",
             settings[i].name, settings[i].value, given);
    append(state->remark, sizeof(state->remark), one);
}

bool environment_set(cuda *state)
{
    bool fine = true;
    for (int i = 0; i < SETTINGS; i++) {
        const char *given = getenv(settings[i].name);
        if (given != nullptr)
            fine = fine && (state->given[i] = strdup(given)) != nullptr;
        if (given != nullptr && strcmp(given, settings[i].value) != 0)
            remark(state, i, given);
        setenv(settings[i].name, settings[i].value, 1);
    }
    if (state->remark[0] != '\0')
        append(state->remark, sizeof(state->remark),
               ": what waits for other ranks would hold up what they wait for");
    return fine;
}

void environment_restore(cuda *state)
{
    for (int i = 0; i < SETTINGS; i++) {
        if (state->given[i] != nullptr)
            setenv(settings[i].name, state->given[i], 1);
        else
            unsetenv(settings[i].name);
        free(state->given[i]);
    }
}

} // namespace eth_hpp
