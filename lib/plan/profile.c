#include "plan/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void eth_hpp_profile_free(struct eth_hpp_profile *profile)
{
    for (int i = 0; i < profile->times_count; i++) {
        free(profile->times[i].samples);
        free(profile->times[i].times);
    }
    free(profile->times);
    free(profile->layers);
    free(profile->memory);
    free(profile->optimizer);
    *profile = (struct eth_hpp_profile){0};
}

const struct eth_hpp_times *eth_hpp_profile_find_times(const struct eth_hpp_profile *profile,
                                                       const char *device, int tensor_parallel)
{
    for (int i = 0; i < profile->times_count; i++)
        if (profile->times[i].tensor_parallel == tensor_parallel &&
            strcmp(profile->times[i].device, device) == 0)
            return &profile->times[i];
    return NULL;
}

const struct eth_hpp_profile_memory *
eth_hpp_profile_find_memory(const struct eth_hpp_profile *profile, int tensor_parallel)
{
    for (int i = 0; i < profile->memory_count; i++)
        if (profile->memory[i].tensor_parallel == tensor_parallel)
            return &profile->memory[i];
    return NULL;
}

double eth_hpp_profile_optimizer_s(const struct eth_hpp_profile *profile, const char *device)
{
    for (int i = 0; i < profile->optimizer_count; i++)
        if (strcmp(profile->optimizer[i].device, device) == 0)
            return profile->optimizer[i].s_per_parameter;
    return 0;
}

int eth_hpp_profile_find_kind(const struct eth_hpp_profile *profile, const char *kind)
{
    for (int i = 0; i < profile->kind_count; i++)
        if (strcmp(profile->kinds[i].name, kind) == 0)
            return i;
    return -1;
}

enum eth_hpp_status eth_hpp_profile_add_times(struct eth_hpp_profile *profile, const char *device,
                                              int tensor_parallel, const int *samples, int points,
                                              struct eth_hpp_times **added,
                                              struct eth_hpp_error *err)
{
    struct eth_hpp_times *list =
        realloc(profile->times, (size_t)(profile->times_count + 1) * sizeof(*list));
    if (list == NULL)
        return eth_hpp_error_memory(err, "the profile's times");
    profile->times = list;
    struct eth_hpp_times *times = &list[profile->times_count];
    *times = (struct eth_hpp_times){.tensor_parallel = tensor_parallel, .points = points};
    snprintf(times->device, sizeof(times->device), "%s", device);
    times->samples = malloc((size_t)points * sizeof(*times->samples));
    times->times = calloc((size_t)points * (size_t)profile->kind_count, sizeof(*times->times));
    if (times->samples == NULL || times->times == NULL) {
        free(times->samples);
        free(times->times);
        return eth_hpp_error_memory(err, "the profile's times");
    }
    memcpy(times->samples, samples, (size_t)points * sizeof(*samples));
    profile->times_count++;
    *added = times;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_profile_set_optimizer_s(struct eth_hpp_profile *profile,
                                                    const char *device, double s_per_parameter,
                                                    struct eth_hpp_error *err)
{
    for (int i = 0; i < profile->optimizer_count; i++)
        if (strcmp(profile->optimizer[i].device, device) == 0) {
            profile->optimizer[i].s_per_parameter = s_per_parameter;
            return ETH_HPP_OK;
        }
    struct eth_hpp_optimizer_time *list =
        realloc(profile->optimizer, (size_t)(profile->optimizer_count + 1) * sizeof(*list));
    if (list == NULL)
        return eth_hpp_error_memory(err, "the profile's optimizer times");
    profile->optimizer = list;
    struct eth_hpp_optimizer_time *added = &list[profile->optimizer_count++];
    *added = (struct eth_hpp_optimizer_time){.s_per_parameter = s_per_parameter};
    snprintf(added->device, sizeof(added->device), "%s", device);
    return ETH_HPP_OK;
}
