#include "plan_fixtures.h"

#include <math.h>

#include "plan/chain_kit.h"

/* Networks that hide no mistake of the computation. */
#define QUICK_CLUSTER                                                                              \
    "{\"format\":\"eth-hpp-cluster\",\"version\":1,"                                               \
    "\"devices\":{\"fast\":{\"memory_bytes\":4e10},\"slow\":{\"memory_bytes\":1.6e10}},"           \
    "\"nodes\":[{\"name\":\"a1\",\"device\":\"fast\",\"count\":2,\"intra_bandwidth\":1e13,"        \
    "\"inter_bandwidth\":1e13},"                                                                   \
    "{\"name\":\"b1\",\"device\":\"slow\",\"count\":2,\"intra_bandwidth\":1e13,"                   \
    "\"inter_bandwidth\":1e13}]}"

struct search {
    struct fixture f;
    struct eth_hpp_cost cost;
    struct eth_hpp_solver_options options;
    struct eth_hpp_workshop shop;
    struct eth_hpp_chains *chains;
    struct eth_hpp_chain_task task;
};

static void open_search(struct search *s, const char *cluster)
{
    struct eth_hpp_error err = {0};
    memset(s, 0, sizeof(*s));
    fixture_open(&s->f, cluster, PROFILE, NULL);
    s->options =
        (struct eth_hpp_solver_options){.global_batch = 1000, .effort = ETH_HPP_EFFORT_QUICK};
    must(eth_hpp_cost_init(&s->cost, &s->f.cluster, &s->f.profile, &err), &err);
    must(eth_hpp_workshop_init(&s->shop, &s->cost, &s->options, &err), &err);
    s->chains = eth_hpp_chains_make(&s->shop);
    assert_non_null(s->chains);
    eth_hpp_chains_limit(s->chains, 1000000);
    s->task = (struct eth_hpp_chain_task){.gpus = {2, 2},
                                          .replicas = 1,
                                          .micro_batch = 1,
                                          .rounds = 1000,
                                          .limit_s = INFINITY,
                                          .share = 1,
                                          .states = 700,
                                          .alone = true};
}

static void close_search(struct search *s)
{
    eth_hpp_chains_free(s->chains);
    eth_hpp_workshop_free(&s->shop);
    eth_hpp_cost_free(&s->cost);
    fixture_close(&s->f);
}

static double find(struct search *s, struct eth_hpp_draft *draft)
{
    bool tight = false;
    memset(draft, 0, sizeof(*draft));
    draft->group_count = 1;
    return eth_hpp_chains_find(s->chains, &s->task, &draft->groups[0], &tight);
}

static int layers_of(const struct eth_hpp_draft_group *group)
{
    int layers = 0;
    for (int i = 0; i < group->stage_count; i++)
        layers += group->stages[i].layers;
    return layers;
}

/* The shortest beat of chains of single GPUs whose last stages begin at `end`: all ways to use what
 * is left of each pool. */
static double shortest_beat(const struct search *s, int end, const int *left)
{
    double best = end == 0 ? 0 : INFINITY;
    for (int p = 0; p < 2; p++) {
        int fewer[] = {left[0] - (p == 0), left[1] - (p == 1)};
        for (int first = 0; first < end && left[p] > 0; first++) {
            struct eth_hpp_layer_time time = eth_hpp_cost_layers(
                &s->cost, s->shop.pools.pools[p].device, 0, first, end, 1, false);
            double beat = fmax(time.forward_s + time.backward_s, shortest_beat(s, first, fewer));
            best = fmin(best, beat);
        }
    }
    return best;
}

static void the_shortest_chain_is_found(void **state)
{
    (void)state;
    struct search s;
    struct eth_hpp_draft draft;
    open_search(&s, QUICK_CLUSTER);
    for (int fast = 0; fast <= 2; fast++)
        for (int slow = fast == 0; slow <= 2; slow++) {
            s.task.gpus[0] = fast;
            s.task.gpus[1] = slow;
            double best = shortest_beat(&s, 6, s.task.gpus), found = find(&s, &draft);
            assert_int_equal(layers_of(&draft.groups[0]), 6);
            assert_true(found >= 999 * best && found <= 1.04 * 1000 * best);
        }
    close_search(&s);
}

