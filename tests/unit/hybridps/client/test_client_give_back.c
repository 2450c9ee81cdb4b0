/* Clients whose node asks for memory: they give back their parts, and train with the same values.
 */
#include "support/test.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hybridps/manager/table.h"
#include "unit/hybridps/client/training.h"

#define PAGES 20 /* of each client's device */

static char name[64];

/* A node with one device, and the Agent's handle of its table. */
static void open_node(struct hl_manager_table *t)
{
    uint64_t capacity[] = {HL_MANAGER_UNLIMITED, HL_MANAGER_UNLIMITED};
    struct hl_manager_options o = {
        .name = name, .capacity = capacity, .devices = 2, .lock_ms = 20000};
    snprintf(name, sizeof(name), "helios-test-give-back-%d", (int)getpid());
    assert_int_equal(hl_manager_table_open(&o, t), HL_OK);
    setenv("HYBRIDPS_MANAGER", name, 1);
}

static hybridps_stats_t stats(hybridps *h)
{
    hybridps_stats_t s = {HYBRIDPS_STATS_INIT};
    OK(hybridps_stats(h, &s));
    return s;
}

static uint64_t traffic(struct model *m, int where)
{
    train(m, where);
    hybridps_traffic t = last_of(m->h);
    return t.h2d + t.d2h;
}

TEST(training_gives_back_what_is_asked_and_keeps_its_values)
{
    struct hl_manager_table node;
    open_node(&node);
    for (int i = 0; i < 8; i++) {
        struct model m;
        int where = i & 1 ? HYBRIDPS_DEVICE : HYBRIDPS_HOST;
        fetch_ahead = i & 4 ? 2 : 0;
        build(&m, PAGES, NULL, i & 2 ? "copy" : "move");
        uint64_t calm = 0;
        for (int k = 0; k < 5; k++)
            calm = traffic(&m, where);
        assert_int_equal(stats(m.h).given_back_bytes, 0);
        for (unsigned asked = 9; asked > 2; asked -= 2) {
            for (unsigned k = 0; k < 12; k++) {
                hl_manager_ask(&node, 1, (asked - k % 3) * page()); /* places never settle */
                (void)traffic(&m, where);
                assert_int_equal(stats(m.h).deviations, 0);
                assert_true(stats(m.h).device <= asked * page());
            }
        }
        uint64_t given = stats(m.h).given_back_bytes;
        assert_true(given > 0 || where == HYBRIDPS_HOST); /* between steps all is on the host */
        hl_manager_ask(&node, 1, 0);
        uint64_t after = 0;
        for (int k = 0; k < 5; k++)
            after = traffic(&m, where);
        assert_int_equal(stats(m.h).given_back_bytes, given);
        assert_int_equal(after, calm); /* it was planned again */
        hybridps_close(m.h);
    }
    fetch_ahead = 0;
    hl_manager_table_close(&node);
}

/* A request that came before the first plan, and before the first iteration. */
TEST(training_under_a_request_from_the_start_is_planned)
{
    for (int i = 0; i < 4; i++) {
        struct hl_manager_table node;
        struct model m;
        int where = i & 1 ? HYBRIDPS_DEVICE : HYBRIDPS_HOST;
        open_node(&node);
        hl_manager_ask(&node, 1, 5 * page());
        build(&m, PAGES, NULL, i & 2 ? "copy" : "move");
        for (int k = 0; k < 6; k++) {
            (void)traffic(&m, where);
            assert_true(stats(m.h).device <= 5 * page());
            assert_true(stats(m.h).device_peak <= 5 * page());
        }
        hybridps_close(m.h);
        hl_manager_table_close(&node);
    }
}

TEST(an_iteration_that_ends_gives_back_without_waiting_for_the_next)
{
    struct hl_manager_table node;
    struct model m;
    open_node(&node);
    build(&m, PAGES, "lru", "move");
    train(&m, HYBRIDPS_DEVICE);
    assert_true(stats(m.h).device > 9 * page());
    hl_manager_ask(&node, 1, 9 * page());
    OK(hybridps_iteration(m.h, NULL));
    assert_int_equal(stats(m.h).device, 9 * page());

    hl_manager_ask(&node, 1, 1);
    OK(hybridps_iteration(m.h, "eval"));
    assert_int_equal(stats(m.h).device, 0);
    hybridps_close(m.h);
    hl_manager_table_close(&node);
}

/* The other process: trains until the pipe ends. */
static int train_until(int end)
{
    struct model m;
    struct pollfd p = {.fd = end, .events = POLLIN};
    build(&m, PAGES, NULL, "copy");
    while (poll(&p, 1, 0) == 0)
        train(&m, HYBRIDPS_DEVICE);
    int gave = stats(m.h).given_back_bytes > 0;
    hybridps_close(m.h);
    return gave ? 0 : 3;
}

static uint64_t used_of(const struct hl_manager_table *node)
{
    return __atomic_load_n(&node->s->device[1].used, __ATOMIC_RELAXED);
}

TEST(two_processes_come_below_what_is_asked_of_both)
{
    struct hl_manager_table node;
    struct model m;
    struct hl_manager_use other = {0};
    int ends[2], status = 0;
    open_node(&node);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        _exit(train_until(ends[0]));
    }
    close(ends[0]);
    build(&m, PAGES, NULL, "copy");
    while (other.bytes < 15 * page() || stats(m.h).device < 15 * page()) {
        struct hl_manager_use all[2];
        train(&m, HYBRIDPS_DEVICE);
        for (size_t n = hl_manager_usage(&node, 1, all, 2); n > 0; n--)
            other = all[n - 1].pid == child ? all[n - 1] : other;
    }
    hl_manager_ask(&node, 1, 20 * page());
    while (used_of(&node) > 20 * page()) /* the test's deadline ends this */
        train(&m, HYBRIDPS_DEVICE);
    hl_manager_ask(&node, 1, 8 * page());
    while (used_of(&node) > 8 * page())
        train(&m, HYBRIDPS_DEVICE);
    hl_manager_ask(&node, 1, 0);
    while (stats(m.h).device < 15 * page())
        train(&m, HYBRIDPS_DEVICE);
    close(ends[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(stats(m.h).given_back_bytes > 0);
    hybridps_close(m.h);
    hl_manager_table_close(&node);
}
