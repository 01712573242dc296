/* slurmstepd: the tasks of a step that asked run through `eth-hpp launch`. */
#include "spank/plugin.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "config.h"

enum { NAME_BYTES = 256, PATH_BYTES = 256 };

/* Batch scripts, salloc's shells and extern steps are none of ours. */
static bool is_ours(const struct eth_hpp_plugin *plugin, spank_t spank)
{
    uint32_t step;
    return plugin->asked && spank_get_item(spank, S_JOB_STEPID, &step) == ESPANK_SUCCESS &&
           step <= SLURM_MAX_NORMAL_STEP_ID;
}

/* The launcher reads its options from the environment. What was typed wins over what the user's
 * environment says, and that over plugstack.conf. */
static int hand_over_options(const struct eth_hpp_option_set *job, spank_t spank)
{
    for (size_t i = 0; i < job->count; i++) {
        char name[NAME_BYTES];
        enum eth_hpp_option_source source = job->values[i].source;
        if (source != ETH_HPP_FROM_OPTION && source != ETH_HPP_FROM_PLUGSTACK)
            continue;
        eth_hpp_option_environment_name(&job->table[i], name, sizeof(name));
        spank_err_t status =
            spank_setenv(spank, name, job->values[i].text, source == ETH_HPP_FROM_OPTION);
        if (status != ESPANK_SUCCESS && status != ESPANK_ENV_EXISTS)
            return -1;
    }
    return 0;
}

/* The inventory lies under the id of this component's own job, which in a heterogeneous job is not
 * the SLURM_JOB_ID that the task sees. Where no prolog took one, the launcher does. */
static int hand_over_inventory(const struct eth_hpp_plugin *plugin, spank_t spank)
{
    uint32_t job;
    char node[NAME_BYTES], path[PATH_BYTES];
    const char *site_file = eth_hpp_option_text(&plugin->site, ETH_HPP_SITE_FILE);
    if (site_file != NULL &&
        spank_setenv(spank, "ETH_HPP_SITE_FILE", site_file, 1) != ESPANK_SUCCESS)
        return -1;
    if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS ||
        spank_getenv(spank, "SLURMD_NODENAME", node, sizeof(node)) != ESPANK_SUCCESS ||
        !eth_hpp_node_inventory_path(job, node, path, sizeof(path)) || access(path, R_OK) != 0) {
        spank_unsetenv(spank, "ETH_HPP_INVENTORY");
        return 0;
    }
    return spank_setenv(spank, "ETH_HPP_INVENTORY", path, 1) == ESPANK_SUCCESS ? 0 : -1;
}

#ifdef HAVE_SPANK_PREPEND_TASK_ARGV
static int run_through_launcher(const char *launcher, spank_t spank)
{
    const char *words[] = {launcher, "launch", "--"};
    return spank_prepend_task_argv(spank, 3, words) == ESPANK_SUCCESS ? 0 : -1;
}
#else
/* Words cannot be added to the command, but its first one can be another: eth-hpp-step, which finds
 * the rest in the environment. The array is this task's own copy. */
static int run_through_launcher(const char *launcher, spank_t spank)
{
    int count = 0;
    char **words = NULL;
    if (spank_get_item(spank, S_JOB_ARGV, &count, &words) != ESPANK_SUCCESS || count < 1 ||
        spank_setenv(spank, "ETH_HPP_STEP_LAUNCHER", launcher, 1) != ESPANK_SUCCESS ||
        spank_setenv(spank, "ETH_HPP_STEP_COMMAND", words[0], 1) != ESPANK_SUCCESS)
        return -1;
    words[0] = (char *)ETH_HPP_STEP_PROGRAM;
    return 0;
}
#endif

/* The runtime then leaves it to eth_hpp_step_task_exit to say which signal has ended a rank. */
static int announce_task_exit(spank_t spank)
{
    return spank_setenv(spank, "ETH_HPP_SIGNALS_REPORTED", "1", 1) == ESPANK_SUCCESS ? 0 : -1;
}