/* Peak memory of a worker with the layers first .. end-1, as the plan counts it. */
static double peak_of(const struct search *s, const struct eth_hpp_chain_like *like, int in_flight,
                      int first, int end)
{
    struct eth_hpp_stage_memory memory =
        eth_hpp_cost_memory(&s->cost, like->degree, first, end, like->recompute);
    return eth_hpp_cost_peak(&s->cost, &memory, memory.state - (1 - like->share) * memory.optimizer,
                             like->device, like->samples, in_flight);
}

/* What is reckoned from kinds of layers is what the plan counts layer by layer. */
static void a_worker_holds_as_many_layers_as_fit(void **state)
{
    (void)state;
    static const char *const memories[] = {"4e8", "7e8", "1.1e9", "2e9", "1.6e10"};
    int some = 0, all = 0;
    for (int i = 0; i < 5 * 8; i++) {
        struct search s;
        struct eth_hpp_chain_workers workers;
        open_search(&s, with(QUICK_CLUSTER, "1.6e10", memories[i / 8]));
        struct eth_hpp_chain_like like = {.device = s.shop.pools.pools[1].device,
                                          .samples = i & 4 ? 3 : 1,
                                          .recompute = i & 1,
                                          .share = i & 2 ? 0.25 : 1};
        const double limit = s.f.cluster.devices[like.device].memory_bytes;
        eth_hpp_chain_workers_init(&workers, &s.shop);
        struct eth_hpp_chain_worker *worker = eth_hpp_chain_workers_get(&workers, &like);
        assert_non_null(worker);
        for (int in_flight = 1; in_flight <= 5; in_flight += 2)
            for (int end = 1; end <= s.f.profile.layer_count; end++) {
                int first = end;
                while (first > 0 && peak_of(&s, &like, in_flight, first - 1, end) <= limit)
                    first--;
                assert_int_equal(eth_hpp_chain_worker_holds(&workers, worker, in_flight, end),
                                 first);
                some += first > 0 && first < end;
                all += first == 0;
            }
        eth_hpp_chain_workers_free(&workers);
        close_search(&s);
    }
    assert_true(some > 50 && all > 50); /* memory has mattered, and has not */
}

/* A slow GPU holds two decoders of three micro-batches here, or three of two. */
static void a_chain_fits_memory(void **state)
{
    (void)state;
    struct search s;
    struct eth_hpp_draft draft;
    open_search(&s, with(QUICK_CLUSTER, "1.6e10", "7e8"));
    s.task.gpus[0] = 0;
    assert_true(find(&s, &draft) < INFINITY);
    assert_int_equal(eth_hpp_draft_lay(&s.shop, &draft), ETH_HPP_DRAFT_FITS);
    close_search(&s);
    open_search(&s, with(QUICK_CLUSTER, "1.6e10", "7e7"));
    s.task.gpus[0] = 0;
    assert_true(find(&s, &draft) == INFINITY);
    close_search(&s);
}

static void nothing_longer_than_the_limit_is_found(void **state)
{
    (void)state;
    struct search s;
    struct eth_hpp_draft draft;
    open_search(&s, QUICK_CLUSTER);
    double found = find(&s, &draft);
    s.task.limit_s = 0.9 * found;
    assert_true(find(&s, &draft) == INFINITY);
    assert_int_equal(draft.groups[0].stage_count, 0);
    bool tight = false;
    assert_true(eth_hpp_chains_bound(s.chains, &s.task, &tight) <= found);
    close_search(&s);
}

/* Each hand-over takes ten times what all layers do on one GPU. */
static void a_slow_network_is_not_crossed(void **state)
{
    (void)state;
    struct search s;
    struct eth_hpp_draft draft;
    open_search(&s, with(QUICK_CLUSTER, "\"inter_bandwidth\":1e13}]", "\"inter_bandwidth\":6e6}]"));
    find(&s, &draft);
    for (int i = 1; i < draft.groups[0].stage_count; i++)
        assert_int_equal(draft.groups[0].stages[i].parts[0].pool,
                         draft.groups[0].stages[0].parts[0].pool);
    close_search(&s);
}

