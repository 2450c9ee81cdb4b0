#include "l3d/l3d.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "base/log.h"
#include "base/plane.h"
#include "conf/options.h"
#include "core/json.h"
#include "core/tier_metrics.h"
#include "l3d/l3d_private.h"
#include "l3d/l4.h"
#include "mem/l3_server.h"
#include "mem/tier_json.h"
#include "net/net.h"
#include "os/loop.h"
#include "os/process.h"

#define METRICS_MAX ((size_t)4 << 20)

typedef void (*method_fn)(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params);

static void reject(struct hl_rpc_call *call, hl_status st)
{
    hl_rpc_reject(call, st, NULL);
}

static json_t *tiers_json(struct hl_l3d *d)
{
    json_t *tiers = json_array(), *l4 = l4_tier(d);
    json_array_append_new(tiers, hl_tier_json(d->tier));
    if (l4 != NULL)
        json_array_append_new(tiers, l4);
    return tiers;
}

static void method_pool_info(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params)
{
    (void)params;
    struct hl_pool_info info;
    struct hl_pool_claim claim;
    char incarnation[24];
    hl_pool_info(d->pool, &info);
    hl_pool_claimed(d->pool, &claim);
    snprintf(incarnation, sizeof(incarnation), "%016" PRIx64, info.incarnation);
    hl_rpc_reply(
        call,
        json_pack("{s:{s:s s:s s:s s:s s:I s:I s:I s:I s:s s:s s:I s:s s:o s:s s:I s:I}}", "pool",
                  "uuid", hl_id_format(info.uuid).s, "incarnation", incarnation, "hostId",
                  d->host_id, "socketPath", d->socket_path, "capacityBytes",
                  (json_int_t)info.capacity, "usedBytes", (json_int_t)info.used, "quarantinedBytes",
                  (json_int_t)info.quarantined, "shards",
                  (json_int_t)(info.shards - info.manifests), "dataAddress", hl_l3d_data_address(d),
                  "poolPath", hl_pool_path(d->pool), "freeBytes", (json_int_t)info.largest,
                  "archiveMode", l4_mode(d), "tiers", tiers_json(d), "cluster",
                  hl_id_is_none(claim.cluster) ? "" : hl_id_format(claim.cluster).s, "revision",
                  (json_int_t)claim.revision, "manifests", (json_int_t)info.manifests));
}

static void put_gauges(const struct hl_net_server *net, struct hl_buf *out)
{
    struct hl_net_server_stats stats;
    hl_net_server_stats(net, &stats);
    hl_metric_family(out, "helios_data_puts_total", "counter", "Writes stored from the network.");
    (void)hl_buf_printf(out, "helios_data_puts_total %" PRIu64 "\n", stats.puts);
    hl_metric_family(out, "helios_data_batches_total", "counter",
                     "Messages that brought small ones of them.");
    (void)hl_buf_printf(out, "helios_data_batches_total %" PRIu64 "\n", stats.batches);
}

hl_status hl_l3d_gauges(struct hl_l3d *d, struct hl_buf *out)
{
    if (d->net != NULL)
        put_gauges(d->net, out);
    l4_gauges(d, out);
    json_t *tiers = tiers_json(d);
    hl_status st = hl_tier_gauges(tiers, out);
    json_decref(tiers);
    return st;
}

static void method_metrics(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params)
{
    struct hl_buf text = HL_BUF(METRICS_MAX);
    (void)params;
    hl_status st = hl_plane_metrics(&text);
    if (st == HL_OK)
        st = hl_l3d_gauges(d, &text);
    if (st == HL_OK)
        hl_rpc_reply(call, json_pack("{s:s}", "text", text.data));
    else
        reject(call, st);
    hl_buf_fini(&text);
}

static void method_options(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params)
{
    (void)d;
    (void)params;
    hl_rpc_reply(call, json_pack("{s:o}", "options", hl_conf_published()));
}

static void method_import_model(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params)
{
    hl_status st = claim_allows_import(d, params);
    if (st == HL_OK)
        st = import_start(d, json_object_get(params, "request"));
    if (st != HL_OK)
        reject(call, st);
    else
        hl_rpc_reply(call, NULL);
}

static void method_import_progress(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params)
{
    json_t *progress;
    hl_status st = import_progress(d, hl_json_str(params, "importId", ""), &progress);
    if (st != HL_OK)
        reject(call, st);
    else
        hl_rpc_reply(call, json_pack("{s:o}", "progress", progress));
}

static void method_cancel_import(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params)
{
    import_cancel(d, hl_json_str(params, "importId", ""));
    hl_rpc_reply(call, NULL);
}

