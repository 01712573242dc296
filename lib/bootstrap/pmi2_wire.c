#include "bootstrap/pmi2_wire.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"

enum { LENGTH_DIGITS = 6 };

static enum eth_hpp_status wait_for(int fd, short event, double deadline, struct eth_hpp_error *err)
{
    struct pollfd ready = {.fd = fd, .events = event};
    for (;;) {
        const double left = deadline - eth_hpp_clock_now();
        const int count = poll(&ready, 1, left > 0 ? (int)(left * 1e3) + 1 : 0);
        if (count > 0)
            return ETH_HPP_OK;
        if (count == 0)
            return eth_hpp_error_set(err, ETH_HPP_ERR_TIMEOUT,
                                     "PMI-2: this node's server does not answer");
        if (errno != EINTR)
            return eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "PMI-2: poll: %m");
    }
}

/* All `size` bytes, into or out of `bytes`. */
static enum eth_hpp_status transfer(int fd, short event, char *bytes, size_t size, double deadline,
                                    struct eth_hpp_error *err)
{
    for (size_t done = 0; done < size;) {
        enum eth_hpp_status status = wait_for(fd, event, deadline, err);
        if (status != ETH_HPP_OK)
            return status;
        const ssize_t count =
            event == POLLIN ? recv(fd, bytes + done, size - done, MSG_DONTWAIT)
                            : send(fd, bytes + done, size - done, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (count == 0)
            return eth_hpp_error_set(err, ETH_HPP_ERR_PEER,
                                     "PMI-2: this node's server has closed the connection");
        if (count < 0 && errno != EAGAIN && errno != EINTR)
            return eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "PMI-2: this node's server: %m");
        if (count > 0)
            done += (size_t)count;
    }
    return ETH_HPP_OK;
}

/* The one line that has no length in front. */
enum eth_hpp_status eth_hpp_pmi2_wire_greet(int fd, double deadline, struct eth_hpp_error *err)
{
    char hello[] = "cmd=init pmi_version=2 pmi_subversion=0\n";
    char line[128] = "";
    enum eth_hpp_status status = transfer(fd, POLLOUT, hello, sizeof(hello) - 1, deadline, err);
    for (size_t i = 0; status == ETH_HPP_OK && i < sizeof(line) - 1; i++) {
        status = transfer(fd, POLLIN, line + i, 1, deadline, err);
        if (line[i] == '\n')
            break;
    }
    if (status == ETH_HPP_OK && strncmp(line, "cmd=response_to_init rc=0 ", 26) != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_PEER,
                                 "PMI-2: this node's server does not speak it: %s", line);
    return status;
}

enum eth_hpp_status eth_hpp_pmi2_wire_send(int fd, double deadline, const char *name,
                                           const char *fields, struct eth_hpp_error *err)
{
    char message[LENGTH_DIGITS + ETH_HPP_PMI2_MESSAGE_BYTES], length[LENGTH_DIGITS + 1];
    const int size =
        snprintf(message + LENGTH_DIGITS, ETH_HPP_PMI2_MESSAGE_BYTES, "cmd=%s;%s", name, fields);
    if (size < 0 || size >= ETH_HPP_PMI2_MESSAGE_BYTES)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INTERNAL, "PMI-2: %s is too long", name);
    snprintf(length, sizeof(length), "%-6d", size);
    memcpy(message, length, LENGTH_DIGITS);
    return transfer(fd, POLLOUT, message, LENGTH_DIGITS + (size_t)size, deadline, err);
}

enum eth_hpp_status eth_hpp_pmi2_wire_receive(int fd, double deadline, const char *name,
                                              char answer[ETH_HPP_PMI2_MESSAGE_BYTES],
                                              struct eth_hpp_error *err)
{
    char length[LENGTH_DIGITS + 1] = "", code[16], start[64];
    enum eth_hpp_status status = transfer(fd, POLLIN, length, LENGTH_DIGITS, deadline, err);
    if (status != ETH_HPP_OK)
        return status;
    const long size = strtol(length, NULL, 10);
    if (size <= 0 || size >= ETH_HPP_PMI2_MESSAGE_BYTES)
        return eth_hpp_error_set(err, ETH_HPP_ERR_PEER,
                                 "PMI-2: the server's answer to %s has a length of '%s'", name,
                                 length);
    status = transfer(fd, POLLIN, answer, (size_t)size, deadline, err);
    if (status != ETH_HPP_OK)
        return status;
    answer[size] = '\0';
    snprintf(start, sizeof(start), "cmd=%s-response;", name);
    if (strncmp(answer, start, strlen(start)) != 0 ||
        !eth_hpp_pmi2_wire_field(answer, "rc", code, sizeof(code)) || strcmp(code, "0") != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_PEER, "PMI-2: %s failed: %.200s", name, answer);
    return ETH_HPP_OK;
}

bool eth_hpp_pmi2_wire_field(const char *answer, const char *key, char *value, size_t size)
{
    const size_t key_length = strlen(key);
    for (const char *field = answer; *field != '\0';) {
        const size_t length = strcspn(field, ";");
        if (length > key_length && field[key_length] == '=' &&
            strncmp(field, key, key_length) == 0) {
            const size_t value_length = length - key_length - 1;
            if (value_length >= size)
                return false;
            memcpy(value, field + key_length + 1, value_length);
            value[value_length] = '\0';
            return true;
        }
        field += length + (field[length] == ';');
    }
    return false;
}
