/*
 * The SPANK plugin's parts and what they share. Slurm loads the plugin into five kinds of process;
 * spank_eth_hpp.c hands each hook to the part that is written for that process:
 *
 *   submit.c    srun, sbatch, salloc: checks what the user typed before anything is submitted
 *   step.c      slurmstepd: runs the tasks' command through `eth-hpp launch`, reports dead ranks
 *   end_step.c  slurmstepd: ends a step that a rank has died in
 *   node.c      prolog and epilog: takes the node's inventory, removes it
 *   folder.c    where it lies
 *
 * No part may end the process, wait without a limit, or (as root) open a path that a user names.
 */
#ifndef ETH_HPP_SPANK_PLUGIN_H
#define ETH_HPP_SPANK_PLUGIN_H

#include <stdint.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "base/option.h"

/* What an administrator sets in plugstack.conf beside the defaults of the job's options. */
enum eth_hpp_site_option {
    ETH_HPP_SITE_ENABLED,
    ETH_HPP_SITE_INVENTORY,
    ETH_HPP_SITE_LAUNCHER,
    ETH_HPP_SITE_FILE,
    ETH_HPP_SITE_TIMEOUT,
    ETH_HPP_SITE_OPTIONS
};

/* The plugin's state in one process. */
struct eth_hpp_plugin {
    struct eth_hpp_option_set site; /* by enum eth_hpp_site_option */
    struct eth_hpp_option_set job;  /* by enum eth_hpp_job_option */
    bool asked;                     /* --eth-hpp was given */
    int first_other;                /* index of the first --eth-hpp-NAME given, or -1 */
    bool death_told;                /* a signal has ended a task of this node's, and that is told */
    struct eth_hpp_error error;     /* the first thing that went wrong; status OK: nothing */
    bool error_is_users;            /* it is an option of the user's, the same on all nodes */
};

/* ---- options.c ---- */

/* Makes the state: defaults, then the KEY=VALUE words of plugstack.conf. What is wrong with those
 * is kept in plugin->error, and so is that they switch the plugin off: it then does nothing but
 * tell so to those who ask. */
void eth_hpp_plugin_open(struct eth_hpp_plugin *plugin, int argc, char **argv);
/* Whether plugstack.conf says enabled=no. */
bool eth_hpp_plugin_switched_off(const struct eth_hpp_plugin *plugin);
void eth_hpp_plugin_close(struct eth_hpp_plugin *plugin);

/* Registers --eth-hpp and its companions; `callback` gets the index of the option as its value. */
int eth_hpp_plugin_register(spank_t spank, spank_opt_cb_f callback);

/* The registered form of an option, as spank_option_getopt wants it. */
struct spank_option *eth_hpp_plugin_option(enum eth_hpp_job_option index);

/* Stores a given option. On a bad value: keeps the error, which names the option, and returns -1.
 */
int eth_hpp_plugin_take(struct eth_hpp_plugin *plugin, int index, const char *text);

/* ---- submit.c ---- */

/* After all options are known: 0, or -1 with one line for the user, and nothing is submitted. */
int eth_hpp_submit_check(struct eth_hpp_plugin *plugin);

/* ---- node.c ---- */

/* Writes the node's inventory where the job asked for it or the site wants it for all, and removes
 * it. Failures are logged: a failing prolog or epilog would drain the node. */
void eth_hpp_node_prolog(struct eth_hpp_plugin *plugin, spank_t spank);
void eth_hpp_node_epilog(spank_t spank);

/* ---- folder.c ---- */

#define ETH_HPP_RUN_FOLDER "/run/eth-hpp"

/* The node's name becomes a file's: letters, digits, '-', '_' and inner dots. */
bool eth_hpp_node_is_plain_name(const char *name);

/* The inventory's path of a job on a node; false where the node's name is no plain name. */
bool eth_hpp_node_inventory_path(uint32_t job, const char *node, char *path, size_t size);

/* Makes the folder of a job, which its user alone can reach the files of; false, and logged, where
 * that cannot be, or where something is in its place. */
bool eth_hpp_folder_make(uint32_t job, uid_t user);

/* Removes the node's inventory of a job, and the folder with the last of them. Failures are
 * logged. */
void eth_hpp_folder_remove(uint32_t job, const char *node);

/* ---- child.c ---- */

/* Between fork and exec: becomes the program as that user, in a session of its own, with the two
 * streams (-1: none) and nothing else that is open here. It is killed when `parent`, which has
 * forked it, ends. Only calls that are safe there; ends the process with 126 or 127 where it fails.
 */
void eth_hpp_child_exec(uid_t user, gid_t group, pid_t parent, int output, int complaint,
                        char *const argv[], char *const environment[]) __attribute__((noreturn));

/* Closes all descriptors from `first` on, with calls that are safe after fork. */
void eth_hpp_child_close_from(int first);

/* Waits for at most `grace_s` for a child to end, and then ends it, with all of its process group.
 * Never waits blocking. False where that does not end it, as in a driver that hangs; else *status
 * is as from waitpid. */
bool eth_hpp_child_collect(pid_t pid, double grace_s, int *status);

/* Runs `launcher inventory` for the node as nobody, for at most `timeout_s` seconds, and gives back
 * what it printed (freed by the caller). Errors: what went wrong, in words for the inventory;
 * TIMEOUT: it hangs, and could not be ended where *stuck_pid is not 0. */
enum eth_hpp_status eth_hpp_child_inventory(const char *launcher, const char *site_file,
                                            const char *node, double timeout_s, char **text,
                                            size_t *size, pid_t *stuck_pid,
                                            struct eth_hpp_error *err);

/* ---- step.c ---- */

/* In the task's own process, as the user, before its program starts: 0, or -1 and it never does. */
int eth_hpp_step_task_init(struct eth_hpp_plugin *plugin, spank_t spank);
/* Where a signal has ended the task: says so, once a node, and ends the step. */
void eth_hpp_step_task_exit(struct eth_hpp_plugin *plugin, spank_t spank);

/* ---- end_step.c ---- */

/* Has Slurm send SIGTERM to all tasks of the step, on all nodes. Does not wait for that. */
void eth_hpp_step_end(spank_t spank);

#endif
