/* Imports: each runs in a thread that slices straight into the pool. Whoever asks sees its
 * progress; its shards are told only when all of them are sealed, and a failed or cancelled one
 * leaves none. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uthash.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "core/json.h"
#include "core/layout.h"
#include "l3d/l3d_private.h"
#include "l3d/l4.h"
#include "mem/import.h"

#define IMPORTS_AT_ONCE 4
#define IMPORTS_MAX     1000
#define REST_WAIT_NS    (10 * HL_NS_PER_S)

enum phase { RUNNING, DONE, FAILED };

struct import {
    char id[HL_ID_TEXT_LEN + 1];
    struct hl_l3d *daemon;
    json_t *request;
    pthread_t thread;
    int joined;
    atomic_int cancel;
    _Atomic uint64_t done_bytes;
    _Atomic uint64_t total_bytes;
    /* written by the thread before it stores `phase` with release */
    _Atomic int phase;
    hl_status status;
    char error[HL_ERROR_TEXT_MAX];
    char *config;
    struct hl_import_shard *shards;
    char **layouts; /* core/layout.h, one per shard */
    size_t shard_count;
    double seconds;
    UT_hash_handle hh;
};

/* ---- the pool as a sink ---- */

/* What one rank reads lies on one node, and the ranks of a stage on all of them. */
static int node_for(const struct hl_l3d *d, const struct hl_import_shard *s)
{
    return d->regions[(size_t)(s->pp + s->tp) % d->region_count].numa_id;
}

static hl_status sink_alloc(void *arg, const struct hl_import_shard *shard,
                            struct hl_import_slot *out)
{
    struct import *im = arg;
    struct hl_l3d *d = im->daemon;
    struct l4_want want = {
        .size = shard->size_bytes, .near = node_for(d, shard), .cancel = &im->cancel};
    struct hl_pool_extent *extent = malloc(sizeof(*extent));
    if (extent == NULL)
        return hl_fail(HL_ENOMEM, "shard of %llu bytes", (unsigned long long)want.size);
    hl_status st = l4_alloc(d, &want, extent);
    if (st != HL_OK) {
        free(extent);
        return st;
    }
    *out = (struct hl_import_slot){.id = extent->id, .ptr = extent->ptr, .handle = extent};
    return HL_OK;
}

static hl_status sink_seal(void *arg, struct hl_import_slot *slot, uint32_t crc32,
                           const uint32_t *chunk_crcs, size_t chunks)
{
    const struct import *im = arg;
    HL_TRY(hl_pool_seal(im->daemon->pool, slot->handle, crc32, chunk_crcs, chunks, NULL));
    free(slot->handle);
    slot->handle = NULL;
    return HL_OK;
}

static void sink_abort(void *arg, struct hl_import_slot *slot)
{
    const struct import *im = arg;
    hl_pool_abort(im->daemon->pool, slot->handle);
    free(slot->handle);
    slot->handle = NULL;
}

static void sink_discard(void *arg, struct hl_import_slot *slot)
{
    const struct import *im = arg;
    l4_discard(im->daemon, slot->id);
}

/* ---- one import ---- */

static void note_progress(void *arg, uint64_t done, uint64_t total)
{
    struct import *im = arg;
    atomic_store_explicit(&im->done_bytes, done, memory_order_relaxed);
    atomic_store_explicit(&im->total_bytes, total, memory_order_relaxed);
}

static hl_status read_options(const json_t *r, struct hl_import_options *out)
{
    *out = (struct hl_import_options){
        .dir = hl_json_str(r, "dir", ""),
        .model = hl_json_str(r, "name", ""),
        .version = hl_json_int(r, "version", 1),
        .partition = {
            .tp = (int)hl_json_int(r, "tp", 1),
            .pp = (int)hl_json_int(r, "pp", 1),
            .vocab_divisor = (int)hl_json_int(r, "vocabDivisor", 0),
            .first_stage_layers = (int)hl_json_int(r, "firstStageLayers", 0),
            .last_stage_layers = (int)hl_json_int(r, "lastStageLayers", 0),
            .virtual_stages = (int)hl_json_int(r, "virtualStages", 0),
        }};
    HL_TRY(hl_pad_parse(hl_json_str(r, "pad", ""), &out->partition.pad));
    return hl_naming_parse(hl_json_str(r, "naming", ""), &out->partition.naming);
}

