#include "launcher/train.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"

enum { BAR_WIDTH = 30 };

struct eth_hpp_progress {
    const struct eth_hpp_plan *plan;
    struct eth_hpp_progress_options options;
    int64_t done; /* of this run's steps */
    bool terminal;
    FILE *metrics;
    double *step_s; /* [steps of this run] */
    double first_loss, last_loss;
};

/* cos(pi x) for 0 <= x <= 1 as a sine's series (it has converged after 11 terms): the same bits on
 * all ranks, which the C libraries' cos does not promise. */
static double cosine_of_half_turns(double x)
{
    const double angle = M_PI * (0.5 - x), square = angle * angle;
    double series = 1;
    for (int n = 22; n >= 2; n -= 2)
        series = 1 - series * square / (n * (n + 1));
    return angle * series;
}

double eth_hpp_schedule_rate(const struct eth_hpp_schedule *schedule, int64_t step)
{
    if (step < schedule->warmup)
        return schedule->peak * (double)(step + 1) / (double)schedule->warmup;
    double falling = (double)(schedule->steps - schedule->warmup);
    double share = falling > 0 ? (double)(step - schedule->warmup) / falling : 0;
    return schedule->least +
           (schedule->peak - schedule->least) * 0.5 * (1 + cosine_of_half_turns(share));
}

/* Bytes of the lines of the steps before `first`; later ones this run writes anew. */
static off_t kept_bytes(const char *path, int64_t first)
{
    struct stat info;
    char *line = NULL;
    size_t room = 0;
    off_t kept = 0;
    long long step;
    FILE *file =
        first > 0 && stat(path, &info) == 0 && S_ISREG(info.st_mode) ? fopen(path, "re") : NULL;
    if (file == NULL)
        return 0;
    for (ssize_t length; (length = getline(&line, &room, file)) > 0; kept += length)
        if (line[length - 1] != '\n' || sscanf(line, "{\"step\":%lld", &step) != 1 || step >= first)
            break;
    free(line);
    fclose(file);
    return kept;
}

/* Grows line by line, so that it can be followed. A FIFO that nobody reads must not hang the run.
 */
static FILE *create_metrics(const char *path, int64_t first, struct eth_hpp_error *err)
{
    FILE *file = NULL;
    if (strcmp(path, "-") == 0) {
        eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                          "--metrics=-: standard output shows the progress: name a file");
        return NULL;
    }
    const off_t kept = kept_bytes(path, first);
    const int how = kept > 0 ? O_APPEND : O_TRUNC;
    int fd = open(path, O_WRONLY | O_CREAT | how | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, 0666);
    if (fd >= 0 && fcntl(fd, F_SETFL, kept > 0 ? O_APPEND : 0) == 0 &&
        (kept == 0 || ftruncate(fd, kept) == 0))
        file = fdopen(fd, kept > 0 ? "a" : "w");
    if (file == NULL) {
        eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "%.512s: cannot create: %s", path,
                          strerror(errno));
        if (fd >= 0)
            close(fd);
    }
    return file;
}

enum eth_hpp_status eth_hpp_progress_open(const struct eth_hpp_plan *plan,
                                          const struct eth_hpp_progress_options *options,
                                          struct eth_hpp_progress **progress,
                                          struct eth_hpp_error *err)
{
    const int64_t own = options->steps > options->first ? options->steps - options->first : 0;
    struct eth_hpp_progress *made = calloc(1, sizeof(*made));
    if (made == NULL || (made->step_s = calloc((size_t)own + 1, sizeof(double))) == NULL) {
        free(made);
        return eth_hpp_error_memory(err, "the progress");
    }
    made->plan = plan;
    made->options = *options;
    made->terminal = isatty(STDOUT_FILENO);
    if (options->metrics_path != NULL &&
        (made->metrics = create_metrics(options->metrics_path, options->first, err)) == NULL) {
        eth_hpp_progress_close(made);
        return err->status;
    }
    *progress = made;
    return ETH_HPP_OK;
}

void eth_hpp_progress_close(struct eth_hpp_progress *progress)
{
    if (progress == NULL)
        return;
    if (progress->metrics != NULL)
        fclose(progress->metrics);
    free(progress->step_s);
    free(progress);
}

/* ---- one step ---- */

/* The share of all computing GPUs' time in which they do not compute. */
static double bubble_share(const struct eth_hpp_metrics *m)
{
    double idle = 1 - m->mean_busy_s / m->step_s;
    return idle > 0 ? idle : 0;
}

static void put_number(struct json_object **line, const char *key, double value)
{
    eth_hpp_json_put(line, key, eth_hpp_json_new_number(value));
}

/* What each rank's arena holds, against what the plan has foreseen. */
static void put_memory(struct json_object **line, const struct eth_hpp_progress *p)
{
    const struct eth_hpp_predicted *predicted = &p->plan->predicted;
    struct json_object *ranks = json_object_new_array();
    for (int i = 0; i < predicted->rank_count; i++) {
        const int rank = predicted->ranks[i].rank;
        struct json_object *entry = json_object_new_object();
        if (rank >= 0 && rank < p->options.ranks) {
            put_number(&entry, "rank", rank);
            put_number(&entry, "peak_bytes", p->options.peak_bytes[rank]);
            put_number(&entry, "predicted_bytes", predicted->ranks[i].peak_memory_bytes);
            eth_hpp_json_append(&ranks, entry);
        } else {
            json_object_put(entry);
        }
    }
    eth_hpp_json_put(line, "ranks", ranks);
}

