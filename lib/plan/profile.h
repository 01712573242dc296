/* What layers cost (`eth-hpp-profile`): per kind of layer, device, tensor parallelism and samples.
 */
#ifndef ETH_HPP_PLAN_PROFILE_H
#define ETH_HPP_PLAN_PROFILE_H

#include "base/dtype.h"
#include "base/json.h"
#include "plan/cluster.h"

enum { ETH_HPP_LAYER_KINDS_MAX = 16, ETH_HPP_TIED_MAX = 8 };

/* A kind of layer; all its layers are alike. */
struct eth_hpp_layer_kind {
    char name[ETH_HPP_NAME_MAX];
    double parameters, gradient_bytes;
    double output_bytes; /* handed to the next stage per sample */
};

/* A tensor that belongs to several kinds of layer (GPT-2's token embedding is its head). */
struct eth_hpp_tied {
    char name[ETH_HPP_NAME_MAX];
    unsigned kinds; /* bit mask over layer kinds */
    double parameters, gradient_bytes;
};

/* Bytes of one layer (or tied tensor) at one tensor parallelism. */
struct eth_hpp_layer_memory {
    double state_bytes;     /* resident */
    double optimizer_bytes; /* the part of state that optimizer sharding divides */
    double saved_bytes;     /* per sample, from its forward to its backward */
    double workspace_bytes; /* per sample, while the layer runs */
};

/* Seconds of ONE layer. */
struct eth_hpp_layer_time {
    double forward_s, backward_s;
};

/* Times of one device at one tensor parallelism: points in ascending order of samples. */
struct eth_hpp_times {
    char device[ETH_HPP_NAME_MAX];
    int tensor_parallel;
    int points;
    int *samples;                     /* [points] */
    struct eth_hpp_layer_time *times; /* [points][kind_count] */
};

struct eth_hpp_profile {
    char model[ETH_HPP_NAME_MAX];
    int sequence_length;
    enum eth_hpp_dtype dtype;
    struct eth_hpp_layer_kind kinds[ETH_HPP_LAYER_KINDS_MAX];
    int kind_count;
    int *layers; /* [layer_count] kind of each layer */
    int layer_count;
    struct eth_hpp_tied tied[ETH_HPP_TIED_MAX];
    int tied_count;
    struct eth_hpp_times *times;
    int times_count;
    struct eth_hpp_profile_memory {
        int tensor_parallel;
        struct eth_hpp_layer_memory kinds[ETH_HPP_LAYER_KINDS_MAX], tied[ETH_HPP_TIED_MAX];
    } * memory;
    int memory_count;
    struct eth_hpp_optimizer_time {
        char device[ETH_HPP_NAME_MAX];
        double s_per_parameter;
    } * optimizer;
    int optimizer_count;
    bool estimated; /* derived from the device database, not measured */
};

enum eth_hpp_status eth_hpp_profile_load(const char *path, struct eth_hpp_profile *profile,
                                         struct eth_hpp_error *err);
/* The same from a text; `name` stands for the file in messages. */
enum eth_hpp_status eth_hpp_profile_parse(const char *name, const char *text, size_t size,
                                          struct eth_hpp_profile *profile,
                                          struct eth_hpp_error *err);
enum eth_hpp_status eth_hpp_profile_save(const struct eth_hpp_profile *profile, const char *path,
                                         struct eth_hpp_error *err);
void eth_hpp_profile_free(struct eth_hpp_profile *profile);

/* Times of a device at one tensor parallelism, or NULL where there are none. */
const struct eth_hpp_times *eth_hpp_profile_find_times(const struct eth_hpp_profile *profile,
                                                       const char *device, int tensor_parallel);
/* Bytes of the layers at one tensor parallelism, or NULL. */
const struct eth_hpp_profile_memory *
eth_hpp_profile_find_memory(const struct eth_hpp_profile *profile, int tensor_parallel);
/* Seconds the optimizer takes for one parameter on a device; 0 where nothing is known. */
double eth_hpp_profile_optimizer_s(const struct eth_hpp_profile *profile, const char *device);
/* Index of a kind of layer by name, or -1. */
int eth_hpp_profile_find_kind(const struct eth_hpp_profile *profile, const char *kind);

/* ---- making one in memory ---- */

/* Adds zeroed times for a device with these points (ascending); the caller fills
 * times[point * kind_count + kind]. The pointer is valid until the next call. Errors: MEMORY. */
enum eth_hpp_status eth_hpp_profile_add_times(struct eth_hpp_profile *profile, const char *device,
                                              int tensor_parallel, const int *samples, int points,
                                              struct eth_hpp_times **times,
                                              struct eth_hpp_error *err);
/* Sets what the optimizer takes for one parameter on a device. Errors: MEMORY. */
enum eth_hpp_status eth_hpp_profile_set_optimizer_s(struct eth_hpp_profile *profile,
                                                    const char *device, double s_per_parameter,
                                                    struct eth_hpp_error *err);

#endif
