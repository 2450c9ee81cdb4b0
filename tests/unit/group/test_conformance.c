/* What every group does over any transport: shared memory, the network, or one of the caller's with
 * only an allgather and a broadcast. test_conformance_net.c is for the network, which not every
 * machine has. Sums are compared bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/half.h"
#include "helios/helios.h"
#include "unit/group/net/net_world.h"

#ifndef OVER_NET
#define OVER_NET 0
#endif

#define TIMEOUT_MS 60000

struct transport {
    hybridps_group *(*open)(int rank, int world);
    void (*together)(int world, int (*fn)(int rank, int world));
};

static struct transport *transport;

/* ---- shared memory, and a transport made of a group of it ---- */

static hybridps_group *open_shm(int rank, int world)
{
    return join(rank, world, TIMEOUT_MS);
}

static int own_allgather(void *arg, const char *what, const void *mine, void *all, uint64_t bytes)
{
    return hybridps_group_allgather(arg, what, mine, all, bytes);
}

static int own_broadcast(void *arg, const char *what, void *data, uint64_t bytes, int src)
{
    return hybridps_group_broadcast(arg, what, data, bytes, src);
}

static const char *own_why(void *arg)
{
    (void)arg;
    return hl_error_text();
}

static void own_close(void *arg)
{
    hybridps_group_close(arg);
}

static hybridps_group *open_own(int rank, int world)
{
    hybridps_group *beneath = open_shm(rank, world), *g = NULL;
    hybridps_transport t = {HYBRIDPS_TRANSPORT_INIT,
                            .rank = rank,
                            .world = world,
                            .arg = beneath,
                            .allgather = own_allgather,
                            .broadcast = own_broadcast,
                            .why = own_why,
                            .close = own_close};
    return beneath != NULL && hybridps_group_over(&t, &g) == 0 ? g : NULL;
}

static hybridps_group *open_net(int rank, int world)
{
    return meet(rank, world, TIMEOUT_MS);
}

/* ---- values ---- */

static size_t size_of(int type)
{
    return type == HYBRIDPS_F32 ? 4 : 2;
}

static void put(void *data, int type, size_t i, float x)
{
    if (type == HYBRIDPS_F32)
        ((float *)data)[i] = x;
    else
        hl_half_store(&x, 1, data, type, i);
}

static float got(const void *data, int type, size_t i)
{
    float x;
    hl_half_load(data, type, i, 1, &x);
    return x;
}

static float rounded(float x, int type)
{
    uint16_t half;
    if (type == HYBRIDPS_F32)
        return x;
    hl_half_store(&x, 1, &half, type, 0);
    hl_half_load(&half, type, 0, 1, &x);
    return x;
}

/* Step by step, in rank order. */
static float expected(int world, int type, int op, size_t i)
{
    float sum = rounded(value(0, i), type);
    for (int r = 1; r < world; r++) {
        float x = rounded(value(r, i), type);
        sum = op == HYBRIDPS_MAX ? (x > sum ? x : sum) : rounded(sum + x, type);
    }
    return op == HYBRIDPS_MEAN && world > 1 ? rounded(sum / (float)world, type) : sum;
}

static int check_sum(hybridps_group *g, int rank, int world, size_t n, int type, int op)
{
    uint8_t *data = malloc(n * size_of(type) + 1);
    for (size_t i = 0; i < n; i++)
        put(data, type, i, value(rank, i));
    data[n * size_of(type)] = 77;
    WANT(hybridps_group_allreduce(g, "x", data, n, type, op) == 0);
    for (size_t i = 0; i < n; i++) {
        float a = got(data, type, i), b = expected(world, type, op, i);
        WANT(memcmp(&a, &b, sizeof(a)) == 0);
    }
    WANT(data[n * size_of(type)] == 77);
    free(data);
    return 0;
}

