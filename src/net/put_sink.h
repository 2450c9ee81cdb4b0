/* net/put_sink.h - the put handler as the servers of both back ends call it, and batches for it.
 *
 * Owns:    nothing; memory from `begin` belongs to the handler until commit or abort.
 * Threads: any if there is a lock, else one at a time.
 * Errors:  those of the handler; HL_ECORRUPT when the bytes do not have the sender's checksum;
 *          HL_EPERM when the server takes no puts.
 * Units:   bytes.
 * Limits:  the results of a batch fit in HL_WIRE_LIST_MAX; texts are truncated or omitted to make
 *          them fit.
 *
 *     begin --all bytes--> commit         an object is stored only when its checksum is the
 *        '----------------> abort         sender's; a batch that is broken anywhere stores nothing
 */
#ifndef HL_NET_PUT_SINK_H
#define HL_NET_PUT_SINK_H

#include <pthread.h>

#include "net/counts.h"
#include "net/put_list.h"

struct hl_put_sink {
    const struct hl_net_put_handler *handler;
    pthread_mutex_t *lock; /* around each call of the handler; NULL: one thread calls */
    struct hl_net_counts *counts;
    const char *address; /* of the server, for messages */
};

hl_status hl_put_sink_begin(const struct hl_put_sink *s, struct hl_id id, uint64_t size,
                            void **token, void **ptr) HL_CHECK;
/* crc and chunk_crcs are those of the bytes that arrived; counts the put if it is stored. */
hl_status hl_put_sink_commit(const struct hl_put_sink *s, void *token, uint64_t size, uint32_t crc,
                             const uint32_t *chunk_crcs, struct hl_id *id) HL_CHECK;
void hl_put_sink_abort(const struct hl_put_sink *s, void *token);
/* Fails with HL_ECORRUPT and a text. */
hl_status hl_put_sink_wrong_sum(const struct hl_put_sink *s, uint64_t size, uint32_t got,
                                uint32_t said);

/* Number of objects in a batch, 0 when it is not a list of objects. */
size_t hl_put_batch_count(const void *items, size_t len);
/* Stores the `count` objects of a list; returns the size of the list of results. */
size_t hl_put_batch_store(const struct hl_put_sink *s, const void *items, size_t len, size_t count,
                          uint8_t *results);

#endif
