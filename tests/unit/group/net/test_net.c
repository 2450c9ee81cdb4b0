/* What only groups over the network do, with processes on this host; the rest is in
 * test_conformance.c. */
#include "support/test.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/clock.h"
#include "group/group.h"
#include "group/net/inbox.h"
#include "helios/helios.h"
#include "support/process_state.h"
#include "unit/group/net/net_world.h"

/* Between two of three ranks, longer than a box; the third one is idle. */
static int passes_on(int rank, int world)
{
    static uint64_t x[5 << 20];
    size_t n = HL_ARRAY_LEN(x);
    hybridps_group *g = meet(rank, world, 20000);
    WANT(g != NULL);
    for (size_t i = 0; i < n; i++)
        x[i] = rank == 0 ? i * 3 : 0;
    if (rank == 0)
        WANT(hybridps_group_send(g, "s", x, sizeof(x), 1, 7) == 0);
    if (rank == 1)
        WANT(hybridps_group_recv(g, "s", x, sizeof(x), 0, 7) == 0);
    WANT(rank == 2 || (x[1] == 3 && x[n / 2] == n / 2 * 3 && x[n - 1] == (n - 1) * 3));
    for (size_t i = 0; i < 3000; i++)
        x[i] = (uint64_t)rank * 10 + i / 1000;
    WANT(hybridps_group_alltoall(g, "a", x, x, 8000) == 0);
    for (size_t i = 0; i < 3000; i++)
        WANT(x[i] == i / 1000 * 10 + (uint64_t)rank);
    hybridps_group_close(g);
    return 0;
}

TEST(two_ranks_send_and_all_exchange)
{
    apart(3, passes_on);
}

#define AHEAD_MAX 6 /* what a box keeps of a rank */

static hl_status put(struct hl_inbox *b, struct hl_outbox *l, uint64_t number)
{
    static uint8_t bytes[100];
    const char *words;
    hl_status st;
    HL_TRY(hl_outbox_send(l, 5, 1, number, bytes, sizeof(bytes), 20000));
    while (hl_outbox_sending(l, &st, &words))
        hl_inbox_wait(b, hl_now_ns() + HL_NS_PER_S);
    return st;
}

/* A sender is done with a message once all of it is in the box, and can be faster than the
 * receiver: its part of a collective must still get in, and so must its last words. */
static int fills_a_box(int rank, int world)
{
    struct hl_inbox *b;
    struct hl_outbox *l;
    (void)world;
    WANT(hl_inbox_open("127.0.0.1:0", 2, &b) == HL_OK);
    WANT(hl_outbox_open(b, hl_inbox_address(b), 20000, &l) == HL_OK);
    for (uint64_t i = 0; i < AHEAD_MAX; i++)
        WANT(put(b, l, HL_INBOX_AHEAD | i) == HL_OK);
    WANT(put(b, l, HL_INBOX_AHEAD | AHEAD_MAX) == HL_EBUSY);
    for (uint64_t i = 0; i < AHEAD_MAX; i++)
        WANT(put(b, l, i + 1) == HL_OK);
    WANT(put(b, l, HL_INBOX_AHEAD - 1) == HL_EBUSY);
    free(hl_inbox_take(b, 5, 1, HL_INBOX_AHEAD));
    WANT(put(b, l, HL_INBOX_AHEAD - 1) == HL_EBUSY);
    WANT(put(b, l, HL_INBOX_AHEAD | AHEAD_MAX) == HL_OK);
    hl_outbox_close(l);
    hl_inbox_close(b);
    return 0;
}

TEST(what_is_sent_ahead_leaves_room_for_the_steps_of_all)
{
    apart(1, fills_a_box);
}

static int told[2]; /* a pipe: a rank that writes has everything it needs from the others */

static int bytes_in(int fd)
{
    int n = 0;
    return ioctl(fd, FIONREAD, &n) == 0 ? n : 0;
}