/* Every task fails, one speaks: of all, where the reason is the same on all nodes, else of each
 * node. */
static bool is_speaker(const struct eth_hpp_plugin *plugin, spank_t spank)
{
    uint32_t rank = 0;
    int task = 0;
    if (plugin->error_is_users)
        return spank_get_item(spank, S_TASK_GLOBAL_ID, &rank) != ESPANK_SUCCESS || rank == 0;
    return spank_get_item(spank, S_TASK_ID, &task) != ESPANK_SUCCESS || task == 0;
}

/* Slurm would name a program that the user has not asked for. */
static bool find_launcher(struct eth_hpp_plugin *plugin)
{
    const char *launcher = eth_hpp_option_text(&plugin->site, ETH_HPP_SITE_LAUNCHER);
    if (access(launcher, X_OK) == 0)
        return true;
    eth_hpp_error_set(&plugin->error, ETH_HPP_ERR_INPUT,
                      "cannot run the launcher %.200s: %m: install eth-hpp on this node, or say in "
                      "plugstack.conf where it is (launcher=FILE)",
                      launcher);
    return false;
}

int eth_hpp_step_task_init(struct eth_hpp_plugin *plugin, spank_t spank)
{
    if (!is_ours(plugin, spank))
        return 0;
    if (plugin->error.status == ETH_HPP_OK && find_launcher(plugin) &&
        (hand_over_options(&plugin->job, spank) != 0 || hand_over_inventory(plugin, spank) != 0 ||
         announce_task_exit(spank) != 0 ||
         run_through_launcher(eth_hpp_option_text(&plugin->site, ETH_HPP_SITE_LAUNCHER), spank) !=
             0))
        eth_hpp_error_set(&plugin->error, ETH_HPP_ERR_INTERNAL,
                          "Slurm refused to change the task's command or environment");
    if (plugin->error.status == ETH_HPP_OK)
        return 0;
    if (is_speaker(plugin, spank))
        eth_hpp_log_error("%s", plugin->error.text);
    return -1;
}

/* srun drops what is still on its way when a signal has ended the last task
 * (client_io_handler_abort in its step_launch.c), and hears of this task's end only after this
 * hook. So until slurmstepd's own thread has taken the line out of the pipe, and for a moment more
 * to send it, we stay. */
static void let_line_out(void)
{
    const struct timespec slice = {.tv_nsec = 10000000}, moment = {.tv_nsec = 50000000};
    int waiting;
    for (int i = 0; i < 100 && ioctl(STDERR_FILENO, FIONREAD, &waiting) == 0 && waiting > 0; i++)
        nanosleep(&slice, NULL);
    nanosleep(&moment, NULL);
}

/* Ranks that end by themselves have said why; a signal leaves that to us. SIGTERM is how Slurm ends
 * a step, and no news. The first to die is the cause: PMIx has the rest of the step killed, if it
 * is in use then. If it is not, the others would wait for the dead one until their deadline, and
 * name it again: the step is ended for them. */
void eth_hpp_step_task_exit(struct eth_hpp_plugin *plugin, spank_t spank)
{
    int status;
    uint32_t rank;
    char node[NAME_BYTES];
    if (!is_ours(plugin, spank) || plugin->death_told ||
        spank_get_item(spank, S_TASK_EXIT_STATUS, &status) != ESPANK_SUCCESS ||
        !WIFSIGNALED(status) || WTERMSIG(status) == SIGTERM ||
        spank_get_item(spank, S_TASK_GLOBAL_ID, &rank) != ESPANK_SUCCESS ||
        gethostname(node, sizeof(node)) != 0)
        return;
    node[sizeof(node) - 1] = '\0';
    node[strcspn(node, ".")] = '\0';
    plugin->death_told = true;
    eth_hpp_log_error("rank %u on %s: ended by signal %d (%s)%s", rank, node, WTERMSIG(status),
                      strsignal(WTERMSIG(status)), WCOREDUMP(status) ? ", core dumped" : "");
    let_line_out();
    eth_hpp_step_end(spank);
}
