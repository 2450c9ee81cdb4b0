/* Workers take shards from a counter until none is left or one of them has failed. A shard is
 * sealed as soon as it is complete. If the run fails later, the sealed shards are discarded, so a
 * caller sees all shards or none.
 *
 *     next      | taken by a worker each | ... next | not taken |      fetch_add: no shard twice
 *     slots[i], sealed[i], shards[i]     the worker's that took i; after the joins the caller's
 *
 * The mutex is taken only for a failure. `failed` is stored after status and text, and ends the
 * other workers at their next shard; the joins order all their writes before the caller's reads. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem/import/import_private.h"

#define THREADS_DEFAULT 2
#define THREADS_MAX     64

struct import_job {
    const struct hl_import *im;
    const struct hl_import_run *run;
    struct hl_import_shard *shards;
    struct hl_import_slot *slots;
    unsigned char *sealed; /* each byte is written only by the worker of that shard */
    atomic_size_t next;
    atomic_uint_least64_t done_bytes;
    atomic_bool failed;
    pthread_mutex_t mutex; /* guards status and text */
    hl_status status;
    char text[HL_ERROR_TEXT_MAX];
};

/* Called by all workers. The reported sum covers all of them; reports can arrive out of order. */
static void report_progress(struct import_job *job, uint64_t bytes)
{
    uint64_t done =
        atomic_fetch_add_explicit(&job->done_bytes, bytes, memory_order_relaxed) + bytes;
    if (job->run->progress != NULL)
        job->run->progress(job->run->progress_arg, done, job->im->total_bytes);
}

/* The run reports its first failure; a worker that stops because of it calls this later. */
static void fail_job(struct import_job *job, hl_status st)
{
    pthread_mutex_lock(&job->mutex);
    if (job->status == HL_OK) {
        job->status = st;
        snprintf(job->text, sizeof(job->text), "%s", hl_error_text());
    }
    pthread_mutex_unlock(&job->mutex);
    atomic_store_explicit(&job->failed, true, memory_order_release);
}

HL_CHECK static hl_status fill_shard(struct import_job *job, struct hl_import_writer *w, size_t i,
                                     uint32_t *crc)
{
    const struct hl_partition_shard *shard = &job->im->plan.shards[i];
    const struct hl_safetensors_image *header = &job->im->headers[i];
    memcpy(w->sums.dst, header->bytes, header->size);
    for (uint32_t k = 0; k < shard->tensor_count; k++) {
        uint32_t tensor_crc;
        uint64_t begin = w->sums.at;
        HL_TRY(hl_import_write_tensor(w, shard->tensor_first + k, &tensor_crc));
        hl_safetensors_patch_crc(header, w->sums.dst, k, tensor_crc);
        if (job->run->tensor_crcs != NULL)
            job->run->tensor_crcs[shard->tensor_first + k] = tensor_crc;
        report_progress(job, w->sums.at - begin);
    }
    report_progress(job, header->size);
    *crc = hl_shard_sums_finish(&w->sums, header->size);
    return HL_OK;
}