static void method_inventory(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params)
{
    uint64_t cursor = (uint64_t)hl_json_int(params, "cursor", 0);
    size_t limit = (size_t)hl_json_int(params, "limit", 0);
    if (limit == 0 || limit > INVENTORY_MAX)
        limit = INVENTORY_MAX;
    struct hl_pool_ref *refs = calloc(limit, sizeof(*refs));
    if (refs == NULL) {
        reject(call, hl_fail(HL_ENOMEM, "inventory of %zu shards", limit));
        return;
    }
    size_t n = hl_pool_list(d->pool, &cursor, refs, limit);
    json_t *extents = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(extents, extent_json(&refs[i]));
    free(refs);
    hl_rpc_reply(call, json_pack("{s:o s:I}", "extents", extents, "next", (json_int_t)cursor));
}

static void method_free(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params)
{
    int freed = 0;
    size_t i;
    json_t *text;
    hl_status st = claim_allows(d, params);
    if (st != HL_OK) {
        reject(call, st);
        return;
    }
    json_array_foreach (hl_json_list(params, "ids"), i, text) {
        struct hl_id id;
        freed += hl_id_parse(json_string_value(text), &id) == HL_OK &&
                 hl_pool_free(d->pool, id) == HL_OK;
    }
    hl_rpc_reply(call, json_pack("{s:i}", "freed", freed));
}

/* ---- verify: reads a whole copy, so it runs on a worker ---- */

struct verify {
    uv_work_t work;
    struct hl_l3d *d;
    struct hl_rpc_call *call;
    struct hl_id id;
    int archived; /* the copy in the archive */
    hl_status st;
    char text[HL_ERROR_TEXT_MAX];
    uint32_t *bad;
    size_t bad_count;
};

static void verify_work(uv_work_t *work)
{
    struct verify *v = work->data;
    v->st = v->archived
                ? l4_verify(v->d, v->id)
                : hl_pool_verify(v->d->pool, v->id, &v->d->stopping, &v->bad, &v->bad_count);
    if (v->st != HL_OK)
        snprintf(v->text, sizeof(v->text), "%s", hl_error_text());
}

static void verify_done(uv_work_t *work, int status)
{
    struct verify *v = work->data;
    (void)status;
    v->d->verifying--;
    if (v->st != HL_OK && v->st != HL_ECORRUPT) {
        hl_rpc_reject(v->call, v->st, v->text);
    } else {
        json_t *bad = json_array();
        for (size_t i = 0; i < v->bad_count; i++)
            json_array_append_new(bad, json_integer((json_int_t)v->bad[i]));
        hl_rpc_reply(v->call, json_pack("{s:b s:o}", "ok", v->st == HL_OK, "badChunks", bad));
    }
    free(v->bad);
    free(v);
}

static void method_verify(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params)
{
    struct verify *v = calloc(1, sizeof(*v));
    if (v == NULL) {
        reject(call, hl_fail(HL_ENOMEM, "verification"));
        return;
    }
    const char *tier = hl_json_str(params, "tier", "");
    hl_status st = hl_id_parse(hl_json_str(params, "id", ""), &v->id);
    v->archived = strcmp(tier, "L4") == 0;
    if (st == HL_OK && !v->archived && tier[0] != '\0' && strcmp(tier, "L3") != 0)
        st = hl_fail(HL_EINVAL, "verify: helios-l3d has L3 and L4, not '%.40s'", tier);
    if (st != HL_OK) {
        free(v);
        reject(call, st);
        return;
    }
    v->d = d;
    v->call = call;
    v->work.data = v;
    d->verifying++;
    uv_queue_work(hl_loop_uv(d->loop), &v->work, verify_work, verify_done);
}

static const struct method {
    const char *name;
    method_fn fn;
} methods[] = {
    {"poolInfo", method_pool_info},
    {"importModel", method_import_model},
    {"importProgress", method_import_progress},
    {"cancelImport", method_cancel_import},
    {"locate", method_locate},
    {"inventory", method_inventory},
    {"free", method_free},
    {"verify", method_verify},
    {"archive", method_archive},
    {"evict", method_evict},
    {"dropArchived", method_drop_archived},
    {"listArchived", method_list_archived},
    {"heal", method_heal},
    {"touch", method_touch},
    {"claim", method_claim},
    {"listTrash", method_list_trash},
    {"untrash", method_untrash},
    {"putManifest", method_put_manifest},
    {"describe", method_describe},
    {"metrics", method_metrics},
    {"options", method_options},
    {"look", method_look},
};

static void dispatch(void *arg, struct hl_rpc_call *call, const char *method, const json_t *params)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(methods); i++) {
        if (strcmp(methods[i].name, method) == 0) {
            methods[i].fn(arg, call, params);
            return;
        }
    }
    hl_rpc_reject(call, HL_EUNSUPPORTED,
                  "this L3 daemon does not know the method; is it older than the caller?");
}

