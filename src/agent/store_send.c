/* Sends the copy in this node's L2 elsewhere: to the L2 of another node over the migration network,
 * to the pool over the backbone, or to a store on this host through its socket. The shard keeps its
 * id.
 *
 *     store_send_run    a copy thread; it waits until the shard is there
 *       pin --> choose_route --> attempt_send --> unpin
 *                                  ZMQ          send_migration: chunks, resumed by the order's id
 *                                  UCX_TAGGED   send_backbone: one put
 *                                  LOCAL_COPY   send_local: through memory that both processes map
 *                                  the migration network is down: send_by_networks
 *
 *     store_send_start  small shards over the backbone; no thread waits
 *       pin --> put queue --> on_put, in the queue's thread --> unpin, done()
 *                               the connection was lost: once more
 *
 * The pin keeps the bytes in place, so they are sent directly from the pool's memory. A `sending`
 * belongs to one thread. With store_send_start it belongs to the caller until the put is handed
 * over, and then to the queue's thread: from then on the caller must not touch it, because it may
 * be gone.
 *
 *     struct started   made: pin, `users` of the queue --put_small--> the queue's thread has it
 *                         '--could not be handed over--> freed, store_send_run tries
 *                      on_put --lost for the first time--> put_small again --> the queue's
 *                         '--stored, or failed--> freed: pin, `users`; then done()
 *
 * Each of them is freed exactly once, by the thread that has it. `done` comes last and gets what it
 * needs by value, because it hands the job, to which the request belongs, back to the loop. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store_private.h"
#include "base/copy.h"
#include "base/log.h"
#include "base/plane.h"
#include "core/copies/copy_attempt.h"
#include "net/dispatch/put_queue.h"
#include "net/zmq/migrate.h"

struct sending {
    struct store *s;
    const struct store_request *r;
    struct hl_tier_ref ref;
    const uint8_t *data;
    uint32_t *crcs;
    struct hl_route route;
    struct hl_pace pace;
    char transport[16];
};

/* Whatever was ordered, a sender doesn't read. */
static enum hl_api_operation op_of(const struct sending *x)
{
    return x->r->op == HL_API_OPERATION_READ ? HL_API_OPERATION_WRITE : x->r->op;
}

static struct hl_pace *pace_of(struct sending *x)
{
    return x->pace.bytes_per_s > 0 ? &x->pace : NULL;
}

/* The receiver identifies the migration by its id, which is the same in every attempt of the order:
 * so what an earlier attempt has delivered is not sent again. */
static hl_status send_migration(struct sending *x)
{
    struct hl_migrate_line *line;
    int ms;
    HL_TRY(store_left(x->s, x->r, &ms));
    HL_TRY(store_line_acquire(x->s, x->r->target_address, &line));
    snprintf(x->transport, sizeof(x->transport), "zmq");
    const struct hl_migrate_tuning *t = &x->s->opts.migrate;
    struct hl_migrate_report report = {0};
    hl_status st = hl_migrate_send(&(struct hl_migrate_send_opts){.line = line,
                                                                  .id = x->r->migration,
                                                                  .object = x->ref.id,
                                                                  .chunk_size = t->chunk_size,
                                                                  .chunk_crcs = x->crcs,
                                                                  .cancel = x->r->stop,
                                                                  .dead_ms = t->dead_ms,
                                                                  .zstd = x->s->zstd,
                                                                  .pace = pace_of(x)},
                                   x->data, x->ref.size, x->ref.crc32, ms, &report);
    store_line_release(x->s, x->r->target_address, line, st);
    if (report.chunks_had > 0) {
        hl_fault_count("migration-resumed", hl_api_route_path_name(HL_API_ROUTE_PATH_ZMQ));
        hl_info("migration was continued id=%s object=%s to=%s had=%" PRIu32 " of=%" PRIu32
                " sent=%" PRIu64 " status=%s",
                hl_id_format(x->r->migration).s, hl_id_format(x->ref.id).s, x->r->target_address,
                report.chunks_had, report.chunks, report.chunks_sent, hl_status_name(st));
    }
    return st;
}

/* The data port: for the pool it is the target's address; for another node it comes along with that
 * of the migration network. */
static const char *backbone_of(const struct store_request *r)
{
    return r->tier == HL_API_TIER_L3 ? r->target_address : r->target_data;
}

