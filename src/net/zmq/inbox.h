/* net/zmq/inbox.h - state of a migration receiver: which objects are arriving, and the answer to
 * each frame. It uses no sockets and no clock, so that tests and the fuzzer can feed it as the
 * server does.
 *
 * Owns:    the unfinished migrations; the memory they are written to belongs to the sink.
 * Threads: one; only hl_mig_inbox_stats may be called from any.
 * Errors:  never fails: an invalid frame is answered with its error.
 * Units:   bytes; times are nanoseconds given by the caller.
 * Limits:  max_open migrations; repeated frames of the last HL_MIG_REMEMBERED finished ones are
 *          answered again.
 */
#ifndef HL_NET_ZMQ_INBOX_H
#define HL_NET_ZMQ_INBOX_H

#include <stdbool.h>

#include "net/zmq/frame.h"
#include "net/zmq/migrate.h"

#define HL_MIG_REMEMBERED 64
#define HL_MIG_WINDOW     ((uint64_t)16 << 20) /* defaults of hl_migrate_server_opts */
#define HL_MIG_MAX_OPEN   16

struct hl_mig_inbox;

struct hl_mig_reply {
    bool send; /* false: send no answer */
    struct hl_mig_frame frame;
    const void *payload; /* frame.length bytes, borrowed until the next call */
};

hl_status hl_mig_inbox_create(const struct hl_migrate_server_opts *opts,
                              struct hl_mig_inbox **out) HL_CHECK;
/* Aborts unfinished migrations. NULL is allowed. */
void hl_mig_inbox_destroy(struct hl_mig_inbox *inbox);
/* Handles one ZMQ message: its header part and its payload part (NULL, 0 if there was none). */
void hl_mig_inbox_message(struct hl_mig_inbox *inbox, const void *header, size_t header_len,
                          const void *payload, size_t payload_len, uint64_t now_ns,
                          struct hl_mig_reply *reply);
/* Counts a message that had the wrong number of parts. */
void hl_mig_inbox_count_refused(struct hl_mig_inbox *inbox);
/* Adds connections that were refused, and already counted as faults, before any message. */
void hl_mig_inbox_add_refused(struct hl_mig_inbox *inbox, uint64_t connections);
/* Aborts migrations that were silent for keep_ms. */
void hl_mig_inbox_expire(struct hl_mig_inbox *inbox, uint64_t now_ns);
void hl_mig_inbox_stats(const struct hl_mig_inbox *inbox, struct hl_migrate_server_stats *out);

#endif
