#include "l3d/l3d.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/plane.h"
#include "conf/conf.h"
#include "core/copies/tier_metrics.h"
#include "l3d/cut_plans.h"
#include "l3d/l3d_private.h"
#include "l3d/l4.h"
#include "mem/socket/socket.h"
#include "mem/tier/tier.h"
#include "net/net.h"
#include "os/loop.h"
#include "os/process.h"

#define METRICS_MAX ((size_t)4 << 20)

static void reject_call(struct hl_rpc_call *call, hl_status st)
{
    hl_rpc_reject(call, st, NULL);
}

static struct hl_api_tier_info_list tiers_of(struct hl_l3d *d, struct hl_arena *arena)
{
    struct hl_api_tier_info_list tiers = {.items = hl_arena_array(arena, 2, sizeof(*tiers.items))};
    if (tiers.items == NULL)
        return tiers;
    tiers.items[tiers.count++] = hl_tier_info(d->tier, arena);
    tiers.count += l4_tier(d, &tiers.items[tiers.count]);
    return tiers;
}

static void method_pool_info(void *arg, struct hl_rpc_call *call,
                             const struct hl_api_l3_pool_info_params *params)
{
    (void)params;
    struct hl_l3d *d = arg;
    struct hl_arena *arena = hl_rpc_call_arena(call);
    struct hl_pool_info info;
    struct hl_pool_claim claim;
    hl_pool_info(d->pool, &info);
    hl_pool_claimed(d->pool, &claim);
    struct hl_api_l3_pool_info_results r = {
        .pool = {.uuid = hl_id_print(info.uuid, arena),
                 .incarnation = hl_arena_printf(arena, "%016" PRIx64, info.incarnation),
                 .host_id = d->host_id,
                 .socket_path = d->socket_path,
                 .capacity_bytes = info.capacity,
                 .used_bytes = info.used,
                 .quarantined_bytes = info.quarantined,
                 .shards = info.shards - info.manifests,
                 .data_address = hl_l3d_data_address(d),
                 .pool_path = hl_pool_path(d->pool),
                 .free_bytes = info.largest,
                 .archive_mode = l4_mode(d),
                 .tiers = tiers_of(d, arena),
                 .cluster = hl_id_print(claim.cluster, arena),
                 .revision = claim.revision,
                 .manifests = info.manifests,
                 .backbone = {.interface = d->backbone.interface,
                              .bits_per_second = d->backbone.bits_per_second,
                              .busy_percent = hl_netline_busy_pct(&d->backbone, hl_now_ns())}}};
    hl_reply_l3_pool_info(call, &r);
}

static void put_gauges(const struct hl_net_server *net, struct hl_buf *out)
{
    struct hl_net_server_stats stats;
    hl_net_server_stats(net, &stats);
    hl_metric_family(out, "helios_data_puts_total", "counter", "Writes stored from the network.");
    (void)hl_buf_printf(out, "helios_data_puts_total %" PRIu64 "\n", stats.puts);
    hl_metric_family(out, "helios_data_batches_total", "counter",
                     "Messages that carried small writes.");
    (void)hl_buf_printf(out, "helios_data_batches_total %" PRIu64 "\n", stats.batches);
}

static void cut_gauges(struct cut_plans *plans, struct hl_buf *out)
{
    struct cut_plans_info info;
    cut_plans_info(plans, &info);
    hl_metric_family(out, "helios_cut_plans_made_total", "counter", "Plans made for cuts.");
    (void)hl_buf_printf(out, "helios_cut_plans_made_total %" PRIu64 "\n", info.made);
    hl_metric_family(out, "helios_cut_plans_reused_total", "counter",
                     "Cuts that reused the plan of an earlier one.");
    (void)hl_buf_printf(out, "helios_cut_plans_reused_total %" PRIu64 "\n", info.reused);
    hl_metric_family(out, "helios_cut_plan_bytes", "gauge", "Memory of the plans that are kept.");
    (void)hl_buf_printf(out, "helios_cut_plan_bytes %" PRIu64 "\n", info.bytes);
}

hl_status hl_l3d_gauges(struct hl_l3d *d, struct hl_buf *out)
{
    if (d->net != NULL)
        put_gauges(d->net, out);
    cut_gauges(d->cut_plans, out);
    l4_gauges(d, out);
    struct hl_arena arena = {0};
    struct hl_api_tier_info_list tiers = tiers_of(d, &arena);
    hl_status st = hl_tier_gauges(&tiers, out);
    hl_arena_fini(&arena);
    return st;
}

