/* Prolog and epilog: a node's inventory for a job. */
#include "spank/plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "inventory/inventory.h"

enum { PATH_BYTES = 256, STUCK_PAUSE_S = 600, WORK_TIMEOUT_S = 5 };

/* What a prolog or an epilog is for. */
struct job {
    uint32_t id;
    uid_t user;
    const char *node;
};

/* slurmd names the node to its prolog and epilog; they get no variable from a user but under
 * SPANK_. */
static bool job_here(spank_t spank, struct job *job)
{
    job->node = getenv("SLURMD_NODENAME");
    if (spank_get_item(spank, S_JOB_ID, &job->id) == ESPANK_SUCCESS &&
        spank_get_item(spank, S_JOB_UID, &job->user) == ESPANK_SUCCESS &&
        eth_hpp_node_is_plain_name(job->node))
        return true;
    eth_hpp_log_error("the job, its user or the node of a prolog or epilog is not known");
    return false;
}

/* In a process of its own: a prolog or epilog that crashes, as libraries may where there is no
 * memory, that is ended by a signal or waits for a disk would drain the node. */
static void do_apart(const char *what, void (*work)(struct eth_hpp_plugin *, const struct job *),
                     struct eth_hpp_plugin *plugin, const struct job *job, double limit_s)
{
    int status = 0;
    const pid_t worker = fork();
    if (worker == 0) {
        work(plugin, job);
        _exit(0);
    }
    if (worker < 0)
        eth_hpp_log_error("job %u: %s of %s: cannot start a process: %m", job->id, what, job->node);
    else if (!eth_hpp_child_collect(worker, limit_s, &status))
        eth_hpp_log_error("job %u: %s of %s took longer than %g s", job->id, what, job->node,
                          limit_s);
    else if (WIFSIGNALED(status))
        eth_hpp_log_error("job %u: %s of %s was ended by signal %d", job->id, what, job->node,
                          WTERMSIG(status));
}

/* ---- a driver that hangs ---- */

static void stuck_path(const char *node, char *path, size_t size)
{
    snprintf(path, size, ETH_HPP_RUN_FOLDER "/%s.stuck", node);
}

/* A process that hangs inside the driver cannot be ended: asking again would leave one more. */
static bool is_stuck(const char *node)
{
    char path[PATH_BYTES];
    struct stat info;
    stuck_path(node, path, sizeof(path));
    if (stat(path, &info) != 0)
        return false;
    const time_t age = time(NULL) - info.st_mtime;
    return age >= 0 && age < STUCK_PAUSE_S; /* below 0 the clock has gone back */
}

static void note_stuck(const char *node, pid_t pid)
{
    char path[PATH_BYTES], text[32];
    struct eth_hpp_error err;
    stuck_path(node, path, sizeof(path));
    int length = snprintf(text, sizeof(text), "%ld\n", (long)pid);
    if (eth_hpp_file_write(path, text, (size_t)length, 0600, &err) != ETH_HPP_OK)
        eth_hpp_log_error("%s", err.text);
}

/* ---- the inventory ---- */

/* An inventory without GPUs that says why. */
static char *empty_inventory(const char *node, const char *why)
{
    struct eth_hpp_inventory inventory = {.source = "none"};
    char *text = NULL;
    time_t now = time(NULL);
    struct tm utc;
    snprintf(inventory.node, sizeof(inventory.node), "%s", node);
    snprintf(inventory.why_empty, sizeof(inventory.why_empty), "%.255s", why);
    if (gmtime_r(&now, &utc) != NULL)
        strftime(inventory.collected_at, sizeof(inventory.collected_at), "%Y-%m-%dT%H:%M:%SZ",
                 &utc);
    return eth_hpp_inventory_print(&inventory, &text, NULL) == ETH_HPP_OK ? text : NULL;
}

/* What the child printed is taken only where it is a whole, right inventory of the node. */
static enum eth_hpp_status collect(struct eth_hpp_plugin *plugin, const char *node, char **text,
                                   size_t *size, struct eth_hpp_error *err)
{
    struct eth_hpp_inventory inventory;
    pid_t stuck = 0;
    if (is_stuck(node))
        return eth_hpp_error_set(err, ETH_HPP_ERR_TIMEOUT,
                                 "the GPU driver hung less than %d minutes ago and is not asked "
                                 "again yet",
                                 STUCK_PAUSE_S / 60);
    enum eth_hpp_status status = eth_hpp_child_inventory(
        eth_hpp_option_text(&plugin->site, ETH_HPP_SITE_LAUNCHER),
        eth_hpp_option_text(&plugin->site, ETH_HPP_SITE_FILE), node,
        eth_hpp_option_number(&plugin->site, ETH_HPP_SITE_TIMEOUT), text, size, &stuck, err);
    if (stuck != 0)
        note_stuck(node, stuck);
    if (status != ETH_HPP_OK)
        return status;
    status = eth_hpp_inventory_parse("inventory", *text, *size, &inventory, err);
    if (status == ETH_HPP_OK) {
        if (strcmp(inventory.node, node) != 0)
            status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "the inventory is of node %s",
                                       inventory.node);
        eth_hpp_inventory_free(&inventory);
    }
    if (status != ETH_HPP_OK)
        free(*text);
    return status;
}

static void write_inventory(struct eth_hpp_plugin *plugin, const struct job *job)
{
    char path[PATH_BYTES];
    struct eth_hpp_error err;
    char *text = NULL;
    size_t size;
    if (!eth_hpp_folder_make(job->id, job->user) ||
        !eth_hpp_node_inventory_path(job->id, job->node, path, sizeof(path)))
        return;
    if (collect(plugin, job->node, &text, &size, &err) != ETH_HPP_OK) {
        eth_hpp_log_warning("job %u: no inventory of %s: %s", job->id, job->node, err.text);
        text = empty_inventory(job->node, err.text);
        size = text != NULL ? strlen(text) : 0;
    }
    if (text != NULL && eth_hpp_file_write(path, text, size, 0644, &err) != ETH_HPP_OK)
        eth_hpp_log_error("job %u: %s", job->id, err.text);
    free(text);
}

/* What the user typed matters here only as asked or not. */
static bool is_wanted(const struct eth_hpp_plugin *plugin, spank_t spank)
{
    char *model;
    return strcmp(eth_hpp_option_text(&plugin->site, ETH_HPP_SITE_INVENTORY), "always") == 0 ||
           spank_option_getopt(spank, eth_hpp_plugin_option(ETH_HPP_JOB_MODEL), &model) ==
               ESPANK_SUCCESS;
}

void eth_hpp_node_prolog(struct eth_hpp_plugin *plugin, spank_t spank)
{
    struct job job;
    /* What is wrong with plugstack.conf slurmd has said at its start. */
    if (plugin->error.status == ETH_HPP_ERR_MEMORY)
        eth_hpp_log_error("no inventory is taken: %s", plugin->error.text);
    if (plugin->error.status == ETH_HPP_OK && is_wanted(plugin, spank) && job_here(spank, &job))
        do_apart("the inventory", write_inventory, plugin, &job,
                 eth_hpp_option_number(&plugin->site, ETH_HPP_SITE_TIMEOUT) + WORK_TIMEOUT_S);
}

static void remove_inventory(struct eth_hpp_plugin *plugin, const struct job *job)
{
    (void)plugin;
    eth_hpp_folder_remove(job->id, job->node);
}

void eth_hpp_node_epilog(spank_t spank)
{
    struct job job;
    if (job_here(spank, &job))
        do_apart("removing the inventory", remove_inventory, NULL, &job, WORK_TIMEOUT_S);
}
