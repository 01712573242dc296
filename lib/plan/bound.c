#include "plan/bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Least seconds of one GPU for one sample of a layer kind. */
static double best_rate(const struct eth_hpp_cost *cost, int device, int most_per_node, int kind)
{
    int kinds = cost->profile->kind_count;
    double best = INFINITY;
    for (int d = 0; d < cost->degrees; d++) {
        const struct eth_hpp_times *times = cost->times[device * cost->degrees + d];
        if (times == NULL || cost->degree[d] > most_per_node)
            continue;
        for (int p = 0; p < times->points; p++) {
            const struct eth_hpp_layer_time *t = &times->times[p * kinds + kind];
            double s = (t->forward_s + t->backward_s) * cost->degree[d] / times->samples[p];
            best = s < best ? s : best;
        }
    }
    return best;
}

/* Rows: kinds (equalities), then devices. Columns: x[k,d], T, slacks, the right-hand side. */
struct table {
    int rows, columns, unknowns; /* unknowns: x and T */
    double *cell;
    double *cost;
    int *basis;
};

static double *at(const struct table *t, int row, int column)
{
    return &t->cell[row * t->columns + column];
}

static void pivot(struct table *t, int row, int column)
{
    double scale = 1 / *at(t, row, column);
    for (int j = 0; j < t->columns; j++)
        *at(t, row, j) *= scale;
    for (int i = 0; i < t->rows; i++) {
        double factor = *at(t, i, column);
        if (i == row || factor == 0)
            continue;
        for (int j = 0; j < t->columns; j++)
            *at(t, i, j) -= factor * *at(t, row, j);
    }
    double factor = t->cost[column];
    for (int j = 0; j < t->columns; j++)
        t->cost[j] -= factor * *at(t, row, j);
    t->basis[row] = column;
}

/* Bland's rule cannot cycle; the programme is bounded below by 0. False if it did not end. */
static bool minimise(struct table *t)
{
    for (int turn = 0; turn < 10000; turn++) {
        int enter = 0, leave = -1;
        while (enter < t->columns - 1 && t->cost[enter] >= -1e-12)
            enter++;
        if (enter == t->columns - 1)
            return true;
        for (int i = 0; i < t->rows; i++) {
            double a = *at(t, i, enter);
            if (a <= 1e-12)
                continue;
            double ratio = *at(t, i, t->columns - 1) / a;
            double least =
                leave < 0 ? INFINITY : *at(t, leave, t->columns - 1) / *at(t, leave, enter);
            if (ratio < least || (ratio == least && t->basis[i] < t->basis[leave]))
                leave = i;
        }
        if (leave < 0)
            return false;
        pivot(t, leave, enter);
    }
    return false;
}

/*
 * A start without artificial variables: every kind runs on the first device, x[k,0] = 1 and
 * T = load[0]; all other devices have slack T.
 */
static double solve(struct table *t, int kinds, int devices, const double *load)
{
    int time = kinds * devices, rhs = t->columns - 1;
    for (int k = 0; k < kinds; k++) {
        for (int d = 0; d < devices; d++)
            *at(t, k, k * devices + d) = 1;
        *at(t, k, rhs) = 1;
    }
    for (int d = 0; d < devices; d++) {
        for (int k = 0; k < kinds; k++)
            *at(t, kinds + d, k * devices + d) = load[k * devices + d];
        *at(t, kinds + d, time) = -1;
        *at(t, kinds + d, t->unknowns + d) = 1;
    }
    t->cost[time] = 1;
    for (int k = 0; k < kinds; k++)
        pivot(t, k, k * devices);
    pivot(t, kinds, time);
    for (int d = 1; d < devices; d++)
        t->basis[kinds + d] = t->unknowns + d;
    return minimise(t) ? -t->cost[rhs] : 0;
}

double eth_hpp_bound(const struct eth_hpp_cost *cost, int global_batch)
{
    const struct eth_hpp_cluster *cluster = cost->cluster;
    int kinds = cost->profile->kind_count, devices = 0;
    double *load = calloc((size_t)(kinds * cluster->device_count) + 1, sizeof(*load));
    struct table t = {0};
    double bound = 0;
    if (load == NULL)
        return 0;
    /* load[k * devices + d], once the number of usable devices is known: first by device. */
    double *by_device = calloc((size_t)(kinds * cluster->device_count) + 1, sizeof(*by_device));
    if (by_device == NULL)
        goto out;
    for (int i = 0; i < cluster->device_count; i++) {
        int gpus = 0, most = 0;
        for (int n = 0; n < cluster->node_count; n++) {
            int here = 0;
            for (int g = 0; g < cluster->nodes[n].gpus; g++)
                here += cluster->nodes[n].devices[g] == i;
            gpus += here;
            most = here > most ? here : most;
        }
        if (gpus == 0 || best_rate(cost, i, most, 0) == INFINITY)
            continue;
        for (int k = 0; k < kinds; k++)
            by_device[devices * kinds + k] =
                (double)global_batch * eth_hpp_cost_count(cost, k, 0, cost->profile->layer_count) *
                best_rate(cost, i, most, k) / gpus;
        devices++;
    }
    for (int k = 0; k < kinds; k++)
        for (int d = 0; d < devices; d++)
            load[k * devices + d] = by_device[d * kinds + k];
    t.rows = kinds + devices;
    t.unknowns = kinds * devices + 1;
    t.columns = t.unknowns + devices + 1;
    t.cell = calloc((size_t)(t.rows * t.columns), sizeof(*t.cell));
    t.cost = calloc((size_t)t.columns, sizeof(*t.cost));
    t.basis = calloc((size_t)t.rows, sizeof(*t.basis));
    if (devices > 0 && t.cell != NULL && t.cost != NULL && t.basis != NULL)
        bound = solve(&t, kinds, devices, load) * (1 - 1e-9); /* rounding must not pass the truth */
out:
    free(by_device);
    free(load);
    free(t.cell);
    free(t.cost);
    free(t.basis);
    return bound;
}
