#include "plan_fixtures.h"

#include <math.h>

#include "plan/draft.h"
#include "plan/pipeline.h"
#include "plan/program.h"
#include "plan/report.h"
#include "plan/simulate.h"
#include "plan/solver.h"

static enum eth_hpp_status solve(const struct fixture *f,
                                 const struct eth_hpp_solver_options *options,
                                 struct eth_hpp_plan *plan, struct eth_hpp_error *err)
{
    return eth_hpp_solve(&f->cluster, &f->profile, options, plan, err);
}

/* More than can be in flight would be another plan to whoever reads it. */
static void check_in_flight(const struct eth_hpp_plan *plan)
{
    for (int p = 0; p < plan->pipeline_count; p++)
        for (int s = 1; s < plan->pipelines[p].stage_count; s++) {
            const struct eth_hpp_stage *stage = &plan->pipelines[p].stages[s];
            assert_true(stage[-1].in_flight <= stage->in_flight + ETH_HPP_MORE_IN_FLIGHT);
        }
}

/* Whatever the solver says must hold: the plan passes the strict reader (layers once, batch exact,
 * no GPU twice), fits and takes the predicted time, and no plan beats the bound. */
static void check_plan(const struct fixture *f, const struct eth_hpp_plan *plan)
{
    struct eth_hpp_error err = {0};
    struct eth_hpp_plan back;
    struct eth_hpp_simulation s;
    char *text;
    must(eth_hpp_plan_print(plan, &text, &err), &err);
    must(eth_hpp_plan_parse("solved", text, strlen(text), &back, &err), &err);
    must(eth_hpp_plan_complete(&back, &f->cluster, &f->profile, &err), &err);
    must(eth_hpp_simulate(&back, &f->cluster, &f->profile, false, &s, &err), &err);
    if (!s.feasible)
        fail_msg("the plan %s", s.why);
    assert_true(fabs(s.step.step_s - plan->predicted.step_s) <= 1e-9 * s.step.step_s);
    check_in_flight(plan);
    assert_true(plan->predicted.lower_bound_s > 0);
    assert_true(plan->predicted.lower_bound_s <= plan->predicted.step_s);
    int gpus = s.step.gpus;
    for (int i = 0; i < plan->idle_count; i++) {
        gpus += plan->idle[i].gpu_count;
        assert_true(plan->idle[i].why[0] != '\0');
    }
    assert_int_equal(gpus, f->cluster.gpu_count);
    eth_hpp_simulation_free(&s);
    eth_hpp_plan_free(&back);
    free(text);
}

static double solved_step(const struct fixture *f, struct eth_hpp_solver_options options)
{
    struct eth_hpp_error err = {0};
    struct eth_hpp_plan plan;
    must(solve(f, &options, &plan, &err), &err);
    check_plan(f, &plan);
    double step_s = plan.predicted.step_s;
    eth_hpp_plan_free(&plan);
    return step_s;
}

static void unlike_gpus_beat_even_and_layer_balanced_plans(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f, CLUSTER, PROFILE, NULL);
    struct eth_hpp_solver_options options = {.global_batch = 48, .effort = ETH_HPP_EFFORT_QUICK};
    double hpp = solved_step(&f, options);
    options.shape = ETH_HPP_SHAPE_EVEN;
    double even = solved_step(&f, options);
    options.shape = ETH_HPP_SHAPE_LAYER_BALANCED;
    double balanced = solved_step(&f, options);
    assert_true(hpp <= balanced && balanced <= even);
    assert_true(even > 1.5 * hpp);
    fixture_close(&f);
}

/* More GPUs than samples: most stay idle. */
static void a_small_batch_is_planned_on_many_gpus(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f,
                 with(CLUSTER, "a[1-2]\",\"device\":\"fast\",\"count\":2",
                      "a[1-40]\",\"device\":\"fast\",\"count\":8"),
                 PROFILE, NULL);
    for (int batch = 1; batch <= 9; batch += 4)
        solved_step(&f, (struct eth_hpp_solver_options){.global_batch = batch,
                                                        .effort = ETH_HPP_EFFORT_QUICK});
    fixture_close(&f);
}

/* Chains of a fast and a slow stage, with idle GPUs left and nodes that are not filled. */
static struct eth_hpp_draft make_chains(int replicas, int fast, int slow, bool by_stage)
{
    struct eth_hpp_draft draft = {.group_count = 1};
    struct eth_hpp_draft_group *group = &draft.groups[0];
    group->replicas = replicas;
    group->micro_batch = 4;
    group->by_stage = by_stage;
    group->stage_count = 2;
    group->stages[0] =
        (struct eth_hpp_draft_stage){.layers = 4, .part_count = 1, .parts = {{0, fast}}};
    group->stages[1] =
        (struct eth_hpp_draft_stage){.layers = 2, .part_count = 1, .parts = {{1, slow}}};
    return draft;
}

