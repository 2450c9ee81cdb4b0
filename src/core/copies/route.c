/* One table, read from the top: the first row that matches a query is its answer. Columns are sets,
 * so that a row reads like a sentence of the specification. For device memory the direction of the
 * bytes decides, not the side that asks: the NIC can always read directly out of a device, but only
 * a ConnectX-5 or newer writes directly into one. A recent failure of the direct path overrides
 * both. */
#include "core/copies/route.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

/* clang-format off */
enum { R = 1 << HL_API_OPERATION_READ, W = 1 << HL_API_OPERATION_WRITE,
       M = 1 << HL_API_OPERATION_MIGRATE, RW = R | W, WM = W | M, ALL = R | W | M };
enum { L1 = 1 << HL_API_TIER_L1, L2 = 1 << HL_API_TIER_L2,
       L3 = 1 << HL_API_TIER_L3, L4 = 1 << HL_API_TIER_L4,
       NODE = L1 | L2, HOST = L2 | L3, MEM = L1 | L2 | L3, ANY = L1 | L2 | L3 | L4 };
enum { HERE = 1 << HL_LINK_HERE, RDMA = 1 << HL_LINK_RDMA, TCP = 1 << HL_LINK_TCP,
       CUT = 1 << HL_LINK_NONE, AWAY = RDMA | TCP, ANYWHERE = HERE | AWAY | CUT };
enum { DOWN = 1, UP = 2, NET = DOWN | UP };                  /* migration network */
enum { NEW = 1, OLD = 2, NIC = NEW | OLD };                  /* may the NIC write into a device */
enum { CLOSED = 1, OPEN = 2, DEV = CLOSED | OPEN };          /* may the device be registered */
enum { GOOD = 1 << HL_DIRECT_GOOD, BAD = 1 << HL_DIRECT_FAILED, AGAIN = 1 << HL_DIRECT_RETRY,
       DIR = GOOD | BAD | AGAIN };
#define REST NIC, DEV, DIR /* columns that do not matter */
/* Where a step ends: at the target or in a tier of one side. A step towards the archive ends in the
 * pool beside it. */
enum end { STAYS, ARRIVES, IN_POOL, SOURCE_HOST, TARGET_HOST };