static hl_status send_backbone(struct sending *x)
{
    const char *address = backbone_of(x->r);
    struct hl_conn_lease lease;
    int ms;
    if (address[0] == '\0')
        return hl_fail(HL_EUNAVAIL, "the target has no data address");
    for (int tried = 0;; tried++) {
        HL_TRY(store_left(x->s, x->r, &ms));
        HL_TRY((tried > 0 ? store_net_connect : store_net_acquire)(x->s, address, HL_NET_AUTO, ms,
                                                                   &lease));
        snprintf(x->transport, sizeof(x->transport), "%s", hl_net_path_name(lease.client));
        hl_net_stop_with(lease.client, x->r->stop);
        hl_net_pace_with(lease.client, pace_of(x));
        hl_status st =
            hl_net_put_as(lease.client, x->ref.id, x->data, x->ref.size, x->ref.crc32, ms);
        hl_net_stop_with(lease.client, NULL);
        hl_net_pace_with(lease.client, NULL);
        store_net_release(x->s, address, HL_NET_AUTO, &lease, st);
        if (st != HL_EUNAVAIL || tried > 0)
            return st; /* a kept connection may belong to a peer that was restarted */
    }
}

static hl_status fill_staging(struct sending *x, void *to)
{
    uint64_t piece = x->pace.bytes_per_s > 0 ? HL_CHUNK : x->ref.size;
    for (uint64_t at = 0; at < x->ref.size; at += piece) {
        uint64_t n = x->ref.size - at < piece ? x->ref.size - at : piece;
        hl_copy((uint8_t *)to + at, x->data + at, n, x->ref.size);
        HL_TRY(store_pace(x->s, x->r, &x->pace, n));
    }
    return HL_OK;
}

/* The daemon there copies from the staging memory and computes the CRC again. A difference is
 * damage in transit, and the copy is dropped again. */
static hl_status send_local(struct sending *x)
{
    struct hl_l3_client *client;
    struct hl_l3_staging staging = {.fd = -1};
    struct hl_pool_ref ref;
    int ms;
    HL_TRY(store_left(x->s, x->r, &ms));
    HL_TRY(store_local_acquire(x->s, x->r->target_socket, ms, &client));
    snprintf(x->transport, sizeof(x->transport), "shm");
    hl_status st = hl_l3_staging_open(x->ref.size, &staging);
    if (st == HL_OK) {
        st = fill_staging(x, staging.ptr);
        if (st == HL_OK)
            st = store_left(x->s, x->r, &ms);
    }
    if (st == HL_OK) {
        st = hl_l3_put_as(client, x->ref.id, &staging, x->ref.size, ms, &ref);
    }
    if (st == HL_OK && ref.crc32 != x->ref.crc32) {
        st = hl_fail(HL_ECORRUPT, "it arrived with CRC %08x, but the index says %08x", ref.crc32,
                     x->ref.crc32);
        if (hl_l3_drop(client, ref.id, ms) != HL_OK)
            hl_warn("a damaged copy stays id=%s", hl_id_format(ref.id).s);
    }
    hl_l3_staging_close(&staging);
    store_local_release(x->s, x->r->target_socket, client, st);
    return st;
}

static bool has_migration_net(const struct store_request *r)
{
    return r->tier == HL_API_TIER_L2 && r->target_address[0] != '\0';
}

/* The same host id means that the socket's path leads to the target from here, too. */
static struct hl_route choose_route(const struct sending *x, bool migration_net)
{
    const struct store_request *r = x->r;
    bool here = r->target_host[0] != '\0' && strcmp(r->target_host, x->s->host_id) == 0 &&
                r->target_socket[0] != '\0';
    return hl_route_choose(&(struct hl_route_query){
        .op = op_of(x),
        .source = HL_API_TIER_L2,
        .target = r->tier,
        .link = here ? HL_LINK_HERE : HL_LINK_TCP,
        .migration_net = migration_net,
    });
}

static void count_transfer(const struct sending *x, uint64_t begun_ns, hl_status st)
{
    hl_plane_count(&(struct hl_transfer){.plane = hl_route_plane_of(x->route.path),
                                         .op = hl_api_operation_name(op_of(x)),
                                         .path = hl_api_route_path_name(x->route.path),
                                         .reason = hl_api_route_reason_name(x->route.reason),
                                         .sent = 1,
                                         .bytes = st == HL_OK ? x->ref.size : 0,
                                         .ns = hl_now_ns() - begun_ns,
                                         .status = st});
}