static void like_pipelines_laid_out_once_take_the_step_of_all_of_them(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_error err = {0};
    struct eth_hpp_cost cost = {0};
    struct eth_hpp_workshop shop = {0};
    struct eth_hpp_solver_options options = {.global_batch = 400};
    int folded = 0;
    char cluster[16384];
    snprintf(cluster, sizeof(cluster), "%s",
             with(CLUSTER, "a[1-2]\",\"device\":\"fast\",\"count\":2",
                  "a[1-12]\",\"device\":\"fast\",\"count\":4"));
    fixture_open(&f,
                 with(cluster, "b1\",\"device\":\"slow\",\"count\":2",
                      "b[1-16]\",\"device\":\"slow\",\"count\":4"),
                 PROFILE, NULL);
    must(eth_hpp_cost_init(&cost, &f.cluster, &f.profile, &err), &err);
    must(eth_hpp_workshop_init(&shop, &cost, &options, &err), &err);
    for (int i = 0; i < 24 * 3 * 4 * 2; i++) {
        struct eth_hpp_draft draft =
            make_chains(1 + i % 24, 1 + i / 24 % 3, 1 + i / 72 % 4, i / 288);
        if (eth_hpp_draft_lay(&shop, &draft) != ETH_HPP_DRAFT_FITS)
            continue;
        double step_s = shop.step.step_s;
        int gpus = shop.step.gpus, pipelines = shop.layout.pipeline_count;
        shop.unfolded = true;
        assert_int_equal(eth_hpp_draft_lay(&shop, &draft), ETH_HPP_DRAFT_FITS);
        shop.unfolded = false;
        assert_true(fabs(shop.step.step_s - step_s) <= 1e-9 * step_s);
        assert_int_equal(shop.step.gpus, gpus);
        assert_int_equal(shop.layout.pipeline_count, draft.groups[0].replicas);
        folded += pipelines < draft.groups[0].replicas;
    }
    assert_true(folded > 50);
    eth_hpp_workshop_free(&shop);
    eth_hpp_cost_free(&cost);
    fixture_close(&f);
}

static void a_margin_that_leaves_no_memory_is_named(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_plan plan;
    struct eth_hpp_error err = {0};
    struct eth_hpp_solver_options options = {.global_batch = 8, .memory_margin_bytes = 1e15};
    fixture_open(&f, CLUSTER, PROFILE, NULL);
    assert_int_equal(solve(&f, &options, &plan, &err), ETH_HPP_ERR_INFEASIBLE);
    assert_non_null(strstr(err.text, "leaves nothing of any GPU"));
    fixture_close(&f);
}

static void the_same_input_gives_the_same_plan(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_error err = {0};
    struct eth_hpp_plan plans[2];
    char *text[2];
    fixture_open(&f, CLUSTER, PROFILE, NULL);
    struct eth_hpp_solver_options options = {.global_batch = 40, .effort = ETH_HPP_EFFORT_QUICK};
    for (int i = 0; i < 2; i++) {
        must(solve(&f, &options, &plans[i], &err), &err);
        must(eth_hpp_plan_print(&plans[i], &text[i], &err), &err);
    }
    assert_string_equal(text[0], text[1]);
    for (int i = 0; i < 2; i++) {
        free(text[i]);
        eth_hpp_plan_free(&plans[i]);
    }
    fixture_close(&f);
}

static void limits_of_the_space_are_kept(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_error err = {0};
    struct eth_hpp_plan plan;
    fixture_open(&f, CLUSTER, PROFILE, NULL);
    struct eth_hpp_solver_options options = {.global_batch = 48,
                                             .effort = ETH_HPP_EFFORT_QUICK,
                                             .max_pipelines = 1,
                                             .max_in_flight = 2,
                                             .no_recompute = true,
                                             .no_sharded = true};
    must(solve(&f, &options, &plan, &err), &err);
    check_plan(&f, &plan);
    assert_int_equal(plan.pipeline_count, 1);
    assert_false(plan.sharded_optimizer);
    for (int s = 0; s < plan.pipelines[0].stage_count; s++) {
        assert_true(plan.pipelines[0].stages[s].in_flight <= 2);
        assert_false(plan.pipelines[0].stages[s].recompute);
    }
    eth_hpp_plan_free(&plan);
    fixture_close(&f);
}