static const struct row {
    uint8_t op, source, target, link, net, nic, device, direct;
    uint8_t path, end, reason;
} table[] = {
#define TO(path, end, reason) HL_API_ROUTE_PATH_##path, end, HL_API_ROUTE_REASON_##reason
    /* the archive */
    {R,   ANY,  L4,    ANYWHERE,  NET,  REST, TO(NONE, STAYS, READ_TO_ARCHIVE)},
    {WM,  L3,   L4,    ANYWHERE,  NET,  REST, TO(ARCHIVE_STORE, ARRIVES, ARCHIVE_IN)},
    {ALL, L4,   L3,    ANYWHERE,  NET,  REST, TO(ARCHIVE_LOAD, IN_POOL, ARCHIVE_OUT)},
    /* no backbone: nodes still have the migration network */
    {WM,  L1,   NODE,  CUT,       UP,   REST, TO(LOCAL_COPY, SOURCE_HOST, BACKBONE_DOWN)},
    {WM,  L2,   NODE,  CUT,       UP,   REST, TO(ZMQ, TARGET_HOST, MIGRATION_NET)},
    {ALL, ANY,  ANY,   CUT,       NET,  REST, TO(NONE, STAYS, UNREACHABLE)},
    {ALL, L4,   ANY,   HERE|AWAY, NET,  REST, TO(ARCHIVE_LOAD, IN_POOL, ARCHIVE_OUT)},
    /* inside a host */
    {R,   HOST, HOST,  HERE,      NET,  REST, TO(MAPPED, ARRIVES, SHARED_MEMORY)},
    {ALL, MEM,  ANY,   HERE,      NET,  REST, TO(LOCAL_COPY, ARRIVES, SAME_HOST)},
    /* between hosts: migrations and writes between nodes use the migration network */
    {M,   L1,   ANY,   AWAY,      NET,  REST, TO(LOCAL_COPY, SOURCE_HOST, HOST_FIRST)},
    {M,   L2,   NODE,  AWAY,      UP,   REST, TO(ZMQ, TARGET_HOST, MIGRATION_NET)},
    {W,   L2,   L2,    AWAY,      UP,   REST, TO(ZMQ, ARRIVES, MIGRATION_NET)},
    {M,   L2,   NODE,  AWAY,      DOWN, REST, TO(UCX_TAGGED, TARGET_HOST, MIGRATION_NET_DOWN)},
    {W,   L2,   L2,    AWAY,      DOWN, REST, TO(UCX_TAGGED, ARRIVES, MIGRATION_NET_DOWN)},
    /* between hosts: writes to and from the pool */
    {M,   L3,   NODE,  AWAY,      NET,  REST, TO(UCX_TAGGED, TARGET_HOST, BACKBONE_WRITE)},
    {WM,  HOST, L3|L4, AWAY,      NET,  REST, TO(UCX_TAGGED, ARRIVES, BACKBONE_WRITE)},
    {W,   L3,   L2,    AWAY,      NET,  REST, TO(UCX_TAGGED, ARRIVES, BACKBONE_WRITE)},
    /* between hosts: reads of host memory */
    {R,   HOST, HOST,  TCP,       NET,  REST, TO(TCP, ARRIVES, NO_RDMA)},
    {R,   HOST, HOST,  RDMA,      NET,  NIC, DEV, BAD, TO(TCP, ARRIVES, DIRECT_FAILED)},
    {R,   HOST, HOST,  RDMA,      NET,  NIC, DEV, AGAIN, TO(DIRECT, ARRIVES, DIRECT_RETRY)},
    {R,   HOST, HOST,  RDMA,      NET,  NIC, DEV, GOOD, TO(DIRECT, ARRIVES, ONE_SIDED)},
    /* between hosts: device memory; only reads and writes remain, and one side is L1 */
    {RW,  MEM,  L1,    AWAY,      NET,  OLD, DEV, DIR, TO(PLANK, ARRIVES, NIC_CLASS)},
    {RW,  MEM,  ANY,   TCP,       NET,  REST, TO(PLANK, ARRIVES, NO_RDMA)},
    {RW,  MEM,  ANY,   RDMA,      NET,  NIC, CLOSED, DIR, TO(PLANK, ARRIVES, DEVICE)},
    {RW,  MEM,  ANY,   RDMA,      NET,  NIC, OPEN, BAD, TO(PLANK, ARRIVES, DIRECT_FAILED)},
    {RW,  MEM,  ANY,   RDMA,      NET,  NIC, OPEN, AGAIN, TO(DIRECT, ARRIVES, DIRECT_RETRY)},
    {RW,  MEM,  ANY,   RDMA,      NET,  NIC, OPEN, GOOD, TO(DIRECT, ARRIVES, ONE_SIDED)},
#undef TO
#undef REST
};

/* clang-format on */

static bool row_fits(const struct row *r, const struct hl_route_query *q)
{
    return (r->op >> q->op & 1) && (r->source >> q->source & 1) && (r->target >> q->target & 1) &&
           (r->link >> q->link & 1) && (r->net & (q->migration_net ? UP : DOWN)) &&
           (r->nic & (hl_nic_plank_forced(q->nic) ? OLD : NEW)) &&
           (r->device & (q->device_direct ? OPEN : CLOSED)) && (r->direct >> q->direct & 1);
}

struct hl_route hl_route_choose(const struct hl_route_query *q)
{
    size_t i = 0;
    while (i < HL_ARRAY_LEN(table) && !row_fits(&table[i], q))
        i++;
    assert(i < HL_ARRAY_LEN(table)); /* can't fail: the tests try all inputs */
    const struct row *r = &table[i];
    struct hl_route out = {(enum hl_api_route_path)r->path, (enum hl_api_route_reason)r->reason,
                           q->target, true};
    switch ((enum end)r->end) {
    case STAYS:
        out.lands = q->source;
        out.at_target = false;
        break;
    case ARRIVES:
        if (q->target == HL_API_TIER_L4 && q->source != HL_API_TIER_L3)
            out.lands = HL_API_TIER_L3;
        break;
    case IN_POOL:
        out.lands = HL_API_TIER_L3;
        out.at_target = q->target == HL_API_TIER_L3;
        break;
    case SOURCE_HOST:
        out.lands = HL_API_TIER_L2;
        out.at_target = false;
        break;
    case TARGET_HOST:
        out.lands = HL_API_TIER_L2;
        break;
    }
    return out;
}

bool hl_route_next(const struct hl_route_query *q, struct hl_route step,
                   struct hl_route_query *next)
{
    if (step.path == HL_API_ROUTE_PATH_NONE || (step.at_target && step.lands == q->target))
        return false;
    *next = *q;
    next->source = step.lands;
    if (step.at_target)
        next->link = HL_LINK_HERE;
    return true;
}