/* One attempt by the chosen route. */
static hl_status attempt_send(struct sending *x)
{
    uint64_t begun = hl_now_ns();
    hl_status st = HL_EUNSUPPORTED;
    switch (x->route.path) {
    case HL_API_ROUTE_PATH_ZMQ:
        st = send_migration(x);
        break;
    case HL_API_ROUTE_PATH_UCX_TAGGED:
        st = send_backbone(x);
        break;
    case HL_API_ROUTE_PATH_LOCAL_COPY:
        st = send_local(x);
        break;
    default:
        return hl_fail(st, "%s", hl_route_reason_text(x->route.reason));
    }
    if (x->route.path != HL_API_ROUTE_PATH_ZMQ) /* net/migrate counts its own bytes */
        count_transfer(x, begun, st);
    return st;
}

/* By the migration network; when that fails the backbone takes over, as hl_copy_send_after says.
 *
 *     migration failed --> backbone --HL_EEXIST--> pause --> migration --link failed--> (again)
 *                             '--stored, or failed otherwise   '--stored, or failed otherwise
 *
 * The receiver gives up after keep_ms of silence, which began up to dead_ms before it was noticed
 * here. `end` is later than that, so the last round finds it given up. Nothing signals that the
 * other host's network has come back. */
static hl_status send_by_networks(struct sending *x)
{
    const struct hl_migrate_tuning *t = &x->s->opts.migrate;
    bool has_backbone = x->r->target_data[0] != '\0';
    uint64_t end = 0; /* runs from the first failure on */
    for (;;) {
        hl_status st = attempt_send(x);
        enum hl_copy_send next = hl_copy_send_after(x->route.path, st, has_backbone);
        if (next == HL_COPY_SEND_ENDS)
            return st;
        if (end == 0)
            end = hl_now_ns() + (uint64_t)(t->keep_ms + 2 * t->dead_ms) * HL_NS_PER_MS;
        if (x->route.path == HL_API_ROUTE_PATH_ZMQ) {
            hl_warn("migration to %s failed%s error=\"%s\"", x->r->target_address,
                    has_backbone ? ", trying the backbone" : "", hl_error_text());
            hl_fault_count("migration-net-down", hl_api_route_path_name(HL_API_ROUTE_PATH_ZMQ));
        }
        if (next == HL_COPY_SEND_LATER && (hl_now_ns() >= end || !store_pause(x->s, x->r)))
            return st;
        x->route = choose_route(x, next == HL_COPY_SEND_LATER);
    }
}

static hl_status send_pinned(struct sending *x)
{
    struct store *s = x->s;
    x->data = s->base + x->ref.offset;
    x->crcs = calloc(hl_chunk_count(x->ref.size) + 1, sizeof(*x->crcs));
    if (x->crcs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the checksums of shard %s",
                       hl_id_format(x->ref.id).s);
    HL_TRY(hl_tier_chunk_crcs(s->tiers[0].t, &x->ref, x->crcs));
    x->route = choose_route(x, has_migration_net(x->r));
    return x->route.path == HL_API_ROUTE_PATH_ZMQ ? send_by_networks(x) : attempt_send(x);
}

static hl_status send_failed(const struct sending *x, hl_status st)
{
    return hl_fail_prefix(
        st, "shard %s could not be sent from L2 of %s to %s at %s: ", hl_id_format(x->r->id).s,
        x->s->node, hl_api_tier_name(x->r->tier), x->r->target_address);
}

static void fill_result(const struct sending *x, uint64_t begun_ns, struct store_result *out)
{
    *out = (struct store_result){.tier = x->r->tier,
                                 .numa = -1,
                                 .size = x->ref.size,
                                 .crc32 = x->ref.crc32,
                                 .path = x->route.path,
                                 .reason = x->route.reason,
                                 .seconds = (double)(hl_now_ns() - begun_ns) / 1e9,
                                 .created_ms = hl_wall_ms()};
    memcpy(out->transport, x->transport, sizeof(out->transport));
    hl_info("copy sent id=%s to=%s at=%s bytes=%" PRIu64
            " path=%s reason=%s transport=%s seconds=%.3f",
            hl_id_format(x->r->id).s, hl_api_tier_name(out->tier), x->r->target_address, out->size,
            hl_api_route_path_name(out->path), hl_api_route_reason_name(out->reason),
            out->transport, out->seconds);
}