/* What was freed a moment ago still rests: worth waiting for. */
static hl_status check_room(struct import *im, struct hl_import *src)
{
    struct hl_pool_info info;
    char text[3][32];
    uint64_t need = hl_import_total_bytes(src);
    uint64_t deadline = hl_now_ns() + REST_WAIT_NS;
    hl_pool_info(im->daemon->pool, &info);
    if (l4_makes_room(im->daemon, need))
        return HL_OK; /* if it can't, the copy fails */
    while (need > info.free && need <= info.free + info.quarantined && hl_now_ns() < deadline &&
           !atomic_load_explicit(&im->cancel, memory_order_relaxed)) {
        poll(NULL, 0, 20);
        hl_pool_info(im->daemon->pool, &info);
    }
    if (atomic_load_explicit(&im->cancel, memory_order_relaxed))
        return hl_fail(HL_ECANCELED, "the import was cancelled");
    if (need > info.free)
        return hl_fail(
            HL_ENOSPC,
            "model '%s' needs %s, but %s of %s are free in the pool; remove models (`helios model "
            "rm`) or make the pool larger (`helios up --l3-size`, option l3.size)",
            hl_json_str(im->request, "name", ""), hl_format_bytes(need, text[0], sizeof(text[0])),
            hl_format_bytes(info.free, text[1], sizeof(text[1])),
            hl_format_bytes(info.capacity, text[2], sizeof(text[2])));
    return HL_OK;
}

static hl_status take_layouts(struct import *im, const struct hl_partition_plan *plan)
{
    im->layouts = calloc(plan->shard_count + 1, sizeof(*im->layouts));
    if (im->layouts == NULL)
        return hl_fail(HL_ENOMEM, "out of memory listing %zu shards", plan->shard_count);
    for (size_t i = 0; i < plan->shard_count; i++) {
        const struct hl_partition_shard *s = &plan->shards[i];
        HL_TRY(hl_layout_text(&plan->tensors[s->tensor_first], s->tensor_count, &im->layouts[i]));
    }
    return HL_OK;
}

static hl_status run_import(struct import *im, struct hl_import *src)
{
    struct hl_import_sink sink = {im, sink_alloc, sink_seal, sink_abort, sink_discard};
    struct hl_import_run run = {.sink = &sink,
                                .threads = im->daemon->import_threads,
                                .cancel = &im->cancel,
                                .progress = note_progress,
                                .progress_arg = im};
    atomic_store_explicit(&im->total_bytes, hl_import_total_bytes(src), memory_order_relaxed);
    HL_TRY(check_room(im, src));
    HL_TRY(hl_import_run(src, &run, &im->shards));
    im->shard_count = hl_import_shard_count(src);
    HL_TRY(take_layouts(im, hl_import_plan(src)));
    im->config = strdup(hl_import_config(src));
    return im->config != NULL ? HL_OK : hl_fail(HL_ENOMEM, "description of the model");
}

static void *import_thread(void *arg)
{
    struct import *im = arg;
    struct hl_import_options options;
    struct hl_import *src = NULL;
    uint64_t start = hl_now_ns();
    hl_status st = read_options(im->request, &options);
    if (st == HL_OK)
        st = hl_import_open(&options, &src);
    if (st == HL_OK)
        st = run_import(im, src);
    im->status = st;
    if (st != HL_OK)
        snprintf(im->error, sizeof(im->error), "%s", hl_error_text());
    hl_import_close(src);
    im->seconds = (double)(hl_now_ns() - start) / 1e9;
    if (st == HL_OK)
        hl_info("import done name=%s shards=%zu bytes=%llu seconds=%.3f", options.model,
                im->shard_count, (unsigned long long)atomic_load(&im->total_bytes), im->seconds);
    else
        hl_warn("import failed name=%s error=\"%s\"", options.model, im->error);
    atomic_store_explicit(&im->phase, st == HL_OK ? DONE : FAILED, memory_order_release);
    return NULL;
}

static int phase_of(struct import *im)
{
    return atomic_load_explicit(&im->phase, memory_order_acquire);
}

/* Waits when it still runs; one that has ended gives its stack back. */
static void import_join(struct import *im)
{
    if (!im->joined)
        pthread_join(im->thread, NULL);
    im->joined = 1;
}

static void import_free(struct hl_l3d *d, struct import *im)
{
    import_join(im);
    HASH_DEL(d->imports, im);
    json_decref(im->request);
    free(im->config);
    for (size_t i = 0; im->layouts != NULL && i < im->shard_count; i++)
        free(im->layouts[i]);
    free(im->layouts);
    free(im->shards);
    free(im);
}