const char *hl_route_reason_text(enum hl_api_route_reason reason)
{
    static const char *const texts[HL_API_ROUTE_REASON_COUNT] = {
        [HL_API_ROUTE_REASON_UNSAID] = "",
        [HL_API_ROUTE_REASON_READ_TO_ARCHIVE] =
            "a read ends in memory; the archive is filled by a write or a migration",
        [HL_API_ROUTE_REASON_UNREACHABLE] = "the peer can't be reached on the backbone",
        [HL_API_ROUTE_REASON_ARCHIVE_IN] = "the archive is filled from the pool beside it",
        [HL_API_ROUTE_REASON_ARCHIVE_OUT] =
            "an archived shard is loaded into the pool and served there",
        [HL_API_ROUTE_REASON_SAME_HOST] = "both sides are in one host",
        [HL_API_ROUTE_REASON_SHARED_MEMORY] = "the memory is on this host and mapped",
        [HL_API_ROUTE_REASON_HOST_FIRST] =
            "a migration goes from host to host: device data is copied to host memory first",
        [HL_API_ROUTE_REASON_MIGRATION_NET] =
            "data between nodes is sent over the migration network",
        [HL_API_ROUTE_REASON_MIGRATION_NET_DOWN] =
            "the migration network is down: sent over the backbone",
        [HL_API_ROUTE_REASON_BACKBONE_DOWN] =
            "the backbone is down: device data is copied to host memory for the migration network",
        [HL_API_ROUTE_REASON_BACKBONE_WRITE] =
            "writes to and from the pool are tagged messages on the backbone",
        [HL_API_ROUTE_REASON_ONE_SIDED] = "RDMA reaches the memory",
        [HL_API_ROUTE_REASON_DIRECT_RETRY] = "direct failed before and is tried again",
        [HL_API_ROUTE_REASON_DIRECT_FAILED] = "direct failed a short while ago",
        [HL_API_ROUTE_REASON_NO_RDMA] = "the backbone has no RDMA to this peer",
        [HL_API_ROUTE_REASON_NIC_CLASS] =
            "the NIC is a ConnectX-4 or older: no RDMA into device memory",
        [HL_API_ROUTE_REASON_DEVICE] = "the device's memory can't be registered with the NIC",
    };
    return texts[reason];
}

struct hl_transfer hl_route_transfer(const struct hl_route_query *q)
{
    struct hl_route route = hl_route_choose(q);
    return (struct hl_transfer){.plane = hl_route_plane_of(route.path),
                                .op = hl_api_operation_name(q->op),
                                .path = hl_api_route_path_name(route.path),
                                .reason = hl_api_route_reason_name(route.reason)};
}

/* base is below the schema and has its own names of the planes. */
_Static_assert((int)HL_PLANE_INSIDE == (int)HL_API_PLANE_INSIDE &&
                   (int)HL_PLANE_BACKBONE == (int)HL_API_PLANE_BACKBONE &&
                   (int)HL_PLANE_MIGRATION == (int)HL_API_PLANE_MIGRATION &&
                   (int)HL_PLANE_MANAGEMENT == (int)HL_API_PLANE_MANAGEMENT &&
                   (int)HL_PLANE_COUNT == HL_API_PLANE_COUNT,
               "planes have the schema's numbers");

enum hl_plane hl_route_plane_of(enum hl_api_route_path path)
{
    switch (path) {
    case HL_API_ROUTE_PATH_DIRECT:
    case HL_API_ROUTE_PATH_PLANK:
    case HL_API_ROUTE_PATH_TCP:
    case HL_API_ROUTE_PATH_UCX_TAGGED:
        return HL_PLANE_BACKBONE;
    case HL_API_ROUTE_PATH_ZMQ:
        return HL_PLANE_MIGRATION;
    default:
        return HL_PLANE_INSIDE;
    }
}

void hl_route_health_failed(struct hl_route_health *h, uint64_t now_ms, uint64_t first_ms,
                            uint64_t max_ms)
{
    uint64_t backoff = h->backoff_ms > max_ms / 2 ? max_ms : h->backoff_ms * 2;
    if (backoff < first_ms)
        backoff = first_ms;
    h->backoff_ms = backoff == 0 ? 1 : backoff;
    h->retry_at_ms = now_ms + h->backoff_ms;
}

void hl_route_health_worked(struct hl_route_health *h)
{
    *h = (struct hl_route_health){0};
}

enum hl_route_direct hl_route_health_at(const struct hl_route_health *h, uint64_t now_ms)
{
    if (h->backoff_ms == 0)
        return HL_DIRECT_GOOD;
    return now_ms >= h->retry_at_ms ? HL_DIRECT_RETRY : HL_DIRECT_FAILED;
}
