/* A folder of a test's own, made and removed by a group's or a test's set-up and tear-down. */
#ifndef ETH_HPP_UNIT_FOLDER_H
#define ETH_HPP_UNIT_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "test_folder.XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

#endif
