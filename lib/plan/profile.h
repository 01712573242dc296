/* What layers cost (`eth-hpp-profile`): per kind of layer, device, tensor parallelism and samples.
 */
#ifndef ETH_HPP_PLAN_PROFILE_H
#define ETH_HPP_PLAN_PROFILE_H

#include "base/json.h"
#include "plan/cluster.h"

enum { ETH_HPP_LAYER_KINDS_MAX = 16, ETH_HPP_TIED_MAX = 8 };

enum eth_hpp_dtype { ETH_HPP_FP32, ETH_HPP_BF16, ETH_HPP_FP16 };
const char *eth_hpp_dtype_name(enum eth_hpp_dtype dtype);

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
enum eth_hpp_status eth_hpp_profile_save(const struct eth_hpp_profile *profile, const char *path,
                                         struct eth_hpp_error *err);
void eth_hpp_profile_free(struct eth_hpp_profile *profile);

#endif
