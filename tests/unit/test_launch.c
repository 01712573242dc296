#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "launcher/gpu.h"
#include "launcher/launch.h"
#include "launcher/node.h"

/* ---- the rank's own GPU ---- */

static struct eth_hpp_inventory_gpu node_gpus[] = {
    {.index = 0, .uuid = "GPU-aaaa-1", .device = "A", .healthy = true},
    {.index = 1, .uuid = "GPU-aaab-2", .device = "A", .healthy = true},
    {.index = 2, .uuid = "GPU-bbbb-3", .device = "B", .healthy = false},
    {.index = 3, .uuid = "GPU-cccc-4", .device = "B", .healthy = true},
};
static struct eth_hpp_inventory node = {.node = "n1", .gpus = node_gpus, .gpu_count = 4};

static int find(const struct eth_hpp_inventory *visible, int local_rank, int local_size,
                const char *devices, struct eth_hpp_error *err)
{
    const struct eth_hpp_inventory_gpu *gpu = NULL;
    struct eth_hpp_bootstrap_place place = {.local_rank = local_rank, .local_size = local_size};
    *err = (struct eth_hpp_error){0};
    if (eth_hpp_gpu_find(&node, visible, &place, devices, &gpu, err) != ETH_HPP_OK)
        return -1;
    return gpu->index;
}

static void the_local_rank_chooses_among_several_devices(void **state)
{
    (void)state;
    struct eth_hpp_error err;
    assert_int_equal(find(NULL, 0, 2, "3,1", &err), 3);
    assert_int_equal(find(NULL, 1, 2, "3,1", &err), 1);
    assert_int_equal(find(NULL, 1, 2, NULL, &err), 1);
}

static void a_single_device_is_the_tasks_own_whatever_its_local_rank(void **state)
{
    (void)state;
    struct eth_hpp_error err;
    assert_int_equal(find(NULL, 3, 4, "1", &err), 1);
}

static void numbers_that_a_cgroup_has_shifted_are_matched_by_uuid(void **state)
{
    (void)state;
    struct eth_hpp_error err;
    struct eth_hpp_inventory_gpu own[] = {{.index = 0, .uuid = "GPU-cccc-4"}};
    struct eth_hpp_inventory visible = {.gpus = own, .gpu_count = 1};
    assert_int_equal(find(&visible, 2, 4, "0", &err), 3);
}

static void devices_may_be_named_by_a_uuid_or_its_beginning(void **state)
{
    (void)state;
    struct eth_hpp_error err;
    assert_int_equal(find(NULL, 0, 1, "GPU-aaab-2", &err), 1);
    assert_int_equal(find(NULL, 0, 1, "GPU-cc", &err), 3);
    assert_int_equal(find(NULL, 0, 1, "GPU-aaa", &err), -1); /* two devices */
}

static void what_a_rank_cannot_have_is_refused_with_the_remedy(void **state)
{
    (void)state;
    static const struct {
        int local_rank, local_size;
        const char *devices, *message;
    } cases[] = {
        {2, 3, "0,1", "3 ranks but 2 GPUs on node n1"},
        {4, 5, NULL, "5 ranks but 4 GPUs on node n1"},
        {0, 1, "", "the job has no GPU on node n1, which has 4: ask for them"},
        {0, 1, "NoDevFiles", "--gpus-per-node=4"},
        {0, 1, "7", "device \"7\" of CUDA_VISIBLE_DEVICES is not in the inventory of node n1"},
        {0, 1, "2", "GPU 2 () of node n1 reports memory errors"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct eth_hpp_error err;
        assert_int_equal(
            find(NULL, cases[i].local_rank, cases[i].local_size, cases[i].devices, &err), -1);
        assert_int_equal(err.status, ETH_HPP_ERR_INPUT);
        if (strstr(err.text, cases[i].message) == NULL)
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, err.text, cases[i].message);
    }
}

static void a_node_without_gpus_says_why(void **state)
{
    (void)state;
    const struct eth_hpp_inventory_gpu *gpu;
    struct eth_hpp_inventory empty = {.node = "n2", .why_empty = "no driver here"};
    struct eth_hpp_bootstrap_place place = {.local_size = 1};
    struct eth_hpp_error err;
    assert_int_equal(eth_hpp_gpu_find(&empty, NULL, &place, "0", &gpu, &err), ETH_HPP_ERR_INPUT);
    assert_string_equal(err.text, "node n2 has no GPU: no driver here");
}

/* ---- the node's inventory ---- */

