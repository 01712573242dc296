/*
 * Started in place of a task's command by the plugin, where Slurm cannot put words in front of it
 * (before 23.11): runs `eth-hpp launch -- COMMAND ARGUMENTS`, with the launcher's path and COMMAND
 * from the environment and the arguments as they are.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    char *launcher = getenv("ETH_HPP_STEP_LAUNCHER"), *command = getenv("ETH_HPP_STEP_COMMAND");
    char **words = calloc((size_t)argc + 4, sizeof(*words));
    if (launcher == NULL || command == NULL || words == NULL) {
        fprintf(stderr, "eth-hpp: eth-hpp-step is started by the SPANK plugin, not by hand\n");
        return 2;
    }
    launcher = strdup(launcher);
    command = strdup(command);
    if (launcher == NULL || command == NULL || unsetenv("ETH_HPP_STEP_LAUNCHER") != 0 ||
        unsetenv("ETH_HPP_STEP_COMMAND") != 0) {
        fprintf(stderr, "eth-hpp: out of memory\n");
        return 1;
    }
    words[0] = launcher;
    words[1] = (char *)"launch";
    words[2] = (char *)"--";
    words[3] = command;
    for (int i = 1; i < argc; i++)
        words[3 + i] = argv[i];
    execv(launcher, words);
    fprintf(stderr, "eth-hpp: cannot run %s: %s\n", launcher, strerror(errno));
    return 127;
}
