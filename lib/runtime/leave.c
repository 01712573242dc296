/* The end of a rank: in order, by an error, or without a word. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/log.h"
#include "runtime/context.h"

/* Another rank has failed in eth_hpp_init and says why. */
static bool told_elsewhere;

/* What eth_hpp_finalize has not closed, for a program that ends without it; and the process that it
 * belongs to, since forked ones end as well. */
static struct eth_hpp_context *open_context;
static pid_t open_process;

void eth_hpp_leave_quietly(void)
{
    told_elsewhere = true;
}

static void end_job(struct eth_hpp_context *context, const struct eth_hpp_error *error,
                    int exit_code) __attribute__((noreturn));
static void end_job(struct eth_hpp_context *context, const struct eth_hpp_error *error,
                    int exit_code)
{
    bool stragglers = eth_hpp_comm_fail(context->comm, error, exit_code);
    fflush(NULL);   /* what the program has printed */
    if (stragglers) /* stopped, or stuck in the kernel: no message ends them */
        eth_hpp_bootstrap_end_stragglers(exit_code);
    _exit(exit_code);
}

static void left_open(int exit_code, void *unused)
{
    struct eth_hpp_error error;
    (void)unused;
    if (open_context == NULL || open_process != getpid())
        return;
    eth_hpp_error_set(&error, ETH_HPP_ERR_PEER,
                      "the program ended with exit code %d without eth_hpp_finalize", exit_code);
    end_job(open_context, &error, exit_code != 0 ? exit_code : ETH_HPP_EXIT_FAILURE);
}

void eth_hpp_leave_watch(struct eth_hpp_context *context)
{
    static bool watched;
    open_context = context;
    open_process = getpid();
    if (!watched)
        watched = on_exit(left_open, NULL) == 0;
}

/* Where the arithmetic did not keep up with the emulated devices, the times are not theirs. */
static void report_lateness(struct eth_hpp_context *context)
{
    double share = context->busy_s > 0 ? context->emulator.late_s / context->busy_s : 0;
    if (context->emulator.half_flops <= 0 || context->active == NULL || context->failed)
        return;
    if (eth_hpp_reduce_max(context, &share, 1, NULL) != ETH_HPP_OK)
        return;
    if (share > 0.01 && eth_hpp_is_lowest(context))
        eth_hpp_log_warning("emulated: the real arithmetic of a rank took %.0f %% longer than its "
                            "emulated device: choose a larger time_scale",
                            share * 100);
}

void eth_hpp_finalize(struct eth_hpp_context *context)
{
    if (context == NULL)
        return;
    open_context = NULL;
    report_lateness(context);
    eth_hpp_checkpoint_free(context);
    eth_hpp_comm_close(context->comm); /* before the rest: until then it may write into the rest */
    eth_hpp_executor_free(context);
    eth_hpp_parameters_free(context);
    eth_hpp_arena_free(&context->arena);
    eth_hpp_kernels_destroy(context->kernels);
    eth_hpp_plan_free(&context->plan);
    free(context);
}

void eth_hpp_abort(struct eth_hpp_context *context, int exit_code)
{
    if (context != NULL)
        end_job(context, NULL, exit_code);
    _exit(exit_code);
}

void eth_hpp_fail(struct eth_hpp_context *context, const struct eth_hpp_error *error)
{
    int exit_code = eth_hpp_error_exit_code(error->status);
    if (context != NULL)
        end_job(context, error, exit_code);
    if (!told_elsewhere)
        eth_hpp_log_error("%s", error->text);
    _exit(exit_code);
}