static void a_driver_that_hangs_does_not_hang_the_launch(void **state)
{
    (void)state;
    struct eth_hpp_inventory inventory;
    struct eth_hpp_error err;
    if (dlopen(NVML_EMULATION, RTLD_NOW) == NULL)
        fail_msg("%s", dlerror());
    setenv("ETH_HPP_NVML_EMULATION", "hang", 1);
    unsetenv("ETH_HPP_INVENTORY");
    unsetenv("ETH_HPP_SITE_FILE");
    time_t start = time(NULL);
    assert_int_equal(eth_hpp_node_inventory(&inventory, 1.0, &err), ETH_HPP_OK);
    assert_true(time(NULL) - start < 5);
    assert_int_equal(inventory.gpu_count, 0);
    assert_non_null(strstr(inventory.why_empty, "did not answer within 1 s"));
    eth_hpp_inventory_free(&inventory);
    setenv("ETH_HPP_NVML_EMULATION", "switch", 1);
    assert_int_equal(eth_hpp_node_inventory(&inventory, 10.0, &err), ETH_HPP_OK);
    assert_int_equal(inventory.gpu_count, 4);
    eth_hpp_inventory_free(&inventory);
}

/* ---- what is to be run ---- */

static enum eth_hpp_status make_job(const char *const *words, const char *plan,
                                    struct eth_hpp_launch_job *job, struct eth_hpp_error *err)
{
    struct eth_hpp_option_set set;
    struct eth_hpp_launch_rank ranks[2] = {{.node = "a", .device = "T4"},
                                           {.node = "b", .device = "T4"}};
    *err = (struct eth_hpp_error){0};
    assert_int_equal(eth_hpp_option_set_init(&set, eth_hpp_job_options, ETH_HPP_JOB_OPTIONS, err),
                     ETH_HPP_OK);
    for (; *words != NULL; words += 2) {
        int index = eth_hpp_option_find(&set, words[0]);
        assert_true(index >= 0);
        assert_int_equal(
            eth_hpp_option_assign(&set, (size_t)index, words[1], ETH_HPP_FROM_OPTION, err),
            ETH_HPP_OK);
    }
    enum eth_hpp_status status = eth_hpp_launch_job_make(&set, plan, ranks, 2, job, err);
    eth_hpp_option_set_free(&set);
    return status;
}

#define PLAN_IN(dtype)                                                                             \
    "{\"format\":\"eth-hpp-plan\",\"version\":1,\"model\":{\"name\":\"gpt2-tiny6\",\"layers\":8,"  \
    "\"sequence_length\":32},\"global_batch\":4,\"schedule\":\"1f1b\",\"dtype\":\"" dtype "\","    \
    "\"pipelines\":[{\"micro_batch\":4,\"micro_batches\":1,\"stages\":[{\"layers\":[0,8],"         \
    "\"workers\":[{\"node\":\"a\",\"gpus\":[0],\"samples\":4}]}]}]}"
#define PLAN PLAN_IN("fp32")

static void a_job_has_defaults_of_its_model_and_its_gpus(void **state)
{
    (void)state;
    struct eth_hpp_launch_job job;
    struct eth_hpp_error err;
    const char *words[] = {"model", "gpt2-tiny6", NULL};
    assert_int_equal(make_job(words, NULL, &job, &err), ETH_HPP_OK);
    assert_int_equal(job.sequence_length, 64);
    assert_int_equal(job.global_batch, 16);    /* 8 for each of 2 GPUs */
    assert_int_equal(job.dtype, ETH_HPP_FP16); /* a T4 has no bf16 */
    assert_string_equal(job.model_argument, "gpt2-tiny6");
    eth_hpp_launch_job_free(&job);
}

/* Of a job on two such devices. */
static enum eth_hpp_status choose_dtype(const char *asked, const char *first, const char *second,
                                        double time_scale, enum eth_hpp_dtype *dtype,
                                        struct eth_hpp_error *err)
{
    struct eth_hpp_option_set set;
    struct eth_hpp_launch_job job;
    struct eth_hpp_launch_rank ranks[2] = {{.node = "a", .time_scale = time_scale},
                                           {.node = "b", .time_scale = time_scale}};
    const char *devices[2] = {first, second};
    for (int r = 0; r < 2; r++) {
        snprintf(ranks[r].device, sizeof(ranks[r].device), "%s", devices[r]);
        ranks[r].gpu.memory_bytes = 1e10;
    }
    *err = (struct eth_hpp_error){0};
    assert_int_equal(eth_hpp_option_set_init(&set, eth_hpp_job_options, ETH_HPP_JOB_OPTIONS, err),
                     ETH_HPP_OK);
    eth_hpp_option_assign(&set, ETH_HPP_JOB_MODEL, "gpt2-tiny6", ETH_HPP_FROM_OPTION, err);
    eth_hpp_option_assign(&set, ETH_HPP_JOB_DTYPE, asked, ETH_HPP_FROM_OPTION, err);
    enum eth_hpp_status status = eth_hpp_launch_job_make(&set, NULL, ranks, 2, &job, err);
    if (status == ETH_HPP_OK) {
        *dtype = job.dtype;
        eth_hpp_launch_job_free(&job);
    }
    eth_hpp_option_set_free(&set);
    return status;
}

