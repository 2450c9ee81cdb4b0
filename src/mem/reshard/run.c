/* Workers take wanted shards from a counter until none is left or one of them has failed. If the
 * run fails, its sealed shards are discarded, so a caller sees all or none. Sharing is as in
 * mem/import/run.c: the counter and `failed` are atomic, the mutex guards the first failure, and
 * until the joins a shard's table rows belong to the worker that took the shard. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "core/model/part.h"
#include "mem/reshard/reshard_private.h"

#define THREADS_DEFAULT 2
#define THREADS_MAX     64

/* The run reports its first failure. A worker that stops because of it calls this later, and its
 * text is dropped. `failed` is stored last, so a thread that sees it also sees status and text. */
static void fail_run(struct hl_resharding *r, hl_status st)
{
    pthread_mutex_lock(&r->mutex);
    if (r->status == HL_OK) {
        r->status = st;
        snprintf(r->text, sizeof(r->text), "%s", hl_error_text());
    }
    pthread_mutex_unlock(&r->mutex);
    atomic_store_explicit(&r->failed, true, memory_order_release);
}

/* ---- headers --------------------------------------------------------------------------------- */

/* Runs in the calling thread before the workers start, so total_bytes needs no atomic. */
HL_CHECK static hl_status write_header(struct hl_resharding *r, size_t shard)
{
    const struct hl_partition_shard *s = &r->run->b->shards[shard];
    size_t size = s->tensor_count * sizeof(struct hl_tensor);
    char version[24], pp[16], tp[16], ep[16];
    HL_AUTO(hl_freep) struct hl_tensor *tensors = malloc(size + 1);
    if (tensors == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a header of %u tensors",
                       s->tensor_count);
    memcpy(tensors, &r->run->b->tensors[s->tensor_first], size);
    snprintf(version, sizeof(version), "%lld", (long long)r->run->version);
    snprintf(pp, sizeof(pp), "%d", s->pp);
    snprintf(tp, sizeof(tp), "%d", s->tp);
    snprintf(ep, sizeof(ep), "%d", s->ep);
    const struct hl_safetensors_meta meta[] = {{"helios.model", r->run->model},
                                               {"helios.version", version},
                                               {"helios.pp", pp},
                                               {"helios.tp", tp},
                                               {"helios.part", s->part},
                                               {"helios.ep", ep}};
    size_t metas = HL_ARRAY_LEN(meta) - !hl_part_has_experts(s->part);
    HL_TRY(hl_safetensors_write(&(struct hl_safetensors_layout){.tensors = tensors,
                                                                .count = s->tensor_count,
                                                                .meta = meta,
                                                                .meta_count = metas,
                                                                .crc_fields = true},
                                &r->headers[shard]));
    r->total_bytes += r->headers[shard].size + r->headers[shard].data_size;
    return HL_OK;
}

/* ---- a shard --------------------------------------------------------------------------------- */

