/* net/zmq/inbox.h - what a migration receiver knows: which objects are arriving and what it
 * answers to a frame. No sockets, no clocks: the server feeds it, and so do tests and the fuzzer.
 *
 * Owns:    the unfinished migrations; the memory they land in is the sink's.
 * Threads: one; only hl_mig_inbox_stats may be called from any.
 * Errors:  never fails: what is wrong with a frame becomes the answer to it.
 * Units:   bytes; times are nanoseconds given by the caller.
 * Limits:  max_open migrations; the last HL_MIG_REMEMBERED finished ones are answered again.
 */
#ifndef HL_NET_ZMQ_INBOX_H
#define HL_NET_ZMQ_INBOX_H

#include <stdbool.h>

#include "net/zmq/frame.h"
#include "net/zmq/migrate.h"

#define HL_MIG_REMEMBERED 64

struct hl_mig_inbox;

struct hl_mig_reply {
    bool send; /* false: nothing is to be answered */
    struct hl_mig_frame frame;
    const void *payload; /* frame.length bytes, borrowed until the next call */
};

hl_status hl_mig_inbox_create(const struct hl_migrate_server_opts *opts,
                              struct hl_mig_inbox **out) HL_CHECK;
/* Aborts what is unfinished. NULL is allowed. */
void hl_mig_inbox_destroy(struct hl_mig_inbox *inbox);
/* One ZMQ message: its header part and its payload part (NULL, 0 when there was none). */
void hl_mig_inbox_message(struct hl_mig_inbox *inbox, const void *header, size_t header_len,
                          const void *payload, size_t payload_len, uint64_t now_ns,
                          struct hl_mig_reply *reply);
/* A message that has the wrong number of parts. */
void hl_mig_inbox_count_refused(struct hl_mig_inbox *inbox);
/* Connections that were refused, and counted as faults, before a message came. */
void hl_mig_inbox_add_refused(struct hl_mig_inbox *inbox, uint64_t connections);
/* Abort migrations that were silent for keep_ms. */
void hl_mig_inbox_expire(struct hl_mig_inbox *inbox, uint64_t now_ns);
void hl_mig_inbox_stats(const struct hl_mig_inbox *inbox, struct hl_migrate_server_stats *out);

#endif