static void the_dtype_is_one_that_all_devices_have(void **state)
{
    (void)state;
    static const struct {
        const char *asked, *first, *second;
        double time_scale;
        enum eth_hpp_dtype dtype;
        const char *refusal;
    } cases[] = {
        {"auto", "H100-SXM", "A100-SXM-40GB", 0, ETH_HPP_BF16, NULL},
        {"auto", "H100-SXM", "A100-SXM-40GB", 1e4, ETH_HPP_FP32, NULL}, /* on processors */
        {"auto", "H100-SXM", "T4", 0, ETH_HPP_FP16, NULL},
        {"fp32", "H100-SXM", "H100-SXM", 0, ETH_HPP_FP32, NULL},
        {"bf16", "H100-SXM", "H100-SXM", 0, ETH_HPP_BF16, NULL},
        {"bf16", "H100-SXM", "T4", 0, 0, "cannot train in it on the device of rank 1"},
        {"bf16", "H100-SXM", "A100-SXM-40GB", 1e4, 0, "rank 0 (emulated by the processors)"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct eth_hpp_error err;
        enum eth_hpp_dtype dtype = cases[i].dtype == ETH_HPP_FP16 ? ETH_HPP_FP32 : ETH_HPP_FP16;
        const enum eth_hpp_status status = choose_dtype(
            cases[i].asked, cases[i].first, cases[i].second, cases[i].time_scale, &dtype, &err);
        if (cases[i].refusal == NULL && (status != ETH_HPP_OK || dtype != cases[i].dtype))
            fail_msg("case %zu: %s, %s", i, eth_hpp_dtype_name(dtype), err.text);
        if (cases[i].refusal != NULL && strstr(err.text, cases[i].refusal) == NULL)
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, err.text, cases[i].refusal);
    }
}

static void a_given_plan_says_what_the_job_is(void **state)
{
    (void)state;
    struct eth_hpp_launch_job job;
    struct eth_hpp_error err;
    const char *words[] = {"global-batch", "4", NULL};
    assert_int_equal(make_job(words, PLAN, &job, &err), ETH_HPP_OK);
    assert_true(job.has_plan);
    assert_int_equal(job.sequence_length, 32);
    assert_int_equal(job.global_batch, 4);
    assert_string_equal(job.model.name, "gpt2-tiny6");
    eth_hpp_launch_job_free(&job);
}

static void what_a_job_cannot_be_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *words[5], *plan, *message;
        enum eth_hpp_status status;
    } cases[] = {
        {{NULL}, NULL, "no model: give --model=MODEL", ETH_HPP_ERR_INPUT},
        {{"model", "nosuch", NULL}, NULL, "there is no model \"nosuch\"", ETH_HPP_ERR_INPUT},
        {{"model", "gpt2-tiny6", "seq", "65", NULL},
         NULL,
         "--seq=65 is longer than the context of gpt2-tiny6",
         ETH_HPP_ERR_INPUT},
        {{"model", "gpt2-tiny6", "dtype", "bf16", NULL},
         NULL,
         "--dtype=bf16: the runtime cannot train in it",
         ETH_HPP_ERR_UNSUPPORTED},
        {{"profile", "p.json", "calibrate", "yes", NULL},
         NULL,
         "--profile and --calibrate=yes contradict each other",
         ETH_HPP_ERR_INPUT},
        {{"seq", "64", NULL}, PLAN, "--seq=64 contradicts the given plan", ETH_HPP_ERR_INPUT},
        {{"dtype", "bf16", NULL}, PLAN, "--dtype=bf16 contradicts", ETH_HPP_ERR_INPUT},
        {{"model", "gpt2-tiny24", NULL}, PLAN, "the given plan has 8 layers", ETH_HPP_ERR_INPUT},
        {{NULL}, "{}", "plan: format", ETH_HPP_ERR_INPUT},
        {{NULL}, "", "plan: the file is empty", ETH_HPP_ERR_INPUT},
        {{NULL},
         PLAN_IN("bf16"),
         "the given plan's dtype bf16: the runtime cannot train in it",
         ETH_HPP_ERR_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct eth_hpp_launch_job job;
        struct eth_hpp_error err;
        assert_int_equal(make_job(cases[i].words, cases[i].plan, &job, &err), cases[i].status);
        if (strstr(err.text, cases[i].message) == NULL)
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, err.text, cases[i].message);
    }
}

