/* `eth-hpp train`: the built-in transformer on the public API. */
#ifndef ETH_HPP_LAUNCHER_TRAIN_H
#define ETH_HPP_LAUNCHER_TRAIN_H

#include "base/option.h"
#include "model/model.h"
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

struct eth_hpp_progress_options {
    int64_t first, steps;     /* the first step of this run, and the steps of the whole training */
    int64_t every;            /* lines are this many steps apart */
    const char *metrics_path; /* NULL: none */
    const double *peak_bytes; /* [ranks] of the ranks' arenas, for the first line of metrics */
    int ranks;                /* 0: not known */
};

/* Shows steps on standard output: a bar on a terminal, else lines; and writes a line of JSON a step
 * to the metrics file. A run that goes on at step `first` keeps the file's lines of the steps
 * before it. The plan must outlive it; options are copied, path and figures are not. Errors: INPUT,
 * IO, MEMORY. */
enum eth_hpp_status eth_hpp_progress_open(const struct eth_hpp_plan *plan,
                                          const struct eth_hpp_progress_options *options,
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

/* ---- checkpoints ---- */

struct eth_hpp_saver_options {
    const char *folder; /* NULL: no checkpoints */
    int64_t every;      /* steps; 0: at the end and on a signal only */
    int keep;
    enum eth_hpp_resume resume;
    const struct eth_hpp_model *model;
    uint64_t seed;
    bool seed_given; /* else that of the checkpoint is taken */
    int64_t data_tokens;
};

struct eth_hpp_saver {
    struct eth_hpp_context *context;
    struct eth_hpp_saver_options options;
    int64_t saved; /* the step of the last checkpoint; -1: none */
};

/* Opens the checkpoints and takes up an earlier training; *resumed is that, or has step -1. From
 * here on SIGTERM and SIGUSR1 no longer end the process but ask for a last checkpoint. Errors:
 * INPUT (another seed than the checkpoint's), and those of eth_hpp_checkpoint_open. */
enum eth_hpp_status eth_hpp_saver_open(struct eth_hpp_context *context,
                                       const struct eth_hpp_saver_options *options,
                                       struct eth_hpp_saver *saver,
                                       struct eth_hpp_checkpoint *resumed,
                                       struct eth_hpp_error *err);
/* After each step: a checkpoint where one is due. *stop: a signal has asked for the end. */
enum eth_hpp_status eth_hpp_saver_step(struct eth_hpp_saver *saver,
                                       const struct eth_hpp_metrics *metrics, bool *stop,
                                       struct eth_hpp_error *err);
/* At the end: `steps` are done; the last checkpoint is whole when it returns. */
enum eth_hpp_status eth_hpp_saver_finish(struct eth_hpp_saver *saver, int64_t steps,
                                         struct eth_hpp_error *err);

/* A rank that the plan leaves idle outlasts the signals, too, for the others' sake. */
void eth_hpp_saver_outlast_signals(void);
/* To be called before the context is finalized: signals that come later ask nothing of it. */
void eth_hpp_saver_close(void);
/* The signal that has asked for the end, SIGTERM where another rank got it. */
int eth_hpp_saver_signal(void);

#endif
