#include "plan/bound_lp.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

/* Rows: of the work (equalities), then devices. Columns: x[r,d], M, slacks, the right-hand side. */
struct table {
    int rows, columns, unknowns; /* unknowns: x and M */
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
    double *from = at(t, row, 0), scale = 1 / from[column];
    for (int j = 0; j < t->columns; j++)
        from[j] *= scale;
    for (int i = 0; i < t->rows; i++) {
        double *to = at(t, i, 0), factor = to[column];
        if (i == row || factor == 0)
            continue;
        for (int j = 0; j < t->columns; j++)
            to[j] -= factor * from[j];
    }
    double factor = t->cost[column];
    for (int j = 0; j < t->columns; j++)
        t->cost[j] -= factor * from[j];
    t->basis[row] = column;
}

/* The column that gains most, or after many turns the first that gains, which cannot cycle. */
static int find_entering(const struct table *t, bool first)
{
    int enter = -1;
    for (int j = 0; j < t->columns - 1; j++) {
        if (t->cost[j] >= -1e-12 || (enter >= 0 && t->cost[j] >= t->cost[enter]))
            continue;
        enter = j;
        if (first)
            break;
    }
    return enter;
}

static void minimise(struct table *t)
{
    int patience = 4 * (t->rows + t->columns);
    for (int turn = 0; turn < 4 * patience; turn++) {
        int enter = find_entering(t, turn > patience), leave = -1;
        if (enter < 0)
            return;
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
            return;
        pivot(t, leave, enter);
    }
}

/* All rows on one device f, the best for that: x[r,f] = 1 and M = its load, the sum of all
 * load[r,f]; all other devices have slack. What another device takes of a row it takes from f's. */
static void start(struct table *t, const double *load, int rows, int devices)
{
    int most = rows * devices, rhs = t->columns - 1, f = 0;
    double least = INFINITY;
    for (int d = 0; d < devices; d++) {
        double sum = 0;
        for (int r = 0; r < rows; r++)
            sum += load[r * devices + d];
        if (sum >= least)
            continue;
        least = sum;
        f = d;
    }
    for (int r = 0; r < rows; r++) {
        t->basis[r] = r * devices + f;
        *at(t, r, rhs) = 1;
        for (int d = 0; d < devices; d++) {
            *at(t, r, r * devices + d) = 1;
            for (int row = 0; row < devices && d != f; row++)
                *at(t, rows + row, r * devices + d) =
                    load[r * devices + f] + (row == d ? load[r * devices + d] : 0);
            t->cost[r * devices + d] = d != f ? -load[r * devices + f] : 0;
        }
    }
    for (int d = 0; d < devices; d++) {
        t->basis[rows + d] = d == f ? most : t->unknowns + d;
        *at(t, rows + d, t->unknowns + f) = -1;
        *at(t, rows + d, t->basis[rows + d]) = 1;
        *at(t, rows + d, rhs) = least;
    }
    t->cost[t->unknowns + f] = 1;
}

/* The best prices are the reduced costs of the slacks. */
static void find_prices(const struct table *t, int devices, double *prices)
{
    double sum = 0;
    for (int d = 0; d < devices; d++)
        sum += fmax(t->cost[t->unknowns + d], 0);
    for (int d = 0; d < devices; d++)
        prices[d] = sum > 0 ? fmax(t->cost[t->unknowns + d], 0) / sum : 0;
}

double eth_hpp_bound_lp_proven(const double *load, int rows, int devices, const double *prices)
{
    double proven = 0;
    for (int r = 0; r < rows; r++) {
        double least = INFINITY;
        for (int d = 0; d < devices; d++)
            least = fmin(least, prices[d] * load[r * devices + d]);
        proven += least;
    }
    return proven;
}

double eth_hpp_bound_lp(const double *load, int rows, int devices, double *prices)
{
    struct table t = {.rows = rows + devices, .unknowns = rows * devices + 1};
    double proven = 0;
    t.columns = t.unknowns + devices + 1;
    t.cell = calloc((size_t)t.rows * (size_t)t.columns, sizeof(*t.cell));
    t.cost = calloc((size_t)t.columns, sizeof(*t.cost));
    t.basis = calloc((size_t)t.rows, sizeof(*t.basis));
    if (t.cell != NULL && t.cost != NULL && t.basis != NULL) {
        start(&t, load, rows, devices);
        minimise(&t);
        find_prices(&t, devices, prices);
        proven = eth_hpp_bound_lp_proven(load, rows, devices, prices);
    }
    free(t.cell);
    free(t.cost);
    free(t.basis);
    return proven;
}