static int contradict(int rank, int world)
{
    float x[64] = {0};
    hybridps_group *g = meet(rank, world, 20000);
    WANT(g != NULL);
    int code = rank == 1 ? hybridps_group_broadcast(g, "mine", x, 16, 1)
                         : hybridps_group_allreduce(g, "ours", x, 64, HYBRIDPS_F32, 0);
    /* Noticed by itself, or reported by a faster rank. */
    WANT(code == HELIOS_ECONFLICT || code == HELIOS_EUNAVAIL);
    WANT(strstr(hl_error_text(), "broadcast of \"mine\" (16 bytes, src 1,") != NULL);
    WANT(strstr(hl_error_text(), "allreduce of \"ours\" (256 bytes, type 0,") != NULL);
    WANT(hybridps_group_allreduce(g, "ours", x, 64, HYBRIDPS_F32, 0) == HELIOS_EUNAVAIL);
    WANT(strstr(hl_error_text(), "lost") != NULL && strstr(hl_error_text(), "mine") != NULL);
    WANT(write(told[1], "x", 1) == 1); /* a rank that closes sends nothing more to a slower one */
    while (bytes_in(told[0]) < world)
        poll(NULL, 0, 5);
    hybridps_group_close(g);
    return 0;
}

TEST(ranks_that_call_different_things_are_told_what_each_called)
{
    assert_int_equal(pipe(told), 0);
    apart(3, contradict);
    close(told[0]);
    close(told[1]);
}

static int dies(int rank, int world)
{
    float x[4] = {1};
    hybridps_group *g = meet(rank, world, 1000 * CHILD_S);
    WANT(g != NULL);
    WANT(hybridps_group_allreduce(g, "x", x, 4, HYBRIDPS_F32, 0) == 0);
    if (rank == 1)
        _exit(0); /* silently, as if killed */
    uint64_t began = hl_now_ns();
    WANT(hybridps_group_broadcast(g, "weights", x, 16, 1) == HELIOS_EUNAVAIL);
    WANT(strstr(hl_error_text(), "rank 1 (127.0.0.1:") != NULL);
    WANT(strstr(hl_error_text(), "weights") != NULL);
    WANT(hl_now_ns() - began < UINT64_C(60) * HL_NS_PER_S);
    hybridps_group_close(g);
    return 0;
}

TEST(a_rank_that_died_is_found_long_before_the_deadline_and_named)
{
    apart(2, dies);
    apart(3, dies);
}

/* Something else listens on the closed rank's port, so only its last message tells. */
static int listen_at_address(void)
{
    const char *port = strrchr(address, ':') + 1;
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons((uint16_t)strtoul(port, NULL, 10))};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    bool open = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
                bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 8) == 0;
    return open ? fd : -1;
}

static int closes_early(int rank, int world)
{
    float x[4] = {1};
    char byte;
    hybridps_group *g = meet(rank, world, 1000 * CHILD_S);
    WANT(g != NULL);
    WANT(hybridps_group_allreduce(g, "x", x, 4, HYBRIDPS_F32, 0) == 0);
    if (rank == 0) {
        hybridps_group_close(g);
        WANT(listen_at_address() >= 0);
        WANT(read(told[0], &byte, 1) == 1);
        return 0;
    }
    WANT(hybridps_group_broadcast(g, "weights", x, 16, 0) == HELIOS_EUNAVAIL);
    WANT(strstr(hl_error_text(), "rank 0 (127.0.0.1:") != NULL);
    WANT(strstr(hl_error_text(), "weights") != NULL);
    WANT(write(told[1], "x", 1) == 1);
    hybridps_group_close(g);
    return 0;
}

TEST(a_rank_that_closes_the_group_says_so)
{
    assert_int_equal(pipe(told), 0);
    apart(2, closes_early);
    close(told[0]);
    close(told[1]);
}

static int stands_still(int rank, int world)
{
    float x[4] = {1};
    hybridps_group *g = meet(rank, world, 6000); /* joining has the same limit */
    WANT(g != NULL);
    int code = hybridps_group_allreduce(g, "x", x, 4, HYBRIDPS_F32, 0);
    if (rank == 1) {
        WANT(raise(SIGSTOP) == 0);
        _exit(0);
    }
    uint64_t began = hl_now_ns();
    if (code == 0) /* otherwise it was stopped before it had confirmed that */
        code = hybridps_group_broadcast(g, "weights", x, 16, 1);
    WANT(code != 0);
    WANT(strstr(hl_error_text(), "rank 1 (127.0.0.1:") != NULL);
    WANT(hl_now_ns() - began < UINT64_C(60) * HL_NS_PER_S);
    hybridps_group_close(g);
    return 0;
}

static pid_t still; /* the stopped rank */

static int is_stopped(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    return process_state(path) == 'T';
}

struct canceller {
    hybridps_group *group;
    pid_t sender; /* the thread */
};