static hl_status open_pool(struct hl_l3d *d, const struct hl_pool_options *options,
                           const struct hl_tier_limits *limits, int *made)
{
    struct hl_pool_found found = {0};
    HL_TRY(hl_pool_open(options, &found, &d->pool));
    *made = !found.adopted;
    if (found.adopted)
        hl_info("pool adopted path=%s shards=%" PRIu64 " bytes=%" PRIu64 " unfinished=%" PRIu64
                " freed=%" PRIu64 " corrupt=%" PRIu64,
                options->path, found.kept, found.kept_bytes, found.unfinished, found.freed,
                found.corrupt);
    else
        hl_info("pool made path=%s bytes=%" PRIu64, options->path, options->capacity);
    d->region_count = hl_pool_regions(d->pool, d->regions, HL_POOL_REGIONS_MAX);
    for (size_t i = 0; i < d->region_count; i++)
        hl_info("region numa=%d bytes=%" PRIu64 " bound=%d", d->regions[i].numa_id,
                d->regions[i].bytes, d->regions[i].bound);
    return hl_tier_over_pool(d->pool, HL_TIER_L3, "pool", limits, &d->tier);
}

static void pin_load(void *arg, struct hl_id id, hl_l3_loaded done, void *done_arg)
{
    l4_ask(arg, L4_LOAD, id, done, done_arg);
}

static hl_status put_alloc(void *arg, struct hl_id id, uint64_t size, struct hl_pool_extent *out)
{
    return l4_alloc(arg, &(struct l4_want){.near = -1, .id = id, .size = size}, out);
}

hl_status hl_l3d_start(const struct hl_l3d_opts *opts, struct hl_l3d **out)
{
    struct hl_l3d *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return hl_fail(HL_ENOMEM, "L3 daemon");
    d->loop = opts->loop;
    d->connect_ms = opts->data_connect_ms > 0 ? opts->data_connect_ms : HL_NET_CONNECT_MS;
    d->rpc = opts->rpc;
    d->import_threads =
        opts->import_threads > 0 ? opts->import_threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
    d->socket_path = strdup(opts->socket_path);
    hl_host_id(d->host_id, sizeof(d->host_id));
    d->remove_pool = opts->remove_pool;
    int made = 0;
    hl_status st = d->socket_path == NULL ? hl_fail(HL_ENOMEM, "L3 daemon")
                                          : open_pool(d, &opts->pool, &opts->limits, &made);
    if (st == HL_OK)
        st = l4_start(d, &opts->archive);
    if (st == HL_OK)
        st = hl_l3_server_start(&(struct hl_l3_server_opts){.loop = opts->loop,
                                                            .pool = d->pool,
                                                            .socket_path = d->socket_path,
                                                            .load = pin_load,
                                                            .alloc = put_alloc,
                                                            .arg = d},
                                &d->local);
    if (st == HL_OK && opts->data_listen[0] != '\0')
        st = net_start(d, opts);
    if (st == HL_OK)
        st = hl_rpc_serve(opts->rpc,
                          &(struct hl_rpc_serve_opts){.address = opts->listen,
                                                      .interface = "L3",
                                                      .loop = opts->loop,
                                                      .handler = dispatch,
                                                      .arg = d},
                          &d->server);
    if (st != HL_OK) {
        d->remove_pool = made; /* nothing is left of a start that failed, and nothing else goes */
        hl_l3d_stop(d);
        return st;
    }
    *out = d;
    return HL_OK;
}

void hl_l3d_stop(struct hl_l3d *d)
{
    if (d == NULL)
        return;
    if (d->server != NULL)
        hl_rpc_server_close(d->server);
    atomic_store_explicit(&d->stopping, 1, memory_order_relaxed);
    imports_stop(d);
    while (d->verifying > 0) /* each ends within a MiB and is answered */
        uv_run(hl_loop_uv(d->loop), UV_RUN_ONCE);
    l4_stop(d);
    hl_net_server_stop(d->net);
    hl_l3_server_stop(d->local);
    l4_fini(d);
    hl_tier_close(d->tier);
    if (d->remove_pool)
        hl_pool_remove(d->pool);
    else
        hl_pool_close(d->pool);
    free(d->socket_path);
    free(d);
}

hl_status hl_l3d_health(struct hl_l3d *d, struct hl_buf *out)
{
    l4_health(d, out);
    return HL_OK;
}

const char *hl_l3d_address(const struct hl_l3d *d)
{
    return hl_rpc_server_address(d->server);
}

const char *hl_l3d_data_address(const struct hl_l3d *d)
{
    return d->net != NULL ? hl_net_server_address(d->net) : "";
}
