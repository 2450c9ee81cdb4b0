/* net/dispatch/put_queue.h - small puts of many threads share messages. Puts that arrive while a
 * batch is in flight go out together in the next one, which is sent once it has as many objects as
 * the last, or batch_bytes, or after batch_ms.
 *
 * Owns:    its thread and its connection, which it opens with the first put and again after a
 *          failure. A put's bytes are borrowed until the call returns.
 * Threads: hl_put_queue_put and _start from any number; open and close from one, with no put in
 *          progress. Started puts complete on the queue's own thread.
 * Errors:  those of hl_net_put for each object by itself, with its own text. HL_ETIMEDOUT before
 *          its batch was sent leaves nothing behind; once the batch is in flight, a put waits until
 *          the latest deadline in its batch. HL_ECANCELED for puts that were queued when `cancel`
 *          or their own `stop` was set, and for a batch of one put that `stop` aborted.
 * Units:   bytes, milliseconds.
 * Limits:  a batch takes at most HL_PUT_QUEUE_ITEMS objects.
 */
#ifndef HL_NET_PUT_QUEUE_H
#define HL_NET_PUT_QUEUE_H

#include <stdatomic.h>

#include "net/net.h"

#define HL_PUT_QUEUE_ITEMS 1024

struct hl_put_queue;

struct hl_put_queue_opts {
    struct hl_net_connect_opts connect; /* its batch_bytes is the size limit of a batch */
    /* Longest time that a batch waits for the callers of the previous batch; 0 = connect.conf's, <
     * 0 not at all. */
    int batch_ms;
    const atomic_bool *cancel; /* once true, nothing more is sent; may be NULL */
};

struct hl_put_queue_stats {
    uint64_t puts; /* stored ones */
    uint64_t batches;
    uint64_t connects;
    char path[16]; /* of the last connection, as hl_net_path_name; "" before the first */
};

/* One put without a waiting caller. `done` is called exactly once, with a text when st is not
 * HL_OK; it must not close the queue. */
struct hl_put_queue_order {
    const void *data;
    size_t len;
    uint32_t crc;
    struct hl_id id; /* the id wanted; none = any */
    int timeout_ms;
    /* once true, the put is no longer wanted; may be NULL; borrowed until `done` */
    const atomic_bool *stop;
    void (*done)(void *arg, hl_status st, const char *words);
    void *arg;
};

hl_status hl_put_queue_open(const struct hl_put_queue_opts *opts,
                            struct hl_put_queue **out) HL_CHECK;
/* Stores len bytes with CRC-32 `crc`. *id: the id wanted (none = any), then the one it got. */
hl_status hl_put_queue_put(struct hl_put_queue *q, const void *data, size_t len, uint32_t crc,
                           int timeout_ms, struct hl_id *id) HL_CHECK;
/* `order` is copied. A failure means that `done` is not called. */
hl_status hl_put_queue_start(struct hl_put_queue *q,
                             const struct hl_put_queue_order *order) HL_CHECK;
void hl_put_queue_stats(struct hl_put_queue *q, struct hl_put_queue_stats *out);
/* NULL is allowed. */
void hl_put_queue_close(struct hl_put_queue *q);

#endif
