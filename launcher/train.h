/* `eth-hpp train`: the built-in GPT on the public API. */
#ifndef ETH_HPP_LAUNCHER_TRAIN_H
#define ETH_HPP_LAUNCHER_TRAIN_H

#include "base/option.h"
#include "plan/plan.h"

/* ---- learning rate ---- */

struct eth_hpp_schedule {
    double peak, least; /* least: where the cosine ends */
    int64_t warmup, steps;
};

/* Rate of step t (0-based): rises linearly to `peak` over the warm-up, then falls to `least` on
 * half a cosine (Loshchilov and Hutter, arXiv:1608.03983, without restarts). */
double eth_hpp_schedule_rate(const struct eth_hpp_schedule *schedule, int64_t step);

/* ---- what is shown and kept ---- */

struct eth_hpp_progress;

/* Shows steps on standard output: a bar on a terminal, else a line every `every` steps; and writes
 * a line of JSON a step to `metrics_path` (NULL: none). The plan must outlive it. Errors: INPUT,
 * IO, MEMORY. */
enum eth_hpp_status eth_hpp_progress_open(const struct eth_hpp_plan *plan, int64_t steps,
                                          int64_t every, const char *metrics_path,
                                          struct eth_hpp_progress **progress,
                                          struct eth_hpp_error *err);
/* Takes one step in. Errors: IO (the metrics file). */
enum eth_hpp_status eth_hpp_progress_step(struct eth_hpp_progress *progress,
                                          const struct eth_hpp_metrics *metrics,
                                          double learning_rate, struct eth_hpp_error *err);
/* Sums up: loss from first to last, median step against the predicted one. */
void eth_hpp_progress_finish(struct eth_hpp_progress *progress);
/* NULL is fine. */
void eth_hpp_progress_close(struct eth_hpp_progress *progress);

#endif
