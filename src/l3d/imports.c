/* Imports and cuts: each runs in a thread that slices directly into the pool. Callers can query its
 * progress. Its shards are only reported when all of them are sealed, and a failed or cancelled one
 * leaves none behind. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uthash.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "core/catalog/importing.h"
#include "core/model/layout.h"
#include "l3d/imports_private.h"
#include "l3d/l4.h"

/* ---- one import ---- */

static void read_options(const struct hl_api_import_request *r, struct hl_import_options *out)
{
    *out = (struct hl_import_options){.dir = r->dir,
                                      .model = r->name,
                                      .version = r->version,
                                      .base = r->base,
                                      .iteration = r->iteration,
                                      .optimizer = r->optimizer,
                                      .unsliced = r->unsliced,
                                      .base_config = r->base_config,
                                      .partition = {
                                          .tp = r->tp,
                                          .pp = r->pp,
                                          .vocab_divisor = r->vocab_divisor,
                                          .first_stage_layers = r->first_stage_layers,
                                          .last_stage_layers = r->last_stage_layers,
                                          .virtual_stages = r->virtual_stages,
                                          .ep = r->ep,
                                          .etp = r->etp,
                                          .pad = r->pad,
                                          .naming = r->naming,
                                      }};
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

/* The checksums of the shards that were made. */
static hl_status take_crcs(struct import *im, const struct hl_partition_plan *plan,
                           const uint32_t *crcs)
{
    im->crcs = calloc(plan->shard_count + 1, sizeof(*im->crcs));
    if (im->crcs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory listing %zu shards", plan->shard_count);
    for (size_t i = 0; i < plan->shard_count; i++) {
        const struct hl_partition_shard *s = &plan->shards[i];
        HL_TRY(hl_layout_crcs(&plan->tensors[s->tensor_first], &crcs[s->tensor_first],
                              s->tensor_count, &im->crcs[i]));
    }
    return HL_OK;
}

static hl_status copy_shards(struct import *im, struct hl_import *src, struct hl_import_run *run)
{
    const struct hl_partition_plan *plan = hl_import_plan(src);
    HL_AUTO(hl_freep) uint32_t *crcs = calloc(plan->tensor_count + 1, sizeof(*crcs));
    if (crcs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the checksums of %zu tensors",
                       plan->tensor_count);
    run->tensor_crcs = crcs;
    HL_TRY(hl_import_run(src, run, &im->shards));
    hl_status st = take_crcs(im, plan, crcs);
    for (size_t i = 0; st != HL_OK && i < plan->shard_count; i++)
        l4_discard(im->daemon, im->shards[i].id);
    return st;
}

static hl_status run_import(struct import *im, struct hl_import *src)
{
    const struct hl_import_sink sink = import_sink(im);
    struct hl_import_run run = {.sink = &sink,
                                .threads = im->daemon->import_threads,
                                .cancel = &im->cancel,
                                .progress = import_note_progress,
                                .progress_arg = im};
    atomic_store_explicit(&im->total_bytes, hl_import_total_bytes(src), memory_order_relaxed);
    im->shard_count = hl_import_shard_count(src);
    HL_TRY(take_layouts(im, hl_import_plan(src)));
    im->config = strdup(hl_import_config(src));
    im->meta = strdup(hl_import_meta(src));
    if (im->config == NULL || im->meta == NULL)
        return hl_fail(HL_ENOMEM, "out of memory describing the model");
    HL_TRY(import_check_room(im, hl_import_total_bytes(src)));
    return copy_shards(im, src, &run);
}

static hl_status import_directory(struct import *im)
{
    struct hl_import_options options;
    struct hl_import *src = NULL;
    read_options(&im->request, &options);
    hl_status st = hl_import_open(&options, &src);
    if (st == HL_OK)
        st = run_import(im, src);
    hl_import_close(src);
    return st;
}

static void *import_thread(void *arg)
{
    struct import *im = arg;
    const char *what = im->is_cut ? "cut" : "import";
    uint64_t start = hl_now_ns();
    hl_status st = im->is_cut ? import_cut(im) : import_directory(im);
    im->status = st;
    if (st != HL_OK)
        snprintf(im->error, sizeof(im->error), "%s", hl_error_text());
    im->seconds = (double)(hl_now_ns() - start) / 1e9;
    if (st == HL_OK)
        hl_info("%s done name=%s shards=%zu bytes=%llu seconds=%.3f", what, im->model,
                im->shard_count, (unsigned long long)atomic_load(&im->total_bytes), im->seconds);
    else
        hl_warn("%s failed name=%s error=\"%s\"", what, im->model, im->error);
    atomic_store_explicit(&im->phase,
                          st == HL_OK ? HL_API_IMPORT_STATE_DONE : HL_API_IMPORT_STATE_FAILED,
                          memory_order_release);
    return NULL;
}

static int phase_of(struct import *im)
{
    return atomic_load_explicit(&im->phase, memory_order_acquire);
}

/* Waits if the thread still runs; joining an ended thread frees its stack. */
static void import_join(struct import *im)
{
    if (!im->joined)
        pthread_join(im->thread, NULL);
    im->joined = true;
}

static void import_free(struct hl_l3d *d, struct import *im)
{
    import_join(im);
    HASH_DEL(d->imports, im);
    hl_arena_fini(&im->arena);
    free(im->config);
    free(im->meta);
    for (size_t i = 0; im->layouts != NULL && i < im->shard_count; i++)
        free(im->layouts[i]);
    free(im->layouts);
    for (size_t i = 0; im->crcs != NULL && i < im->shard_count; i++)
        free(im->crcs[i]);
    free(im->crcs);
    free(im->shards);
    free(im);
}

/* Makes room for one more: ended imports are dropped, the oldest first. */
static hl_status make_room(struct hl_l3d *d, bool for_cut)
{
    struct import *im, *next;
    int imports = 0, cuts = 0;
    HASH_ITER (hh, d->imports, im, next) {
        if (phase_of(im) == HL_API_IMPORT_STATE_RUNNING) {
            *(im->is_cut ? &cuts : &imports) += 1;
            continue;
        }
        import_join(im);
        if (hl_import_is_evicted(HASH_COUNT(d->imports), false))
            import_free(d, im);
    }
    if (hl_import_has_place(imports, cuts, for_cut))
        return HL_OK;
    return hl_fail(HL_EBUSY,
                   "%d imports and %d cuts are running already; try again when one has ended",
                   imports, cuts);
}

/* Takes over the request, of either kind. */
static hl_status import_begin(struct hl_l3d *d, const char *id,
                              const struct hl_api_import_request *request,
                              const struct hl_api_cut_request *cut)
{
    struct import *im;
    if (strlen(id) != HL_ID_TEXT_LEN)
        return hl_fail(HL_EINVAL, "importId '%.40s' must be 32 hex digits", id);
    HASH_FIND_STR(d->imports, id, im);
    if (im != NULL)
        return HL_OK;
    HL_TRY(make_room(d, cut != NULL));
    im = calloc(1, sizeof(*im));
    if (im == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating an import record");
    memcpy(im->id, id, sizeof(im->id));
    im->daemon = d;
    im->is_cut = cut != NULL;
    hl_status st =
        im->is_cut ? hl_api_copy(&hl_api_cut_request_type, cut, &im->arena, &im->cut)
                   : hl_api_copy(&hl_api_import_request_type, request, &im->arena, &im->request);
    im->model = im->is_cut ? im->cut.model : im->request.name;
    im->version = im->is_cut ? im->cut.version : im->request.version;
    int rc = st == HL_OK ? pthread_create(&im->thread, NULL, import_thread, im) : 0;
    if (rc != 0)
        st = hl_fail(HL_ENOMEM, "thread of the import: %s", strerror(rc));
    if (st != HL_OK) {
        hl_arena_fini(&im->arena);
        free(im);
        return st;
    }
    HASH_ADD_STR(d->imports, id, im);
    return HL_OK;
}

hl_status import_start(struct hl_l3d *d, const struct hl_api_import_request *request)
{
    return import_begin(d, request->import_id, request, NULL);
}

hl_status import_start_cut(struct hl_l3d *d, const struct hl_api_cut_request *request)
{
    return import_begin(d, request->import_id, NULL, request);
}

static struct hl_api_shard_list shards_of(const struct import *im, struct hl_arena *arena)
{
    struct hl_api_shard_list list = {.count = im->shard_count};
    list.items = hl_arena_array(arena, list.count, sizeof(*list.items));
    for (size_t i = 0; list.items != NULL && i < list.count; i++) {
        const struct hl_import_shard *s = &im->shards[i];
        list.items[i] = (struct hl_api_shard){.id = hl_id_print(s->id, arena),
                                              .model = im->model,
                                              .version = im->version,
                                              .pp = s->pp,
                                              .tp = s->tp,
                                              .ep = s->ep,
                                              .part = s->part,
                                              .size_bytes = s->size_bytes,
                                              .crc32 = s->crc32,
                                              .tensors = (uint32_t)s->tensors,
                                              .state = HL_API_SHARD_STATE_SEALED,
                                              .location = HL_API_TIER_L3,
                                              .layout = im->layouts[i],
                                              .tensor_crcs = im->crcs != NULL ? im->crcs[i] : ""};
    }
    return list;
}

hl_status import_progress(struct hl_l3d *d, const char *id, struct hl_arena *arena,
                          struct hl_api_import_progress *out)
{
    struct import *im;
    HASH_FIND_STR(d->imports, id, im);
    if (im == NULL)
        return hl_fail(HL_ENOENT, "this L3 daemon does not know the import '%.40s'", id);
    enum hl_api_import_state phase = phase_of(im);
    *out = (struct hl_api_import_progress){
        .import_id = im->id,
        .state = phase,
        .done_bytes = atomic_load(&im->done_bytes),
        .total_bytes = atomic_load(&im->total_bytes),
        .seconds = phase != HL_API_IMPORT_STATE_RUNNING ? im->seconds : 0};
    if (phase == HL_API_IMPORT_STATE_FAILED) {
        out->error = im->error;
        out->error_status = hl_status_name(im->status);
    } else if (phase == HL_API_IMPORT_STATE_DONE) {
        out->shards = shards_of(im, arena);
        out->config = im->config != NULL ? im->config : "";
        out->meta = im->meta != NULL ? im->meta : "";
    }
    return HL_OK;
}

void import_cancel(struct hl_l3d *d, const char *id)
{
    struct import *im;
    HASH_FIND_STR(d->imports, id, im);
    if (im != NULL)
        atomic_store_explicit(&im->cancel, true, memory_order_relaxed);
}

void imports_stop(struct hl_l3d *d)
{
    struct import *im, *next;
    HASH_ITER (hh, d->imports, im, next) {
        atomic_store_explicit(&im->cancel, true, memory_order_relaxed);
    }
    HASH_ITER (hh, d->imports, im, next) {
        import_free(d, im);
    }
}