HL_CHECK static hl_status import_shard(struct import_job *job, struct hl_import_writer *w, size_t i)
{
    const struct hl_import_sink *sink = job->run->sink;
    const struct hl_partition_shard *from = &job->im->plan.shards[i];
    uint64_t size = job->im->headers[i].size + job->im->headers[i].data_size;
    size_t chunks = (size_t)((size + HL_CHUNK - 1) / HL_CHUNK);
    struct hl_import_slot *slot = &job->slots[i];
    uint32_t crc = 0;
    HL_AUTO(hl_freep) uint32_t *chunk_crcs = calloc(chunks, sizeof(*chunk_crcs));
    if (chunk_crcs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the checksums of %zu chunks", chunks);
    struct hl_import_shard *to = &job->shards[i];
    *to = (struct hl_import_shard){.pp = from->pp,
                                   .tp = from->tp,
                                   .ep = from->ep,
                                   .size_bytes = size,
                                   .tensors = from->tensor_count};
    snprintf(to->part, sizeof(to->part), "%s", from->part);
    HL_TRY(sink->alloc(sink->arg, to, slot));
    w->sums = (struct hl_shard_sums){
        .dst = slot->ptr, .at = job->im->headers[i].size, .chunks = chunk_crcs};
    hl_status st = fill_shard(job, w, i, &crc);
    if (st != HL_OK) {
        sink->abort(sink->arg, slot);
        return st;
    }
    st = sink->seal(sink->arg, slot, crc, chunk_crcs, chunks);
    if (st != HL_OK) {
        sink->abort(sink->arg, slot);
        return st;
    }
    job->sealed[i] = 1;
    to->id = slot->id;
    to->crc32 = crc;
    return HL_OK;
}

/* Only the counter divides the work; it is relaxed, as workers pass each other nothing else. */
static void *import_worker(void *arg)
{
    struct import_job *job = arg;
    struct hl_import_writer w = {.im = job->im, .cancel = job->run->cancel, .failed = &job->failed};
    for (;;) {
        size_t i = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (i >= job->im->plan.shard_count ||
            atomic_load_explicit(&job->failed, memory_order_acquire) != 0)
            break;
        hl_status st = import_shard(job, &w, i);
        if (st != HL_OK) {
            fail_job(job, st);
            break;
        }
    }
    free(w.scratch);
    return NULL;
}

HL_CHECK static hl_status compare_tied(struct import_job *job)
{
    struct hl_import_writer w = {.im = job->im, .cancel = job->run->cancel};
    hl_status st = HL_OK;
    for (size_t i = 0; i < job->im->plan.equal_count && st == HL_OK; i++)
        st = hl_import_compare(&w, job->im->plan.equal[i].a, job->im->plan.equal[i].b);
    free(w.scratch);
    return st;
}

/* The calling thread works too, so the run is only slower if no more threads can be started. */
static void run_workers(struct import_job *job)
{
    pthread_t threads[THREADS_MAX];
    int want = job->run->threads > 0 ? job->run->threads : THREADS_DEFAULT, started = 0;
    want = want < THREADS_MAX ? want : THREADS_MAX;
    while (started < want - 1 && pthread_create(&threads[started], NULL, import_worker, job) == 0)
        started++;
    (void)import_worker(job);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

HL_CHECK static hl_status check_files(const struct hl_import *im)
{
    if (im->megatron)
        return hl_megatron_check_files(&im->source);
    for (size_t i = 0; i < im->file_count; i++)
        HL_TRY(hl_file_mark_check(&im->files[i].mark, im->files[i].fd, im->files[i].name));
    return hl_marked_texts_check(&im->texts);
}

HL_CHECK static hl_status run_job(struct import_job *job)
{
    const struct hl_import_sink *sink = job->run->sink;
    if (job->im->megatron) /* the plan has only one of two copies */
        HL_TRY(hl_megatron_compare(&job->im->source, job->run->cancel));
    else
        HL_TRY(compare_tied(job));
    run_workers(job);
    if (job->status == HL_OK) {
        hl_status st = check_files(job->im);
        if (st != HL_OK)
            fail_job(job, st);
    }
    /* The workers are joined: from here on there is one thread and no lock. */
    if (job->status == HL_OK)
        return HL_OK;
    for (size_t i = 0; i < job->im->plan.shard_count; i++)
        if (job->sealed[i])
            sink->discard(sink->arg, &job->slots[i]);
    return hl_fail(job->status, "%s", job->text);
}

hl_status hl_import_run(struct hl_import *im, const struct hl_import_run *run,
                        struct hl_import_shard **shards)
{
    size_t n = im->plan.shard_count;
    HL_AUTO(hl_freep) struct hl_import_shard *list = calloc(n, sizeof(*list));
    HL_AUTO(hl_freep) struct hl_import_slot *slots = calloc(n, sizeof(*slots));
    HL_AUTO(hl_freep) unsigned char *sealed = calloc(n, 1);
    if (list == NULL || slots == NULL || sealed == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a table of %zu shards", n);
    struct import_job job = {
        .im = im, .run = run, .shards = list, .slots = slots, .sealed = sealed};
    pthread_mutex_init(&job.mutex, NULL);
    hl_status st = run_job(&job);
    pthread_mutex_destroy(&job.mutex);
    if (st != HL_OK)
        return st;
    *shards = hl_steal(&list);
    return HL_OK;
}
