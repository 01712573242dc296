#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu_run.h"

#ifdef __SANITIZE_ADDRESS__
/* Ranks open oneDNN and UCX at run time: with thread-local data the leak checker crashes, and
 * without them it takes OpenMP's for leaks. */
__attribute__((visibility("default"))) const char *__lsan_default_options(void);
const char *__lsan_default_options(void)
{
    return "detect_leaks=0";
}
#endif

enum { VOCABULARY = 29 };

const struct eth_hpp_model gpu_gpt = {.name = "tiny",
                                      .family = ETH_HPP_GPT2,
                                      .vocabulary = VOCABULARY,
                                      .context = TINY_SEQUENCE,
                                      .decoders = TINY_LAYERS - 2,
                                      .hidden = 16,
                                      .inner = 64,
                                      .heads = 2,
                                      .key_value_heads = 2,
                                      .head_size = 8,
                                      .tied = true,
                                      .attention_dropout = 0.1,
                                      .residual_dropout = 0.1};

const struct eth_hpp_model gpu_llama = {.name = "tiny",
                                        .family = ETH_HPP_LLAMA,
                                        .vocabulary = VOCABULARY,
                                        .context = TINY_SEQUENCE,
                                        .decoders = TINY_LAYERS - 2,
                                        .hidden = 16,
                                        .inner = 48,
                                        .heads = 4,
                                        .key_value_heads = 2,
                                        .head_size = 8,
                                        .tied = true,
                                        .norm_epsilon = 1e-5,
                                        .rope_theta = 1e4};

/* ---- a rank ---- */

static enum eth_hpp_status sample(void *data, int64_t number, int32_t *tokens, int32_t *targets,
                                  struct eth_hpp_error *err)
{
    (void)data;
    (void)err;
    for (int t = 0; t < TINY_SEQUENCE; t++) {
        tokens[t] = (int32_t)((number * 5 + t * t) % VOCABULARY);
        targets[t] =
            (number + t) % 4 == 0 ? -1 : (int32_t)((number * 5 + (t + 1) * (t + 1)) % VOCABULARY);
    }
    return ETH_HPP_OK;
}

static void must(struct eth_hpp_context *context, enum eth_hpp_status status,
                 const struct eth_hpp_error *err)
{
    if (status != ETH_HPP_OK)
        eth_hpp_fail(context, err);
}

static void resume(struct eth_hpp_context *context, const char *folder)
{
    const struct eth_hpp_checkpoint_options options = {
        .folder = folder, .resume = ETH_HPP_RESUME_AUTO, .seed = 3};
    struct eth_hpp_checkpoint resumed;
    struct eth_hpp_error err = {0};
    must(context, eth_hpp_checkpoint_open(context, &options, &resumed, &err), &err);
}

static void leave_checkpoint(struct eth_hpp_context *context)
{
    struct eth_hpp_error err = {0};
    must(context, eth_hpp_checkpoint_save(context, &err), &err);
    must(context, eth_hpp_checkpoint_finish(context, &err), &err);
}

static void become_unlike(int rank)
{
    char model[64], processors[16];
    snprintf(model, sizeof(model), "emulated GPU of rank %d", rank);
    snprintf(processors, sizeof(processors), "%d", 1 + 3 * rank);
    setenv("ETH_HPP_EMULATED_MODEL", model, 1);
    setenv("ETH_HPP_EMULATED_PROCESSORS", processors, 1);
}

static int train(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    const struct gpu_run *run = user;
    const int rank = eth_hpp_bootstrap_get_place(bootstrap)->rank;
    const struct eth_hpp_init_options options = {
        .plan_path = run->plan_path, .timeout_s = 60, .check_replicas = run->check_replicas};
    const struct eth_hpp_transformer_options transformer_options = {
        .model = run->model, .seed = 3, .sample = sample};
    struct eth_hpp_context *context = NULL;
    struct eth_hpp_transformer *transformer;
    struct eth_hpp_error err = {0};
    setenv("ETH_HPP_DEVICE", run->device[rank], 1);
    if (run->unlike)
        become_unlike(rank);
    must(NULL, eth_hpp_context_open(bootstrap, &options, &context, &err), &err);
    if (context->assignment.idle) {
        eth_hpp_finalize(context);
        return 0;
    }
    const char *transport = eth_hpp_comm_name(context->comm);
    RANK_CHECK(run->transport == NULL || context->job.size == 1 ||
                   strcmp(transport, run->transport) == 0,
               "%s", transport);
    must(context, eth_hpp_transformer_create(context, &transformer_options, &transformer, &err),
         &err);
    if (run->folder != NULL)
        resume(context, run->folder);
    for (int step = 0; step < run->steps; step++) {
        struct eth_hpp_metrics *metrics = &run->metrics[rank][step];
        if (run->before != NULL)
            run->before(context);
        must(context, eth_hpp_step(context, &tiny_optimizer, metrics, &err), &err);
        RANK_CHECK(metrics->busy_s > 0 && metrics->optimizer_s > 0 && metrics->sync_exposed_s >= 0);
    }
    if (run->folder != NULL)
        leave_checkpoint(context);
    eth_hpp_transformer_destroy(transformer);
    eth_hpp_finalize(context);
    return 0;
}

/* ---- runs ---- */

struct gpu_run gpu_run_make(const struct eth_hpp_model *model, enum eth_hpp_dtype dtype,
                            const char *device)
{
    struct gpu_run run = {.model = model,
                          .dtype = dtype,
                          .optimizer = "replicated",
                          .steps = 4,
                          .transport = strcmp(device, "cuda") == 0 ? "nccl" : NULL,
                          .check_replicas = 2,
                          .metrics =
                              mmap(NULL, sizeof(*run.metrics) * RANKS_MAX, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0)};
    assert_true(run.metrics != MAP_FAILED);
    for (int rank = 0; rank < RANKS_MAX; rank++)
        run.device[rank] = device;
    setenv("ETH_HPP_CUDA_MODULE", EMULATED_MODULE, 1);
    return run;
}

void gpu_run_ranks(struct gpu_run *run, int ranks, const char *pipelines,
                   struct ranks_result *result)
{
    snprintf(run->plan_path, sizeof(run->plan_path), "gpu_run.%d.json", (int)getpid());
    tiny_plan_write(run->plan_path, ETH_HPP_TOKEN_EMBEDDING, run->dtype, run->optimizer, pipelines);
    ranks_run(ranks, train, run, 120, result);
    unlink(run->plan_path);
}

void gpu_run_well(struct gpu_run *run, int ranks, const char *pipelines, const char *name)
{
    struct ranks_result result;
    gpu_run_ranks(run, ranks, pipelines, &result);
    for (int rank = 0; rank < ranks; rank++)
        if (result.exit_code[rank] != 0)
            fail_msg("%s: rank %d ended with %d: %s", name, rank, result.exit_code[rank],
                     result.log);
}

void gpu_run_free(struct gpu_run *run)
{
    munmap(run->metrics, sizeof(*run->metrics) * RANKS_MAX);
}