static void method_metrics(void *arg, struct hl_rpc_call *call,
                           const struct hl_api_l3_metrics_params *params)
{
    struct hl_l3d *d = arg;
    struct hl_buf text = HL_BUF(METRICS_MAX);
    (void)params;
    hl_status st = hl_plane_metrics(&text);
    if (st == HL_OK)
        st = hl_l3d_gauges(d, &text);
    if (st == HL_OK)
        hl_reply_l3_metrics(call, &(struct hl_api_l3_metrics_results){.text = text.data});
    else
        reject_call(call, st);
    hl_buf_fini(&text);
}

static void method_options(void *arg, struct hl_rpc_call *call,
                           const struct hl_api_l3_options_params *params)
{
    (void)arg;
    (void)params;
    hl_reply_l3_options(call, &(struct hl_api_l3_options_results){
                                  .options = hl_conf_in_force(hl_rpc_call_arena(call))});
}

static void method_import_model(void *arg, struct hl_rpc_call *call,
                                const struct hl_api_l3_import_model_params *params)
{
    struct hl_l3d *d = arg;
    hl_status st = claim_allows_import(d, params->cluster);
    if (st == HL_OK)
        st = import_start(d, &params->request);
    if (st != HL_OK)
        reject_call(call, st);
    else
        hl_reply_l3_import_model(call, &(struct hl_api_l3_import_model_results){0});
}

static void method_cut_shards(void *arg, struct hl_rpc_call *call,
                              const struct hl_api_l3_cut_shards_params *params)
{
    struct hl_l3d *d = arg;
    hl_status st = claim_allows_import(d, params->cluster);
    if (st == HL_OK)
        st = import_start_cut(d, &params->request);
    if (st != HL_OK)
        reject_call(call, st);
    else
        hl_reply_l3_cut_shards(call, &(struct hl_api_l3_cut_shards_results){0});
}

static void method_import_progress(void *arg, struct hl_rpc_call *call,
                                   const struct hl_api_l3_import_progress_params *params)
{
    struct hl_l3d *d = arg;
    struct hl_api_l3_import_progress_results r = {0};
    hl_status st = import_progress(d, params->import_id, hl_rpc_call_arena(call), &r.progress);
    if (st != HL_OK)
        reject_call(call, st);
    else
        hl_reply_l3_import_progress(call, &r);
}

static void method_cancel_import(void *arg, struct hl_rpc_call *call,
                                 const struct hl_api_l3_cancel_import_params *params)
{
    struct hl_l3d *d = arg;
    import_cancel(d, params->import_id);
    hl_reply_l3_cancel_import(call, &(struct hl_api_l3_cancel_import_results){0});
}

static void method_inventory(void *arg, struct hl_rpc_call *call,
                             const struct hl_api_l3_inventory_params *params)
{
    struct hl_l3d *d = arg;
    struct hl_api_l3_inventory_results r = {.next = params->cursor};
    struct hl_arena *arena = hl_rpc_call_arena(call);
    size_t limit = params->limit;
    if (limit == 0 || limit > INVENTORY_MAX)
        limit = INVENTORY_MAX;
    struct hl_pool_ref *refs = calloc(limit, sizeof(*refs));
    if (refs == NULL) {
        reject_call(
            call, hl_fail(HL_ENOMEM, "out of memory allocating an inventory of %zu shards", limit));
        return;
    }
    r.extents.count = hl_pool_list(d->pool, &r.next, refs, limit);
    r.extents.items = hl_arena_array(arena, r.extents.count, sizeof(*r.extents.items));
    for (size_t i = 0; r.extents.items != NULL && i < r.extents.count; i++)
        r.extents.items[i] = extent_of(&refs[i], arena);
    free(refs);
    hl_reply_l3_inventory(call, &r);
}

static void method_free(void *arg, struct hl_rpc_call *call,
                        const struct hl_api_l3_free_params *params)
{
    struct hl_l3d *d = arg;
    struct hl_api_l3_free_results r = {0};
    hl_status st = claim_allows(d, params->cluster);
    if (st != HL_OK) {
        reject_call(call, st);
        return;
    }
    for (size_t i = 0; i < params->ids.count; i++) {
        struct hl_id id;
        r.freed +=
            hl_id_parse(params->ids.items[i], &id) == HL_OK && hl_pool_free(d->pool, id) == HL_OK;
    }
    hl_reply_l3_free(call, &r);
}

/* ---- verify: runs on a worker, because it reads a whole copy ---- */

struct verify {
    uv_work_t work;
    struct hl_l3d *d;
    struct hl_rpc_call *call;
    struct hl_id id;
    bool archived; /* check the copy in the archive */
    hl_status st;
    char text[HL_ERROR_TEXT_MAX];
    uint32_t *bad;
    size_t bad_count;
    uint32_t crc; /* set for a good copy in the archive */
};

