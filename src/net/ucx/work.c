/* net/ucx/work.c - what the put worker's thread does with a put; it alone calls the put handler.
 *
 * It takes no lock: while the put is EXECUTING, the progress thread changes only `peer`, `recvs`
 * and the lists that the put is in, and this thread uses none of them. A SUM runs while the put is
 * RECEIVING: it reads a piece that has arrived in full and writes that piece's sum, which is not
 * read before the COMMIT behind it.
 *
 * An object is stored only if the CRC of the received bytes equals the sender's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "net/ucx/server.h"

static void keep_status(struct hl_ucx_put *put, hl_status st)
{
    put->status = st;
    put->text[0] = '\0';
    if (st != HL_OK)
        snprintf(put->text, sizeof(put->text), "%s", hl_error_text());
}

static hl_status ucx_begin_put(struct hl_ucx_put *put)
{
    void *base = NULL;
    HL_TRY(hl_put_sink_begin(&put->server->sink, put->id, put->size, &put->token, &base));
    put->base = base;
    return HL_OK;
}

/* Over TCP a put may be given up while receives are outstanding. Then `base` is NULL already, and
 * the progress thread reads it in take_piece: so it is not written once more. */
static void give_up(struct hl_ucx_put *put)
{
    if (put->base != NULL)
        put->base = NULL;
    hl_put_sink_abort(&put->server->sink, put->token);
}

static size_t piece_len(const struct hl_ucx_put *put, uint32_t number)
{
    uint64_t left = put->size - (uint64_t)number * put->piece_len;
    return left < put->piece_len ? (size_t)left : put->piece_len;
}

/* Computes the CRCs of the chunks from those of the pieces, and returns the CRC of the whole. */
static uint32_t chunk_sums(const struct hl_ucx_put *put, uint32_t *crcs)
{
    uint32_t per_chunk = (uint32_t)(HL_CHUNK / put->piece_len), whole = 0;
    for (uint32_t first = 0; first < put->pieces; first += per_chunk) {
        uint32_t end = first + per_chunk < put->pieces ? first + per_chunk : put->pieces;
        uint32_t crc = 0;
        size_t len = 0;
        for (uint32_t i = first; i < end; i++) {
            crc = hl_crc32_combine(crc, put->piece_crcs[i], piece_len(put, i));
            len += piece_len(put, i);
        }
        crcs[first / per_chunk] = crc;
        whole = hl_crc32_combine(whole, crc, len);
    }
    return whole;
}

static hl_status ucx_commit_put(struct hl_ucx_put *put)
{
    const struct hl_put_sink *sink = &put->server->sink;
    size_t chunks = (size_t)((put->size + HL_CHUNK - 1) / HL_CHUNK);
    HL_AUTO(hl_freep) uint32_t *crcs = malloc(chunks * sizeof(*crcs));
    hl_status st = HL_OK;
    uint32_t crc = 0;
    if (crcs == NULL)
        st = hl_fail(HL_ENOMEM, "%s: out of memory allocating a put of %llu bytes",
                     put->server->address, (unsigned long long)put->size);
    else if ((crc = chunk_sums(put, crcs)) != put->crc)
        st = hl_put_sink_wrong_sum(sink, put->size, crc, put->crc);
    if (st != HL_OK) {
        give_up(put);
        return st;
    }
    put->base = NULL;
    return hl_put_sink_commit(sink, put->token, put->size, crc, crcs, &put->id);
}

/* A list with an error anywhere stores nothing. */
static hl_status unpack_batch(struct hl_ucx_put *put)
{
    size_t count = hl_put_batch_count(put->items, put->items_len);
    if (count == 0)
        return hl_fail(HL_EPROTO, "a batch that is not a list of objects");
    put->results = malloc(HL_WIRE_LIST_MAX);
    if (put->results == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the results of a batch");
    put->results_len =
        hl_put_batch_store(&put->server->sink, put->items, put->items_len, count, put->results);
    return HL_OK;
}

void hl_ucx_put_work(struct hl_ucx_job *job)
{
    struct hl_ucx_put *put = job->put;
    switch (job->task) {
    case HL_UCX_BEGIN:
        keep_status(put, ucx_begin_put(put));
        break;
    case HL_UCX_SUM:
        put->piece_crcs[job->piece] = hl_crc32(0, put->base + (uint64_t)job->piece * put->piece_len,
                                               piece_len(put, job->piece));
        break;
    case HL_UCX_COMMIT:
        keep_status(put, ucx_commit_put(put));
        break;
    case HL_UCX_ABORT:
        give_up(put);
        break;
    case HL_UCX_UNPACK:
        keep_status(put, unpack_batch(put));
        break;
    }
}
