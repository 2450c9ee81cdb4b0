/* Ranks of a group over the network, as processes of this host. All of them are children, because a
 * process that has used the network can't be forked. */
#ifndef UNIT_GROUP_NET_WORLD_H
#define UNIT_GROUP_NET_WORLD_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "unit/group/group_world.h"

#define PORT_FIRST 10000
#define PORT_COUNT 10000

static char address[64];

static int is_free(unsigned port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    int free = bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0;
    close(fd);
    return free;
}

/* A port that is free, and stays so until rank 0 uses it: the kernel gives out others, and each
 * process tries its own numbers first. */
static void new_address(void)
{
    static unsigned tried;
    unsigned port, left = PORT_COUNT;
    do
        port = PORT_FIRST + ((unsigned)getpid() * 16 + tried++) % PORT_COUNT;
    while (!is_free(port) && --left > 0);
    assert_true(left > 0);
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
}

static hybridps_group *meet(int rank, int world, int timeout_ms)
{
    hybridps_net_options o = {HYBRIDPS_NET_OPTIONS_INIT, .address = address, .rank = rank,
                              .world = world, .timeout_ms = timeout_ms};
    hybridps_group *g = NULL;
    if (hybridps_group_net(&o, &g) != 0)
        fprintf(stderr, "%s\n", hl_error_text());
    return g;
}

static int (*job)(int rank, int world);

/* The children of `together` are ranks; its own rank 0 is a child, too. */
static int in_child(int rank, int world)
{
    int status = -1;
    if (rank > 0)
        return job(rank, world);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(CHILD_S);
        _exit(job(0, world));
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid ? status : 1;
}

static void apart(int world, int (*fn)(int rank, int world))
{
    new_address();
    job = fn;
    together(world, in_child);
}

#endif
