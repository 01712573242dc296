/*
 * Holds the solver against the best plan of random tiny instances, found by trying all:
 *     optimum [FOLDER [COUNT [FIRST-SEED [SLOWER]]]]
 * with networks SLOWER times as slow (default 1), prints an instance a line and the distribution of
 * the gaps. Instances in which the plan is more than 1 % longer than the best one are written to
 * FOLDER (- for none), with that plan. Exit code 1 where the bar is missed: within 1 % on 95 % of
 * the instances, within 5 % on all, and no plan shorter than the proven bound.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "plan/simulate.h"
#include "plan/solver.h"
#include "tests/bench/exhaustive.h"
#include "tests/bench/tiny.h"
#include "tests/bench/unlay.h"

struct tally {
    int instances, infeasible, over_1, over_5, wrong;
    double worst;
};

static double cpu_s(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static void save(const char *folder, unsigned seed, const struct tiny *tiny,
                 const struct eth_hpp_layout *best, const struct eth_hpp_plan *found)
{
    struct eth_hpp_error err = {0};
    struct eth_hpp_plan plan = {0};
    char path[512], batch[16];
    snprintf(path, sizeof(path), "%s/tiny-%04u.cluster.json", folder, seed);
    enum eth_hpp_status status = eth_hpp_cluster_save(&tiny->cluster, path, &err);
    snprintf(path, sizeof(path), "%s/tiny-%04u.profile.json", folder, seed);
    if (status == ETH_HPP_OK)
        status = eth_hpp_profile_save(&tiny->profile, path, &err);
    snprintf(path, sizeof(path), "%s/tiny-%04u.batch", folder, seed);
    snprintf(batch, sizeof(batch), "%d\n", tiny->global_batch);
    if (status == ETH_HPP_OK)
        status = eth_hpp_file_output(path, batch, &err);
    snprintf(path, sizeof(path), "%s/tiny-%04u.found.json", folder, seed);
    if (status == ETH_HPP_OK && found != NULL)
        status = eth_hpp_plan_save(found, path, &err);
    snprintf(path, sizeof(path), "%s/tiny-%04u.best.json", folder, seed);
    if (status == ETH_HPP_OK)
        status = unlay(best, &tiny->cluster, &tiny->profile, &plan, &err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_plan_save(&plan, path, &err);
    if (status != ETH_HPP_OK)
        fprintf(stderr, "optimum: %s\n", err.text);
    eth_hpp_plan_free(&plan);
}

/* False where it cannot be done. */
static bool hold(unsigned seed, unsigned slower, const char *folder, struct tally *tally)
{
    static const int gpus[] = {2, 3, 4, 4, 5, 6}, batches[] = {1, 3, 4, 6, 8, 8, 10, 12};
    struct tiny tiny;
    struct eth_hpp_error err = {0};
    struct eth_hpp_cost cost = {0};
    struct eth_hpp_plan plan = {0};
    struct eth_hpp_layout best = {0};
    double best_s = 0, known_s = INFINITY, start;
    int count = gpus[seed % 6], layers = 1 + (int)(seed / 2 % 8), batch = batches[seed / 3 % 8];
    bool done = false;
    if (!tiny_open(&tiny, seed, count, layers, batch, &err)) {
        fprintf(stderr, "optimum: seed %u: %s\n", seed, err.text);
        return false;
    }
    for (int n = 0; n < tiny.cluster.node_count; n++)
        tiny.cluster.nodes[n].inter_bandwidth /= slower;
    struct eth_hpp_solver_options options = {.global_batch = batch,
                                             .effort = ETH_HPP_EFFORT_DEFAULT};
    enum eth_hpp_status status = eth_hpp_solve(&tiny.cluster, &tiny.profile, &options, &plan, &err);
    if (status == ETH_HPP_OK)
        known_s = plan.predicted.step_s;
    start = cpu_s();
    if ((status == ETH_HPP_OK || status == ETH_HPP_ERR_INFEASIBLE) &&
        eth_hpp_cost_init(&cost, &tiny.cluster, &tiny.profile, &err) == ETH_HPP_OK)
        done = exhaustive_search(&cost, batch, known_s, &best, &best_s);
    if (!done) {
        fprintf(stderr, "optimum: seed %u: %s\n", seed, err.text);
    } else {
        double gap = known_s / best_s - 1, bound_s = plan.predicted.lower_bound_s;
        bool none = isinf(best_s), wrong = !none && best_s < bound_s;
        gap = none ? 0 : gap;
        tally->instances++;
        tally->infeasible += none;
        tally->over_1 += gap > 0.01;
        tally->over_5 += gap > 0.05;
        tally->wrong += wrong;
        tally->worst = gap > tally->worst ? gap : tally->worst;
        printf("%4u %d GPUs %d layers batch %2d  plan %-10.6g best %-10.6g gap %6.2f %%  bound "
               "%-10.6g (%5.1f %%)  %6.2f s%s%s\n",
               seed, count, layers, batch, known_s, best_s, 100 * gap, bound_s,
               none ? 0 : 100 * (best_s / bound_s - 1), cpu_s() - start,
               none ? "  nothing fits" : "", wrong ? "  BELOW THE BOUND" : "");
        fflush(stdout);
        if ((gap > 0.01 || wrong) && strcmp(folder, "-") != 0)
            save(folder, seed, &tiny, &best, status == ETH_HPP_OK ? &plan : NULL);
    }
    eth_hpp_layout_free(&best);
    eth_hpp_plan_free(&plan);
    eth_hpp_cost_free(&cost);
    tiny_close(&tiny);
    return done;
}

/* The argument, or what stands in for it where there is none; ends the program where it is no
 * number from `least` on. */
static unsigned number_of(int argc, char **argv, int at, unsigned least, unsigned otherwise)
{
    char *end;
    if (argc <= at)
        return otherwise;
    unsigned long number = strtoul(argv[at], &end, 10);
    if (argv[at][0] >= '0' && argv[at][0] <= '9' && *end == '\0' && number >= least &&
        number <= 1000000)
        return (unsigned)number;
    fprintf(stderr,
            "optimum: \"%s\" is no number from %u to 1000000\n"
            "usage: optimum [FOLDER [COUNT [FIRST-SEED [SLOWER]]]]\n",
            argv[at], least);
    exit(2);
}

int main(int argc, char **argv)
{
    struct tally tally = {0};
    const char *folder = argc > 1 ? argv[1] : "-";
    unsigned count = number_of(argc, argv, 2, 0, 200), first = number_of(argc, argv, 3, 0, 0);
    unsigned slower = number_of(argc, argv, 4, 1, 1);
    for (unsigned seed = first; seed < first + count; seed++)
        if (!hold(seed, slower, folder, &tally))
            return 1;
    printf(
        "%d instances (%d where nothing fits): %d over 1 %%, %d over 5 %%, worst %.2f %%, %d below "
        "the bound\n",
        tally.instances, tally.infeasible, tally.over_1, tally.over_5, 100 * tally.worst,
        tally.wrong);
    return tally.over_1 * 20 > tally.instances || tally.over_5 > 0 || tally.wrong > 0;
}
