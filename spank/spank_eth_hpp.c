/* The hooks that Slurm calls, each handed to the part that is written for the calling process. */
#include "spank/plugin.h"

#include <stdio.h>

#include "base/log.h"
#include "config.h"

SPANK_PLUGIN(eth_hpp, 1)

/* Slurm refuses the plugin of another release before it calls anything here: for `strings`. */
static const char built_for[] __attribute__((used)) =
    PACKAGE_STRING ": SPANK plugin for Slurm " ETH_HPP_SLURM_VERSION;

static struct eth_hpp_plugin plugin = {.first_other = -1};

static bool on_submit_side(void)
{
    spank_context_t context = spank_context();
    return context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR;
}

/* Lines of slurmd's go to its log, and so does what prolog and epilog find. */
static void log_to_slurm(enum eth_hpp_log_level level, const char *line)
{
    if (level <= ETH_HPP_LOG_WARNING)
        slurm_error("%s", line);
    else
        slurm_info("%s", line);
}

/* Lines of slurmstepd's are the user's to read. */
static void log_to_user(enum eth_hpp_log_level level, const char *line)
{
    (void)level;
    slurm_spank_log("%s", line);
}

static int take_option(int index, const char *text, int remote)
{
    int status = eth_hpp_plugin_take(&plugin, index, text);
    /* A failing callback in slurmstepd would end the step without a word; task_init tells. */
    if (status != 0 && !remote)
        eth_hpp_log_error("%s", plugin.error.text);
    return remote ? 0 : status;
}

/* slurmd's log is where an administrator looks for what is wrong with plugstack.conf, and its start
 * the one moment to say so: later hooks keep out of the way without a word. */
static void tell_slurmd(int argc, char **argv)
{
    eth_hpp_log_set_sink(log_to_slurm);
    eth_hpp_plugin_open(&plugin, argc, argv);
    if (eth_hpp_plugin_switched_off(&plugin))
        eth_hpp_log_info("%s", plugin.error.text);
    else if (plugin.error.status != ETH_HPP_OK)
        eth_hpp_log_error("%s; jobs that ask for eth-hpp are refused", plugin.error.text);
    eth_hpp_plugin_close(&plugin);
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
    if (spank_context() == S_CTX_SLURMD)
        tell_slurmd(argc, argv);
    if (spank_context() != S_CTX_LOCAL && spank_context() != S_CTX_ALLOCATOR &&
        spank_context() != S_CTX_REMOTE)
        return ESPANK_SUCCESS;
    if (!on_submit_side())
        eth_hpp_log_set_sink(log_to_user);
    eth_hpp_plugin_open(&plugin, argc, argv);
    return eth_hpp_plugin_register(spank, take_option);
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
    (void)spank, (void)argc, (void)argv;
    return on_submit_side() ? eth_hpp_submit_check(&plugin) : ESPANK_SUCCESS;
}

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
    (void)argc, (void)argv;
    return eth_hpp_step_task_init(&plugin, spank);
}

int slurm_spank_task_exit(spank_t spank, int argc, char **argv)
{
    (void)argc, (void)argv;
    eth_hpp_step_task_exit(&plugin, spank);
    return ESPANK_SUCCESS;
}

/* Prolog and epilog run in processes of their own, in which slurm_spank_init is not called. */
int slurm_spank_job_prolog(spank_t spank, int argc, char **argv)
{
    eth_hpp_log_set_sink(log_to_slurm);
    eth_hpp_plugin_open(&plugin, argc, argv);
    eth_hpp_node_prolog(&plugin, spank);
    eth_hpp_plugin_close(&plugin);
    return ESPANK_SUCCESS;
}

int slurm_spank_job_epilog(spank_t spank, int argc, char **argv)
{
    (void)argc, (void)argv;
    eth_hpp_log_set_sink(log_to_slurm);
    eth_hpp_node_epilog(spank);
    return ESPANK_SUCCESS;
}

int slurm_spank_exit(spank_t spank, int argc, char **argv)
{
    (void)spank, (void)argc, (void)argv;
    eth_hpp_plugin_close(&plugin);
    return ESPANK_SUCCESS;
}