static void what_fits_nowhere_is_infeasible_with_both_figures(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_error err = {0};
    struct eth_hpp_plan plan;
    fixture_open(&f,
                 with(CLUSTER, "4e10},\"slow\":{\"memory_bytes\":1.6e10,\"reserved_bytes\":1e9",
                      "1e7},\"slow\":{\"memory_bytes\":1e7"),
                 PROFILE, NULL);
    struct eth_hpp_solver_options options = {.global_batch = 8};
    assert_int_equal(solve(&f, &options, &plan, &err), ETH_HPP_ERR_INFEASIBLE);
    if (strstr(err.text, "memory is short, the best try needs") == NULL)
        fail_msg("%s", err.text);
    fixture_close(&f);
}

static void a_device_without_times_stays_idle_with_the_reason(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_error err = {0};
    struct eth_hpp_plan plan;
    fixture_open(&f, with(CLUSTER, "\"device\":\"slow\",\"count\":2", "\"gpus\":[\"slow\",\"T4\"]"),
                 PROFILE, NULL);
    struct eth_hpp_solver_options options = {.global_batch = 24, .effort = ETH_HPP_EFFORT_QUICK};
    must(solve(&f, &options, &plan, &err), &err);
    check_plan(&f, &plan);
    const struct eth_hpp_idle *idle = &plan.idle[plan.idle_count - 1];
    assert_string_equal(idle->node, "b1");
    assert_int_equal(idle->gpu_count, 1);
    assert_int_equal(idle->gpus[0], 1);
    assert_non_null(strstr(idle->why, "no times of its kind"));
    eth_hpp_plan_free(&plan);
    fixture_close(&f);
}

/* ---- extremes and random instances ---- */

static unsigned random_state;

static int pick(int most)
{
    random_state = random_state * 1103515245u + 12345u;
    return (int)(random_state >> 16) % most;
}

static void random_instance(struct fixture *f, int *batch)
{
    static char cluster[4096], profile[8192];
    size_t used = (size_t)snprintf(cluster, sizeof(cluster),
                                   "{\"format\":\"eth-hpp-cluster\",\"version\":1,\"devices\":{"
                                   "\"x\":{\"memory_bytes\":%g},\"y\":{\"memory_bytes\":%g}},"
                                   "\"nodes\":[",
                                   (4 + pick(20)) * 1e8, (4 + pick(20)) * 1e8);
    for (int n = 0, nodes = 1 + pick(3); n < nodes; n++)
        used +=
            (size_t)snprintf(cluster + used, sizeof(cluster) - used,
                             "%s{\"name\":\"n%d\",\"device\":\"%s\",\"count\":%d,"
                             "\"intra_bandwidth\":1e10,\"inter_bandwidth\":1e%d}",
                             n > 0 ? "," : "", n, pick(2) ? "x" : "y", 1 + pick(4), 7 + pick(4));
    snprintf(cluster + used, sizeof(cluster) - used, "]}");
    used = (size_t)snprintf(
        profile, sizeof(profile),
        "{\"format\":\"eth-hpp-profile\",\"version\":1,\"model\":\"random\","
        "\"sequence_length\":8,\"dtype\":\"fp32\",\"layers\":[{\"kind\":\"decoder\","
        "\"repeat\":%d,\"parameters\":1e6,\"gradient_bytes\":4e6,\"output_bytes\":1e5}],"
        "\"memory\":{\"1\":{\"decoder\":{\"state_bytes\":%d,\"optimizer_bytes\":%d,"
        "\"saved_bytes\":%d}}},\"times\":{",
        1 + pick(8), 16000000 * (1 + pick(8)), 8000000, 10000000 * pick(8));
    for (int d = 0; d < 2; d++) {
        double speed = 1 + pick(50) / 10.0;
        used += (size_t)snprintf(profile + used, sizeof(profile) - used, "%s\"%s\":{\"1\":{",
                                 d > 0 ? "," : "", d == 0 ? "x" : "y");
        for (int k = 1; k <= 8; k *= 2)
            used += (size_t)snprintf(profile + used, sizeof(profile) - used,
                                     "%s\"%d\":{\"decoder\":[%g,%g]}", k > 1 ? "," : "", k,
                                     1e-3 * speed * (k + 0.5), 2e-3 * speed * (k + 0.5));
        used += (size_t)snprintf(profile + used, sizeof(profile) - used, "}}");
    }
    snprintf(profile + used, sizeof(profile) - used, "}}");
    fixture_open(f, cluster, profile, NULL);
    *batch = 1 + pick(300);
}