static void verify_work(uv_work_t *work)
{
    struct verify *v = work->data;
    v->st = v->archived
                ? l4_verify(v->d, v->id, &v->crc)
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
        hl_reply_l3_verify(v->call, &(struct hl_api_l3_verify_results){
                                        .ok = v->st == HL_OK,
                                        .bad_chunks = {v->bad, v->bad_count},
                                        .crc32 = v->crc,
                                        .crc32_known = v->archived && v->st == HL_OK});
    }
    free(v->bad);
    free(v);
}

static void method_verify(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_l3_verify_params *params)
{
    struct hl_l3d *d = arg;
    struct verify *v = calloc(1, sizeof(*v));
    if (v == NULL) {
        reject_call(call, hl_fail(HL_ENOMEM, "out of memory starting a verification"));
        return;
    }
    hl_status st = hl_id_parse(params->id, &v->id);
    v->archived = params->tier == HL_API_TIER_L4;
    if (st == HL_OK && (params->tier == HL_API_TIER_L1 || params->tier == HL_API_TIER_L2))
        st = hl_fail(HL_EINVAL, "verify: helios-l3d has L3 and L4, not '%s'",
                     hl_api_tier_name(params->tier));
    if (st != HL_OK) {
        free(v);
        reject_call(call, st);
        return;
    }
    v->d = d;
    v->call = call;
    v->work.data = v;
    d->verifying++;
    uv_queue_work(hl_loop_uv(d->loop), &v->work, verify_work, verify_done);
}

static const struct hl_l3_handlers handlers = {
    .pool_info = method_pool_info,
    .import_model = method_import_model,
    .cut_shards = method_cut_shards,
    .import_progress = method_import_progress,
    .cancel_import = method_cancel_import,
    .locate = method_locate,
    .inventory = method_inventory,
    .free = method_free,
    .verify = method_verify,
    .archive = method_archive,
    .evict = method_evict,
    .drop_archived = method_drop_archived,
    .list_archived = method_list_archived,
    .state_archived = method_state_archived,
    .heal = method_heal,
    .touch = method_touch,
    .claim = method_claim,
    .list_trash = method_list_trash,
    .untrash = method_untrash,
    .stop = method_stop,
    .put_manifest = method_put_manifest,
    .describe = method_describe,
    .metrics = method_metrics,
    .options = method_options,
    .look = method_look,
    .order_eviction = method_order_eviction,
};

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
    return hl_tier_over_pool(d->pool, HL_API_TIER_L3, "pool", limits, &d->tier);
}

static void pin_load(void *arg, struct hl_id id, hl_l3_loaded done, void *done_arg)
{
    l4_ask(arg, &(struct l4_asked){.kind = L4_LOAD, .id = id}, done, done_arg);
}

static hl_status put_alloc(void *arg, struct hl_id id, uint64_t size, struct hl_pool_extent *out)
{
    return l4_alloc(arg, &(struct l4_want){.near = -1, .id = id, .size = size}, out);
}

hl_status hl_l3d_start(const struct hl_l3d_opts *opts, struct hl_l3d **out)
{
    struct hl_l3d *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the L3 daemon");
    d->loop = opts->loop;
    d->read_retry = opts->read_retry;
    d->connect_ms = opts->net->connect_ms;
    d->rpc = opts->rpc;
    d->import_threads =
        opts->import_threads > 0 ? opts->import_threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
    d->socket_path = strdup(opts->socket_path);
    hl_host_id(d->host_id, sizeof(d->host_id));
    char backbone[HL_PLANE_PLACE];
    const uint64_t backbone_bits = hl_plane_line(HL_PLANE_BACKBONE, backbone);
    hl_netline_init(&d->backbone, "/sys", backbone, backbone_bits);
    d->remove_pool = opts->remove_pool;
    int made = 0;
    hl_status st = d->socket_path == NULL
                       ? hl_fail(HL_ENOMEM, "out of memory allocating the L3 daemon")
                       : open_pool(d, &opts->pool, &opts->limits, &made);
    if (st == HL_OK)
        st = cut_plans_create(opts->cut_plans, &d->cut_plans);
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
        st = hl_serve_l3(
            opts->rpc,
            &(struct hl_rpc_serve_opts){.address = opts->listen, .loop = opts->loop, .arg = d},
            &handlers, &d->server);
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
    atomic_store_explicit(&d->stopping, true, memory_order_relaxed);
    imports_stop(d);
    while (d->verifying > 0) /* each ends within a MiB, and is answered */
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
    cut_plans_destroy(d->cut_plans);
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
