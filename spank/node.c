/* Prolog and epilog: a node's inventory for a job, in a folder that only root can change. */
#include "spank/plugin.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
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

#define RUN_FOLDER "/run/eth-hpp"

enum { PATH_BYTES = 256, STUCK_PAUSE_S = 600, WRITE_TIMEOUT_S = 5 };

/* The name becomes a file name: letters, digits, '-', '_' and inner dots. */
static bool is_plain_name(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    return name != NULL && name[0] != '\0' && name[0] != '.' && strlen(name) < 128 &&
           strspn(name, allowed) == strlen(name);
}

bool eth_hpp_node_inventory_path(uint32_t job, const char *node, char *path, size_t size)
{
    return is_plain_name(node) &&
           snprintf(path, size, RUN_FOLDER "/%u/%s.json", job, node) < (int)size;
}

static void job_folder(uint32_t job, char *path, size_t size)
{
    snprintf(path, size, RUN_FOLDER "/%u", job);
}

/* slurmd names the node to its prolog and epilog; they get no variable from a user but under
 * SPANK_. */
static bool job_and_node(spank_t spank, uint32_t *job, const char **node)
{
    *node = getenv("SLURMD_NODENAME");
    if (spank_get_item(spank, S_JOB_ID, job) == ESPANK_SUCCESS && is_plain_name(*node))
        return true;
    eth_hpp_log_error("the job or the node of a prolog or epilog is not known");
    return false;
}

static bool make_folder(const char *path)
{
    struct stat info;
    /* Users have to reach their own files, whatever slurmd's umask is, but not to list those of
     * others. */
    if ((mkdir(path, 0711) != 0 && errno != EEXIST) || lstat(path, &info) != 0 ||
        !S_ISDIR(info.st_mode) || info.st_uid != 0 || chmod(path, 0711) != 0) {
        eth_hpp_log_error("cannot make the folder %s of root's: %m", path);
        return false;
    }
    return true;
}

/* ---- a driver that hangs ---- */

static void stuck_path(const char *node, char *path, size_t size)
{
    snprintf(path, size, RUN_FOLDER "/%s.stuck", node);
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
    if (eth_hpp_file_write(path, text, (size_t)length, 0644, &err) != ETH_HPP_OK)
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

static void write_inventory(struct eth_hpp_plugin *plugin, uint32_t job, const char *node)
{
    char path[PATH_BYTES], folder[PATH_BYTES];
    struct eth_hpp_error err;
    char *text = NULL;
    size_t size;
    job_folder(job, folder, sizeof(folder));
    if (!make_folder(RUN_FOLDER) || !make_folder(folder) ||
        !eth_hpp_node_inventory_path(job, node, path, sizeof(path)))
        return;
    if (collect(plugin, node, &text, &size, &err) != ETH_HPP_OK) {
        eth_hpp_log_warning("job %u: no inventory of %s: %s", job, node, err.text);
        text = empty_inventory(node, err.text);
        size = text != NULL ? strlen(text) : 0;
    }
    if (text != NULL && eth_hpp_file_write(path, text, size, 0644, &err) != ETH_HPP_OK)
        eth_hpp_log_error("job %u: %s", job, err.text);
    free(text);
}

/* In a process of its own: a prolog that crashes, as libraries may where there is no memory, or
 * that waits for a disk would drain the node. */
static void write_inventory_apart(struct eth_hpp_plugin *plugin, uint32_t job, const char *node)
{
    int status = 0;
    const double limit =
        eth_hpp_option_number(&plugin->site, ETH_HPP_SITE_TIMEOUT) + WRITE_TIMEOUT_S;
    const pid_t writer = fork();
    if (writer == 0) {
        write_inventory(plugin, job, node);
        _exit(0);
    }
    if (writer < 0)
        eth_hpp_log_error("job %u: no inventory of %s: cannot start a process: %m", job, node);
    else if (!eth_hpp_child_collect(writer, limit, &status))
        eth_hpp_log_error("job %u: writing the inventory of %s took longer than %g s", job, node,
                          limit);
    else if (WIFSIGNALED(status))
        eth_hpp_log_error("job %u: writing the inventory of %s was ended by signal %d", job, node,
                          WTERMSIG(status));
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
    uint32_t job;
    const char *node;
    /* What is wrong with plugstack.conf slurmd has said at its start. */
    if (plugin->error.status == ETH_HPP_ERR_MEMORY)
        eth_hpp_log_error("no inventory is taken: %s", plugin->error.text);
    if (plugin->error.status == ETH_HPP_OK && is_wanted(plugin, spank) &&
        job_and_node(spank, &job, &node))
        write_inventory_apart(plugin, job, node);
}

/* The inventory, and what was being written where its writer was killed. */
static void remove_inventory(const char *folder, const char *node)
{
    const size_t length = strlen(node);
    DIR *files = opendir(folder);
    if (files == NULL) {
        if (errno != ENOENT) /* most jobs have none */
            eth_hpp_log_error("cannot open %s: %m", folder);
        return;
    }
    for (const struct dirent *file; (file = readdir(files)) != NULL;)
        if (strncmp(file->d_name, node, length) == 0 &&
            strncmp(file->d_name + length, ".json", 5) == 0 &&
            unlinkat(dirfd(files), file->d_name, 0) != 0)
            eth_hpp_log_error("cannot remove %s/%s: %m", folder, file->d_name);
    closedir(files);
    /* Nodes that share a machine share the folder. */
    if (rmdir(folder) != 0 && errno != ENOENT && errno != ENOTEMPTY)
        eth_hpp_log_error("cannot remove %s: %m", folder);
}

void eth_hpp_node_epilog(spank_t spank)
{
    uint32_t job;
    const char *node;
    char folder[PATH_BYTES];
    if (!job_and_node(spank, &job, &node))
        return;
    job_folder(job, folder, sizeof(folder));
    remove_inventory(folder, node);
}
