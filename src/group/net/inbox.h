/* group/net/inbox.h - messages between the ranks of a group on several hosts. Each rank has an
 * inbox (net/net.h: RDMA if available, else TCP) and one outbox to each peer.
 *
 * A message is identified by its sender and a number. Messages of another group are refused.
 *
 * Owns:    an inbox owns its server, its threads and the messages not yet taken. A taken message
 *          belongs to the caller, who frees it with free(). Data being sent is borrowed until the
 *          send has ended.
 * Threads: one at a time, except for the inbox's own.
 * Errors:  those of net/net.h, with the text of the failed put.
 * Units:   bytes; ns of hl_now_ns for deadlines.
 * Limits:  HL_INBOX_BYTES a message; numbers below 2^47. Per rank, an inbox keeps six messages
 *          whose numbers have HL_INBOX_AHEAD and six others; it refuses more with HL_EBUSY.
 */
#ifndef HL_GROUP_NET_INBOX_H
#define HL_GROUP_NET_INBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define HL_INBOX_BYTES ((size_t)8 << 20)
#define HL_INBOX_HELLO UINT64_C(0x48454c4c4f484c47) /* group of ranks that have no group yet */
/* set in the number of a message that may arrive early */
#define HL_INBOX_AHEAD (UINT64_C(1) << 46)

struct hl_inbox;
struct hl_outbox;

struct hl_inbox_message {
    struct hl_inbox_message *next;
    uint64_t group, number;
    int from;
    size_t size;
    _Alignas(64) uint8_t data[];
};

hl_status hl_inbox_open(const char *listen, int ranks, struct hl_inbox **out) HL_CHECK;
const char *hl_inbox_address(const struct hl_inbox *b);
/* Accepts messages of this group from now on, and hellos as long as `hellos` is set. */
void hl_inbox_join(struct hl_inbox *b, uint64_t group, int hellos);
/* NULL when it has not arrived; for hellos `number` is 0. */
struct hl_inbox_message *hl_inbox_take(struct hl_inbox *b, uint64_t group, int from,
                                       uint64_t number);
/* Returns when a message has arrived or a send has ended since the last call, or at `until_ns`. */
void hl_inbox_wait(struct hl_inbox *b, uint64_t until_ns);
/* From any thread: ends a wait. */
void hl_inbox_wake(struct hl_inbox *b);
/* Close its outboxes first. NULL is allowed. */
void hl_inbox_close(struct hl_inbox *b);

/* Connects on the first send. */
hl_status hl_outbox_open(struct hl_inbox *b, const char *address, int stall_ms,
                         struct hl_outbox **out) HL_CHECK;
/* Starts a send, one at a time; it completes asynchronously. */
hl_status hl_outbox_send(struct hl_outbox *l, uint64_t group, int from, uint64_t number,
                         const void *data, size_t size, int timeout_ms) HL_CHECK;
/* True while the last send is in progress; otherwise *st is its result, and *words says what went
 * wrong. */
bool hl_outbox_sending(struct hl_outbox *l, hl_status *st, const char **words);
/* True: its last connection was plain TCP, which any client could have made. */
bool hl_outbox_is_tcp(struct hl_outbox *l);
/* Gives up queued and running sends, soon. NULL is allowed. */
void hl_outbox_close(struct hl_outbox *l);

#endif