static int sums(int rank, int world)
{
    static const size_t counts[] = {0, 1, 3, 4096, 4097, 8193, 65536, 65537, 150001};
    static const int ops[] = {HYBRIDPS_SUM, HYBRIDPS_MEAN, HYBRIDPS_MAX};
    hybridps_group *g = transport->open(rank, world);
    WANT(g != NULL && hybridps_group_rank(g) == rank && hybridps_group_world(g) == world);
    for (size_t k = 0; k < HL_ARRAY_LEN(counts); k++)
        for (int type = HYBRIDPS_F32; type <= HYBRIDPS_BF16; type++)
            for (size_t o = 0; o < HL_ARRAY_LEN(ops); o++)
                WANT(check_sum(g, rank, world, counts[k], type, ops[o]) == 0);
    WANT(check_sum(g, rank, world, 1100003, HYBRIDPS_F32, HYBRIDPS_SUM) == 0);
    hybridps_group_close(g);
    return 0;
}

static void sums_are_taken_in_the_order_of_ranks_in_every_type(void **state)
{
    transport = *state;
    for (int world = 1; world <= 4; world++)
        transport->together(world, sums);
}

static int copies(int rank, int world)
{
    static const size_t counts[] = {1, 1000, 256 << 10, (768 << 10) + 5, (9 << 20) + 5};
    hybridps_group *g = transport->open(rank, world);
    WANT(g != NULL);
    for (size_t k = 0; k < HL_ARRAY_LEN(counts); k++) {
        size_t n = counts[k];
        uint8_t *mine = malloc(n), *all = malloc(n * (size_t)world);
        for (int src = 0; src < world; src++) {
            memset(mine, 10 + rank, n);
            WANT(hybridps_group_broadcast(g, "b", mine, n, src) == 0);
            WANT(mine[0] == 10 + src && mine[n / 2] == 10 + src && mine[n - 1] == 10 + src);
        }
        memset(mine, 20 + rank, n);
        WANT(hybridps_group_allgather(g, "a", mine, all, n) == 0);
        for (int r = 0; r < world; r++)
            WANT(all[(size_t)r * n] == 20 + r && all[(size_t)r * n + n - 1] == 20 + r);
        free(mine);
        free(all);
    }
    hybridps_group_close(g);
    return 0;
}

static void every_rank_gets_what_one_or_all_have(void **state)
{
    transport = *state;
    for (int world = 1; world <= 4; world++)
        transport->together(world, copies);
}

/* All to all, and one to one. */
static int exchanges(int rank, int world)
{
    static uint32_t x[4 * 70001], got_one[70001];
    size_t n = 70001;
    hybridps_group *g = transport->open(rank, world);
    WANT(g != NULL);
    for (int to = 0; to < world; to++)
        for (size_t i = 0; i < n; i++)
            x[(size_t)to * n + i] = (uint32_t)(rank * 100 + to) + (uint32_t)i;
    WANT(hybridps_group_alltoall(g, "each", x, x, n * sizeof(*x)) == 0);
    for (int from = 0; from < world; from++)
        for (size_t i = 0; i < n; i++)
            WANT(x[(size_t)from * n + i] == (uint32_t)(from * 100 + rank) + (uint32_t)i);
    WANT(hybridps_group_reduce_scatter(g, "part", x, got_one, n, HYBRIDPS_I32, HYBRIDPS_MAX) == 0);
    for (size_t i = 0; i < n; i++) /* of rank r's block `rank`: from `rank`, to r */
        WANT(got_one[i] == (uint32_t)(rank * 100 + world - 1) + (uint32_t)i);
    hybridps_group_close(g);
    return 0;
}

static void every_rank_has_something_for_each(void **state)
{
    transport = *state;
    for (int world = 1; world <= 4; world++)
        transport->together(world, exchanges);
}

#define OF(transport)                                                                              \
    cmocka_unit_test_prestate(sums_are_taken_in_the_order_of_ranks_in_every_type, &(transport)),   \
        cmocka_unit_test_prestate(every_rank_gets_what_one_or_all_have, &(transport)),             \
        cmocka_unit_test_prestate(every_rank_has_something_for_each, &(transport))

int main(void)
{
    static struct transport shm = {open_shm, together};
    static struct transport own = {open_own, together};
    static struct transport net = {open_net, apart};
    const struct CMUnitTest on_one_node[] = {OF(shm), OF(own)};
    const struct CMUnitTest between_nodes[] = {OF(net)};
    snprintf(name, sizeof(name), "helios-test-conformance-%d", (int)getpid());
    return OVER_NET ? cmocka_run_group_tests(between_nodes, NULL, NULL)
                    : cmocka_run_group_tests(on_one_node, NULL, NULL);
}