/* Eight GPUs of a kind on nodes of four, behind slow networks. */
#define WIDE_CLUSTER                                                                               \
    "{\"format\":\"eth-hpp-cluster\",\"version\":1,"                                               \
    "\"devices\":{\"fast\":{\"memory_bytes\":4e10},\"slow\":{\"memory_bytes\":1.6e10}},"           \
    "\"nodes\":[{\"name\":\"a[1-2]\",\"device\":\"fast\",\"count\":4,\"intra_bandwidth\":1e13,"    \
    "\"inter_bandwidth\":1e8},"                                                                    \
    "{\"name\":\"b[1-2]\",\"device\":\"slow\",\"count\":4,\"intra_bandwidth\":1e13,"               \
    "\"inter_bandwidth\":2e8}]}"

/* What the busiest network carries of a chain is what it carries in the plan, wherever the nodes'
 * GPUs go. The tied tensor is left out, as chains do. */
static void the_busiest_network_is_that_of_the_plan(void **state)
{
    (void)state;
    static const struct {
        int replicas, stages, pools[4], workers[4], layers[4];
        bool by_stage;
    } cases[] = {
        {1, 4, {0, 0, 1, 1}, {4, 4, 4, 4}, {1, 2, 2, 1}, false},
        {1, 3, {0, 1, 0}, {4, 8, 4}, {2, 1, 3}, false},
        {2, 4, {0, 0, 1, 1}, {2, 2, 2, 2}, {1, 2, 2, 1}, false},
        {2, 4, {0, 0, 1, 1}, {2, 2, 2, 2}, {1, 2, 2, 1}, true},
        {4, 3, {0, 1, 1}, {2, 1, 1}, {4, 1, 1}, true},
        {4, 4, {1, 0, 0, 1}, {1, 1, 1, 1}, {1, 2, 2, 1}, false},
        {1, 1, {0}, {8}, {6}, false},
    };
    struct search s;
    open_search(&s, WIDE_CLUSTER);
    s.f.profile.tied_count = 0;
    s.shop.unfolded = true;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct eth_hpp_draft draft = {.group_count = 1};
        struct eth_hpp_draft_group *group = &draft.groups[0];
        *group = (struct eth_hpp_draft_group){.replicas = cases[i].replicas,
                                              .micro_batch = 8,
                                              .by_stage = cases[i].by_stage,
                                              .stage_count = cases[i].stages};
        for (int j = 0; j < cases[i].stages; j++)
            group->stages[j] =
                (struct eth_hpp_draft_stage){.layers = cases[i].layers[j],
                                             .part_count = 1,
                                             .parts = {{cases[i].pools[j], cases[i].workers[j]}}};
        s.task.replicas = cases[i].replicas;
        s.task.micro_batch = 8;
        s.task.rounds = s.options.global_batch / 8.0 / cases[i].replicas;
        s.task.gpus[0] = s.task.gpus[1] = 8 / cases[i].replicas;
        assert_true(eth_hpp_chain_prepare(s.chains, &s.task, cases[i].by_stage));
        assert_int_equal(eth_hpp_draft_lay(&s.shop, &draft), ETH_HPP_DRAFT_FITS);
        double carried_s = eth_hpp_chain_network_s(s.chains, group);
        assert_true(fabs(carried_s - s.shop.step.network_s) < 0.01 * s.shop.step.network_s);
    }
    close_search(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_shortest_chain_is_found),
                                       cmocka_unit_test(a_worker_holds_as_many_layers_as_fit),
                                       cmocka_unit_test(a_chain_fits_memory),
                                       cmocka_unit_test(nothing_longer_than_the_limit_is_found),
                                       cmocka_unit_test(a_slow_network_is_not_crossed),
                                       cmocka_unit_test(the_busiest_network_is_that_of_the_plan)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
