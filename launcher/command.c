#include "launcher/command.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

static void print_help(const struct eth_hpp_command *command, const struct eth_hpp_option_set *set)
{
    printf("usage: eth-hpp %s %s\n\n%s\n\n", command->name, command->arguments, command->what);
    eth_hpp_option_print(set, stdout);
}

int eth_hpp_command_failed(const struct eth_hpp_error *err)
{
    eth_hpp_log_error("%s", err->text);
    return eth_hpp_error_exit_code(err->status);
}

bool eth_hpp_command_is_first_task(void)
{
    const char *task = getenv("SLURM_PROCID");
    return task == NULL || strcmp(task, "0") == 0;
}

/* Options among words: those are moved to the front of argv. */
static enum eth_hpp_status read_mixed(struct eth_hpp_option_set *set, int argc, char **argv,
                                      int *words, bool *help, struct eth_hpp_error *err)
{
    int at = 0, count = 0;
    bool asked = false;
    while (at < argc) {
        int taken;
        enum eth_hpp_status status =
            eth_hpp_option_parse(set, argc - at, argv + at, &taken, &asked, err);
        if (status != ETH_HPP_OK)
            return status;
        *help = *help || asked;
        at += taken;
        if (at < argc)
            argv[count++] = argv[at++];
    }
    *words = count;
    return ETH_HPP_OK;
}

/* Reads what was typed, and leaves the words of it. An error is the same on all tasks of a step:
 * the first one says it. */
static enum eth_hpp_status read_options(const struct eth_hpp_command *command,
                                        struct eth_hpp_option_set *set, int *argc, char ***argv,
                                        bool *help, struct eth_hpp_error *err)
{
    int rest = 0;
    enum eth_hpp_status status = command->mixed
                                     ? read_mixed(set, *argc, *argv, argc, help, err)
                                     : eth_hpp_option_parse(set, *argc, *argv, &rest, help, err);
    *argc -= rest;
    *argv += rest;
    if (status == ETH_HPP_OK && !*help && *argc > 0 && !command->words)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                   "\"%.64s\" is left over: %s takes options only", (*argv)[0],
                                   command->name);
    if (status == ETH_HPP_OK && command->environment)
        status = eth_hpp_option_from_environment(set, err);
    if (status != ETH_HPP_OK && !eth_hpp_command_is_first_task())
        err->text[0] = '\0';
    return status;
}

static enum eth_hpp_status run(const struct eth_hpp_command *command,
                               struct eth_hpp_option_set *set, int argc, char **argv,
                               struct eth_hpp_error *err)
{
    bool help = false;
    enum eth_hpp_status status = read_options(command, set, &argc, &argv, &help, err);
    if (status != ETH_HPP_OK)
        return status;
    if (help) {
        print_help(command, set);
        return ETH_HPP_OK;
    }
    return command->run(set, argc, argv, err);
}

int eth_hpp_command_run(const struct eth_hpp_command *command, int argc, char **argv)
{
    struct eth_hpp_option_set set;
    struct eth_hpp_error err = {0};
    enum eth_hpp_status status =
        eth_hpp_option_set_init(&set, command->table, command->count, &err);
    if (status != ETH_HPP_OK)
        return eth_hpp_command_failed(&err);
    status = run(command, &set, argc - 1, argv + 1, &err);
    eth_hpp_option_set_free(&set);
    if (status != ETH_HPP_OK && err.text[0] != '\0')
        eth_hpp_log_error("%s", err.text);
    return eth_hpp_error_exit_code(status);
}

/* ---- a plan and the options ---- */

enum eth_hpp_status eth_hpp_command_agrees(const struct eth_hpp_option_set *set, int option,
                                           int planned, struct eth_hpp_error *err)
{
    const char *text = eth_hpp_option_text(set, (size_t)option);
    if (text == NULL || (int)eth_hpp_option_number(set, (size_t)option) == planned)
        return ETH_HPP_OK;
    return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                             "--%s=%s contradicts the given plan, which has %d: leave one out",
                             set->table[option].name, text, planned);
}

enum eth_hpp_status eth_hpp_command_agrees_dtype(const struct eth_hpp_option_set *set, int option,
                                                 enum eth_hpp_dtype planned,
                                                 struct eth_hpp_error *err)
{
    int asked = eth_hpp_dtype_find(eth_hpp_option_text(set, (size_t)option));
    if (asked < 0 || asked == (int)planned)
        return ETH_HPP_OK;
    return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                             "--%s=%s contradicts what is given, which has %s: leave one out",
                             set->table[option].name, eth_hpp_dtype_name((enum eth_hpp_dtype)asked),
                             eth_hpp_dtype_name(planned));
}

/* ---- standard streams ---- */

void eth_hpp_command_hold_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF)
            continue;
        /* open takes the lowest free number, which is fd. The wrong direction keeps the stream
         * unusable; a log without standard error has nowhere to complain. */
        int held = open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_WRONLY);
        (void)held;
    }
}

int eth_hpp_command_end(int code)
{
    errno = 0;
    bool lost = fflush(stdout) != 0;
    if (code != ETH_HPP_EXIT_OK || (!lost && !ferror(stdout)))
        return code;
    eth_hpp_log_error("cannot write to standard output%s%s", errno != 0 ? ": " : "",
                      errno != 0 ? strerror(errno) : "");
    return ETH_HPP_EXIT_FAILURE;
}
