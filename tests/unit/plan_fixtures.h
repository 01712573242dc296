/* A small cluster, profile and plans that the planning tests share. All figures are made up. */
#ifndef ETH_HPP_TESTS_PLAN_FIXTURES_H
#define ETH_HPP_TESTS_PLAN_FIXTURES_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"

/* Two fast GPUs on each of two nodes, two slow ones on a third; no latencies. */
#define CLUSTER                                                                                    \
    "{\"format\":\"eth-hpp-cluster\",\"version\":1,"                                               \
    "\"devices\":{\"fast\":{\"memory_bytes\":4e10},"                                               \
    "\"slow\":{\"memory_bytes\":1.6e10,\"reserved_bytes\":1e9}},"                                  \
    "\"nodes\":[{\"name\":\"a[1-2]\",\"device\":\"fast\",\"count\":2,\"intra_bandwidth\":1e11,"    \
    "\"inter_bandwidth\":1e10},"                                                                   \
    "{\"name\":\"b1\",\"device\":\"slow\",\"count\":2,\"intra_bandwidth\":1e10,"                   \
    "\"inter_bandwidth\":1e9}]}"

/* An embedding, four decoders and a head that shares the embedding's tensor. A fast GPU takes 1 ms
 * a decoder and sample forward and 2 ms backward, a slow one three times that. */
#define PROFILE                                                                                    \
    "{\"format\":\"eth-hpp-profile\",\"version\":1,\"model\":\"toy\",\"sequence_length\":64,"      \
    "\"dtype\":\"fp32\",\"layers\":["                                                              \
    "{\"kind\":\"embedding\",\"parameters\":1e5,\"gradient_bytes\":4e5,\"output_bytes\":1e6},"     \
    "{\"kind\":\"decoder\",\"repeat\":4,\"parameters\":1e6,\"gradient_bytes\":4e6,"                \
    "\"output_bytes\":1e6},"                                                                       \
    "{\"kind\":\"head\",\"parameters\":1e3,\"gradient_bytes\":4e3,\"output_bytes\":0}],"           \
    "\"tied\":[{\"name\":\"token-embedding\",\"kinds\":[\"embedding\",\"head\"],"                  \
    "\"parameters\":1e6,\"gradient_bytes\":4e6}],"                                                 \
    "\"times\":{\"fast\":{\"1\":{"                                                                 \
    "\"1\":{\"embedding\":[1e-4,1e-4],\"decoder\":[1e-3,2e-3],\"head\":[1e-3,2e-3]},"              \
    "\"8\":{\"embedding\":[8e-4,8e-4],\"decoder\":[8e-3,16e-3],\"head\":[8e-3,16e-3]}}},"          \
    "\"slow\":{\"1\":{"                                                                            \
    "\"1\":{\"embedding\":[3e-4,3e-4],\"decoder\":[3e-3,6e-3],\"head\":[3e-3,6e-3]},"              \
    "\"8\":{\"embedding\":[24e-4,24e-4],\"decoder\":[24e-3,48e-3],\"head\":[24e-3,48e-3]}}}},"     \
    "\"memory\":{\"1\":{"                                                                          \
    "\"embedding\":{\"state_bytes\":1.6e6,\"optimizer_bytes\":8e5,\"saved_bytes\":1e6},"           \
    "\"decoder\":{\"state_bytes\":1.6e7,\"optimizer_bytes\":8e6,\"saved_bytes\":1e8,"              \
    "\"workspace_bytes\":1e7},"                                                                    \
    "\"head\":{\"state_bytes\":1.6e4,\"optimizer_bytes\":8e3,\"saved_bytes\":1e6},"                \
    "\"token-embedding\":{\"state_bytes\":1.6e7,\"optimizer_bytes\":8e6}}},"                       \
    "\"optimizer_s_per_parameter\":{\"fast\":1e-10,\"slow\":2e-10}}"

#define PLAN_HEAD                                                                                  \
    "{\"format\":\"eth-hpp-plan\",\"version\":1,"                                                  \
    "\"model\":{\"name\":\"toy\",\"layers\":6,\"sequence_length\":64},"                            \
    "\"schedule\":\"1f1b\","

/* One fast pipeline of two stages beside a pipeline whose second stage mixes kinds. */
#define UNLIKE_PLAN                                                                                \
    PLAN_HEAD "\"global_batch\":20,\"pipelines\":["                                                \
              "{\"micro_batch\":2,\"micro_batches\":6,\"stages\":["                                \
              "{\"layers\":[0,3],\"workers\":[{\"node\":\"a1\",\"gpus\":[0],\"samples\":2}]},"     \
              "{\"layers\":[3,6],\"workers\":[{\"node\":\"a1\",\"gpus\":[1],\"samples\":2}]}]},"   \
              "{\"micro_batch\":4,\"micro_batches\":2,\"stages\":["                                \
              "{\"layers\":[0,2],\"workers\":[{\"node\":\"a2\",\"gpus\":[0],\"samples\":4}]},"     \
              "{\"layers\":[2,6],\"workers\":[{\"node\":\"a2\",\"gpus\":[1],\"samples\":3},"       \
              "{\"node\":\"b1\",\"gpus\":[0],\"samples\":1}]}]}]}"

struct fixture {
    struct eth_hpp_cluster cluster;
    struct eth_hpp_profile profile;
    struct eth_hpp_plan plan;
};

static inline void must(enum eth_hpp_status status, const struct eth_hpp_error *err)
{
    if (status != ETH_HPP_OK)
        fail_msg("%s", err->text);
}

static inline void fixture_open(struct fixture *f, const char *cluster, const char *profile,
                                const char *plan)
{
    struct eth_hpp_error err = {0};
    memset(f, 0, sizeof(*f));
    must(eth_hpp_cluster_parse("cluster.json", cluster, strlen(cluster), &f->cluster, &err), &err);
    must(eth_hpp_profile_parse("profile.json", profile, strlen(profile), &f->profile, &err), &err);
    if (plan == NULL)
        return;
    must(eth_hpp_plan_parse("plan.json", plan, strlen(plan), &f->plan, &err), &err);
    must(eth_hpp_plan_complete(&f->plan, &f->cluster, &f->profile, &err), &err);
}

static inline void fixture_close(struct fixture *f)
{
    eth_hpp_plan_free(&f->plan);
    eth_hpp_profile_free(&f->profile);
    eth_hpp_cluster_free(&f->cluster);
}

/* The text with its first `from` replaced; in a static buffer. */
static inline const char *with(const char *text, const char *from, const char *to)
{
    static char changed[16384];
    const char *at = strstr(text, from);
    assert_non_null(at);
    snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return changed;
}

#endif
