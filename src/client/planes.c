/* A read of the mapped pool takes a few hundred nanoseconds, so it only adds two numbers to its
 * client's own counters. The maintenance thread carries the totals to the table of planes and to
 * the Controller. core/route decides which path it was, and why.
 *
 *     any thread                               the maintenance thread
 *     planes_count, planes_time                planes_take, at each report
 *       client->counters.tally                   what is new since told->seen
 *         [read, write][shm, net][ok, failed]      --> hl_plane_add, the table of this process
 *         they only grow                           --> a transfer report, for the Controller
 *
 * `told` belongs to the maintenance thread, and to the closing thread once that is joined. The
 * counters are relaxed atomics: each number is right by itself, and a report may miss what is
 * counted while it is made; the next report has it. */
#include <stdlib.h>
#include <string.h>

#include "client/client_private.h"
#include "core/copies/copyplan.h"
#include "core/copies/route.h"

#define FAULTS_TOLD 32 /* per report */

/* A tally as it was at the last report. */
struct seen {
    uint64_t ops, bytes, ns, latency[HL_PLANE_BUCKETS];
};

struct planes_told {
    struct seen seen[TALLY_OPS][2][2];
};

hl_status planes_create(struct planes_told **out)
{
    *out = calloc(1, sizeof(**out));
    return *out != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory allocating a client");
}

void planes_destroy(struct planes_told *told)
{
    free(told);
}

/* The bytes are counted before the operation. planes_take checks for new operations first, so the
 * bytes of an operation that it does not see yet wait for the next report. */
uint64_t planes_count(helios_client *c, enum tally_op op, int net, uint64_t bytes, hl_status st)
{
    struct tally *t = &c->counters.tally[op][net][st != HL_OK];
    if (st == HL_OK)
        atomic_fetch_add_explicit(&t->bytes, bytes, memory_order_relaxed);
    else if (!hl_copy_was_tried(st))
        return 0;
    return atomic_fetch_add_explicit(&t->ops, 1, memory_order_relaxed);
}

/* Adds up the operations that were timed; read.c decides which. */
void planes_time(helios_client *c, enum tally_op op, int net, uint64_t ns)
{
    struct tally *t = &c->counters.tally[op][net][0];
    atomic_fetch_add_explicit(&t->latency[hl_plane_bucket(ns)], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->ns, ns, memory_order_relaxed);
}

/* Counters only grow, so what is new is the difference to the last value seen. */
static uint64_t counter_since(const atomic_uint_fast64_t *counter, uint64_t *seen)
{
    uint64_t now = atomic_load_explicit(counter, memory_order_relaxed), more = now - *seen;
    *seen = now;
    return more;
}

/* Over TCP, and where UCX emulates a read, the owner takes part, so it is not RDMA. */
static struct hl_route_query query_of(enum tally_op op, int net, const char *transport)
{
    return (struct hl_route_query){
        .op = op == TALLY_READ ? HL_API_OPERATION_READ : HL_API_OPERATION_WRITE,
        .source = op == TALLY_READ ? HL_API_TIER_L3 : HL_API_TIER_L2,
        .target = op == TALLY_READ ? HL_API_TIER_L2 : HL_API_TIER_L3,
        .link = !net                             ? HL_LINK_HERE
                : strcmp(transport, "rdma") == 0 ? HL_LINK_RDMA
                                                 : HL_LINK_TCP,
        .direct = HL_DIRECT_GOOD,
    };
}

static struct hl_api_transfer_report transfer_report(const struct hl_route_query *query,
                                                     const struct hl_transfer *t,
                                                     const struct seen *more,
                                                     struct hl_arena *arena)
{
    struct hl_route route = hl_route_choose(query);
    struct hl_api_uint64_list latency = {0};
    if (more->ns > 0)
        latency.items = hl_arena_array(arena, HL_PLANE_BUCKETS, sizeof(*latency.items));
    if (latency.items != NULL)
        latency.count = HL_PLANE_BUCKETS;
    for (size_t i = 0; i < latency.count; i++)
        latency.items[i] = more->latency[i];
    return (struct hl_api_transfer_report){.plane = (enum hl_api_plane)t->plane,
                                           .operation = query->op,
                                           .path = route.path,
                                           .reason = route.reason,
                                           .failed = t->status != HL_OK,
                                           .sent = t->sent,
                                           .ops = more->ops,
                                           .bytes = more->bytes,
                                           .latency = latency,
                                           .latency_ns = more->ns};
}

/* Adds one tally to the table of planes always, and to the report if there is memory for one. */
static void tally_take(helios_client *c, enum tally_op op, bool net, bool failed, struct seen *seen,
                       struct hl_arena *arena, struct hl_api_transfer_report_list *out)
{
    struct tally *t = &c->counters.tally[op][net][failed];
    struct seen more = {.ops = counter_since(&t->ops, &seen->ops)};
    if (more.ops == 0)
        return;
    more.bytes = counter_since(&t->bytes, &seen->bytes);
    more.ns = counter_since(&t->ns, &seen->ns);
    for (int i = 0; i < HL_PLANE_BUCKETS; i++)
        more.latency[i] = counter_since(&t->latency[i], &seen->latency[i]);
    struct hl_route_query query = query_of(op, net, net_path(c->attach.net));
    struct hl_transfer transfer = hl_route_transfer(&query);
    transfer.sent = op == TALLY_WRITE;
    transfer.bytes = more.bytes;
    transfer.ns = more.ns;
    transfer.status = failed ? HL_EIO : HL_OK;
    hl_plane_add(&transfer, more.ops, more.latency);
    if (out->items != NULL)
        out->items[out->count++] = transfer_report(&query, &transfer, &more, arena);
}

struct hl_api_transfer_report_list planes_take(helios_client *c, struct planes_told *told,
                                               struct hl_arena *arena)
{
    struct hl_api_transfer_report_list out = {
        .items = hl_arena_array(arena, TALLY_OPS * 2 * 2, sizeof(*out.items))};
    for (int op = 0; op < TALLY_OPS; op++)
        for (int net = 0; net < 2; net++)
            for (int failed = 0; failed < 2; failed++)
                tally_take(c, (enum tally_op)op, net, failed, &told->seen[op][net][failed], arena,
                           &out);
    return out;
}

struct hl_api_fault_report_list planes_take_faults(struct hl_arena *arena)
{
    struct hl_fault faults[FAULTS_TOLD];
    struct hl_api_fault_report_list out = {
        .items = hl_arena_array(arena, FAULTS_TOLD, sizeof(*out.items))};
    if (out.items != NULL)
        out.count = hl_fault_take(faults, HL_ARRAY_LEN(faults));
    for (size_t i = 0; i < out.count; i++)
        out.items[i] =
            (struct hl_api_fault_report){.cause = hl_arena_strdup(arena, faults[i].cause),
                                         .path = hl_arena_strdup(arena, faults[i].path),
                                         .count = faults[i].count};
    return out;
}
