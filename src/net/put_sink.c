/* The end point of a put: the calls to the server's handler, and what both transports share.
 *
 * `lock` is NULL if one thread makes all calls (the RDMA put worker). Over TCP each connection has
 * a thread, and the lock lets one of them call the handler at a time. It is held only for begin,
 * commit and abort: the bytes of a put arrive between them, without the lock. */
#include "net/put_sink.h"

#include <string.h>

#include "base/copy.h"

#define WORDS_MAX 256 /* longest text of a refusal in a list of results */

static void sink_lock(const struct hl_put_sink *s)
{
    if (s->lock != NULL)
        pthread_mutex_lock(s->lock);
}

static void sink_unlock(const struct hl_put_sink *s)
{
    if (s->lock != NULL)
        pthread_mutex_unlock(s->lock);
}

hl_status hl_put_sink_begin(const struct hl_put_sink *s, struct hl_id id, uint64_t size,
                            void **token, void **ptr)
{
    sink_lock(s);
    hl_status st = s->handler->begin(s->handler->arg, id, size, token, ptr);
    sink_unlock(s);
    return st;
}

hl_status hl_put_sink_commit(const struct hl_put_sink *s, void *token, uint64_t size, uint32_t crc,
                             const uint32_t *chunk_crcs, struct hl_id *id)
{
    size_t chunks = (size_t)((size + HL_CHUNK - 1) / HL_CHUNK);
    sink_lock(s);
    hl_status st = s->handler->commit(s->handler->arg, token, crc, chunk_crcs, chunks, id);
    sink_unlock(s);
    if (st == HL_OK) {
        hl_net_count(&s->counts->puts, 1);
        hl_net_count(&s->counts->put_bytes, size);
    }
    return st;
}

void hl_put_sink_abort(const struct hl_put_sink *s, void *token)
{
    sink_lock(s);
    s->handler->abort(s->handler->arg, token);
    sink_unlock(s);
    hl_net_count(&s->counts->aborted, 1);
}

hl_status hl_put_sink_wrong_sum(const struct hl_put_sink *s, uint64_t size, uint32_t got,
                                uint32_t said)
{
    return hl_fail(HL_ECORRUPT, "%s: put of %llu bytes arrived with CRC %08x, the sender says %08x",
                   s->address, (unsigned long long)size, got, said);
}

size_t hl_put_batch_count(const void *items, size_t len)
{
    struct hl_wire_list list = {items, len};
    struct hl_wire_item item;
    const uint8_t *bytes;
    size_t count = 0;
    int got;
    while ((got = hl_wire_next_item(&list, &item, &bytes)) == 1)
        count++;
    return got == 0 ? count : 0;
}

static hl_status store_item(const struct hl_put_sink *s, const struct hl_wire_item *item,
                            const uint8_t *bytes, struct hl_id *id)
{
    void *token, *base = NULL;
    if (s->handler->begin == NULL)
        return hl_fail(HL_EPERM, "%s does not accept puts", s->address);
    HL_TRY(
        hl_put_sink_begin(s, (struct hl_id){item->id_hi, item->id_lo}, item->len, &token, &base));
    uint32_t crc = hl_copy_crc32(0, base, bytes, item->len, item->len);
    if (crc == item->crc)
        return hl_put_sink_commit(s, token, item->len, crc, &crc, id);
    hl_put_sink_abort(s, token);
    return hl_put_sink_wrong_sum(s, item->len, crc, item->crc);
}

/* Appends a result, with as much of its text as fits; returns the new length. */
static size_t add_result(uint8_t *results, size_t len, hl_status st, struct hl_id id, size_t left)
{
    struct hl_wire_result r = {.id_hi = id.hi, .id_lo = id.lo, .status = st};
    const char *text = hl_error_text();
    size_t room = HL_WIRE_LIST_MAX - len - left * hl_wire_entry(0);
    r.len = st != HL_OK ? (uint32_t)strnlen(text, WORDS_MAX) : 0;
    if (hl_wire_entry(r.len) > room)
        r.len = 0;
    return len + hl_wire_add_result(results + len, &r, text);
}

size_t hl_put_batch_store(const struct hl_put_sink *s, const void *items, size_t len, size_t count,
                          uint8_t *results)
{
    struct hl_wire_list list = {items, len};
    struct hl_wire_item item;
    const uint8_t *bytes;
    size_t done = 0;
    while (count > 0 && hl_wire_next_item(&list, &item, &bytes) == 1) {
        struct hl_id id = {0, 0};
        hl_status st = store_item(s, &item, bytes, &id);
        if (st != HL_OK)
            hl_net_count(&s->counts->refused, 1);
        done = add_result(results, done, st, id, --count);
    }
    hl_net_count(&s->counts->batches, 1);
    return done;
}