hl_status store_send_run(struct store *s, const struct store_request *r, struct store_result *out)
{
    struct sending x = {.s = s, .r = r, .pace = {.bytes_per_s = r->bytes_per_s}};
    uint64_t begun = hl_now_ns();
    if (r->tier != HL_API_TIER_L2 && r->tier != HL_API_TIER_L3)
        return hl_fail(HL_EINVAL, "a copy is sent to an L2 or to L3, not to %s",
                       hl_api_tier_name(r->tier));
    if (s->pool == NULL)
        return hl_fail(HL_EUNSUPPORTED, "node %s has no L2 to send from", s->node);
    HL_TRY(hl_tier_pin(s->tiers[0].t, r->id, &x.ref));
    hl_status st = send_pinned(&x);
    free(x.crcs);
    hl_tier_unpin(s->tiers[0].t, &x.ref);
    if (st != HL_OK)
        return send_failed(&x, st);
    fill_result(&x, begun, out);
    if (store_pace(s, r, &x.pace, 0) != HL_OK) /* what it took is paid for before the next */
        hl_error_clear();
    return HL_OK;
}

/* ---- small sends ----------------------------------------------------------------------------- */

/* A send that no thread waits for. */
struct started {
    struct sending x;
    struct store_puts *puts;
    struct store_result *out;
    uint64_t begun_ns;
    int again; /* the connection may have belonged to a peer that was restarted */
    void (*done)(void *arg, hl_status st);
    void *arg;
};

static void on_put(void *arg, hl_status st, const char *words);

static hl_status put_small(struct started *t)
{
    const struct sending *x = &t->x;
    int ms;
    HL_TRY(store_left(x->s, x->r, &ms));
    return hl_put_queue_start(t->puts->queue, &(struct hl_put_queue_order){.data = x->data,
                                                                           .len = x->ref.size,
                                                                           .crc = x->ref.crc32,
                                                                           .id = x->ref.id,
                                                                           .timeout_ms = ms,
                                                                           .stop = x->r->stop,
                                                                           .done = on_put,
                                                                           .arg = t});
}

static void started_free(struct started *t)
{
    if (t->puts != NULL)
        store_puts_release(t->x.s, t->puts);
    hl_tier_unpin(t->x.s->tiers[0].t, &t->x.ref);
    free(t);
}

/* Runs on the queue's thread. The pin is released before `done`, after which the job, and with it
 * the request, may be gone. */
static void on_put(void *arg, hl_status st, const char *words)
{
    struct started *t = arg;
    struct hl_put_queue_stats stats;
    if (st != HL_OK)
        st = hl_fail(st, "%s", words);
    if (st == HL_EUNAVAIL && !t->again++ && put_small(t) == HL_OK)
        return;
    hl_put_queue_stats(t->puts->queue, &stats);
    snprintf(t->x.transport, sizeof(t->x.transport), "%s", stats.path);
    count_transfer(&t->x, t->begun_ns, st);
    if (st == HL_OK)
        fill_result(&t->x, t->begun_ns, t->out);
    else
        st = send_failed(&t->x, st);
    void (*done)(void *, hl_status) = t->done;
    void *to = t->arg;
    started_free(t);
    done(to, st);
}

static bool is_small(const struct store *s, uint64_t size)
{
    size_t most = s->opts.data->batch_bytes;
    return size < most;
}

/* Returns false whenever in doubt: store_send_run then meets the same failure and reports it. */
bool store_send_start(struct store *s, const struct store_request *r, struct store_result *out,
                      void (*done)(void *arg, hl_status st), void *arg)
{
    const char *address = backbone_of(r);
    struct sending x = {.s = s, .r = r};
    if (r->bytes_per_s > 0 || s->pool == NULL ||
        (r->tier != HL_API_TIER_L2 && r->tier != HL_API_TIER_L3) || address[0] == '\0')
        return false;
    x.route = choose_route(&x, has_migration_net(r));
    if (x.route.path != HL_API_ROUTE_PATH_UCX_TAGGED ||
        hl_tier_pin(s->tiers[0].t, r->id, &x.ref) != HL_OK)
        return false;
    x.data = s->base + x.ref.offset;
    struct started *t = calloc(1, sizeof(*t));
    if (t == NULL || !is_small(s, x.ref.size)) {
        free(t);
        hl_tier_unpin(s->tiers[0].t, &x.ref);
        return false;
    }
    *t = (struct started){.x = x, .out = out, .begun_ns = hl_now_ns(), .done = done, .arg = arg};
    if (store_puts_acquire(s, address, &t->puts) == HL_OK && put_small(t) == HL_OK)
        return true;
    started_free(t);
    return false;
}