static void heads_that_a_gpu_has_no_kernel_for_are_refused(void **state)
{
    (void)state;
    char path[] = "/tmp/eth-hpp-model-XXXXXX.json";
    const int file = mkstemps(path, 5);
    assert_true(file >= 0);
    dprintf(file, "{\"model_type\":\"llama\",\"vocab_size\":64,\"hidden_size\":64,"
                  "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"head_dim\":264,"
                  "\"intermediate_size\":64,\"max_position_embeddings\":32}");
    close(file);
    struct eth_hpp_launch_job job;
    struct eth_hpp_error err;
    const char *words[] = {"model", path, NULL};
    assert_int_equal(make_job(words, NULL, &job, &err), ETH_HPP_ERR_UNSUPPORTED);
    if (strstr(err.text, "heads of 264 values: on the device of rank 0") == NULL)
        fail_msg("%s", err.text);
    unlink(path);
}

/* ---- what the program finds ---- */

/* Leaves a plan in a process of its own, which ends. */
static void leave_and_end(char *path, size_t size)
{
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        enum eth_hpp_status left = eth_hpp_launch_plan_leave("{}", path, size, NULL);
        _exit(left == ETH_HPP_OK && write(ends[1], path, size) == (ssize_t)size ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(read(ends[0], path, size), size);
    close(ends[0]);
    close(ends[1]);
}

static void the_plan_is_found_by_the_program_and_its_children_and_gone_with_it(void **state)
{
    (void)state;
    char path[256] = "", ended[256] = "", command[512], *text;
    size_t size;
    struct eth_hpp_error err;
    assert_int_equal(eth_hpp_launch_plan_leave("{}", path, sizeof(path), &err), ETH_HPP_OK);
    for (int reads = 0; reads < 2; reads++) {
        assert_int_equal(eth_hpp_file_read(path, 10, &text, &size, &err), ETH_HPP_OK);
        assert_string_equal(text, "{}");
        free(text);
    }
    snprintf(command, sizeof(command), "exec 2>/dev/null; test \"$(cat %s)\" = {}", path);
    assert_int_equal(system(command), 0);
    snprintf(command, sizeof(command), "exec 2>/dev/null; ! echo >>%s", path);
    assert_int_equal(system(command), 0);
    leave_and_end(ended, sizeof(ended));
    assert_int_equal(access(path, F_OK), 0);
    assert_int_not_equal(access(ended, F_OK), 0);
    close(atoi(strrchr(path, '/') + 1));
}

static void programs_are_looked_for_as_exec_does(void **state)
{
    (void)state;
    struct eth_hpp_error err;
    assert_int_equal(eth_hpp_launch_program_check("sh", &err), ETH_HPP_OK);
    assert_int_equal(eth_hpp_launch_program_check("/bin/sh", &err), ETH_HPP_OK);
    assert_int_equal(eth_hpp_launch_program_check("nosuchprogram", &err), ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "no such program on the PATH"));
    assert_int_equal(eth_hpp_launch_program_check("/etc/passwd", &err), ETH_HPP_ERR_INPUT);
    assert_int_equal(eth_hpp_launch_program_check("/tmp", &err), ETH_HPP_ERR_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_local_rank_chooses_among_several_devices),
        cmocka_unit_test(a_single_device_is_the_tasks_own_whatever_its_local_rank),
        cmocka_unit_test(numbers_that_a_cgroup_has_shifted_are_matched_by_uuid),
        cmocka_unit_test(devices_may_be_named_by_a_uuid_or_its_beginning),
        cmocka_unit_test(what_a_rank_cannot_have_is_refused_with_the_remedy),
        cmocka_unit_test(a_node_without_gpus_says_why),
        cmocka_unit_test(a_driver_that_hangs_does_not_hang_the_launch),
        cmocka_unit_test(a_job_has_defaults_of_its_model_and_its_gpus),
        cmocka_unit_test(the_dtype_is_one_that_all_devices_have),
        cmocka_unit_test(a_given_plan_says_what_the_job_is),
        cmocka_unit_test(what_a_job_cannot_be_is_refused),
        cmocka_unit_test(heads_that_a_gpu_has_no_kernel_for_are_refused),
        cmocka_unit_test(the_plan_is_found_by_the_program_and_its_children_and_gone_with_it),
        cmocka_unit_test(programs_are_looked_for_as_exec_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
