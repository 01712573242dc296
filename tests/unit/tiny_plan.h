/* Plans for the small model, written from the text of their pipelines. */
#ifndef ETH_HPP_TESTS_TINY_PLAN_H
#define ETH_HPP_TESTS_TINY_PLAN_H

#include <stdio.h>
#include <string.h>

#include "plan/plan.h"
#include "tiny_model.h"

enum { TINY_GLOBAL_BATCH = 8 };

static const struct eth_hpp_optimizer_options tiny_optimizer = {.learning_rate = 0.01,
                                                                .beta1 = 0.9,
                                                                .beta2 = 0.95,
                                                                .epsilon = 1e-8,
                                                                .weight_decay = 0.1,
                                                                .clip_norm = 0.5};

#define WORKER(rank, samples)                                                                      \
    "{\"node\":\"n\",\"gpus\":[" #rank "],\"ranks\":[" #rank "],\"samples\":" #samples "}"
#define STAGE(first, end, extra, workers)                                                          \
    "{\"layers\":[" #first "," #end "]" extra ",\"workers\":[" workers "]}"
#define PIPELINE(micro_batch, micro_batches, stages)                                               \
    "{\"micro_batch\":" #micro_batch ",\"micro_batches\":" #micro_batches ",\"stages\":[" stages   \
    "]}"

/* A plan file; the rest, the block of the tensor that both ends share too, is filled in.
 * `optimizer`: replicated or sharded. */
static inline void tiny_plan_write(const char *path, const char *tied, enum eth_hpp_dtype dtype,
                                   const char *optimizer, const char *pipelines)
{
    char text[4096];
    struct eth_hpp_error err = {0};
    struct eth_hpp_plan plan;
    int kinds[TINY_LAYERS] = {0, 1, 1, 1, 1, 2};
    struct eth_hpp_profile profile = {
        .kinds = {{.name = "first"}, {.name = "mid"}, {.name = "last"}},
        .kind_count = 3,
        .layers = kinds,
        .layer_count = TINY_LAYERS,
        .tied = {{.kinds = 5}},
        .tied_count = 1};
    snprintf(profile.tied[0].name, sizeof(profile.tied[0].name), "%s", tied);
    snprintf(text, sizeof(text),
             "{\"format\":\"eth-hpp-plan\",\"version\":1,\"model\":{\"name\":\"tiny\","
             "\"layers\":%d,\"sequence_length\":%d},\"global_batch\":%d,\"schedule\":\"1f1b\","
             "\"dtype\":\"%s\",\"optimizer\":\"%s\",\"pipelines\":[%s]}",
             TINY_LAYERS, TINY_SEQUENCE, TINY_GLOBAL_BATCH, eth_hpp_dtype_name(dtype), optimizer,
             pipelines);
    if (eth_hpp_plan_parse("test", text, strlen(text), &plan, &err) != ETH_HPP_OK ||
        eth_hpp_plan_make_blocks(&plan, &profile, &err) != ETH_HPP_OK ||
        eth_hpp_plan_save(&plan, path, &err) != ETH_HPP_OK)
        fail_msg("%s", err.text);
    eth_hpp_plan_free(&plan);
}

#endif
