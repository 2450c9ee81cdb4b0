/* net/ucx/work.c - what the put worker's thread does with a put: the only caller of the put
 * handler.
 *
 * An object is stored only when the CRC of what landed equals the sender's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "net/ucx/server.h"

#define WORDS_MAX 256 /* of one refusal in a list of results */

static void keep_status(struct hl_ucx_put *put, hl_status st)
{
    put->status = st;
    put->text[0] = '\0';
    if (st != HL_OK)
        snprintf(put->text, sizeof(put->text), "%s", hl_error_text());
}

static hl_status ucx_begin_put(struct hl_ucx_put *put)
{
    const struct hl_net_put_handler *h = &put->server->opts.put;
    void *base = NULL;
    HL_TRY(h->begin(h->arg, put->id, put->size, &put->token, &base));
    put->base = base;
    return HL_OK;
}

static void give_up(struct hl_ucx_put *put)
{
    const struct hl_net_put_handler *h = &put->server->opts.put;
    if (put->base != NULL)
        put->base = NULL;
    h->abort(h->arg, put->token);
    hl_ucx_count(&put->server->stat_aborted, 1);
}

static hl_status wrong_sum(const struct hl_net_server *s, uint64_t size, uint32_t got,
                           uint32_t said)
{
    return hl_fail(HL_ECORRUPT, "%s: put of %llu bytes arrived with CRC %08x, the sender says %08x",
                   s->address, (unsigned long long)size, got, said);
}

static void count_stored(struct hl_net_server *s, uint64_t bytes)
{
    hl_ucx_count(&s->stat_puts, 1);
    hl_ucx_count(&s->stat_put_bytes, bytes);
}

static size_t piece_len(const struct hl_ucx_put *put, uint32_t number)
{
    uint64_t left = put->size - (uint64_t)number * put->piece_len;
    return left < put->piece_len ? (size_t)left : put->piece_len;
}

/* From those of the pieces; the whole one comes back. */
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
    const struct hl_net_put_handler *h = &put->server->opts.put;
    size_t chunks = (size_t)((put->size + HL_CHUNK - 1) / HL_CHUNK);
    HL_AUTO(hl_freep) uint32_t *crcs = malloc(chunks * sizeof(*crcs));
    hl_status st = HL_OK;
    uint32_t crc = 0;
    if (crcs == NULL)
        st = hl_fail(HL_ENOMEM, "%s: put of %llu bytes", put->server->address,
                     (unsigned long long)put->size);
    else if ((crc = chunk_sums(put, crcs)) != put->crc)
        st = wrong_sum(put->server, put->size, crc, put->crc);
    if (st != HL_OK) {
        give_up(put);
        return st;
    }
    put->base = NULL;
    HL_TRY(h->commit(h->arg, put->token, crc, crcs, chunks, &put->id));
    count_stored(put->server, put->size);
    return HL_OK;
}

static hl_status store_item(struct hl_net_server *s, const struct hl_wire_item *item,
                            const uint8_t *bytes, struct hl_id *id)
{
    const struct hl_net_put_handler *h = &s->opts.put;
    void *token, *base = NULL;
    if (h->begin == NULL)
        return hl_fail(HL_EPERM, "%s takes no puts", s->address);
    HL_TRY(h->begin(h->arg, (struct hl_id){item->id_hi, item->id_lo}, item->len, &token, &base));
    uint32_t crc = hl_crc32_copy(0, base, bytes, item->len);
    if (crc != item->crc) {
        hl_status st = wrong_sum(s, item->len, crc, item->crc);
        h->abort(h->arg, token);
        hl_ucx_count(&s->stat_aborted, 1);
        return st;
    }
    HL_TRY(h->commit(h->arg, token, crc, &crc, 1, id));
    count_stored(s, item->len);
    return HL_OK;
}

/* Number of items, 0 when it is no list of items. */
static size_t count_items(const struct hl_ucx_put *put)
{
    struct hl_wire_list list = {put->items, put->items_len};
    struct hl_wire_item item;
    const uint8_t *bytes;
    size_t count = 0;
    int got;
    while ((got = hl_wire_next_item(&list, &item, &bytes)) == 1)
        count++;
    return got == 0 ? count : 0;
}

/* Words go along as far as there is room for them. */
static void note_result(struct hl_ucx_put *put, hl_status st, struct hl_id id, size_t items_left)
{
    struct hl_wire_result r = {.id_hi = id.hi, .id_lo = id.lo, .status = st};
    const char *text = hl_error_text();
    size_t room = HL_WIRE_LIST_MAX - put->results_len - items_left * hl_wire_entry(0);
    r.len = st != HL_OK ? (uint32_t)strnlen(text, WORDS_MAX) : 0;
    if (hl_wire_entry(r.len) > room)
        r.len = 0;
    if (st != HL_OK)
        hl_ucx_count(&put->server->stat_refused, 1);
    put->results_len += hl_wire_add_result(put->results + put->results_len, &r, text);
}

/* A list that is broken anywhere stores nothing. */
static hl_status unpack_batch(struct hl_ucx_put *put)
{
    size_t left = count_items(put);
    struct hl_wire_list list = {put->items, put->items_len};
    struct hl_wire_item item;
    const uint8_t *bytes;
    if (left == 0)
        return hl_fail(HL_EPROTO, "a batch that is not a list of objects");
    put->results = malloc(HL_WIRE_LIST_MAX);
    if (put->results == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the results of a batch");
    while (hl_wire_next_item(&list, &item, &bytes) == 1) {
        struct hl_id id = {0, 0};
        hl_status st = store_item(put->server, &item, bytes, &id);
        note_result(put, st, id, --left);
    }
    hl_ucx_count(&put->server->stat_batches, 1);
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