static enum eth_hpp_status write_metrics(struct eth_hpp_progress *p,
                                         const struct eth_hpp_metrics *m, double learning_rate,
                                         struct eth_hpp_error *err)
{
    struct json_object *line = json_object_new_object();
    put_number(&line, "step", (double)m->step);
    put_number(&line, "loss", m->loss);
    put_number(&line, "targets", (double)m->targets);
    put_number(&line, "gradient_norm", m->gradient_norm);
    put_number(&line, "learning_rate", learning_rate);
    if (p->plan->dtype == ETH_HPP_FP16) {
        put_number(&line, "loss_scale", m->loss_scale);
        eth_hpp_json_put(&line, "overflow", json_object_new_boolean(m->overflow));
    }
    put_number(&line, "samples", p->plan->global_batch);
    put_number(&line, "step_s", m->step_s);
    put_number(&line, "predicted_step_s", p->plan->predicted.step_s);
    put_number(&line, "bubble_fraction", bubble_share(m));
    put_number(&line, "busy_s", m->busy_s);
    put_number(&line, "sync_exposed_s", m->sync_exposed_s);
    put_number(&line, "optimizer_s", m->optimizer_s);
    put_number(&line, "peak_bytes", (double)m->peak_bytes);
    if (p->done == 1 && p->options.ranks > 0)
        put_memory(&line, p);
    eth_hpp_json_put(&line, "emulated", json_object_new_boolean(p->plan->emulated));
    if (line == NULL)
        return eth_hpp_error_memory(err, "the metrics");
    bool written = fprintf(p->metrics, "%s\n",
                           json_object_to_json_string_ext(line, JSON_C_TO_STRING_PLAIN)) > 0 &&
                   fflush(p->metrics) == 0;
    int cause = errno;
    json_object_put(line);
    if (!written)
        return eth_hpp_error_set(err, ETH_HPP_ERR_IO, "%.512s: cannot write the metrics: %s",
                                 p->options.metrics_path, strerror(cause));
    return ETH_HPP_OK;
}

static void show(const struct eth_hpp_progress *p, const struct eth_hpp_metrics *m)
{
    char figures[256], bar[BAR_WIDTH + 1];
    const long long at = p->options.first + p->done, steps = p->options.steps;
    double predicted = p->plan->predicted.step_s;
    int used = snprintf(figures, sizeof(figures), "loss %.4f  %.1f samples/s  step %.3f s", m->loss,
                        p->plan->global_batch / m->step_s, m->step_s);
    if (predicted > 0)
        used += snprintf(figures + used, sizeof(figures) - (size_t)used, " (predicted %.3f%s)",
                         predicted, p->plan->emulated ? ", emulated" : "");
    snprintf(figures + used, sizeof(figures) - (size_t)used, "  bubble %.0f %%  sync %.0f %%",
             100 * bubble_share(m), 100 * m->sync_exposed_s / m->step_s);
    if (!p->terminal) {
        printf("step %lld/%lld  %s\n", at, steps, figures);
    } else {
        int full = (int)(BAR_WIDTH * at / steps);
        memset(bar, '.', BAR_WIDTH);
        memset(bar, '#', (size_t)full);
        bar[BAR_WIDTH] = '\0';
        printf("\r\033[K[%s] %lld/%lld  %s", bar, at, steps, figures);
    }
    fflush(stdout);
}

enum eth_hpp_status eth_hpp_progress_step(struct eth_hpp_progress *progress,
                                          const struct eth_hpp_metrics *metrics,
                                          double learning_rate, struct eth_hpp_error *err)
{
    struct eth_hpp_progress *p = progress;
    if (p->done == 0)
        p->first_loss = metrics->loss;
    p->last_loss = metrics->loss;
    p->step_s[p->done++] = metrics->step_s;
    const int64_t at = p->options.first + p->done;
    if (metrics->overflow)
        printf(
            "%seth-hpp: step %lld: gradients overflowed in fp16: no update, loss scale %g -> %g\n",
            p->terminal ? "\r\033[K" : "", (long long)at, metrics->loss_scale,
            metrics->loss_scale / 2);
    if (p->terminal || at % p->options.every == 0 || p->done == 1 || at == p->options.steps)
        show(p, metrics);
    return p->metrics != NULL ? write_metrics(p, metrics, learning_rate, err) : ETH_HPP_OK;
}

/* ---- the end ---- */

static int order_numbers(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

void eth_hpp_progress_finish(struct eth_hpp_progress *progress)
{
    struct eth_hpp_progress *p = progress;
    double predicted = p->plan->predicted.step_s;
    /* The first step warms up: caches, connections, pages. */
    double *counted = p->done > 1 ? p->step_s + 1 : p->step_s;
    size_t count = (size_t)(p->done > 1 ? p->done - 1 : p->done);
    if (p->terminal)
        putchar('\n');
    if (count == 0)
        return;
    qsort(counted, count, sizeof(*counted), order_numbers);
    double median = counted[count / 2];
    printf("eth-hpp: %lld steps, loss %.4f -> %.4f, %.1f samples/s, median step %.4f s",
           (long long)p->done, p->first_loss, p->last_loss, p->plan->global_batch / median, median);
    if (predicted > 0)
        printf(", predicted %.4f s, measured/predicted %.3f", predicted, median / predicted);
    printf("%s\n", p->plan->emulated ? " (emulated devices)" : "");
    fflush(stdout);
}
