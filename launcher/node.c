#include "launcher/node.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

enum { TEXT_LIMIT = 1 << 20 };

void eth_hpp_node_name(char *name, size_t size)
{
    const char *slurm = getenv("SLURMD_NODENAME");
    if (slurm != NULL && *slurm != '\0') {
        snprintf(name, size, "%s", slurm);
        return;
    }
    if (gethostname(name, size) != 0)
        snprintf(name, size, "localhost");
    name[size - 1] = '\0';
    name[strcspn(name, ".")] = '\0';
}

/* ---- collecting in a child ---- */

static void write_all(int fd, const char *text)
{
    for (size_t left = strlen(text); left > 0;) {
        ssize_t n = write(fd, text, left);
        if (n < 0 && errno != EINTR)
            return;
        if (n > 0) {
            text += n;
            left -= (size_t)n;
        }
    }
}

static void collect_and_write(int fd, const char *node, const char *site_file)
{
    struct eth_hpp_inventory inventory;
    char *text = NULL;
    if (eth_hpp_inventory_collect(node, site_file, &inventory, NULL) != ETH_HPP_OK)
        return;
    if (eth_hpp_inventory_print(&inventory, &text, NULL) == ETH_HPP_OK)
        write_all(fd, text);
    free(text);
    eth_hpp_inventory_free(&inventory);
}

/* Reads to the end of the pipe; false when the deadline passes, or when nothing useful came. */
static bool read_until_deadline(int fd, double timeout_s, char *text, size_t limit, size_t *size)
{
    double deadline = eth_hpp_clock_now() + timeout_s;
    for (*size = 0; *size < limit;) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        double left = deadline - eth_hpp_clock_now();
        int ready = left > 0 ? poll(&wait, 1, (int)(left * 1e3) + 1) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return false;
        ssize_t n = read(fd, text + *size, limit - *size);
        if (n == 0)
            return *size > 0;
        if (n > 0)
            *size += (size_t)n;
        else if (errno != EINTR)
            return false;
    }
    return false;
}

static enum eth_hpp_status collect_in_child(const char *node, const char *site_file,
                                            double timeout_s, struct eth_hpp_inventory *inventory,
                                            struct eth_hpp_error *err)
{
    int ends[2];
    size_t size = 0;
    enum eth_hpp_status status = ETH_HPP_OK;
    char *text = malloc(TEXT_LIMIT + 1);
    if (text == NULL)
        return eth_hpp_error_memory(err, "the inventory");
    if (pipe(ends) != 0) {
        status = eth_hpp_error_set(err, ETH_HPP_ERR_IO, "cannot make a pipe: %s", strerror(errno));
        goto out;
    }
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        collect_and_write(ends[1], node, site_file);
        _exit(0);
    }
    close(ends[1]);
    bool answered = child > 0 && read_until_deadline(ends[0], timeout_s, text, TEXT_LIMIT, &size);
    close(ends[0]);
    if (child > 0) {
        /* One that did not answer is never waited for: a child that hangs in the driver survives
         * even SIGKILL for a while. */
        kill(child, SIGKILL);
        waitpid(child, NULL, answered ? 0 : WNOHANG);
    }
    if (answered) {
        text[size] = '\0';
        status = eth_hpp_inventory_parse("inventory", text, size, inventory, err);
    } else {
        *inventory = (struct eth_hpp_inventory){.source = "none"};
        snprintf(inventory->node, sizeof(inventory->node), "%s", node);
        snprintf(inventory->why_empty, sizeof(inventory->why_empty),
                 "the GPU driver did not answer within %g s", timeout_s);
    }
out:
    free(text);
    return status;
}

enum eth_hpp_status eth_hpp_node_inventory(struct eth_hpp_inventory *inventory, double timeout_s,
                                           struct eth_hpp_error *err)
{
    char node[ETH_HPP_TEXT_MAX];
    const char *path = getenv("ETH_HPP_INVENTORY"), *site_file = getenv("ETH_HPP_SITE_FILE");
    if (path != NULL && *path != '\0')
        return eth_hpp_inventory_load(path, inventory, err);
    eth_hpp_node_name(node, sizeof(node));
    if (site_file != NULL && *site_file == '\0')
        site_file = NULL;
    return collect_in_child(node, site_file, timeout_s, inventory, err);
}

enum eth_hpp_status eth_hpp_node_visible(struct eth_hpp_inventory *inventory, double timeout_s,
                                         struct eth_hpp_error *err)
{
    char node[ETH_HPP_TEXT_MAX];
    eth_hpp_node_name(node, sizeof(node));
    return collect_in_child(node, NULL, timeout_s, inventory, err);
}
