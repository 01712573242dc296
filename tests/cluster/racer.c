/*
 * For some seconds, as fast as it can, tries to be where the plugin makes, writes and removes as
 * root: with links, folders and files of the next jobs' names, and by moving what is there.
 *     racer TARGET JOB SECONDS
 * TARGET is where its links lead. Says what it could do, which should be nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RUN "/run/eth-hpp"

enum { JOBS = 40, PATH_BYTES = 256 };

static void note(const char *what, int result)
{
    if (result == 0)
        printf("DONE: %s\n", what);
}

static void race_for_job(const char *target, const char *own, long job)
{
    char folder[64], inventory[80], moved[PATH_BYTES];
    snprintf(folder, sizeof(folder), RUN "/%ld", job);
    snprintf(inventory, sizeof(inventory), "%s/n1.json", folder);
    snprintf(moved, sizeof(moved), "%s/%ld", own, job);
    note("link in a folder's place", symlink(target, folder));
    note("folder", mkdir(folder, 0777));
    note("folder moved there", rename(own, folder));
    note("folder moved away", rename(folder, moved));
    note("link in a file's place", symlink(target, inventory));
    note("file moved away", rename(inventory, moved));
    note("file removed", unlink(inventory));
    note("folder removed", rmdir(folder));
}

int main(int argc, char **argv)
{
    char own[] = "/tmp/racer-XXXXXX";
    if (argc != 4 || mkdtemp(own) == NULL)
        return 2;
    const time_t end = time(NULL) + atol(argv[3]);
    while (time(NULL) < end) {
        for (long job = atol(argv[2]); job < atol(argv[2]) + JOBS; job++)
            race_for_job(argv[1], own, job);
        note("all moved away", rename(RUN, own));
        note("link in the place of all", symlink(argv[1], RUN));
        note("folder in the place of all", mkdir(RUN, 0777));
        note("all removed", rmdir(RUN));
    }
    puts("tried");
    return rmdir(own) == 0 ? 0 : 1;
}