/* For a message that is never received: its sender sleeps, and goes on sleeping. */
static void *cancels_in_the_middle(void *arg)
{
    struct canceller *c = arg;
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)c->sender);
    for (int asleep = 0; asleep < 10; asleep = process_state(path) == 'S' ? asleep + 1 : 0)
        poll(NULL, 0, 5);
    hybridps_group_cancel(c->group);
    return NULL;
}

static int closes_soon(int rank, int world)
{
    static float x[2 << 20];
    pthread_t thread;
    hybridps_group *g = meet(rank, world, 60000);
    WANT(g != NULL);
    if (rank == 1) {
        char byte;
        WANT(hybridps_group_allreduce(g, "x", x, 4, HYBRIDPS_F32, 0) == 0);
        WANT(read(told[0], &byte, 1) == 1); /* meanwhile its threads confirm what has arrived */
        WANT(raise(SIGSTOP) == 0);
        _exit(0);
    }
    WANT(hybridps_group_allreduce(g, "x", x, 4, HYBRIDPS_F32, 0) == 0);
    WANT(write(told[1], "x", 1) == 1);
    while (!is_stopped(still)) /* the alarm ends it */
        poll(NULL, 0, 5);
    struct canceller c = {g, gettid()};
    WANT(pthread_create(&thread, NULL, cancels_in_the_middle, &c) == 0);
    WANT(hybridps_group_broadcast(g, "weights", x, sizeof(x), 0) == HELIOS_ECANCELED);
    pthread_join(thread, NULL);
    uint64_t began = hl_now_ns();
    hybridps_group_close(g);
    WANT(hl_now_ns() - began < UINT64_C(30) * HL_NS_PER_S); /* half of the group's timeout */
    return 0;
}

/* A grandchild is stopped; the process that waits for it reports. */
static void with_one_that_stops(int (*fn)(int rank, int world))
{
    int status;
    new_address();
    assert_int_equal(pipe(told), 0);
    still = fork();
    if (still == 0)
        _exit(fn(1, 2));
    pid_t waits = fork();
    if (waits == 0) {
        alarm(CHILD_S);
        _exit(fn(0, 2));
    }
    assert_true(still > 0 && waits > 0);
    assert_int_equal(waitpid(waits, &status, 0), waits);
    assert_int_equal(kill(still, SIGKILL), 0);
    assert_int_equal(waitpid(still, NULL, 0), still);
    close(told[0]);
    close(told[1]);
    assert_int_equal(status, 0);
}

TEST(a_group_closes_soon_while_a_rank_stands_still_in_a_message)
{
    with_one_that_stops(closes_soon);
}

TEST(a_rank_that_stands_still_is_named_at_the_deadline)
{
    with_one_that_stops(stands_still);
}

static int says_another_world(int rank, int world)
{
    hybridps_net_options o = {HYBRIDPS_NET_OPTIONS_INIT, .address = address, .rank = rank,
                              .world = world + (rank == 1), .timeout_ms = 20000};
    hybridps_group *g = NULL;
    WANT(hybridps_group_net(&o, &g) != 0 && g == NULL);
    WANT(strstr(hl_error_text(), rank == 0 ? "rank 1 expects 3 ranks, rank 0 expects 2"
                                           : "rank 0 has heard of rank 1 and left") != NULL);
    return 0;
}

TEST(joining_fails_with_who_is_missing_or_says_otherwise)
{
    hybridps_group *g = NULL;
    apart(2, says_another_world);
    hybridps_net_options o = {HYBRIDPS_NET_OPTIONS_INIT, .address = address, .rank = 2, .world = 2};
    assert_int_equal(hybridps_group_net(&o, &g), HELIOS_EINVAL);
    assert_non_null(strstr(hl_error_text(), "rank 2 of 2"));
    o = (hybridps_net_options){HYBRIDPS_NET_OPTIONS_INIT, .rank = 0, .world = 2};
    assert_int_equal(hybridps_group_net(&o, &g), HELIOS_EINVAL);
    assert_non_null(strstr(hl_error_text(), "host:port"));
    new_address();
    o = (hybridps_net_options){HYBRIDPS_NET_OPTIONS_INIT, .address = address, .rank = 0, .world = 3,
                               .timeout_ms = 50};
    assert_int_equal(hybridps_group_net(&o, &g), HELIOS_ETIMEDOUT);
    assert_non_null(strstr(hl_error_text(), "1 of 3 ranks joined within 50 ms"));
    assert_null(g);
}
