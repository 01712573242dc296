#include "launcher/command.h"

#include <stdio.h>

#include "base/log.h"

void eth_hpp_command_help(const char *name, const char *arguments, const char *what,
                          const struct eth_hpp_option *table, size_t count)
{
    printf("usage: eth-hpp %s %s\n\n%s\n\n", name, arguments, what);
    eth_hpp_option_print(table, count, stdout);
}

int eth_hpp_command_failed(const struct eth_hpp_error *err)
{
    eth_hpp_log_error("%s", err->text);
    return eth_hpp_error_exit_code(err->status);
}

static enum eth_hpp_status run(const struct eth_hpp_command *command,
                               struct eth_hpp_option_set *set, int argc, char **argv,
                               struct eth_hpp_error *err)
{
    int rest = 0;
    bool help = false;
    enum eth_hpp_status status = eth_hpp_option_parse(set, argc - 1, argv + 1, &rest, &help, err);
    if (status != ETH_HPP_OK)
        return status;
    if (help) {
        eth_hpp_command_help(command->name, command->arguments, command->what, command->table,
                             command->count);
        return ETH_HPP_OK;
    }
    argc -= rest + 1;
    argv += rest + 1;
    if (argc > 0 && !command->words)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "\"%.64s\" is left over: %s takes options only", argv[0],
                                 command->name);
    if (command->environment)
        status = eth_hpp_option_from_environment(set, err);
    return status != ETH_HPP_OK ? status : command->run(set, argc, argv, err);
}

int eth_hpp_command_run(const struct eth_hpp_command *command, int argc, char **argv)
{
    struct eth_hpp_option_set set;
    struct eth_hpp_error err = {0};
    enum eth_hpp_status status =
        eth_hpp_option_set_init(&set, command->table, command->count, &err);
    if (status != ETH_HPP_OK)
        return eth_hpp_command_failed(&err);
    status = run(command, &set, argc, argv, &err);
    eth_hpp_option_set_free(&set);
    if (status != ETH_HPP_OK && err.text[0] != '\0')
        eth_hpp_log_error("%s", err.text);
    return eth_hpp_error_exit_code(status);
}
