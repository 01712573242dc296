#include "bootstrap/first_here.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* Who has just taken the name may not listen yet. */
enum { TRIES = 5, PAUSE_NS = 10000000 };

/* Is the socket of that name this user's? One that does not listen cannot be told from another
 * user's, whom nobody shall be silenced by. */
static bool is_own(const struct sockaddr_un *name)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    struct ucred owner;
    socklen_t size = sizeof(owner);
    bool own = false;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    for (int i = 0; i < TRIES && !own; i++) {
        if (connect(fd, (const struct sockaddr *)name, sizeof(*name)) == 0) {
            own = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &size) == 0 &&
                  owner.uid == geteuid();
            break;
        }
        nanosleep(&pause, NULL);
    }
    close(fd);
    return own;
}

bool eth_hpp_first_here(const char *what)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX}; /* abstract: the first byte is 0 */
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "eth-hpp.%u.%.80s", (unsigned)geteuid(),
             what);
    if (fd < 0)
        return true;
    if (bind(fd, (struct sockaddr *)&name, sizeof(name)) != 0) {
        const bool taken = errno == EADDRINUSE && is_own(&name);
        close(fd);
        return !taken;
    }
    listen(fd, SOMAXCONN);
    return true; /* the socket keeps the name until the process ends */
}
