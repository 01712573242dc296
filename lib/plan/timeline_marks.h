/* How spans become the marks of a drawing that is made of columns. */
#ifndef ETH_HPP_PLAN_TIMELINE_MARKS_H
#define ETH_HPP_PLAN_TIMELINE_MARKS_H

#include "plan/timeline.h"

/* In the order in which one is preferred where several things happen at once. Micro-batches in turn
 * are even and odd, so that they can be told apart. */
enum eth_hpp_mark {
    ETH_HPP_MARK_FORWARD_EVEN,
    ETH_HPP_MARK_FORWARD_ODD,
    ETH_HPP_MARK_BACKWARD_EVEN,
    ETH_HPP_MARK_BACKWARD_ODD,
    ETH_HPP_MARK_OPTIMIZER,
    ETH_HPP_MARK_SUM,
    ETH_HPP_MARK_HAND_OVER,
    ETH_HPP_MARK_WAIT,
    ETH_HPP_MARKS
};

enum eth_hpp_mark eth_hpp_mark_of(const struct eth_hpp_span *span);

/* Chooses what each of the columns shows of a row, of the spans whose marks are in the bit mask.
 * A column has room for what comes first in the order of the marks; what is narrower than a column
 * would be lost where the widest thing always won, so what one column does not show is carried to
 * the next that has some of it: there are about as many columns of a mark as it has time. Where
 * there are more computations than columns all count as even. `share` is memory to work in. */
void eth_hpp_marks_choose(const struct eth_hpp_timeline_row *row, unsigned marks, double column_s,
                          int columns, double (*share)[ETH_HPP_MARKS], enum eth_hpp_mark *chosen);

#endif