/* Room for one more: ended imports go, the oldest first. */
static hl_status make_room(struct hl_l3d *d)
{
    struct import *im, *next;
    int running = 0;
    HASH_ITER (hh, d->imports, im, next) {
        if (phase_of(im) == RUNNING) {
            running++;
            continue;
        }
        import_join(im);
        if (HASH_COUNT(d->imports) >= IMPORTS_MAX)
            import_free(d, im);
    }
    if (running >= IMPORTS_AT_ONCE)
        return hl_fail(HL_EBUSY, "%d imports are running already; try again when one has ended",
                       running);
    return HL_OK;
}

hl_status import_start(struct hl_l3d *d, const json_t *request)
{
    const char *id = hl_json_str(request, "importId", "");
    struct import *im;
    if (strlen(id) != HL_ID_TEXT_LEN)
        return hl_fail(HL_EINVAL, "importId '%.40s' must be 32 hex digits", id);
    HASH_FIND_STR(d->imports, id, im);
    if (im != NULL)
        return HL_OK;
    HL_TRY(make_room(d));
    im = calloc(1, sizeof(*im));
    if (im == NULL)
        return hl_fail(HL_ENOMEM, "import record");
    memcpy(im->id, id, sizeof(im->id));
    im->daemon = d;
    im->request = json_deep_copy(request);
    int rc = pthread_create(&im->thread, NULL, import_thread, im);
    if (rc != 0) {
        json_decref(im->request);
        free(im);
        return hl_fail(HL_ENOMEM, "thread of the import: %s", strerror(rc));
    }
    HASH_ADD_STR(d->imports, id, im);
    return HL_OK;
}

static json_t *shards_to_json(const struct import *im)
{
    json_t *list = json_array();
    for (size_t i = 0; i < im->shard_count; i++) {
        const struct hl_import_shard *s = &im->shards[i];
        json_array_append_new(
            list,
            json_pack("{s:s s:s s:I s:i s:i s:s s:I s:I s:i s:s s:s s:s}", "id",
                      hl_id_format(s->id).s, "model", hl_json_str(im->request, "name", ""),
                      "version", (json_int_t)hl_json_int(im->request, "version", 1), "pp", s->pp,
                      "tp", s->tp, "part", s->part, "sizeBytes", (json_int_t)s->size_bytes, "crc32",
                      (json_int_t)s->crc32, "tensors", (int)s->tensors, "state", "sealed",
                      "location", "L3", "layout", im->layouts[i]));
    }
    return list;
}

hl_status import_progress(struct hl_l3d *d, const char *id, json_t **out)
{
    static const char *const names[] = {
        [RUNNING] = "running", [DONE] = "done", [FAILED] = "failed"};
    struct import *im;
    HASH_FIND_STR(d->imports, id, im);
    if (im == NULL)
        return hl_fail(HL_ENOENT, "import '%.40s' is not known to this L3 daemon", id);
    int phase = phase_of(im);
    json_t *p = json_pack("{s:s s:s s:I s:I}", "importId", im->id, "state", names[phase],
                          "doneBytes", (json_int_t)atomic_load(&im->done_bytes), "totalBytes",
                          (json_int_t)atomic_load(&im->total_bytes));
    if (phase == FAILED) {
        json_object_set_new(p, "error", json_string(im->error));
        json_object_set_new(p, "errorStatus", json_string(hl_status_name(im->status)));
    } else if (phase == DONE) {
        json_object_set_new(p, "shards", shards_to_json(im));
        json_object_set_new(p, "config", json_string(im->config));
    }
    if (phase != RUNNING)
        json_object_set_new(p, "seconds", json_real(im->seconds));
    *out = p;
    return HL_OK;
}

void import_cancel(struct hl_l3d *d, const char *id)
{
    struct import *im;
    HASH_FIND_STR(d->imports, id, im);
    if (im != NULL)
        atomic_store_explicit(&im->cancel, 1, memory_order_relaxed);
}

void imports_stop(struct hl_l3d *d)
{
    struct import *im, *next;
    HASH_ITER (hh, d->imports, im, next) {
        atomic_store_explicit(&im->cancel, 1, memory_order_relaxed);
    }
    HASH_ITER (hh, d->imports, im, next) {
        import_free(d, im);
    }
}