static void plans_of_random_instances_hold(void **state)
{
    (void)state;
    int solved = 0;
    for (unsigned seed = 0; seed < 60; seed++) {
        struct fixture f;
        struct eth_hpp_plan plan;
        struct eth_hpp_error err = {0};
        struct eth_hpp_solver_options options = {.effort = ETH_HPP_EFFORT_QUICK};
        random_state = seed;
        random_instance(&f, &options.global_batch);
        options.shape = seed % 4 == 3 ? ETH_HPP_SHAPE_LAYER_BALANCED : ETH_HPP_SHAPE_HPP;
        enum eth_hpp_status status = solve(&f, &options, &plan, &err);
        if (status == ETH_HPP_OK) {
            check_plan(&f, &plan);
            eth_hpp_plan_free(&plan);
            solved++;
        } else if (status != ETH_HPP_ERR_INFEASIBLE) {
            fail_msg("seed %u: %s", seed, err.text);
        }
        fixture_close(&f);
    }
    assert_true(solved > 40);
}

static void the_table_names_what_matters(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_error err = {0};
    struct eth_hpp_simulation s;
    char *text;
    size_t size;
    fixture_open(&f, CLUSTER, PROFILE, UNLIKE_PLAN);
    must(eth_hpp_simulate(&f.plan, &f.cluster, &f.profile, false, &s, &err), &err);
    f.plan.predicted = s.predicted;
    f.plan.predicted.lower_bound_s = s.step.step_s / 1.25;
    f.plan.predicted.gap = 0.25;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    eth_hpp_report_print(&f.plan, &f.cluster, out);
    assert_int_equal(fclose(out), 0);
    static const char *const words[] = {"2 pipelines on 5 GPUs",
                                        "6 micro-batches of 2 samples, 60.0 % of the batch",
                                        "1 fast + 1 slow",
                                        "1 x 3 + 1 x 1",
                                        "layers 2-5",
                                        "a2,b1",
                                        "within 25.0 % of that",
                                        "predicted step"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strstr(text, words[i]) == NULL)
            fail_msg("\"%s\" is not in:\n%s", words[i], text);
    free(text);
    fixture_close(&f);
}

/* Rounds take an advance of 1 to 5 micro-batches, so that 60 more are whole rounds of any. */
static void the_reckoned_pace_of_a_pipeline_is_the_one_it_runs_at(void **state)
{
    (void)state;
    enum { STAGES = 5, SETTLED = 300, MORE = 60 };
    random_state = 7;
    struct eth_hpp_pipeline_scratch scratch = {0};
    struct eth_hpp_error err = {0};
    for (int i = 0; i < 200; i++) {
        struct eth_hpp_stage_run runs[STAGES] = {0};
        int stages = 1 + pick(STAGES), in_flight = stages;
        double ends[2];
        for (int s = 0; s < stages; s++) {
            int most = in_flight < stages - s ? in_flight : stages - s;
            in_flight = 1 + pick(most);
            runs[s] = (struct eth_hpp_stage_run){.forward_s = 1 + pick(9),
                                                 .backward_s = 1 + pick(9),
                                                 .transfer_s = s + 1 < stages ? pick(9) : 0,
                                                 .in_flight = in_flight};
        }
        for (int k = 0; k < 2; k++)
            must(eth_hpp_pipeline_run(runs, stages, SETTLED + k * MORE, false, &scratch, &ends[k],
                                      &err),
                 &err);
        struct eth_hpp_pipeline_pace pace =
            eth_hpp_pipeline_find_pace(runs, stages, SETTLED + MORE);
        assert_true(fabs((ends[1] - ends[0]) / MORE - pace.beat_s) < 1e-9);
        assert_true(pace.least_s <= ends[1] + 1e-9);
        assert_true(pace.least_s >= 0.9 * ends[1]);
    }
    eth_hpp_pipeline_scratch_free(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reckoned_pace_of_a_pipeline_is_the_one_it_runs_at),
        cmocka_unit_test(unlike_gpus_beat_even_and_layer_balanced_plans),
        cmocka_unit_test(a_small_batch_is_planned_on_many_gpus),
        cmocka_unit_test(like_pipelines_laid_out_once_take_the_step_of_all_of_them),
        cmocka_unit_test(a_margin_that_leaves_no_memory_is_named),
        cmocka_unit_test(the_same_input_gives_the_same_plan),
        cmocka_unit_test(limits_of_the_space_are_kept),
        cmocka_unit_test(what_fits_nowhere_is_infeasible_with_both_figures),
        cmocka_unit_test(a_device_without_times_stays_idle_with_the_reason),
        cmocka_unit_test(plans_of_random_instances_hold),
        cmocka_unit_test(the_table_names_what_matters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
