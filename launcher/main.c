/* eth-hpp: the program's subcommands. */
#include "launcher/command.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "config.h"

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"inventory", "writes what this node has", eth_hpp_command_inventory},
    {"plan", "finds the best plan for a cluster and a model", eth_hpp_command_plan},
    {"profile", "measures what a model's layers take on this device", eth_hpp_command_profile},
    {"show", "draws a plan and its step", eth_hpp_command_show},
    {"simulate", "predicts the step of a plan", eth_hpp_command_simulate},
    {"launch", "plans a job for its GPUs and runs a program with the plan", eth_hpp_command_launch},
    {"train", "trains the built-in transformer", eth_hpp_command_train},
    {"checkpoint", "shows, checks and converts checkpoints", eth_hpp_command_checkpoint},
    {NULL, NULL, NULL},
};

static void print_help(FILE *out)
{
    fprintf(out, "usage: eth-hpp COMMAND [OPTIONS]\n"
                 "\n"
                 "Heterogeneous pipeline parallel training under Slurm.\n"
                 "\n");
    for (int i = 0; commands[i].name != NULL; i++)
        fprintf(out, "  %-12s %s\n", commands[i].name, commands[i].summary);
    fprintf(out, "\n"
                 "eth-hpp COMMAND --help describes a command; eth-hpp --version prints the "
                 "version.\n"
                 "\n"
                 "Exit codes: 0 done, 1 failed while running, 2 a wrong command line or file, 3 no "
                 "plan fits\nthe devices, 128 + N ended by signal N.\n");
}

/* Slurm refuses the plugin of another release without asking it anything: who looks for the reason
 * finds here what it was built for. */
static void print_version(void)
{
    printf("eth-hpp %s\n", PACKAGE_VERSION);
#ifdef ETH_HPP_SLURM_VERSION
    printf("SPANK plugin for Slurm %s\n", ETH_HPP_SLURM_VERSION);
#endif
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return ETH_HPP_EXIT_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        print_help(stdout);
        return ETH_HPP_EXIT_OK;
    }
    if (strcmp(word, "--version") == 0) {
        print_version();
        return ETH_HPP_EXIT_OK;
    }
    for (int i = 0; commands[i].name != NULL; i++)
        if (strcmp(word, commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    eth_hpp_log_error("there is no command \"%s\"; eth-hpp --help lists them", word);
    return ETH_HPP_EXIT_USAGE;
}

int main(int argc, char **argv)
{
    eth_hpp_command_hold_streams();
    return eth_hpp_command_end(run(argc, argv));
}
