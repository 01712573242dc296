#include "plan/timeline_marks.h"

#include <string.h>

enum eth_hpp_mark eth_hpp_mark_of(const struct eth_hpp_span *span)
{
    bool odd = span->micro_batch % 2 != 0;
    switch (span->opcode) {
    case ETH_HPP_FORWARD:
        return odd ? ETH_HPP_MARK_FORWARD_ODD : ETH_HPP_MARK_FORWARD_EVEN;
    case ETH_HPP_BACKWARD:
        return odd ? ETH_HPP_MARK_BACKWARD_ODD : ETH_HPP_MARK_BACKWARD_EVEN;
    case ETH_HPP_OPTIMIZER_STEP:
        return ETH_HPP_MARK_OPTIMIZER;
    case ETH_HPP_SYNC_BLOCK:
    case ETH_HPP_GATHER_BLOCK:
        return ETH_HPP_MARK_SUM;
    default:
        return ETH_HPP_MARK_HAND_OVER;
    }
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Are the row's computations so many that columns cannot tell them apart? */
static bool crowded(const struct eth_hpp_timeline_row *row, int columns)
{
    int computations = 0;
    for (int i = 0; i < row->span_count; i++)
        computations += eth_hpp_mark_of(&row->spans[i]) <= ETH_HPP_MARK_BACKWARD_ODD;
    return computations > columns;
}

/* Seconds of each mark in each column. */
static void share_out(const struct eth_hpp_timeline_row *row, unsigned marks, double column_s,
                      int columns, double (*share)[ETH_HPP_MARKS])
{
    bool alike = crowded(row, columns);
    memset(share, 0, (size_t)columns * sizeof(*share));
    for (int i = 0; i < row->span_count; i++) {
        const struct eth_hpp_span *span = &row->spans[i];
        enum eth_hpp_mark mark = eth_hpp_mark_of(span);
        double end_s = eth_hpp_timeline_end(row, span);
        if (!(marks >> mark & 1))
            continue;
        if (alike && mark <= ETH_HPP_MARK_BACKWARD_ODD)
            mark = mark <= ETH_HPP_MARK_FORWARD_ODD ? ETH_HPP_MARK_FORWARD_EVEN
                                                    : ETH_HPP_MARK_BACKWARD_EVEN;
        for (int c = (int)(span->start_s / column_s); c < columns && c * column_s < end_s; c++)
            share[c][mark] +=
                larger(0, smaller(end_s, (c + 1) * column_s) - larger(span->start_s, c * column_s));
    }
}

void eth_hpp_marks_choose(const struct eth_hpp_timeline_row *row, unsigned marks, double column_s,
                          int columns, double (*share)[ETH_HPP_MARKS], enum eth_hpp_mark *chosen)
{
    double owed[ETH_HPP_MARKS] = {0};
    share_out(row, marks, column_s, columns, share);
    for (int c = 0; c < columns; c++) {
        double left_s = column_s;
        int best = -1;
        for (int m = 0; m < ETH_HPP_MARKS; m++) {
            double here_s = m == ETH_HPP_MARK_WAIT ? left_s : smaller(share[c][m], left_s);
            left_s -= here_s;
            owed[m] += here_s;
            if (here_s > 0 && (best < 0 || owed[m] > owed[best]))
                best = m;
        }
        owed[best] -= column_s;
        chosen[c] = (enum eth_hpp_mark)best;
    }
}