HL_CHECK static hl_status fill_slot(struct hl_resharding *r, size_t shard, uint32_t *crc)
{
    const struct hl_import_sink *sink = r->run->sink;
    uint64_t size = r->shards[shard].size_bytes;
    size_t chunks = (size_t)hl_chunk_count(size);
    HL_AUTO(hl_freep) uint32_t *crcs = calloc(chunks, sizeof(*crcs));
    if (crcs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the checksums of %zu chunks", chunks);
    struct hl_shard_sums sums = {
        .dst = r->slots[shard].ptr, .at = r->headers[shard].size, .chunks = crcs};
    HL_TRY(hl_resharding_fill(r, shard, &sums, crc));
    return sink->seal(sink->arg, &r->slots[shard], *crc, crcs, chunks);
}

HL_CHECK static hl_status make_shard(struct hl_resharding *r, size_t shard)
{
    const struct hl_import_sink *sink = r->run->sink;
    const struct hl_partition_shard *from = &r->run->b->shards[shard];
    struct hl_import_shard *to = &r->shards[shard];
    uint32_t crc;
    *to =
        (struct hl_import_shard){.pp = from->pp,
                                 .tp = from->tp,
                                 .ep = from->ep,
                                 .size_bytes = r->headers[shard].size + r->headers[shard].data_size,
                                 .tensors = from->tensor_count};
    snprintf(to->part, sizeof(to->part), "%s", from->part);
    HL_TRY(sink->alloc(sink->arg, to, &r->slots[shard]));
    hl_status st = fill_slot(r, shard, &crc);
    if (st != HL_OK) {
        sink->abort(sink->arg, &r->slots[shard]);
        return st;
    }
    r->sealed[shard] = 1;
    to->id = r->slots[shard].id;
    to->crc32 = crc;
    return HL_OK;
}

/* Only the counter divides the work; it is relaxed, as workers pass each other nothing else. */
static void *reshard_worker(void *arg)
{
    struct hl_resharding *r = arg;
    for (;;) {
        size_t i = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
        if (i >= r->run->b->shard_count || atomic_load_explicit(&r->failed, memory_order_acquire))
            return NULL;
        hl_status st = hl_resharding_wants(r, i) ? make_shard(r, i) : HL_OK;
        if (st != HL_OK)
            fail_run(r, st);
    }
}

/* The calling thread works too, so the run is only slower if no more threads can be started. */
static void run_workers(struct hl_resharding *r)
{
    pthread_t threads[THREADS_MAX];
    int want = r->run->threads > 0 ? r->run->threads : THREADS_DEFAULT, started = 0;
    want = want < THREADS_MAX ? want : THREADS_MAX;
    while (started < want - 1 && pthread_create(&threads[started], NULL, reshard_worker, r) == 0)
        started++;
    (void)reshard_worker(r);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

/* ---- a run ----------------------------------------------------------------------------------- */

HL_CHECK static hl_status make_shards(struct hl_resharding *r)
{
    const struct hl_import_sink *sink = r->run->sink;
    size_t n = r->run->b->shard_count;
    r->shards = calloc(n + 1, sizeof(*r->shards));
    r->headers = calloc(n + 1, sizeof(*r->headers));
    r->slots = calloc(n + 1, sizeof(*r->slots));
    r->sealed = calloc(n + 1, 1);
    if (r->shards == NULL || r->headers == NULL || r->slots == NULL || r->sealed == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a table of %zu shards", n);
    for (size_t i = 0; i < n; i++)
        if (hl_resharding_wants(r, i))
            HL_TRY(write_header(r, i));
    HL_TRY(hl_resharding_open_sources(r));
    run_workers(r);
    /* The workers are joined: from here on there is one thread and no lock. */
    if (r->status == HL_OK)
        return HL_OK;
    for (size_t i = 0; i < n; i++)
        if (r->sealed[i])
            sink->discard(sink->arg, &r->slots[i]);
    return hl_fail(r->status, "%s", r->text);
}

static void resharding_fini(struct hl_resharding *r)
{
    for (size_t i = 0; r->headers != NULL && i < r->run->b->shard_count; i++)
        hl_safetensors_image_fini(&r->headers[i]);
    free(r->headers);
    free(r->slots);
    free(r->sealed);
    free(r->tensor_at);
    free(r->verified);
    free(r->verified_first);
    free(r->shards);
    pthread_mutex_destroy(&r->mutex);
}

hl_status hl_reshard_run(const struct hl_reshard_run *run, struct hl_reshard_done *out)
{
    struct hl_resharding r = {.run = run};
    struct hl_reshard_done done = {0};
    uint64_t start = hl_now_ns();
    pthread_mutex_init(&r.mutex, NULL);
    hl_status st = make_shards(&r);
    if (st == HL_OK) {
        for (size_t i = 0; i < run->b->shard_count; i++)
            done.made += r.sealed[i];
        done.shards = hl_steal(&r.shards);
        done.copied_bytes = r.total_bytes;
        done.verified_bytes = atomic_load(&r.verified_bytes);
        done.ns = hl_now_ns() - start;
        *out = done;
    }
    resharding_fini(&r);
    return st;
}
