#include "fuzz.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

const char *fuzz_file(const uint8_t *data, size_t size, const char *ending)
{
    static char path[64], link[64];
    static int fd = -1;
    if (fd >= 0)
        close(fd);
    fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        return NULL;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (ending[0] == '\0')
        return path;
    snprintf(link, sizeof(link), "fuzz-%d%s", (int)getpid(), ending);
    unlink(link);
    return symlink(path, link) == 0 ? link : NULL;
}
